"""Orders of events for functional runs, drawn from a seed: every one that a correct program must tolerate.

A delay is arbitrary, so it is no prediction; model/clock.py has the clock that predicts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .clock import Clock


@dataclass(frozen=True)
class Schedule:
    """seed 0 is orderly: short fixed delays. Other seeds shuffle warps and delay operations; each class of operation
    may be `lazy`: it lands only when nothing else can move, which is the worst case for a program with a missing wait.
    """

    seed: int = 0

    LAZY = 20_000
    CLASSES = ("tma", "mma", "store", "commit", "ld", "remote", "st")

    def lazy_classes(self) -> frozenset[str]:
        if self.seed == 0:
            return frozenset()
        if self.seed <= len(self.CLASSES):  # seeds 1..7: one class at a time
            return frozenset({self.CLASSES[self.seed - 1]})
        if self.seed == len(self.CLASSES) + 1:  # 8: all
            return frozenset(self.CLASSES)
        rng = random.Random(self.seed)
        return frozenset(c for c in self.CLASSES if rng.random() < 0.4)


class FunctionalClock(Clock):
    """An instruction takes a tick, a nanosecond too; everything asynchronous takes what the schedule says."""

    quantum = 256
    moves_data = True

    def __init__(self, schedule: Schedule, engine):
        self.schedule, self.engine = schedule, engine
        self.random = random.Random(schedule.seed)
        self.lazy = schedule.lazy_classes()

    def _delay(self, kind: str) -> float:
        if kind in self.lazy:
            return Schedule.LAZY * (1 + self.random.random())
        if self.schedule.seed == 0:
            return 40
        return self.random.choice((0, 10, 100, 600)) * (0.5 + self.random.random())

    def costs(self, program) -> list[float]:
        return [max(1, e - s) for s, e in zip(program.start, program.end, strict=True)]

    def executed(self, group, cost: float) -> float:
        return group.t + cost

    def wake(self, sm: int, time: float) -> float:
        """Seeds differ in who goes first."""
        return 0 if self.schedule.seed == 0 else self.random.random() * 60

    def hesitation(self) -> float:
        if self.schedule.seed == 0 or self.random.random() < 0.7:
            return 0
        return self.random.choice((30, 300, 3000))

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

    def remote(self, group) -> float:
        return group.t + self._delay("remote")

    def tma_store(self, group, tm, map_at: int, coords, nbytes: int) -> tuple[float, float]:
        return self._store(group)

    def bulk_store(self, group, address: int, nbytes: int) -> tuple[float, float]:
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

    def tmem_store(self, group) -> bool:
        return "st" not in self.lazy and self.random.random() < 0.5
