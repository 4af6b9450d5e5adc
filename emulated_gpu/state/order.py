"""Who may rely on what: happened-before by vector clocks, for all memories of a launch (PTX ISA 8.9.5, causality).

Everything that other threads could observe is an event of a component: a warp, the tensor core's work for a warp, the
copies that complete on an mbarrier, the bulk stores of a thread. Components belong to the cluster where they happen,
and the events of one happen in the order of their numbers. So one number for each component says all that somebody
knows: the latest event of it that has happened before. Who releases (an arrival, a barrier, a store with release) hands
on what it knows, who waits for that takes it. What an actor does not know, it may not touch, even if by luck it is
already there.

Launches of several devices (machine/node.py) share an order. What a device has done before its present launch is one
component then, of a space of its own: who knows a number of that knows all events of the device's launches up to it.

Beside what is known, a clock has rows for what has passed a fence: those of a scope, by which relaxed stores and
arrivals behind it hand it on (8.8), and those of the async proxy (8.6), without which that does not see it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..jit.rules import pointer
from .lanes import EPOCHS, STRIDE

KNOWN = 0  # the rows of a clock: what has happened before
SCOPES = {"cta": 1, "cluster": 2, "gpu": 3, "sys": 4}  # what has passed a fence of that scope
ASYNC_GLOBAL, ASYNC_SHARED = 5, 6  # what the async proxy sees: of global memory, of the shared memory of CTA 0 and on
HEARD = -1  # of an order that listens: what would be known if each strong write were a release
EVER = np.iinfo(np.int32).max
KEPT = 8  # waits of an actor, for reports
UNITED = 1024  # sets of clocks whose unions are kept, and where they lie
FRESH = "parity 1 of {}, of which no phase was complete: a fresh mbarrier passes parity 1"
# Marks of an event: not raced with by its like (atomics), made by the generic proxy, strong in the scope of the system
STRONG, GENERIC, SYSTEM = 1, 2, 4


class Turn(NamedTuple):
    """Who an event is that machine code has made of a warp's: what says the origin by the number of the instruction."""

    by: Actor
    origin: Callable[[Actor, int], object]


class Order:
    """The events of one launch, numbered from 1; of each: its component and that one's cluster, marks, and who it was.

    component, space, marks: arrays by number, which shadows of memory index by the numbers that they keep. steps: the
    same of instructions, where machine code has made the event. devices: how many devices' launches share it;
    histories: then, of each device, the space of what it has done before. listens: whether clocks have a row HEARD.
    """

    def __init__(self, devices: int = 1, listens: bool = False):
        self.now = 0
        self.log: list[object] = [None]  # see Order.origin
        self.waits: list[deque] = []  # of all actors
        self._have(*np.zeros((3, 1024), np.int32), np.zeros(1024, np.uint8))
        self.spaces: list[Space] = []
        self.devices, self.listens = devices, listens
        self.forgotten = 0  # how often shadows of global memory have been: others take their place
        self._devices = np.zeros(0, np.int32)  # by space
        self.histories = [Space(self, device=device) for device in range(devices)] if devices > 1 else []
        self.united: dict[tuple[int, int], tuple[Clocks, Clocks, Clocks]] = {}  # see Order.unite
        self.fenced: dict[tuple[int, int], tuple[Clocks, Clocks]] = {}  # by row, see Knowledge.only
        self.tables: dict[int, tuple[Clocks, np.ndarray]] = {}  # see Order.table

    def _have(self, component: np.ndarray, space: np.ndarray, steps: np.ndarray, marks: np.ndarray) -> None:
        """Keep events in these arrays from now on. addresses, steps_at: where they are."""
        self.component, self.space, self.steps, self.marks = component, space, steps, marks
        self.addresses, self.steps_at = (pointer(component), pointer(space), pointer(marks)), pointer(steps)

    def devices_by_space(self) -> np.ndarray:
        """The devices of all spaces, int32 by number."""
        if len(self._devices) != len(self.spaces):
            self._devices = np.array([space.device for space in self.spaces], np.int32)
        return self._devices

    def next(self, key: tuple[Space, int], who: object = None, marks: int = 0) -> int:
        """The number of a new event. key: space and component. who: what str() of which names the instruction."""
        self.now = number = self.now + 1
        self.log.append(who)
        if number == len(self.component):
            found = self.component, self.space, self.steps, self.marks
            self._have(*(np.concatenate((a, np.zeros_like(a))) for a in found))
        self.component[number], self.space[number], self.marks[number] = key[1], key[0].index, marks
        return number

    def unite(self, mine: Clocks, theirs: Clocks) -> Clocks:
        """Return what two sets of clocks say together: one of the two if that says all of it.

        Warps of a CTA know the same of others for the most part, as one dict, and each learns the same from a barrier.
        """
        if theirs is mine or not theirs:
            return mine
        if not mine:
            return theirs
        found = self.united.get((id(mine), id(theirs)))
        return self._keep(mine, theirs, united(mine, theirs)) if found is None else found[2]

    def add(self, mine: Clocks, space: Space, clock: np.ndarray, known: Clocks) -> Clocks:
        """Return clocks with that of another space. known: what they say all of, and so will the new ones: CTAs that
        come to a barrier one by one know the same of the last one."""
        more = mine | {space: clock}
        self._keep(known, more, more)
        return self._keep(more, known, more)

    def _keep(self, mine: Clocks, theirs: Clocks, both: Clocks) -> Clocks:
        if len(self.united) >= UNITED:
            self.united.clear()
        self.united[id(mine), id(theirs)] = mine, theirs, both
        return both

    def table(self, clocks: Clocks) -> np.ndarray:
        """Where clocks lie: int64 [spaces, 2], the address and how many components there are, 0 of one left out."""
        found = self.tables.get(id(clocks))
        if found is None:
            table = np.zeros((max(space.index for space in clocks) + 1, 2), np.int64)
            for space, clock in clocks.items():
                table[space.index] = pointer(clock), clock.shape[1]
            if len(self.tables) == UNITED:
                self.tables.clear()
            found = self.tables[id(clocks)] = clocks, table
        return found[1]

    def part(self) -> None:
        """Its launch has ended: what refers to each other forgets so, and is freed without a search for garbage."""
        for waits in self.waits:
            waits.clear()
        for space in self.spaces:
            space.keys.clear()
        self.log.clear()
        self.spaces.clear()

    def origin(self, number: int) -> Any:
        """Who an event was; None of event 0."""
        who = self.log[number]
        return who.origin(who.by, int(self.steps[number])) if type(who) is Turn else who

    def who(self, number: int) -> str:
        """Return the instruction of an event; event 0 has none."""
        who = self.origin(number)
        return "another warp" if who is None else str(who)


class Space:
    """The components of one cluster. Warps come first, by uid; 0 is nobody's, whose events are known to all.

    device: the one that it runs on. last: the last event before its launch had ended.
    """

    def __init__(self, order: Order, warps: int = 0, ctas: int = 1, device: int = 0):
        self.order, self.index, self.warps, self.device = order, len(order.spaces), warps, device
        self.last = EVER
        self.rows = ASYNC_SHARED + ctas + order.listens
        self.keys: dict[object, tuple[Space, int]] = {}
        self.count = warps + 1
        self.size = max(64, 2 * self.count)
        self.actors: list[Actor] = []
        order.spaces.append(self)

    def key(self, name: object) -> tuple[Space, int]:
        """The component of a name, made when it is first asked for, as events have it."""
        found = self.keys.get(name)
        if found is None:
            found = self.keys[name] = self, self.count
            self.count += 1
            if self.count > self.size:
                self.size *= 2
                for actor in self.actors:
                    actor.knowledge.clock = wider(actor.knowledge.clock, self.size)
        return found


def wider(clock: np.ndarray, size: int) -> np.ndarray:
    """The same clock with room for this many components."""
    return np.pad(clock, ((0, 0), (0, size - clock.shape[1])))


def latest(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What two clocks of one space know together, in a new array."""
    if a.shape[1] < b.shape[1]:
        a, b = b, a
    joined = a.copy()
    np.maximum(joined[:, : b.shape[1]], b, out=joined[:, : b.shape[1]])
    return joined


Clocks = dict[Space, np.ndarray]  # what somebody knows of the events of each space


def later(mine: np.ndarray | None, clock: np.ndarray) -> np.ndarray:
    """What two clocks of one space know together: one of them, the other's if it knows all, or a new one."""
    if mine is None or mine is clock:
        return clock
    if mine.shape == clock.shape:
        if (mine <= clock).all():  # all share what is the latest
            return clock
        if (clock <= mine).all():
            return mine
    return latest(mine, clock)


def united(mine: Clocks, theirs: Clocks) -> Clocks:
    """What two sets of clocks say together: one of them if it says all of it, or a new one."""
    more = {space: new for space, clock in theirs.items() if (new := later(was := mine.get(space), clock)) is not was}
    if not more:
        return mine
    both = mine | more
    return theirs if len(both) == len(theirs) and all(theirs[s] is clock for s, clock in both.items()) else both


class Knowledge:
    """What somebody knows: clock, int32 [rows, components], of its own cluster's space; elsewhere: those of others, and
    perhaps an older one of its own. Others share that dict and its clocks, which nobody changes; its own changes."""

    __slots__ = ("space", "clock", "elsewhere", "_addressed", "_address", "_table")

    def __init__(self, space: Space, clock: np.ndarray | None = None, elsewhere: Clocks | None = None):
        self.space = space
        self.clock = np.zeros((space.rows, space.size), np.int32) if clock is None else clock
        self.elsewhere: Clocks = {} if elsewhere is None else elsewhere
        self._addressed: tuple[np.ndarray | None, Clocks | None] = None, None

    def address(self) -> tuple[int, int, int, int]:
        """Where its clock is: the address, the components; and where those of others: see Order.table, how many."""
        clock, elsewhere = self._addressed
        if clock is not self.clock or elsewhere is not self.elsewhere:
            self._addressed = self.clock, self.elsewhere
            self._address = pointer(self.clock), self.clock.shape[1], 0, 0
            if self.elsewhere:
                self._table = self.space.order.table(self.elsewhere)
                self._address = *self._address[:2], pointer(self._table), len(self._table)
        return self._address

    def join(self, other: Knowledge) -> None:
        """Know what the other one knows, too."""
        order = self.space.order
        elsewhere = order.unite(self.elsewhere, other.elsewhere)
        if other.space is self.space:
            self._join_own(other.clock)
        else:
            if (own := other.elsewhere.get(self.space)) is not None:
                self._join_own(own)
            mine = elsewhere.get(other.space)
            new = later(mine, other.clock)
            if new is not mine:
                new = new.copy() if new is other.clock else new
                elsewhere = order.add(elsewhere, other.space, new, other.elsewhere)
        self.elsewhere = elsewhere

    def copy(self) -> Knowledge:
        """The same, to be changed apart."""
        return Knowledge(self.space, self.clock.copy(), self.elsewhere)

    def _join_own(self, clock: np.ndarray) -> None:
        mine, width = self.clock, clock.shape[1]
        if mine.shape[1] != width:
            if mine.shape[1] < width:
                self.clock = mine = wider(mine, width)
            mine = mine[:, :width]
        np.maximum(mine, clock, out=mine)

    def known(self, key: tuple[Space, int]) -> int:
        """The number of the latest event of a component that has happened before."""
        space, component = key
        clock = self.clock if space is self.space else self.elsewhere.get(space)
        return 0 if clock is None or component >= clock.shape[1] else int(clock[KNOWN, component])

    def only(self, row: int) -> Knowledge | None:
        """What of it has passed a fence, which that row says; None if nothing has."""
        listens = self.space.order.listens

        def of(clock: np.ndarray) -> np.ndarray:
            kept = np.minimum(clock, clock[row])
            kept[KNOWN] = clock[row]
            if listens:
                kept[HEARD] = np.maximum(clock[HEARD], clock[KNOWN])
            return kept

        fenced, key = self.space.order.fenced, (id(self.elsewhere), row)
        if key not in fenced:
            if len(fenced) == UNITED:
                fenced.clear()
            known = self.elsewhere
            fenced[key] = known, {space: of(clock) for space, clock in known.items() if listens or clock[row].any()}
        elsewhere = fenced[key][1]
        some = listens or elsewhere or self.clock[row].any()
        return Knowledge(self.space, of(self.clock), elsewhere) if some else None


class Actor:
    """A warp, as the shadows of memory know it. uid: its component, unique in the cluster and positive. rank: its
    CTA's.

    heard: what relaxed waits have shown it, on which it may rely behind a fence; from_afar: likewise of other devices,
    behind a fence of the system. unfenced: its lanes that have written since they fenced or arrived anywhere;
    published: the last event at which there were none. waits: those that it has come out of last: the event before, the
    instruction, what it waited for and the phase. looks: with several devices, what str() of which says at what
    memory it has looked last by a strong read. epoch: another one each time that its lanes meet, see lanes.py.
    """

    __slots__ = (
        "uid", "name", "rank", "space", "order", "key", "knowledge", "heard", "from_afar", "unfenced", "published",
        "waits", "looks", "epoch", "_copier",
    )  # fmt: skip

    def __init__(self, uid: int, space: Space, name: str = "this warp", rank: int = 0):
        self.name, self.rank = name, rank
        self.uid, self.space, self.order, self.key = uid, space, space.order, (space, uid)
        self.knowledge = Knowledge(space)
        self.knowledge.clock[KNOWN, uid] = EVER  # what it did itself
        self.heard: Knowledge | None = None
        self.from_afar: Knowledge | None = None
        self.waits: deque[tuple[int, object, object, int]] | None = None  # half a KiB, once it has waited
        self.looks: object = None
        self._copier: tuple[Space, int] | None = None
        self.epoch = (uid - 1) % (STRIDE // 2) + 1
        self.unfenced = self.published = 0
        space.actors.append(self)

    def __str__(self):
        return self.name

    def meet(self) -> None:
        """Its lanes have waited for each other."""
        self.epoch = (self.epoch + STRIDE) % EPOCHS

    def waited(self, who: object, what: object, phase: int) -> None:
        """An instruction has waited for a phase of what has a name, a barrier."""
        if self.waits is None:
            self.waits = deque(maxlen=KEPT)
            self.order.waits.append(self.waits)
        self.waits.append((self.order.now, who, what, phase))

    def before(self, number: int = EVER) -> str:
        """Say what it had waited for last before an event of its own, or before now."""
        waits = self.waits or ()
        for event, who, what, phase in reversed(waits):
            if event < number:
                return f"{who}, {f'phase {phase} of {what.name}' if phase >= 0 else FRESH.format(what.name)}"
        return f"none of {self}" if len(waits) < KEPT else f"{self} has waited {KEPT} times since"

    def copier(self) -> tuple[Space, int]:
        """The component of its cp.async."""
        if self._copier is None:
            self._copier = self.space.key(("cp.async", self.uid))
        return self._copier

    # -- handing on
    def released(self, row: int = KNOWN) -> Knowledge | None:
        """What it hands on: all that it knows and did, or what of that has passed a fence."""
        mine = self.knowledge
        if row:
            handed = mine.only(row)
            if handed is not None and self.order.listens:
                handed.clock[HEARD, self.uid] = self.order.now
            return handed
        clock = mine.clock.copy()
        clock[KNOWN, self.uid] = self.order.now
        return Knowledge(self.space, clock, mine.elsewhere)

    def learn(self, knowledge: Knowledge | None) -> None:
        """It has waited for somebody who handed this on."""
        if knowledge is not None:
            self.knowledge.join(knowledge)

    def hear(self, knowledge: Knowledge | None) -> None:
        """A relaxed wait has shown it this."""
        if knowledge is not None:
            if self.heard is None:
                self.heard = Knowledge(self.space)
            self.heard.join(knowledge)

    def hear_from_afar(self, knowledge: Knowledge | None) -> None:
        """A relaxed read at the scope of the system has shown it this of another device."""
        if knowledge is not None:
            if self.from_afar is None:
                self.from_afar = Knowledge(self.space)
            self.from_afar.join(knowledge)

    def take_heard(self, scope: str = "gpu") -> None:
        """A fence that acquires."""
        if self.heard is not None:
            self.learn(self.heard)
            self.heard = None
        if self.from_afar is not None and scope == "sys":
            self.learn(self.from_afar)
            self.from_afar = None

    def completed(self, key: tuple[Space, int], number: int) -> None:
        """It has waited for an asynchronous operation of its own: the events of a component up to a number."""
        clock = self.knowledge.clock
        clock[KNOWN, key[1]] = max(clock[KNOWN, key[1]], number)

    # -- fences
    def passes(self, rows: slice, own: int | None = None) -> None:
        """Fences of these rows: all that it knows has passed them, of its own events those up to `own`."""
        clock = self.knowledge.clock
        before = clock[rows, self.uid].copy()
        np.maximum(clock[rows], clock[KNOWN], out=clock[rows])
        clock[rows, self.uid] = np.maximum(before, self.order.now if own is None else own)
        passed: Clocks = {}
        for space, clock in self.knowledge.elsewhere.items():
            if (clock[rows] < clock[KNOWN]).any():
                passed[space] = clock.copy()
                passed[space][rows] = clock[KNOWN]
        if passed:
            self.knowledge.elsewhere = self.knowledge.elsewhere | passed

    def fence_async(self, lanes: int, rows: slice) -> None:
        """fence.proxy.async by some lanes: those of others count if they have met with these since they wrote."""
        self.passes(rows, self.published if self.unfenced & ~lanes else None)
        self.publish(lanes)

    def publish(self, lanes: int) -> None:
        """Lanes have arrived somewhere: a fence by whoever waits for them covers what they wrote."""
        self.unfenced &= ~lanes
        if not self.unfenced:
            self.published = self.order.now

    # -- what shadows ask
    def unknown(self, numbers: np.ndarray, row: int = KNOWN) -> np.ndarray:
        """Which of these events have not happened before anything that it does now (or not passed that fence)."""
        order, clock = self.order, self.knowledge.clock
        component = order.component[numbers]
        if len(order.spaces) == 1:
            return numbers > clock[row].take(component)
        space = order.space[numbers]
        here = space == self.space.index
        late = numbers > clock[row].take(component, mode="clip") * here
        if self.knowledge.elsewhere and (there := late & ~here).any():
            if order.histories:
                late &= here | (numbers > self.history(row)[order.devices_by_space()[space]])
                there &= late
            for other in np.unique(space[there]).tolist():
                seen = self.knowledge.elsewhere.get(order.spaces[other])
                if seen is not None:
                    known = seen[row].take(component, mode="clip") * (component < seen.shape[1])
                    late &= (numbers > known) | (space != other)
        return late

    def history(self, row: int = KNOWN) -> np.ndarray:
        """By device, int32: up to which of its events it knows all, as those of launches that have ended."""
        elsewhere = self.knowledge.elsewhere
        clocks = [elsewhere.get(history) for history in self.order.histories]
        return np.array([0 if clock is None else clock[row, 1] for clock in clocks], np.int32)


class Released:
    """What those have handed on who have come to a phase of a barrier.

    own: whether nobody else holds its `knowledge`, so that it may change: mostly one comes, and nothing is copied.
    latest: what came last; lanes of a warp bring the same. learnt: who knows all of it.
    """

    __slots__ = ("knowledge", "own", "latest", "learnt")

    def __init__(self):
        self.knowledge: Knowledge | None = None
        self.own = False
        self.latest: Knowledge | None = None
        self.learnt: set[Actor] = set()

    def add(self, knowledge: Knowledge | None) -> None:
        """Somebody comes and hands this on, which nobody changes any more."""
        if knowledge is self.latest:
            return
        self.latest = knowledge
        self.learnt.clear()
        if self.knowledge is None:
            self.knowledge, self.own = knowledge, False
        elif knowledge is not None:
            if not self.own:
                self.knowledge, self.own = self.knowledge.copy(), True
            self.knowledge.join(knowledge)

    def add_all_of(self, by: Actor) -> None:
        """A warp of the same cluster comes and hands on all that it knows and did: Actor.released, uncopied."""
        self.learnt.clear()
        if self.knowledge is None:
            self.knowledge, self.own = by.released(), True
            return
        if not self.own:
            self.knowledge, self.own = self.knowledge.copy(), True
        self.knowledge.join(by.knowledge)
        self.knowledge.clock[KNOWN, by.uid] = by.order.now

    def add_of(self, other: Released) -> None:
        """What another one holds by now is handed on here, too."""
        other.own = False
        self.add(other.knowledge)

    def teach(self, by: Actor) -> None:
        """A warp has waited for them. Those that poll do so again and again."""
        if by not in self.learnt:
            by.learn(self.knowledge)
            self.learnt.add(by)


class Location:
    """An address at which strong stores and atomics release, and strong loads acquire (8.8), by how far they reach."""

    __slots__ = ("everywhere", "within")

    def __init__(self):
        self.everywhere = Released()  # across devices
        self.within: dict[object, Released] = {}  # a device, which has a number, a cluster, a CTA

    def forget(self, device: int) -> None:
        """The clusters and CTAs of a device have ended."""
        gone = [place for place in self.within if type(place) is not int and place.device == device]
        for place in gone:
            del self.within[place]

    def release(self, handed: list[tuple[object, Knowledge]]) -> None:
        """A strong write hands this on, which is of `handed_over`."""
        for place, knowledge in handed:
            to = self.everywhere if place is None else self.within.setdefault(place, Released())
            to.add(knowledge)

    def acquire(self, by: Actor, cta: object, scope: str = "gpu", ordered: bool = True) -> None:
        """A strong read by a warp of a CTA: of its own device of whatever scope, and as if it acquired; of others only
        of the system's. ordered: whether it does acquire; else only a fence behind it does, of others."""
        for released in (self.within.get(by.space.device), self.within.get(by.space), self.within.get(cta)):
            if released is not None:
                released.teach(by)
        if scope == "sys" and self.everywhere.knowledge is not None:
            if ordered:
                self.everywhere.teach(by)
            else:
                by.hear_from_afar(self.everywhere.knowledge)


def handed_over(by: Actor, scope: str, cta: object, ordered: bool) -> list[tuple[object, Knowledge]]:
    """What a strong write by a warp of a CTA hands on at each place that its scope has, None for all devices. ordered:
    it is a release; else what a fence before it covers."""
    places = [("cta", cta), ("cluster", by.space), ("gpu", by.space.device)]
    places = [(level, place) for level, place in places if SCOPES[level] <= SCOPES[scope]]
    if scope == "sys" and by.order.devices > 1:
        places.append(("sys", None))
    found = [(place, by.released(0 if ordered else SCOPES[level])) for level, place in places]
    return [(place, knowledge) for place, knowledge in found if knowledge is not None]
