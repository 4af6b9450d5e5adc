"""The MMA warp of sm_100a: one thread issues tcgen05.mma of every k-block into one of two accumulators."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

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

# Matrix descriptors (9.7.16.4.1): version 1, 128-byte swizzle, groups of 8 rows 1024 bytes apart
OPERAND = 2 << 61 | 1 << 46 | 64 << 32


class MmaIssue:
    """The MMA warps. A, the operand on the lanes, is 128 weight rows with swap-AB, else 128 tokens of a CTA.

    With a 2-CTA MMA there are two, of the cluster's first CTA: each has 128 of the tile's weight rows.
    """

    first_parity = 1  # of acc_empty: no accumulator has results

    def __init__(self, config: Config, tmem: TensorMemory):
        self.config, self.tmem, self.warps = config, tmem, tmem.mma_warps
        self.columns = BLOCK_N  # from the accumulators of a warp to those of the next

    def idesc(self, tile: WorkTile) -> Int32:
        """Instruction descriptor (9.7.16.4.2): e4m3 x e4m3, f32 out, M = 128 a CTA, N = width."""
        config = self.config
        width = tile.width if config.swap_ab else Int32(BLOCK_N if config.two_cta else config.block_n)
        return Int32(LANES * self.tmem.ctas >> 4 << 24 | 1 << 4) | (width >> 3 << 17)

    def multiply(
        self, stage: Int32, tmem: tuple[Int32, Int32], acc: Int32, number: Int32, tile: WorkTile, k: Int32
    ) -> None:
        """Issue the MMAs of an MMA warp of the stage at this address.

        tmem: address of tensor memory, and of the warp's accumulators there. acc: whose turn it is.
        """
        config = self.config
        tokens = stage + (config.stage_bytes - config.block_m * BLOCK_K)  # behind the weights
        of_a, of_b = (stage, tokens) if config.swap_ab else (tokens, stage)
        of_rows = number * (config.weights_box * BLOCK_K)  # its weight rows: B's first byte
        a, b = [Int64(x >> 4) | Int64(OPERAND) for x in (of_a, of_b + of_rows)]
        for operand in range(self.tmem.operands):
            of_operand = a + Int64(operand * (LANES * BLOCK_K >> 4))
            d = tmem[0] + (2 * operand + acc) * self.tmem.stride + number * self.columns
            for j in range(BLOCK_K // 32):
                mma_fp8(d, of_operand + 2 * j, b + 2 * j, self.idesc(tile), int(j > 0), self.tmem.ctas)

    @cute.jit
    def __call__(self, cta: Cta, plan: Plan, iteration: Int32, warp: Int32):
        """Issue the MMAs of all work tiles from this iteration on."""
        if const_expr(self.config.two_cta):
            if cta.rank == 0:
                self.issue(cta, plan, iteration, warp - MMA_WARP)
        else:
            self.issue(cta, plan, iteration, warp - MMA_WARP if const_expr(self.warps > 1) else Int32(0))

    @cute.jit
    def issue(self, cta: Cta, plan: Plan, iteration: Int32, number: Int32):
        """One MMA warp: D [128 of A, B] of every operand of every stage."""
        config, ctas = self.config, self.tmem.ctas
        barriers = self.tmem.barriers_of(cta, number)
        tcgen05_fence("after")
        tmem = self.tmem.address(cta)
        places = tmem, tmem + number * self.columns
        with cute.arch.elect_one():
            stage, acc = PipelineState(Int32(0), Int32(0)), PipelineState(Int32(0), Int32(self.first_parity))
            while iteration < plan.end:
                mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
                tile = read_tile(cta.tiles + stage.index * WORK_TILE_BYTES)
                for i in cutlass.range(tile.k_count, unroll=1):
                    mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
                    mbarrier_wait(self.tmem.acc_empty(barriers, acc.index), acc.phase)
                    tcgen05_fence("after")
                    if const_expr(config.gated and not config.permuted):
                        fence_proxy_async()  # the tokens did not come by TMA
                    at = cta.ring + stage.index * config.stage_bytes
                    self.multiply(at, places, acc.index, number, tile, i)
                    mma_commit(cta.empty + 8 * stage.index, config.cluster, ctas)
                    mma_commit(self.tmem.acc_full(barriers, acc.index), ctas, ctas)
                    acc = acc.advance()
                    stage = stage.advance(config.stages)
                iteration = tile.next
            if const_expr(config.two_cta):
                self.tmem.drain(barriers, acc)
