"""What shadows of memory ask most, as machine code: whether a warp knows all events of some places, and notes of reads.

A yes is certain, and the answer to nearly all questions. Where it is no, state/shadow.py asks again, in Python, and
finds out what is wrong, if anything is.
"""

from __future__ import annotations

import functools

import numpy as np

from .llvm import compiler
from .rules import Function, int8, int32, int64, pointer, rule

COLD = 5000  # questions of a process before machine code pays
EXCEPTIONS = 2  # components of which later events count as known, too
NO_EXCEPTIONS = [-1, 0] * EXCEPTIONS  # of no component
KEPT = 8192  # arrays of places whose addresses are known
MOST = 2**31  # of which all components are below


@rule
def place(index, first, turn):
    """What turn `turn` is about: an entry of `index`, or the place this many from `first` on."""
    if index == 0:
        return first + turn
    return int64(index)[turn]


@rule
def knows(events, rows, row_size, index, first, count, component, space, marks, clock, width, own, limit, mask, wanted,
          but0, until0, but1, until1):  # fmt: skip
    """Whether the events of all places, in each of some rows, have happened before or do not matter.

    Ignore an event if its component is > `limit`, if `marks & mask == wanted`, or if it is not after an exception's
    `until`. False for one of another cluster, of which a clock says nothing.
    """
    last = 0
    for row in range(rows):
        for turn in range(count):
            event = int32(events)[row * row_size + place(index, first, turn)]
            if event == 0 or event == last:  # who writes or reads, does so in many places
                continue
            last = event
            of = int32(component)[event]
            if int8(marks)[event] & mask == wanted or of > limit:
                continue
            here = int32(space)[event] == own
            if here and (of == but0 and event <= until0 or of == but1 and event <= until1):
                continue
            if not here or of >= width or event > int32(clock)[of]:
                return False
    return True


@rule
def note(reads, slots, row_size, index, first, count, number, component, space, clock, width, own, key):
    """An event reads places: it takes the first slot of each that is empty, whose event is of component `key`, or that
    a clock knows, if there is one. False where none is."""
    for turn in range(count):
        found, where = False, place(index, first, turn)
        for slot in range(slots):
            at = slot * row_size + where
            event = int32(reads)[at]
            if event:
                of = int32(component)[event]
                here = int32(space)[event] == own
                if clock:
                    if not here or of >= width:
                        return False
                    if event > int32(clock)[of]:
                        continue
                elif not here or of != key:
                    continue
            int32(reads)[at] = number
            found = True
            break
        if not found:
            return False
    return True


class Happened:
    """Asks about the events of one order of events after another. See state/shadow.py for planes, actors and keys."""

    def __init__(self):
        self.knows, self.note = Function(knows), Function(note)
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
