"""`run --timed`: what passes between two events is modelled, as launches back to back on an L2 full of dirty lines.

Nothing but kernel launches takes time. The launches have been run before, with all checks; the model runs them again,
and puts memory back to what it was. A series of equal calls is extrapolated (model/steady.py); launches that are alike,
whatever their pointers, are timed once.
"""

from __future__ import annotations

import sys

from ...device import DEVICE
from ...model import uncertainty
from ...model.made_of import beyond, made_of
from ...model.profile import load
from ...model.run import Recorded, TimedRun
from ...model.steady import Steady
from ...model.tally import tallied

_times: dict[tuple, float] = {}  # launches -> microseconds


def on() -> bool:
    return DEVICE.session.timed is not None


def now() -> int | None:
    """Return what an event records: how many launches there have been."""
    return len(DEVICE.session.timed) if on() else None


def elapsed(start: int | None, end: int | None) -> float:
    """Milliseconds between two events; what they rest on is said once for each series of launches."""
    if start is None or end is None:
        raise RuntimeError("elapsed time of an event that was not recorded")
    launches = DEVICE.session.timed[start:end]
    key = tuple(map(alike, launches))
    if key not in _times:
        _times[key] = modelled(launches, key)
    return _times[key] / 1e3


def alike(recorded: Recorded) -> tuple:
    """Return what two launches share that take the same time."""
    return id(recorded.code.program), recorded.geometry, recorded.options.pdl


def period(key: tuple) -> int:
    """Return how many launches one call makes, if `key` is a series of equal calls."""
    return next((n for n in range(1, len(key)) if len(key) % n == 0 and key == key[:n] * (len(key) // n)), len(key))


def modelled(launches: list[Recorded], key: tuple) -> float:
    """Return how long launches take on the model, in microseconds."""
    name = DEVICE.chip.machine
    profile, memory = load(name), DEVICE.memory
    time = profile["launch"]["events_ns"] / 1e3
    simulated, shares, without = 0, None, ""
    if launches:
        step = period(key)
        rule = Steady(list(range(step, len(key) + 1, step)))
        before = [(region, region.data.copy()) for region in memory.regions if not region.read_only]
        try:
            run = TimedRun(profile, memory, launches, enough=rule)
            for one in run.launches:
                tallied(one.launch)
            run.run()
        finally:
            for region, data in before:
                region.data[:] = data
        time += profile.us(rule.total())
        simulated = len(rule.ends) * step
        shares, without = made_of(run, simulated - 1, step), beyond(run.launches[:step])
    pdl = any(recorded.options.pdl for recorded in launches)
    found = uncertainty.estimate(time, shares, profile, pdl, without)
    may_be = f"it may be {uncertainty.written(found.between)}" if found.between else found.unlike
    print(
        f"emulated-gpu: {found.corrected:.2f} us between two events: modelled, not measured (profile {name}, "
        f"{may_be}; the script gets the model's own {time:.2f}); "
        f"{len(launches)} launch{'es' * (len(launches) > 1)}, {simulated} of them simulated; nothing else takes time",
        file=sys.stderr,
    )
    return time
