"""Limits how long the judge waits."""

import contextlib
import signal
from collections.abc import Callable


class Late(BaseException):
    """The time is over. It is no Exception, so that what it interrupts does not handle it."""


@contextlib.contextmanager
def limit(seconds: float, working: bool = False, left: Callable[[], float] = lambda: 0.0):
    """Raises Late in this block once that many seconds are over; blocks do not nest. working: seconds in which this
    process computes, so that other work on the machine does not count. left: asked when they are over, for how many
    more it goes on."""
    timer, number = (signal.ITIMER_PROF, signal.SIGPROF) if working else (signal.ITIMER_REAL, signal.SIGALRM)

    def late(*_):
        if (more := left()) <= 0:
            raise Late
        signal.setitimer(timer, more)

    signal.signal(number, late)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
