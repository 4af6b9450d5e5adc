"""Stream-K fix-up: partial sums of a tile whose K several clusters share, through global memory.

The cluster with the tile's first k-block collects, the others give. Few sums are polled: their buffer is pre-filled
with EMPTY, a NaN pattern that no FMA produces, and filled again after reading. Many have an acquire/release flag.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import GROUP_THREADS, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.ptx import (
    as_float,
    load_acquire,
    load_relaxed_words_if,
    pause,
    select,
    store_global_words,
    store_relaxed_floats,
    store_release,
    warpgroup_barrier,
)
from ragged_moe.kernels.schedule import Plan, WorkTile, share_start

EMPTY = -1  # bits of a NaN that no arithmetic gives, whatever NaNs it is given: those are 0x7fffffff
BANKS = 1, 0, 3, 2  # of 4 sums, in the aligned registers of a vector: not in the banks of the results added to them


class Partials(NamedTuple):
    """A consumer thread's place in the buffer of partial sums."""

    block: Int32  # number of the CTA's part of it
    thread: Int32  # of the warpgroup
    address: Int64  # of its sums in part 0


class StreamK:
    """Gives and collects partial sums of a warpgroup's accumulators. layout: which of them a tile uses."""

    def __init__(self, config: Config, layout):
        self.config, self.layout = config, layout

    def partials_of(self, warp: Warp) -> Partials:
        """A thread's place in the buffer."""
        group, cta = warp.number >> 2, warp.cta
        block = cta.cluster * self.config.cluster + cta.rank
        group_thread = warp.thread & (GROUP_THREADS - 1)
        offset = group * (self.config.partial_bytes // self.config.groups) + group_thread * 16
        return Partials(block, group_thread, warp.operands.partials + Int64(offset))

    @cute.jit
    def give(self, warp: Warp, tile: WorkTile, partials: Partials, acc):
        """Leave this warpgroup's sums for the cluster that writes the tile."""
        config, group = self.config, warp.number >> 2
        to = partials.address + Int64(partials.block) * config.partial_bytes
        for i in range_constexpr(cute.size(acc) // 4):
            used = self.layout.is_used(tile, warp.number, i)
            store_relaxed_floats(to + i * (GROUP_THREADS * 16), [acc[4 * i + j] for j in BANKS], used)
        if const_expr(not config.polled_partials):
            warpgroup_barrier(group + 1)
            if partials.thread == 0:
                store_release(warp.operands.flags + Int64(partials.block * config.groups + group) * 4, 1)

    @cute.jit
    def collect(self, warp: Warp, plan: Plan, tile: WorkTile, partials: Partials, acc):
        """Add the sums of the clusters that have the rest of this tile, in their order."""
        config, cta, size = self.config, warp.cta, cute.size(acc)
        group, first, clusters = warp.number >> 2, cta.cluster + 1, plan.shape.clusters
        if const_expr(not config.polled_partials):
            for other in cutlass.range(first + partials.thread, clusters, GROUP_THREADS, unroll=1):
                if share_start(plan, other) < tile.end:
                    number = Int64((other * config.cluster + cta.rank) * config.groups + group)
                    flag = warp.operands.flags + number * 4
                    while load_acquire(flag) == 0:
                        pause()
                    store_release(flag, 0)
            warpgroup_barrier(group + 1)
        together = 8 if size <= 16 else 4 if size <= 32 else 2 if size <= 64 else 1  # CTAs that are loaded at once,
        if const_expr(config.widths):  # by two ptxas spills
            together = 1
        chunk = next(size // parts for parts in (1, 2, 4) if size <= 64 * parts)  # this many sums of each
        found = cute.make_rmem_tensor((together * chunk,), Float32)
        other = first
        while share_start(plan, other) < tile.end:
            for base in range_constexpr(0, size, chunk):
                places = []
                for i in range_constexpr(together):
                    at = partials.address + Int64((other + i) * config.cluster + cta.rank) * config.partial_bytes
                    exists = select(share_start(plan, other + i) < tile.end, 1, 0)
                    for j in range_constexpr(base // 4, (base + chunk) // 4):
                        address = at + j * (GROUP_THREADS * 16)
                        places.append((address, exists & self.layout.is_used(tile, warp.number, j)))
                missing = load_partials(places, found)
                if const_expr(config.polled_partials):
                    while cute.arch.vote_any_sync(missing != 0):
                        pause()
                        missing = load_partials(places, found)
                    for i in range_constexpr(len(places)):
                        store_global_words(places[i][0], [Int32(EMPTY)] * 4, places[i][1])  # for the next launch
                for i in range_constexpr(together):
                    for j in range_constexpr(chunk):
                        acc[base + j] = acc[base + j] + found[i * chunk + j]
            other = other + together


def load_partials(places: list[tuple[Int64, Int32]], found) -> Int32:
    """Load four sums from each place, 0 where its condition is 0. Returns 1 if one of them is EMPTY, else 0."""
    missing = Int32(0)
    for i, place in enumerate(places):
        words = load_relaxed_words_if(*place)
        for j in range(4):
            found[4 * i + j] = as_float(words[BANKS[j]])
            missing = select(words[j] == EMPTY, 1, missing)
    return missing
