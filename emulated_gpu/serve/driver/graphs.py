"""CUDA graphs: works that are noted instead of done, and given to streams again and again.

A work is an entry: what it is, what with, and the stream that it was noted for. A replay gives the works of one such
stream to one of its own, so that branches of a graph are held against each other (state/host_order.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from ...device import DEVICE
from ...errors import Unsupported
from ...machine.hosts import Capture
from ...state import host_order

_branches = itertools.count(host_order.BRANCHES)  # handles of streams that a replay has
STREAM_OF_NODES = -(1 << 40)  # numbers of streams that nodes have until they are replayed


class Replays:
    """Entries to be repeated, and where each was noted. origin: the stream that they were noted on, None if each
    stream is a branch."""

    def __init__(self, entries: Iterable[tuple], places: Iterable[str | int], origin: int | None):
        self.entries, self.places, self.origin = [*entries], [*places], origin
        self.grids: dict[int, int] = {}  # %gridid of each launch
        self.branches: list[tuple[int, int]] = []  # streams of earlier replays

    def replay(self, stream: int) -> None:
        """Do all again: on a stream, and beside it on streams that only this replay has."""
        order, device = DEVICE.order, DEVICE.index
        began = order.stream(device, stream)
        self.branches = [key for key in self.branches if not order.forget_stream(key)]
        handles = {} if self.origin is None else {self.origin: stream}
        events: dict[object, host_order.Event] = {}
        for *_, noted in self.entries:  # all of them branch off here, whatever comes first
            if noted not in handles:
                handles[noted] = handle = next(_branches)
                self.branches.append((device, handle))
                branch = order.create(device, handle, False, f"branch {len(handles) - 1} of a graph")
                order.follow(branch, began)
        for i, ((what, with_, *rest), order.noted) in enumerate(zip(self.entries, self.places, strict=True)):
            handle = handles[rest[-1]]
            branch = order.stream(device, handle)
            if what == "launch":
                grid = self.grids.setdefault(i, DEVICE.session.launches + 1)  # the same in each replay
                DEVICE.launch(*with_, **rest[0] | {"stream": handle, "grid_id": grid})
            elif what == "do":
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


def put_off(stream: int, work: Callable[[int], None]) -> bool:
    """Note a work, called with a stream, if what its stream is given is captured. Returns whether it is."""
    capture = DEVICE.capture
    if capture is None or not capture.takes(stream):
        return False
    capture.note("do", work, stream)
    return True


def begin(stream: int) -> None:
    """Capture what a stream is given, and those that wait for it."""
    if DEVICE.capture is not None:
        raise Unsupported("a second capture of a stream at a time")
    DEVICE.capture = Capture({stream})


def end(stream: int) -> Graph:
    """Return what has been captured since `begin`."""
    captured, DEVICE.capture = DEVICE.capture, None
    if captured is None:
        raise Unsupported("the end of a capture that has not begun")
    made = Graph()
    made.captured = Replays(captured, captured.places, stream)
    return made


class Node:
    """A node of a graph. entry: its work and what with, None for nothing to do; place: where it was made."""

    def __init__(self, entry: tuple | None, after: list[Node], place: str | int = ""):
        self.entry, self.after, self.place = entry, after, place


class Graph:
    """Nodes and what comes after what; or what has been captured."""

    def __init__(self):
        self.nodes: list[Node] = []
        self.captured: Replays | None = None

    def add(self, after: list[Node], entry: tuple | None, place: str | int = "") -> Node:
        node = Node(entry, [*after], place)
        self.nodes.append(node)
        return node

    def add_noted(self, after: list[Node], work: Callable[[], None]) -> Node:
        """Add a node that does what a call would, which is made here and noted."""
        before, noted = DEVICE.capture, Capture(None)
        DEVICE.capture = noted
        try:
            work()
        finally:
            DEVICE.capture = before
        return self.add(after, noted[0][:-1], noted.places[0])

    def instantiate(self) -> Replays:
        """Return its works in an order in which they can be done. Nodes in a row share a stream."""
        if self.captured is not None:
            return Replays(self.captured.entries, self.captured.places, self.captured.origin)
        entries: list[tuple] = []
        places: list[str | int] = []
        streams: dict[Node, int] = {}
        last: dict[int, Node] = {}  # of each stream
        numbers = itertools.count(STREAM_OF_NODES)
        left = [*self.nodes]
        while left:
            ready = next((node for node in left if all(other in streams for other in node.after)), None)
            if ready is None:
                raise Unsupported("a graph whose nodes wait for each other in a circle")
            left.remove(ready)
            free = [streams[other] for other in ready.after if last[streams[other]] is other]
            stream = streams[ready] = free[0] if free else next(numbers)
            last[stream] = ready
            entries += [("after", streams[other], stream) for other in ready.after if streams[other] != stream]
            if ready.entry is not None:
                entries.append((*ready.entry, stream))
            places += [ready.place] * (len(entries) - len(places))
        return Replays(entries, places, None)
