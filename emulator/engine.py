"""The event loop: warps and asynchronous units take turns in the order of one clock.

A `Schedule` decides how long things take. Functional schedules draw delays from a seed, so that every order a correct
program must tolerate gets its chance; the timing model supplies measured ones. There is no other difference.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Delays in abstract ticks; an instruction takes one.

    seed 0 is orderly: short fixed delays. Other seeds shuffle warps and delay operations; each class of operation may
    be `lazy`: it lands only when nothing else can move, which is the worst case for a program with a missing wait.
    """

    seed: int = 0

    LAZY = 20_000
    CLASSES = ("tma", "mma", "store", "commit", "ld", "remote")

    def lazy_classes(self) -> frozenset[str]:
        if self.seed == 0:
            return frozenset()
        if self.seed <= len(self.CLASSES):  # seeds 1..6: one class at a time
            return frozenset({self.CLASSES[self.seed - 1]})
        if self.seed == len(self.CLASSES) + 1:  # 7: all
            return frozenset(self.CLASSES)
        rng = random.Random(self.seed)
        return frozenset(c for c in self.CLASSES if rng.random() < 0.4)


class Engine:
    """now: the clock. `at` schedules a call; equal times go first come, first served."""

    QUANTUM = 256

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.random = random.Random(schedule.seed)
        self.lazy = schedule.lazy_classes()
        self.now = 0.0
        self.heap: list = []
        self.count = 0
        self.progress = 0  # counts what other warps could see: a stall without any is a hang

    def at(self, time: float, call) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, call))

    def delay(self, kind: str) -> float:
        if kind in self.lazy:
            return Schedule.LAZY * (1 + self.random.random())
        if self.schedule.seed == 0:
            return 40
        return self.random.choice((0, 10, 100, 600)) * (0.5 + self.random.random())

    def jitter(self) -> float:
        """Extra wait before a woken warp runs, so that seeds differ in who goes first."""
        return 0 if self.schedule.seed == 0 else self.random.random() * 60

    def horizon(self) -> float:
        """How far a running warp may go before it must give up its turn."""
        return (self.heap[0][0] if self.heap else self.now) + self.QUANTUM

    def run(self, stalled) -> None:
        """Until nothing is left. `stalled()` is asked when no event is: it returns True if it made new ones."""
        heap = self.heap
        while True:
            while heap:
                self.now, _, call = heapq.heappop(heap)
                call()
            if not stalled():
                return
