"""K of a tile in two halves, one for each CTA of a cluster, whose sums go from one to the other through shared memory.

Each CTA stores the results of every other warp: of the others it gives the sums to the other CTA.
"""

import cutlass.cute as cute
from cutlass import Int32, range_constexpr

from moe.kernel import GROUP_WARPS, Cta
from moe.ptx import (
    load_shared_floats,
    map_shared,
    mbarrier_arrive_cluster,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    select,
    store_async_floats,
)

JOINS = 2 * GROUP_WARPS * 8  # bytes of barriers


class JoinedHalves:
    """Part of a kernel whose config has `halves`: its barriers are the last JOINS of the back end's own bytes."""

    def first_token(self, warp: Int32) -> Int32:
        """Of a tile, that a warp has results of."""
        raise NotImplementedError

    def joins(self, cta: Cta, number: Int32) -> tuple[Int32, Int32]:
        """Barriers of a warp and its fellow: sums of the other CTA have come; there is room for sums in the other."""
        first = cta.own + (self.config.own_bytes - JOINS)
        return first + 8 * number, first + 8 * (GROUP_WARPS + number)

    def init_barriers(self, cta: Cta) -> None:
        super().init_barriers(cta)
        if self.config.halves:
            for i in range(GROUP_WARPS):
                for bar in self.joins(cta, i):
                    mbarrier_init(bar, 1)

    @cute.jit
    def join(self, cta: Cta, piece, plan, turn: Int32, acc, warp: Int32, lane: Int32):
        """A warp: add the other CTA's sums, or give it mine. Returns whether it stores the results, and turn.

        In each CTA they are every other warp's. turn: parity of how often this warp had sums to give or to take.
        """
        config = self.config
        number, other = warp >> 1, cta.rank ^ 1
        come, room = self.joins(cta, number)
        place = cta.joined + number * (config.joined_bytes // GROUP_WARPS) + lane * 16
        mine = (warp & 1) == cta.rank
        if (self.first_token(warp) < piece.tokens) & (plan.shape.k_blocks > 1):
            if mine:
                if lane == 0:
                    mbarrier_expect(come, config.joined_bytes // GROUP_WARPS)
                mbarrier_wait(come, turn)
                for i in range_constexpr(config.sums // 4):
                    x = load_shared_floats(place + i * 512)
                    for j in range_constexpr(4):
                        acc[4 * i + j] = acc[4 * i + j] + x[j]
                cute.arch.sync_warp()
                mbarrier_arrive_cluster(map_shared(room, other), select(lane == 0, 1, 0))
            else:
                self.end_join(cta, turn, warp)
                to, bar = map_shared(place, other), map_shared(come, other)
                for i in range_constexpr(config.sums // 4):
                    store_async_floats(to + i * 512, [acc[4 * i + j] for j in range(4)], bar)
            turn = turn ^ 1
        return mine, turn

    def end_join(self, cta: Cta, turn: Int32, warp: Int32) -> None:
        """A warp that has given sums: until the other CTA has added them."""
        _, room = self.joins(cta, warp >> 1)
        mbarrier_wait(room, turn ^ 1)
