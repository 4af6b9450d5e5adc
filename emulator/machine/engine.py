"""The event loop: warps and asynchronous units take turns in the order of one clock (see clock.py)."""

from __future__ import annotations

import gc
import heapq

GARBAGE = 10_000  # objects: those of some fifty CTAs


class Engine:
    """now: the time of the current event. `at` schedules a call; equal times go first come, first served."""

    def __init__(self):
        self.now = 0.0
        self.heap: list = []
        self.limits = 0  # how many calls of the heap are limits
        self.count = 0
        self.nested = False
        self.progress = 0  # counts what other warps could see: a stall without any is a hang

    def at(self, time: float, call) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, call))

    def at_limit(self, time: float, call) -> None:
        """Schedule a call that alone keeps nothing going: if only such are left, nothing is going to happen."""

        def strike():
            self.limits -= 1
            call()

        self.limits += 1
        self.at(time, strike)

    def clear(self) -> None:
        self.heap.clear()
        self.limits = 0

    def let_others_go_first(self, time: float) -> None:
        """Run everything up to `time` before the calling event, which is in the middle of something, goes on."""
        if self.nested:
            return
        self.nested, heap = True, self.heap
        while heap and heap[0][0] < time:
            self.now, _, call = heapq.heappop(heap)
            call()
        self.nested = False

    def run(self, stalled) -> None:
        """Run events until none is left. `stalled()` is asked then: it returns True if it made new ones."""
        heap = self.heap
        thresholds = gc.get_threshold()
        gc.freeze()  # or the garbage collector goes through all of torch and CuTe DSL again and again
        gc.set_threshold(GARBAGE, *thresholds[1:])
        try:
            while True:
                while len(heap) > self.limits:
                    self.now, _, call = heapq.heappop(heap)
                    call()
                if not stalled():
                    return
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
