"""The MMA warps where weights become bf16: a thread of each issues tcgen05.mma of operand A from tensor memory.

Each has 128 of the tile's weight rows: so two schedulers share what beside two warps of consumers one had too much of.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_K, MMA_WARP, WORK_TILE_BYTES, Config
from ragged_moe.kernels.context import Cta
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import mbarrier_wait, mma_bf16, mma_commit, select, tcgen05_fence
from ragged_moe.kernels.schedule import Plan, read_tile
from ragged_moe.kernels.sm100.fp4_tensor_memory import Fp4TensorMemory
from ragged_moe.kernels.sm100.scaled_issue import OPERAND as TOKENS
from ragged_moe.kernels.sm100.tensor_memory import LANES

STEPS = BLOCK_K // 16  # of a k-block
IDESC = LANES >> 4 << 24 | 1 << 10 | 1 << 7 | 1 << 4  # instruction descriptor (9.7.16.4.2): M = 128, bf16, f32 out


class Fp4MmaIssue:
    """D [128 weight rows, tile.width tokens] of a warp, all of a tile's K."""

    def __init__(self, config: Config, tmem: Fp4TensorMemory):
        self.config, self.tmem, self.warps = config, tmem, tmem.parts

    @cute.jit
    def __call__(self, cta: Cta, plan: Plan, iteration: Int32, warp: Int32):
        """Issue the MMAs of all work tiles from this iteration on.

        Consumers have read a stage's weights when the tensor core has multiplied them: its commit releases both.
        """
        config, part = self.config, warp - MMA_WARP
        tcgen05_fence("after")
        tmem = self.tmem.address(cta)
        d = tmem + part * config.block_m
        with cute.arch.elect_one():
            stage, turn = PipelineState(Int32(0), Int32(0)), PipelineState(Int32(0), Int32(0))
            while iteration < plan.end:
                mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
                tile = read_tile(cta.tiles + stage.index * WORK_TILE_BYTES)
                always = select(tile.tokens > 0, 1, 0)  # the newest DSL's ptxas crashes where no MMA has a predicate
                idesc = Int32(IDESC) | (tile.width >> 3 << 17)
                for i in cutlass.range(tile.k_count, unroll=1):
                    mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
                    mbarrier_wait(self.tmem.acc_empty(cta.mma, turn.index), turn.phase)
                    tcgen05_fence("after")
                    a = tmem + self.tmem.operand(turn.index, part)
                    b = Int64(cta.ring + stage.index * config.stage_bytes >> 4) | Int64(TOKENS)
                    for step in range_constexpr(STEPS):
                        half, of_half = step // (STEPS // 2), step % (STEPS // 2)
                        at = b + Int64(half * (tile.width * BLOCK_K >> 4) + 2 * of_half)
                        accumulate = Int32(1) if const_expr(step > 0) else i
                        mma_bf16(d, a + 8 * step, at, idesc, accumulate, always)
                    mma_commit(cta.empty + 8 * stage.index)
                    mma_commit(self.tmem.acc_full(cta.mma, turn.index))
                    turn = turn.advance()
                    stage = stage.advance(config.stages)
                iteration = tile.next
