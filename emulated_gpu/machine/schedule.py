"""Orders of events for functional runs, drawn from a seed: every one that a correct program must tolerate.

A delay is arbitrary, so it is no prediction; model/clock.py has the clock that predicts.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..state.order import Knowledge
from .clock import Clock
from .engine import MANY
from .warp import place_of


class Delay(NamedTuple):
    """What of a launch is late: the `nth` thing of a kind that a warp does, from 0. cta: its number in the grid.

    what: a key of WHAT.
    """

    cta: int
    warp: int
    what: str
    nth: int


WHAT = {
    "starts": "begins, or goes on once it is woken",
    "stops": "goes on behind a meeting with others (a strong access, an atomic, an arrival or a wait)",
    "yields": "goes on behind an arrival or an atomic",
    "looked": "goes on behind a strong load",
    "wrote": "goes on behind a strong store",
    "tma": "gets what a TMA or bulk copy brings",
    "mma": "gets what the tensor core makes",
    "store": "has a bulk store done",
    "commit": "has a commit arrive",
    "ld": "has a tcgen05.ld done",
    "remote": "has what it sends to another CTA arrive",
    "st": "has a tcgen05.st done",
}
SOON = 40  # ticks of an asynchronous operation in schedule 0
# What schedule 0 decides; of "ld" and "st" it draws
ORDERLY = dict.fromkeys(("starts", "stops", "yields", "looked", "wrote"), 0)
ORDERLY |= dict.fromkeys(("tma", "mma", "store", "commit", "remote"), SOON)
_REPLAY = re.compile(r"(\d+)(?:/(\d+):(.+))?")
_DELAY = re.compile(r"(\d+)\.(\d+)\.([a-z]+)\.(\d+)=(\d+(?:\.\d+)?)")


class Met(NamedTuple):
    """A meeting of a warp with others (units/group.Meeting) in a launch that is watched.

    delay: how a schedule names it. words: what it is about. block: of the program. now, known: the last event until
    then and what the warp knew, whose component is `uid`.
    """

    delay: Delay
    words: tuple
    writes: bool
    commutes: bool
    block: int
    now: int
    uid: int
    known: Knowledge


@dataclass
class Watched:
    """What a launch's clock has decided, and who has met, in order. places: where those were that had to be late."""

    late: dict[Delay, float] = field(default_factory=dict)
    met: list[Met] = field(default_factory=list)
    places: dict[Delay, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Schedule:
    """late: None, or what alone is late in a launch of that number, and by how many ticks. All else takes its time of
    schedule 0, and of the seed is only what is no order: the lane that is elected, what memory holds at first.

    seed: its number. The first ones are chosen, each for what it lets come late (emulated_gpu/RUN.md):

    0  nothing: operations take a short time, warps and CTAs begin in their order
    1  the first warps and CTAs: each is far behind the next one, whenever it begins or is woken. An arrival, a commit
       or an atomic lets those go first that wait for it, and operations land at once
    2  every asynchronous operation: it lands only when nothing else can move. So does who has looked
       at a flag by a volatile, relaxed or acquiring load: what it has seen may be old. Who has set one stops a while
    3  the last warps and CTAs: each is far behind the one before it. Operations land at once
    4  to 10: as 2, one class of operations alone. From 11 on: some classes. Warps take turns by a draw, also in 2
    """

    seed: int = 0
    late: Mapping[Delay, float] | None = None
    launch: int = 0

    LAZY = 20_000
    BEHIND = 3_000
    SHORT = 600
    CLASSES = ("tma", "mma", "store", "commit", "ld", "remote", "st")

    @classmethod
    def of_text(cls, text: str) -> Schedule:
        """Return what `str` of it says: `5`, or `5/2:3.0.stops.4=100000` with more behind commas. Raises ValueError."""
        found = _REPLAY.fullmatch(text.strip())
        parts = found[3].split(",") if found and found[3] else []
        late = {}
        for part in parts:
            one = _DELAY.fullmatch(part.strip())
            if one is None or one[3] not in WHAT:
                raise ValueError(f"{part!r} is no delay: CTA.WARP.WHAT.NUMBER=TICKS, WHAT one of {', '.join(WHAT)}")
            late[Delay(int(one[1]), int(one[2]), one[3], int(one[4]))] = float(one[5])
        if found is None:
            raise ValueError(f"{text!r} is no order of events: SEED, or SEED/LAUNCH:DELAY,DELAY..")
        return cls(int(found[1]), late if found[2] else None, int(found[2] or 0))

    def __str__(self) -> str:
        if self.late is None:
            return str(self.seed)
        late = ",".join(f"{d.cta}.{d.warp}.{d.what}.{d.nth}={ticks:.17g}" for d, ticks in self.late.items())
        return f"{self.seed}/{self.launch}:{late}"

    def lazy_classes(self) -> frozenset[str]:
        """The classes of operations that land only when nothing else can move."""
        if self.seed == 2:
            return frozenset(self.CLASSES)
        single = self.seed - 4
        if single < 0:
            return frozenset()
        if single < len(self.CLASSES):
            return frozenset({self.CLASSES[single]})
        rng = random.Random(self.seed)
        return frozenset(c for c in self.CLASSES if rng.random() < 0.4)

    @property
    def prompt(self) -> bool:
        """Whether operations land at once."""
        return self.seed in (1, 3)

    def behind(self, warp) -> int | None:
        """How many ticks a warp is late whenever it begins or is woken; None: by a draw."""
        if self.seed not in (1, 3):
            return None if self.seed else 0
        place = warp.index + warp.cta.index % 8
        return self.BEHIND * (place if self.seed == 3 else len(warp.cta.warps) + 7 - place)


def landing(kind: str) -> Callable[..., float]:
    """Return a function of a FunctionalClock: when what is asynchronous is done, as late as its kind may be."""
    return lambda self, group, *_, **__: group.t + self._delay(kind, group)


class FunctionalClock(Clock):
    """An instruction takes a tick, a nanosecond too; everything asynchronous takes what the schedule says."""

    computes_mma = True
    longer = False  # whether turns may be: not where any is late by a draw, or CTAs may poll what others store

    @property
    def quantum(self) -> float:
        return 4096 if self.longer and self.engine.count > MANY else 256

    def __init__(self, schedule: Schedule, engine, launch: int = 0, watched: Watched | None = None):
        """launch: the number of the one whose clock it is. watched: gets what is decided; needed where any is late."""
        self.late: Mapping[Delay, float] | None = None
        if schedule.late is not None:
            self.late = schedule.late if launch == schedule.launch else {}
            schedule = Schedule()
        self.schedule, self.engine = schedule, engine
        self.random = random.Random(schedule.seed)
        self.lazy, self.prompt = schedule.lazy_classes(), schedule.prompt
        self.counts: dict[tuple[int, int, str], int] = {}
        self.watched = watched

    def program(self, program):
        self.longer = self.schedule.seed == 0 and not program.hands_on
        return program.predicated if self.watched is None else program.stops

    def _decided(self, what: str, warp, ticks: float) -> float:
        """Return for how long something is late that would be so for some ticks."""
        if self.watched is None:
            return ticks
        place = warp.cta.index, warp.index, what
        nth = self.counts[place] = self.counts.get(place, -1) + 1
        delay = Delay(*place, nth)
        if self.late is not None:
            ticks = self.late.get(delay, ticks)
        self.watched.late[delay] = ticks
        if self.late and delay in self.late:
            self.watched.places[delay] = place_of(sys._getframe(1)) if what != "starts" else str(warp)
        return ticks

    def _delay(self, kind: str, group) -> float:
        return self._decided(kind, group.warp, self._drawn(kind))

    def _drawn(self, kind: str) -> float:
        if kind in self.lazy:
            return Schedule.LAZY * (1 + self.random.random())
        if self.prompt:
            return 0
        if self.schedule.seed == 0:
            return SOON
        return self.random.choice((0, 10, 100, 600)) * (0.5 + self.random.random())

    def costs(self, program) -> list[float]:
        return [max(1, e - s) for s, e in zip(program.start, program.end, strict=True)]

    def executed(self, group, cost: float) -> float:
        return group.t + cost

    def wake(self, warp, time: float) -> float:
        """Seeds differ in who goes first."""
        behind = self.schedule.behind(warp)
        return self._decided("starts", warp, self.random.random() * 60 if behind is None else behind)

    def hesitation(self, warp) -> float:
        return self._decided("yields", warp, self._hesitation())

    def _hesitation(self) -> float:
        if self.schedule.seed == 1:
            return self.schedule.BEHIND
        if self.schedule.seed in (0, 3) or self.random.random() < 0.7:
            return 0
        return self.random.choice((30, 300, 3000))

    def lingering(self, warp, wrote: bool) -> float:
        ticks = (Schedule.SHORT if wrote else Schedule.LAZY) if self.schedule.seed == 2 else 0
        return self._decided("wrote" if wrote else "looked", warp, ticks)

    def stop(self, group, access) -> float:
        if self.watched is None:
            return 0
        warp = group.warp
        ticks = self._decided("stops", warp, 0)
        nth = self.counts[warp.cta.index, warp.index, "stops"]
        delay = Delay(warp.cta.index, warp.index, "stops", nth)
        by, words = warp.actor, words_of(group, access)
        known = by.knowledge.copy()
        met = Met(delay, words, access.writes, access.commutes, group.pc, by.order.now, by.uid, known)
        self.watched.met.append(met)
        return ticks

    def cta_start(self, launch: int, sms: list[int]) -> float:
        return 0

    def after(self, time: float, ns: float) -> float:
        return time + ns

    tma_load = bulk_load = shared_copy = copied = landing("tma")
    remote, commit = landing("remote"), landing("commit")
    mma = wgmma = tensor_copy = landing("mma")

    def bulk_store(self, group, *_, **__) -> tuple[float, float]:
        read = group.t + self._delay("store", group)
        return read, read + self._delay("store", group)

    tma_store = bulk_store

    def tmem_load(self, group, registers: int, shape: str) -> bool:
        return self._at_once("ld", group)

    def tmem_store(self, group, registers: int, shape: str) -> bool:
        return self._at_once("st", group)

    def _at_once(self, kind: str, group) -> bool:
        late = kind in self.lazy or self.random.random() >= 0.5
        return not self._decided(kind, group.warp, int(late))


def words_of(group, access) -> tuple:
    """Return what an access is about, as others name it, too: barriers, words of memory."""
    if type(access.at) is not tuple:
        return () if access.at is None else (str(access.at),)
    space, addresses = access.at
    if space not in ("global", "shared"):
        return ()
    cluster = group.cta.cluster.space.index if space == "shared" else -1
    addresses = np.unique(np.asarray(addresses, np.uint64)).tolist()
    return tuple((cluster, word) for at in addresses for word in range(at // 4, (at + access.size - 1) // 4 + 1))
