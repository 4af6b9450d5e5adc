"""Times launches, and then again, each time with one thing undone: what they take, and what mending would bring."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

from ..model.gains import Gain, Spare, asked, gains
from ..model.run import TimedRun
from ..model.timeline import Timeline
from .first_answer import first_answer
from .host.timed_run import Line, answering
from .host.watch import BEAT_S

REPORT, MOST_S = 0.15, 20.0  # of the time until an answer: what it takes to write it, seconds at most


class Mended:
    """A run takes place `around` which this is; then `gains` says what undoing brings. To be closed.

    jobs: processes at a time, 0 for no gains; until: time.monotonic() when there is to be an answer.
    """

    def __init__(self, jobs: int = 0, until: float = math.inf):
        self.jobs, self.until = jobs, until - min(REPORT * (until - time.monotonic()), MOST_S)
        self.spare: Spare | None = None
        self.run: TimedRun | None = None

    @contextlib.contextmanager
    def around(self, run: TimedRun):
        """Have a run in this block say how far it is, and answer in time. To be entered before it changes memory."""
        self.run = run
        if self.jobs:
            self.spare = Spare(run.recorded, run.profile, run.computes_mma)
        with answering(run, self.until, first_answer):
            yield

    def __enter__(self) -> Mended:
        return self

    def __exit__(self, *error) -> None:
        if self.spare is not None:
            self.spare.close()

    def gains(self, timeline: Timeline, report: dict) -> Iterator[list[Gain]]:
        """Yield what is known, as more is; ends at the deadline and on Ctrl-C. report: of the run.

        Of a run that was cut nothing is run again: it would not end, either.
        """
        if self.spare is None or self.run is None or self.run.was_cut:
            return
        line, began = Line(), time.monotonic()
        told = began
        wanted = asked(timeline, report)

        def said(text: str) -> None:
            nonlocal told
            now = time.monotonic()
            if line.stays or now - told >= BEAT_S:
                told = now
                line.say(f"{now - began:.0f} s: {text}")

        with contextlib.suppress(KeyboardInterrupt):
            yield from gains(self.spare, self.run, report, wanted, self.jobs, self.until, said)
        line.end()
