"""Fifth-generation tensor core instructions: tcgen05 (PTX ISA 9.7.16)."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import Unsupported
from ...formats.instruction_descriptor import MmaForm
from ...formats.load_reduction import LoadReduction
from ..syntax import Imm, Mem, Reg, Vec
from .registry import UNTIMED, Mods, flat, op

KINDS = tuple(f"kind::{kind}" for kind in ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"))

# Costs: the issue alone, as a warp's part of an asynchronous operation (profiles/*.toml: inferred); what the tensor
# core takes is the clock's. `tmem_alloc`: published (profiles/b200.toml). Untimed: what is not executed at all.


def _pair(m: Mods) -> bool:
    return m.one_of("cta_group::1", "cta_group::2") == "cta_group::2"


def _whole_warp(m: Mods) -> None:
    """Take .sync.aligned.b32."""
    m.drop("sync", "aligned", "b32")


@op("tcgen05.alloc", cost="tmem_alloc", dst=0, blocking=True, collective=True)
def _alloc(w, i, m):
    pair, exclusive = _pair(m), m.take("exclusive")
    space = m.take("shared::cta")
    _whole_warp(m)
    address = w.address(i.operands[0])
    address = address if space else f"addresses.from_generic({address}, 'shared')"
    w.wait_unless(f"tcgen05.alloc(g, {address}, {w.read(i.operands[1], 32)}, {pair}, {exclusive})")


@op("tcgen05.dealloc", cost="async", dst=0, blocking=True, collective=True)
def _dealloc(w, i, m):
    pair, exclusive = _pair(m), m.take("exclusive")
    _whole_warp(m)
    address, columns = (w.read(one, 32) for one in i.operands)
    w.wait_unless(f"tcgen05.dealloc(g, {address}, {columns}, {pair}, {exclusive})")


@op("tcgen05.relinquish_alloc_permit", cost="async", dst=0, collective=True)
def _relinquish(w, i, m):
    _pair(m)
    _whole_warp(m)
    w.call("tcgen05.relinquish(g)")


@op("tcgen05.mma", cost="async", dst=0)
def _mma(w, i, m):
    pair = _pair(m)
    kind = m.one_of(*KINDS).removeprefix("kind::")
    scaled, shift_a = m.take("block_scale"), m.take("ashift")
    vec = m.one_of("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32", default=None)
    # what stays in a buffer
    m.drop(*(f"collector::{of}::{use}" for of in "ab" for use in ("fill", "use", "lastuse", "discard")))
    d, a, b, idesc, *rest = i.operands
    if not isinstance(d, Mem):
        raise Unsupported("destination of tcgen05.mma")
    # block16 and block32 are other names of the same factors (table 9.7.16.2.1.2)
    blocks = {None: None, "block16": 4, "block32": 1 if kind == "mxf8f6f4" else 2}
    form = MmaForm(kind, 1 + pair, blocks[vec] if vec in blocks else int(vec[-2]), isinstance(a, Mem), shift_a)
    if shift_a and (scaled or not form.a_in_tmem):
        raise Unsupported(".ashift without A in tensor memory, or with .block_scale")
    a_text = w.address(a) if form.a_in_tmem else w.read(a, 64)
    sfa = sfb = disable = "None"
    if scaled:
        sfa, sfb = w.address(rest.pop(0)), w.address(rest.pop(0))
    if rest and isinstance(rest[0], Vec):
        disable = "(" + ", ".join(w.read(o, 32) for o in rest.pop(0).items) + ",)"
    accumulate = w.read(rest.pop(0), 1)
    if rest and isinstance(rest[0], Imm) and rest.pop(0).value:
        raise Unsupported("scale-input-d")
    if rest:
        raise Unsupported(f"operands {rest}")
    w.call(
        f"tcgen05.mma(g, {w.constant(form)}, {w.address(d)}, {a_text}, {w.read(b, 64)}, {w.read(idesc, 32)}, "
        f"{accumulate}, {sfa}, {sfb}, {disable}, {w.mask()})"
    )


@op("tcgen05.mma.sp", "tcgen05.mma.ws", cost=UNTIMED, dst=0)
def _mma_other(w, i, m):
    raise Unsupported("sparse and weight-stationary tcgen05.mma")


@op("tcgen05.cp", cost="async", dst=0)
def _cp(w, i, m):
    pair = _pair(m)
    shape = m.one_of("128x256b", "4x256b", "128x128b", "64x128b", "32x128b")
    multicast = m.one_of("warpx2::02_13", "warpx2::01_23", "warpx4", default=None)
    expanded, packed = m.take("b8x16"), m.one_of("b6x16_p32", "b4x16_p64", default=None)
    if expanded != (packed is not None):
        raise Unsupported(".b8x16 and a packed format go together")
    w.call(
        f"tcgen05.cp(g, {shape!r}, {multicast!r}, {packed!r}, {pair}, {w.address(i.operands[0])}, "
        f"{w.read(i.operands[1], 64)}, {w.mask()})"
    )


@op("tcgen05.shift", cost="async", dst=0)
def _shift(w, i, m):
    pair = _pair(m)
    m.take("down")
    w.call(f"tcgen05.shift(g, {pair}, {w.address(i.operands[0])}, {w.mask()})")


@op("tcgen05.commit", cost="async", dst=0)
def _commit(w, i, m):
    _pair(m)
    if not m.take("mbarrier::arrive::one"):
        raise Unsupported("completion mechanism")
    shared = m.take("shared::cluster")
    multicast = m.take("multicast::cluster")
    m.take("b64")
    target = i.operands[0]
    address = w.address(target) if isinstance(target, Mem) else w.read(target, 64)
    address = address if shared else f"addresses.from_generic({address}, 'shared')"
    mask = w.read(i.operands[1], 16) if multicast else "None"
    w.call(f"tcgen05.commit(g, {address}, {mask}, {w.mask()})")


def _shape(m: Mods):
    shape = m.one_of("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
    return shape, int(m.one_of(*(f"x{1 << n}" for n in range(8)))[1:])


def _load(w, call: str, destinations: Sequence, reduction: str = "None") -> None:
    """Write the call of a load. call: its arguments but for the registers' numbers."""
    if w.guard is not None:
        raise Unsupported("guarded tcgen05.ld")
    numbers = tuple(r.index if isinstance(r, Reg) else -1 for r in destinations)
    # The registers hold nothing until tcgen05.wait::ld puts the values in (9.7.16.8.5).
    w.emit(f"tcgen05.ld(g, {call}, {numbers}, {reduction})")
    for r in destinations:
        if isinstance(r, Reg):
            w.emit(f"r{r.index} = tcgen05.PENDING")


@op("tcgen05.ld", cost="async", dst=1, collective=True, owes=True, tensor_results=True)
def _ld(w, i, m):
    _whole_warp(m)
    shape, num = _shape(m)
    pack = m.take("pack::16b")
    split = i.operands[2].value if len(i.operands) > 2 else 0
    _load(w, f"{shape!r}, {num}, {pack}, {split}, {w.address(i.operands[1])}", flat(i.operands[0]))


@op("tcgen05.ld.red", cost=UNTIMED, dst=2, collective=True, owes=True, tensor_results=True)
def _ld_red(w, i, m):
    m.drop("sync", "aligned")
    shape, num = _shape(m)
    which, kind = m.one_of("min", "max"), m.one_of("f32", "u32", "s32")
    reduction = LoadReduction(kind, which == "max", m.take("abs"), m.take("NaN"))
    reduction.check(shape, num)
    values, result, address, *split = i.operands
    call = f"{shape!r}, {num}, False, {split[0].value if split else 0}, {w.address(address)}"
    _load(w, call, [*flat(values), *flat(result)], w.constant(reduction))


@op("tcgen05.st", cost="async", dst=0, collective=True)
def _st(w, i, m):
    _whole_warp(m)
    shape, num = _shape(m)
    unpack = m.take("unpack::16b")
    operands = list(i.operands[1:])
    split = operands.pop(0).value if len(operands) > 1 else 0
    values = ", ".join(w.read(o, 32) for o in flat(operands[0]))
    w.call(f"tcgen05.st(g, {shape!r}, {num}, {unpack}, {split}, {w.address(i.operands[0])}, ({values},))")


@op("tcgen05.wait::ld", cost="async", dst=0, blocking=True, collective=True, ends_block=True, settles=True)
def _wait_ld(w, i, m):
    _whole_warp(m)
    w.wait_unless("tcgen05.wait_ld(g)")


@op("tcgen05.wait::st", cost="async", dst=0, blocking=True, collective=True, ends_block=True)
def _wait_st(w, i, m):
    _whole_warp(m)
    w.wait_unless("tcgen05.wait_st(g)")


@op("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync", cost="async", dst=0)
def _fence(w, i, m):
    w.call(f"fences.tcgen05_fence(g, {'before' in i.op})")
