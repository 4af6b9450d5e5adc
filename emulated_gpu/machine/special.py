"""Special registers (PTX ISA 10): what a group of lanes reads from %tid and its like."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np

from ..errors import Unsupported
from ..formats.alu import MASK
from ..state.shared_memory import BASE

TIMERS = ("clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi")


@dataclass(frozen=True)
class Origins:
    """Says what kernels read of where and when they run that none can rely on: what the timers show when the launch's
    time is 0, and the numbers of SMs, in the order of their use; () for 0, 1, 2, .."""

    clock: int = 0
    globaltimer: int = 0
    sms: tuple[int, ...] = ()

    @classmethod
    def drawn(cls, seed: int, sms: int) -> Origins:
        """Draw those of a GPU that has been up for a while, in this decade: the two SMs of a TPC stay together."""
        random = Random(seed)
        pairs = random.sample(range(sms // 2), sms // 2)
        numbers = [number for pair in pairs for number in (2 * pair, 2 * pair + 1)]
        clock, now = random.randrange(1 << 40, 1 << 52), random.randrange(1_750_000_000, 2_000_000_000)
        return cls(clock, now * 10**9 + random.randrange(10**9), (*numbers, *range(len(numbers), sms)))


def special_register(group, name: str):
    """Return the value of %name: an int, or uint32 [n], one a lane. A tick is a cycle and a nanosecond."""
    return _reader(name)(group)


@functools.cache
def _reader(name: str) -> Callable:
    """The function of a group that reads %name: each CTA asks for some, and a name is taken apart once."""
    base, _, axis = name.partition(".")
    if name in TIMERS:
        if name.startswith("globaltimer"):
            return lambda g: _timer(int(g.t) + g.launch.origins.globaltimer, name)
        return lambda g: _timer(int(g.clock.ticks(g)) + g.launch.origins.clock, name)
    if base == "tid":
        return lambda g: _thread_index(g, axis)
    if base == "laneid":
        return lambda g: _per_lane(g.lanes)
    if base.startswith("lanemask_"):
        return lambda g: _per_lane(_lane_mask(g.lanes, base.removeprefix("lanemask_")))
    if base not in NUMBERS:
        raise Unsupported(f"special register %{name}")
    number, k = NUMBERS[base], "xyz".find(axis) if axis else 0
    return lambda g: int(number(g, g.cta, g.launch, k))


# What is the same in all lanes of a group, given (group, its CTA, launch, axis)
NUMBERS = {
    "ntid": lambda g, cta, launch, k: launch.block[k],
    "ctaid": lambda g, cta, launch, k: cta.ctaid[k],
    "nctaid": lambda g, cta, launch, k: launch.grid[k],
    "warpid": lambda g, cta, launch, k: g.warp.index,
    "nwarpid": lambda g, cta, launch, k: 64,  # of the SM, not of the CTA
    "smid": lambda g, cta, launch, k: launch.origins.sms[cta.sm] if launch.origins.sms else cta.sm,
    "nsmid": lambda g, cta, launch, k: launch.sms,
    "gridid": lambda g, cta, launch, k: launch.grid_id,
    "cluster_ctaid": lambda g, cta, launch, k: cta.ctaid[k] % launch.cluster[k],
    "cluster_nctaid": lambda g, cta, launch, k: launch.cluster[k],
    "clusterid": lambda g, cta, launch, k: cta.ctaid[k] // launch.cluster[k],
    "nclusterid": lambda g, cta, launch, k: launch.grid[k] // launch.cluster[k],
    "cluster_ctarank": lambda g, cta, launch, k: cta.rank,
    "cluster_nctarank": lambda g, cta, launch, k: math.prod(launch.cluster),
    "is_explicit_cluster": lambda g, cta, launch, k: launch.explicit_cluster,
    "dynamic_smem_size": lambda g, cta, launch, k: launch.dynamic_shared,
    "envreg1": lambda g, cta, launch, k: launch.workspace >> 32,  # as cooperative_groups of CUDA 13 reads them
    "envreg2": lambda g, cta, launch, k: launch.workspace & MASK[32],
    "reserved_smem_offset_begin": lambda g, cta, launch, k: 0,  # of the system's part, behind which variables lie
    "reserved_smem_offset_end": lambda g, cta, launch, k: BASE,
    "reserved_smem_offset_cap": lambda g, cta, launch, k: BASE,
    # without the system's part, in units of 128
    "total_smem_size": lambda g, cta, launch, k: launch.needs.shared - BASE,
}


def _timer(ticks: int, name: str) -> int:
    if name.endswith("_hi"):
        return ticks >> 32
    return ticks & MASK[32 if name in ("clock", "globaltimer_lo") else 64]


def _thread_index(group, axis: str):
    """Return %tid, computed once for lanes that stand alike in their CTAs."""
    known, where = group.launch.thread_index, (axis, group.warp.index, group.lane_mask)
    found = known.get(where)
    if found is None:
        block, linear, k = group.launch.block, group.warp.index * 32 + group.lanes, "xyz".index(axis)
        found = (linear, linear // block[0], linear // (block[0] * block[1]))[k] % block[k]
        found = known[where] = _per_lane(found)
    return found


def _lane_mask(lanes: np.ndarray, which: str) -> np.ndarray:
    """Return %lanemask_eq, lt, le, gt or ge of each lane: its bit, those below, those above."""
    bit = np.uint64(1) << lanes.astype(np.uint64)
    below = bit - np.uint64(1)
    mask = {"eq": bit, "lt": below, "le": bit | below, "gt": ~(bit | below), "ge": ~below}[which]
    return mask & np.uint64(MASK[32])


def _per_lane(values: np.ndarray):
    return int(values[0]) if len(values) == 1 else values.astype(np.uint32)
