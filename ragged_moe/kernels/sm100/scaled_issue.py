"""The MMA warp with block scales: one thread copies a stage's scales to tensor memory, and issues tcgen05.mma, which
multiplies by them, into an accumulator for all of a work tile's K.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.block_scaled import MMAS
from ragged_moe.kernels.config import BLOCK_K, BLOCK_N, WORK_TILE_BYTES, Config
from ragged_moe.kernels.context import Cta
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import (
    fence_proxy_async,
    mbarrier_wait,
    mma_block_scaled,
    mma_commit,
    select,
    tcgen05_fence,
    tmem_copy_scales,
)
from ragged_moe.kernels.schedule import Plan, read_tile
from ragged_moe.kernels.sm100.issue import OPERAND
from ragged_moe.kernels.sm100.scaled_tensor_memory import (
    ATOM,
    ATOM_COLUMNS,
    TOKEN_SCALES,
    WEIGHT_SCALES,
    ScaledTensorMemory,
)
from ragged_moe.kernels.sm100.tensor_memory import LANES

SCALES = 1 << 46 | 8 << 32  # matrix descriptor of scales (9.7.16.4.1): version 1, no swizzle, 128 bytes apart
IDESC = LANES >> 7 << 27  # instruction descriptor (9.7.16.4.2): M = 128


class ScaledMmaIssue:
    """D [128 tokens, block_n weight rows], a quarter of a stage at a time."""

    warps = 1

    def __init__(self, config: Config, tmem: ScaledTensorMemory):
        self.config, self.tmem = config, tmem

    @cute.jit
    def __call__(self, cta: Cta, plan: Plan, iteration: Int32, _warp: Int32):
        """Issue the MMAs of all work tiles from this iteration on."""
        config, form, blocks = self.config, self.config.block_scaled, self.config.block_n // BLOCK_N
        tcgen05_fence("after")
        tmem = self.tmem.address(cta)
        of_tokens, of_weights = tmem + TOKEN_SCALES, tmem + WEIGHT_SCALES
        weights_bytes, tokens_bytes = config.block_n * BLOCK_K, config.block_m * BLOCK_K
        with cute.arch.elect_one():
            stage, acc = PipelineState(Int32(0), Int32(0)), PipelineState(Int32(0), Int32(1))
            while iteration < plan.end:
                mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
                tile = read_tile(cta.tiles + stage.index * WORK_TILE_BYTES)
                mbarrier_wait(self.tmem.acc_empty(cta.mma, acc.index), acc.phase)
                d = tmem + acc.index * self.tmem.stride
                always = select(tile.tokens > 0, 1, 0)  # ptxas 12.9 and 13.0 crash where no MMA has a predicate
                for i in cutlass.range(tile.k_count, unroll=1):
                    mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
                    tcgen05_fence("after")
                    if const_expr(config.gated):
                        fence_proxy_async()  # tokens and their scales did not come by TMA
                    weights = cta.ring + stage.index * config.stage_bytes
                    b, a = [Int64(weights + x >> 4) | Int64(OPERAND) for x in (0, weights_bytes)]
                    scales = weights_bytes + tokens_bytes, config.token_scales_offset
                    b_scales, a_scales = [Int64(weights + x >> 4) | Int64(SCALES) for x in scales]
                    for j in range_constexpr(MMAS):
                        atom, first = form.scales_of(j)
                        sfa, sfb = of_tokens + ATOM_COLUMNS * atom, of_weights + blocks * ATOM_COLUMNS * atom
                        if const_expr(first == 0):
                            tmem_copy_scales(sfa, a_scales + (atom * ATOM >> 4))
                            for block in range_constexpr(blocks):
                                source = b_scales + ((block * form.atoms + atom) * ATOM >> 4)
                                tmem_copy_scales(sfb + ATOM_COLUMNS * block, source)
                        accumulate = Int32(1) if const_expr(j > 0) else i
                        idesc = IDESC | form.types | config.block_n >> 3 << 17 | first << 29 | first << 4
                        at = d, a + 2 * j, b + 2 * j
                        mma_block_scaled(form.kind, *at, Int32(idesc), sfa, sfb, accumulate, always)
                    mma_commit(cta.empty + 8 * stage.index)
                    stage = stage.advance(config.stages)
                mma_commit(self.tmem.acc_full(cta.mma, acc.index))
                acc = self.tmem.advance(acc)
                iteration = tile.next
