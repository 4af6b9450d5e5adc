"""Accumulators in tensor memory: two of each kind, used in turn, and the barriers between the MMA warp and consumers.

    MMA warp ── commit ──► acc_full [2] ──► consumers ── every warp, when it has read ──► acc_empty [2] ──► MMA warp

Cta.mma: acc_full [2], acc_empty [2], the address of tensor memory. With a 2-CTA MMA each warpgroup has accumulators of
its own: those are the first one's, behind the address follow acc_full [2], acc_empty [2] of the second one's, and
all_read, at which both CTAs' consumers arrive in the end: tensor memory is of both.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from ragged_moe.kernels.config import BLOCK_N, CONSUMER_GROUPS, CONSUMER_WARPS, Config
from ragged_moe.kernels.context import Cta
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import (
    load_shared,
    map_shared,
    mbarrier_arrive,
    mbarrier_arrive_cluster,
    mbarrier_init,
    mbarrier_wait,
    minimum,
    select,
    tcgen05_fence,
    tmem_alloc,
    tmem_dealloc,
)

LANES = 128  # of tensor memory: the M side of a CTA's MMA
ADDRESS = 32  # byte of Cta.mma
SECOND = 40  # bytes from the first warpgroup's barriers to the second's, with a 2-CTA MMA
ALL_READ = SECOND + 32


class TensorMemory:
    """Allocation, addresses and barriers of a kernel's accumulators.

    operands: with swap-AB, how many operands of 128 weight rows each stage multiplies with the tokens: 2 if gated.
    stride: columns from one accumulator to the next.
    """

    def __init__(self, config: Config):
        self.config = config
        self.operands = 2 if config.swap_ab and config.gated else 1
        if config.two_cta:
            self.stride = CONSUMER_GROUPS * BLOCK_N
        else:
            self.stride = LANES if config.swap_ab else 2 * config.accumulators
        self.columns = 2 * self.operands * self.stride
        self.mma_warps = CONSUMER_GROUPS if config.two_cta else 1
        self.ctas = config.cluster if config.two_cta else 1  # of a tcgen05.mma

    def barriers_of(self, cta: Cta, group: Int32) -> Int32:
        """Address of the barriers of a warpgroup's accumulators."""
        return cta.mma + SECOND * group if self.config.two_cta else cta.mma

    def acc_full(self, barriers: Int32, which: Int32) -> Int32:
        """Barrier: there are results in accumulator `which`."""
        return barriers + 8 * which

    def acc_empty(self, barriers: Int32, which: Int32) -> Int32:
        """Barrier: they have been read."""
        return barriers + 16 + 8 * which

    def address(self, cta: Cta) -> Int32:
        """Address of tensor memory."""
        return load_shared(cta.mma + ADDRESS)

    def init_barriers(self, cta: Cta) -> None:
        """One thread initialises them."""
        for group in range(self.mma_warps):
            barriers = self.barriers_of(cta, group)
            for i in range(2):
                mbarrier_init(self.acc_full(barriers, i), 1)  # the commit
                mbarrier_init(self.acc_empty(barriers, i), CONSUMER_WARPS)  # two_cta: half of those of two CTAs
        if self.config.two_cta:
            mbarrier_init(cta.mma + ALL_READ, self.ctas * CONSUMER_WARPS)

    def alloc(self, cta: Cta) -> None:
        """The MMA warp allocates tensor memory."""
        tmem_alloc(cta.mma + ADDRESS, self.columns, self.ctas)
        tcgen05_fence("before")

    @cute.jit
    def dealloc(self, cta: Cta, warp: Int32, mma_warp: cutlass.Constexpr):
        """All warps, at the end: the MMA warp frees tensor memory when nobody reads it any more."""
        if const_expr(self.config.two_cta):
            lane, all_read = cute.arch.lane_idx(), cta.mma + ALL_READ
            if warp < CONSUMER_WARPS:
                tcgen05_fence("before")
                cute.arch.sync_warp()
                to = map_shared(all_read, minimum(lane, self.ctas - 1))
                mbarrier_arrive_cluster(to, select(lane < self.ctas, 1, 0))
            if warp == mma_warp:
                cute.arch.sync_warp()
                mbarrier_wait(all_read, Int32(0))
                tcgen05_fence("after")
                tmem_dealloc(self.address(cta), self.columns, self.ctas)
        else:
            tcgen05_fence("before")
            cute.arch.sync_threads()
            if warp == mma_warp:
                tcgen05_fence("after")
                tmem_dealloc(self.address(cta), self.columns, self.ctas)

    def wait_full(self, barriers: Int32, turn: Int32) -> None:
        """A consumer waits for the results of k-block `turn`, counted from the CTA's first."""
        mbarrier_wait(self.acc_full(barriers, turn & 1), (turn >> 1) & 1)

    def release(self, barriers: Int32, turn: Int32, lane: Int32) -> None:
        """A consumer warp has read its results of k-block `turn`: arrive where the MMA warp waits."""
        bar = self.acc_empty(barriers, turn & 1)
        if self.config.two_cta:  # the first CTA's
            mbarrier_arrive_cluster(map_shared(bar, Int32(0)), select(lane == 0, 1, 0))
        else:
            mbarrier_arrive(bar, select(lane == 0, 1, 0))

    def drain(self, barriers: Int32, state: PipelineState) -> None:
        """An MMA warp that has issued all waits for the other CTA's arrivals, at both accumulators."""
        mbarrier_wait(self.acc_empty(barriers, state.index), state.phase)
        state = state.advance()
        mbarrier_wait(self.acc_empty(barriers, state.index), state.phase)
