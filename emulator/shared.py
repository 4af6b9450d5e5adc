"""Shared memory of one CTA, with a shadow that knows what hardware does not tell.

Per byte: was it ever written, and by which warp through the generic proxy without a proxy fence since. Per asynchronous
operation in flight: which range it will write or still reads. PTX ISA 5.1.6 (state space), 8.2 (proxies).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import Fault

BASE = 0x400  # the first 1 KiB belongs to the system; user data starts behind it
RANK_SHIFT = 24  # a shared::cluster address is rank << 24 | offset
OFFSET_MASK = (1 << RANK_SHIFT) - 1


@dataclass(eq=False, slots=True)
class InFlight:
    """A range that an asynchronous operation writes or reads and has not finished with."""

    lo: int
    hi: int
    writes: bool
    what: object


class SharedMemory:
    """size: bytes from offset 0, so the reserved first KiB is included."""

    def __init__(self, size: int, checks: bool, seed: int = 0):
        size = -(-size // 16) * 16
        self.size = size
        self.checks = checks
        self.bytes = np.empty(size, np.uint8)
        if checks:  # what a previous kernel left behind: differs between schedules, so that depending on it shows
            self.bytes[:] = 0xFF if seed == 0 else np.random.default_rng(seed).integers(0, 256, size, np.uint8)
        else:
            self.bytes[:] = 0
        self.views = {n: self.bytes.view(f"u{n}") for n in (1, 2, 4, 8)}
        self.valid = np.zeros(size, bool)
        self.valid_views = {1: self.valid.view(np.uint8), **{n: self.valid.view(f"u{n}") for n in (2, 4, 8)}}
        self.all_valid = {n: int.from_bytes(b"\1" * n, "little") for n in (1, 2, 4, 8)}
        self.dirty = np.zeros(size, np.uint8)  # 0 clean, w+1 written by warp w, 255 published by a barrier
        self.any_dirty = False
        self.in_flight: list[InFlight] = []
        self.barriers: dict[int, object] = {}  # offset -> MBarrier
        self.barriers_start, self.barriers_end = size, 0  # the range that holds them all

    # -- generic accesses --------------------------------------------------------------------------------------
    def _bounds(self, lo: int, hi: int, what):
        if lo < BASE or hi > self.size:
            raise Fault(
                "out-of-bounds",
                f"{what} of shared memory [{lo:#x}, {hi:#x}); this CTA has [{BASE:#x}, {self.size:#x})",
            )

    def _index(self, offsets: np.ndarray, size: int, what: str) -> np.ndarray:
        index = offsets.astype(np.int64)
        self._bounds(int(index.min()), int(index.max()) + size, what)
        if size > 1 and (index % size).any():
            raise Fault("misaligned", f"{size}-byte {what} of shared memory at {int(index[index % size != 0][0]):#x}")
        return index // size

    def load(self, offset: int, size: int) -> int:
        self._bounds(offset, offset + size, "read")
        if offset % size:
            raise Fault("misaligned", f"{size}-byte read of shared memory at {offset:#x}")
        if self.checks and int(self.valid_views[size][offset // size]) != self.all_valid[size]:
            self.explain_invalid(offset, offset + size)
        return int(self.views[size][offset // size])

    def gather(self, offsets: np.ndarray, size: int) -> np.ndarray:
        index = self._index(offsets, size, "read")
        if self.checks and (self.valid_views[size][index] != self.all_valid[size]).any():
            bad = int(index[self.valid_views[size][index] != self.all_valid[size]][0]) * size
            self.explain_invalid(bad, bad + size)
        return self.views[size][index]

    def store(self, offset: int, size: int, value: int, warp: int) -> None:
        self._bounds(offset, offset + size, "write")
        if offset % size:
            raise Fault("misaligned", f"{size}-byte write of shared memory at {offset:#x}")
        if self.checks:
            self.check_write(offset, offset + size, "write")
            self.dirty[offset : offset + size] = warp + 1
            self.any_dirty = True
        self.valid[offset : offset + size] = True
        self.views[size][offset // size] = value

    def scatter(self, offsets: np.ndarray, size: int, values: np.ndarray, warp: int) -> None:
        index = self._index(offsets, size, "write")
        if self.checks:
            lo, hi = int(index.min()) * size, (int(index.max()) + 1) * size
            if self.is_busy(lo, hi):
                for offset in index.tolist():
                    self.check_write(offset * size, (offset + 1) * size, "write")
            mark = {1: 1, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}[size] * (warp + 1)
            self.dirty.view(f"u{size}")[index] = mark
            self.any_dirty = True
        self.valid_views[size][index] = self.all_valid[size]
        self.views[size][index] = values

    # -- the shadow --------------------------------------------------------------------------------------------
    def explain_invalid(self, lo: int, hi: int):
        for op in self.in_flight:
            if op.writes and op.lo < hi and lo < op.hi:
                raise Fault("race", f"read of shared memory [{lo:#x}, {hi:#x}) that {op.what} has not finished writing")
        raise Fault("uninitialized-read", f"read of shared memory [{lo:#x}, {hi:#x}) that nothing has written")

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

    def check_write(self, lo: int, hi: int, what):
        for op in self.in_flight:
            if op.lo < hi and lo < op.hi:
                verb = "is still writing" if op.writes else "still reads"
                raise Fault("race", f"{what} of shared memory [{lo:#x}, {hi:#x}) that {op.what} {verb}")
        if lo < self.barriers_end and self.barriers_start < hi:
            for offset, barrier in self.barriers.items():
                if offset < hi and lo < offset + 8:
                    raise Fault("mbarrier", f"{what} of shared memory over {barrier}")

    def check_read(self, lo: int, hi: int, what):
        """An asynchronous read begins: nothing may be in flight to it, nor unfenced generic writes."""
        for op in self.in_flight:
            if op.writes and op.lo < hi and lo < op.hi:
                raise Fault("race", f"{what} reads shared memory [{lo:#x}, {hi:#x}) that {op.what} has not finished writing")
        if self.any_dirty and self.dirty[lo:hi].any():
            bad = lo + int(np.flatnonzero(self.dirty[lo:hi])[0])
            raise Fault(
                "missing-proxy-fence",
                f"{what} reads shared memory at {bad:#x}, written by generic stores with no fence.proxy.async since",
            )

    def begin(self, lo: int, hi: int, writes: bool, what) -> InFlight:
        """An asynchronous operation starts to use a range; `end` when it is done with it. `what` names it (str() of it)."""
        self._bounds(lo, hi, what)
        op = InFlight(lo, hi, writes, what)
        if self.checks:
            if writes:
                self.check_write(lo, hi, what)
                self.valid[lo:hi] = False
                self.dirty[lo:hi] = 0
            else:
                self.check_read(lo, hi, what)
            self.in_flight.append(op)
        return op

    def end(self, op: InFlight):
        if self.checks:
            self.in_flight.remove(op)
        if op.writes:
            self.valid[op.lo : op.hi] = True

    def publish(self, warps: set[int]):
        """A barrier made these warps' writes visible to others: whoever fences next, fences them too."""
        if self.any_dirty:
            self.dirty[np.isin(self.dirty, [w + 1 for w in warps])] = 255

    def fence(self, warp: int):
        """fence.proxy.async by a warp."""
        if self.any_dirty:
            self.dirty[(self.dirty == warp + 1) | (self.dirty == 255)] = 0
            self.any_dirty = bool(self.dirty.any())

    def begin_end_write(self, offset: int, size: int):
        """A write by a unit that completes at once (tcgen05.alloc)."""
        self.end(self.begin(offset, offset + size, True, "tcgen05.alloc"))
