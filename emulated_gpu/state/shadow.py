"""A shadow of memory: of each word or byte, the event that wrote it last, and those that have read it since.

It keeps numbers of events (see order.py) in flat arrays. An access asks whether what was done there happened before:
a read, whether the last write did; a write, whether the last write and all reads did. Words are 4 bytes; those that
somebody accesses in parts are kept byte by byte from then on.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..jit.happens_before import MOST, happened
from ..jit.rules import pointer
from .lanes import WORD
from .order import GENERIC, KNOWN, STRONG, Actor, Order, Space

SLOTS = 4  # for reads of a place that nothing has put in order, to begin with
# Of Shadow.told: addresses and sizes of the arrays of words, of bytes from WRITTEN + PARTS on, and of others
WRITTEN, READS, SLOT_COUNT, PLACES, BENEATH, PARTS, SPLIT, SETTLED, TOLD = *range(6), 10, 11, 12


# Beside what an actor knows, by component: the latest event with which what it does is in order
Known = Mapping[tuple[Space, int], int]
NOTHING: Known = MappingProxyType({})


BIG = 1 << 30  # bytes of an array that the system may refuse, although nobody will touch most of it
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux


def zeros(shape: int | tuple[int, ...], dtype: type) -> np.ndarray:
    """Return zeros, of which only the pages that somebody touches need memory, however many there are."""
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    if size < BIG:
        return np.zeros(shape, dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return np.frombuffer(pages, dtype).reshape(shape)


class Conflict(NamedTuple):
    """An event that has not happened before an access. at: the byte of the shadow; use: "write" or "read"."""

    at: int
    number: int
    use: str


class Room:
    """How many reads of a place planes begin with that are alike: as many as one of them has needed."""

    __slots__ = ("slots",)

    def __init__(self):
        self.slots = SLOTS


class Plane:
    """Places of this many bytes each. written: int32 [places], the last write; reads: int32 [slots, places].

    A place keeps the reads since its last write that no other one of these has happened after, in its first slots.
    observed: by component, int32 [places], of strong reads, which race with nothing: who has seen a strong write there
    may overwrite it. beneath: int32 [places], where the last write is a strong one: the last weak one before it.
    settled: uint8 [places], only where clusters never know of each other: 1 where two of them have read what nobody
    has written. Whoever writes there races with one of the two, so that no more reads are kept, of thousands perhaps.
    """

    __slots__ = (
        "order", "grain", "written", "reads", "observed", "beneath", "settled", "room", "told", "_written_at",
        "_reads_at",
    )  # fmt: skip

    def __init__(
        self, order: Order, places: int, grain: int, settles: bool = False, room: Room | None = None,
        told: np.ndarray | None = None,
    ):  # fmt: skip
        """told: a part of Shadow.told."""
        self.order, self.grain, self.room, self.told = order, grain, room or Room(), told
        self.written = zeros(places, np.int32)
        self._written_at = pointer(self.written), 1, 0
        self.beneath: np.ndarray | None = None  # until a strong write comes over a weak one
        self.have_reads(zeros((self.room.slots, places), np.int32))
        self.observed: dict[tuple[Space, int], np.ndarray] = {}
        self.settled = zeros(places, np.uint8) if settles else None

    def have_reads(self, reads: np.ndarray) -> None:
        """Keep reads in this array from now on, and tell where that is."""
        self.reads, self._reads_at = reads, (pointer(reads), *reads.shape)
        if self.told is not None:
            self.told[:] = self._written_at[0], *self._reads_at, 0 if self.beneath is None else pointer(self.beneath)

    def have_beneath(self) -> np.ndarray:
        """Keep from now on what is beneath strong writes."""
        if self.beneath is None:
            self.beneath = zeros(len(self.written), np.int32)
            self.have_reads(self.reads)
        return self.beneath

    def place(self, index: slice | np.ndarray, which: int) -> int:
        """The byte at which the place of an index starts."""
        return (index.start + which if type(index) is slice else int(index[which])) * self.grain

    def unordered_write(
        self, index, by: Actor, row: int = 0, but: Known = NOTHING, weak: bool = False, generic: bool = False
    ) -> Conflict | None:
        """A write here that `by` does not know. weak, generic: of those only."""
        ask = happened().all_known if generic or self.beneath is None else None
        if ask and ask(self._written_at, index, by, row, but, mask=GENERIC * generic, other=MOST):
            return None
        numbers = self.written[index]
        if not numbers.any():
            return None
        late = by.unknown(numbers, row)
        if late.any():
            late &= self._after(numbers, but)
            if weak:
                late &= self.order.marks[numbers] & STRONG == 0
            elif (seen := self.observed.get(by.key)) is not None:
                late &= (self.order.marks[numbers] & STRONG == 0) | (seen[index] < numbers)
            if generic:
                late &= self.order.marks[numbers] & GENERIC != 0
            which = np.flatnonzero(late)
            if len(which):
                return Conflict(self.place(index, int(which[0])), int(numbers[which[0]]), "write")
        if self.beneath is None or generic:
            return None
        beneath = np.where(self.order.marks[numbers] & STRONG, self.beneath[index], 0)
        which = np.flatnonzero(by.unknown(beneath, row) & self._after(beneath, but)) if beneath.any() else beneath[:0]
        return Conflict(self.place(index, int(which[0])), int(beneath[which[0]]), "write") if len(which) else None

    def shows_async(self, index, by: Actor, row: int) -> bool:
        """Whether `by` certainly knows all writes here, and of the generic proxy by that row, behind a fence."""
        ask = happened().all_known
        return self.beneath is None and ask(self._written_at, index, by, row, NOTHING, mask=GENERIC, other=KNOWN)

    def unordered_reads(
        self, index, by: Actor, but: Known = NOTHING, weak: bool = False, row: int = KNOWN, limit: int = MOST
    ) -> Iterator[Conflict]:
        """The reads here since the last write that `by` does not know, each once. weak: of those only; limit: of
        components up to it; row: of what `by` knows, see order.py."""
        if happened().all_known(self._reads_at, index, by, row, but, limit):
            return
        slots = self.reads[:, index]
        numbers = slots.ravel()
        late = by.unknown(numbers, row) & (numbers != 0)
        if weak:
            late &= self.order.marks[numbers] & STRONG == 0
        if limit != MOST:
            late &= self.order.component[numbers] <= limit
        which = np.flatnonzero(late & self._after(numbers, but))
        _, first = np.unique(numbers[which], return_index=True)
        for k in which[np.sort(first)].tolist():
            yield Conflict(self.place(index, k % slots.shape[1]), int(numbers[k]), "read")

    def _after(self, numbers: np.ndarray, but: Known) -> np.ndarray | bool:
        """Which of these events come after those of their component that `but` has."""
        after: np.ndarray | bool = True
        for key, number in but.items():
            after &= ~self._of(numbers, key) | (numbers > number)
        return after

    def _of(self, numbers: np.ndarray, key: tuple[Space, int]) -> np.ndarray:
        """Which of these events are of a component."""
        return (self.order.component[numbers] == key[1]) & (self.order.space[numbers] == key[0].index)

    def note_read(self, index, key: tuple[Space, int], number: int, by: Actor | None = None) -> None:
        """An event of a component reads here: of `by`, if it is a warp's own, which then is after what that knows."""
        while not happened().note_read(self._reads_at, index, key, number, self.order, by):
            self._grow()
        if self.settled is not None:  # the first slot is the first cluster's, as nobody else knows its events
            others = self.order.space[self.reads[0][index]] != key[0].index
            self.settled[index] |= others & (self.written[index] == 0)

    def unsettled(self, index: slice | np.ndarray) -> slice | np.ndarray:
        """Those places of an index where reads are kept."""
        if self.settled is None or not (settled := self.settled[index]).any():
            return index
        places = np.arange(index.start, index.stop) if type(index) is slice else index
        return places[settled == 0]

    def fit(self) -> None:
        """Have room for as many reads as any plane that is alike has needed."""
        while len(self.reads) < self.room.slots:
            self._grow()

    def _grow(self) -> None:
        """Make room for as many reads again of each place, in pages that nobody touches where nobody has read."""
        slots, places = self.reads.shape
        (read,) = self.reads[0].nonzero()
        more = zeros((2 * slots, places), np.int32)
        more[:slots, read] = self.reads[:, read]
        self.have_reads(more)
        self.room.slots = max(self.room.slots, 2 * slots)

    def note_write(self, index, number: int, ordered: bool) -> None:
        """An event writes here. ordered: after all the reads, which are forgotten, then: who knows it knows them."""
        if self.order.marks[number] & STRONG:
            before = self.written[index]
            weak = (before != 0) & (self.order.marks[before] & STRONG == 0)
            if weak.any():
                beneath = self.have_beneath()
                beneath[index] = np.where(weak, before, beneath[index])
        self.written[index] = number
        if self.settled is not None:
            self.settled[index] = 0
        for slot in self.reads if ordered else ():
            if not slot[index].any():
                break
            slot[index] = 0

    def observe(self, index, by: Actor, number: int) -> None:
        """A strong read by a warp."""
        self.observed.setdefault(by.key, zeros(len(self.written), np.int32))[index] = number


class Shadow:
    """Of this many bytes. Ranges and addresses are counted from its first one. settles: whether its words do. told:
    where all of it is at any time, int64s, for machine code."""

    __slots__ = ("order", "words", "bytes", "split", "told")

    def __init__(self, order: Order, size: int, settles: bool = False, room: Room | None = None):
        self.order = order
        self.told = np.zeros(TOLD, np.int64)
        self.words = Plane(order, -(-size // WORD), WORD, settles, room, self.told[:PARTS])
        self.bytes: Plane | None = None  # of words that are accessed in parts, which `split` marks
        self.split = zeros(len(self.words.written), bool)
        self.told[SPLIT] = pointer(self.split)
        self.told[SETTLED] = pointer(self.words.settled) if settles else 0

    def elements(self, offsets: np.ndarray, size: int) -> list[tuple[Plane, np.ndarray]]:
        """Where elements of this many bytes lie, each aligned to its size or to a word."""
        if size < WORD:
            return [(self._parts(offsets // WORD), self._spread(offsets, size))]
        words = offsets // WORD
        return self._places(words if size == WORD else self._spread(words, size // WORD))

    def range(self, lo: int, hi: int, words: np.ndarray | None = None) -> Sequence[tuple[Plane, slice | np.ndarray]]:
        """Where a range lies, or those words of it."""
        if lo % WORD or hi % WORD:
            return [(self._parts(np.arange(lo // WORD, -(-hi // WORD))), slice(lo, hi))]
        if words is not None:
            return self._places(words)
        first, end = lo // WORD, hi // WORD
        if self.bytes is None or not self.split[first:end].any():
            return [(self.words, slice(first, end))]
        return self._places(np.arange(first, end))

    @staticmethod
    def _spread(starts: np.ndarray, count: int) -> np.ndarray:
        return starts if count == 1 else (starts[:, None] + np.arange(count)).ravel()

    def _places(self, words: np.ndarray) -> list[tuple[Plane, np.ndarray]]:
        if self.bytes is None:
            return [(self.words, words)]
        parted = self.split[words]
        if not parted.any():
            return [(self.words, words)]
        places = [(self.bytes, self._spread(words[parted] * WORD, WORD))]
        if not parted.all():
            places.append((self.words, words[~parted]))
        return places

    def _parts(self, words: np.ndarray) -> Plane:
        """Keep these words byte by byte from now on."""
        if self.bytes is None:
            room, told = self.words.room, self.told[PARTS:SPLIT]
            self.bytes = Plane(self.order, len(self.words.written) * WORD, 1, room=room, told=told)
        fresh = np.unique(words[~self.split[words]])
        if len(fresh):
            self.split[fresh] = True
            index = self._spread(fresh * WORD, WORD)
            self.bytes.written[index] = np.repeat(self.words.written[fresh], WORD)
            if self.words.beneath is not None:
                self.bytes.have_beneath()[index] = np.repeat(self.words.beneath[fresh], WORD)
            if (more := len(self.words.reads) - len(self.bytes.reads)) > 0:
                self.bytes.have_reads(np.pad(self.bytes.reads, ((0, more), (0, 0))))
            self.bytes.reads[: len(self.words.reads), index] = np.repeat(self.words.reads[:, fresh], WORD, axis=1)
        return self.bytes


def reads(places, by: Actor, key: tuple[Space, int] | None = None, number: int = 0, **but) -> Iterator[Conflict]:
    """A read by a warp, or by what it starts: what it does not know, and note it as an event of a component."""
    for plane, index in places:
        conflict = plane.unordered_write(index, by, **but)
        if conflict is not None:
            yield conflict
        if key is not None:
            plane.note_read(index, key, number, by if key is by.key else None)


def writes(places, by: Actor, but: Known = NOTHING, weak: bool = False) -> Iterator[Conflict]:
    """A write, likewise; it is noted elsewhere."""
    for plane, index in places:
        conflict = plane.unordered_write(index, by, but=but, weak=weak)
        conflict = conflict or next(plane.unordered_reads(index, by, but, weak), None)
        if conflict is not None:
            yield conflict


def loads_of(conflicts: list[Conflict]) -> tuple[int, ...]:
    """The reads that a write conflicts with; none if it conflicts with anything else, too."""
    return tuple(one.number for one in conflicts) if all(one.use == "read" for one in conflicts) else ()


def store(
    places: Callable, offsets: np.ndarray, size: int, by: Actor, marks: int, key: tuple[Space, int], who: object,
    changed: Callable[[], np.ndarray] | None = None,
) -> list[Conflict]:  # fmt: skip
    """A write of `size` bytes at each offset is noted; what it conflicts with, all of it if it is reads alone. places:
    where such elements lie.

    changed: which elements get another value than they have, asked where it matters: to write what is there already
    disturbs nobody (all warps that set one flag do so, and racecheck lets them).
    """
    there, weak = places(offsets, size), bool(marks & STRONG)
    conflicts = list(writes(there, by, weak=weak))
    ordered = not conflicts
    if conflicts and changed is not None:
        differ = offsets[changed()]
        wrong = places(differ, size) if len(differ) else []
        conflicts = list(writes(wrong, by, weak=weak))
    else:
        wrong = there
    if loads_of(conflicts):
        conflicts = [read for plane, index in wrong for read in plane.unordered_reads(index, by, weak=weak)]
    number = by.order.next(key, who, marks)
    for plane, index in there:
        plane.note_write(index, number, ordered)
    return conflicts


def unfenced(places, by: Actor, row: int, use: bool = False) -> Iterator[Conflict]:
    """Writes of the generic proxy that the async proxy does not see yet; use: also reads by warps that it may not yet
    come after, with a write of its own. row: of the memory, see order.py."""
    for plane, index in places:
        conflict = plane.unordered_write(index, by, row, generic=True)
        if use and not conflict:
            conflict = next(plane.unordered_reads(index, by, row=row, limit=by.space.warps), None)
        if conflict is not None:
            yield conflict
