"""Limits how long the judge waits."""

import contextlib
import signal


class Late(BaseException):
    """The time is over. It is no Exception, so that what it interrupts does not handle it."""


@contextlib.contextmanager
def limit(seconds: float):
    """Raises Late in this block once that many seconds are over; blocks do not nest."""

    def late(*_):
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
