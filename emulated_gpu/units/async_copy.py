"""Issue of asynchronous copies by a group: TMA, bulk copies, cp.async, cluster launch control (PTX ISA 9.7.9.25).

Each copy is decided at issue (addresses, descriptor, targets) and lands later, when the schedule says so: only then
does it read its source and write its destination. Global and shared sources are therefore seen as they are at landing
time, the latest that the ISA allows for a source that nobody may touch in between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import Fault, ResultsDecide, Unsupported
from ..formats import alu, swizzle
from ..formats.tensormap import PADDED
from ..jit.rules import pointer
from ..native import access as rules
from ..native import context_fields as fields
from ..native.memory import window_of
from ..state.barrier import Waitable
from ..state.order import KNOWN, STRONG
from ..state.shadow import WORD
from ..state.shared_memory import OFFSET_MASK, RANK_SHIFT, InFlight
from . import im2col, tma
from .access import note_global
from .addresses import active, check_running, multicast_ctas, pick, shared_cta
from .barriers import barrier_at, landed, pass_dependency
from .fences import handed_on
from .group import LaneGroup
from .protocols import Copies
from .tensor_maps import note_map, tensor_map

EXIT = "exit-before-store"  # errors.NOTES


class BulkGroups(Waitable):
    """The bulk async-groups of one thread: open operations, and for each committed group what is unfinished."""

    __slots__ = ("open", "committed")

    def __init__(self):
        super().__init__()
        self.open: list[StoreOp] = []
        self.committed: list[list[StoreOp]] = []

    def newest(self, allowed: int) -> int:
        """The latest event of the groups before the `allowed` most recent ones."""
        return max((op.number for group in self._older(allowed) for op in group), default=0)

    def commit(self):
        self.committed.append(self.open)
        self.open = []

    def unfinished(self, read: bool, allowed: int) -> bool:
        """Whether a group before the `allowed` most recent ones is not complete (or has not finished reading).

        Groups complete in any order: a recent one that is complete does not make up for an old one that is not.
        """
        return not all(op.read if read else op.done for group in self._older(allowed) for op in group)

    def awaited(self, allowed: int):
        """A wait for all but the `allowed` most recent groups has returned."""
        for group in self._older(allowed):
            for op in group:
                op.awaited = True
        while self.committed and all(op.done and op.awaited for op in self.committed[0]):
            del self.committed[0]

    def forgotten(self) -> StoreOp | None:
        """A store that no wait has waited for, if there is one."""
        return next((op for group in [*self.committed, self.open] for op in group if not op.awaited), None)

    def under_way(self) -> list[StoreOp]:
        """The stores that have not written yet, in their order."""
        return [op for group in [*self.committed, self.open] for op in group if not op.done]

    def _older(self, allowed: int) -> list[list[StoreOp]]:
        return self.committed[: max(0, len(self.committed) - allowed)]

    def __str__(self):
        return f"bulk async-groups ({len(self.committed)} committed)"


class StoreOp:
    """One bulk store: `read` once its source is free, `done` once its destination is written.

    `awaited` once its thread has waited for either. number: the latest of its events. source() is what it stores as
    long as it has not read it, write(view) puts that where it belongs in what view(address, bytes, True) gives.
    """

    __slots__ = ("what", "read", "done", "awaited", "owner", "number", "source", "write")

    def __init__(self, groups: BulkGroups, what, number: int = 0, source=None, write=None):
        self.what, self.number, self.source, self.write = what, number, source, write
        self.read = self.done = self.awaited = False
        self.owner = groups
        groups.open.append(self)


def changes_nothing(g: LaneGroup, source, write, conflicts) -> bool:
    """Whether a bulk store, of source() by write, puts the bytes that are there, or that stores will which it
    conflicts with and which are under way."""
    if any(conflict.use == "read" for conflict in conflicts):
        return False
    copies: dict[int, np.ndarray] = {}  # of regions, by their addresses
    touched = []

    def view(address: int, size: int, _=True):
        region = g.launch.memory.find(address, size, False)
        if region.start not in copies:
            copies[region.start] = region.data.copy()
        piece = copies[region.start][address - region.start : address - region.start + size]
        touched.append((piece, piece.copy()))
        return piece

    for who in {g.warp.actor.order.origin(conflict.number) for conflict in conflicts}:
        for groups in who.actor.bulk.values():
            for op in groups.under_way():
                op.write(op.source(), view)
    touched.clear()
    write(source(), view)
    return all((piece == before).all() for piece, before in touched)


def arrive(g: LaneGroup, when: float, origin, land):
    """Let a copy land at `when`, or later if the clock finds that others have overtaken it."""
    decided = g.clock.decided(when)
    if decided == when:
        g.later(when, origin, land)
    else:
        g.engine.at(decided, lambda: g.later(g.clock.overtaken(when), origin, land))


LOADS = {"tile": tma.load_box, "tile::gather4": tma.load_gather4, "im2col": im2col.load}
FOUR_ROWS = ("tile::gather4", "tile::scatter4")


# -- tensor copies -----------------------------------------------------------------------------------------
class Boxes(NamedTuple):
    """What a tensor copy touches of global memory: a box, or four rows."""

    tm: Any  # tensor map
    at: tuple[int, ...]  # coordinates
    mode: str


def note_box(g: LaneGroup, boxes: Boxes, write: bool, key, origin, marks: int = 0, idle=None):
    """Note that a tensor copy touches global memory; key, origin, marks, idle: as of `note_global`."""
    if g.launch.checks or g.launch.dependencies.before:
        tm, at, mode = boxes
        for box in [(at[0], row) for row in at[1:]] if mode in FOUR_ROWS else [at]:
            starts, nbytes = im2col.row_addresses(tm, box) if mode == "im2col" else tma.row_addresses(tm, box, write)
            if len(starts):
                note_global(g, starts, nbytes, write, origin, key, marks, idle=idle)


def store_keys(g: LaneGroup, p: int):
    """The components of the reads and of the writes of a thread's bulk stores."""
    space, name = g.warp.actor.space, (g.warp.actor.uid, int(g.lanes[p]))
    return space.key(("bulk store reads", name)), space.key(("bulk store writes", name))


def tma_load(g: LaneGroup, dst, tensor, coords, bar, rank, mode, offsets, multicast, pair, policy, mask):
    """offsets: of im2col mode, which its coordinates end with."""
    load = LOADS[mode]
    for p in active(g, mask):
        map_at = pick(tensor, p)
        tm = tensor_map(g, map_at, 2 if mode == "tile::gather4" else rank, mode == "im2col")
        at = tuple(alu.signed(pick(c, p), 32) for c in coords) + tuple(alu.signed(pick(c, p), 16) for c in offsets)
        boxes = 4 if mode == "tile::gather4" else 1
        nbytes = tm.box_bytes * boxes
        address, barrier_address = pick(dst, p), pick(bar, p)
        owner, offset = shared_cta(g, address)
        if offset % 128:
            raise Fault("misaligned", f"TMA load to shared {offset:#x}: must be 128-byte aligned")
        if g.launch.checks and mode == "tile" and offset % (8 * tm.swizzle or 1) and nbytes >= 8 * tm.swizzle:
            message = f"TMA load with a swizzle of {tm.swizzle} bytes to shared {offset:#x}, which is no multiple of "
            message += f"{8 * tm.swizzle}: rows are swizzled by their addresses, not by their places in the tile"
            g.launch.found(Fault("misaligned", message, note="swizzle-phase"))
        targets = [owner] if multicast is None else multicast_ctas(g, pick(multicast, p))
        origin = g.origin("TMA load")
        landing = []
        for cta in targets:
            check_running(g, cta)
            barrier = _copy_barrier(g, cta, owner, barrier_address, multicast is not None, pair)
            g.clock.trace.completes(barrier, "load")
            op = cta.smem.begin(offset, offset + tm.shared_bytes * boxes, True, origin, g.warp.actor, barrier.key)
            landing.append((cta, op, barrier))
            pass_dependency(g, barrier)
        note_box(g, Boxes(tm, at, mode), False, landing[0][2].key, origin)
        note_map(g, map_at, landing[0][2].key, origin)
        hands_on = handed_on(g)

        def bring(ctas, tm=tm, at=at, offset=offset):
            image = tma.with_gaps(tm, load(tm, at, g.launch.memory.view))
            for cta in ctas:
                swizzle.scatter(cta.smem.bytes, offset, image, tm.swizzle, tm.atom, tm.placed_row_bytes)

        def land(
            tm=tm, bring=bring, targets=targets, landing=landing, nbytes=nbytes, origin=origin, hands_on=hands_on
        ):
            later = not g.cta.computes_mma and (not g.launch.sampled_clusters or g.launch.memory.constant(tm.address))
            if not later:
                bring(targets)
            for cta, op, barrier in landing:
                if later:
                    cta.smem.leave_out(op.lo, op.hi, partial(bring, [cta]))
                cta.smem.end(op, True)
                barrier.transaction(-nbytes, origin, landed(op, hands_on))

        of_lane = pick(policy, p)
        arrive(g, g.clock.tma_load(g, tm, map_at, at, nbytes, targets, of_lane), origin, land)


def _copy_barrier(g: LaneGroup, cta, owner, address: int, multicast: bool, pair: bool):
    """The mbarrier that a copy into `cta` signals: at the same offset there, or in one CTA of its pair."""
    rank, offset = address >> 24, address & OFFSET_MASK
    if pair:
        return g.cta.cluster.ctas[(cta.rank & ~1) | (rank & 1)].barrier(offset, g.warp, True)
    if multicast:
        return cta.barrier(offset, g.warp, True)
    if rank != owner.rank:
        raise Fault("mbarrier", "copy and mbarrier in different CTAs, without .cta_group::2")
    return owner.barrier(offset, g.warp, True)


def tma_store(g: LaneGroup, tensor, coords, src, rank, mode, reduction, mask):
    issued = {}  # a whole warp that stores one box takes the time of one: CuTe DSL's kernels elect no lane
    lanes = active(g, mask)
    alone = not g.cta.computes_mma and not g.launch.sampled_clusters
    if alone and not reduction and not any(map(alu.is_array, (tensor, src, *coords))):
        lanes = lanes[:1]  # which then need not be done again and again
    for p in lanes:
        map_at = pick(tensor, p)
        tm = tensor_map(g, map_at, 2 if mode == "tile::scatter4" else rank)
        if tm.elem in PADDED:
            raise Unsupported(f"a tensor store of .{tm.elem}")
        at = tuple(alu.signed(pick(c, p), 32) for c in coords)
        boxes = 4 if mode == "tile::scatter4" else 1
        nbytes = tm.box_bytes * boxes
        cta, offset = shared_cta(g, pick(src, p))
        if offset % 128:
            raise Fault("misaligned", f"TMA store from shared {offset:#x}: must be 128-byte aligned")
        origin = g.origin("TMA store")
        whole = not tm.swizzle or tm.row_bytes == tm.swizzle  # then no padding
        whole = whole and mode == "tile" and tma.inside(tm, at)
        key, writing = store_keys(g, p)
        end = offset + tm.shared_bytes * boxes
        reading = cta.smem.begin(offset, end, False, origin, g.warp.actor, key, whole=whole, note=EXIT)
        box = (cta, offset, at, id(tm))

        def write(image, view, tm=tm, at=at):
            if reduction:
                tma.reduce_box(tm, at, image, reduction, view)
            elif mode == "tile::scatter4":
                tma.store_scatter4(tm, at, image, view)
            else:
                tma.store_box(tm, at, image, view)

        def source(cta=cta, offset=offset, nbytes=nbytes, tm=tm):
            return swizzle.gather(cta.smem.bytes, offset, nbytes, tm.swizzle, tm.atom, tm.row_bytes)

        if box not in issued:  # lanes that store one box write the same
            idle = partial(changes_nothing, g, source, write)
            note_box(g, Boxes(tm, at, mode), True, writing, origin, STRONG if reduction else 0, idle)
        note_map(g, map_at, key, origin)
        if box not in issued:
            issued[box] = g.clock.tma_store(g, tm, map_at, at, nbytes, bool(reduction))
        _store_later(g, p, Storing(cta, reading, source, write, origin, 0 if reduction else nbytes), issued[box])


class Storing(NamedTuple):
    """A bulk store of a thread that has been issued."""

    cta: Any  # whose shared memory it reads
    reading: Any  # what is in flight there
    source: Callable  # reads the bytes
    write: Callable  # stores them
    origin: Any
    nbytes: int  # how many are stored, 0 if they are combined with what is there


def _store_later(g: LaneGroup, p: int, storing: Storing, times: tuple[float, float]):
    """times: when it has read, and how long after that it has written."""
    cta, reading, source, write, origin, nbytes = storing
    op = StoreOp(bulk_groups(g, p), origin, g.warp.actor.order.now, source, write)
    engine = g.engine

    def read():
        view = g.launch.memory.view
        if not cta.smem.holds_not_computed(reading.lo, reading.hi):
            image = source()
        elif nbytes:
            image, view = np.ones(nbytes, np.uint8), g.launch.memory.not_computed_view
        else:
            raise ResultsDecide("a reduction")
        cta.smem.end(reading)
        op.read, op.source = True, lambda: image
        op.owner.wake()

        def finish():
            write(image, view)
            op.done = True
            engine.progress += 1
            op.owner.wake()

        g.later(times[1], origin, finish)

    g.later(times[0], origin, read)


def tma_prefetch(g: LaneGroup, tensor, coords, rank, mask):
    """A hint: nothing that a program can see, but the descriptor and the coordinates must be sound."""
    for p in active(g, mask):
        map_at = pick(tensor, p)
        tm = tensor_map(g, map_at, rank)
        at = tuple(alu.signed(pick(c, p), 32) for c in coords)
        g.clock.tma_prefetch(g, tm, map_at, at, tm.box_bytes)


# -- bulk copies -------------------------------------------------------------------------------------------
def bulk_copy(g: LaneGroup, dst, to, src, what, size, bar, chosen, policy, mask, reduction=None):
    """chosen: masks of the CTAs that a load is for, or of the bytes of each 16 that a store is of; None: all."""
    for p in active(g, mask):
        n, a, b = pick(size, p), pick(to, p), pick(what, p)
        if n % 16 or a % 16 or b % 16:
            raise Fault("misaligned", f"bulk copy of {n} bytes from {b:#x} to {a:#x}: all must be multiples of 16")
        if n == 0:
            continue
        origin = g.origin("bulk copy")
        if dst.startswith("shared"):
            targets = None if chosen is None else multicast_ctas(g, pick(chosen, p))
            copy = ToShared(a, src, b, n, pick(bar, p), targets, reduction)
            _bulk_to_shared(g, copy, pick(policy, p), origin)
        else:
            for at, length in [(0, n)] if chosen is None else runs(n, pick(chosen, p)):
                _bulk_to_global(g, p, a + at, b + at, length, origin, reduction)


def runs(size: int, mask: int) -> list[tuple[int, int]]:
    """Return (beginning, bytes) of each run of a copy's bytes. mask: which of each 16 are copied (9.7.9.25.4.1)."""
    copied = np.resize([int(mask) >> i & 1 for i in range(16)], size)
    edges = np.flatnonzero(np.diff(copied, prepend=0, append=0)).reshape(-1, 2)
    return [(int(begin), int(end - begin)) for begin, end in edges]


class ToShared(NamedTuple):
    """A bulk copy to shared memory, of one thread."""

    to: int  # address
    space: str  # of its source
    address: int  # likewise
    size: int  # bytes
    bar: int  # address of the mbarrier
    multicast: list | None  # CTAs
    reduction: tuple | None


def _bulk_to_shared(g: LaneGroup, copy: ToShared, policy, origin):
    to, src, b, n, bar, multicast, reduction = copy
    owner, offset = shared_cta(g, to)
    targets = [owner] if multicast is None else multicast
    landing = []
    for cta in targets:
        check_running(g, cta)
        barrier = _copy_barrier(g, cta, owner, bar, multicast is not None, False)
        g.clock.trace.completes(barrier, "load")
        op = None if reduction else cta.smem.begin(offset, offset + n, True, origin, g.warp.actor, barrier.key)
        landing.append((cta, op, barrier))
        pass_dependency(g, barrier)
    memory = g.launch.memory
    if src.startswith("shared"):
        from_cta, from_offset = shared_cta(g, b)
        from_cta.smem.need_computed(from_offset, from_offset + n)
        key = landing[0][2].key
        reading = from_cta.smem.begin(from_offset, from_offset + n, False, origin, g.warp.actor, key, whole=True)
    else:
        memory.view(b, n)
        note_global(g, b, n, False, origin, landing[0][2].key, 0)
    hands_on = handed_on(g)

    def land():
        if src.startswith("shared"):
            image = from_cta.smem.bytes[from_offset : from_offset + n].copy()
            from_cta.smem.end(reading, True)
        else:
            image = memory.view(b, n)
        for cta, op, barrier in landing:
            target = cta.smem.bytes[offset : offset + n]
            if reduction:
                tma.bulk_reduce(target, image, *reduction)
            else:
                target[:] = image
                cta.smem.end(op, True)
            barrier.transaction(-n, origin, landed(op, hands_on) if op else hands_on)

    if src.startswith("shared"):
        when = g.clock.shared_copy(g, n)
    else:
        when = g.clock.bulk_load(g, b, n, targets, policy)
    arrive(g, when, origin, land)


def _bulk_to_global(g: LaneGroup, p, a, b, n, origin, reduction):
    cta, offset = shared_cta(g, b)
    key, writing = store_keys(g, p)
    reading = cta.smem.begin(offset, offset + n, False, origin, g.warp.actor, key, whole=True, note=EXIT)
    memory = g.launch.memory
    memory.view(a, n, True)

    def write(image, view):
        target = view(a, n, True)
        if reduction:
            tma.bulk_reduce(target, image, *reduction)
        else:
            target[:] = image

    def source():
        return cta.smem.bytes[offset : offset + n].copy()

    idle = partial(changes_nothing, g, source, write)
    note_global(g, a, n, True, origin, writing, STRONG if reduction else 0, idle=idle)
    times = g.clock.bulk_store(g, a, n, bool(reduction))
    _store_later(g, p, Storing(cta, reading, source, write, origin, 0 if reduction else n), times)


def bulk_prefetch(g: LaneGroup, address, size, mask):
    for p in active(g, mask):
        a, n = pick(address, p), pick(size, p)
        g.launch.memory.view(a, n)
        g.clock.bulk_prefetch(g, a, n)


def bulk_groups(g: LaneGroup, p: int) -> BulkGroups:
    lane = int(g.lanes[p])
    groups = g.warp.bulk.get(lane)
    if groups is None:
        groups = g.warp.bulk[lane] = BulkGroups()
    return groups


def bulk_commit(g: LaneGroup, mask):
    for p in active(g, mask):
        lane = int(g.lanes[p])
        if lane in g.warp.bulk:
            g.warp.bulk[lane].commit()


def bulk_wait(g: LaneGroup, allowed: int, read: bool, mask) -> bool:
    waiting = [g.warp.bulk[lane] for lane in map(int, g.lanes[active(g, mask)]) if lane in g.warp.bulk]
    for groups in waiting:
        if groups.unfinished(read, allowed):
            return g.wait_on(groups)
    for p in active(g, mask):
        if groups := g.warp.bulk.get(int(g.lanes[p])):
            if g.launch.checks:
                reads, writes = store_keys(g, p)
                for key in (reads,) if read else (reads, writes):
                    g.warp.actor.completed(key, groups.newest(allowed))
            groups.awaited(allowed)
    return True


# -- cp.async ----------------------------------------------------------------------------------------------
def cp_async(g: LaneGroup, dst, src, size: int, source_size, mask):
    """Per-thread copies: they land when waited for, which is as late as they may. Lanes may make the same one.

    Lanes that write side by side, as they mostly do, are one operation on what they write together."""
    lanes = slice(None) if mask is True else mask
    to, read, n = (g.lane_array(x, 64)[lanes].astype(np.int64) for x in (dst, src, source_size))
    if not len(to):
        return
    n = np.minimum(n, size)  # 9.7.9.25.3.1: src-size bytes are read, zeros fill the rest
    if ((to | read) & size - 1).any():
        bad = int(np.flatnonzero((to | read) & size - 1)[0])
        raise Fault("misaligned", f"cp.async of {size} bytes from {int(read[bad]):#x} to {int(to[bad]):#x}")
    # several lanes may copy to one place, as CuTe DSL's blockwise_gemm.py has them do
    key, origin = g.warp.actor.copier(), g.origin("cp.async")
    _ask_for(g, read, n, size)
    for width in np.unique(n[n > 0]).tolist() if (n < size).any() else (size,):
        note_global(g, read[n == width], width, False, origin, key)
    if (np.diff(to) != size).any():
        order = np.argsort(to, kind="stable")
        to, read, n = to[order], read[order], n[order]
    ranks = to >> RANK_SHIFT
    if ranks[0] == ranks[-1]:
        _begin_copies(g, to, read, n, size, origin, key)
    else:
        for rank in np.unique(ranks):
            here = ranks == rank
            _begin_copies(g, to[here], read[here], n[here], size, origin, key)


class Landing(NamedTuple):
    """Copies that land together. rows: of each operation, see native/access.py, begin_copy. op: what is in flight.
    drops: how many regions of global memory had gone when somebody saw what is read, or -1."""

    cta: Any
    rows: np.ndarray
    op: Any
    drops: int = -1


class Turn:
    """Copies of a group that machine code has begun in one turn: one entry of what is in flight, until somebody asks.

    rows, drops: see Landing. number: the event of the last one. origin: names an instruction by its number.
    """

    __slots__ = ("by", "rows", "origin", "drops", "lo", "hi", "number", "made")
    writes = True

    def __init__(self, g: LaneGroup, rows: np.ndarray, within: tuple[int, int], number: int, origin):
        self.by, self.rows, self.origin, self.drops = g.warp.actor, rows, origin, g.launch.memory.drops
        (self.lo, self.hi), self.number = within, number
        self.made: list[InFlight] | None = None

    @property
    def each(self) -> list[InFlight]:
        """They one by one, as Python would have begun them."""
        if self.made is None:
            self.made = [self._operation(row) for row in self.rows]
        return self.made

    def _operation(self, row: np.ndarray) -> InFlight:
        number, step, size, count, lo, hi, gaps = row[: fields.GAPS + 1].tolist()
        words = _words_of(row[fields.TO : fields.TO + count], size) if gaps else None
        return InFlight(lo, hi, True, self.origin(step), self.by.copier(), number, "", words, self.by)


def _begin_copies(g: LaneGroup, to: np.ndarray, read: np.ndarray, n: np.ndarray, size: int, origin, key) -> None:
    """Copies to `size` bytes each, ascending, as one operation: of n bytes at each `read`."""
    cta, lo = shared_cta(g, int(to[0]))
    at = to - int(to[0]) + lo
    hi, words = int(at[-1]) + size, None
    if hi - lo != size * len(to):  # gaps, or two copies to one place
        words = _words_of(np.unique(at), size)
    op = cta.smem.begin(lo, hi, True, origin, g.warp.actor, key, words, owner=g.warp.actor)
    rows = np.zeros((1, fields.COPY), np.int64)
    rows[0, : fields.FIRST] = op.number, 0, size, len(to)
    for first, values in ((fields.TO, at), (fields.FROM, read), (fields.READ, n)):
        rows[0, first : first + len(to)] = values
    open_copies(g).append(Landing(cta, rows, op))


def _words_of(to: np.ndarray, size: int) -> np.ndarray:
    """The words to which copies of `size` bytes each go."""
    return (to[:, None] // WORD + np.arange(size // WORD)).ravel()


def begun(g: LaneGroup, rows: np.ndarray, origin) -> None:
    """Machine code has begun copies, and ended groups. rows: see native/access.py, begin_copy. origin: names a
    warp's instruction by its number."""
    numbers, _, sizes, _, los, his = rows[:, : fields.GAPS].T.tolist()
    first = 0
    for end in (*(k for k, size in enumerate(sizes) if not size), len(sizes)):
        if first < end:
            within = min(los[first:end]), max(his[first:end])
            turn = Turn(g, rows[first:end], within, numbers[end - 1], partial(origin, g.warp.actor))
            g.cta.smem.has_begun(turn)
            open_copies(g).append(Landing(g.cta, turn.rows, turn, turn.drops))
        if end < len(sizes):
            cp_async_commit(g)
        first = end + 1


def _ask_for(g: LaneGroup, read: np.ndarray, n: np.ndarray, size: int) -> None:
    """Tell the clock what lanes read."""
    if n.any():
        copies, read = open_copies(g), read if n.all() else read[n > 0]
        copies.land = max(copies.land, g.clock.async_load(g, read.view(np.uint64), size))


def open_copies(g: LaneGroup) -> Copies:
    if not g.warp.copies:
        g.warp.copies.append(Copies())
    return g.warp.copies[-1]


def cp_async_commit(g: LaneGroup):
    open_copies(g)
    g.warp.copies.append(Copies())


def cp_async_wait(g: LaneGroup, allowed: int | None) -> bool:
    """Wait for all but `allowed` groups; None: for all copies, uncommitted ones too (9.7.9.25.3.3)."""
    if allowed is None:
        cp_async_commit(g)
        allowed = 0
    groups, landing = g.warp.copies, Copies()
    while len(groups) - 1 > allowed:
        g.clock.landed(g, groups[0].land)
        landing += groups.pop(0)
    if landing:
        _land_copies(g, landing)
        g.warp.actor.completed(g.warp.actor.copier(), landing[-1].op.number)
    return True


def _land_copies(g: LaneGroup, group):
    """Let copies land: their own threads may read them once they have waited, others after a barrier."""
    memory = g.launch.memory
    for cta, rows, op, drops in group:
        for row in rows if drops != memory.drops else ():
            _look(memory, *(row[first : first + row[fields.LANE_COUNT]] for first in (fields.FROM, fields.READ)))
        rules.end_copies.compiled(window_of(cta.smem).at, pointer(rows), len(rows))
        cta.smem.has_ended(op)


def _look(memory, read: np.ndarray, n: np.ndarray) -> None:
    """Raise a Fault unless n bytes at each `read` are there."""
    read, n = read[n > 0], n[n > 0]
    first, end = int(read.min(initial=1 << 62)), int((read + n).max(initial=0))
    if len(n) and not (memory.covers(first, end - first) and memory.at_or_before(first).not_computed is None):
        for address, size in zip(read.tolist(), n.tolist(), strict=True):
            memory.view(address, size)


def cp_async_arrive(g: LaneGroup, address, noinc: bool, mask):
    """The arrival is made when the copies so far have landed; without .noinc it is announced now."""
    barriers = [barrier_at(g, pick(address, p)) for p in active(g, mask)]
    if not barriers:
        return
    groups, g.warp.copies = g.warp.copies, []
    origin, hands_on = g.origin("cp.async.mbarrier.arrive"), handed_on(g)
    if hands_on and (copies := [copy for group in groups for copy in group]):
        hands_on.clock[KNOWN, g.warp.actor.copier()[1]] = copies[-1].op.number
    if not noinc:
        for barrier in barriers:
            barrier.announce()

    def land():
        for group in groups:
            _land_copies(g, group)
        for barrier in barriers:
            barrier.arrive(who=origin, hands_on=hands_on)

    g.later(g.clock.copied(g, max((group.land for group in groups), default=0.0)), origin, land)


# -- cluster launch control (9.7.13.17) --------------------------------------------------------------------
def cluster_launch_cancel(g: LaneGroup, to, bar, multicast: bool, mask):
    for p in active(g, mask):
        address, barrier_address = pick(to, p), pick(bar, p)
        owner, offset = shared_cta(g, address)
        if offset % 16:
            raise Fault("misaligned", f"clusterlaunchcontrol result at shared {offset:#x}")
        targets = g.cta.cluster.ctas if multicast else [owner]
        origin = g.origin("clusterlaunchcontrol.try_cancel")
        ops = []
        for cta in targets:
            check_running(g, cta)
            barrier = cta.barrier(barrier_address & OFFSET_MASK, g.warp, True)
            op = cta.smem.begin(offset, offset + 16, True, origin, g.warp.actor, barrier.key)
            ops.append((cta, op, barrier))
        hands_on = handed_on(g)

        def land(offset=offset, ops=ops, origin=origin, hands_on=hands_on):
            first = g.launch.take_pending_cluster()
            # The 16 bytes are opaque to programs: valid flag, then the first CTA's x, y, z.
            words = [0, 0, 0, 0] if first is None else [1, *first]
            for cta, op, barrier in ops:
                cta.smem.bytes[offset : offset + 16] = np.array(words, np.uint32).view(np.uint8)
                cta.smem.end(op, True)
                barrier.transaction(-16, origin, landed(op, hands_on))

        g.later(g.clock.remote(g), origin, land)


def is_canceled(value):
    return np.array([bool(v & 1) for v in value]) if alu.is_array(value) else bool(value & 1)


def first_ctaid(value):
    if alu.is_array(value):
        return tuple(np.array([v >> s & 0xFFFFFFFF for v in value], np.uint32) for s in (32, 64, 96)) + (0,)
    return tuple(value >> s & 0xFFFFFFFF for s in (32, 64, 96)) + (0,)
