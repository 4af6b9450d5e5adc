"""Threads of the host that give streams work at the same time: what comes first is luck, in one stream, too.

How threads wait for each other cannot be seen. But while a call of one thread has not returned, nothing that another
one does then comes after it, nor before it: so two calls that overlap, and touch the same bytes, are in no order. Where
several threads call, a call is held for some milliseconds before it returns, a number of times, so that calls overlap
which may.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass
from typing import Any

HELD_S, HELD = 0.005, 60  # how long a call is held before it returns; how many are


@dataclass(slots=True)
class Call:
    """What a thread has given to a stream. work: a Work of host_order.py; began, returned: by a clock that counts;
    known: whether it is known what the work touches."""

    work: Any
    thread: int
    began: int
    returned: int | None = None
    known: bool = False


class Threads:
    """The calls of several threads that may overlap others."""

    def __init__(self):
        main = threading.main_thread().ident
        self.seen = {main: 1}  # a number for each thread that has called, and for the main one
        self.left = HELD
        self._clock = itertools.count()
        self._calls: list[Call] = []
        self._lock = threading.Lock()

    def begins(self, work: Any) -> None:
        """A thread, the one that calls this, gives a stream something to do."""
        me = threading.get_ident()
        number = self.seen.setdefault(me, len(self.seen) + 1)
        if len(self.seen) > 1:
            with self._lock:
                self._calls.append(Call(work, number, next(self._clock)))

    def meets(self, work: Any) -> tuple[Any, int, int, int] | None:
        """It is known now what a work touches. Return a work of another thread that is in no order with it: that, the
        byte at which they meet, and the numbers of the two threads, of this one first."""
        if len(self.seen) < 2:
            return None
        with self._lock:
            mine = next((call for call in self._calls if call.work is work), None)
            if mine is None:
                return None
            mine.known = True
            others = [
                call for call in self._calls
                if call.thread != mine.thread and call.known and (call.returned is None or call.returned > mine.began)
            ]  # fmt: skip
        for other in others:
            for one in work.all():
                for two in other.work.all():
                    at = one.against(two)
                    if at is not None:
                        return other.work, at, mine.thread, other.thread
        return None

    def returns(self, work: Any) -> None:
        """The call that has given a work returns; before it does, others may come."""
        if len(self.seen) < 2:
            return
        if self.left > 0:
            self.left -= 1
            time.sleep(HELD_S)
        with self._lock:
            for call in self._calls:
                if call.work is work:
                    call.returned = next(self._clock)
            first = min((call.began for call in self._calls if call.returned is None), default=None)
            self._calls = [c for c in self._calls if c.returned is None or first is not None and c.returned > first]
