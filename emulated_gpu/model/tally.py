"""What a launch moves and multiplies, counted while it runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import cast

import numpy as np

from ..formats import mma_sync_form, wgmma_form
from ..machine.clock import Clock
from ..machine.launch import Launch
from ..ptx.control_flow import ControlFlow
from .issue import kind
from .memory import LINE

FOLLOWED = 64  # CTAs of a launch whose warps' lives are kept


def loaded(addresses, size: int, strong: bool) -> int:
    """Return the bytes of a load from global memory, of which lanes at one address do one."""
    together = len(addresses) > 1 and (addresses == addresses[0]).all()
    return (1 if together else len(addresses)) * size


# Function of a clock -> the count, and how many bytes it grows by, given what the function gets behind the group
COUNTED: dict[str, tuple[str, Callable[..., int]]] = {
    "tma_load": ("tma_load", lambda tm, map_at, coords, nbytes, ctas, policy: nbytes),
    "bulk_load": ("bulk_load", lambda address, nbytes, ctas, policy: nbytes),
    "tma_store": ("tma_store", lambda tm, map_at, coords, nbytes, reduces=False: nbytes),
    "bulk_store": ("bulk_store", lambda address, nbytes, reduces=False: nbytes),
    "async_load": ("async_load", lambda addresses, size: len(addresses) * size),
    "remote": ("cluster", lambda nbytes=0: nbytes),
    "shared_copy": ("cluster", lambda nbytes: nbytes),
    "cluster_access": ("cluster", lambda addresses, size, loads: len(addresses) * size),
    "constant_load": ("constant_load", lambda addresses: len(np.unique(addresses)) * 4),
    "tmem_store": ("tensor_store", lambda registers, shape: registers * 128),
    "tma_prefetch": ("prefetch", lambda tm, map_at, coords, nbytes: nbytes),
    "bulk_prefetch": ("prefetch", lambda address, nbytes: nbytes),
    "line_prefetch": ("prefetch", lambda addresses: len(np.unique(addresses // np.uint64(LINE))) * LINE),
    "global_load": ("global_load", loaded),
    "global_store": ("global_store", lambda addresses, size, row=False: len(addresses) * size),
}


class Life:
    """Of a warp: when it began, when its latest block ended, and the cycles that its blocks took: what it waits for
    between them, as at barriers, is not among these, but what it waits for inside, as at tcgen05.wait."""

    __slots__ = ("begin", "busy", "end")

    def __init__(self, begin: float):
        self.begin, self.end, self.busy = begin, begin, 0.0


class Tally:
    """A clock that also counts what a launch moves and multiplies, which no schedule and no clock changes.

    counted: bytes of each way to move them (lanes that load from one address do it once), the number of MMAs, and their
    multiplications and additions. executed_blocks: how often groups of lanes have executed each block of the program,
    where each has its turn, as in a timed run; machine code has several in one. lives: of some CTAs in a timed run,
    what each warp does.
    """

    def __init__(self, clock: Clock, program: ControlFlow, ctas: int):
        copies = "tma_load", "bulk_load", "async_load", "tma_store", "bulk_store", "cluster"
        by_lanes = "global_load", "global_store", "global_atomic", "global_reduction", "constant_load", "prefetch"
        self.counted = dict.fromkeys([*copies, *by_lanes, "tensor_store", "mma", "flops"], 0)
        self._clock, self.executed_blocks = clock, [0] * len(program.start)
        self.lives: dict[tuple[int, int], Life] = {}
        for name in dir(clock):  # not by __getattr__, at every instruction
            if not name.startswith("_") and name not in vars(Tally):
                setattr(self, name, getattr(clock, name))
        for name, (count, amount) in COUNTED.items():
            setattr(self, name, self._counting(getattr(clock, name), count, amount))
        if not clock.quantum:
            self._count_blocks(clock.executed, clock.parts, -(-ctas // FOLLOWED))

    def _counting(self, call: Callable, count: str, amount: Callable[..., int]) -> Callable:
        """Return a function of the clock that also counts."""
        counted = self.counted

        def charge(group, *given, **named):
            counted[count] += amount(*given, **named)
            return call(group, *given, **named)

        return charge

    def _count_blocks(self, executed: Callable, parts: Callable, step: int) -> None:
        """Have each execution of a block counted, and what it takes in each CTA of number 0, `step`, 2 `step`, ..."""
        counts, lives = self.executed_blocks, self.lives

        def count(group, cost):
            counts[group.pc] += 1
            end = executed(group, cost)
            if group.cta.index % step == 0:
                warp = group.cta.index, group.warp.index
                life = lives.get(warp) or lives.setdefault(warp, Life(group.begun))
                life.end, life.busy = end, life.busy + end - group.begun
            return end

        def count_parts(group):
            counts[group.pc] += 1
            parts(group)

        self.executed, self.parts = count, count_parts

    def atomic(self, group, space, addresses, size, what, kind, returns):
        if space == "global":
            self.counted["global_atomic" if returns else "global_reduction"] += len(addresses) * size
        return self._clock.atomic(group, space, addresses, size, what, kind, returns)

    def global_bytes(self, loaded, stored, copied):
        self.counted["global_load"] += loaded
        self.counted["global_store"] += stored
        self.counted["async_load"] += copied

    def mma(self, group, description, pair, a_in_tmem):
        self.counted["mma"] += 1
        self.counted["flops"] += 2 * description.m * description.n * description.k
        return self._clock.mma(group, description, pair, a_in_tmem)

    def wgmma(self, group, form):
        self.counted["mma"] += 1
        self.counted["flops"] += 2 * wgmma_form.M * form.n * form.k
        return self._clock.wgmma(group, form)

    def mma_sync(self, group, form):
        self.counted["mma"] += 1
        self.counted["flops"] += 2 * form.m * mma_sync_form.N * form.k


def tallied(launch: Launch) -> dict[str, int]:
    """The counts of a launch that has not started, which grow as it runs."""
    tally = Tally(launch.clock, launch.program, math.prod(launch.grid))
    launch.clock = cast(Clock, tally)  # it has what the clock has that it asks
    return tally.counted


def instructions(launch: Launch) -> Counter[str]:
    """Counts what groups of lanes have executed in a timed launch, by the class that it is charged as."""
    program = launch.program
    found: Counter[str] = Counter()
    for block, times in enumerate(cast(Tally, launch.clock).executed_blocks):
        if times:
            for instr in program.kernel.instrs[program.start[block] : program.end[block]]:
                found[kind(instr)] += times
    return found
