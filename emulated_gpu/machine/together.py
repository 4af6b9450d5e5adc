"""Two launches that nothing orders, run at the same time: what the flags and counters that both use do to each other.

Words that both change by atomics or volatile operations may order them, as a flag does, or a lock; or they may not, as
a counter that is meant for one launch. Run so, they share one order of events: a race then is theirs, by what their
streams allow. A hang says nothing, as others may be missing.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np

from ..errors import EmulatorError, Fault, Hang, LaunchRefused
from ..state.global_memory import GlobalMemory, Region
from ..state.global_shadow import GlobalShadow
from ..state.host_order import Access
from ..state.order import Order
from .engine import Engine
from .launch import Code, Environment, Geometry, Launch, LaunchOptions, Shared, calm
from .rerun import Reruns
from .schedule import Schedule

MOST_KEPT = 1 << 20  # bytes of a region that is kept for a second run
IN_TURN = Schedule(3)  # CTAs of the two begin in turn, each far behind the one before
Launched = tuple[Code, Geometry, bytes, GlobalMemory]


class Given:
    """A launch that is about to run, with the small regions that it can find by its parameters and its variables."""

    def __init__(self, launched: Launched, options: LaunchOptions):
        self.launched = launched
        alone = dataclasses.replace(options, again=True, crowded=False, pdl=False, predecessor=None)
        self.options = dataclasses.replace(alone, strict=False, notes_reads=False, collect=None)
        code, _, params, memory = launched
        words = np.frombuffer(params[: len(params) // 8 * 8], np.uint64).tolist()
        found = [memory.at_or_before(at) for at in (*words, *code.symbols.values()) if memory.covers(at, 1)]
        small = {id(region): region for region in found if region.size <= MOST_KEPT and not region.read_only}
        self.before: dict[int, tuple[Region, np.ndarray]] = {i: (r, r.data.copy()) for i, r in small.items()}
        self.after: dict[int, np.ndarray] = {}

    @staticmethod
    def possible(launched: Launched, cooperative: bool) -> bool:
        """Whether it can be run beside another one, and may be told something by that."""
        return launched[0].program.hands_on and not cooperative and Reruns.possible(launched)

    def ended(self) -> None:
        """It has run: know what it has left."""
        self.after = {i: region.data.copy() for i, (region, _) in self.before.items()}

    @property
    def size(self) -> int:
        """How many bytes it keeps."""
        return 2 * sum(data.nbytes for _, data in self.before.values())


def together(one: Given, other: Given, accesses: list[Access], others: list[Access]) -> EmulatorError | None:
    """Run two launches at once, that have been run one after the other, and return what comes of it; memory stays.

    accesses, others: what they have touched. Flags and counters begin as `one` has found them.
    """
    flags = list[tuple[int, slice]]()  # of which region, and which of its bytes
    for access in (access for access in accesses if access.strong):
        key, start = id(access.region), access.region.start
        if key not in one.after or key not in other.before:
            return None
        runs = ((access.first, access.end),) if access.runs is None else access.runs.tolist()
        flags += [(key, slice(first - start, end - start)) for first, end in runs]
    regions = {id(access.region): access.region for access in (*accesses, *others)}
    if any(region.freed for region in regions.values()):
        return None
    if any((one.after[key][at] != other.before[key][1][at]).any() for key, at in flags):
        return None  # somebody else has changed them between
    after = [(region, region.data.copy()) for region in regions.values() if not region.read_only]
    begin = {key: (region, data.copy()) for key, (region, data) in other.before.items()}
    for key, at in flags:
        begin[key][1][at] = one.before[key][1][at]
    try:
        for schedule in (one.options.schedule, IN_TURN):
            for region, data in begin.values():
                region.data[:] = data
            if (found := _run(one, other, schedule)) is not None:
                return found
        return None
    finally:
        for region, data in after:
            region.data[:] = data


def _run(one: Given, other: Given, schedule: Schedule) -> EmulatorError | None:
    engine, order = Engine(), Order()
    shared = Shared(order, GlobalShadow(order, one.launched[3], lambda fault: None), {}, 0, {})
    make = partial(Launch, environment=Environment(engine, shared=shared))
    both = ((given.launched, dataclasses.replace(given.options, schedule=schedule)) for given in (one, other))
    launches = [make(*launched, options=options) for launched, options in both]
    found: list[EmulatorError] = []
    try:
        with calm():
            for launch in launches:
                launch.start_clusters()
            engine.run(lambda: False)
    except (Hang, LaunchRefused):
        return None
    except Fault as error:
        found.append(error)
    used = (race for launch in launches if launch.unused is not None for race in launch.unused.settled())
    found += [race for race in used if not race.note]
    return found[0] if found else None
