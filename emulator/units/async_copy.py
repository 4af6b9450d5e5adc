"""Issue of asynchronous copies by a group: TMA, bulk copies, cp.async, cluster launch control (PTX ISA 9.7.9.25).

Each copy is decided at issue (addresses, descriptor, targets) and lands later, when the schedule says so: only then
does it read its source and write its destination. Global and shared sources are therefore seen as they are at landing
time, the latest that the ISA allows for a source that nobody may touch in between.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..errors import Fault
from ..formats import alu, swizzle
from ..state.barrier import Waitable
from ..state.shared_memory import OFFSET_MASK
from . import tma


class BulkGroups(Waitable):
    """The bulk async-groups of one thread: open operations, and for each committed group what is unfinished."""

    __slots__ = ("open", "committed")

    def __init__(self):
        super().__init__()
        self.open: list[StoreOp] = []
        self.committed: list[list[StoreOp]] = []

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

    def _older(self, allowed: int) -> list[list[StoreOp]]:
        return self.committed[: max(0, len(self.committed) - allowed)]

    def __str__(self):
        return f"bulk async-groups ({len(self.committed)} committed)"


class StoreOp:
    """One bulk store: `read` once its source is free, `done` once its destination is written.

    `awaited` once its thread has waited for either.
    """

    __slots__ = ("what", "read", "done", "awaited", "owner")

    def __init__(self, owner: BulkGroups, what):
        self.what = what
        self.read = self.done = self.awaited = False
        self.owner = owner
        owner.open.append(self)


class AsyncCopy:
    """Mixin of Group."""

    def arrive(self, when: float, origin, land):
        """A copy lands at `when`, or later if the clock finds that others have gone before it."""
        decided = self.clock.decided(when)
        if decided == when:
            self.later(when, origin, land)
        else:
            self.engine.at(decided, lambda: self.later(self.clock.overtaken(when), origin, land))

    # -- tensor copies -----------------------------------------------------------------------------------------
    def note_box(self, tm, at, mode: str, write: bool):
        """A tensor copy touches a box of global memory."""
        if self.launch.dependencies.wants(self, write):
            boxes = [at] if mode == "tile" else [(at[0], row) for row in at[1:]]
            for box in boxes:
                starts, nbytes = tma.row_addresses(tm, box, write)
                if len(starts):
                    self.launch.dependencies.note(self, starts, nbytes, write)

    def tma_load(self, dst, tensor, coords, bar, rank, mode, multicast, pair, policy, mask):
        for p in self.active(mask):
            map_at = self.pick(tensor, p)
            tm = self.tensor_map(map_at, 2 if mode == "tile::gather4" else rank)
            at = tuple(alu.signed(self.pick(c, p), 32) for c in coords)
            boxes = 4 if mode == "tile::gather4" else 1
            nbytes = tm.box_bytes * boxes
            address, barrier_address = self.pick(dst, p), self.pick(bar, p)
            owner, offset = self.shared_cta(address)
            if offset % 128:
                raise Fault("misaligned", f"TMA load to shared {offset:#x}: must be 128-byte aligned")
            targets = [owner] if multicast is None else self.multicast_ctas(self.pick(multicast, p))
            origin = self.origin("TMA load")
            landing = []
            for cta in targets:
                self.check_running(cta)
                barrier = self._copy_barrier(cta, owner, barrier_address, multicast is not None, pair)
                self.clock.trace.completes(barrier, "load")
                op = cta.smem.begin(offset, offset + tm.shared_bytes * boxes, True, origin, self.warp.actor)
                landing.append((cta, op, barrier))
                self.pass_dependency(barrier)
            self.note_box(tm, at, mode, False)
            load = tma.load_gather4 if mode == "tile::gather4" else tma.load_box

            def bring(ctas, tm=tm, at=at, load=load, offset=offset):
                image = load(tm, at, self.launch.memory.view)
                for cta in ctas:
                    swizzle.scatter(cta.smem.bytes, offset, image, tm.swizzle, tm.atom, tm.row_bytes)

            def land(bring=bring, targets=targets, landing=landing, nbytes=nbytes, origin=origin):
                if self.clock.moves_data:
                    bring(targets)
                for cta, op, barrier in landing:
                    if not self.clock.moves_data:
                        cta.smem.leave_out(op.lo, op.hi, partial(bring, [cta]))
                    cta.smem.end(op)
                    barrier.transaction(-nbytes, origin)

            of_lane = self.pick(policy, p)
            self.arrive(self.clock.tma_load(self, tm, map_at, at, nbytes, targets, of_lane), origin, land)

    def _copy_barrier(self, cta, owner, address: int, multicast: bool, pair: bool):
        """The mbarrier that a copy into `cta` signals: at the same offset there, or in one CTA of its pair."""
        rank, offset = address >> 24, address & OFFSET_MASK
        if pair:
            return self.cta.cluster.ctas[(cta.rank & ~1) | (rank & 1)].barrier(offset, self.warp, True)
        if multicast:
            return cta.barrier(offset, self.warp, True)
        if rank != owner.rank:
            raise Fault("mbarrier", "copy and mbarrier in different CTAs, without .cta_group::2")
        return owner.barrier(offset, self.warp, True)

    def tma_store(self, tensor, coords, src, rank, mode, reduction, mask):
        issued = {}  # a whole warp that stores one box takes the time of one: CuTe DSL's kernels elect no lane
        lanes = self.active(mask)
        if not self.clock.moves_data and not reduction and not any(map(alu.is_array, (tensor, src, *coords))):
            lanes = lanes[:1]  # which then need not be done again and again
        for p in lanes:
            map_at = self.pick(tensor, p)
            tm = self.tensor_map(map_at, 2 if mode == "tile::scatter4" else rank)
            at = tuple(alu.signed(self.pick(c, p), 32) for c in coords)
            boxes = 4 if mode == "tile::scatter4" else 1
            nbytes = tm.box_bytes * boxes
            cta, offset = self.shared_cta(self.pick(src, p))
            if offset % 128:
                raise Fault("misaligned", f"TMA store from shared {offset:#x}: must be 128-byte aligned")
            origin = self.origin("TMA store")
            whole = not tm.swizzle or tm.row_bytes == tm.swizzle  # then no padding
            whole = whole and mode == "tile" and tma.inside(tm, at)
            reading = cta.smem.begin(
                offset, offset + tm.shared_bytes * boxes, False, origin, self.warp.actor, whole=whole
            )
            self.note_box(tm, at, mode, True)

            def write(image, tm=tm, at=at):
                if reduction:
                    tma.reduce_box(tm, at, image, reduction, self.launch.memory.view)
                elif mode == "tile::scatter4":
                    tma.store_scatter4(tm, at, image, self.launch.memory.view)
                else:
                    tma.store_box(tm, at, image, self.launch.memory.view)

            def source(cta=cta, offset=offset, nbytes=nbytes, tm=tm):
                return swizzle.gather(cta.smem.bytes, offset, nbytes, tm.swizzle, tm.atom, tm.row_bytes)

            box = (cta, offset, at, id(tm))
            if box not in issued:
                issued[box] = self.clock.tma_store(self, tm, map_at, at, nbytes)
            self._store_later(p, cta, reading, source, write, issued[box], origin)

    def _store_later(self, p: int, cta, reading, source, write, times: tuple[float, float], origin):
        op = StoreOp(self.bulk_groups(p), origin)
        engine = self.engine

        def read():
            image = source()
            cta.smem.end(reading)
            op.read = True
            op.owner.wake()

            def finish():
                write(image)
                op.done = True
                engine.progress += 1
                op.owner.wake()

            self.later(times[1], origin, finish)

        self.later(times[0], origin, read)

    def tma_prefetch(self, tensor, coords, rank, mask):
        """A hint: nothing that a program can see, but the descriptor and the coordinates must be sound."""
        for p in self.active(mask):
            map_at = self.pick(tensor, p)
            tm = self.tensor_map(map_at, rank)
            at = tuple(alu.signed(self.pick(c, p), 32) for c in coords)
            self.clock.tma_prefetch(self, tm, map_at, at, tm.box_bytes)

    # -- bulk copies -------------------------------------------------------------------------------------------
    def bulk_copy(self, dst, to, src, what, size, bar, multicast, policy, mask, reduction=None):
        for p in self.active(mask):
            n, a, b = self.pick(size, p), self.pick(to, p), self.pick(what, p)
            if n % 16 or a % 16 or b % 16:
                raise Fault("misaligned", f"bulk copy of {n} bytes from {b:#x} to {a:#x}: all must be multiples of 16")
            if n == 0:
                continue
            origin = self.origin("bulk copy")
            if dst.startswith("shared"):
                at = self.pick(bar, p)
                self._bulk_to_shared(p, a, src, b, n, at, multicast, self.pick(policy, p), origin, reduction)
            else:
                self._bulk_to_global(p, a, b, n, origin, reduction)

    def _bulk_to_shared(self, p, a, src, b, n, bar, multicast, policy, origin, reduction):
        owner, offset = self.shared_cta(a)
        targets = [owner] if multicast is None else self.multicast_ctas(self.pick(multicast, p))
        landing = []
        for cta in targets:
            self.check_running(cta)
            barrier = self._copy_barrier(cta, owner, bar, multicast is not None, False)
            self.clock.trace.completes(barrier, "load")
            op = None if reduction else cta.smem.begin(offset, offset + n, True, origin, self.warp.actor)
            landing.append((cta, op, barrier))
            self.pass_dependency(barrier)
        memory = self.launch.memory
        if src.startswith("shared"):
            from_cta, from_offset = self.shared_cta(b)
            reading = from_cta.smem.begin(from_offset, from_offset + n, False, origin, self.warp.actor, whole=True)
        else:
            memory.view(b, n)
            self.note_global(b, n, False)

        def land():
            if src.startswith("shared"):
                image = from_cta.smem.bytes[from_offset : from_offset + n].copy()
                from_cta.smem.end(reading)
            else:
                image = memory.view(b, n)
            for cta, op, barrier in landing:
                target = cta.smem.bytes[offset : offset + n]
                if reduction:
                    tma.bulk_reduce(target, image, *reduction)
                else:
                    target[:] = image
                    cta.smem.end(op)
                barrier.transaction(-n, origin)

        if src.startswith("shared"):
            when = self.clock.shared_copy(self, n)
        else:
            when = self.clock.bulk_load(self, b, n, targets, policy)
        self.arrive(when, origin, land)

    def _bulk_to_global(self, p, a, b, n, origin, reduction):
        cta, offset = self.shared_cta(b)
        reading = cta.smem.begin(offset, offset + n, False, origin, self.warp.actor, whole=True)
        memory = self.launch.memory
        memory.view(a, n, True)
        self.note_global(a, n, True)

        def write(image):
            target = memory.view(a, n, True)
            if reduction:
                tma.bulk_reduce(target, image, *reduction)
            else:
                target[:] = image

        times = self.clock.bulk_store(self, a, n)
        self._store_later(p, cta, reading, lambda: cta.smem.bytes[offset : offset + n].copy(), write, times, origin)

    def bulk_prefetch(self, address, size, mask):
        for p in self.active(mask):
            a, n = self.pick(address, p), self.pick(size, p)
            self.launch.memory.view(a, n)
            self.clock.bulk_prefetch(self, a, n)

    def bulk_groups(self, p: int) -> BulkGroups:
        lane = int(self.lanes[p])
        groups = self.warp.bulk.get(lane)
        if groups is None:
            groups = self.warp.bulk[lane] = BulkGroups()
        return groups

    def bulk_commit(self, mask):
        for p in self.active(mask):
            lane = int(self.lanes[p])
            if lane in self.warp.bulk:
                self.warp.bulk[lane].commit()

    def bulk_wait(self, allowed: int, read: bool, mask) -> bool:
        waiting = [self.warp.bulk[lane] for lane in map(int, self.lanes[self.active(mask)]) if lane in self.warp.bulk]
        for groups in waiting:
            if groups.unfinished(read, allowed):
                return self.wait_on(groups)
        for groups in waiting:
            groups.awaited(allowed)
        self.waited()
        return True

    # -- cp.async ----------------------------------------------------------------------------------------------
    def cp_async(self, dst, src, size: int, source_size, mask):
        """Per-thread copies: they land when waited for, which is as late as they may. Lanes may make the same one."""
        made = set()
        for p in self.active(mask):
            a, b, n = copy = self.pick(dst, p), self.pick(src, p), self.pick(source_size, p)
            if copy in made:
                continue
            made.add(copy)
            if a % size or b % size:
                raise Fault("misaligned", f"cp.async of {size} bytes from {b:#x} to {a:#x}")
            cta, offset = self.shared_cta(a)
            actor = self.warp.actor  # several lanes may copy to one place, as CuTe DSL's blockwise_gemm.py has them do
            op = cta.smem.begin(offset, offset + size, True, self.origin("cp.async"), actor, owner=actor)
            n = min(n, size)  # 9.7.9.25.3.1: src-size bytes are read, zeros fill the rest
            if n:
                self.note_global(b, n, False)
            self.open_copies().append((cta, offset, b, n, size, op))

    def open_copies(self) -> list:
        if not self.warp.copies:
            self.warp.copies.append([])
        return self.warp.copies[-1]

    def cp_async_commit(self):
        self.open_copies()
        self.warp.copies.append([])

    def cp_async_wait(self, allowed: int | None) -> bool:
        """None: for all, those that are not committed too (wait_all, 9.7.9.25.3.3)."""
        if allowed is None:
            self.cp_async_commit()
            allowed = 0
        groups = self.warp.copies
        while len(groups) - 1 > allowed:
            self._land_copies(groups.pop(0))
        self.waited()
        return True

    def _land_copies(self, group):
        for cta, offset, b, n, size, op in group:
            image = np.zeros(size, np.uint8)
            if n:
                image[:n] = self.launch.memory.view(b, n)
            cta.smem.bytes[offset : offset + size] = image
            cta.smem.end(op)  # its own threads may read them once they have waited, others after a barrier

    def cp_async_arrive(self, address, noinc: bool, mask):
        """The arrival is made when the copies so far have landed; without .noinc it is announced now."""
        groups, self.warp.copies = self.warp.copies, []
        barriers = [self.barrier_at(self.pick(address, p)) for p in self.active(mask)]
        origin = self.origin("cp.async.mbarrier.arrive")
        if not noinc:
            for barrier in barriers:
                barrier.announce()

        def land():
            for group in groups:
                self._land_copies(group)
            for barrier in barriers:
                barrier.arrive(who=origin)

        self.later(self.clock.shared_copy(self, 0), origin, land)

    # -- cluster launch control (9.7.13.17) --------------------------------------------------------------------
    def cluster_launch_cancel(self, to, bar, multicast: bool, mask):
        for p in self.active(mask):
            address, barrier_address = self.pick(to, p), self.pick(bar, p)
            owner, offset = self.shared_cta(address)
            if offset % 16:
                raise Fault("misaligned", f"clusterlaunchcontrol result at shared {offset:#x}")
            targets = self.cta.cluster.ctas if multicast else [owner]
            origin = self.origin("clusterlaunchcontrol.try_cancel")
            ops = []
            for c in targets:
                self.check_running(c)
                op = c.smem.begin(offset, offset + 16, True, origin, self.warp.actor)
                ops.append((c, op, c.barrier(barrier_address & OFFSET_MASK, self.warp, True)))

            def land(offset=offset, ops=ops, origin=origin):
                first = self.launch.take_pending_cluster()
                # The 16 bytes are opaque to programs: valid flag, then the first CTA's x, y, z.
                words = [0, 0, 0, 0] if first is None else [1, *first]
                for cta, op, barrier in ops:
                    cta.smem.bytes[offset : offset + 16] = np.array(words, np.uint32).view(np.uint8)
                    cta.smem.end(op)
                    barrier.transaction(-16, origin)

            self.later(self.clock.remote(self), origin, land)

    def is_canceled(self, value):
        return np.array([bool(v & 1) for v in value]) if alu.is_array(value) else bool(value & 1)

    def first_ctaid(self, value):
        if alu.is_array(value):
            return tuple(np.array([v >> s & 0xFFFFFFFF for v in value], np.uint32) for s in (32, 64, 96)) + (0,)
        return tuple(value >> s & 0xFFFFFFFF for s in (32, 64, 96)) + (0,)
