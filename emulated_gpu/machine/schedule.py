"""Orders of events for functional runs, drawn from a seed: every one that a correct program must tolerate.

A delay is arbitrary, so it is no prediction; model/clock.py has the clock that predicts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .clock import Clock


@dataclass(frozen=True)
class Schedule:
    """seed: its number. The first ones are chosen, each for what it lets come late (emulated_gpu/RUN.md):

    0  nothing: operations take a short time, warps and CTAs begin in their order
    1  the first warps and CTAs: each is far behind the next one, whenever it begins or is woken. An arrival, a commit
       or an atomic lets those go first that wait for it, and operations land at once
    2  every asynchronous operation: it lands only when nothing else can move. So does who has looked
       at a flag by a volatile, relaxed or acquiring load: what it has seen may be old. Who has set one stops a while
    3  the last warps and CTAs: each is far behind the one before it. Operations land at once
    4  to 10: as 2, one class of operations alone. From 11 on: some classes. Warps take turns by a draw, also in 2
    """

    seed: int = 0

    LAZY = 20_000
    BEHIND = 3_000
    SHORT = 600
    CLASSES = ("tma", "mma", "store", "commit", "ld", "remote", "st")

    def lazy_classes(self) -> frozenset[str]:
        """The classes of operations that land only when nothing else can move."""
        if self.seed == 2:
            return frozenset(self.CLASSES)
        single = self.seed - 4
        if single < 0:
            return frozenset()
        if single < len(self.CLASSES):
            return frozenset({self.CLASSES[single]})
        rng = random.Random(self.seed)
        return frozenset(c for c in self.CLASSES if rng.random() < 0.4)

    @property
    def prompt(self) -> bool:
        """Whether operations land at once."""
        return self.seed in (1, 3)

    def behind(self, warp) -> int | None:
        """How many ticks a warp is late whenever it begins or is woken; None: by a draw."""
        if self.seed not in (0, 1, 3):
            return None
        place = warp.index + warp.cta.index % 8
        last = len(warp.cta.warps) + 7
        return self.BEHIND * {0: 0, 1: last - place, 3: place}[self.seed]


class FunctionalClock(Clock):
    """An instruction takes a tick, a nanosecond too; everything asynchronous takes what the schedule says."""

    quantum = 256
    computes_mma = True

    def __init__(self, schedule: Schedule, engine):
        self.schedule, self.engine = schedule, engine
        self.random = random.Random(schedule.seed)
        self.lazy, self.prompt = schedule.lazy_classes(), schedule.prompt

    def _delay(self, kind: str) -> float:
        if kind in self.lazy:
            return Schedule.LAZY * (1 + self.random.random())
        if self.prompt:
            return 0
        if self.schedule.seed == 0:
            return 40
        return self.random.choice((0, 10, 100, 600)) * (0.5 + self.random.random())

    def costs(self, program) -> list[float]:
        return [max(1, e - s) for s, e in zip(program.start, program.end, strict=True)]

    def executed(self, group, cost: float) -> float:
        return group.t + cost

    def wake(self, warp, time: float) -> float:
        """Seeds differ in who goes first."""
        behind = self.schedule.behind(warp)
        return self.random.random() * 60 if behind is None else behind

    def hesitation(self) -> float:
        if self.schedule.seed == 1:
            return self.schedule.BEHIND
        if self.schedule.seed in (0, 3) or self.random.random() < 0.7:
            return 0
        return self.random.choice((30, 300, 3000))

    def lingering(self, wrote: bool) -> float:
        return (Schedule.SHORT if wrote else Schedule.LAZY) if self.schedule.seed == 2 else 0

    def cta_start(self, launch: int, sms: list[int]) -> float:
        return 0

    def after(self, time: float, ns: float) -> float:
        return time + ns

    def tma_load(self, group, tm, map_at: int, coords, nbytes: int, ctas, policy: int | None) -> float:
        return group.t + self._delay("tma")

    def bulk_load(self, group, address: int, nbytes: int, ctas, policy: int | None) -> float:
        return group.t + self._delay("tma")

    def shared_copy(self, group, nbytes: int) -> float:
        return group.t + self._delay("tma")

    def copied(self, group, landed: float) -> float:
        return group.t + self._delay("tma")

    def remote(self, group, nbytes: int = 0) -> float:
        return group.t + self._delay("remote")

    def tma_store(self, group, tm, map_at: int, coords, nbytes: int, reduces: bool = False) -> tuple[float, float]:
        return self._store(group)

    def bulk_store(self, group, address: int, nbytes: int, reduces: bool = False) -> tuple[float, float]:
        return self._store(group)

    def _store(self, group) -> tuple[float, float]:
        read = group.t + self._delay("store")
        return read, read + self._delay("store")

    def mma(self, group, description, pair: bool, a_in_tmem: bool) -> float:
        return group.t + self._delay("mma")

    def wgmma(self, group, form) -> float:
        return group.t + self._delay("mma")

    def tensor_copy(self, group, pair: bool) -> float:
        return group.t + self._delay("mma")

    def commit(self, group) -> float:
        return group.t + self._delay("commit")

    def tmem_load(self, group, registers: int) -> bool:
        return "ld" not in self.lazy and self.random.random() < 0.5

    def tmem_store(self, group, registers: int) -> bool:
        return "st" not in self.lazy and self.random.random() < 0.5
