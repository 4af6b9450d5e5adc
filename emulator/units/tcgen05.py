"""Issue of tcgen05 instructions by a group (PTX ISA 9.7.16): the pipe, its order, and what is in flight.

cp, mma, shift and commit of one CTA go through one pipe in order (9.7.16.6.2: implicitly pipelined); ld and st are
separate and complete only for tcgen05.wait. Arithmetic and layouts live in mma.py and state/tensor_memory.py.
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault, Unsupported
from ..formats import alu, matrix_descriptor
from ..formats.instruction_descriptor import MmaForm
from ..state.barrier import Collective
from . import mma


class Pipe:
    """The tensor core's queue of one CTA: operations execute in the order of issue."""

    def __init__(self, engine):
        self.engine = engine
        self.last = 0.0

    def push(self, when: float, call):
        self.occupy(when)
        self.engine.at(self.last, call)

    def occupy(self, when: float):
        """An operation that changes nothing but the time at which later ones can execute."""
        self.last = max(self.last, when)


ALL = slice(None)  # the quadrants of tensor memory: lanes 32 * q .. 32 * q + 31 belong to warps with number % 4 == q


class Accumulating:
    """Tensor memory columns that an operation in flight writes."""

    __slots__ = ("lo", "hi", "what")

    def __init__(self, lo: int, hi: int, what):
        self.lo, self.hi, self.what = lo, hi, what


class Loading:
    """A tcgen05.ld before its wait::ld: registers (numbers, -1 for _), fetch() their values, columns it reads."""

    __slots__ = ("registers", "fetch", "lo", "hi", "origin", "delivered")

    def __init__(self, registers, fetch, lo: int, hi: int, origin):
        self.registers, self.fetch, self.lo, self.hi, self.origin = registers, fetch, lo, hi, origin
        self.delivered = False


class TensorCore:
    """Mixin of Group."""

    # -- allocation --------------------------------------------------------------------------------------------
    def together(self, what: str, columns: int, pair: bool) -> Collective:
        """This warp comes to what it does with one of the pair's other CTA (.cta_group::2), or else alone."""
        if self.token is None:
            ctas = self.cta.cluster.pair(self.cta.rank) if pair else [self.cta]
            self.token = self.cta.cluster.collective(what, columns, ctas, self.cta)
            self.engine.progress += 1
        return self.token

    def tmem_alloc(self, address, columns, pair: bool) -> bool:
        """Both CTAs of a pair get their columns at once, when both have come and both have room (9.7.16.7)."""
        self.need_whole_warp("tcgen05.alloc")
        columns = int(self.pick(columns, 0))
        all_here = self.together("tcgen05.alloc", columns, pair)
        if not all_here.complete:
            return self.wait_on(all_here)
        if all_here.results is None:
            for cta in all_here.ctas:
                if not cta.tmem_room(columns):
                    return self.wait_on(cta.resources)
            all_here.results = [cta.tmem_alloc(columns) for cta in all_here.ctas]
            all_here.wake()
        self.token = None
        base = all_here.results[all_here.ctas.index(self.cta)]
        cta, offset = self.shared_cta(self.pick(address, 0) & 0xFFFFFFFF)
        cta.smem.begin_end_write(offset, 4, self.warp.actor, self.origin("tcgen05.alloc"))
        cta.smem.views[4][offset // 4] = base
        return True

    def tmem_dealloc(self, address, columns, pair: bool) -> bool:
        """The columns of a pair are free for others when both CTAs have come; each may not use its own from then on.

        For it is left open whether the first one waits (9.7.16.5).
        """
        self.need_whole_warp("tcgen05.dealloc")
        address, columns = int(self.pick(address, 0)), int(self.pick(columns, 0))
        if self.token is None:
            lo = address & 0xFFFF
            self.check_tmem(lo, lo + columns, "tcgen05.dealloc")
            self.check_waits(self.cta, lo, lo + columns, "tcgen05.dealloc", delivered=False)
            if self.launch.checks:
                self.cta.tmem.check_order(ALL, lo, lo + columns, self.warp.actor, True, "tcgen05.dealloc")
            self.cta.tmem.close(address, columns)
        all_here = self.together("tcgen05.dealloc", columns, pair)
        if not all_here.complete:
            return self.wait_on(all_here)
        self.token = None
        self.cta.tmem_dealloc(address, columns)
        all_here.wake()
        return True

    def tmem_relinquish(self):
        self.need_whole_warp("tcgen05.relinquish_alloc_permit")
        self.cta.tmem.relinquish()

    def check_tmem(self, lo: int, hi: int, what: str):
        for op in self.cta.accumulating if self.launch.checks else ():
            if op.lo < hi and lo < op.hi:
                message = f"{what} of tensor memory columns {lo}..{hi - 1} that {op.what} has not finished"
                self.launch.found(Fault("tmem-race", message))

    # -- mma, cp, shift, commit --------------------------------------------------------------------------------
    def tensor_ctas(self, pair: bool) -> list:
        if not pair:
            return [self.cta]
        ctas = self.cta.cluster.pair(self.cta.rank)
        self.check_running(ctas[~self.cta.rank & 1])
        return ctas

    def mma(self, form: MmaForm, d, a, b, idesc, accumulate, sfa, sfb, disable, mask):
        """Operands as in mma.Operands, idesc the instruction descriptor, disable: disable-output-lane or None."""
        pair = form.cta_group == 2
        for p in self.active(mask):
            d_, a_, b_, accumulate_ = (self.pick(v, p) for v in (d, a, b, accumulate))
            sfa_, sfb_ = (None if v is None else self.pick(v, p) for v in (sfa, sfb))
            if any(self.pick(v, p) for v in disable or ()):
                raise Unsupported("tcgen05.mma with disable-output-lane")
            ctas = self.tensor_ctas(pair)
            description = form.decode(self.pick(idesc, p))
            if not self.clock.moves_data:
                self.cta.pipe.occupy(self.clock.mma(self, description, pair, form.a_in_tmem))
                continue
            origin = self.origin("tcgen05.mma")
            reading = []
            for cta in ctas:
                if not form.a_in_tmem:
                    reading.append((cta, self._operand(cta, a_, description, form.cta_group, True, origin)))
                reading.append((cta, self._operand(cta, b_, description, form.cta_group, False, origin)))
            writing = [(cta, Accumulating(*mma.accumulator_columns(d_, description, pair), origin)) for cta in ctas]
            if form.shift_a:
                writing += [(cta, Accumulating(a_ & 0xFFFF, (a_ & 0xFFFF) + 8, origin)) for cta in ctas]
            for cta, op in writing:
                self._begin_write(cta, op, ALL, origin)
                for operand in (a_ if form.a_in_tmem else None, sfa_, sfb_) if self.launch.checks else ():
                    if operand is not None:
                        self._check_operand(cta, operand & 0xFFFF, 8 if operand is a_ else 1, origin)

            operands = mma.Operands(d_, a_, b_, accumulate_, sfa_, sfb_)

            def execute(description=description, operands=operands, ctas=ctas, reading=reading, writing=writing):
                mma.execute(form, description, operands, [(cta.smem.bytes, cta.tmem) for cta in ctas])
                for cta, op in reading:
                    cta.smem.end(op)
                self._landed(writing)

            self._push(execute, origin, self.clock.mma(self, description, pair, form.a_in_tmem))

    def _check_operand(self, cta, lo: int, columns: int, origin):
        """An operand that threads may have stored in tensor memory must be complete."""
        for warp in cta.warps:
            for g in warp.groups:
                for _, first, last, store in g.stores:
                    if first < lo + columns and lo < last:
                        message = f"{origin} reads column {lo} that {store} may not have written yet"
                        self.launch.found(Fault("tmem-race", message))
        cta.tmem.check_order(ALL, lo, lo + columns, self.warp.actor, False, origin, in_pipe=True)

    def _begin_write(self, cta, op: Accumulating, lanes, origin):
        """An operation of the tensor core will write its columns in these quadrants."""
        self.check_waits(cta, op.lo, op.hi, origin)
        if self.launch.checks:
            cta.tmem.check_order(lanes, op.lo, op.hi, self.warp.actor, True, origin, in_pipe=True)
        cta.accumulating.append(op)

    def _landed(self, writing):
        """Operations of the tensor core have written their columns."""
        now = self.warp.actor.order.next(writing[0][1].what)
        for cta, op in writing:
            cta.accumulating.remove(op)
            cta.tmem.note_write(ALL, op.lo, op.hi, now)

    def _operand(self, cta, desc: int, description, group: int, of_a: bool, origin):
        rows = (description.m if of_a else description.n) // group
        mn_major = description.a_mn_major if of_a else description.b_mn_major
        element = description.a_type if of_a else description.b_type
        bits = 4 if description.packed_fp4 else max(element.bits, 8)
        lo, hi = matrix_descriptor.byte_ranges(desc, rows, description.k, mn_major, bits)
        chunks = matrix_descriptor.chunks(desc, rows, description.k, mn_major, bits)
        return cta.smem.begin(lo, hi, False, origin, self.warp.actor, chunks)

    def _push(self, execute, origin, when: float):
        def call():
            try:
                execute()
            except Fault as e:
                e.where = e.where or origin.place()
                raise

        self.cta.pipe.push(when, call)

    def check_waits(self, cta, lo: int, hi: int, what, delivered: bool = True):
        """No tcgen05.ld or st that has not been waited for may still touch columns that are to be overwritten or freed.

        delivered: nor a load whose registers have been used; NVIDIA's tutorials free the columns of such loads.
        """
        for warp in cta.warps if self.launch.checks else ():
            for g in warp.groups:
                for load in g.loads:
                    if load.lo < hi and lo < load.hi and (delivered or not load.delivered):
                        message = f"{what} of tensor memory columns {lo}..{hi - 1} that {load.origin} may still read"
                        self.launch.found(Fault("tmem-race", message))
                for _, first, last, store in g.stores:
                    if first < hi and lo < last:
                        message = f"{what} of tensor memory columns {lo}..{hi - 1} that {store} may still write"
                        self.launch.found(Fault("tmem-race", message))

    def tcgen05_cp(self, shape, multicast, packed, pair, address, desc, mask):
        for p in self.active(mask):
            rows, row_bytes = {
                "128x256b": (128, 32), "128x128b": (128, 16), "64x128b": (64, 16), "32x128b": (32, 16),
                "4x256b": (4, 32),
            }[shape]  # fmt: skip
            if not self.clock.moves_data:
                self.cta.pipe.occupy(self.clock.tensor_copy(self, pair))
                continue
            to, desc_ = self.pick(address, p), self.pick(desc, p)
            origin = self.origin("tcgen05.cp")
            ctas = self.tensor_ctas(pair)
            lo, hi = matrix_descriptor.byte_ranges(desc_, rows, row_bytes, False, 8)
            chunks = matrix_descriptor.chunks(desc_, rows, row_bytes, False, 8)
            reading = [(cta, cta.smem.begin(lo, hi, False, origin, self.warp.actor, chunks)) for cta in ctas]
            first = to & 0xFFFF
            writing = [(cta, Accumulating(first, first + row_bytes // 4, origin)) for cta in ctas]
            for cta, op in writing:
                self._begin_write(cta, op, ALL, origin)

            def execute(to=to, desc_=desc_, ctas=ctas, reading=reading, writing=writing):
                for cta in ctas:
                    cta.tmem.copy(cta.smem.bytes, desc_, shape, multicast, to, packed)
                for cta, op in reading:
                    cta.smem.end(op)
                self._landed(writing)

            self._push(execute, origin, self.clock.tensor_copy(self, pair))

    def tcgen05_shift(self, pair, address, mask):
        for p in self.active(mask):
            to, origin = self.pick(address, p), self.origin("tcgen05.shift")
            when = self.clock.tensor_copy(self, pair)
            if not self.clock.moves_data:
                self.cta.pipe.occupy(when)
                continue
            lo, lanes = to & 0xFFFF, to >> 21 & 3
            writing = [(cta, Accumulating(lo, lo + 8, origin)) for cta in self.tensor_ctas(pair)]
            for cta, op in writing:
                self._begin_write(cta, op, lanes, origin)

            def execute(to=to, writing=writing):
                for cta, _ in writing:
                    cta.tmem.shift_down(to)
                self._landed(writing)

            self._push(execute, origin, when)

    def tcgen05_commit(self, address, multicast, mask):
        for p in self.active(mask):
            a = self.pick(address, p)
            owner, offset = self.shared_cta(a)
            targets = [owner] if multicast is None else self.multicast_ctas(self.pick(multicast, p))
            origin = self.origin("tcgen05.commit")
            barriers = [cta.barrier(offset, self.warp, True) for cta in targets]
            for barrier in barriers:
                self.clock.trace.completes(barrier, "mma")
            for cta, barrier in zip(targets, barriers, strict=True):
                self.check_running(cta)
                self.pass_dependency(barrier)
                cta.travelling.append(origin)

            def arrive(targets=targets, barriers=barriers, origin=origin):
                for cta, barrier in zip(targets, barriers, strict=True):
                    cta.travelling.remove(origin)
                    barrier.arrive(who=origin)

            self._push(arrive, origin, self.clock.commit(self))
        self.hesitate()

    # -- ld and st ---------------------------------------------------------------------------------------------
    def _address(self, address) -> int:
        if alu.is_array(address):
            if (address != address[0]).any():
                raise Fault("divergence", "lanes of a warp give different tensor memory addresses")
            return int(address[0])
        return int(address)

    def tcgen05_ld(self, shape, num, pack, split, address, registers):
        self.need_whole_warp("tcgen05.ld")
        address = self._address(address)
        origin = self.origin("tcgen05.ld")
        lo, hi = columns(address, shape, num, pack, split)
        self.check_tmem(lo, hi, "read")
        quadrant = self.warp.index % 4
        tmem = self.cta.tmem
        for _, first, last, store in self.stores if self.launch.checks else ():
            if first < hi and lo < last:
                message = f"read of tensor memory columns {lo}..{hi - 1} that {store} may not have written yet"
                self.launch.found(Fault("tmem-race", message))

        def fetch():
            if not self.clock.moves_data:
                return (0,) * len(registers)
            return tmem.load(address, quadrant, shape, num, pack, split)

        if self.launch.checks:
            fetch()  # misuse shows at the instruction itself
            tmem.check_order(quadrant, lo, hi, self.warp.actor, False, "read of tensor memory")
        early = fetch() if self.clock.tmem_load(self, len(registers)) else None
        self.loads.append(Loading(registers, (lambda: early) if early is not None else fetch, lo, hi, origin))

    def deliver_loads(self):
        """Registers get what they wait for. The loads stay listed until wait::ld: only that orders later writes."""
        if not self.clock.moves_data:
            self.t = max(self.t, self.loads_ready)
        for load in self.loads:
            if not load.delivered:
                load.delivered = True
                for number, values in zip(load.registers, load.fetch(), strict=True):
                    if number >= 0:
                        self.R[number] = values

    def tcgen05_wait_ld(self) -> bool:
        self.need_whole_warp("tcgen05.wait")
        self.deliver_loads()
        for load in self.loads:
            self.cta.tmem.note_read(self.warp.index % 4, load.lo, load.hi, self.warp.actor, load.origin)
        self.loads.clear()
        return True

    def tcgen05_st(self, shape, num, unpack, split, address, values):
        self.need_whole_warp("tcgen05.st")
        address = self._address(address)
        regs = np.stack([self.lane_array(v) for v in values])
        lo, hi = columns(address, shape, num, unpack, split)
        origin = self.origin("tcgen05.st")
        self.check_tmem(lo, hi, "write")
        quadrant, tmem = self.warp.index % 4, self.cta.tmem
        for load in self.loads if self.launch.checks else ():
            if load.lo < hi and lo < load.hi and not load.delivered:
                message = f"write of tensor memory columns {lo}..{hi - 1} that {load.origin} may still read"
                self.launch.found(Fault("tmem-race", message))
        if self.launch.checks:
            tmem.check_order(quadrant, lo, hi, self.warp.actor, True, "write of tensor memory")

        def land():
            tmem.store(address, quadrant, shape, num, regs, unpack, split)

        early = self.clock.tmem_store(self)
        if early:
            land()
        self.stores.append((None if early else land, lo, hi, origin))

    def tcgen05_wait_st(self) -> bool:
        self.need_whole_warp("tcgen05.wait")
        for land, lo, hi, origin in self.stores:
            if land is not None:
                land()
            actor = self.warp.actor
            self.cta.tmem.note_write(self.warp.index % 4, lo, hi, actor.order.next(origin), actor.uid)
        self.stores.clear()
        return True


def columns(address: int, shape: str, num: int, halves: bool, split: int) -> tuple[int, int]:
    """[first, last + 1) of the tensor memory columns that a tcgen05.ld or st touches; halves: .pack or .unpack."""
    span = {"32x32b": num, "16x64b": 2 * num, "16x128b": 4 * num, "16x256b": 8 * num, "16x32bx2": num + split}[shape]
    return address & 0xFFFF, (address & 0xFFFF) + span * (2 if halves else 1)
