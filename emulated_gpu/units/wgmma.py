"""The tensor core of sm_90: wgmma.mma_async by the four warps of a warpgroup, fence, commit_group, wait_group.

Implements PTX ISA 9.7.15. An instruction begins when all four warps have issued it, those of a warpgroup execute one
after the other, and their accumulators stay in registers that nobody else may touch until wait_group: such a register
holds a `Fragment`. Its value comes at the wait. Moves hand it on, as they cost nothing and compilers write them.
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault, Unsupported
from ..formats import alu, wgmma_descriptor
from ..formats.element_types import F16, S32
from ..formats.fragments import ROWS, load_a, load_d, store_d
from ..formats.matrix_descriptor import gather, words_of
from ..formats.wgmma_form import M, WgmmaForm
from ..state.barrier import Waitable
from .group import LaneGroup
from .pipe import Pipe
from .wgmma_arithmetic import multiply

WARPS = 4  # of a warpgroup
_NUMPY = {F16: np.float16, S32: np.int32}


class Fragment:
    """Content of a register that holds a part of an accumulator in use.

    It can be moved; that of two f16 also in halves, which the code of `mov` makes by >>, & and puts together by <<, |.
    """

    __slots__ = ("accumulator",)

    def __init__(self, accumulator):
        self.accumulator = accumulator

    def __repr__(self):
        return f"the accumulator of {self.accumulator.last}"

    def __rshift__(self, bits: int):
        return {0: self, 16: Half(self, 1)}[bits]

    def __and__(self, mask: int):
        return {0xFFFFFFFF: self, 0xFFFF: Half(self, 0)}[mask]


class Half:
    """Content of a register that holds a half of a Fragment: 0 the lower one, 1 the upper."""

    __slots__ = ("whole", "which")

    def __init__(self, whole: Fragment, which: int):
        self.whole, self.which = whole, which

    def __repr__(self):
        return repr(self.whole)

    def __and__(self, mask: int):
        return {0xFFFF: self, 0xFFFFFFFF: self}[mask]

    def __lshift__(self, bits: int):
        return {16 * self.which: self}[bits]

    def __or__(self, other: Half):
        return {(self.whole, 1 - self.which): self.whole}[other.whole, other.which]


IN_USE = Fragment, Half


class Accumulator:
    """D of consecutive wgmmas: values [64, N], and the content of its registers in each warp.

    unwaited: how many wgmmas each warp has issued on it and not waited for; numbers: the registers of the last one.
    """

    __slots__ = ("form", "values", "fragments", "unwaited", "numbers", "last")

    def __init__(self, form: WgmmaForm):
        self.form, self.last = form, None
        self.values = np.zeros((M, form.n), _NUMPY.get(form.d_type, np.float32))
        self.fragments = [Fragment(self) for _ in range(form.d_registers)]
        self.unwaited = [0] * WARPS
        self.numbers: list = [()] * WARPS


class Wgmma(Waitable):
    """One instruction of a warpgroup. when: it is complete then, if that is known; done: it is."""

    __slots__ = ("what", "operands", "come", "a", "accumulators", "reading", "number", "when", "done", "group")

    def __init__(self, what, operands: tuple):
        super().__init__()
        self.what, self.operands = what, operands
        self.come = 0  # how many warps
        self.a: list = [None] * WARPS  # of each warp: its rows, if they come from registers
        self.accumulators: list = [None] * WARPS
        self.reading: list = []  # of shared memory
        self.number = 0  # the latest of these events
        self.when: float | None = None
        self.done = False

    def __str__(self):
        return f"{self.what}, to which {self.come} of 4 warps have come" if self.come < WARPS else str(self.what)


class Warpgroup:
    """Four consecutive warps. issued: how many wgmmas each has issued; open: those that not all have come to."""

    def __init__(self, engine):
        self.pipe = Pipe(engine)
        self.issued = [0] * WARPS
        self.open: dict[int, Wgmma] = {}


class Issued:
    """Tracks a warp's wgmmas: those since the last commit, and committed groups that it has not waited for.

    fenced: its registers at the last wgmma.fence, and what wgmmas have put there since.
    """

    def __init__(self):
        self.uncommitted: list[tuple[Wgmma, Accumulator, tuple]] = []
        self.groups: list[list] = []
        self.fenced: list | None = None


def _same(a, b) -> bool:
    return a is b or (type(a) is type(b) is np.ndarray and np.array_equal(a, b)) or (type(a) is int and a == b)


def fence(g: LaneGroup):
    g.need_whole_warp("wgmma.fence")
    if g.launch.checks:
        g.warp.wgmmas.fenced = list(g.R)


def commit(g: LaneGroup):
    g.need_whole_warp("wgmma.commit_group")
    issued = g.warp.wgmmas
    issued.groups.append(issued.uncommitted)
    issued.uncommitted = []


def wait(g: LaneGroup, pending: int) -> bool:
    """Until at most this many of the latest groups are not complete; their accumulators may be used then."""
    g.need_whole_warp("wgmma.wait_group")
    groups = g.warp.wgmmas.groups
    over = groups[: len(groups) - pending]
    for op, _, _ in reversed([entry for group in over for entry in group]):
        if op.done:
            break
        if op.when is not None and not g.cta.computes_mma:
            if op.when <= g.t:
                break
            return g.wait_until(op.when, op)
        return g.wait_on(op)
    del groups[: len(over)]
    g.engine.progress += len(over)
    if g.cta.computes_mma:
        for group in over:
            _deliver(g, group)
            for op, _, _ in group:
                g.warp.actor.completed(_component(g), op.number)
    return True


def mma_async(g: LaneGroup, form: WgmmaForm, d: tuple, a, b, scale_d, where: int):
    """d: numbers of the registers of D; a: those of A, or its matrix descriptor; where: the PTX line."""
    g.need_all_lanes("wgmma.mma_async")
    first, member = divmod(g.warp.index, WARPS)
    cta = g.cta
    if WARPS * (first + 1) > len(cta.warps):
        raise Fault("divergence", f"wgmma.mma_async by {g.warp}, whose warpgroup has fewer than 4 warps")
    group = cta.warpgroups.get(first)
    if group is None:
        group = cta.warpgroups[first] = Warpgroup(g.engine)
    operands = form, where, *(_uniform(v) for v in (None if form.a_in_registers else a, b, scale_d))
    number = group.issued[member]
    group.issued[member] += 1
    op = group.open.get(number)
    if op is None:
        op = group.open[number] = Wgmma(g.origin("wgmma.mma_async"), operands)
    elif op.operands != operands:
        raise Fault("divergence", f"the warps of a warpgroup issue different wgmmas, or operands: {op.what} and here")
    op.come += 1
    if op.come == WARPS:
        del group.open[number]
    if not g.cta.computes_mma:
        for n in d:
            g.R[n] = 0
        if op.come == WARPS:
            op.when = group.pipe.last = max(group.pipe.last, g.clock.wgmma(g, form))
            op.wake()
        g.warp.wgmmas.uncommitted.append((op, None, ()))
        return
    accumulator = _accumulator(g, form, member, d, operands[-1], op)
    if form.a_in_registers:
        op.a[member] = load_a(np.stack([g.lane_array(_register(g, n)) for n in a]))
    _read_operands(g, op)
    g.warp.wgmmas.uncommitted.append((op, accumulator, tuple((n, g.R[n]) for n in a) if form.a_in_registers else ()))
    if op.come == WARPS:
        _begin(g, op, group)


def _uniform(value):
    if not alu.is_array(value):
        return value
    if (value != value[0]).any():
        raise Fault("divergence", "lanes of a warp give a wgmma.mma_async different descriptors or scale-d")
    return value[0].item()


def _register(g: LaneGroup, number: int):
    """Return the value of a register that a wgmma reads; a fault if it is not written, not fenced, or in use."""
    value, fenced = g.R[number], g.warp.wgmmas.fenced
    name = g.program.kernel.registers[number].name
    if value is None:
        raise Fault("uninitialized-register", f"{name} is read before anything was written to it")
    if type(value) in IN_USE:
        raise Fault("wgmma-race", f"{name} is used while it belongs to {value}")
    _check_fenced(g, number, value, fenced)
    return value


def _check_fenced(g: LaneGroup, number: int, value, fenced):
    """A register that a wgmma uses must have been fenced since it was written. Moves do not count: compilers put
    them anywhere, and ptxas removes them; nor do numbers that are the same in all lanes, as constants are."""
    if (
        not g.launch.checks
        or fenced is not None
        and (value is fenced[number] or not alu.is_array(value) or any(_same(value, other) for other in fenced))
    ):
        return
    name = g.program.kernel.registers[number].name
    since = "" if fenced is None else f" since {name} was written"
    g.launch.found(Fault("missing-wgmma-fence", f"wgmma.mma_async uses {name} with no wgmma.fence{since}"))


def _accumulator(g: LaneGroup, form: WgmmaForm, member: int, d: tuple, scale_d: bool, op: Wgmma) -> Accumulator:
    """The accumulator in the registers d of this warp: that of the wgmma before, or a new one."""
    held = [g.R[n] for n in d]
    others = [other for other in op.accumulators if other is not None]
    if type(held[0]) is Fragment:
        accumulator = held[0].accumulator
        if held != accumulator.fragments or accumulator.form.n != form.n or accumulator.form.d_type != form.d_type:
            raise Fault("wgmma-race", f"wgmma.mma_async uses parts of {held[0]}, which has another shape or order")
        if others and others[0] is not accumulator:
            raise Unsupported("a wgmma on an accumulator that only some warps of the warpgroup have waited for")
    else:
        accumulator = others[0] if others else Accumulator(form)
        if others and accumulator.unwaited[member]:
            raise Unsupported("a wgmma on an accumulator that only some warps of the warpgroup have waited for")
        rows = slice(ROWS * member, ROWS * (member + 1))
        if scale_d:
            values = np.stack([g.lane_array(_register(g, n)) for n in d])
            accumulator.values[rows] = load_d(values, accumulator.values.dtype)
        else:
            for n, value in zip(d, held, strict=True):
                if type(value) is Fragment:
                    raise Fault("wgmma-race", f"wgmma.mma_async uses parts of {value}")
                _check_fenced(g, n, value, g.warp.wgmmas.fenced)
        for n, fragment in zip(d, accumulator.fragments, strict=True):
            g.R[n] = fragment
    op.accumulators[member] = accumulator
    accumulator.unwaited[member] += 1
    accumulator.numbers[member] = d
    accumulator.last = op.what
    return accumulator


def _read_operands(g: LaneGroup, op: Wgmma):
    """Shared memory is read from when the first warp issues the instruction; every warp must have waited for it."""
    form, _, a, b, _ = op.operands
    for desc, rows, mn_major, kind in (
        (a, M, form.a_mn_major, form.a_type),
        (b, form.n, form.b_mn_major, form.b_type),
    ):
        if desc is None:
            continue
        index, lo, hi = wgmma_descriptor.chunks(desc, rows, form.k, mn_major, kind.bits)
        words = words_of(index)
        if op.come == 1:
            op.reading.append(g.cta.smem.begin(lo, hi, False, op.what, g.warp.actor, _component(g), words))
            op.number = op.reading[-1].number
        elif g.launch.checks:
            g.cta.smem.check_read(lo, hi, op.what, g.warp.actor, words)


def _component(g: LaneGroup):
    """The component of what the tensor core does for this warpgroup."""
    return g.warp.actor.space.key(("wgmma", g.cta.rank, g.warp.index // WARPS))


def _begin(g: LaneGroup, op: Wgmma, group: Warpgroup):
    cta = g.cta

    def execute():
        form, _, a, b, scale_d = op.operands
        accumulator = op.accumulators[0]
        smem = cta.smem.bytes
        if form.a_in_registers:
            a_codes = np.concatenate(op.a).view(f"u{form.a_type.bits // 8}")
        else:
            a_codes = gather(
                smem,
                wgmma_descriptor.chunks(a, M, form.k, form.a_mn_major, form.a_type.bits)[0],
                form.a_mn_major,
                form.a_type.bits,
            )
        index, _, _ = wgmma_descriptor.chunks(b, form.n, form.k, form.b_mn_major, form.b_type.bits)
        b_codes = gather(smem, index, form.b_mn_major, form.b_type.bits)
        accumulator.values = multiply(form, a_codes, b_codes, accumulator.values if scale_d else None)
        for reading in op.reading:
            cta.smem.end(reading)
        op.done = True
        op.wake()

    op.when = g.clock.wgmma(g, op.operands[0])
    group.pipe.push(op.when, execute)


def _deliver(g: LaneGroup, group: list):
    """Give accumulators of a group that this warp has waited for their values, unless a later wgmma uses them."""
    member, fenced = g.warp.index % WARPS, g.warp.wgmmas.fenced
    for op, accumulator, a in group:
        for number, value in a if g.launch.checks else ():
            if g.R[number] is not None and not _same(g.R[number], value):
                _touched(g, number, op.what)
        accumulator.unwaited[member] -= 1
        if accumulator.unwaited[member]:
            continue
        numbers, values = (
            accumulator.numbers[member],
            store_d(accumulator.values[ROWS * member : ROWS * (member + 1)]),
        )
        for n, fragment, value in zip(numbers, accumulator.fragments, values, strict=True):
            if g.R[n] is not None and g.R[n] is not fragment:
                _touched(g, n, op.what)
            g.R[n] = value
            if fenced is not None:
                fenced[n] = value
        places = dict(zip(accumulator.fragments, values, strict=True))
        for n in g.program.live_registers(g.pc):  # copies of them
            held = g.R[n]
            if type(held) is Fragment and held in places:
                g.R[n] = places[held]
            elif type(held) is Half and held.whole in places:
                g.R[n] = (places[held.whole] >> 16 * held.which & 0xFFFF).astype(np.uint16)


def _touched(g: LaneGroup, number: int, what):
    name = g.program.kernel.registers[number].name
    raise Fault("wgmma-race", f"{name} was written while {what} used it, before wgmma.wait_group")
