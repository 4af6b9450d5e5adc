"""Two launches that nothing orders, run at the same time: what the flags and counters that both use do to each other.

Words that both change by atomics or volatile operations may order them, as a flag does, or a lock; or they may not, as
a counter that is meant for one launch. Run so, they share one order of events: a race then is theirs, by what their
streams allow, and so is a hang, if they end one behind the other on the same memory.

Two grids that each wait for all of themselves hang where a GPU has no room for both: it may start some of each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from ..errors import EmulatorError, Fault, Hang, LaunchRefused
from ..state.global_memory import WORD, GlobalMemory, Region
from ..state.global_shadow import GlobalShadow
from ..state.host_order import Access
from ..state.order import Order
from ..state.pdl_dependency import Dependencies
from ..state.shared_memory import BASE
from .by_value import polls
from .engine import Engine
from .launch import Code, Environment, Geometry, Launch, LaunchOptions, Shared, calm
from .rerun import Reruns, may_differ
from .schedule import Schedule

MOST_KEPT = 1 << 20  # bytes of a region that is kept for a second run
# CTAs of a launch begin in turn, each far behind the one before; who has looked at a flag goes on late
OTHERS = Schedule(3), Schedule(2)
Launched = tuple[Code, Geometry, bytes, GlobalMemory]


class Given:
    """A launch that is about to run, with the small regions that it can find by its parameters and its variables."""

    def __init__(self, launched: Launched, options: LaunchOptions):
        self.launched, self.pdl = launched, options.pdl
        self.waiting = 0  # CTAs that have waited for the launch before
        self.lets_go = self.waits_first = False  # its dependents may begin before it ends; it waits before they do
        alone = dataclasses.replace(options, again=True, pdl=False, predecessor=None)
        self.options = dataclasses.replace(alone, strict=False, notes_reads=False, collect=None)
        code, _, params, memory = launched
        words = np.frombuffer(params[: len(params) // 8 * 8], np.uint64).tolist()
        places = (*words, *code.symbols.values()) if code.program.hands_on else ()  # others only take room
        found = [memory.at_or_before(at) for at in places if memory.covers(at, 1)]
        small = {id(region): region for region in found if region.size <= MOST_KEPT and not region.read_only}
        self.before: dict[int, tuple[Region, np.ndarray]] = {i: (r, r.data.copy()) for i, r in small.items()}
        self.after: dict[int, np.ndarray] = {}

    @staticmethod
    def possible(launched: Launched, asked: LaunchOptions) -> bool:
        """Whether it can be run beside another one, and may be told something by that, or takes its room."""
        return (asked.pdl or launched[0].program.hands_on) and not asked.cooperative and Reruns.possible(launched)

    def ended(self, did: Dependencies) -> None:
        """It has run: know what it has left."""
        self.lets_go, self.waits_first = self.launched[0].program.triggers, did.waited_first
        self.waiting = len(did.waiting)
        self.after = {i: region.data.copy() for i, (region, _) in self.before.items()}

    @property
    def size(self) -> int:
        """How many bytes it keeps."""
        return 2 * sum(data.nbytes for _, data in self.before.values())


def together(
    one: Given, other: Given, accesses: list[Access], others: list[Access], compares: bool
) -> EmulatorError | None:
    """Run two launches at once, that have been run one after the other, and return what comes of it; memory stays.

    accesses, others: what they have touched. compares: what they leave is to be the same in all orders.
    """
    with _as_found(one, other, accesses, others) as begin:
        before: dict[str, np.ndarray] = {}
        for order in itertools.product((one.options.schedule, *OTHERS), repeat=2) if begin else ():
            wrong, launches = _run([one, other], order, begin)
            if wrong is None and compares and not any(map(may_differ, launches)):
                wrong, before = _differs(before, now := _left(launches)), now
            if isinstance(wrong, Hang):
                alone = (_run([given], order[:1], begin if given is one else {})[0] for given in (one, other))
                wrong = None if any(alone) else wrong
            if wrong is not None:
                return wrong
    return None


def crowd(
    one: Given, other: Given, accesses: list[Access], others: list[Access], behind: Sequence[Given]
) -> EmulatorError | None:
    """Return what comes of a launch `other` that waits for `one` and lets those behind it begin (PDL), if they take all
    the room before `one` has any; memory stays."""
    if not polls(other.launched[0].program):
        return None
    with _as_found(one, other, accesses, others) as begin:
        wrong, launches = _run([other], [other.options.schedule], begin) if begin else (None, [])
    if not isinstance(wrong, Hang) or launches[0].holds_dependents:
        return None
    environment = Environment(placement=launches[0].placement)
    rest = [*((given, given.waiting) for given in behind), (one, 1)]  # each is begun when those before have been
    if all(Launch(*given.launched, given.options, environment).takes(ctas) for given, ctas in rest):
        return None
    return Fault("residency", wrong.message)


def _left(launches: list[Launch]) -> dict[str, np.ndarray]:
    """Return what launches leave by plain stores alone, uint8 by the names of regions; zeros elsewhere."""
    used = [pair for launch in launches for pair in launch.dependencies.own.regions.values()]
    marks = {region.start: (region, np.zeros_like(words[1:])) for region, words in used}
    for region, words in used:
        marks[region.start][1][:] |= words[1:]
    left = {}
    for region, (written, strong) in marks.values():
        plain = np.repeat(written & ~strong, WORD)[region.start - region.origin :][: region.size]
        left[region.name] = np.where(plain, region.data, 0)
    return left


def _differs(before: dict[str, np.ndarray], now: dict[str, np.ndarray]) -> Fault | None:
    """Return the finding that something else is left than before, if there is a before."""
    for name in before.keys() & now.keys():
        bad = np.flatnonzero(before[name] != now[name])
        if len(bad):
            message = f"{name} at byte {bad[0]} is another one in another order of both ({len(bad)} bytes differ)"
            return Fault("order-dependent", message)
    return None


@contextlib.contextmanager
def _as_found(one: Given, other: Given, accesses: list[Access], others: list[Access]):
    """Give the block memory as both may find it: what others have not changed between, and flags and counters, are as
    `one` has found them; None if nobody knows that. Behind the block memory is what it was."""
    regions = {id(access.region): access.region for access in (*accesses, *others)}
    if any(region.freed for region in (*regions.values(), *(region for region, _ in one.before.values()))):
        yield None
        return
    found = {key: other.before.get(key, (region, region.data))[1] for key, (region, _) in one.before.items()}
    begin = {key: (region, data.copy()) for key, (region, data) in other.before.items()}
    begin |= {key: pair for key, pair in one.before.items() if (one.after[key] == found[key]).all()}
    for access in (access for access in accesses if access.strong):
        key, start = id(access.region), access.region.start
        runs = ((access.first, access.end),) if access.runs is None else access.runs.tolist()
        for at in (slice(first - start, end - start) for first, end in runs):
            if key not in begin or key not in one.after or (one.after[key][at] != found[key][at]).any():
                yield None  # it is too large, or somebody else has changed it between
                return
            begin[key][1][at] = one.before[key][1][at]
    with _kept({**regions, **{key: region for key, (region, _) in begin.items()}}.values()):
        yield begin


def starve(one: Given, other: Given) -> EmulatorError | None:
    """Return what comes of two launches of which a GPU has started all but one cluster each, if it has no room for all
    of both; memory stays."""
    both = one, other
    chip = one.options.chip
    few = sum(math.prod(given.launched[1].grid) for given in both) <= chip.sms
    if few or not all(polls(given.launched[0].program) for given in both):
        return None
    launches = [Launch(*given.launched, options=given.options) for given in both]
    sizes = [(launch.shared_bytes - BASE, math.prod(launch.block)) for launch in launches]
    rooms = [chip.sms * min(chip.rooms(*size).values()) for size in sizes]
    taken = [math.prod(launch.grid) / room for launch, room in zip(launches, rooms, strict=True)]
    if sum(taken) <= 1 or max(taken) > 1 or any(launch.clusters == 1 for launch in launches):
        return None
    found: EmulatorError | None = None
    for given, launch in zip(both, launches, strict=True):
        with _kept(region for region, _ in given.before.values()):
            found, _ = _run([given], [given.options.schedule], given.before, launch.clusters - 1)
        if found is None or found.kind != "residency":
            return None
    return found


@contextlib.contextmanager
def _kept(regions: Iterable[Region]):
    """Let memory be what it was, behind the block."""
    after = [(region, region.data.copy()) for region in regions if not region.read_only]
    try:
        yield
    finally:
        for region, data in after:
            region.data[:] = data


def _run(
    all_: list[Given], schedules: Sequence[Schedule], begin: dict[int, tuple[Region, np.ndarray]], room: int = 0
) -> tuple[EmulatorError | None, list[Launch]]:
    """Run launches at once, each in an order, on memory that is as `begin` says; return what stops them, and them.
    room: see LaunchOptions.crowded."""
    for region, data in begin.values():
        region.data[:] = data
    engine, order = Engine(), Order()
    shared = Shared(order, GlobalShadow(order, all_[0].launched[3], lambda fault: None), {}, 0, {})
    make = partial(Launch, environment=Environment(engine, shared=shared))
    options = (
        dataclasses.replace(given.options, schedule=schedule, crowded=room)
        for given, schedule in zip(all_, schedules, strict=True)
    )
    launches = [make(*given.launched, options=of_one) for given, of_one in zip(all_, options, strict=True)]
    found: list[EmulatorError] = []
    try:
        with calm():
            for launch in launches:
                launch.start_clusters()
            engine.run(lambda: False)
    except LaunchRefused:
        return None, launches
    except (Fault, Hang) as error:
        found.append(error)
    used = (race for launch in launches if launch.unused is not None for race in launch.unused.settled())
    found += [race for race in used if not race.note]
    return (found[0] if found else None), launches
