"""The mbarrier object (PTX ISA 9.7.13.15): expected arrivals, pending arrivals, transaction bytes and a phase."""

from __future__ import annotations

from ..errors import Fault
from .order import SCOPES, Actor, Knowledge, Released

MAX_COUNT = (1 << 20) - 1
MAX_TX = (1 << 20) - 1


class Waitable:
    """Something that groups of lanes wait for."""

    __slots__ = ("waiters", "after_dependency")

    def __init__(self):
        self.waiters = []
        self.after_dependency = False  # somebody who has passed griddepcontrol.wait has arrived here

    def wake(self):
        """Let every waiter look again."""
        if self.waiters:
            waiting, self.waiters = self.waiters, []
            for group in waiting:
                group.wake()


class MBarrier(Waitable):
    """A phase completes when no arrival is pending and no transaction byte is outstanding.

    The transaction count may dip below zero: data can land before the arrive.expect_tx that announces it.
    """

    __slots__ = (
        "name", "expected", "pending", "tx", "bytes", "announced_by", "phase", "owner", "born", "fenced", "made_by",
        "last", "key", "released", "completed", "shown", "knowers",
    )  # fmt: skip

    def __init__(
        self, count: int, name: str, by: Actor, who: object = None, key: tuple | None = None, shown: int = 1 << 31
    ):
        """by: the warp that executes mbarrier.init, `who`. key: the component of the copies that complete here. shown:
        how many phases of the cluster's barrier are over once `by` has come to it since."""
        super().__init__()
        if not 1 <= count <= MAX_COUNT:
            raise Fault("mbarrier", f"{name}: init with count {count}, allowed are 1..{MAX_COUNT}")
        self.name = name
        self.expected = self.pending = count
        self.tx = 0
        self.bytes = 0  # that this phase expects
        self.announced_by: object = None  # the instruction that last expected some
        self.phase = 0
        self.owner, self.made_by = by.space.key(("mbarrier.init", by.uid)), who
        self.born = by.order.next(self.owner, who)
        by.completed(self.owner, self.born)
        self.key = key
        self.released = Released()  # what arrivals of this phase hand on
        self.completed = Released()  # and those of all phases that are complete
        self.last: object = None  # the instruction that last arrived or completed bytes
        self.fenced: set[Actor | None] = set()  # by whom: if there are any, the async proxy sees the initialised object
        self.knowers: set[Actor] = set()  # who has been found to know the init
        self.shown = shown

    def check_visible(self, by: Actor, asynchronous: bool, met: int) -> Fault | None:
        """The init must have been made visible to a warp that uses the object, and to the async proxy: returns what is
        wrong. A kernel goes on after it with the object that there is, as it mostly does on silicon. met: for how many
        phases of the cluster's barrier the warp has waited."""
        if not self._known_to(by):
            message = f"{self.name} is used by a warp that has not waited for its init by another"
            message += f": {self.made_by}" * (self.made_by is not None)
            if met < self.shown:
                return Fault("mbarrier", message)
            by.completed(self.owner, self.born)  # once is enough
            return Fault("mbarrier", f"{message}; both came to the cluster's barrier, relaxed", note="relaxed-init")
        if asynchronous and not self.fenced:
            self.fenced.add(None)  # once is enough
            message = f"{self.name} is used by the async proxy with neither fence.mbarrier_init nor fence.proxy.async "
            message += "since its init" + f": {self.made_by}" * (self.made_by is not None)
            return Fault("mbarrier", message, note="unfenced-mbarrier")
        return None

    def fence(self, by: Actor):
        """A fence by a warp: it covers the init if that is its own or has been made visible to it. Relaxed arrivals
        hand it on from here (fence.mbarrier_init.release.cluster)."""
        if by not in self.fenced and self._known_to(by):
            self.fenced.add(by)
            passed = by.knowledge.clock[SCOPES["cluster"]]
            passed[self.owner[1]] = max(passed[self.owner[1]], self.born)

    def _known_to(self, by: Actor) -> bool:
        if by not in self.knowers and by.knowledge.known(self.owner) >= self.born:
            self.knowers.add(by)
        return by in self.knowers

    def check_idle(self):
        """Before mbarrier.inval."""
        if self.waiters or self.tx:
            raise Fault("mbarrier", f"inval of an object in use: {self}" + (", with waiters" if self.waiters else ""))

    def token(self) -> int:
        """The opaque state that arrive returns: phase and pending count before the arrival."""
        return (self.phase & 1) << 63 | self.pending << 1

    def arrive(
        self,
        count: int = 1,
        expect: int | None = None,
        drop: bool = False,
        no_complete: bool = False,
        who: object = None,
        hands_on: Knowledge | None = None,
    ) -> int:
        """Returns the token. who: names the instruction. hands_on: what it releases."""
        self.last = who
        if expect is not None:
            self._expect(expect, who)
        state = self.token()
        if count < 1 or count > self.pending:
            raise Fault("mbarrier", f"{self.name}: arrival of {count} with {self.pending} of {self.expected} pending")
        self.released.add(hands_on)
        self.pending -= count
        if drop:
            self.expected -= count
        if no_complete and self.pending == 0:
            raise Fault("mbarrier", f"{self.name}: arrive.noComplete completes the phase")
        self._maybe_complete()
        return state

    def announce(self):
        """One more arrival is pending in this phase alone (cp.async.mbarrier.arrive without .noinc)."""
        if self.pending == MAX_COUNT:
            raise Fault("mbarrier", f"{self.name}: more than {MAX_COUNT} pending arrivals")
        self.pending += 1

    def _expect(self, count: int, who: object):
        self.tx += count
        if count > 0:
            self.bytes += count
            self.announced_by = who
        if abs(self.tx) > MAX_TX:
            raise Fault("mbarrier", f"{self.name}: transaction count {self.tx} beyond {MAX_TX}")

    def transaction(self, count: int, who: object = None, hands_on: Knowledge | None = None):
        """expect_tx with a positive, complete_tx with a negative count. who, hands_on: as of `arrive`."""
        self.released.add(hands_on)
        self.last = who
        self._expect(count, who)
        self._maybe_complete()

    def _maybe_complete(self):
        if self.pending == 0 and self.tx < 0:
            raise Fault("mbarrier", f"more bytes have arrived than the phase expects: {self}")
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending, self.bytes = self.expected, 0
            self.completed.add_of(self.released)
            self.released = Released()
            self.wake()

    def test_parity(self, parity: int) -> bool:
        """True if the phase with this parity has completed: a fresh barrier passes parity 1."""
        return (self.phase & 1) != (parity & 1)

    def test_state(self, state: int) -> bool:
        return (self.phase & 1) != state >> 63

    def __str__(self):
        last = f"last arrival: {self.last}" if self.last else "no arrival yet"
        left = f"{self.tx} transaction bytes outstanding"
        if self.bytes:
            left += f" ({self.bytes - self.tx} of {self.bytes} have arrived, expected by {self.announced_by})"
        return f"{self.name} (phase {self.phase}, {self.pending} of {self.expected} arrivals pending, {left}, {last})"


class Collective(Waitable):
    """What warps of some CTAs, one of each, do together: it happens for all when all have come.

    ctas: who takes part. come: whose warp is here. results: of each CTA, in that order, when all have come.
    """

    __slots__ = ("name", "columns", "ctas", "come", "results")

    def __init__(self, name: str, columns: int, ctas: list):
        """columns: of tensor memory, which all must name alike."""
        super().__init__()
        self.name, self.columns, self.ctas = name, columns, ctas
        self.come: list = []
        self.results: list | None = None

    def join(self, cta, columns: int):
        if columns != self.columns:
            raise Fault("tmem-alloc", f"{self.name} of {columns} columns, in the pair's other CTA of {self.columns}")
        self.come.append(cta)

    @property
    def complete(self) -> bool:
        return len(self.come) == len(self.ctas)

    def __str__(self):
        absent = [c for c in self.ctas if c not in self.come]
        return f"{self.name} by " + " and ".join(f"CTA {c.ctaid}{', which has exited' * c.exited}" for c in absent)


class CountedBarrier(Waitable):
    """Named barriers of a CTA and the barrier of a cluster: a phase ends when `expected` threads have arrived.

    everyone: the phase waits for all threads that have not exited.
    """

    __slots__ = (
        "name", "arrived", "expected", "everyone", "phase", "votes", "result", "released", "come", "lanes", "before",
        "learnt",
    )  # fmt: skip

    def __init__(self, name: str):
        super().__init__()
        self.name = name
        self.arrived = 0
        self.expected: int | None = None
        self.everyone = False
        self.phase = 0
        self.votes: list = []
        self.result = 0
        self.released = Released()  # what those hand on who come to this phase
        self.come: list[tuple[Actor, int, int]] = []  # those: the warp, its lanes, the number of its event
        self.lanes: dict[Actor, int] = {}  # by warp, all of its lanes that have come
        self.before: list[tuple[Actor, int, int]] = []  # and of the phase before
        self.learnt: set[Actor] = set()  # who has waited for that phase, and so knows all that came to it

    def arrive(self, threads: int, expected: int) -> int:
        """Count threads in; returns the phase they arrived in."""
        if self.arrived and self.expected != expected:
            raise Fault("barrier", f"{self.name}: {expected} threads expected, {self.expected} by earlier arrivals")
        phase = self.phase
        self.expected = expected
        self.arrived += threads
        if self.arrived > expected:
            raise Fault("barrier", f"{self.name}: {self.arrived} threads arrived, {expected} expected")
        self.check()
        return phase

    def check(self, expected: int | None = None):
        if expected is not None:
            self.expected = expected
        if self.arrived and self.arrived >= self.expected:
            self.arrived = 0
            self.phase += 1
            self.result, self.votes = self.votes, []
            self.learnt, self.released = self.released.learnt, Released()
            self.before, self.come, self.lanes = self.come, [], {}
            self.wake()

    def has(self, by: Actor, lanes: int) -> bool:
        """Whether these lanes of a warp have come to this phase: by an arrival, as they would wait otherwise."""
        return bool(self.lanes.get(by, 0) & lanes)

    def check_phase(self, by: Actor, lanes: int, number: int, who: object, waits: bool) -> Fault | None:
        """Lanes of a warp come, which is an event: in another phase than they came to last, and after all that came to
        the phase before, for which they would count otherwise. Returns what is wrong. waits: they come to wait."""
        again = self.has(by, lanes)
        self.come.append((by, lanes, number))
        self.lanes[by] = self.lanes.get(by, 0) | lanes
        if again:
            arrival = next(arrival for actor, others, arrival in self.come if actor is by and others & lanes)
            message = f"{by} comes again to {self}, and was {by.order.who(arrival)} in the same phase"
            return Fault("barrier", message, note="arrives-twice" if waits else "", other=arrival)
        for actor, _, arrival in self.before if by not in self.learnt else ():
            if by.knowledge.known(actor.key) < arrival:
                message = f"{who} may count for another phase of {self.name}: nothing that {by} has waited for comes "
                message += f"after the phase of {by.order.who(arrival)}"
                return Fault("barrier", message, other=arrival)
        return None

    def __str__(self):
        return f"{self.name} (phase {self.phase}, {self.arrived} of {self.expected} threads arrived)"
