"""A timed run that says how far it is, and stops, with an answer from what it has, at a deadline and on Ctrl-C."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable

from ...model.run import TimedRun
from .beside import beside
from .watch import BEAT_S, FIRST_BEAT_S, on_stderr, place_of_one, refreshes

REFRESH_S = 1.0  # of a line on a terminal
FIRST = "first answer: "  # begins what is told before all is modelled


@contextlib.contextmanager
def answering(run: TimedRun, until: float = math.inf, answer: Callable[[TimedRun], str] | None = None):
    """Have a run inside this block say how far it is, and cut it at `until` (time.monotonic) or on Ctrl-C.

    A second Ctrl-C interrupts. Only a main thread hears Ctrl-C. answer: what is told at the end of the first launch
    behind which the others take longer than FIRST_BEAT_S.
    """
    began, line = time.monotonic(), Line()

    def ended(run: TimedRun) -> None:
        done, count = sum(launch.end is not None for launch in run.launches), len(run.launches)
        if answer is not None and (seconds_left(done, count, time.monotonic() - began) or 0.0) > FIRST_BEAT_S:
            run.told = lambda run: None
            line.stay(f"{FIRST}{answer(run)}; {done} of {count} launches done")

    def cut() -> None:
        run.engine.at(math.nextafter(run.engine.now, -math.inf), run.cut)  # before what is to come, whatever it is

    def interrupted(number, frame) -> None:
        signal.signal(number, before)
        cut()

    def beat(over: threading.Event) -> None:
        following = began + (REFRESH_S if line.stays else FIRST_BEAT_S)
        while not over.wait(max(0.0, min(following, until) - time.monotonic())):
            now = time.monotonic()
            if now >= until:
                cut()
                break
            line.say(how_far(run, now - began))
            following = now + (REFRESH_S if line.stays else BEAT_S)
        line.end()

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, interrupted) if main else None
    run.told = ended
    try:
        with beside(beat):
            yield
    finally:
        if main:
            signal.signal(signal.SIGINT, before)


class Line:
    """Lines on stderr; on a terminal one that stays, and says something new. stays: whether it does."""

    def __init__(self):
        self.stays, self.shown = refreshes(sys.stderr), False

    def say(self, text: str) -> None:
        if not self.stays:
            return on_stderr(text)
        self.shown = True
        sys.stderr.write(f"\r\x1b[K{text[:160]}")
        sys.stderr.flush()

    def stay(self, text: str) -> None:
        """Say what stays on a terminal, too."""
        self.end()
        on_stderr(text)

    def end(self) -> None:
        """Take the line that stays away."""
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self.shown = False


def how_far(run: TimedRun, seconds: float) -> str:
    """Say what of a run is done and left after these seconds."""
    ended = [launch for launch in run.launches if launch.end is not None]
    text = f"{seconds:.0f} s: {len(ended)} of {len(run.launches)} launches done"
    if ended:
        before = ended[-1].before
        last = ended[-1].interval[1] - (before.interval[1] if before else 0.0)
        text += f" (the last one takes {run.profile.us(last):.2f} us)"
    active = run.active[:1]
    if active:
        launch = active[0].launch
        count, done = launch.clusters, launch.started - len(launch.running)
        what = "clusters" if launch.cluster != (1, 1, 1) else "CTAs"
        text += f", launch {launch.number} ({launch.program.kernel.title}): {done} of {count} {what}"
        if left := seconds_left(len(ended) + done / count, len(run.launches), seconds):
            text += f", about {left:.0f} s left"
        text += f": {place_of_one([launch])}"
    return text


def seconds_left(done: float, count: int, seconds: float) -> float | None:
    """Estimate the seconds that are left of `count` launches, `done` of which are done; None before any part is."""
    return seconds * (count - done) / done if done else None
