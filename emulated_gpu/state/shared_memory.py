"""Shared memory of one CTA, with shadows that know what hardware does not tell.

Per byte: was it ever written. Per word, or byte if it is accessed in parts: who wrote it last and who has read it since
(see shadow.py). Per asynchronous operation in flight: what it will write or still reads. PTX ISA 5.1.6 (state space),
8.6 (proxies), 9.7.16.6.5 (the tensor core reads through the async proxy).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import Fault, ResultsDecide, stop
from ..jit.rules import ones
from .lanes import ADD, ALONE, HALF, Lanes
from .order import ASYNC_SHARED, EVER, GENERIC, STRONG, Actor, Location, Order, Space
from .shadow import NOTHING, WORD, Conflict, Room, Shadow, loads_of, reads, store, unfenced
from .shadow import writes as overwrites

BASE = 0x400  # the first 1 KiB belongs to the system; user data starts behind it
RANK_SHIFT = 24  # a shared::cluster address is rank << 24 | offset
OFFSET_MASK = (1 << RANK_SHIFT) - 1
ROUNDING = 2.0**-20  # by how much floats may differ, relatively, that a compiler sums in two ways: 8 in the last place
USUAL = 2.0**-40, 2.0**40  # of numbers that are floats: no small integers, nor bits of anything else's


def differ_in_rounding(old: np.ndarray, new: np.ndarray) -> bool:
    """Return whether words of 4 bytes, read as floats, are alike but for rounding."""
    if old.itemsize != WORD:
        return False
    a, b = (x.view(np.float32).astype(np.float64) for x in (old, new))
    size = np.maximum(np.abs(a), np.abs(b))
    usual = (size == 0) | (size > USUAL[0]) & (size < USUAL[1])
    return bool((usual & (np.abs(a - b) <= ROUNDING * size)).all())


def of_one_instruction(one: Any, other: Any) -> bool:
    """Return whether two events, as the log has them, are one instruction's."""
    places = [(event.program, event.block, event.lineno) for event in (one, other) if hasattr(event, "lineno")]
    return len(places) == 2 and places[0] == places[1]


@dataclass(eq=False, slots=True)
class InFlight:
    """A range that an asynchronous operation writes or reads and has not finished with.

    words: the numbers of those that it touches, if not all of the range. owner: a warp whose copies may overlap each
    other. key, number: its event. note: of an exit before it is done, see errors.NOTES.
    """

    lo: int
    hi: int
    writes: bool
    what: object
    key: tuple[Space, int]
    number: int = 0
    note: str = ""
    words: np.ndarray | None = None
    owner: Actor | None = None

    @property
    def each(self) -> tuple[InFlight, ...]:
        return (self,)

    def touches(self, lo: int, hi: int, words: np.ndarray | None = None) -> bool:
        """Whether it uses anything of a range, or of those words of it."""
        if self.lo >= hi or lo >= self.hi:
            return False
        if words is not None and self.words is not None:
            return bool(np.isin(words, self.words).any())
        within = self.words if words is None else words
        if within is None:
            return True
        first, end = (lo, hi) if words is None else (self.lo, self.hi)
        return bool(((within < -(-end // WORD)) & (within >= first // WORD)).any())

    def place(self) -> slice | np.ndarray:
        """What it is counted in, of `SharedMemory.busy`: the words that it writes, or all among which it reads."""
        if self.words is not None and self.writes:
            return self.words
        return slice(self.lo // WORD, -(-self.hi // WORD))


class Places(NamedTuple):
    """Where the lanes of a warp access `size` bytes each, at aligned offsets: their numbers in an array of elements of
    that size, and the range that holds them all."""

    index: np.ndarray
    size: int
    lo: int
    hi: int

    @classmethod
    def of(cls, offsets: np.ndarray, size: int) -> Places:
        index = offsets.astype(np.int64)
        lo, hi = int(np.minimum.reduce(index)), int(np.maximum.reduce(index)) + size
        return cls(index // size, size, lo, hi)


class SharedMemory:
    """size: bytes from offset 0, so the reserved first KiB is included. space: the cluster's; rank: the CTA's in it."""

    def __init__(
        self, size: int, checks: bool, seed: int = 0, space: Space | None = None, report=stop, rank: int = 0,
        room: Room | None = None,
    ):  # fmt: skip
        """report: gets the faults after which a kernel could go on; it may raise them. room: of CTAs alike."""
        size = -(-size // 16) * 16
        self.report = report
        self.size = size
        self.checks = checks
        self.space = space or Space(Order())
        self.order = self.space.order
        self.bytes = np.empty(size, np.uint8)
        if checks:  # what a previous kernel left behind: differs between schedules, so that depending on it shows
            self.bytes[:] = 0xFF if seed == 0 else np.random.default_rng(seed).integers(0, 256, size, np.uint8)
        else:
            self.bytes[:] = 0
        self.views = {n: self.bytes.view(f"u{n}") for n in (1, 2, 4, 8)}
        self.valid = np.zeros(size, bool)
        self.valid_views = {1: self.valid.view(np.uint8), **{n: self.valid.view(f"u{n}") for n in (2, 4, 8)}}
        self.all_valid = {n: int.from_bytes(b"\1" * n, "little") for n in (1, 2, 4, 8)}
        self.shadow: Shadow | None = Shadow(self.order, size, room=room) if checks else None
        self.lanes = Lanes(size) if checks else None  # until something was found
        self.window: Any = None  # by which machine code reaches it, see native/memory.py
        self.row = ASYNC_SHARED + rank  # of a clock: what the async proxy sees here
        self.locations: dict[int, Location] = {}  # where strong stores and atomics went
        # The latest "access" and "arrival" of other CTAs, and "copy" to here, by component: the event, and the note for
        # an exit before it
        self.visitors: dict[tuple[str, tuple[Space, int]], tuple[int, str]] = {}
        self.rank = rank
        self.in_flight: dict[Any, None] = {}  # by what is an InFlight, or has `each`; in order of issue
        self.busy = np.zeros(size // WORD, np.uint16)  # by word: how many of those may touch it
        self._extents: tuple[int, int, int, int, int] | None = None  # see extents
        self.barriers: dict[int, object] = {}  # offset -> MBarrier
        self.barriers_start, self.barriers_end = size, 0  # the range that holds them all
        self.absent: dict[tuple[int, int], Callable[[], None]] = {}  # see leave_out; ranges apart from each other
        self.absent_start, self.absent_end = size, 0  # the range that holds them all
        self.not_computed: np.ndarray | None = None  # see mark_not_computed; bool, by 16 bytes
        self.spoilt: set[int] = set()  # bytes that were: see `spoil`

    @property
    def checked(self) -> Shadow:
        """The shadow of a memory whose accesses are checked."""
        assert self.shadow is not None
        return self.shadow

    # -- what a timed run looks at only if a program does --------------------------------------------------------
    def leave_out(self, lo: int, hi: int, bring: Callable[[], None]) -> None:
        """A copy has landed in this range whose bytes `bring` will write, if anything but the tensor core looks."""
        self.absent[lo, hi], self._extents = bring, None
        self.absent_start, self.absent_end = min(self.absent_start, lo), max(self.absent_end, hi)

    def _bring_in(self, lo: int, hi: int, overwrites: bool = False) -> None:
        """Something other than the tensor core uses this range; overwrites: all of it, whatever is there."""
        self._extents = None
        if overwrites and (lo, hi) in self.absent:
            del self.absent[lo, hi]
            return
        for first, end in [a for a in self.absent if a[0] < hi and lo < a[1]]:
            bring = self.absent.pop((first, end))
            if not (overwrites and lo <= first and end <= hi):
                bring()

    def mark_not_computed(self, lo: int, hi: int) -> None:
        """Results were left out that somewhere in this range would have been stored."""
        if self.not_computed is None:
            self.not_computed = np.zeros(self.size // 16, bool)
        self.not_computed[lo // 16 : -(-hi // 16)] = True

    def holds_not_computed(self, lo: int, hi: int) -> bool:
        """Whether results may be missing in this range."""
        return self.not_computed is not None and bool(self.not_computed[lo // 16 : -(-hi // 16)].any())

    def need_computed(self, lo: int, hi: int) -> None:
        """Raise ResultsDecide where something looks at what was left out, other than a copy to global memory."""
        if self.holds_not_computed(lo, hi):
            raise ResultsDecide(f"a read of shared memory [{lo:#x}, {hi:#x})")

    # -- generic accesses --------------------------------------------------------------------------------------
    def _bounds(self, lo: int, hi: int, what):
        if lo < BASE or hi > self.size:
            raise Fault(
                "out-of-bounds",
                f"{what} of shared memory [{lo:#x}, {hi:#x}); this CTA has [{BASE:#x}, {self.size:#x})",
            )

    def _places(self, offsets: np.ndarray, size: int, what: str) -> Places:
        places = Places.of(offsets, size)
        self._bounds(places.lo, places.hi, what)
        if size > 1 and int(np.bitwise_or.reduce(offsets)) % size:  # a power of two
            bad = int(offsets[offsets % offsets.dtype.type(size) != 0][0])
            raise Fault("misaligned", f"{size}-byte {what} of shared memory at {bad:#x}")
        return places

    def _bring_in_range(self, lo: int, hi: int) -> None:
        if lo < self.absent_end and self.absent_start < hi:
            self._bring_in(lo, hi)

    def load(self, offset: int, size: int, by: Actor | None, who: object = None) -> int:
        """by: the reading warp; None for what is ordered by itself (atomics, volatile and acquiring loads). who: names
        the instruction."""
        self._bounds(offset, offset + size, "read")
        if self.absent_start <= offset < self.absent_end:
            self._bring_in(offset, offset + size)
        if self.not_computed is not None:
            self.need_computed(offset, offset + size)
        if offset % size:
            raise Fault("misaligned", f"{size}-byte read of shared memory at {offset:#x}")
        if self.checks:
            if int(self.valid_views[size][offset // size]) != self.all_valid[size]:
                self.explain_invalid(offset, offset + size, np.ones(1, bool))
            if by is not None and self.shadow is not None:
                self._note_read(self.shadow.range(offset, offset + size), by, who)
        return int(self.views[size][offset // size])

    def gather(self, offsets: np.ndarray, size: int, by: Actor | None, who: object = None) -> np.ndarray:
        index, _, lo, hi = self._places(offsets, size, "read")
        self._bring_in_range(lo, hi)
        if self.not_computed is not None:
            self.need_computed(lo, hi)
        if self.checks:
            valid = self.valid_views[size][index] == self.all_valid[size]
            if 0 in valid.tobytes():
                bad = int(index[~valid][0]) * size
                self.explain_invalid(bad, bad + size, ~valid)
            if by is not None and self.shadow is not None:
                self._note_read(self.shadow.elements(index * size, size), by, who)
        return self.views[size][index]

    def store(
        self, offset: int, size: int, value: int, by: Actor, lanes: int, who: object = None, strong: bool = False
    ) -> None:
        """lanes: the lanes that write, a bit each. who: names the instruction. strong: no race with its like."""
        self._bounds(offset, offset + size, "write")
        if self.absent_start <= offset < self.absent_end:
            self._bring_in(offset, offset + size)
        if offset % size:
            raise Fault("misaligned", f"{size}-byte write of shared memory at {offset:#x}")
        if self.checks:
            self.check_write(offset, offset + size, "write")
            same = int(self.views[size][offset // size]) == value
            late = self._note_write(np.array([offset]), size, lambda: np.array([not same]), by, lanes, who, strong)
            note = ""
            if late:
                view, index = self.views[size], offset // size
                note = self._note_of(late, view[index : index + 1], np.array([value], view.dtype), who)
        self.valid[offset : offset + size] = True
        self.views[size][offset // size] = value
        if self.checks:
            self._unwaited(late, by, note)

    def scatter(
        self, offsets: np.ndarray, size: int, values: np.ndarray, by: Actor, lanes: int, who: object = None,
        strong: bool = False,
    ) -> None:  # fmt: skip
        self.scatter_at(self._places(offsets, size, "write"), values, by, lanes, who, strong)

    def scatter_at(
        self, places: Places, values: np.ndarray, by: Actor, lanes: int, who: object = None, strong: bool = False
    ) -> None:
        """The same, at places that are known to be aligned."""
        index, size, lo, hi = places
        self._bounds(lo, hi, "write")
        self._bring_in_range(lo, hi)
        view = self.views[size]
        if self.checks:
            if self.is_busy(lo, hi):
                for offset in index.tolist():
                    self.check_write(offset * size, (offset + 1) * size, "write")
            late = self._note_write(index * size, size, lambda: view[index] != values, by, lanes, who, strong)
            note = self._note_of(late, view[index], values, who) if late else ""
            self.valid_views[size][index] = self.all_valid[size]
        view[index] = values
        if self.checks:
            self._unwaited(late, by, note)

    # -- lanes of one warp -------------------------------------------------------------------------------------
    def lanes_access(self, offsets: np.ndarray, size: int, lanes, by: Actor, write: bool, changed=None) -> None:
        """A warp of this CTA has read `size` bytes at each offset, on behalf of a lane each or of lanes.SEVERAL, or its
        lanes are about to write. changed: says which get another value, bool [n]."""
        if self.lanes is None or size < HALF or int(offsets.max()) + size > self.size:
            return
        told = self.lanes.of(offsets, size, lanes, by.epoch)
        found = list(ones(told(write)))
        if found and changed is not None:
            differ = changed()
            found = [k for k in found if differ[k]]
        if found:
            done = "written" if told(False) >> found[0] & 1 else "read"
            return self._apart(int(offsets[found[0]]), size, "write" if write else "read", done, by)
        if write:
            told(write, ALONE)
        told(write, ADD)

    def _apart(self, offset: int, size: int, what: str, done: str, by: Actor) -> None:
        """Report, once, what lanes have done to each other without meeting."""
        self.lanes = self._extents = None
        lo = offset // WORD * WORD
        events = [0]
        for plane, index in self.checked.range(lo, max(lo + WORD, offset + size) + WORD - 1 & -WORD):
            numbers = np.unique(plane.written[index] if done == "written" else plane.reads[:, index])
            events += numbers[(self.order.component[numbers] == by.key[1]) & (numbers > 0)].tolist()
        number = max(events)
        message = f"{what} of shared memory at {offset:#x}, {done} by another lane of the warp"
        message += f" ({self.order.who(number)})"
        message += ", with no bar.warp.sync or barrier since, by which lanes wait for each other"
        self.report(Fault("race", message, note="lanes-apart", other=number))

    # -- the shadow --------------------------------------------------------------------------------------------
    def explain_invalid(self, lo: int, hi: int, elements: np.ndarray | None = None):
        """elements: which of a load's are wrong."""
        for op in self.users(lo, hi, reads=False):
            message = f"read of shared memory [{lo:#x}, {hi:#x}) that {op.what} has not finished writing"
            return self.report(Fault("race", message, other=op.number))
        for offset, barrier in self.barriers.items():
            if offset < hi and lo < offset + 8:
                message = f"read of shared memory [{lo:#x}, {hi:#x}), the opaque object {barrier}"
                return self.report(Fault("mbarrier", message))
        made = " but with what comes of such memory" * (not self.spoilt.isdisjoint(range(lo, hi)))
        self._unwritten(lo, hi, f"read of shared memory [{lo:#x}, {hi:#x}) that nothing has written{made}", elements)

    def _unwritten(self, lo: int, hi: int, message: str, elements: np.ndarray | None = None):
        def written_by():
            if self.valid[lo:hi].all():
                return self.order.who(max(int(plane.written[i].max()) for plane, i in self.checked.range(lo, hi)))
            return None

        fault = Fault("uninitialized-read", message)
        fault.written_by, fault.elements = written_by, elements
        self.report(fault)

    def spoil(self, lo: int, hi: int) -> None:
        """What lies in a range has been made of what nothing has written, and so counts as written by nobody."""
        self.valid[lo:hi] = False
        self.spoilt.update(range(lo, hi))

    def is_busy(self, lo: int, hi: int) -> bool:
        """Whether a write anywhere in the range could be wrong."""
        if lo < self.barriers_end and self.barriers_start < hi:
            return True
        return bool(self.in_flight) and bool(self.busy[lo // WORD : -(-hi // WORD)].any())

    def extents(self) -> tuple[int, int, int, int, int]:
        """Its end, 0 while something is left out; the range that has all barriers and all operations in flight;
        that of the barriers. It is one tuple as long as those, and `lanes`, stay what they are."""
        if self._extents is None:
            first, end, ops = self.barriers_start, self.barriers_end, self.in_flight
            busy = min([first, *[op.lo for op in ops]]), max([end, *[op.hi for op in ops]])
            self._extents = 0 if self.absent else self.size, *busy, first, end
        return self._extents

    def add_barrier(self, offset: int, barrier):
        self.barriers[offset] = barrier
        self.barriers_start = min(self.barriers_start, offset)
        self.barriers_end, self._extents = max(self.barriers_end, offset + 8), None
        self.valid[offset : offset + 8] = False

    def users(self, lo: int, hi: int, words: np.ndarray | None = None, reads: bool = True) -> list[InFlight]:
        """The operations in flight that use anything of a range, or of those words of it, in order of issue. reads:
        not only those that write."""
        place = slice(lo // WORD, -(-hi // WORD)) if words is None else words
        if not self.in_flight or not self.busy[place].any():
            return []
        within = [op for op in self.in_flight if (reads or op.writes) and op.lo < hi and lo < op.hi]
        return [one for op in within for one in op.each if one.touches(lo, hi, words)]

    def check_write(self, lo: int, hi: int, what, owner: Actor | None = None, words: np.ndarray | None = None):
        for op in self.users(lo, hi, words):
            if owner is None or op.owner is not owner:
                verb = "is still writing" if op.writes else "still reads"
                message = f"{what} of shared memory [{lo:#x}, {hi:#x}) that {op.what} {verb}"
                self.report(Fault("race", message, other=op.number))
        if lo < self.barriers_end and self.barriers_start < hi:
            for offset, barrier in self.barriers.items():
                taken = slice(offset // WORD, (offset + 8) // WORD)
                if offset < hi and lo < offset + 8 and (words is None or np.isin(words, np.r_[taken]).any()):
                    raise Fault("mbarrier", f"{what} of shared memory over {barrier}")

    def _note_read(self, places, by: Actor, who: object):
        """Generic loads of a warp."""
        number = self.order.next(by.key, who)
        if by.rank != self.rank:
            self.visitors["access", by.key] = number, ""
        self._unordered(reads(places, by, by.key, number), "read", by, (number,))

    def _note_write(self, offsets: np.ndarray, size: int, changed, by: Actor, lanes: int, who: object, strong: bool):
        """Generic stores of a warp, by these lanes: what they conflict with. changed: see shadow.py."""
        by.unfenced |= lanes
        if by.rank != self.rank:
            self.visitors["access", by.key] = self.order.now + 1, ""
        return store(self.checked.elements, offsets, size, by, GENERIC | STRONG * strong, by.key, who, changed)

    def _note_of(self, late: list[Conflict], old: np.ndarray, new: np.ndarray, who: object) -> str:
        """Return which note it is that stores of several warps are in no order, if it is one."""
        alike = (one.use == "write" and of_one_instruction(self.order.origin(one.number), who) for one in late)
        return "rounded-stores" if all(alike) and differ_in_rounding(old, new) else ""

    def _unwaited(self, conflicts: list[Conflict], by: Actor, note: str) -> None:
        """Report what a store by threads conflicts with: all reads, or anything (state/shadow.py, store). note: see
        Fault."""
        self._unordered(conflicts, "write", by, loads_of(conflicts), note)

    def _unordered(
        self, conflicts: Iterable[Conflict], what, by: Actor, loads: tuple[int, ...] = (), note: str = ""
    ) -> None:
        """Report the first of the accesses that have not happened before. loads, note: see Fault."""
        first = None
        for conflict in conflicts:  # all of them, since they are noted on the way
            first = first or conflict
        if first is not None:
            who = self.order.who(first.number)
            message = f"{what} of shared memory at {first.at:#x}, which {who} may still {first.use}"
            message = f"{message}: nothing that {by} has waited for comes after that"
            fault = Fault("race", message, note=note, other=first.number)
            fault.loads = loads
            self.report(fault)

    def _check_overwrite(self, places, by: Actor, what):
        """The async proxy writes what threads have used, which a fence has to order (8.6)."""
        for conflict in unfenced(places, by, self.row, use=True):
            use = "read" if conflict.use == "read" else "written"
            message = f"{what} overwrites shared memory at {conflict.at:#x}, {use} by {self.order.who(conflict.number)}"
            message += " with no fence.proxy.async since"
            note = "unfenced-overwrite"
            return self.report(Fault("missing-proxy-fence", message, note=note, other=conflict.number))

    def check_read(self, lo: int, hi: int, what, by: Actor, words: np.ndarray | None = None):
        """An asynchronous read begins: nothing may be in flight to it, nor unfenced generic writes, and whatever others
        wrote must have been waited for."""
        for op in self.users(lo, hi, reads=False):
            message = f"{what} reads shared memory [{lo:#x}, {hi:#x}) that {op.what} has not finished writing"
            self.report(Fault("race", message, other=op.number))
        places = self.checked.range(lo, hi, words)
        if all(plane.shows_async(index, by, self.row) for plane, index in places):
            return
        for conflict in unfenced(places, by, self.row):
            who = self.order.who(conflict.number)
            message = f"{what} reads shared memory at {conflict.at:#x}, written by {who}"
            message += " with no fence.proxy.async since"
            self.report(Fault("missing-proxy-fence", message, other=conflict.number))
            break
        self._unordered(reads(places, by), what, by)

    # -- asynchronous operations -------------------------------------------------------------------------------
    def begin(
        self, lo: int, hi: int, writes: bool, what, by: Actor, key, words=None, whole=False, owner=None, note="",
        proxy=True,
    ) -> InFlight:  # fmt: skip
        """An asynchronous operation starts to use a range; `end` when it is done with it.

        what: names it (str() of it). by: the issuing warp. key: the component whose event it is. words, owner, note:
        see InFlight. proxy: whether the async proxy does it. whole: it needs every byte it reads.
        """
        self._bounds(lo, hi, what)
        if lo < self.absent_end and self.absent_start < hi:
            self._bring_in(lo, hi, overwrites=writes)
        op = InFlight(lo, hi, writes, what, key, 0, note, words, owner)
        if self.checks:
            op.number = self.order.next(key, what)
            if writes:
                self.check_write(lo, hi, what, owner, words)
                places = self.checked.range(lo, hi, words)
                self._unordered(overwrites(places, by, but={key: EVER} if owner else NOTHING), what, by)
                if proxy and owner is None:
                    self._check_overwrite(places, by, what)
                self._set_valid(op, False)
            else:
                self.check_read(lo, hi, what, by, words)
                if whole and not self.valid[lo:hi].all():
                    bad = lo + int(np.flatnonzero(~self.valid[lo:hi])[0])
                    self._unwritten(bad, bad + 1, f"{what} reads shared memory at {bad:#x}, which nothing has written")
            self.busy[op.place()] += 1
            self.has_begun(op)
        return op

    def has_begun(self, op: Any) -> None:
        """Keep an operation in flight, whose words are counted as busy."""
        if self.checks:
            self.in_flight[op] = None
            if (now := self._extents) and (op.lo < now[1] or now[2] < op.hi):
                self._extents = now[0], min(now[1], op.lo), max(now[2], op.hi), *now[3:]

    def has_ended(self, op: Any) -> None:
        """Forget such an operation."""
        if self.checks:
            del self.in_flight[op]
            if (now := self._extents) and (op.lo == now[1] or op.hi == now[2]):
                self._extents = None

    def end(self, op: Any, late: bool = False):
        """late: what an mbarrier completes has happened when it lands; the rest goes by the order of issue."""
        if self.checks:
            self.has_ended(op)
            for one in op.each:
                self._end(one, late)

    def _end(self, op: InFlight, late: bool) -> None:
        self.busy[op.place()] -= 1
        if late:
            op.number = self.order.next(op.key, op.what)
            if op.writes:
                self.visitors["copy", op.key] = op.number, op.note
        if op.writes:
            self._set_valid(op, True)
        for plane, index in self.checked.range(op.lo, op.hi, op.words):
            if op.writes:
                plane.written[index] = op.number
            else:
                plane.note_read(index, op.key, op.number)

    def _set_valid(self, op: InFlight, valid: bool) -> None:
        if op.words is None:
            self.valid[op.lo : op.hi] = valid
        else:
            self.valid_views[WORD][op.words] = self.all_valid[WORD] * valid

    def begin_end_write(self, offset: int, size: int, by: Actor, who: object):
        """A write by a unit that completes at once (tcgen05.alloc)."""
        self.end(self.begin(offset, offset + size, True, who, by, by.key, proxy=False))
