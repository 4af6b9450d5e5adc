"""Split-K in a cluster: each of two CTAs has half of a tile's K, and sums go from one to the other through DSMEM.

    CTA 0: warps 1, 3, 5, 7 ─ st.async ─► CTA 1's sums, which adds them and stores the results of these warps' rows
    CTA 1: warps 0, 2, 4, 6 ─ st.async ─► CTA 0's

    mbarriers of warps 2i and 2i + 1, in both CTAs [GROUP_WARPS each]:
        come   the other CTA's st.async (bytes), and the expecting thread ──► the warp that adds
        room   the adding warp, when it has read ──► the other CTA's warp that gives the next sums
"""

import cutlass.cute as cute
from cutlass import Int32, range_constexpr

from ragged_moe.kernels.config import GROUP_WARPS, SPLIT_K_BARRIER_BYTES, Config
from ragged_moe.kernels.context import Cta, Warp
from ragged_moe.kernels.ptx import (
    load_shared_floats,
    map_shared,
    mbarrier_arrive_cluster,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    select,
    store_async_floats,
)
from ragged_moe.kernels.schedule import Plan, WorkTile


class SplitK:
    """Joins the sums of a cluster's two CTAs. Its barriers are the last SPLIT_K_BARRIER_BYTES of Cta.mma.

    layout: which tokens a warp has results of.
    """

    def __init__(self, config: Config, layout):
        self.config, self.layout = config, layout

    def barriers(self, cta: Cta, pair: Int32) -> tuple[Int32, Int32]:
        """(come, room) of a pair of warps."""
        first = cta.mma + (self.config.mma_barrier_bytes - SPLIT_K_BARRIER_BYTES)
        return first + 8 * pair, first + 8 * (GROUP_WARPS + pair)

    def init_barriers(self, cta: Cta) -> None:
        """One thread initialises them."""
        for i in range(GROUP_WARPS):
            for bar in self.barriers(cta, i):
                mbarrier_init(bar, 1)  # the expecting thread; the adding warp

    @cute.jit
    def join(self, warp: Warp, plan: Plan, tile: WorkTile, turn: Int32, acc):
        """Add the other CTA's sums, or give it mine. Returns whether this warp stores the results, and turn.

        In each CTA they are every other warp's. turn: parity of how often this warp had sums to give or to take.
        """
        config, cta, lane = self.config, warp.cta, warp.lane
        pair, other = warp.number >> 1, cta.rank ^ 1
        come, room = self.barriers(cta, pair)
        place = cta.split_k + pair * (config.split_k_bytes // GROUP_WARPS) + lane * 16
        mine = (warp.number & 1) == cta.rank
        if (self.layout.first_token(warp.number) < tile.tokens) & (plan.shape.k_blocks > 1):
            if mine:
                if lane == 0:
                    mbarrier_expect(come, config.split_k_bytes // GROUP_WARPS)
                mbarrier_wait(come, turn)
                for i in range_constexpr(config.accumulators // 4):
                    x = load_shared_floats(place + i * 512)
                    for j in range_constexpr(4):
                        acc[4 * i + j] = acc[4 * i + j] + x[j]
                cute.arch.sync_warp()
                mbarrier_arrive_cluster(map_shared(room, other), select(lane == 0, 1, 0))
            else:
                self.drain(warp, turn)
                to, bar = map_shared(place, other), map_shared(come, other)
                for i in range_constexpr(config.accumulators // 4):
                    store_async_floats(to + i * 512, [acc[4 * i + j] for j in range(4)], bar)
            turn = turn ^ 1
        return mine, turn

    def drain(self, warp: Warp, turn: Int32) -> None:
        """A warp that has given sums waits until the other CTA has added them."""
        _, room = self.barriers(warp.cta, warp.number >> 1)
        mbarrier_wait(room, turn ^ 1)
