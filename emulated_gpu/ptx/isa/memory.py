"""Loads, stores, atomics, prefetches, matrices of a warp (PTX ISA 9.7.9, 9.7.13.12-13, 9.7.14.5)."""

from __future__ import annotations

from ...errors import Unsupported
from ...formats.cache_policy import EVICT_FIRST, EVICT_NORMAL
from ..syntax import SINK, Imm, Mem, Symbol, Vec
from .registry import CACHE_HINTS, FENCED, SCOPES, Mods, flat, is_signed, op, width

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "param::entry", "const")

# Costs: measured (latency/ld, latency/atom, mechanisms/ld, issue/st, issue/shared; silicon/probes/accesses.py). No
# measurement: ldu as ld; st.async, st.bulk as a store to shared memory; red as a store to where its word is; prefetch,
# applypriority and discard as other instructions to units that go on by themselves; createpolicy, mapa and getctarank
# as alu, which they mostly are; movmatrix as a shuffle, since it moves values between lanes.


def _space(m: Mods) -> str:
    return m.one_of(*SPACES, default="generic").split("::")[0]


def _order(m: Mods, default: str = "weak") -> tuple[str, str]:
    """Take semantics and scope: of volatile and mmio accesses that of the system, else the GPU's if none is named."""
    default = "mmio" if m.take("mmio") else default
    order = m.one_of("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", default=default)
    scope = m.one_of(*SCOPES, default="sys" if order in ("volatile", "mmio") else "gpu")
    return order, scope


def _releases(i) -> bool:
    """Whether it does, wherever its semantics stand among its modifiers: ptxas takes them in any order."""
    return "release" in i.parts or "acq_rel" in i.parts


def _sync(w, i, m: Mods, default: str = "weak") -> str:
    """How a store or an atomic hands on what its threads did: empty if weak, else its scope, with + if it releases:
    beyond its CTA, that waits as if a fence were in front of it."""
    releases = _releases(i)
    if releases and any(scope in m.left for scope in FENCED):
        w.wait_unless(f"fences.fenced(g, 'store', {'sys' if 'sys' in m.left else 'gpu'!r})")
    order, scope = _order(m, "release" if releases else default)
    return "" if order == "weak" else scope + "+" * releases


def _vector(m: Mods) -> int:
    return int(m.one_of("v2", "v4", "v8", default="v1")[1:])


def _memory_cost(i) -> str:
    """The cost of a load or store by its state space; parameters and constants by whether their address is known."""
    if i.parts[0] == "ld" and "shared::cluster" in i.parts:
        return "cluster_load"
    space = next((s for s in (p.split("::")[0] for p in i.parts[1:]) if s in ("shared", "local", "param", "const")), "")
    if space in ("param", "const"):
        memory = next(o for o in i.operands if isinstance(o, Mem))
        return "constant" if isinstance(memory.base, Symbol) else "indexed_constant"
    return space or ("global_store" if i.parts[0] == "st" else "global_load")


def _atomic_cost(i) -> str:
    shared = any(p.startswith("shared") for p in i.parts)
    if i.parts[0] == "red":
        return "shared" if shared else "global_store"
    return "shared_atomic" if shared else "global_atomic"


def write_loaded(w, destination, call: str, count: int, bits: int, signed: bool = False) -> None:
    """Write a load's call, which returns `count` values of `bits`, and what its destination gets of them."""
    items = flat(destination)
    if len(items) != count:
        raise Unsupported(f"{len(items)} destinations for a vector of {count}")
    values = [w.temp() for _ in items]
    unless = "" if w.guard is None else f" if {w.guard} is not False else {(0,) * count}"
    w.emit(f"{', '.join(values)}{',' if count == 1 else ''} = {call}{unless}")
    for item, value in zip(items, values, strict=True):
        if item is SINK:
            continue
        if bits < item.bits or bits == 8:
            value = f"alu.extend({value}, {bits}, {signed}, {item.bits})"
        w.write(item, value)


@op("ld", "ldu", "ld.global.nc", cost=_memory_cost, dst=1)
def _ld(w, i, m):
    order, scope = _order(m)
    strong = "" if order == "weak" else f", 'sys{'+' * (order == 'acquire')}'" if scope == "sys" else ", True"
    space = "global" if i.op.startswith("ld.global.nc") else _space(m)
    strong += ", nc=True" * ("nc" in i.parts)
    m.drop(*CACHE_HINTS)
    count, kind = _vector(m), m.type()
    bits = width(kind)
    call = f"access.load(g, {space!r}, {w.address(i.operands[1])}, {bits // 8}, {count}, {w.mask()}{strong})"
    write_loaded(w, i.operands[0], call, count, bits, is_signed(kind))


@op("st", cost=_memory_cost, dst=0, blocking=_releases, leaves_out=True)
def _st(w, i, m):
    sync = _sync(w, i, m)
    space = _space(m)
    m.drop(*CACHE_HINTS)
    count, kind = _vector(m), m.type()
    bits = width(kind)
    items = flat(i.operands[1])
    if len(items) != count or space in ("param", "const"):
        raise Unsupported(f"store of {len(items)} values to {space}")
    values = ", ".join(w.read(o, bits, kind[0] == "f") for o in items)
    more = ", True" if w.are_results(items) else ""
    more += f", sync={sync!r}" if sync else ""
    w.call(f"access.store(g, {space!r}, {w.address(i.operands[0])}, {bits // 8}, ({values},), {w.mask()}{more})")


@op("st.bulk", cost="shared", dst=0)
def _st_bulk(w, i, m):
    m.take("weak")
    space = "shared" if m.take("shared::cta") else "generic"
    address, size, value = i.operands
    if not isinstance(value, Imm) or value.value != 0:
        raise Unsupported("st.bulk of another value than 0, which the PTX ISA does not have")
    w.call(f"access.store_bulk(g, {space!r}, {w.address(address)}, {w.read(size, 64)}, {w.mask()})")


@op("st.async", cost="shared", dst=0)
def _st_async(w, i, m):
    _order(m)
    if not m.take("shared::cluster") or not m.take("mbarrier::complete_tx::bytes"):
        raise Unsupported("this form of st.async")
    _vector(m)
    kind = m.type()
    values = ", ".join(w.read(o, width(kind), kind[0] == "f") for o in flat(i.operands[1]))
    bar = w.address(i.operands[2])
    w.call(f"access.store_async(g, {w.address(i.operands[0])}, {width(kind) // 8}, ({values},), {bar}, {w.mask()})")


ATOMIC = ("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas")


def _old_value(i) -> int:
    return 1 if i.op.startswith("atom") else 0


@op("atom", "red", cost=_atomic_cost, dst=_old_value, blocking=_releases)
def _atom(w, i, m):
    acquires = ", True" if "sys" in i.parts and ("acquire" in i.parts or "acq_rel" in i.parts) else ""
    sync = _sync(w, i, m, "relaxed")
    space = _space(m)
    m.drop(*CACHE_HINTS)
    what = m.one_of(*ATOMIC)
    m.take("noftz")
    count, kind = _vector(m), m.type()
    if count == 1 and "f16" in kind and what in ("min", "max"):
        raise Unsupported(f".{what} of one .{kind}, not of a vector")
    is_red = i.op.startswith("red")
    d = SINK if is_red else i.operands[0]
    mem, *sources = i.operands if is_red else i.operands[1:]
    sources = sources[: 2 if what == "cas" else 1]
    bits = width(kind)
    address = w.address(mem)
    values = ", ".join(w.read(o, bits, True) for s in sources for o in flat(s))
    call = f"access.atomic(g, {space!r}, {what!r}, {kind!r}, {address}, ({values},), {count}, {w.mask()}, {not is_red}"
    call += f", {sync!r}{acquires})"
    if is_red:
        w.call(call)
    else:
        w.write_all(flat(d) if isinstance(d, Vec) else [d], call)


@op("red.async", cost="global_store", dst=0)
def _red_async(w, i, m):
    _order(m)
    what = m.one_of(*ATOMIC)
    if not m.take("shared::cluster") or not m.take("mbarrier::complete_tx::bytes"):
        raise Unsupported("this form of red.async")
    kind = m.type()
    value, bar = w.read(i.operands[1], width(kind)), w.address(i.operands[2])
    w.call(f"access.red_async(g, {what!r}, {kind!r}, {w.address(i.operands[0])}, {value}, {bar}, {w.mask()})")


@op("prefetch", "prefetchu", cost="async", dst=0)
def _prefetch(w, i, m):
    space = _space(m)
    tensormap = m.take("tensormap")
    m.drop(*CACHE_HINTS)
    m.take("L1", "L2")
    w.call(f"access.prefetch(g, {space!r}, {w.address(i.operands[0])}, {tensormap}, {w.mask()})")


ONE = {0x3F800000, 0x3FF0000000000000}  # as a float or a double: all bytes


@op("createpolicy", cost="alu")
def _policy(w, i, m):
    """Cache policies are opaque 64-bit values: kept, never looked at by the functional units."""
    for_all = all(isinstance(x, Imm) and x.value in ONE for x in i.operands[1:])
    first = "L2::evict_first" in m.left and for_all
    m.drop(*CACHE_HINTS)
    m.drop("fractional", "range", "cvt", "b64", "global", "L2")
    w.write(i.operands[0], repr(EVICT_FIRST if first else EVICT_NORMAL))


@op("applypriority", "discard", cost="async", dst=0)
def _of_lines(w, i, m):
    """A hint about 128 bytes; and a write of nobody knows what to as many (9.7.9.17: the data is destroyed)."""
    m.drop(*CACHE_HINTS)
    m.drop("global", "L2")
    what = "discard" if i.op.startswith("discard") else "apply_priority"
    w.call(f"access.{what}(g, {w.address(i.operands[0])}, {i.operands[1].value}, {w.mask()})")


@op("mapa", cost="alu", dst=1)
def _mapa(w, i, m):
    shared = m.take("shared::cluster")
    bits = width(m.type())
    a = i.operands[1]
    address = w.address(a) if isinstance(a, Mem) else w.read(a, bits)
    w.write(i.operands[0], f"addresses.map_shared(g, {address}, {w.read(i.operands[2], 32)}, {shared})")


@op("getctarank", cost="alu", dst=1)
def _getctarank(w, i, m):
    shared = m.take("shared::cluster")
    bits = width(m.type())
    address = w.read(i.operands[1], bits)
    address = address if shared else f"addresses.from_generic({address}, 'shared')"
    w.write(i.operands[0], f"alu.resize(({address}) >> 24, 32)")


@op("ldmatrix.sync.aligned", cost="matrix_load", dst=1, collective=True)
def _ldmatrix(w, i, m):
    shape = m.one_of("m8n8", "m16n16", "m8n16")
    count = int(m.one_of("x1", "x2", "x4")[1:])
    trans = m.take("trans")
    m.take("shared", "shared::cta")
    kind = m.one_of("b16", "b8", "b8x16")
    packed = m.one_of("b6x16_p32", "b4x16_p64") if kind == "b8x16" else kind
    bits = int(packed[1:].partition("x")[0])
    of_bytes = kind != "b16" and shape == "m16n16" and trans and count < 4
    if not (shape == "m8n8" and bits == 16 or of_bytes or kind == "b8x16" and shape == "m8n16" and not trans):
        raise Unsupported(f"ldmatrix {shape} x{count} of {bits} bits{'' if trans else ' without .trans'}")
    items = flat(i.operands[0])
    if len(items) != count * (2 if of_bytes else 1):
        raise Unsupported("ldmatrix register count")
    w.write_all(items, f"access.ldmatrix(g, {w.address(i.operands[1])}, {count}, {bits}, {trans})")


@op("movmatrix.sync.aligned.m8n8.trans.b16", cost="shuffle", dst=1, collective=True)
def _movmatrix(w, i, m):
    w.write(i.operands[0], f"access.movmatrix(g, {w.read(i.operands[1], 32)})")


@op("stmatrix.sync.aligned", cost="shared", dst=0, collective=True, leaves_out=True)
def _stmatrix(w, i, m):
    shape = m.one_of("m8n8", "m16n8")
    count = int(m.one_of("x1", "x2", "x4")[1:])
    trans = m.take("trans")
    m.take("shared", "shared::cta")
    bits = int(m.one_of("b16", "b8")[1:])
    if (shape, bits, trans) not in {("m8n8", 16, trans), ("m16n8", 8, True)}:
        raise Unsupported(f"stmatrix {shape} of {bits} bits{'' if trans else ' without .trans'}")
    items = flat(i.operands[1])
    if len(items) != count:
        raise Unsupported("stmatrix register count")
    values = ", ".join(w.read(o, 32) for o in items)
    w.call(f"access.stmatrix(g, {w.address(i.operands[0])}, ({values},), {bits}, {trans}, {w.are_results(items)})")
