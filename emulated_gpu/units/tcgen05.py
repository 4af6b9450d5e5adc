"""Issue of tcgen05 instructions by a group (PTX ISA 9.7.16): the pipe, its order, and what is in flight.

cp, mma, shift and commit of one CTA go through one pipe in order (9.7.16.6.2: implicitly pipelined); ld and st are
separate and complete only for tcgen05.wait. Arithmetic and layouts live in mma.py and state/tensor_memory.py.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..errors import Fault, Unsupported
from ..formats import alu, matrix_descriptor
from ..formats.instruction_descriptor import MmaForm
from ..formats.load_reduction import LoadReduction
from ..state.barrier import Collective
from ..state.order import EVER, KNOWN
from ..state.tensor_memory import ALL, HALF, LANES, TensorMemory
from .addresses import active, check_running, multicast_ctas, pick, shared_cta
from .barriers import note_visit, pass_dependency
from .group import LaneGroup, Meeting
from .mma import Operands, accumulator_blocks, accumulator_columns, scale_columns
from .mma import execute as execute_mma

PIPE, LD, DELIVERED, ST = "tcgen05", "tcgen05.ld", "tcgen05.ld delivered", "tcgen05.st"  # components of a warp


def component(g: LaneGroup, name: str):
    """The component of what the tensor core does for this warp: PIPE, LD, DELIVERED or ST."""
    return g.warp.actor.space.key((name, g.warp.actor.uid))


class Pending:
    """The content of a register that a tcgen05.ld will write and has not yet."""

    def __repr__(self):
        return "pending tcgen05.ld"


PENDING = Pending()


class Loading:
    """A tcgen05.ld before its wait::ld: registers (numbers, -1 for _), fetch() their values, its event."""

    __slots__ = ("registers", "fetch", "number", "delivered")

    def __init__(self, registers, fetch, number: int):
        self.registers, self.fetch, self.number = registers, fetch, number
        self.delivered = False


# -- allocation --------------------------------------------------------------------------------------------
def together(g: LaneGroup, what: str, columns: int, pair: bool) -> Collective:
    """Join, or begin, what this warp does together with one of the pair's other CTA (.cta_group::2), or alone."""
    if g.token is None:
        ctas = g.cta.cluster.pair(g.cta.rank) if pair else [g.cta]
        g.token = g.cta.cluster.collective(what, columns, ctas, g.cta)
        g.engine.progress += 1
    return g.token


def alloc(g: LaneGroup, address, columns, pair: bool, exclusive: bool = False) -> bool:
    """Both CTAs of a pair get their columns at once, when both have come and both have room (9.7.16.7)."""
    g.need_whole_warp("tcgen05.alloc")
    columns = int(pick(columns, 0))
    all_here = together(g, "tcgen05.alloc", columns, pair)
    if not all_here.complete:
        return g.wait_on(all_here)
    if all_here.results is None:
        for cta in all_here.ctas:
            if not cta.tmem_room(columns, exclusive):
                return g.wait_on(cta.resources)
        all_here.results = [cta.tmem_alloc(columns, exclusive) for cta in all_here.ctas]
        all_here.wake()
    g.token = None
    base = all_here.results[all_here.ctas.index(g.cta)]
    cta, offset = shared_cta(g, pick(address, 0) & 0xFFFFFFFF)
    cta.smem.begin_end_write(offset, 4, g.warp.actor, g.origin("tcgen05.alloc"))
    cta.smem.views[4][offset // 4] = base
    return True


def dealloc(g: LaneGroup, address, columns, pair: bool, exclusive: bool = False) -> bool:
    """The columns of a pair are free for others when both CTAs have come; each may not use its own from then on.

    For it is left open whether the first one waits (9.7.16.5).
    """
    g.need_whole_warp("tcgen05.dealloc")
    address, columns = int(pick(address, 0)), int(pick(columns, 0))
    if g.token is None:
        if g.launch.checks:
            _check_free(g, address & 0xFFFF, columns)
        g.cta.tmem.close(address, columns, exclusive)
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


def _check_free(g: LaneGroup, lo: int, columns: int):
    """Nobody may use columns that are freed. A load whose registers have been used has read them, tcgen05.wait::ld or
    not: NVIDIA's tutorials free the columns of such loads."""
    knowledge, key = g.warp.actor.knowledge, g.warp.actor.space.key
    actors = (warp.actor for warp in g.cta.warps)
    delivered = {key((LD, actor.uid)): knowledge.known(key((DELIVERED, actor.uid))) for actor in actors}
    tmem = g.cta.tmem
    tmem.check_order(tmem.places(ALL, lo, lo + columns), g.warp.actor, True, "tcgen05.dealloc", delivered)


# -- mma, cp, shift, commit --------------------------------------------------------------------------------
def tensor_ctas(g: LaneGroup, pair: bool) -> list:
    if not pair:
        return [g.cta]
    ctas = g.cta.cluster.pair(g.cta.rank)
    check_running(g, ctas[~g.cta.rank & 1])
    return ctas


def mma(g: LaneGroup, form: MmaForm, d, a, b, idesc, accumulate, sfa, sfb, disable, mask):
    """Issue tcgen05.mma. Operands: see mma.Operands; idesc: the descriptor; disable: disable-output-lane or None."""
    pair, extended = form.cta_group == 2, matrix_descriptor.of_chip(g.launch.chip)
    for p in active(g, mask):
        d_, a_, b_, accumulate_ = (pick(v, p) for v in (d, a, b, accumulate))
        sfa_, sfb_ = (None if v is None else pick(v, p) for v in (sfa, sfb))
        if any(pick(v, p) for v in disable or ()):
            raise Unsupported("tcgen05.mma with disable-output-lane")
        a_, b_ = a_ if form.a_in_tmem else a_ | extended, b_ | extended
        ctas = tensor_ctas(g, pair)
        description = form.decode(pick(idesc, p), g.launch.chip)
        if not g.cta.computes_mma:
            _occupy(g, g.clock.mma(g, description, pair, form.a_in_tmem))
            continue
        origin = g.origin("tcgen05.mma")
        reading = []
        for cta in ctas if g.launch.checks else ():  # nobody looks for what is in flight else
            if not form.a_in_tmem:
                reading.append((cta, _operand(g, cta, a_, description, form.cta_group, True, origin)))
            reading.append((cta, _operand(g, cta, b_, description, form.cta_group, False, origin)))
        operands = Operands(d_, a_, b_, accumulate_, sfa_, sfb_)
        if g.launch.checks:
            _check_mma(g, ctas, form, description, operands, origin)

        def execute(description=description, operands=operands, ctas=ctas):
            execute_mma(form, description, operands, [(cta.smem.bytes, cta.tmem) for cta in ctas])

        _accumulate(g, ctas, execute, reading, origin, g.clock.mma(g, description, pair, form.a_in_tmem))


def _check_mma(g: LaneGroup, ctas, form: MmaForm, description, o: Operands, origin):
    """Others must be done with its accumulator and with what it reads of tensor memory; earlier work of the pipe is."""
    lo, hi = accumulator_columns(o.d, description, form.cta_group == 2)
    lanes = _halves(o.d, description, form.cta_group)
    writes: list[tuple] = [(lanes, lo, hi)]
    reads: list[tuple] = []
    if form.a_in_tmem:
        at, end = o.a & 0xFFFF, (o.a & 0xFFFF) + description.a_columns
        (writes if form.shift_a else reads).append((_halves(o.a, description, form.cta_group), at, end))
    d = description
    for at, rows, sf_id in (o.sfa, d.m // form.cta_group, d.sfa_id), (o.sfb, d.n, d.sfb_id):
        if at is not None:
            reads.append((ALL, at & 0xFFFF, (at & 0xFFFF) + scale_columns(rows, d, sf_id)))
    for cta in ctas:
        if reads:
            _use(g, cta, reads, False, origin)
        _use(g, cta, writes, True, origin)


def _halves(address: int, description, group: int) -> tuple[int, ...]:
    """The halves of quadrants in which a CTA's rows of D or A lie."""
    return _halves_at(address >> 16, description.m, description.n, group)


@lru_cache(maxsize=256)
def _halves_at(base: int, m: int, n: int, group: int) -> tuple[int, ...]:
    blocks = accumulator_blocks(m, n, group)
    lanes = (base + lane + r for rows, _, lane in blocks for r in range(0, rows.stop - rows.start, HALF))
    return tuple(sorted({lane // HALF % len(ALL) for lane in lanes}))


def _use(g: LaneGroup, cta, blocks, write: bool, origin):
    """The tensor core reads or writes blocks (halves of quadrants, first column, end) in the order of its pipe."""
    pipe, actor, tmem = component(g, PIPE), g.warp.actor, cta.tmem
    number = actor.order.next(pipe, origin)
    for halves, lo, hi in blocks:
        places = tmem.places(halves, lo, hi)
        if tmem.latest[0] is not places or tmem.latest[1] is not pipe:
            tmem.check_order(places, actor, write, origin, {pipe: EVER})
        tmem.keep(places, pipe, number, write)


def _accumulate(g: LaneGroup, ctas, execute, reading, origin, when: float):
    """Queue what writes tensor memory of CTAs. reading: (CTA, operation) of shared memory, which end with it."""
    for cta in ctas:
        cta.accumulating.append(origin)

    def call():
        execute()
        for cta, op in reading:
            cta.smem.end(op)
        for cta in ctas:
            cta.accumulating.remove(origin)

    _push(g, call, origin, when)


def _operand(g: LaneGroup, cta, desc: int, description, group: int, of_a: bool, origin):
    rows = (description.m if of_a else description.n) // group
    mn_major = description.a_mn_major if of_a else description.b_mn_major
    element = description.a_type if of_a else description.b_type
    bits = element.bits if description.packs(element) else max(element.bits, 8)
    lo, hi = matrix_descriptor.byte_ranges(desc, rows, description.k, mn_major, bits)
    words = matrix_descriptor.words(desc, rows, description.k, mn_major, bits)
    return cta.smem.begin(lo, hi, False, origin, g.warp.actor, component(g, PIPE), words)


def _push(g: LaneGroup, execute, origin, when: float):
    def call():
        try:
            execute()
        except Fault as e:
            e.where = e.where or origin.place()
            raise

    g.cta.pipe.push(when, call)


def _occupy(g: LaneGroup, when: float):
    """The pipe is busy until then, and moves nothing. Beside clusters that compute, it is an event all the same: warps
    take turns where events lie, and times must not tell."""
    if g.launch.sampled_clusters:
        g.cta.pipe.push(when, _nothing)
    else:
        g.cta.pipe.occupy(when)


def _nothing() -> None: ...


def cp(g: LaneGroup, shape, multicast, packed, pair, address, desc, mask):
    for p in active(g, mask):
        rows, row_bytes = {
            "128x256b": (128, 32), "128x128b": (128, 16), "64x128b": (64, 16), "32x128b": (32, 16),
            "4x256b": (4, 32),
        }[shape]  # fmt: skip
        if not g.cta.computes_mma:
            _occupy(g, g.clock.tensor_copy(g, pair, rows * row_bytes))
            continue
        to, desc_ = pick(address, p), pick(desc, p) | matrix_descriptor.of_chip(g.launch.chip)
        origin = g.origin("tcgen05.cp")
        ctas = tensor_ctas(g, pair)
        reading, first = [], to & 0xFFFF
        if g.launch.checks:
            lo, hi = matrix_descriptor.byte_ranges(desc_, rows, row_bytes, False, 8)
            words = matrix_descriptor.words(desc_, rows, row_bytes, False, 8)
            key = component(g, PIPE)
            reading = [(cta, cta.smem.begin(lo, hi, False, origin, g.warp.actor, key, words)) for cta in ctas]
            for cta in ctas:
                _use(g, cta, [(ALL, first, first + row_bytes // 4)], True, origin)

        def execute(to=to, desc_=desc_, ctas=ctas):
            for cta in ctas:
                cta.tmem.copy(cta.smem.bytes, desc_, shape, multicast, to, packed)

        _accumulate(g, ctas, execute, reading, origin, g.clock.tensor_copy(g, pair, rows * row_bytes))


def shift(g: LaneGroup, pair, address, mask):
    for p in active(g, mask):
        to, origin = pick(address, p), g.origin("tcgen05.shift")
        when = g.clock.tensor_copy(g, pair, LANES * 32)
        if not g.cta.computes_mma:
            _occupy(g, when)
            continue
        lo, half, ctas = to & 0xFFFF, to >> 20 & 6, tensor_ctas(g, pair)
        if g.launch.checks:
            for cta in ctas:
                _use(g, cta, [((half, half + 1), lo, lo + 8)], True, origin)

        def execute(to=to, ctas=ctas):
            for cta in ctas:
                cta.tmem.shift_down(to)

        _accumulate(g, ctas, execute, [], origin, when)


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
            if g.launch.checks:
                g.warp.actor.order.next(component(g, PIPE), origin)
                note_visit(g, cta, component(g, PIPE))
        hands_on = None
        if g.launch.checks:  # what the thread's operations have done, and what it knew
            hands_on = g.warp.actor.released()
            hands_on.clock[KNOWN, component(g, PIPE)[1]] = g.warp.actor.order.now

        def arrive(targets=targets, barriers=barriers, origin=origin, hands_on=hands_on):
            for cta, barrier in zip(targets, barriers, strict=True):
                cta.travelling.remove(origin)
                barrier.arrive(who=origin, hands_on=hands_on)

        _push(g, arrive, origin, g.clock.commit(g))
    g.hesitate(Meeting(None))


# -- ld and st ---------------------------------------------------------------------------------------------
def _address(g: LaneGroup, address, what: str) -> int:
    """Return the address that all lanes of a warp give; one of lanes 128 to 255 is noted, and that of lane - 128. One
    of another warp's lanes is reported, and that of the warp's own, which it gets by all that is known.
    """
    if alu.is_array(address):
        if (address != address[0]).any():
            raise Fault("divergence", "lanes of a warp give different tensor memory addresses")
        address = address[0]
    address = int(address)
    lane, own = address >> 16, LANES // 4 * (g.warp.index % 4)
    if LANES <= lane < 2 * LANES:
        if g.launch.checks:
            g.launch.found(Fault("tmem-lane-access", f"{what} at lane {lane} of {LANES}", note="lanes-wrap"))
        lane -= LANES
    if not own <= lane < own + LANES // 4:
        if g.launch.checks:
            may = f"by a warp that may access lanes {own}..{own + LANES // 4 - 1}"
            g.launch.found(Fault("tmem-lane-access", f"{what} at lane {lane} {may}"))
        lane = own + lane % (LANES // 4)
    return lane << 16 | address & 0xFFFF


def ld(g: LaneGroup, shape, num, pack, split, address, registers, reduction: LoadReduction | None = None):
    """registers: their numbers, -1 for _; behind those of the loaded values the one of what a reduction makes of these.
    """
    g.need_all_lanes("tcgen05.ld")
    address = _address(g, address, f"tcgen05.ld.{shape}.x{num}")
    origin = g.origin("tcgen05.ld")
    quadrant, tmem, number = g.warp.index % 4, g.cta.tmem, 0

    def fetch(unwritten=lambda *_: None):
        if not g.cta.computes_mma:
            return (0,) * len(registers)
        values = tmem.load(address, quadrant, shape, num, pack, split, unwritten)
        return values if reduction is None else (*values, reduction.of(values))

    def hold_garbage(fault, which):
        fault.where = origin.place()
        made = [] if reduction is None else [len(registers) - 1]
        g.hold_garbage(fault, [registers[k] for k in (*which, *made) if registers[k] >= 0])

    if g.launch.checks:
        key, actor, touched = component(g, LD), g.warp.actor, places(address, shape, num, pack, split)
        tmem.check_order(touched, actor, False, "read")
        fetch(hold_garbage)  # misuse shows at the instruction itself
        number = actor.order.next(key, origin)
        tmem.keep(touched, key, number, False)
    early = fetch() if g.clock.tmem_load(g, len(registers), shape) else None
    g.loads.append(Loading(registers, (lambda: early) if early is not None else fetch, number))


def deliver_loads(g: LaneGroup):
    """Put what was loaded into its registers. Loads stay listed until wait::ld: only that orders later writes."""
    g.t = max(g.t, g.loads_ready)
    for load in g.loads:
        if not load.delivered:
            load.delivered = True
            if load.number:
                g.warp.actor.completed(component(g, DELIVERED), load.number)
            for number, values in zip(load.registers, load.fetch(), strict=True):
                if number >= 0:
                    g.R[number] = values


def use_loads(g: LaneGroup):
    """An instruction is about to read what was loaded, before tcgen05.wait::ld."""
    if g.launch.checks and any(not load.delivered for load in g.loads):
        message = "registers of tcgen05.ld are read before tcgen05.wait::ld, behind which they hold what was loaded"
        g.launch.found(Fault("tmem-race", message, note="unwaited-load"))
    deliver_loads(g)


def wait_ld(g: LaneGroup) -> bool:
    g.need_whole_warp("tcgen05.wait")
    deliver_loads(g)
    g.loads.clear()
    g.warp.actor.completed(component(g, LD), g.warp.actor.order.now)
    return True


def st(g: LaneGroup, shape, num, unpack, split, address, values):
    g.need_all_lanes("tcgen05.st")
    address = _address(g, address, f"tcgen05.st.{shape}.x{num}")
    regs = np.stack([g.lane_array(v) for v in values])
    origin, quadrant, tmem = g.origin("tcgen05.st"), g.warp.index % 4, g.cta.tmem
    if g.launch.checks:
        key, actor, touched = component(g, ST), g.warp.actor, places(address, shape, num, unpack, split)
        # Registers that were used have been read, and what is stored may depend on them
        used = {component(g, LD): actor.knowledge.known(component(g, DELIVERED)), key: EVER}
        tmem.check_order(touched, actor, True, "write", used)
        tmem.keep(touched, key, actor.order.next(key, origin), True)

    def land():
        tmem.store(address, quadrant, shape, num, regs, unpack, split)

    early = g.clock.tmem_store(g, len(values), shape)
    if early:
        land()
    g.stores.append(None if early else land)


def wait_st(g: LaneGroup) -> bool:
    g.need_whole_warp("tcgen05.wait")
    g.clock.landed(g, g.stores_ready)
    for land in g.stores:
        if land is not None:
            land()
    g.stores.clear()
    g.warp.actor.completed(component(g, ST), g.warp.actor.order.now)
    return True


def places(address: int, shape: str, num: int, halves: bool, split: int) -> np.ndarray:
    """Where the shadow has what a tcgen05.ld or st touches; halves: .pack or .unpack."""
    width = {"16x64b": 2, "16x128b": 4, "16x256b": 8}.get(shape, 1) * num * (2 if halves else 1)
    lane, column = address >> 16, address & 0xFFFF
    rows = [lane // HALF, lane // HALF + 1] if shape == "32x32b" else [lane // HALF]
    rows = [row % len(ALL) for row in rows]
    touched = TensorMemory.places(rows, column, column + width)
    if shape == "16x32bx2" and split:
        touched = np.union1d(touched, TensorMemory.places(rows, column + split, column + split + width))
    return touched
