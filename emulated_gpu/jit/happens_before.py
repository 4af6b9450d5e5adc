"""What shadows of memory ask most, as machine code: whether a warp knows all events of some places, and notes of reads.

A yes is certain, and the answer to nearly all questions. Where it is no, state/shadow.py asks again, in Python, and
finds out what is wrong, if anything is.
"""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple

import numpy as np

from .rules import Array, int8, int32, int64, pointer, rule, where

NO_EXCEPTIONS = [-1, 0] * 2  # a component of which later events count as known, too, and up to which; here of none
KEPT = 8192  # arrays of places whose addresses are known
MOST = 2**31  # of which all components are below
NOWHERE = 1 << 63

# What rules are told of who asks, int64s: of events, by number, arrays of the component, the space, the marks; its own
# space, the clock of that, how many components are in it; of other spaces, by index, the clock and how many components;
# how many such spaces; its row that counts; with several devices, those of spaces and the past of each, see Order
COMPONENT, SPACE, MARKS, OWN_SPACE, CLOCK, WIDTH, ELSEWHERE, SPACES, ROW, DEVICES, UNTIL = range(11)
ASKER = 11


# -- rules, for native/access.py, too; c is an array of what is told above ---------------------------------------------
@rule
def known(c, number):
    """Whether an event has happened before what the asker does now."""
    if number == 0:
        return True
    space, component = int32(c[SPACE])[number], int32(c[COMPONENT])[number]
    if space == c[OWN_SPACE]:
        return component < c[WIDTH] and number <= int32(c[CLOCK])[c[ROW] * c[WIDTH] + component]
    if c[UNTIL] and number <= int32(c[UNTIL])[int32(c[DEVICES])[space]]:
        return True
    if space >= c[SPACES]:
        return False
    clock, width = int64(c[ELSEWHERE])[2 * space], int64(c[ELSEWHERE])[2 * space + 1]
    return component < width and number <= int32(clock)[c[ROW] * width + component]


@rule
def is_of(c, number, component):
    """Whether an event is of a component of the asker's own space."""
    return int32(c[SPACE])[number] == c[OWN_SPACE] and int32(c[COMPONENT])[number] == component


class Plane(NamedTuple):
    """Of state/shadow.py: arrays of the last write of each place, and of reads by slot and place; how many of those;
    the address of what is beneath strong writes, or 0."""

    written: Array
    reads: Array
    slots: int
    places: int
    beneath: int = 0


@rule
def slot_of(c, plane, place, n, component):
    """Where a read of n places is kept: in the first slot that is empty, or of a component, or, where that is MOST,
    whose read has happened before. It is one read in all of them in the slots before, too, else this is NOWHERE."""
    for k in range(plane.slots):
        at = k * plane.places + place
        read = plane.reads[at : at + n]
        if (read != read[0]).any():
            return NOWHERE
        if read[0] == 0 or component != MOST and is_of(c, read[0], component):
            return at
        if component == MOST and known(c, read[0]):
            return at
    return NOWHERE


@rule
def entry_at(index, first, turn):
    """What turn `turn` is about: an entry of `index`, or the place this many from `first` on."""
    if index == 0:
        return first + turn
    return int64(index)[turn]


@rule
def knows(asker, events, rows, row_size, index, first, count, limit, mask, marked, other, but0, until0, but1, until1):
    """Whether the events of all places, in each of some rows, have happened before or do not matter.

    marked: the asker's row that counts for events with a mark of `mask`; other: that for others, or MOST to ignore
    them. Ignore an event if its component is > `limit`, or if it is not after an exception's `until`.
    """
    c, last = int64(asker), 0
    for row in range(rows):
        for turn in range(count):
            event = int32(events)[row * row_size + entry_at(index, first, turn)]
            if event != last:  # who writes or reads, does so in many places
                c[ROW] = where(int8(c[MARKS])[event] & mask != 0, marked, other)
                matters = c[ROW] != MOST and int32(c[COMPONENT])[event] <= limit
                excepted = is_of(c, event, but0) and event <= until0 or is_of(c, event, but1) and event <= until1
                if matters and not excepted and not known(c, event):
                    return False
                last = event
    return True


@rule
def note_reads(asker, reads, slots, row_size, index, first, count, number, component):
    """An event reads places, as slot_of says. False where there is no room."""
    plane = Plane(int32(0), int32(reads), slots, row_size)  # nobody asks who has written
    for turn in range(count):
        at = slot_of(int64(asker), plane, entry_at(index, first, turn), 1, component)
        if at == NOWHERE:
            return False
        int32(reads)[at] = number
    return True


def told(order, space, by, row: int) -> tuple[tuple[int, ...], tuple[np.ndarray, np.ndarray] | None]:
    """What rules are told of who asks: an actor with a row of its clocks, or None for who knows nothing of a space; and
    arrays that this points to, which are to live as long."""
    known = (0, 0, 0, 0) if by is None else by.knowledge.address()
    past = None if by is None or not order.histories else (order.devices_by_space(), by.history(row))
    return (*order.addresses, space.index, *known, row, *((0, 0) if past is None else map(pointer, past))), past


class Happened:
    """Asks about the events of one order of events after another. See state/shadow.py for planes, actors and keys."""

    def __init__(self):
        self.knows, self.note_reads = knows.compiled, note_reads.compiled
        self.known: dict[int, tuple[np.ndarray, tuple[int, int, int]]] = {}  # by id of an array, which is kept
        self.asker = np.zeros(ASKER, np.int64)
        self.asker_at, self.pack = pointer(self.asker), struct.Struct(f"<{ASKER}q").pack_into
        self.past: tuple[np.ndarray, np.ndarray] | None = None  # which `asker` points to

    def asks(self, order, space, by, row: int) -> int:
        """Write who asks; returns where that is."""
        numbers, self.past = told(order, space, by, row)
        self.pack(self.asker, 0, *numbers)
        return self.asker_at

    def all_known(self, rows, index, by, row: int, but, limit: int = MOST, mask: int = 0, other: int = 0) -> bool:
        """Whether an actor certainly knows all events of some places by its row, but for those of components above
        `limit` and those that `but` excepts. mask: those without one of these marks by the row `other`, or MOST.

        rows: (address, how many, their length) of int32 arrays of events by place.
        """
        exceptions = NO_EXCEPTIONS
        if but:
            exceptions = [n for key, until in but.items() if key[0] is by.space for n in (key[1], until)]
            exceptions += NO_EXCEPTIONS[len(exceptions) :]
            if len(exceptions) > len(NO_EXCEPTIONS):
                return False
        asker = self.asks(by.order, by.space, by, row)
        return self.knows(asker, *rows, *self.where(index), limit, mask, row, other if mask else row, *exceptions) == 1

    def note_read(self, rows, index, key, number: int, order, by) -> bool:
        """Note an event of a component, or of the actor itself, in a slot of each place; False if that has no room.
        What has been noted is noted again, then."""
        asker = self.asks(order, key[0], by, 0)
        return self.note_reads(asker, *rows, *self.where(index), number, key[1] if by is None else MOST) == 1

    def where(self, index) -> tuple[int, int, int]:
        """The address of an index's places, which stay there for the question, or 0 and the first; how many."""
        if type(index) is slice:
            return 0, index.start, index.stop - index.start
        found = self.known.get(id(index))
        if found is not None:
            return found[1]
        self.places = np.ascontiguousarray(index, np.int64)
        found = pointer(self.places), 0, index.size
        if self.places is index and not index.flags.writeable:  # one of those that others keep, too
            if len(self.known) == KEPT:
                self.known.clear()
            self.known[id(index)] = index, found
        return found


happened = functools.cache(Happened)
