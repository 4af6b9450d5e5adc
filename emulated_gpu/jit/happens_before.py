"""What shadows of memory ask most, as machine code: whether a warp knows all events of some places, and notes of reads.

A yes is certain, and the answer to nearly all questions. Where it is no, state/shadow.py asks again, in Python, and
finds out what is wrong, if anything is.
"""

from __future__ import annotations

import functools

import numpy as np

from .llvm import compiler
from .loops import Function, Text, pointer

COLD = 5000  # questions of a process before machine code pays
EXCEPTIONS = 2  # components of which later events count as known, too
NO_EXCEPTIONS = [-1, 0] * EXCEPTIONS  # of no component
KEPT = 8192  # arrays of places whose addresses are known
MOST = 2**31  # of which all components are below


def _place(t: Text, turn: str) -> str:
    """The place that turn `turn` is about: an entry of `index`, or so many from `first` on."""
    listed, counted, on = (t.name(what) for what in ("listed", "counted", "on"))
    given = t.let(f"icmp ne i64 {t['index']}, 0")
    t.emit(f"br i1 {given}, label %{listed}, label %{counted}")
    t.label(listed)
    entry = t.load("i64", t["index"], turn)
    t.jump(on)
    t.label(counted)
    number = t.number("add", t["first"], turn)
    t.jump(on)
    t.label(on)
    return t.let(f"phi i64 [{entry}, %{listed}], [{number}, %{counted}]")


def _wide(t: Text, base: str, index: str) -> str:
    """An int32 of an array, in 64 bits."""
    return t.let(f"sext i32 {t.load('i32', base, index)} to i64")


def _known(t: Text, event: str, component: str, here: str) -> str:
    """Whether an event has happened before, by a clock. Returns 0 from the function for one of another cluster."""
    inside = t.let(f"icmp ult i64 {component}, {t['width']}")
    t.return_if(t.let(f"xor i1 {t.let(f'and i1 {here}, {inside}')}, true"), "0")
    return t.let(f"icmp sle i64 {event}, {_wide(t, t['clock'], component)}")


def _knows() -> Function:
    """Returns 1 if the events of all places, in each of some rows, have happened before or do not matter.

    Ignore an event if its component is >= `limit`, if `marks & mask == wanted`, or if it is not after an exception's
    `until`.
    """
    exceptions = " ".join(f"but{i} until{i}" for i in range(EXCEPTIONS))
    t = Text(
        f"events rows row_size index first count component space marks clock width own limit mask wanted {exceptions}"
    )
    last = t.variable("i64", "0")
    with t.loop(t["rows"]) as row, t.loop(t["count"]) as turn:
        event = _wide(t, t["events"], t.number("add", t.number("mul", row, t["row_size"]), _place(t, turn)))
        look, ask, on = t.name("look"), t.name("ask"), t.name("on")
        before = t.let(f"load i64, ptr {last}")  # who writes or reads, does so in many places
        seen = t.let(f"or i1 {t.let(f'icmp eq i64 {event}, 0')}, {t.let(f'icmp eq i64 {event}, {before}')}")
        t.emit(f"br i1 {seen}, label %{on}, label %{look}")
        t.label(look)
        t.emit(f"store i64 {event}, ptr {last}")
        component = _wide(t, t["component"], event)
        marks = t.let(f"zext i8 {t.load('i8', t['marks'], event)} to i64")
        free = t.let(f"icmp eq i64 {t.number('and', marks, t['mask'])}, {t['wanted']}")
        above = t.let(f"icmp sgt i64 {component}, {t['limit']}")
        free = t.let(f"or i1 {free}, {above}")
        here = t.let(f"icmp eq i64 {_wide(t, t['space'], event)}, {t['own']}")
        for i in range(EXCEPTIONS):
            excepted = t.let(f"icmp eq i64 {component}, {t[f'but{i}']}")
            excepted = t.let(f"and i1 {here}, {excepted}")
            early = t.let(f"icmp sle i64 {event}, {t[f'until{i}']}")
            free = t.let(f"or i1 {free}, {t.let(f'and i1 {excepted}, {early}')}")
        t.emit(f"br i1 {free}, label %{on}, label %{ask}")
        t.label(ask)
        t.return_if(t.let(f"xor i1 {_known(t, event, component, here)}, true"), "0")
        t.jump(on)
        t.label(on)
    return Function(t, "1")


def _note() -> Function:
    """An event reads places: it takes the first slot of each that is empty, whose event is of component `key`, or that
    a clock knows, if there is one. Returns 0 where none is."""
    t = Text("reads slots row_size index first count number component space clock width own key")
    with t.loop(t["count"]) as turn:
        place, done = _place(t, turn), t.name("done")
        with t.loop(t["slots"]) as slot:
            at = t.number("add", t.number("mul", slot, t["row_size"]), place)
            event = _wide(t, t["reads"], at)
            take, look, ask, mine, further = (t.name(what) for what in ("take", "look", "ask", "mine", "further"))
            t.emit(f"br i1 {t.let(f'icmp eq i64 {event}, 0')}, label %{take}, label %{look}")
            t.label(look)
            component = _wide(t, t["component"], event)
            here = t.let(f"icmp eq i64 {_wide(t, t['space'], event)}, {t['own']}")
            clocked = t.let(f"icmp ne i64 {t['clock']}, 0")
            t.emit(f"br i1 {clocked}, label %{ask}, label %{mine}")
            t.label(ask)
            t.emit(f"br i1 {_known(t, event, component, here)}, label %{take}, label %{further}")
            t.label(mine)
            same = t.let(f"icmp eq i64 {component}, {t['key']}")
            t.emit(f"br i1 {t.let(f'and i1 {same}, {here}')}, label %{take}, label %{further}")
            t.label(take)
            t.store("i32", t.let(f"trunc i64 {t['number']} to i32"), t["reads"], at)
            t.jump(done)
            t.label(further)
        t.emit("ret i64 0")
        t.label(done)
    return Function(t, "1")


class Happened:
    """Asks about the events of one order of events after another. See state/shadow.py for planes, actors and keys."""

    def __init__(self):
        self.knows, self.note = _knows(), _note()
        self.known: dict[int, tuple[np.ndarray, tuple[int, int, int]]] = {}  # by id of an array, which is kept
        # The components of an order of events; the addresses of those, of its spaces and its marks
        self.latest: tuple[np.ndarray | None, tuple[int, ...]] = None, ()

    def order(self, order) -> tuple[int, int, int]:
        component, addresses = self.latest
        if component is not order.component:
            component, addresses = order.component, (*map(pointer, (order.component, order.space, order.marks)),)
            self.latest = component, addresses
        return addresses

    def all_known(self, rows, index, by, row: int, but, limit: int = MOST, mask: int = 0) -> bool:
        """Whether an actor certainly knows all events of some places, but for those of components above `limit`, those
        without a mark of `mask`, and those that `but` excepts.

        rows: (address, how many, their length) of int32 arrays of events by place.
        """
        address, first, count = where = self.where(index)
        if not count:
            return address >= 0
        exceptions = NO_EXCEPTIONS
        if but:
            exceptions = [n for key, until in but.items() if key[0] is by.space for n in (key[1], until)]
            if len(exceptions) > len(NO_EXCEPTIONS):
                return False
            exceptions += NO_EXCEPTIONS[len(exceptions) :]
        clock, row_bytes, width = by.knowledge.address()
        of_clock = clock + row * row_bytes, width, by.space.index
        return self.knows(*rows, *where, *self.order(by.order), *of_clock, limit, mask, not mask, *exceptions) == 1

    def note_read(self, rows, index, key, number: int, order, by) -> bool:
        """Note an event of a component, or of the actor itself, in a slot of each place; False if that has no room, or
        only Python can tell. What has been noted is noted again, then."""
        address, first, count = where = self.where(index)
        if not count:
            return address >= 0
        clock, _, width = (0, 0, 0) if by is None else by.knowledge.address()
        component, space, _ = self.order(order)
        return self.note(*rows, *where, number, component, space, clock, width, key[0].index, key[1]) == 1

    def where(self, index) -> tuple[int, int, int]:
        """The address of an index's places, or 0 and the first; how many. Of an array that it does not understand, an
        address below 0 and none."""
        if type(index) is slice:
            return 0, index.start, index.stop - index.start
        found = self.known.get(id(index))
        if found is not None:
            return found[1]
        if index.dtype != np.int64 or not index.flags.c_contiguous:
            return -1, 0, 0
        found = pointer(index), 0, index.size
        if not index.flags.writeable:  # one of those that others keep, too
            if len(self.known) == KEPT:
                self.known.clear()
            self.known[id(index)] = index, found
        return found


_cold = COLD


def happened() -> Happened | None:
    """The process's functions; None for its first questions, and without llvmlite."""
    global _cold
    if _cold:
        _cold -= 1
        return None
    return _functions()


@functools.cache
def _functions() -> Happened | None:
    return Happened() if compiler() else None
