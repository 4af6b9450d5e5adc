"""`replied` says what a call took by the timing model, of calls back to back of which some were simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import uncertainty
from .made_of import beyond, made_of

if TYPE_CHECKING:
    from .run import TimedRun
    from .steady import Steady


def replied(run: TimedRun, steady: Steady, launches: int) -> dict:
    """Say what a run came to, times in microseconds (the `reply` of evaluation/JSON.md). launches: those of a call.

    us: what the grader reads from its two events, over the number of calls, by the model; us_corrected: the same with
    the model's known bias taken out; us_interval: where it may lie, by the known errors, or None, and `unlike` why.
    """
    us = run.profile.us
    time = (us(steady.total()) + run.profile["launch"]["events_ns"] / 1e3) / steady.calls
    pdl = any(launch.launch.pdl for launch in run.launches[:launches])
    shares = made_of(run, launches * len(steady.ends) - 1, launches)
    without = beyond(run.launches[:launches])
    return {
        **uncertainty.estimate(time, shares, run.profile, pdl, without).told(),
        "made_of": shares._asdict(),
        "pdl": pdl,
        "calls": steady.calls,
        "simulated": len(steady.ends),
        "ends_us": [us(end) for end in steady.ends],
        "interval_us": {kind: us(cycles) for kind, cycles in steady.interval.items()},
        "launches": launches,
        "profile": run.profile.name,
        "validation": run.profile.validation,
    }
