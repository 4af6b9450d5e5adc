"""Shared memory of one CTA, with a shadow that knows what hardware does not tell.

Per byte: was it ever written. Per word: when it was last written and by whom (see order.py), and whether generic stores
wrote it without a proxy fence since. Per asynchronous operation in flight: what it will write or still reads. PTX ISA
5.1.6 (state space), 8.6 (proxies), 9.7.16.6.5 (the tensor core reads through the async proxy).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import Fault, stop
from .order import Actor, Order

BASE = 0x400  # the first 1 KiB belongs to the system; user data starts behind it
RANK_SHIFT = 24  # a shared::cluster address is rank << 24 | offset
OFFSET_MASK = (1 << RANK_SHIFT) - 1
WORD, CHUNK = 4, 16  # bytes: grain of who wrote, grain of what asynchronous operations read
ASYNC, MIXED, PUBLISHED = 0, 0xFFFE, 0xFFFF  # not a warp: as a writer, as writers of parts of a word, as a dirty mark


@dataclass(eq=False, slots=True)
class InFlight:
    """A range that an asynchronous operation writes or reads and has not finished with.

    chunks: the numbers of the 16-byte chunks that it touches, if not all of the range. owner: a warp whose copies may
    overlap each other.
    """

    lo: int
    hi: int
    writes: bool
    what: object
    chunks: np.ndarray | None = None
    owner: Actor | None = None

    def touches(self, lo: int, hi: int) -> bool:
        if self.lo >= hi or lo >= self.hi:
            return False
        return self.chunks is None or bool(((self.chunks < -(-hi // CHUNK)) & (self.chunks >= lo // CHUNK)).any())


@dataclass(slots=True)
class Unfenced:
    """Generic writes of a warp since its last proxy fence. Lanes fence for themselves."""

    lo: int  # words
    hi: int
    unfenced: int  # lanes
    unpublished: int  # lanes whose writes no barrier or arrival has made visible to others


class SharedMemory:
    """size: bytes from offset 0, so the reserved first KiB is included. order: that of the cluster."""

    def __init__(self, size: int, checks: bool, seed: int = 0, order: Order | None = None, report=stop):
        """report: gets the faults after which a kernel could go on; it may raise them."""
        size = -(-size // 16) * 16
        self.report = report
        self.size = size
        self.checks = checks
        self.order = order or Order()
        self.bytes = np.empty(size, np.uint8)
        if checks:  # what a previous kernel left behind: differs between schedules, so that depending on it shows
            self.bytes[:] = 0xFF if seed == 0 else np.random.default_rng(seed).integers(0, 256, size, np.uint8)
        else:
            self.bytes[:] = 0
        self.views = {n: self.bytes.view(f"u{n}") for n in (1, 2, 4, 8)}
        self.valid = np.zeros(size, bool)
        self.valid_views = {1: self.valid.view(np.uint8), **{n: self.valid.view(f"u{n}") for n in (2, 4, 8)}}
        self.all_valid = {n: int.from_bytes(b"\1" * n, "little") for n in (1, 2, 4, 8)}
        self.written_at = np.zeros(size // WORD, np.int32)
        self.writer = np.zeros(size // WORD, np.uint16)
        self.read_at = np.zeros(size // CHUNK, np.int32)  # when an asynchronous operation last finished reading
        self.dirty = np.zeros(size // WORD, np.uint16)  # 0 clean, else the writing warp's uid, or PUBLISHED
        self.unfenced: dict[int, Unfenced] = {}  # by dirty mark
        self.in_flight: list[InFlight] = []
        self.barriers: dict[int, object] = {}  # offset -> MBarrier
        self.barriers_start, self.barriers_end = size, 0  # the range that holds them all
        self.absent: dict[tuple[int, int], Callable[[], None]] = {}  # see leave_out; ranges apart from each other
        self.absent_start, self.absent_end = size, 0  # the range that holds them all

    # -- what a timed run looks at only if a program does --------------------------------------------------------
    def leave_out(self, lo: int, hi: int, bring: Callable[[], None]) -> None:
        """A copy has landed in this range whose bytes `bring` will write, if anything but the tensor core looks."""
        self.absent[lo, hi] = bring
        self.absent_start, self.absent_end = min(self.absent_start, lo), max(self.absent_end, hi)

    def _bring_in(self, lo: int, hi: int, overwrites: bool = False) -> None:
        """Something other than the tensor core uses this range; overwrites: all of it, whatever is there."""
        if overwrites and self.absent.pop((lo, hi), None):
            return
        for first, end in [a for a in self.absent if a[0] < hi and lo < a[1]]:
            bring = self.absent.pop((first, end))
            if not (overwrites and lo <= first and end <= hi):
                bring()

    # -- generic accesses --------------------------------------------------------------------------------------
    def _bounds(self, lo: int, hi: int, what):
        if lo < BASE or hi > self.size:
            raise Fault(
                "out-of-bounds",
                f"{what} of shared memory [{lo:#x}, {hi:#x}); this CTA has [{BASE:#x}, {self.size:#x})",
            )

    def _index(self, offsets: np.ndarray, size: int, what: str) -> np.ndarray:
        index = offsets.astype(np.int64)
        lo, hi = int(index.min()), int(index.max()) + size
        self._bounds(lo, hi, what)
        if lo < self.absent_end and self.absent_start < hi:
            self._bring_in(lo, hi)
        if size > 1 and (index % size).any():
            raise Fault("misaligned", f"{size}-byte {what} of shared memory at {int(index[index % size != 0][0]):#x}")
        return index // size

    def load(self, offset: int, size: int, by: Actor | None) -> int:
        """by: the reading warp; None for what is ordered by itself (atomics, volatile and acquiring loads)."""
        self._bounds(offset, offset + size, "read")
        if self.absent_start <= offset < self.absent_end:
            self._bring_in(offset, offset + size)
        if offset % size:
            raise Fault("misaligned", f"{size}-byte read of shared memory at {offset:#x}")
        if self.checks:
            if int(self.valid_views[size][offset // size]) != self.all_valid[size]:
                self.explain_invalid(offset, offset + size)
            if by is not None:
                self.check_order(offset, offset + size, by, "read")
        return int(self.views[size][offset // size])

    def gather(self, offsets: np.ndarray, size: int, by: Actor | None) -> np.ndarray:
        index = self._index(offsets, size, "read")
        if self.checks:
            valid = self.valid_views[size][index] == self.all_valid[size]
            if not valid.all():
                bad = int(index[~valid][0]) * size
                self.explain_invalid(bad, bad + size)
            if by is not None:
                for words in self._words(index, size):
                    if self.written_at[words].max() > by.seen:
                        for word in words[self._by_others(words, by)].tolist():
                            self._unordered(word * WORD, "read", by)
        return self.views[size][index]

    @staticmethod
    def _words(index: np.ndarray, size: int) -> tuple[np.ndarray, ...]:
        """Word numbers of elements: of the first and, if they have one, the second word."""
        if size == 8:
            return index * 2, index * 2 + 1
        return (index if size == WORD else index * size // WORD,)

    def store(self, offset: int, size: int, value: int, by: Actor, lanes: int, who: object = None) -> None:
        """lanes: the lanes that write, a bit each. who: names the instruction."""
        self._bounds(offset, offset + size, "write")
        if self.absent_start <= offset < self.absent_end:
            self._bring_in(offset, offset + size)
        if offset % size:
            raise Fault("misaligned", f"{size}-byte write of shared memory at {offset:#x}")
        if self.checks:
            self.check_write(offset, offset + size, "write")
            self._mark_writes((np.arange(offset // WORD, -(-(offset + size) // WORD)),), size, by, lanes, who)
        self.valid[offset : offset + size] = True
        self.views[size][offset // size] = value

    def scatter(
        self, offsets: np.ndarray, size: int, values: np.ndarray, by: Actor, lanes: int, who: object = None
    ) -> None:
        index = self._index(offsets, size, "write")
        if self.checks:
            lo, hi = int(index.min()) * size, (int(index.max()) + 1) * size
            if self.is_busy(lo, hi):
                for offset in index.tolist():
                    self.check_write(offset * size, (offset + 1) * size, "write")
            self._mark_writes(self._words(index, size), size, by, lanes, who)
        self.valid_views[size][index] = self.all_valid[size]
        self.views[size][index] = values

    # -- the shadow --------------------------------------------------------------------------------------------
    def explain_invalid(self, lo: int, hi: int):
        for op in self.in_flight:
            if op.writes and op.touches(lo, hi):
                message = f"read of shared memory [{lo:#x}, {hi:#x}) that {op.what} has not finished writing"
                return self.report(Fault("race", message))
        for offset, barrier in self.barriers.items():
            if offset < hi and lo < offset + 8:
                message = f"read of shared memory [{lo:#x}, {hi:#x}), the opaque object {barrier}"
                return self.report(Fault("mbarrier", message))
        self._unwritten(lo, hi, f"read of shared memory [{lo:#x}, {hi:#x}) that nothing has written")

    def _unwritten(self, lo: int, hi: int, message: str):
        def written_by():
            if self.valid[lo:hi].all():
                return self.order.who(int(self.written_at[lo // WORD : -(-hi // WORD)].max()))
            return None

        fault = Fault("uninitialized-read", message)
        fault.written_by = written_by
        self.report(fault)

    def is_busy(self, lo: int, hi: int) -> bool:
        """Whether a write anywhere in the range could be wrong."""
        for op in self.in_flight:
            if op.lo < hi and lo < op.hi:
                return True
        return lo < self.barriers_end and self.barriers_start < hi

    def add_barrier(self, offset: int, barrier):
        self.barriers[offset] = barrier
        self.barriers_start = min(self.barriers_start, offset)
        self.barriers_end = max(self.barriers_end, offset + 8)
        self.valid[offset : offset + 8] = False

    def check_write(self, lo: int, hi: int, what, owner: Actor | None = None):
        for op in self.in_flight:
            if op.touches(lo, hi) and not (owner is not None and op.owner is owner):
                verb = "is still writing" if op.writes else "still reads"
                self.report(Fault("race", f"{what} of shared memory [{lo:#x}, {hi:#x}) that {op.what} {verb}"))
        if lo < self.barriers_end and self.barriers_start < hi:
            for offset, barrier in self.barriers.items():
                if offset < hi and lo < offset + 8:
                    raise Fault("mbarrier", f"{what} of shared memory over {barrier}")

    def _mark_writes(self, all_words: tuple[np.ndarray, ...], size: int, by: Actor, lanes: int, who: object):
        """Generic stores of a warp: check that nobody's asynchronous work is in their way, and remember them."""
        now = self.order.next(who)
        for words in all_words:
            late = (self.read_at[words // (CHUNK // WORD)] > by.seen) | (
                (self.written_at[words] > by.seen) & (self.writer[words] == ASYNC)
            )
            if late.any():
                self._unordered(int(words[late][0]) * WORD, "write", by)
            writer = by.uid
            if size < WORD:
                before = self.writer[words]
                writer = np.where((before == ASYNC) | (before == by.uid), by.uid, MIXED)
            self.writer[words] = writer
            self.written_at[words] = now
            self.dirty[words] = by.uid
        lo, hi = int(all_words[0].min()), int(all_words[-1].max()) + 1
        mine = self.unfenced.get(by.uid)
        if mine is None:
            self.unfenced[by.uid] = Unfenced(lo, hi, lanes, lanes)
        else:
            mine.lo, mine.hi = min(mine.lo, lo), max(mine.hi, hi)
            mine.unfenced |= lanes
            mine.unpublished |= lanes

    def _unordered(self, at: int, what, by: Actor):
        """An access of a byte that others have written, or asynchronous operations read, since `by` last waited."""
        written, read = int(self.written_at[at // WORD]), int(self.read_at[at // CHUNK])
        others = written > by.seen and self.writer[at // WORD] != by.uid
        use, number = ("written", written) if others else ("read", read)
        message = f"{what} of shared memory at {at:#x}, which {self.order.who(number)} has {use}"
        self.report(Fault("race", f"{message} since this warp last waited for anything"))

    def _by_others(self, words: slice | np.ndarray, by: Actor) -> np.ndarray:
        """Which of these words others have written since `by` last waited."""
        writer = self.writer[words]
        return (self.written_at[words] > by.seen) & (writer != by.uid) & (writer != MIXED)

    def check_order(self, lo: int, hi: int, by: Actor, what, chunks: np.ndarray | None = None):
        """Whatever others wrote in the range must have been waited for."""
        first = lo // WORD
        words = slice(first, -(-hi // WORD))
        if self.written_at[words].max() <= by.seen:
            return
        for word in np.flatnonzero(self._by_others(words, by)).tolist():
            if chunks is None or (chunks == (first + word) * WORD // CHUNK).any():
                return self._unordered((first + word) * WORD, what, by)

    def check_read(self, lo: int, hi: int, what, chunks: np.ndarray | None = None):
        """An asynchronous read begins: nothing may be in flight to it, nor unfenced generic writes."""
        for op in self.in_flight:
            if op.writes and op.touches(lo, hi):
                message = f"{what} reads shared memory [{lo:#x}, {hi:#x}) that {op.what} has not finished writing"
                self.report(Fault("race", message))
        first = lo // WORD
        dirty = self.dirty[first : -(-hi // WORD)] if self.unfenced else None
        if dirty is not None and dirty.any():
            for word in (np.flatnonzero(dirty) + first).tolist():
                if chunks is None or (chunks == word * WORD // CHUNK).any():
                    who = self.order.who(int(self.written_at[word]))
                    message = f"{what} reads shared memory at {word * WORD:#x}, written by {who}"
                    return self.report(Fault("missing-proxy-fence", f"{message} with no fence.proxy.async since"))

    # -- asynchronous operations -------------------------------------------------------------------------------
    def begin(
        self, lo: int, hi: int, writes: bool, what, by: Actor | None = None, chunks=None, whole=False, owner=None
    ) -> InFlight:
        """An asynchronous operation starts to use a range; `end` when it is done with it.

        what: names it (str() of it). by: the issuing warp. chunks, owner: see InFlight. whole: it needs every byte it
        reads.
        """
        self._bounds(lo, hi, what)
        if lo < self.absent_end and self.absent_start < hi:
            self._bring_in(lo, hi, overwrites=writes)
        op = InFlight(lo, hi, writes, what, chunks, owner)
        if self.checks:
            if writes:
                self.check_write(lo, hi, what, owner)
                if by is not None:
                    self.check_order(lo, hi, by, what)
                    late = self.read_at[lo // CHUNK : -(-hi // CHUNK)] > by.seen
                    if late.any():
                        self._unordered(lo // CHUNK * CHUNK + int(np.flatnonzero(late)[0]) * CHUNK, what, by)
                self.valid[lo:hi] = False
                self.dirty[lo // WORD : -(-hi // WORD)] = 0
            else:
                self.check_read(lo, hi, what, chunks)
                if by is not None:
                    self.check_order(lo, hi, by, what, chunks)
                if whole and not self.valid[lo:hi].all():
                    bad = lo + int(np.flatnonzero(~self.valid[lo:hi])[0])
                    self._unwritten(bad, bad + 1, f"{what} reads shared memory at {bad:#x}, which nothing has written")
            self.in_flight.append(op)
        return op

    def end(self, op: InFlight, writer: int = ASYNC):
        if self.checks:
            self.in_flight.remove(op)
            if op.writes:
                self.valid[op.lo : op.hi] = True
                words = slice(op.lo // WORD, -(-op.hi // WORD))
                self.written_at[words], self.writer[words] = self.order.next(op.what), writer
            elif op.chunks is None:
                self.read_at[op.lo // CHUNK : -(-op.hi // CHUNK)] = self.order.next(op.what)
            else:
                self.read_at[op.chunks] = self.order.next(op.what)

    # -- proxy fences ------------------------------------------------------------------------------------------
    def publish(self, uid: int, lanes: int):
        """Lanes of a warp arrived at a barrier: a fence by whoever waits for it now covers their writes too."""
        mine = self.unfenced.get(uid)
        if mine is None or mine.unpublished == 0:
            return
        mine.unpublished &= ~lanes
        if mine.unpublished == 0:
            words = self.dirty[mine.lo : mine.hi]
            words[words == uid] = PUBLISHED
            del self.unfenced[uid]
            old = self.unfenced.get(PUBLISHED)
            lo, hi = (mine.lo, mine.hi) if old is None else (min(mine.lo, old.lo), max(mine.hi, old.hi))
            self.unfenced[PUBLISHED] = Unfenced(lo, hi, 0, 0)

    def fence(self, uid: int, lanes: int):
        """fence.proxy.async by lanes of a warp: for their own writes and for those published to them."""
        for mark in (uid, PUBLISHED):
            mine = self.unfenced.get(mark)
            if mine is None:
                continue
            mine.unfenced &= ~lanes
            mine.unpublished &= ~lanes  # what is fenced need not be published
            if mine.unfenced == 0:
                words = self.dirty[mine.lo : mine.hi]
                words[words == mark] = 0
                del self.unfenced[mark]

    def begin_end_write(self, offset: int, size: int, by: Actor, who: object):
        """A write by a unit that completes at once (tcgen05.alloc)."""
        self.end(self.begin(offset, offset + size, True, who, by), by.uid)
