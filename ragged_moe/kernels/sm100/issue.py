"""The MMA warp of sm_100a: one thread issues tcgen05.mma of every k-block into one of two accumulators."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_K, BLOCK_N, MMA_WARP, WORK_TILE_BYTES, Config
from ragged_moe.kernels.context import Cta
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import (
    fence_proxy_async,
    mbarrier_wait,
    mma_commit,
    mma_fp8,
    tcgen05_fence,
)
from ragged_moe.kernels.schedule import Plan, WorkTile, read_tile
from ragged_moe.kernels.sm100.tensor_memory import LANES, TensorMemory


class MmaIssue:
    """The MMA warps. A, the operand on the lanes, is 128 weight rows with swap-AB, else 128 tokens of a CTA.

    With a 2-CTA MMA there are two, of the cluster's first CTA: each has 128 of the tile's weight rows.
    """

    def __init__(self, config: Config, tmem: TensorMemory):
        self.config, self.tmem, self.warps = config, tmem, tmem.mma_warps

    def operands_of(self, stage: Int32) -> tuple[Int32, Int32]:
        """Addresses of A and B of a stage in shared memory: weights lie before the tokens."""
        config = self.config
        tokens = stage + (config.stage_bytes - config.block_m * BLOCK_K)
        return (stage, tokens) if config.swap_ab else (tokens, stage)

    def width_of(self, tile: WorkTile) -> Int32:
        """N of the MMA."""
        if self.config.swap_ab:
            return tile.width
        return Int32(BLOCK_N if self.config.two_cta else self.config.block_n)

    @cute.jit
    def __call__(self, cta: Cta, plan: Plan, iteration: Int32, warp: Int32):
        """Issue the MMAs of all work tiles from this iteration on."""
        if const_expr(self.config.two_cta):
            if cta.rank == 0:
                self.issue(cta, plan, iteration, warp - MMA_WARP)
        else:
            self.issue(cta, plan, iteration, Int32(0))

    @cute.jit
    def issue(self, cta: Cta, plan: Plan, iteration: Int32, number: Int32):
        """One MMA warp: D [128 of A, B] of every operand of every stage."""
        config, ctas = self.config, self.tmem.ctas
        barriers = self.tmem.barriers_of(cta, number)
        column, of_rows = Int32(0), Int32(0)  # of its weight rows: D's first column, B's first byte
        if const_expr(config.two_cta):
            column, of_rows = number * BLOCK_N, number * (config.weights_box * BLOCK_K)
        tcgen05_fence("after")
        tmem = self.tmem.address(cta)
        with cute.arch.elect_one():
            stage, acc = PipelineState(Int32(0), Int32(0)), PipelineState(Int32(0), Int32(1))
            while iteration < plan.end:
                mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
                tile = read_tile(cta.tiles + stage.index * WORK_TILE_BYTES)
                # Instruction descriptor (9.7.16.4.2): e4m3 x e4m3, f32 out, M = 128 a CTA, N = width
                idesc = Int32(LANES * ctas >> 4 << 24 | 1 << 4) | (self.width_of(tile) >> 3 << 17)
                for _ in cutlass.range(tile.k_count, unroll=1):
                    mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
                    mbarrier_wait(self.tmem.acc_empty(barriers, acc.index), acc.phase)
                    tcgen05_fence("after")
                    if const_expr(config.gated):
                        fence_proxy_async()  # the tokens did not come by TMA
                    # Matrix descriptors (9.7.16.4.1): version 1, 128-byte swizzle, groups of 8 rows 1024 bytes apart
                    of_a, of_b = self.operands_of(cta.ring + stage.index * config.stage_bytes)
                    a, b = [Int64(x >> 4) | Int64(2 << 61 | 1 << 46 | 64 << 32) for x in (of_a, of_b + of_rows)]
                    for operand in range_constexpr(self.tmem.operands):
                        of_operand = a + Int64(operand * (LANES * BLOCK_K >> 4))
                        d = tmem + (2 * operand + acc.index) * self.tmem.stride + column
                        for j in range_constexpr(BLOCK_K // 32):
                            mma_fp8(d, of_operand + 2 * j, b + 2 * j, idesc, int(j > 0), ctas)
                    mma_commit(cta.empty + 8 * stage.index, config.cluster, ctas)
                    mma_commit(self.tmem.acc_full(barriers, acc.index), ctas, ctas)
                    acc = acc.advance()
                    stage = stage.advance(config.stages)
                iteration = tile.next
            if const_expr(config.two_cta):
                self.tmem.drain(barriers, acc)
