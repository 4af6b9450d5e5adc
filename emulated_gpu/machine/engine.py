"""The event loop: warps and asynchronous units take turns in the order of one clock (see clock.py)."""

from __future__ import annotations

import contextlib
import gc
import math
from heapq import heappop, heappush
from types import MethodType

MANY = 4_000  # events of a launch from which on an order is for speed, too, where any will do
CALM = 100  # turns without a change after which groups are looked at
# How often they are, at first, and for how many times as many turns not then: who computes for long is in a new state
# each time, and to look takes as long as a turn
LOOKS, REST = 2000, 8

GARBAGE = 300_000  # objects: those of a thousand CTAs and more, nearly all of which nobody needs to look for
_collects = False  # inside of collecting()


class Engine:
    """now: the time of the current event. `at` schedules a call; equal times go first come, first served."""

    def __init__(self):
        self.now = 0.0
        self.heap: list = []
        self.limits = 0  # how many calls of the heap are limits
        self.count = 0
        self.nested = False
        self.until = math.inf  # when nested: the time that others may get to
        self.progress = 0  # counts what other warps could see: a stall without any is a hang
        self.changes = 0  # counts what memory could hold otherwise
        self.turns = 0  # of groups of lanes, since one of them has been looked at
        self.landed = 0  # counts events that are no turns of groups
        self.awaited = 0  # such events, limits too, that are to come
        self.mark = 0, 0, 0
        self.states: dict[object, set] = {}  # of each group, where it has been since nothing changes
        self.again: set = set()  # those that have come back to a state
        self.looks = self.patience = LOOKS  # how often they may be looked at yet, and from the start

    def at(self, time: float, call) -> None:
        self.count += 1
        if type(call) is not MethodType:
            self.awaited += 1
        heappush(self.heap, (time, self.count, call))

    def at_limit(self, time: float, call) -> None:
        """Schedule a call that alone keeps nothing going: if only such are left, nothing is going to happen."""

        def strike():
            self.limits -= 1
            call()

        self.limits += 1
        self.at(time, strike)

    def clear(self) -> None:
        self.heap.clear()
        self.limits = self.awaited = 0

    @property
    def under_way(self) -> bool:
        """Whether anything is to come but turns of groups and limits."""
        return self.awaited > self.limits

    def let_others_go_first(self, time: float) -> None:
        """Run everything up to `time` before the calling event, which is in the middle of something, goes on."""
        if self.nested:
            return
        self.nested, self.until, heap = True, time, self.heap
        while heap and heap[0][0] < time:
            self.step()
        self.nested, self.until = False, math.inf

    def step(self) -> None:
        """Run the next event."""
        self.now, _, call = heappop(self.heap)
        if type(call) is not MethodType:
            self.landed += 1
            self.awaited -= 1
        call()

    def spins(self, group) -> bool:
        """Return whether nothing will ever happen again: no event but turns of groups of lanes is to come, and each has
        come back to a state in which it was since anything changed. To be asked at every turn of a group from the
        CALMth of `turns` on."""
        if group.launch.reads_time:  # time changes by itself
            return False
        mark = self.changes, self.progress, self.landed
        if mark != self.mark or not self.looks:
            self.turns = 0
            if not self.looks:
                self.turns, self.patience = -REST * self.patience, 2 * self.patience
            self.mark, self.looks = mark, self.patience
            self.states.clear()
            self.again.clear()
            return False
        if self.under_way:  # what lands forgets all states that groups have had until then
            return False
        self.looks -= 1
        state = group.state()
        known = self.states.setdefault(group, set())
        if state not in known:
            known.add(state)
            return False
        self.again.add(group)
        if self.nested:  # the group that lets others go first is in no queue, and goes on
            return False
        return self.again.issuperset(call.__self__ for _, _, call in self.heap if type(call) is MethodType)

    def run(self, stalled) -> None:
        """Run events until none is left. `stalled()` is asked then: it returns True if it made new ones."""
        heap = self.heap
        with collecting():
            while True:
                while len(heap) > self.limits:  # step(), here a million times
                    self.now, _, call = heappop(heap)
                    if type(call) is not MethodType:
                        self.landed += 1
                        self.awaited -= 1
                    call()
                if not stalled():
                    return


@contextlib.contextmanager
def collecting():
    """Collect garbage in large lots, of what is made inside alone, and the rest of that at the end.

    Else the collector goes through all of torch and CuTe DSL again and again, and CTAs that have ended, which lie in
    cycles with their memory, wait for it long. Inside of another such block this one does nothing.
    """
    global _collects  # gc.get_freeze_count() walks through all that is frozen: 60 ms with torch and CuTe DSL
    if _collects:
        yield
        return
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(GARBAGE, *thresholds[1:])
    _collects = True
    try:
        yield
    finally:
        _collects = False
        gc.set_threshold(*thresholds)
        gc.collect()
        gc.unfreeze()
