"""Issue of tcgen05 instructions by a group (PTX ISA 9.7.16): the pipe, its order, and what is in flight.

cp, mma, shift and commit of one CTA go through one pipe in order (9.7.16.6.2: implicitly pipelined); ld and st are
separate and complete only for tcgen05.wait. Arithmetic and layouts live in mma.py and tmem.py.
"""

from __future__ import annotations

import numpy as np

from . import alu, instruction_descriptor, matrix_descriptor, mma
from .errors import Fault


class Pipe:
    """The tensor core's queue of one CTA: operations execute in the order of issue."""

    def __init__(self, engine):
        self.engine = engine
        self.last = 0.0

    def push(self, when: float, call):
        self.wait(when)
        self.engine.at(self.last, call)

    def wait(self, when: float):
        """An operation that changes nothing but the time at which later ones can execute."""
        self.last = max(self.last, when)


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
    def tmem_alloc(self, address, columns: int, pair: bool) -> bool:
        base = self.cta.tmem_alloc(int(columns))
        if base is None:
            return self.wait_on(self.cta.resources)
        cta, offset = self.shared_cta(self.pick(address, 0) & 0xFFFFFFFF)
        cta.smem.begin_end_write(offset, 4)
        cta.smem.views[4][offset // 4] = base
        return True

    def tmem_dealloc(self, address, columns, pair: bool):
        lo = int(self.pick(address, 0)) & 0xFFFF
        self.check_tmem(lo, lo + int(columns), "tcgen05.dealloc")
        self.cta.tmem_dealloc(int(self.pick(address, 0)), int(columns))

    def tmem_relinquish(self, pair: bool):
        self.cta.tmem.relinquish()

    def check_tmem(self, lo: int, hi: int, what: str, cta=None):
        for op in (cta or self.cta).accumulating:
            if op.lo < hi and lo < op.hi:
                raise Fault("tmem-race", f"{what} of tensor memory columns {lo}..{hi - 1} that {op.what} has not finished")

    # -- mma, cp, shift, commit --------------------------------------------------------------------------------
    def tensor_ctas(self, pair: bool) -> list:
        if not pair:
            return [self.cta]
        ctas = self.cta.cluster.ctas
        even = self.cta.rank & ~1
        if even + 1 >= len(ctas):
            raise Fault("cluster", ".cta_group::2 needs a cluster of an even number of CTAs")
        return ctas[even : even + 2]

    def mma(self, kind, vec, pair, d, a, a_in_tmem, b, idesc, accumulate, sfa, sfb, disable, scale_d, mask):
        group = 2 if pair else 1
        # block16 and block32 are other names of the same factors (table 9.7.16.2.1.2)
        scale_vec = {None: None, "block16": 4, "block32": 2 if kind != "mxf8f6f4" else 1}.get(vec, 0)
        scale_vec = int(vec[-2]) if scale_vec == 0 else scale_vec
        for p in self.active(mask):
            d_, a_, b_, idesc_ = (self.pick(v, p) for v in (d, a, b, idesc))
            accumulate_ = bool(self.pick(accumulate, p))
            sfa_, sfb_ = (None if v is None else self.pick(v, p) for v in (sfa, sfb))
            lanes = () if disable is None else tuple(self.pick(v, p) for v in disable)
            ctas = self.tensor_ctas(pair)
            description = instruction_descriptor.decode(idesc_, kind, group, scale_vec)
            if not self.clock.moves_data:
                self.cta.pipe.wait(self.clock.mma(self, description, pair))
                continue
            origin = self.origin("tcgen05.mma")
            reading = []
            for cta in ctas:
                if not a_in_tmem:
                    reading.append((cta, self._operand(cta, a_, description, group, True, origin)))
                reading.append((cta, self._operand(cta, b_, description, group, False, origin)))
            lo = d_ & 0xFFFF
            columns = description.n if description.m // group != 64 or group == 1 else description.n // 2
            writing = [(cta, Accumulating(lo, lo + columns, origin)) for cta in ctas]
            for cta, op in writing:
                self.check_loads(cta, lo, lo + columns, origin)
                cta.accumulating.append(op)
            units = [cta.unit for cta in ctas]

            def execute(d_=d_, a_=a_, b_=b_, idesc_=idesc_, accumulate_=accumulate_, sfa_=sfa_, sfb_=sfb_,
                        lanes=lanes, units=units, reading=reading, writing=writing):  # fmt: skip
                mma.execute(kind, group, idesc_, d_, a_, b_, units, accumulate_, a_in_tmem, sfa_, sfb_, scale_vec, lanes, scale_d)
                for cta, op in reading:
                    cta.smem.end(op)
                for cta, op in writing:
                    cta.accumulating.remove(op)

            self._push(execute, origin, self.clock.mma(self, description, pair))

    def _operand(self, cta, desc: int, description, group: int, of_a: bool, origin):
        rows = (description.m if of_a else description.n) // group
        mn_major = description.a_mn_major if of_a else description.b_mn_major
        element = description.a_type if of_a else description.b_type
        bits = 4 if description.packed_fp4 else max(element.bits, 8)
        lo, hi = matrix_descriptor.byte_ranges(desc, rows, description.k, mn_major, bits)
        return cta.smem.begin(lo, hi, False, origin)

    def _push(self, execute, origin, when: float):
        def call():
            try:
                execute()
            except Fault as e:
                e.where = e.where or f"{origin}: {self.describe(origin)}"
                raise

        self.cta.pipe.push(when, call)

    def describe(self, origin) -> str:
        instr = origin.instruction()
        return f"{instr.text} ({instr.loc})" if instr is not None else ""

    def check_loads(self, cta, lo: int, hi: int, origin):
        """No tcgen05.ld that has not been waited for may still read what an mma is about to overwrite."""
        for warp in cta.warps:
            for g in warp.groups:
                for first, last, what in g.reading_tmem():
                    if first < hi and lo < last:
                        raise Fault("tmem-race", f"{origin} overwrites tensor memory columns {lo}..{hi - 1} that {what} may still read")

    def reading_tmem(self):
        return [(load.lo, load.hi, load.origin) for load in self.loads]

    def tcgen05_cp(self, shape, multicast, fmt, pair, address, desc, mask):
        for p in self.active(mask):
            rows, row_bytes = {
                "128x256b": (128, 32), "128x128b": (128, 16), "64x128b": (64, 16), "32x128b": (32, 16), "4x256b": (4, 32),
            }[shape]  # fmt: skip
            if not self.clock.moves_data:
                self.cta.pipe.wait(self.clock.tensor_copy(self, rows * row_bytes, pair))
                continue
            to, desc_ = self.pick(address, p), self.pick(desc, p)
            origin = self.origin("tcgen05.cp")
            ctas = self.tensor_ctas(pair)
            lo, hi = matrix_descriptor.byte_ranges(desc_, rows, row_bytes, False, 8)
            reading = [(cta, cta.smem.begin(lo, hi, False, origin)) for cta in ctas]

            def execute(to=to, desc_=desc_, ctas=ctas, reading=reading):
                for cta in ctas:
                    cta.tmem.copy(cta.smem.bytes, desc_, shape, multicast, to, fmt or None)
                for cta, op in reading:
                    cta.smem.end(op)

            self._push(execute, origin, self.clock.tensor_copy(self, hi - lo, pair))

    def tcgen05_shift(self, pair, address, mask):
        for p in self.active(mask):
            to = self.pick(address, p)
            ctas = self.tensor_ctas(pair)
            origin, when = self.origin("tcgen05.shift"), self.clock.tensor_copy(self, 32, pair)
            self._push(lambda to=to, ctas=ctas: [cta.tmem.shift_down(to) for cta in ctas], origin, when)

    def tcgen05_commit(self, address, multicast, pair, mask):
        for p in self.active(mask):
            a = self.pick(address, p)
            owner, offset = self.shared_cta(a)
            targets = [owner]
            if multicast is not None:
                bits = self.pick(multicast, p)
                targets = [c for c in self.cta.cluster.ctas if bits >> c.rank & 1]
            barriers = [cta.barrier(offset) for cta in targets]

            def arrive(barriers=barriers):
                for barrier in barriers:
                    barrier.arrive()

            self._push(arrive, self.origin("tcgen05.commit"), self.clock.commit(self))

    # -- ld and st ---------------------------------------------------------------------------------------------
    def _address(self, address) -> int:
        if alu.is_array(address):
            if (address != address[0]).any():
                raise Fault("divergence", "lanes of a warp give different tensor memory addresses")
            return int(address[0])
        return int(address)

    def _whole_warp(self, what: str):
        if self.lane_mask != self.warp.live_mask or self.n != 32:
            raise Fault("divergence", f"{what} needs the whole warp")

    def tcgen05_ld(self, shape, num, pack, split, address, registers):
        self._whole_warp("tcgen05.ld")
        address = self._address(address)
        origin = self.origin("tcgen05.ld")
        lo = address & 0xFFFF
        span = {"32x32b": num, "16x64b": 2 * num, "16x128b": 4 * num, "16x256b": 8 * num, "16x32bx2": num + split}[shape]
        hi = lo + span * (2 if pack else 1)
        self.check_tmem(lo, hi, "read")
        quadrant = self.warp.index % 4
        tmem = self.cta.tmem

        def fetch():
            if not self.clock.moves_data:
                return (0,) * len(registers)
            return tmem.load(address, quadrant, shape, num, pack, split)

        fetch() if self.cta.smem.checks else None  # misuse shows at the instruction itself
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
        self.deliver_loads()
        self.loads.clear()
        return True

    def tcgen05_st(self, shape, num, unpack, split, address, values):
        self._whole_warp("tcgen05.st")
        address = self._address(address)
        regs = np.stack([self.lane_array(v) for v in values])
        lo = address & 0xFFFF
        self.check_tmem(lo, lo + num, "write")
        quadrant, tmem = self.warp.index % 4, self.cta.tmem
        if self.clock.tmem_store(self, len(values)):
            tmem.store(address, quadrant, shape, num, regs, unpack, split)
        else:
            self.stores.append(lambda: tmem.store(address, quadrant, shape, num, regs, unpack, split))

    def tcgen05_wait_st(self) -> bool:
        for store in self.stores:
            store()
        self.stores.clear()
        return True
