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
from .addresses import active, check_running, multicast_ctas, pick, shared_cta
from .barriers import pass_dependency
from .group import LaneGroup
from .mma import Operands, accumulator_columns
from .mma import execute as execute_mma

ALL = slice(None)  # the quadrants of tensor memory: lanes 32 * q .. 32 * q + 31 belong to warps with number % 4 == q


class Pending:
    """The content of a register that a tcgen05.ld will write and has not yet."""

    def __repr__(self):
        return "pending tcgen05.ld"


PENDING = Pending()


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


# -- allocation --------------------------------------------------------------------------------------------
def together(g: LaneGroup, what: str, columns: int, pair: bool) -> Collective:
    """Join, or begin, what this warp does together with one of the pair's other CTA (.cta_group::2), or alone."""
    if g.token is None:
        ctas = g.cta.cluster.pair(g.cta.rank) if pair else [g.cta]
        g.token = g.cta.cluster.collective(what, columns, ctas, g.cta)
        g.engine.progress += 1
    return g.token


def alloc(g: LaneGroup, address, columns, pair: bool) -> bool:
    """Both CTAs of a pair get their columns at once, when both have come and both have room (9.7.16.7)."""
    g.need_whole_warp("tcgen05.alloc")
    columns = int(pick(columns, 0))
    all_here = together(g, "tcgen05.alloc", columns, pair)
    if not all_here.complete:
        return g.wait_on(all_here)
    if all_here.results is None:
        for cta in all_here.ctas:
            if not cta.tmem_room(columns):
                return g.wait_on(cta.resources)
        all_here.results = [cta.tmem_alloc(columns) for cta in all_here.ctas]
        all_here.wake()
    g.token = None
    base = all_here.results[all_here.ctas.index(g.cta)]
    cta, offset = shared_cta(g, pick(address, 0) & 0xFFFFFFFF)
    cta.smem.begin_end_write(offset, 4, g.warp.actor, g.origin("tcgen05.alloc"))
    cta.smem.views[4][offset // 4] = base
    return True


def dealloc(g: LaneGroup, address, columns, pair: bool) -> bool:
    """The columns of a pair are free for others when both CTAs have come; each may not use its own from then on.

    For it is left open whether the first one waits (9.7.16.5).
    """
    g.need_whole_warp("tcgen05.dealloc")
    address, columns = int(pick(address, 0)), int(pick(columns, 0))
    if g.token is None:
        lo = address & 0xFFFF
        check_tmem(g, lo, lo + columns, "tcgen05.dealloc")
        check_waits(g, g.cta, lo, lo + columns, "tcgen05.dealloc", delivered=False)
        if g.launch.checks:
            g.cta.tmem.check_order(ALL, lo, lo + columns, g.warp.actor, True, "tcgen05.dealloc")
        g.cta.tmem.close(address, columns)
    all_here = together(g, "tcgen05.dealloc", columns, pair)
    if not all_here.complete:
        return g.wait_on(all_here)
    g.token = None
    g.cta.tmem_dealloc(address, columns)
    all_here.wake()
    return True


def relinquish(g: LaneGroup):
    g.need_whole_warp("tcgen05.relinquish_alloc_permit")
    g.cta.tmem.relinquish()


def check_tmem(g: LaneGroup, lo: int, hi: int, what: str):
    for op in g.cta.accumulating if g.launch.checks else ():
        if op.lo < hi and lo < op.hi:
            message = f"{what} of tensor memory columns {lo}..{hi - 1} that {op.what} has not finished"
            g.launch.found(Fault("tmem-race", message))


# -- mma, cp, shift, commit --------------------------------------------------------------------------------
def tensor_ctas(g: LaneGroup, pair: bool) -> list:
    if not pair:
        return [g.cta]
    ctas = g.cta.cluster.pair(g.cta.rank)
    check_running(g, ctas[~g.cta.rank & 1])
    return ctas


def mma(g: LaneGroup, form: MmaForm, d, a, b, idesc, accumulate, sfa, sfb, disable, mask):
    """Issue tcgen05.mma. Operands: see mma.Operands; idesc: the descriptor; disable: disable-output-lane or None."""
    pair = form.cta_group == 2
    for p in active(g, mask):
        d_, a_, b_, accumulate_ = (pick(v, p) for v in (d, a, b, accumulate))
        sfa_, sfb_ = (None if v is None else pick(v, p) for v in (sfa, sfb))
        if any(pick(v, p) for v in disable or ()):
            raise Unsupported("tcgen05.mma with disable-output-lane")
        ctas = tensor_ctas(g, pair)
        description = form.decode(pick(idesc, p))
        if not g.clock.moves_data:
            g.cta.pipe.occupy(g.clock.mma(g, description, pair, form.a_in_tmem))
            continue
        origin = g.origin("tcgen05.mma")
        reading = []
        for cta in ctas:
            if not form.a_in_tmem:
                reading.append((cta, _operand(g, cta, a_, description, form.cta_group, True, origin)))
            reading.append((cta, _operand(g, cta, b_, description, form.cta_group, False, origin)))
        writing = [(cta, Accumulating(*accumulator_columns(d_, description, pair), origin)) for cta in ctas]
        if form.shift_a:
            writing += [(cta, Accumulating(a_ & 0xFFFF, (a_ & 0xFFFF) + 8, origin)) for cta in ctas]
        for cta, op in writing:
            _begin_write(g, cta, op, ALL, origin)
            for operand in (a_ if form.a_in_tmem else None, sfa_, sfb_) if g.launch.checks else ():
                if operand is not None:
                    _check_operand(g, cta, operand & 0xFFFF, 8 if operand is a_ else 1, origin)

        operands = Operands(d_, a_, b_, accumulate_, sfa_, sfb_)

        def execute(description=description, operands=operands, ctas=ctas, reading=reading, writing=writing):
            execute_mma(form, description, operands, [(cta.smem.bytes, cta.tmem) for cta in ctas])
            for cta, op in reading:
                cta.smem.end(op)
            _landed(g, writing)

        _push(g, execute, origin, g.clock.mma(g, description, pair, form.a_in_tmem))


def _check_operand(g: LaneGroup, cta, lo: int, columns: int, origin):
    """An operand that threads may have stored in tensor memory must be complete."""
    for warp in cta.warps:
        for other in warp.groups:
            for _, first, last, store in other.stores:
                if first < lo + columns and lo < last:
                    message = f"{origin} reads column {lo} that {store} may not have written yet"
                    g.launch.found(Fault("tmem-race", message))
    cta.tmem.check_order(ALL, lo, lo + columns, g.warp.actor, False, origin, in_pipe=True)


def _begin_write(g: LaneGroup, cta, op: Accumulating, lanes, origin):
    """Note and check that the tensor core will write columns in these quadrants of lanes."""
    check_waits(g, cta, op.lo, op.hi, origin)
    if g.launch.checks:
        cta.tmem.check_order(lanes, op.lo, op.hi, g.warp.actor, True, origin, in_pipe=True)
    cta.accumulating.append(op)


def _landed(g: LaneGroup, writing):
    """Note that the tensor core has written these columns."""
    now = g.warp.actor.order.next(writing[0][1].what)
    for cta, op in writing:
        cta.accumulating.remove(op)
        cta.tmem.note_write(ALL, op.lo, op.hi, now)


def _operand(g: LaneGroup, cta, desc: int, description, group: int, of_a: bool, origin):
    rows = (description.m if of_a else description.n) // group
    mn_major = description.a_mn_major if of_a else description.b_mn_major
    element = description.a_type if of_a else description.b_type
    bits = 4 if description.packed_fp4 else max(element.bits, 8)
    lo, hi = matrix_descriptor.byte_ranges(desc, rows, description.k, mn_major, bits)
    chunks = matrix_descriptor.chunks(desc, rows, description.k, mn_major, bits)
    return cta.smem.begin(lo, hi, False, origin, g.warp.actor, chunks)


def _push(g: LaneGroup, execute, origin, when: float):
    def call():
        try:
            execute()
        except Fault as e:
            e.where = e.where or origin.place()
            raise

    g.cta.pipe.push(when, call)


def check_waits(g: LaneGroup, cta, lo: int, hi: int, what, delivered: bool = True):
    """No tcgen05.ld or st that has not been waited for may still touch columns that are to be overwritten or freed.

    delivered: nor a load whose registers have been used; NVIDIA's tutorials free the columns of such loads.
    """
    for warp in cta.warps if g.launch.checks else ():
        for other in warp.groups:
            for load in other.loads:
                if load.lo < hi and lo < load.hi and (delivered or not load.delivered):
                    message = f"{what} of tensor memory columns {lo}..{hi - 1} that {load.origin} may still read"
                    g.launch.found(Fault("tmem-race", message))
            for _, first, last, store in other.stores:
                if first < hi and lo < last:
                    message = f"{what} of tensor memory columns {lo}..{hi - 1} that {store} may still write"
                    g.launch.found(Fault("tmem-race", message))


def cp(g: LaneGroup, shape, multicast, packed, pair, address, desc, mask):
    for p in active(g, mask):
        rows, row_bytes = {
            "128x256b": (128, 32), "128x128b": (128, 16), "64x128b": (64, 16), "32x128b": (32, 16),
            "4x256b": (4, 32),
        }[shape]  # fmt: skip
        if not g.clock.moves_data:
            g.cta.pipe.occupy(g.clock.tensor_copy(g, pair))
            continue
        to, desc_ = pick(address, p), pick(desc, p)
        origin = g.origin("tcgen05.cp")
        ctas = tensor_ctas(g, pair)
        lo, hi = matrix_descriptor.byte_ranges(desc_, rows, row_bytes, False, 8)
        chunks = matrix_descriptor.chunks(desc_, rows, row_bytes, False, 8)
        reading = [(cta, cta.smem.begin(lo, hi, False, origin, g.warp.actor, chunks)) for cta in ctas]
        first = to & 0xFFFF
        writing = [(cta, Accumulating(first, first + row_bytes // 4, origin)) for cta in ctas]
        for cta, op in writing:
            _begin_write(g, cta, op, ALL, origin)

        def execute(to=to, desc_=desc_, ctas=ctas, reading=reading, writing=writing):
            for cta in ctas:
                cta.tmem.copy(cta.smem.bytes, desc_, shape, multicast, to, packed)
            for cta, op in reading:
                cta.smem.end(op)
            _landed(g, writing)

        _push(g, execute, origin, g.clock.tensor_copy(g, pair))


def shift(g: LaneGroup, pair, address, mask):
    for p in active(g, mask):
        to, origin = pick(address, p), g.origin("tcgen05.shift")
        when = g.clock.tensor_copy(g, pair)
        if not g.clock.moves_data:
            g.cta.pipe.occupy(when)
            continue
        lo, lanes = to & 0xFFFF, to >> 21 & 3
        writing = [(cta, Accumulating(lo, lo + 8, origin)) for cta in tensor_ctas(g, pair)]
        for cta, op in writing:
            _begin_write(g, cta, op, lanes, origin)

        def execute(to=to, writing=writing):
            for cta, _ in writing:
                cta.tmem.shift_down(to)
            _landed(g, writing)

        _push(g, execute, origin, when)


def commit(g: LaneGroup, address, multicast, mask):
    for p in active(g, mask):
        a = pick(address, p)
        owner, offset = shared_cta(g, a)
        targets = [owner] if multicast is None else multicast_ctas(g, pick(multicast, p))
        origin = g.origin("tcgen05.commit")
        barriers = [cta.barrier(offset, g.warp, True) for cta in targets]
        for barrier in barriers:
            g.clock.trace.completes(barrier, "mma")
        for cta, barrier in zip(targets, barriers, strict=True):
            check_running(g, cta)
            pass_dependency(g, barrier)
            cta.travelling.append(origin)

        def arrive(targets=targets, barriers=barriers, origin=origin):
            for cta, barrier in zip(targets, barriers, strict=True):
                cta.travelling.remove(origin)
                barrier.arrive(who=origin)

        _push(g, arrive, origin, g.clock.commit(g))
    g.hesitate()


# -- ld and st ---------------------------------------------------------------------------------------------
def _address(address) -> int:
    if alu.is_array(address):
        if (address != address[0]).any():
            raise Fault("divergence", "lanes of a warp give different tensor memory addresses")
        return int(address[0])
    return int(address)


def ld(g: LaneGroup, shape, num, pack, split, address, registers):
    g.need_whole_warp("tcgen05.ld")
    address = _address(address)
    origin = g.origin("tcgen05.ld")
    lo, hi = columns(address, shape, num, pack, split)
    check_tmem(g, lo, hi, "read")
    quadrant = g.warp.index % 4
    tmem = g.cta.tmem
    for _, first, last, store in g.stores if g.launch.checks else ():
        if first < hi and lo < last:
            message = f"read of tensor memory columns {lo}..{hi - 1} that {store} may not have written yet"
            g.launch.found(Fault("tmem-race", message))

    def fetch():
        if not g.clock.moves_data:
            return (0,) * len(registers)
        return tmem.load(address, quadrant, shape, num, pack, split)

    if g.launch.checks:
        fetch()  # misuse shows at the instruction itself
        tmem.check_order(quadrant, lo, hi, g.warp.actor, False, "read of tensor memory")
    early = fetch() if g.clock.tmem_load(g, len(registers)) else None
    g.loads.append(Loading(registers, (lambda: early) if early is not None else fetch, lo, hi, origin))


def deliver_loads(g: LaneGroup):
    """Put what was loaded into its registers. Loads stay listed until wait::ld: only that orders later writes."""
    if not g.clock.moves_data:
        g.t = max(g.t, g.loads_ready)
    for load in g.loads:
        if not load.delivered:
            load.delivered = True
            for number, values in zip(load.registers, load.fetch(), strict=True):
                if number >= 0:
                    g.R[number] = values


def wait_ld(g: LaneGroup) -> bool:
    g.need_whole_warp("tcgen05.wait")
    deliver_loads(g)
    for load in g.loads:
        g.cta.tmem.note_read(g.warp.index % 4, load.lo, load.hi, g.warp.actor, load.origin)
    g.loads.clear()
    return True


def st(g: LaneGroup, shape, num, unpack, split, address, values):
    g.need_whole_warp("tcgen05.st")
    address = _address(address)
    regs = np.stack([g.lane_array(v) for v in values])
    lo, hi = columns(address, shape, num, unpack, split)
    origin = g.origin("tcgen05.st")
    check_tmem(g, lo, hi, "write")
    quadrant, tmem = g.warp.index % 4, g.cta.tmem
    for load in g.loads if g.launch.checks else ():
        if load.lo < hi and lo < load.hi and not load.delivered:
            message = f"write of tensor memory columns {lo}..{hi - 1} that {load.origin} may still read"
            g.launch.found(Fault("tmem-race", message))
    if g.launch.checks:
        tmem.check_order(quadrant, lo, hi, g.warp.actor, True, "write of tensor memory")

    def land():
        tmem.store(address, quadrant, shape, num, regs, unpack, split)

    early = g.clock.tmem_store(g)
    if early:
        land()
    g.stores.append((None if early else land, lo, hi, origin))


def wait_st(g: LaneGroup) -> bool:
    g.need_whole_warp("tcgen05.wait")
    for land, lo, hi, origin in g.stores:
        if land is not None:
            land()
        actor = g.warp.actor
        g.cta.tmem.note_write(g.warp.index % 4, lo, hi, actor.order.next(origin), actor.uid)
    g.stores.clear()
    return True


def columns(address: int, shape: str, num: int, halves: bool, split: int) -> tuple[int, int]:
    """[first, last + 1) of the tensor memory columns that a tcgen05.ld or st touches; halves: .pack or .unpack."""
    span = {"32x32b": num, "16x64b": 2 * num, "16x128b": 4 * num, "16x256b": 8 * num, "16x32bx2": num + split}[shape]
    return address & 0xFFFF, (address & 0xFFFF) + span * (2 if halves else 1)
