"""What the host gives to streams, and who may rely on it: happened-before of launches, copies, frees and the host.

Work of a stream runs some time after the call, behind what was in the stream before. Each stream is a component of a
clock: what a stream knows is, of each other one, up to which of its works all have ended. Events hand that on, waits
take it; so does the host, which knows what it has waited for, and whose later calls know all that. Two works that touch
the same bytes, one of them changing them, are a race unless one knows the other. Here everything runs in the order of
the calls, so that a race changes no result; it is found all the same.

All threads of the host count as one here; host_threads.py has what they give at the same time.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from ..errors import EmulatorError, HostOrderFault
from .global_memory import Region
from .host_threads import Threads

LEGACY, LEGACY_HANDLE, PER_THREAD_HANDLE = 0, 1, 2  # cudaStreamLegacy and cudaStreamPerThread are handles of their own
NON_BLOCKING = 1 << 40  # handles from there on are of streams that do not wait for the default one: torch's
BRANCHES = 3 << 40  # handles from there on are of branches of graphs
HOST_ALONE = 4 << 40  # what the host does itself, when it has waited for nothing more
KEPT = 256  # works of a stream that are held against others; older ones are forgotten
DEFERRED = 64 << 20  # bytes that works keep until somebody asks what they did
# What is wrong if something comes of two works that run at once, by the kind of the finding
AT_ONCE = {
    "stream-race": "what both change by atomics or volatile operations does not order them",
    "residency": "where some of their CTAs have started, there is no room for the others, for which these wait",
}
TRIALS = 3  # of two works at once by their parties: later ones may find a flag that the first have left
RUNS = 1 << 16  # ranges of bytes that an access keeps apart
ANYWHERE = 0, 1 << 64  # addresses
AtOnce = Callable[..., EmulatorError | None]  # of works
Place = str | tuple[int, ...]  # file:line of the user's Python; of compiled code, return addresses, the innermost first

HERE = str(Path(__file__).parents[1])
# What stands between the user's code and the call, beside the emulator itself: packages, and ends of paths
PACKAGES = "torch", "triton", "cutlass", "nvidia_cutlass_dsl", "cuda", "cupy", "cupy_backends", "numba", "numba_cuda"
BETWEEN = "<frozen", "<string>", "/runpy.py", "/contextlib.py", "/functools.py", "/threading.py", "/weakref.py"
_ours: dict[str, bool] = {HERE: True}  # file -> whether it only stands between the user's code and the call


class Access(NamedTuple):
    """Bytes [first, end) of a region that a work reads or writes. runs: int64 [n, 2], those of them; None: all. shared:
    the host can touch them, too, without a word; strong: by volatile or atomic operations alone, which do not race with
    each other."""

    first: int
    end: int
    writes: bool
    region: Region
    runs: np.ndarray | None = None
    shared: bool = False
    strong: bool = False

    def against(self, other: Access) -> int | None:
        """Return the address of the first byte at which the two must not meet; None if there is none."""
        if self.first >= other.end or other.first >= self.end or not (self.writes or other.writes):
            return None
        if self.strong and other.strong or self.region.freed or other.region.freed:  # others may lie there by now
            return None
        return self.common(other)

    def common(self, other: Access) -> int | None:
        """Return the address of the first byte that is another one's, too."""
        first, end = max(self.first, other.first), min(self.end, other.end)
        if first >= end:
            return None
        if self.runs is None and other.runs is None:
            return first
        mine, theirs = (np.array([[a.first, a.end]]) if a.runs is None else a.runs for a in (self, other))
        behind = np.searchsorted(theirs[:, 1], mine[:, 0], side="right")
        meet = behind < len(theirs)
        meet[meet] = theirs[behind[meet], 0] < mine[meet, 1]
        if not meet.any():
            return None
        at = int(np.argmax(meet))
        return int(max(mine[at, 0], theirs[behind[at], 0]))

    def has(self, address: int) -> bool:
        """Return whether it is of that byte."""
        if not self.first <= address < self.end:
            return False
        if self.runs is None:
            return True
        at = int(np.searchsorted(self.runs[:, 1], address, side="right"))
        return at < len(self.runs) and self.runs[at, 0] <= address


class Stream:
    """A queue of a device. blocking: it and the legacy default stream wait for each other. number: of its last work.

    knows: of other streams, up to which number all works have ended before what comes next here. waits: what has been
    waited for: the event, and the stream and the number that it stood for then.
    """

    def __init__(self, name: str, device: int, blocking: bool, legacy: bool = False):
        self.name, self.device, self.blocking, self.legacy = name, device, blocking, legacy
        self.number = 0
        self.knows: dict[Stream, int] = {}
        self.waits: deque[tuple[Event, Stream, int]] = deque(maxlen=16)
        self.flying: deque[Work] = deque(maxlen=KEPT)

    def __str__(self):
        return self.name

    def until_now(self) -> dict[Stream, int]:
        """What somebody knows who has waited for all that is in it."""
        return self.knows | {self: self.number}


class Event:
    """A CUDA event. recorded: where it stands, or None; before: where it has stood before that."""

    def __init__(self, name: str):
        self.name = name
        self.recorded: tuple[Stream, int] | None = None
        self.before: list[tuple[Stream, int]] = []
        self.knows: dict[Stream, int] = {}

    def __str__(self):
        return self.name


class Work:
    """What a stream has been given. what, where: for reports; frees: whether its accesses are to memory that goes.

    later: returns its accesses when they are first asked for, instead of `accesses`; given: what it is run
    by once more, a Given of machine/together.py, or None; weight: bytes that both keep; turn: of all streams' works.
    """

    __slots__ = (
        "stream", "number", "turn", "knows", "what", "where", "accesses", "frees", "later", "given", "weight",
        "of_old", "_span",
    )  # fmt: skip

    def __init__(self, stream: Stream, what: str, where: Place, frees: bool):
        self.stream, self.number, self.what, self.where, self.frees = stream, stream.number, what, where, frees
        self.knows = stream.knows.copy()
        self.turn = 0
        self.accesses: list[Access] = []
        self.later: Callable[[], list[Access]] | None = None
        self.given: Any = None
        self._span: tuple[int, int] | None = None
        self.weight = 0
        self.of_old = ""  # it has touched this, whose memory may be another one's by now

    def all(self) -> list[Access]:
        """Return its accesses."""
        if self.later is not None:
            self.accesses, self.later = self.later(), None
        return self.accesses

    @property
    def party(self) -> str:
        """What is alike for findings of one mistake."""
        return f"{self.what.partition(' (')[2] or self.what} {named(self.where)}"

    @property
    def span(self) -> tuple[int, int]:
        """From where up to where its accesses lie. To be asked when it has ended."""
        if self._span is None:
            accesses = self.all()
            self._span = min((a.first for a in accesses), default=0), max((a.end for a in accesses), default=0)
        return self._span

    def __str__(self):
        return f"{self.what} on {self.stream}" + f" ({named(self.where)})" * bool(self.where)


class Ghost(NamedTuple):
    """What a work does in a region that an allocator has back, which gives it to a stream that does not know."""

    region: Region
    stream: Stream
    work: Work
    accesses: list[Access]


def learn(knows: dict[Stream, int], more: dict[Stream, int]) -> None:
    """Know what somebody else knows, too."""
    for stream, number in more.items():
        if knows.get(stream, 0) < number:
            knows[stream] = number


def stands_between(file: str) -> bool:
    """Return whether a file is of what only stands between the user's code and a call. A folder of the user's may be
    called as a package is."""
    folders = [
        folder for name in PACKAGES if name in sys.modules for folder in getattr(sys.modules[name], "__path__", ())
    ]
    return file.startswith((HERE, *(f"{folder}/" for folder in folders))) or any(part in file for part in BETWEEN)


def calling_place() -> Place:
    """Return where the user's code makes this call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        ours = _ours.get(file)
        if ours is None:
            ours = _ours[file] = stands_between(file)
        if not ours:
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return COMPILED.caller()


class CompiledCode:
    """The user's compiled code, of which only those know that serve it. caller: returns the addresses in it that lead
    to this call, () if there are none. line_of: returns a name of those. watch: returns what says whether memory of the
    host is gone, given its address and size in bytes."""

    def __init__(self):
        self.caller: Callable[[], tuple[int, ...]] = tuple
        self.line_of: Callable[[tuple[int, ...]], str] = str
        self.watch: Callable[[int, int], Callable[[], bool]] = lambda address, size: bool


COMPILED = CompiledCode()


def named(where: Place) -> str:
    """Return what people call a place: of compiled code file:line, if it has that, or how far in which file it is."""
    return where if isinstance(where, str) else (COMPILED.line_of(where) if where else "")


class HostOrder:
    """Streams, events and works of this process. host: what the host has waited for.

    several: whether there are streams beside the default one. shares: whether there is memory that devices and the host
    share. Without both, what works do is looked at when it is asked for. together(one, other), starve(one, other): run
    two works at once, or as a GPU may have started some of each; crowd(one, other, *behind): or if `other` lets those
    behind it begin before it ends (PDL). Return what comes of it.
    """

    def __init__(self):
        self.shares = False
        self.together: AtOnce = lambda *works: None
        self.starve: AtOnce = self.together
        self.crowd: AtOnce = self.together
        self.forget()

    @property
    def watches(self) -> bool:
        """Whether works are to be held against each other, or against the host."""
        return self.several or self.shares

    def forget(self) -> None:
        """Begin anew: all that was given to streams has ended, and everybody knows."""
        self.streams: dict[tuple[int, int], Stream] = {}
        self.events: dict[object, Event] = {}
        self._known_events: weakref.WeakSet[Event] = weakref.WeakSet()
        self._numbers = itertools.count(1)
        self._ghosts: list[Ghost] = []
        self.host: dict[Stream, int] = {}
        self.threads = Threads()
        self.several = False
        self.noted: Place = ""  # where a work was noted that is now given to a stream again
        self.turn = 0  # of the last work that was given to any stream
        self._allocated: dict[int, int] = {}  # device -> the turn of the last work before an allocation there
        self._deferred: deque[Work] = deque()
        self._weight = 0  # bytes that those keep
        self._tried: Counter[tuple[str, ...]] = Counter()  # parties that have been run at once, how often

    # -- streams and events -------------------------------------------------------------------------------------------
    def stream(self, device: int, handle: int) -> Stream:
        """Return the stream of a handle; one that nobody has created here belongs to somebody else, and blocks."""
        if handle == PER_THREAD_HANDLE:
            handle = -threading.get_ident()  # each thread has its own
        elif handle == LEGACY_HANDLE:
            handle = LEGACY
        found = self.streams.get((device, handle))
        return found or self.create(device, handle, handle < NON_BLOCKING)

    def create(self, device: int, handle: int, blocking: bool = True, name: str = "") -> Stream:
        """Make a stream. blocking: it and the legacy default stream wait for each other."""
        name = "the host" if handle == HOST_ALONE else name
        if handle == LEGACY:
            name = "the default stream"
        elif name:
            self.several = True
        else:
            count = sum(other < 0 for _, other in self.streams) + 1
            name = f"the default stream of thread {count}" if handle < 0 else f"stream {self._others() + 1}"
            self.several = True
        made = self.streams[device, handle] = Stream(name, device, blocking, handle == LEGACY)
        return made

    def forget_stream(self, key: tuple[int, int]) -> bool:
        """Forget a stream that gets nothing more, by its device and handle, if the host has waited for all that it was
        given. Returns whether."""
        stream = self.streams.get(key)
        if stream is not None and stream.flying:
            return False
        self.streams.pop(key, None)
        return True

    def _others(self) -> int:
        return sum(0 < handle < BRANCHES for _, handle in self.streams)

    def new_event(self) -> Event:
        made = Event(f"event {next(self._numbers)}")
        self._known_events.add(made)
        return made

    def event(self, handle: object) -> Event:
        """Return the event of a handle."""
        found = self.events.get(handle)
        if found is None:
            found = self.events[handle] = self.new_event()
        return found

    def _behind(self, work: Work) -> Event | None:
        """Return an event that is recorded behind a work in its stream."""
        for event in sorted(self._known_events, key=lambda event: event.name):
            if event.recorded and event.recorded[0] is work.stream and event.recorded[1] >= work.number:
                return event
        return None

    def record(self, event: Event, stream: Stream) -> None:
        """The event stands for all that is in a stream by now."""
        self._catch_up(stream)
        if event.recorded is not None:
            event.before.append(event.recorded)
        event.recorded, event.knows = (stream, stream.number), stream.until_now()

    def wait(self, stream: Stream, event: Event) -> None:
        """What the stream does from now on comes after what an event stands for."""
        self._catch_up(stream)
        if event.recorded is not None:
            stream.waits.append((event, *event.recorded))
            learn(stream.knows, event.knows)
            stream.knows.pop(stream, None)

    def follow(self, stream: Stream, other: Stream) -> None:
        """What a stream does from now on comes after all that is in another one."""
        self._catch_up(other)
        if stream is not other:
            self._catch_up(stream)
            learn(stream.knows, other.until_now())
            stream.knows.pop(stream, None)

    def allocated(self, device: int) -> None:
        """Memory is allocated for all streams of a device: what an older guide has for an order, and is none."""
        self._allocated[device] = self.turn

    def synchronize(self, stream: Stream) -> None:
        """The host has waited for a stream."""
        self._catch_up(stream)
        self._tell_host(stream.until_now())

    def synchronize_device(self, device: int) -> None:
        """The host has waited for all streams of a device."""
        for stream in [*self.streams.values()]:
            if stream.device == device:
                self._tell_host(stream.until_now())

    def synchronize_event(self, event: Event) -> None:
        """The host has waited for what an event stands for, or has seen that it is done."""
        self._tell_host(event.knows)

    def tell_host(self, work: Work) -> None:
        """The host has heard from a work that has run."""
        self._tell_host(work.knows | {work.stream: work.number})

    def _tell_host(self, known: dict[Stream, int]) -> None:
        learn(self.host, known)
        for stream, number in known.items():
            while stream.flying and stream.flying[0].number <= number:
                stream.flying.popleft()

    def _catch_up(self, stream: Stream) -> None:
        """Let a stream know what its next work comes after, whatever it is: by the host, and by the default stream."""
        learn(stream.knows, self.host)
        if self.several:
            if stream.legacy:
                for other in self.streams.values():
                    if other.blocking and other is not stream and other.device == stream.device:
                        learn(stream.knows, other.until_now())
            elif stream.blocking and (legacy := self.streams.get((stream.device, LEGACY))) is not None:
                learn(stream.knows, legacy.until_now())
        stream.knows.pop(stream, None)

    # -- works ---------------------------------------------------------------------------------------------------------
    def begin(self, stream: Stream, what: str, frees: bool = False, of_now: bool = True) -> Work:
        """Give a stream something to do. what: names it. of_now: this thread does, and its call has not returned."""
        self._catch_up(stream)
        stream.number += 1
        self.turn += 1
        work = Work(stream, what, self.noted or calling_place(), frees)
        work.turn = self.turn
        if of_now:
            self.threads.begins(work)
        return work

    def end(self, work: Work) -> HostOrderFault | None:
        """It is known now what a work reads and writes. Returns the first of what contradicts another one's."""
        found = self._conflict(work) if len(self.streams) > 1 else None
        found = found or self._of_threads(work)
        if work.accesses or work.later is not None:
            work.stream.flying.append(work)
        if work.weight:
            self._deferred.append(work)
            self._weight += work.weight
            while self._weight > DEFERRED:
                dropped = self._deferred.popleft()
                self._weight -= dropped.weight
                dropped.later = dropped.given = None
        return found

    def _conflict(self, work: Work) -> HostOrderFault | None:
        chain, noted = chain_to(work), None
        for first, one in enumerate(chain[:-1]):
            for other in (other for other in self.unknown_to(work.knows, work.stream) if talk(one, other)):
                if (found := self._at_once("residency", self.crowd, other, *chain[first:])) is not None:
                    return found
        for other in self.unknown_to(work.knows, work.stream, work.span if work.given is None else ANYWHERE):
            pairs = itertools.product(work.all(), other.all())
            met = next(((a, b, at) for a, b in pairs if (at := a.against(b)) is not None), None)
            if met is None and (work.given is None or other.given is None):
                continue
            if other.turn <= self._allocated.get(work.stream.device, 0) and not other.of_old:
                if met is not None and noted is None:
                    noted = self._race(work, met[0], other, met[1], met[2], "allocation-between")
                continue
            if talk(work, other):
                if (found := self._at_once("stream-race", self.together, other, work)) is not None:
                    return found
            elif met is not None:
                return self._race(work, met[0], other, met[1], met[2])
            if (found := self._at_once("residency", self.starve, other, work)) is not None:
                return found
        return noted

    def _at_once(self, kind: str, ask: Callable, *works: Work) -> HostOrderFault | None:
        """Ask what comes of works that run at once, the last one given last. kind: what that is."""
        key, work = (kind, *(one.party for one in works)), works[-1]
        if any(one.given is None for one in works) or self._tried[key] >= TRIALS:
            return None
        self._tried[key] += 1
        found = ask(*works)
        if found is None:
            return None
        text = f"{' and '.join(map(str, works[::-1]))} may run at once, as nothing that {work.stream} has waited for "
        text += f"comes after that; {AT_ONCE[kind]}. So run, {found}"
        return HostOrderFault(kind, text, named(work.where), key[1:])

    def _of_threads(self, work: Work) -> HostOrderFault | None:
        met = self.threads.meets(work)
        if met is None:
            return None
        other, at, me, them = met
        region = next(access.region for access in work.all() if access.region.start <= at < access.region.end)
        text = f"{work.what}, which thread {me} gives to {work.stream}, touches {region.name} at byte "
        text += f"{at - region.start}, as does {other.what}, which thread {them} gives to {other.stream} "
        text += f"({named(other.where)}), and one of them writes: both threads are in their calls at once, so that "
        text += "which comes first is luck"
        return HostOrderFault("stream-race", text, named(work.where), parties(work, other))

    def unknown_to(
        self, knows: dict[Stream, int], by: Stream | None = None, near: tuple[int, int] = ANYWHERE
    ) -> Iterator[Work]:
        """Yield the works that need not have ended for somebody who knows that, and that touch something `near`. by:
        whose own come before, anyway."""
        for stream in self.streams.values():
            known = sys.maxsize if stream is by else knows.get(stream, 0)
            for work in stream.flying if known < stream.number else ():
                first, end = work._span or work.span
                if work.number > known and first < near[1] and near[0] < end:
                    yield work

    def _race(
        self, work: Work, mine: Access, other: Work, theirs: Access, at: int, note: str = ""
    ) -> HostOrderFault:
        does = "frees" if work.frees else "writes" if mine.writes else "reads"
        use = "free" if other.frees else "write" if theirs.writes else "read"
        text = f"{work.what} on {work.stream} {does} {theirs.region.name} at byte {at - theirs.region.start}, which "
        text += f"{other} may still {use}: nothing that {work.stream} has waited for comes after that"
        text += self._nearly(work.stream, other)
        if note:
            text += "; an allocation is between, which a driver of CUDA 13 lets nothing wait for"
        if other.of_old:
            text += f"; that is at {other.of_old}, which was freed without record_stream, and whose memory this may be"
        kind = "use-after-free" if work.frees or other.frees or other.of_old else "stream-race"
        return HostOrderFault(kind, text, named(work.where), parties(work, other), note)

    def _nearly(self, stream: Stream, other: Work) -> str:
        """Say what a stream has waited for that could be meant to come after a work, and does not."""
        for event, on, _ in reversed(stream.waits):
            if on is other.stream:
                return f"; {event}, for which it has waited, was recorded on {on} before that"
            if any(before is other.stream and until >= other.number for before, until in event.before):
                return f"; {event}, for which it has waited, was recorded behind that, but anew on {on} since"
        behind = self._behind(other)
        return f"; {behind} is recorded behind that, but {stream} has not waited for it" if behind else ""

    # -- memory that an allocator gives out again ----------------------------------------------------------------------
    def given_back(self, region: Region, stream: Stream) -> None:
        """An allocator has a region again, for who allocates next in that stream, whatever others still do there."""
        self._catch_up(stream)
        for work in self.unknown_to(stream.knows):
            touched = [access for access in work.all() if access.region is region]
            if touched and work.stream is not stream:
                self._ghosts.append(Ghost(region, stream, work, touched))

    def taken(self, region: Region, stream: Stream) -> None:
        """An allocator gives a region to a stream: it may be one that it had back, of at least that size."""
        if not self._ghosts:
            return
        self._catch_up(stream)
        self._ghosts = [g for g in self._ghosts if g.work.number > g.stream.knows.get(g.work.stream, 0)]
        fitting = [ghost for ghost in self._ghosts if ghost.stream is stream and ghost.region.size >= region.size]
        if not fitting:
            return
        best = min(fitting, key=lambda ghost: ghost.region.size).region
        for ghost in [ghost for ghost in fitting if ghost.region is best]:
            self._ghosts.remove(ghost)
            work = Work(ghost.work.stream, ghost.work.what, ghost.work.where, False)
            work.number, work.of_old = ghost.work.number, best.name
            by = region.start - best.start
            for access in ghost.accesses:
                runs = None if access.runs is None else access.runs + by
                moved = access._replace(first=access.first + by, end=access.end + by, region=region, runs=runs)
                work.accesses.append(moved)
            ghost.work.stream.flying.append(work)

    # -- the host ------------------------------------------------------------------------------------------------------
    def touch(self, address: int, writes: bool, where: Place = "") -> HostOrderFault | None:
        """The host reads or writes a byte that devices can access. Returns what contradicts that."""
        for work in self.unknown_to(self.host):
            for access in work.all():
                region = access.region
                if not access.shared or region.freed or not (writes or access.writes) or not access.has(address):
                    continue
                use = "write" if access.writes else "read"
                text = f"the host {'writes' if writes else 'reads'} {region.name} at byte {address - region.start}"
                text += f", which {work} may still {use}: nothing that the host has waited for comes after that"
                text += self._not_awaited(work)
                return HostOrderFault("read-before-sync", text, named(where), (*parties(work, None), named(where)))
        return None

    def _not_awaited(self, work: Work) -> str:
        event = self._behind(work)
        return f"; {event} is recorded behind that, but the host has not waited for it" if event else ""

    def exposed(self) -> list[Access]:
        """Return what works that the host has not waited for do to memory that it can touch."""
        works = self.unknown_to(self.host) if self.shares else ()
        return [access for work in works for access in work.all() if access.shared and not access.region.freed]


def chain_to(work: Work) -> list[Work]:
    """Return works of a stream up to this one, of which each may begin before the one ahead has ended (PDL)."""
    chain = [work]
    for ahead in reversed(work.stream.flying):
        after = chain[0].given
        if after is None or not after.pdl or ahead.number != chain[0].number - 1:
            break
        if ahead.given is None or not ahead.given.lets_go:
            break
        chain.insert(0, ahead)
        if ahead.given.waits_first:
            break
    return chain


def talk(one: Work, other: Work) -> bool:
    """Return whether one may have waited for the other by a flag: both access a word by strong operations."""
    strong = [[access for access in work.all() if access.strong] for work in (one, other)]
    return any(a.writes | b.writes and a.common(b) is not None for a in strong[0] for b in strong[1])


def parties(work: Work, other: Work | None) -> tuple[str, ...]:
    """Return what is alike for findings of one mistake."""
    return tuple(sorted(one.party for one in (work, other) if one is not None))


def runs_of(words: np.ndarray, origin: int, word: int, first: int, end: int) -> np.ndarray | None:
    """Return the ranges of bytes, int64 [n, 2], of the words that are marked, bool; None if there are none.

    origin: the address of the first word; word: bytes of one; [first, end): where all of them lie.
    """
    packed = words[: len(words) // 8 * 8].view(np.uint64)
    some = np.flatnonzero(packed)
    tail = np.flatnonzero(words[len(packed) * 8 :])
    if not len(some) and not len(tail):
        return None
    low = int(some[0]) * 8 if len(some) else len(packed) * 8
    high = len(words) if len(tail) else int(some[-1]) * 8 + 8
    part = words[low:high]
    begins, ends = [low] * bool(part[0]), [high] * bool(part[-1])
    edges = np.concatenate((begins, np.flatnonzero(part[1:] != part[:-1]) + (low + 1), ends))
    if len(edges) > 2 * RUNS:  # too finely spread to be held against others
        return None
    runs = edges.astype(np.int64).reshape(-1, 2) * word + origin
    runs[0, 0], runs[-1, 1] = max(runs[0, 0], first), min(runs[-1, 1], end)
    return runs
