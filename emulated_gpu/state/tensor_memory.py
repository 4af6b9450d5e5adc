"""Tensor memory of one CTA: 128 lanes x 512 columns of 32-bit cells, addressed as lane << 16 | column; 576 on sm_107.

Implements PTX ISA 9.7.16.1 (addressing, allocation), 9.7.16.2.3.1 (fragments), 9.7.16.7 (alloc), 9.7.16.8 (ld, st) and
9.7.16.9 (cp, shift).

[read from PTX ISA] sizes, allocation rules, the lanes a warp may access, the shapes and register counts.
[read from CUTLASS include/cute/atom/copy_traits_sm100.hpp] which register holds which cell (the ISA has figures only),
    the lanes that tcgen05.cp writes, packing of two adjacent columns' low halves into one register, first column low.
[read from CUTLASS v4.7.0, examples/python/CuTeDSL/experimental/primitives/tcgen05] where an expanded element sits in
    its byte (cp_narrow_a_to_tmem_mma.py); what a shift moves where, seen on a B200 (1cta_mma_a_from_tmem.py).
[inferred] the base lane of a 16-lane access is 0 or 16 of the warp's 32; allocation takes the lowest free columns.
A cell that no instruction has written since its allocation is uninitialised; reading it is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..errors import Fault, stop
from ..formats.element_types import CONTAINER_SHIFT, unpack_slots
from ..formats.matrix_descriptor import load_operand
from .order import Actor, Order, Space
from .shadow import NOTHING, Known, Plane

LANES, COLUMNS, HALF = 128, 512, 16
SHADOW = 576  # columns of the shadow, which has all that any chip has
ALL = tuple(range(LANES // HALF))  # the halves of quadrants: lanes 16 * h .. 16 * h + 15
_MAX_NUM = {"32x32b": 128, "16x64b": 128, "16x128b": 64, "16x256b": 32, "16x32bx2": 128}  # Table 49

# (shape, multicast) -> rows, bytes per row, and for each group of source rows the lanes (first, count, repeated at)
_COPIES = {
    ("128x256b", None): (128, 32, ((0, 128, (0,)),)),
    ("128x128b", None): (128, 16, ((0, 128, (0,)),)),
    ("64x128b", "warpx2::02_13"): (64, 16, ((0, 64, (0, 64)),)),
    ("64x128b", "warpx2::01_23"): (64, 16, ((0, 32, (0, 32)), (32, 32, (64, 96)))),
    ("32x128b", "warpx4"): (32, 16, ((0, 32, (0, 32, 64, 96)),)),
    ("4x256b", None): (4, 32, tuple((row, 1, (32 * row,)) for row in range(4))),
}
WAITS = {"tcgen05.ld": "tcgen05.wait::ld", "tcgen05.st": "tcgen05.wait::st"}
_PACKED = {"b4x16_p64": 4, "b6x16_p32": 6}  # source format of tcgen05.cp -> bits of an element


@lru_cache(maxsize=256)
def fragment(shape: str, num: int, packed: bool = False, half_split: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(lane, column) offsets, each int64 [registers, 32 threads], that tcgen05.ld/st.`shape`.x`num` moves.

    packed: .pack::16b / .unpack::16b; a register then spans the cells at `column` and `column + 1`.
    half_split: immHalfSplitoff of 16x32bx2, in columns.
    """
    if num not in (1, 2, 4, 8, 16, 32, 64, 128) or num > _MAX_NUM.get(shape, 0):
        raise Fault("tmem-shape", f"tcgen05.ld/st.{shape}.x{num} does not exist")
    t = np.arange(32)[None, :]
    registers = num * {"16x128b": 2, "16x256b": 4}.get(shape, 1)
    r = np.arange(registers)[:, None]
    if shape == "32x32b":
        lane, column = t + 0 * r, r + 0 * t
    elif shape == "16x64b":
        lane, column = (t >> 2) + 8 * (t & 1) + 0 * r, (t >> 1 & 1) + 2 * r
    elif shape == "16x128b":
        lane, column = (t >> 2) + 8 * (r & 1), (t & 3) + 4 * (r >> 1)
    elif shape == "16x256b":
        lane, column = (t >> 2) + 8 * (r >> 1 & 1), (r & 1) + 2 * (t & 3) + 8 * (r >> 2)
    else:
        lane, column = t % 16 + 0 * r, r + 0 * t
    column = column * 2 if packed else column
    if shape == "16x32bx2":
        column = column + t // 16 * half_split
    return lane, column


@lru_cache(maxsize=8192)
def _places(halves: tuple[int, ...], lo: int, hi: int) -> np.ndarray:
    found = (np.array(halves)[:, None] * SHADOW + np.arange(lo, hi)).ravel()
    found.flags.writeable = False
    return found


class TensorMemory:
    """`report` receives the faults after which a kernel could go on, as reads of uninitialised cells; by default it
    raises them. order: of the cluster's events.

    seed: what a previous kernel left in the cells; the same in all four partitions, so that stale scale factors pass
    for replicated. 0 leaves zeros. exclusive: columns of an allocation by .exclusive, 0 where there is no such form.

    The shadow has a place for each column of each 16 lanes: half of what a warp may access, as much as an accumulator
    with M = 64 has of it.
    """

    def __init__(
        self, report: Callable[[Fault], None] = stop, seed: int = 0, space: Space | None = None, exclusive: int = 0
    ):
        self.columns = max(COLUMNS, exclusive)
        self.cells = np.zeros((LANES, self.columns), np.uint32)
        if seed:
            garbage = np.random.default_rng(seed).integers(0, 2**32, (32, self.columns), np.uint32)
            self.cells.reshape(4, 32, self.columns)[:] = garbage
        self._order = Order() if space is None else space.order
        self.shadow = Plane(self._order, LANES // HALF * SHADOW, 1)
        self.latest: tuple = None, None  # of a write, if that was the last use of any: the places and whose it is
        self.written = np.zeros((LANES, self.columns), bool)
        self.allocated, self.usable = np.zeros((2, self.columns), bool)  # usable: nobody has come to free them
        self.allocations: dict[int, int] = {}  # base column -> columns
        self.exclusive: set[int] = set()  # base columns of allocations by .exclusive
        self._last_size = self.columns
        self._relinquished = False
        self._report = report

    # ---- allocation

    def room(self, columns: int, exclusive: bool = False) -> int | None:
        """The base column that an allocation would have, or None while there is no room (the caller blocks)."""
        most = self.columns if exclusive else COLUMNS
        if columns not in (32, 64, 128, 256, 512, most):
            or_all = f", or {most}" * (most > COLUMNS)
            raise Fault("tmem-alloc", f"{columns} columns: must be a power of two between 32 and 512{or_all}")
        if self._relinquished:
            raise Fault("tmem-alloc", "tcgen05.alloc after tcgen05.relinquish_alloc_permit")
        if columns > self._last_size:
            raise Fault("tmem-alloc", f"{columns} columns after an allocation of {self._last_size}: must not increase")
        for base in range(0, most - columns + 1, 32):
            if not self.allocated[base : base + columns].any():
                return base
        return None

    def alloc(self, columns: int, exclusive: bool = False) -> int | None:
        """The base column of a new allocation, or None while there is no room."""
        base = self.room(columns, exclusive)
        if base is None:
            return None
        self._last_size = columns
        self.allocations[base] = columns
        if exclusive:
            self.exclusive.add(base)
        self.allocated[base : base + columns] = self.usable[base : base + columns] = True
        self.written[:, base : base + columns] = False
        return base

    def close(self, addr: int, columns: int, exclusive: bool = False) -> None:
        """A warp comes to free the allocation at address `addr`: nothing may use it any more."""
        if addr in self.allocations and exclusive != (addr in self.exclusive):
            how = "with" if exclusive else "without"
            raise Fault("tmem-alloc", f"tcgen05.dealloc {how} .exclusive of columns that were allocated otherwise")
        if self.allocations.get(addr) != columns or not self.usable[addr]:
            raise Fault(
                "tmem-alloc", f"dealloc of {columns} columns at {addr:#x}: live allocations are {self.allocations}"
            )
        self.usable[addr : addr + columns] = False

    def dealloc(self, addr: int, columns: int) -> None:
        """Free an allocation that is closed."""
        del self.allocations[addr]
        self.exclusive.discard(addr)
        self.allocated[addr : addr + columns] = False

    def relinquish(self) -> None:
        self._relinquished = True

    def check_exit(self) -> None:
        """To be called when the CTA has exited."""
        if self.allocations:
            message = f"kernel exits with tensor memory allocated (base: columns): {self.allocations}"
            self._report(Fault("tmem-leak", message))

    # ---- who may touch what

    @staticmethod
    def places(halves, lo: int, hi: int) -> np.ndarray:
        """Where the shadow has columns lo..hi-1 of these halves of quadrants, in a cached array."""
        return _places(tuple(halves), lo, min(hi, SHADOW))

    def check_order(self, places: np.ndarray, by: Actor, write: bool, what, but: Known = NOTHING) -> None:
        """A warp must have waited for what others did there. but: what is in order with this anyway."""
        conflict = self.shadow.unordered_write(places, by, but=but)
        if conflict is None and write:
            conflict = next(self.shadow.unordered_reads(places, by, but), None)
        if conflict is not None:
            half, column = divmod(conflict.at, SHADOW)
            who = self._order.who(conflict.number)
            message = f"{what} of tensor memory at lane {HALF * half}, column {column}, which {who} may still "
            message += f"{conflict.use}: nothing that {by} has waited for comes after that"
            if wait := WAITS.get(who.split()[0]):
                message += f", as {wait} of that warp has to"
            self._report(Fault("tmem-race", message, other=conflict.number))

    def keep(self, places: np.ndarray, key: tuple[Space, int], number: int, write: bool) -> None:
        """An event of a component uses these places."""
        if write:
            self.shadow.written[places] = number
        else:
            self.shadow.note_read(places, key, number)
        self.latest = (places, key) if write else (None, None)

    # ---- cells

    def _check(self, lane: int, lanes: int, column: int, columns: int, what: str) -> None:
        if lane < 0 or lane + lanes > LANES or column < 0 or column + columns > self.columns:
            raise Fault("tmem-out-of-bounds", f"{what}: lanes {lane}+{lanes}, columns {column}+{columns}")
        if 0 in self.usable[column : column + columns].tobytes():
            freed = any(not self.usable[base] for base in self.allocations)
            raise Fault(
                "tmem-out-of-bounds",
                f"{what}: columns {column}..{column + columns - 1} are not all allocated ({self.allocations})"
                + freed * ", or this CTA is freeing them: tcgen05.dealloc.cta_group::2 may wait for the other, or not",
            )

    def _check_written(self, written: np.ndarray, lane: int, column: int, what: str) -> None:
        """written: bool [groups of 32 lanes, lanes, columns], a view of self.written that starts at (lane, column)."""
        if 0 in written.tobytes():
            group, row, col = np.argwhere(~written)[0]
            self._report(self._uninitialised(lane + 32 * int(group) + int(row), column + int(col), what))

    def _uninitialised(self, lane: int, column: int, what: str) -> Fault:
        def written_by():
            if self.written[lane, column]:
                return self._order.who(int(self.shadow.written[lane // HALF * SHADOW + column]))
            return None

        fault = Fault("tmem-uninitialised", f"{what} reads lane {lane}, column {column}, which nothing has written")
        fault.written_by = written_by
        return fault

    def read(
        self, lane: int, lanes: int, column: int, columns: int, what: str, partitions: slice | None = None
    ) -> np.ndarray:
        """A view of the cells, uint32 [lanes, columns], or, of 32-lane partitions, of these in each of them. `what`
        names the reader in faults."""
        self._check(*((lane, lanes) if partitions is None else (0, LANES)), column, columns, what)
        shape, each = ((1, LANES, -1), slice(0, 1)) if partitions is None else ((4, 32, -1), partitions)
        block = np.s_[each, lane : lane + lanes, column : column + columns]
        self._check_written(self.written.reshape(shape)[block], 32 * each.start + lane, column, what)
        cells = self.cells.reshape(shape)[block]
        return cells[0] if partitions is None else cells

    def write(self, lane: int, column: int, values: np.ndarray, what: str) -> None:
        """Store uint32 [lanes, columns] at (lane, column), or [4, lanes, columns] there in each 32-lane partition."""
        *partitions, lanes, columns = values.shape
        self._check(lane, 96 + lanes if partitions else lanes, column, columns, what)
        for array, new in ((self.cells, values), (self.written, True)):
            array = array.reshape(*partitions, -1, self.columns)
            array[..., lane : lane + lanes, column : column + columns] = new

    # ---- tcgen05.ld, tcgen05.st

    def _access(self, addr: int, quadrant: int, shape: str, num: int, packed: bool, half_split: int, what: str):
        """Flat cell indices, int64 [registers, 32], of a warp's access, checked."""
        lane, column = addr >> 16, addr & 0xFFFF
        height = 32 if shape == "32x32b" else 16
        if lane // 32 != quadrant or lane % height:
            raise Fault(
                "tmem-lane-access",
                f"{what} at lane {lane} by a warp that may access lanes {32 * quadrant}..{32 * quadrant + 31}",
            )
        lanes, columns = fragment(shape, num, packed, half_split)
        self._check(lane, height, column, int(columns.max()) + 1 + packed, what)
        return (lane + lanes) * self.columns + column + columns

    def load(
        self, addr: int, quadrant: int, shape: str, num: int, pack: bool = False, half_split: int = 0,
        unwritten: Callable[[Fault, list[int]], None] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """tcgen05.ld by a warp with warp id % 4 == quadrant. Returns uint32 [registers, 32 threads].

        unwritten: gets, in place of the report, the fault of loading cells that nothing has written, and which of the
        registers hold them. Fault "tmem-lane-access", "tmem-out-of-bounds", "tmem-shape"; reports "tmem-uninitialised".
        """
        what = f"tcgen05.ld.{shape}.x{num}"
        index = self._access(addr, quadrant, shape, num, pack, half_split, what)
        written, cells = self.written.ravel(), self.cells.ravel()
        valid = written[index] & written[index + 1] if pack else written[index]
        if 0 in valid.tobytes():
            lane, column = divmod(int(index[~valid][0]), self.columns)
            fault = self._uninitialised(lane, column, what)
            if unwritten is None:
                self._report(fault)
            else:
                unwritten(fault, np.flatnonzero(~valid.all(axis=1)).tolist())
        if pack:
            return (cells[index] & 0xFFFF) | (cells[index + 1] << 16)
        return cells[index]

    def store(
        self,
        addr: int,
        quadrant: int,
        shape: str,
        num: int,
        regs: np.ndarray,
        unpack: bool = False,
        half_split: int = 0,
    ) -> None:
        """tcgen05.st of uint32 [registers, 32 threads]; the counterpart of `load`. With unpack, the halves of a
        register go to adjacent cells, whose upper halves become zero [inferred]."""
        index = self._access(addr, quadrant, shape, num, unpack, half_split, f"tcgen05.st.{shape}.x{num}")
        assert regs.shape == index.shape and regs.dtype == np.uint32, (regs.shape, regs.dtype)
        cells, written = self.cells.ravel(), self.written.ravel()
        if unpack:
            cells[index + 1] = regs >> 16
            written[index + 1] = True
            regs = regs & 0xFFFF
        cells[index] = regs
        written[index] = True

    # ---- tcgen05.cp, tcgen05.shift

    def copy(
        self,
        smem: np.ndarray,
        desc: int,
        shape: str,
        multicast: str | None,
        addr: int,
        source_format: str | None = None,
    ) -> None:
        """tcgen05.cp from this CTA's shared memory (uint8, indexed by shared offset) to address `addr`.

        source_format: a key of _PACKED. Each 16 source bytes, 16 packed elements and padding, become 16 bytes with one
        element each (9.7.16.9.1), as tcgen05.mma wants A in tensor memory.
        """
        what = f"tcgen05.cp.{shape}" + (f".{multicast}" if multicast else "")
        if (shape, multicast) not in _COPIES:
            raise Fault("tmem-shape", f"{what} does not exist")
        lane, column = addr >> 16, addr & 0xFFFF
        rows, row_bytes, groups = _COPIES[shape, multicast]
        source = load_operand(smem, desc, rows, row_bytes, False, 8)  # [rows, bytes]
        if source_format is not None:
            bits = _PACKED[source_format]
            source = unpack_slots(source, bits) << CONTAINER_SHIFT[bits]
        source = np.ascontiguousarray(source).view(np.uint32)  # [rows, columns]
        columns = source.shape[1]
        if multicast == "warpx4" and not lane:  # all partitions at once
            self._check(0, LANES, column, columns, what)
            self.cells.reshape(4, 32, self.columns)[:, :, column : column + columns] = source
            self.written[:, column : column + columns] = True
            return
        for first, count, lanes in groups:
            for target in lanes:
                self.write(lane + target, column, source[first : first + count], what)

    def shift_down(self, addr: int, what: str = "tcgen05.shift") -> None:
        """tcgen05.shift.down: lane r of the 32 from `addr` takes the 8 columns of lane r + 1, lane 31 keeps its own."""
        lane, column = addr >> 16, addr & 0xFFFF
        if lane % 32:
            raise Fault("tmem-lane-access", f"{what} at lane {lane}, not a multiple of 32")
        block = self.read(lane, 32, column, 8, what)
        block[:-1] = block[1:].copy()
