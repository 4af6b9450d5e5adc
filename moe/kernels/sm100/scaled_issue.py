"""The MMA warp of e2m1 by e2m1: one thread copies a stage's scales to tensor memory, and issues tcgen05.mma, which
multiplies by them, into an accumulator for all of a work tile's K.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from moe.kernels.config import BLOCK_K, BLOCK_N, WORK_TILE_BYTES, Config
from moe.kernels.context import Cta
from moe.kernels.pipeline import PipelineState
from moe.kernels.ptx import mbarrier_wait, mma_commit, mma_fp4, select, tcgen05_fence, tmem_copy_scales
from moe.kernels.schedule import Plan, read_tile
from moe.kernels.sm100.scaled_tensor_memory import (
    ATOM,
    ATOM_COLUMNS,
    ATOMS,
    TOKEN_SCALES,
    WEIGHT_SCALES,
    ScaledTensorMemory,
)
from moe.kernels.sm100.tensor_memory import LANES

# Matrix descriptors (9.7.16.4.1), version 1: 128-byte swizzle, 8 rows 1024 bytes apart; scales: none, 128 bytes
OPERAND, SCALES = 2 << 61 | 1 << 46 | 64 << 32, 1 << 46 | 8 << 32
# Instruction descriptor (9.7.16.4.2): e2m1 x e2m1, e4m3 scales, M = 128
IDESC = LANES >> 7 << 27 | 1 << 10 | 1 << 7


class ScaledMmaIssue:
    """D [128 tokens, block_n weight rows], 64 of K at a time."""

    warps = 1

    def __init__(self, config: Config, tmem: ScaledTensorMemory):
        self.config, self.tmem = config, tmem

    @cute.jit
    def __call__(self, cta: Cta, plan: Plan, iteration: Int32, _warp: Int32):
        """Issue the MMAs of all work tiles from this iteration on."""
        config, blocks = self.config, self.config.block_n // BLOCK_N
        tcgen05_fence("after")
        tmem = self.tmem.address(cta)
        of_tokens, of_weights = tmem + TOKEN_SCALES, tmem + WEIGHT_SCALES
        weights_bytes, tokens_bytes = config.block_n * BLOCK_K, config.block_m * BLOCK_K
        scales_bytes = blocks * ATOMS * ATOM
        with cute.arch.elect_one():
            stage, acc = PipelineState(Int32(0), Int32(0)), PipelineState(Int32(0), Int32(1))
            while iteration < plan.end:
                mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
                tile = read_tile(cta.tiles + stage.index * WORK_TILE_BYTES)
                mbarrier_wait(self.tmem.acc_empty(cta.mma, acc.index), acc.phase)
                d = tmem + acc.index * self.tmem.stride
                always = select(tile.tokens > 0, 1, 0)  # ptxas 12.9 crashes where no copy has a predicate
                for i in cutlass.range(tile.k_count, unroll=1):
                    mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
                    tcgen05_fence("after")
                    weights = cta.ring + stage.index * config.stage_bytes
                    tokens, scales = weights + weights_bytes, weights + weights_bytes + tokens_bytes
                    b, a = [Int64(x >> 4) | Int64(OPERAND) for x in (weights, tokens)]
                    b_scales, a_scales = [Int64(x >> 4) | Int64(SCALES) for x in (scales, scales + scales_bytes)]
                    for j in range_constexpr(ATOMS):
                        sfa, sfb = of_tokens + ATOM_COLUMNS * j, of_weights + blocks * ATOM_COLUMNS * j
                        tmem_copy_scales(sfa, a_scales + (j * ATOM >> 4), always)
                        for block in range_constexpr(blocks):
                            source = b_scales + ((block * ATOMS + j) * ATOM >> 4)
                            tmem_copy_scales(sfb + ATOM_COLUMNS * block, source, always)
                        accumulate = Int32(1) if const_expr(j > 0) else i
                        idesc = Int32(IDESC | config.block_n >> 3 << 17)
                        mma_fp4(d, a + 2 * j, b + 2 * j, idesc, sfa, sfb, accumulate)
                    mma_commit(cta.empty + 8 * stage.index)
                    stage = stage.advance(config.stages)
                mma_commit(self.tmem.acc_full(cta.mma, acc.index))
                acc = self.tmem.advance(acc)
                iteration = tile.next
