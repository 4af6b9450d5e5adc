"""CUDA graphs: works that are noted instead of done, and given to streams again and again.

A work is an entry: what it is, what with, and the stream that it was noted for. A replay gives the works of one such
stream to one of its own, so that branches of a graph are held against each other (state/host_order.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from ...device import DEVICE
from ...errors import Unsupported, WrongCall
from ...machine.hosts import LEGACY, Capture
from ...state.host_order import BRANCHES, Event, Place

# CUgraphNodeType
KERNEL, COPY, FILL, HOST_CALL, CHILD, EMPTY, WAIT, RECORD, ALLOCATE, FREE = 0, 1, 2, 3, 4, 5, 6, 7, 10, 11
# cudaErrorStreamCapture*
ILLEGAL_STATE, UNSUPPORTED, INVALIDATED, UNMATCHED, UNJOINED, CAPTURED_EVENT = 401, 900, 901, 903, 904, 907
BETWEEN = "record", "wait", "memory"  # what is no node
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED

_branches = itertools.count(BRANCHES)  # handles of streams that a replay has
STREAM_OF_NODES = -(1 << 40)  # numbers of streams that nodes have until they are replayed


class Replays:
    """Entries to be repeated, and where each was noted. origin: the stream that they were noted on, None if each
    stream is a branch."""

    def __init__(self, entries: Iterable[tuple], places: Iterable[Place], origin: int | None):
        self.entries, self.places, self.origin = [*entries], [*places], origin
        self.nodes: dict[Node, int] = {}  # which entry is whose
        self.off: set[int] = set()  # entries that are left out
        self.grids: dict[int, int] = {}  # %gridid of each launch
        self.branches: list[tuple[int, int]] = []  # streams of earlier replays
        self.done = Event("the replay before")

    def replay(self, stream: int) -> None:
        """Do all again: on a stream, and beside it on streams that only this replay has. It comes behind the replay
        before, on whichever stream that is (runtime API, cudaGraphLaunch)."""
        order, device = DEVICE.order, DEVICE.index
        began = order.stream(device, stream)
        order.wait(began, self.done)
        self.branches = [key for key in self.branches if not order.forget_stream(key)]
        handles = {} if self.origin is None else {self.origin: stream}
        events: dict[object, Event] = {}
        for *_, noted in self.entries:  # all of them branch off here, whatever comes first
            if noted not in handles:
                handles[noted] = handle = next(_branches)
                self.branches.append((device, handle))
                branch = order.create(device, handle, False, f"branch {len(handles) - 1} of a graph")
                order.follow(branch, began)
        for i, ((what, with_, *rest), order.noted) in enumerate(zip(self.entries, self.places, strict=True)):
            if i in self.off:
                continue
            handle = handles[rest[-1]]
            branch = order.stream(device, handle)
            if what == "launch":
                grid = self.grids.setdefault(i, DEVICE.session.launches + 1)  # the same in each replay
                DEVICE.launch(*with_, **rest[0] | {"stream": handle, "grid_id": grid})
            elif what in ("do", "memory"):
                with_(handle)
            elif what == "after":
                order.follow(branch, order.stream(device, handles[with_]))
            elif what == "record":
                order.record(events.setdefault(with_, order.new_event()), branch)
            else:
                order.wait(branch, events.setdefault(with_, order.new_event()))
        order.noted = ""
        for handle in handles.values():
            order.follow(began, order.stream(device, handle))
        order.record(self.done, began)


def put_off(stream: int, work: Callable[[int], object], kind: int, waits: bool = False) -> bool:
    """Note a work, called with a stream, if what its stream is given is captured. Returns whether it is.

    kind: of its node. waits: whether the host would wait for it, for which WrongCall is raised.
    """
    capture = DEVICE.capture
    if capture is None or not capture.takes(stream):
        return False
    if waits:
        refuse_wait("a call that waits for it", stream)
    capture.note("do", work, kind, stream)
    return True


def refuse_wait(what: str, stream: int | None = None) -> None:
    """Raise WrongCall for a wait of the host's for a stream or for the device, None, while a stream is captured."""
    capture = DEVICE.capture
    if capture is None or capture.streams is None:
        return
    if stream is None or not capture.relaxed or capture.takes(stream):
        capture.failed = True
        raise WrongCall(f"{what} while a stream is captured", UNSUPPORTED)


def refuse_wait_for_event(event: object, recorded: bool) -> None:
    """Raise WrongCall for a host's wait for an event while a stream is captured. recorded: whether it ever was."""
    capture = DEVICE.capture
    if capture is not None and event in capture.events:
        capture.failed = True
        raise WrongCall("a wait for an event that a captured stream has recorded", CAPTURED_EVENT)
    if recorded and capture is not None and not capture.relaxed:
        refuse_wait("a wait for an event")


def begin_capture(stream: int, mode: int = 0) -> None:
    """Capture what a stream is given, and those that wait for it. mode: a CUstreamCaptureMode."""
    if stream in LEGACY:
        raise WrongCall("a capture of the default stream", UNSUPPORTED)
    if DEVICE.capture is not None and DEVICE.capture.takes(stream):
        raise WrongCall("a capture of a stream that is captured", ILLEGAL_STATE)
    if DEVICE.capture is not None:
        raise Unsupported("a second capture of a stream at a time")
    if DEVICE.allocator is not None:
        DEVICE.allocator.capture(True)
    blocks = lambda handle: DEVICE.order.stream(DEVICE.index, handle).blocking  # noqa: E731
    DEVICE.capture = Capture({stream}, blocks, mode == RELAXED)


def end(stream: int) -> Graph:
    """Return what has been captured since `begin`. Raises WrongCall for a capture that has failed, or that a stream
    belongs to for which this one does not wait."""
    captured, DEVICE.capture = DEVICE.capture, None
    if captured is None:
        raise Unsupported("the end of a capture that has not begun")
    if DEVICE.allocator is not None:
        DEVICE.allocator.capture(False)
    if captured.failed:
        raise WrongCall("the end of a capture that has failed", INVALIDATED)
    made = Graph(Replays(captured, captured.places, stream))
    if captured.streams is not None and made.unjoined(stream):
        raise WrongCall("the end of a capture that another stream belongs to, for which nothing waits", UNJOINED)
    return made


class Node:
    """A node of a graph. entry: its work and what with; place: where it was made.

    kind: a CUgraphNodeType. given: what a program has made it of: the parameters as they lie in memory, a graph.
    """

    def __init__(
        self, entry: tuple, after: Iterable[Node], kind: int = KERNEL, place: Place = "", given: object = None
    ):
        self.entry, self.after, self.kind, self.place, self.given = entry, [*dict.fromkeys(after)], kind, place, given


def noted(work: Callable[[], None]) -> tuple[tuple, Place]:
    """Return the entry of a call, made here and noted alone, without its stream; and where it was noted."""
    before, alone = DEVICE.capture, Capture(None)
    DEVICE.capture = alone
    try:
        work()
    finally:
        DEVICE.capture = before
    return alone[0][:-1], alone.places[0]


class Graph:
    """Nodes and what comes after what. captured: what it was, until somebody asks for its nodes."""

    def __init__(self, captured: Replays | None = None):
        self.captured = captured
        self._nodes, self._ends = nodes_of(captured) if captured is not None else ([], {})

    @property
    def nodes(self) -> list[Node]:
        self.captured = None
        return self._nodes

    def unjoined(self, stream: int) -> bool:
        """Return whether there is a captured node for which nothing waits that its origin, a stream, has waited for."""
        joined, left = set[Node](), list(self._ends.get(stream, ()))
        while left:
            node = left.pop()
            if node not in joined:
                joined.add(node)
                left += node.after
        return len(joined) < len(self._nodes)

    def instantiate(self) -> Replays:
        """Return its works in an order in which they can be done. Nodes in a row share a stream."""
        if self.captured is not None:
            made = Replays(self.captured.entries, self.captured.places, self.captured.origin)
            made.nodes = dict(zip(self._nodes, (i for i, one in enumerate(made.entries) if one[0] not in BETWEEN)))
            return made
        entries: list[tuple] = []
        places: list[Place] = []
        streams, last = dict[Node, int](), dict[int, Node]()  # of each node; the last node of each
        numbers = itertools.count(STREAM_OF_NODES)
        at: dict[Node, int] = {}
        for node in self.in_order():
            free = [streams[other] for other in node.after if last[streams[other]] is other]
            stream = streams[node] = free[0] if free else next(numbers)
            last[stream] = node
            entries += [("after", streams[other], stream) for other in node.after if streams[other] != stream]
            at[node] = len(entries)
            entries.append((*node.entry, stream))
            places += [node.place] * (len(entries) - len(places))
        made = Replays(entries, places, None)
        made.nodes = at
        return made

    def in_order(self) -> list[Node]:
        """Return the nodes, each behind those that it waits for. Raises WrongCall if they wait for each other."""
        done: dict[Node, None] = {}
        left = [*self.nodes]
        while left:
            ready = next((node for node in left if all(other in done for other in node.after)), None)
            if ready is None:
                raise WrongCall("a graph whose nodes wait for each other in a circle")
            left.remove(ready)
            done[ready] = None
        return [*done]


def nodes_of(captured: Replays) -> tuple[list[Node], dict[int, list[Node]]]:
    """Return what was captured as nodes, and of each stream those that come before what it would be given next."""
    nodes: list[Node] = []
    ends: dict[int, list[Node]] = {}
    events: dict[object, list[Node]] = {}
    for (what, with_, *rest), place in zip(captured.entries, captured.places, strict=True):
        stream = rest[-1]
        before = ends.setdefault(stream, [])
        if what == "record":
            events[with_] = before
        elif what == "wait":
            ends[stream] = [*before, *events.get(with_, ())]
        elif what not in BETWEEN:
            kind = rest[0] if what == "do" else KERNEL
            nodes.append(Node((what, with_, *rest[:-1]), before, kind, place))
            ends[stream] = nodes[-1:]
    return nodes, ends
