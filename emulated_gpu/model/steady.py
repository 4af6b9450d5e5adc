"""When enough of a series of equal calls has been simulated, and what all of it then takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import TimedRun

AGREEMENT = 0.01  # of two consecutive intervals that count as equal


class Steady:
    """Asked at the end of each launch whether enough calls have run (the `enough` of emulated_gpu.timing); then
    `total`.

    Calls differ while L2 still holds dirty lines of the flush: each line that is read pushes one out to memory. So an
    interval between the ends of two calls is "dirty", "clean", or mixed and not used. Once two consecutive ones of a
    kind agree within AGREEMENT, or four within four times that, all the rest of that kind is taken to be like their
    mean: remaining dirty lines are dropped at once, and clean calls simulated in their turn until they agree, too.
    Calls that begin beside those before them (PDL) wander: what three or four of the submission's case 0 have in common
    is 2.4 % less than what fifteen take (tests/evaluation/test_modelled_times.py). So no rule here is looser than that.
    """

    def __init__(self, launches: list[int], alike: Callable[[TimedRun], bool] = lambda run: True):
        """launches[i]: how many launches the first i + 1 calls make. alike: asked when a call has ended, whether those
        behind it do the same; where they need not, all are simulated, or, if some were left out before, none is."""
        self.launches, self.alike = launches, alike
        self.ends: list[float] = []  # cycles
        self.dirty: list[float] = []  # bytes left at each of them
        self.interval: dict[str, float] = {}  # kind -> cycles from call to call, once steady
        self.skipped = 0.0  # dirty calls that were left out

    @property
    def calls(self) -> int:
        return len(self.launches)

    def __call__(self, run) -> bool:
        count = self.launches[len(self.ends)]
        if any(launch.end is None for launch in run.launches[:count]):
            return False
        memory = run.clock.memory
        self.ends.append(max(launch.interval[1] for launch in run.launches[:count]))
        self.dirty.append(memory.dirty)
        left = self.calls - len(self.ends)
        if left and not self.alike(run):
            return bool(self.skipped)
        kind, agreed = self.agreed()
        if agreed is None or kind in self.interval or not left:
            return not left
        self.interval[kind] = agreed
        if kind == "clean":
            return True
        cleaned = self.dirty[-2] - self.dirty[-1]  # by a call; one that loads nothing cleans nothing
        dirty_calls = memory.dirty / cleaned if cleaned else math.inf
        self.skipped = min(dirty_calls, left)
        memory.skip_flush()
        return dirty_calls >= left

    def kind(self, i: int) -> str | None:
        """Return the kind of the interval that ends with call i; the first call has none."""
        if i < 1:
            return None
        return "dirty" if self.dirty[i] else None if self.dirty[i - 1] else "clean"

    def agreed(self) -> tuple[str | None, float | None]:
        """The kind of the latest interval, and the length on which those of its kind agree by now."""
        kind = self.kind(len(self.ends) - 1)
        for count, tolerance in ((2, AGREEMENT), (4, 4 * AGREEMENT)):
            recent = range(len(self.ends) - count, len(self.ends))
            lengths = [self.ends[i] - self.ends[i - 1] for i in recent if kind is not None and self.kind(i) == kind]
            mean = sum(lengths) / count
            if len(lengths) == count and max(lengths) - min(lengths) <= tolerance * mean:
                return kind, mean
        return kind, None

    def total(self) -> float:
        """Return how many cycles all calls take, those that were not simulated too."""
        if len(self.ends) == self.calls and not self.skipped:
            return self.ends[-1]
        last = self.ends[-1] - (self.ends[-2] if len(self.ends) > 1 else 0.0)
        dirty, clean = (self.interval.get(kind, last) for kind in ("dirty", "clean"))
        return self.ends[-1] + self.skipped * dirty + (self.calls - len(self.ends) - self.skipped) * clean
