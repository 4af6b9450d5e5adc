"""Comparison, selection, logic, shift, bit field and move instructions (PTX ISA 9.7.6-9.7.9)."""

from __future__ import annotations

from ...errors import Unsupported
from ...formats.alu import ONE
from ..syntax import Imm, Mem, Special, Symbol, Vec
from .registry import UNTIMED, Mods, flat, is_float, is_signed, op, pair, plain, width

SYMBOLS = {"and": "&", "or": "|", "xor": "^"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
FLOAT_COMPARE = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")

# Costs. `alu`: measured (chain/lop3, shift, setp_selp); no measurement of set, slct, cnot, bfe, bfi, bmsk, szext,
# prmt, isspacep. `special`: the guide has 16 results of clz, bfind and brev. Of popc, too, but figures that were
# modelled with it have it as `alu`. `move`: see the profiles. fns: a routine of unknown length.


def _comparison(w, m: Mods, a, b) -> str:
    compare = m.one_of(*COMPARE, *UNSIGNED, *FLOAT_COMPARE)
    ftz = m.take("ftz")
    kind = m.type()
    bits = width(kind)
    x, y = w.read(a, bits, is_float(kind)), w.read(b, bits, is_float(kind))
    if kind.endswith("x2"):
        return f"alu.halves(lambda a, b: alu.fcompare({kind[:-2]!r}, {compare!r}, a, b, {ftz}), {x}, {y})"
    if is_float(kind):
        return f"alu.fcompare({kind!r}, {compare!r}, {x}, {y}, {ftz})"
    sign = is_signed(kind) and compare not in UNSIGNED
    symbol = COMPARE[UNSIGNED.get(compare, compare)]
    if sign and compare not in ("eq", "ne"):
        flip = 1 << (bits - 1)  # order of two's complement numbers is that of unsigned ones with the top bit flipped
        x = f"({x} ^ {flip})"
        y = repr((b.value & ((1 << bits) - 1)) ^ flip) if isinstance(b, Imm) else f"({y} ^ {flip})"
    return f"({x} {symbol} {y})"


@op("setp", cost="alu")
def _setp(w, i, m):
    combine = m.one_of("and", "or", "xor", default=None)
    a, b = i.operands[1:3]
    p, q = pair(i.operands[0])
    packed = "f16x2" in m.left or "bf16x2" in m.left
    text = _comparison(w, m, a, b)
    if packed and q is None:
        raise Unsupported("packed comparison into one predicate")
    if q is not None or combine:
        t, other = w.temp(), w.temp()
        w.emit(f"{t}, {other} = {text}" if packed else f"{t} = {text}")
        c = w.read(i.operands[3], 1) if combine else None
        symbol = SYMBOLS.get(combine)
        results = [t, other if packed else f"({t} ^ True)"]
        if combine:
            results = [f"({r} {symbol} {c})" for r in results]
        values = [w.temp(), w.temp()]
        for v, r in zip(values, results, strict=True):
            w.emit(f"{v} = {r}")
        w.write(p, values[0])
        if q is not None:
            w.write(q, values[1])
    else:
        w.write(p, text)


@op("set", cost="alu")
def _set(w, i, m):
    combine = m.one_of("and", "or", "xor", default=None)
    to = next(x for x in m.left if x in ("u32", "s32", "f32", "f16", "bf16", "u16", "s16", "f16x2", "bf16x2"))
    m.left.remove(to)
    packed = "f16x2" in m.left or "bf16x2" in m.left
    text = _comparison(w, m, *i.operands[1:3])
    bits = 16 if packed else width(to)
    one = ONE.get(to.removesuffix("x2"), (1 << bits) - 1)
    results = [w.temp() for _ in range(2 if packed else 1)]
    w.emit(f"{', '.join(results)} = {text}")
    if combine:
        symbol = SYMBOLS[combine]
        results = [f"{t} {symbol} {w.read(i.operands[3], 1)}" for t in results]
    results = [f"select({t}, {one}, 0, {bits})" for t in results]
    w.write(i.operands[0], f"alu.join(16, {', '.join(results)})" if packed else results[0])


@op("selp", cost="alu")
def _selp(w, i, m):
    kind = m.type()
    bits = width(kind)
    a, b = (w.read(o, bits, is_float(kind)) for o in i.operands[1:3])
    w.write(i.operands[0], f"select({w.read(i.operands[3], 1)}, {a}, {b}, {bits})")


@op("slct", cost="alu")
def _slct(w, i, m):
    by = m.type()
    kind = m.type()
    ftz = m.take("ftz")
    a, b = (w.read(o, width(kind), is_float(kind)) for o in i.operands[1:3])
    c = w.read(i.operands[3], 32)
    test = f"alu.fcompare('f32', 'ge', {c}, 0, {ftz})" if by == "f32" else f"({c} < {1 << 31})"
    w.write(i.operands[0], f"select({test}, {a}, {b}, {width(kind)})")


plain(__name__, "{0} & {1}", "and", cost="alu")
plain(__name__, "{0} | {1}", "or", cost="alu")
plain(__name__, "{0} ^ {1}", "xor", cost="alu")
plain(__name__, "{0} ^ {ones}", "not", cost="alu")
plain(__name__, "select({0} == 0, 1, 0, {bits})", "cnot", cost="alu")
plain(__name__, "alu.popc({0}, {bits})", "popc", cost="alu")
plain(__name__, "alu.clz({0}, {bits})", "clz", cost="special")
plain(__name__, "alu.brev({0}, {bits})", "brev", cost="special")
plain(__name__, "alu.bfe({0}, {1:32}, {2:32}, {bits}, {sign})", "bfe", cost="alu")
plain(__name__, "alu.bfi({0}, {1}, {2:32}, {3:32}, {bits})", "bfi", cost="alu")
plain(__name__, "alu.fns({0}, {1}, {2})", "fns", cost=UNTIMED)


@op("lop3", cost="alu")
def _lop3(w, i, m):
    m.type()
    combine = m.one_of("and", "or", default=None)
    d, p = pair(i.operands[0])
    a, b, c = (w.read(o, 32) for o in i.operands[1:4])
    t = w.temp()
    w.emit(f"{t} = alu.lop3({a}, {b}, {c}, {i.operands[4].value})")
    w.write(d, t)
    if combine:
        w.write(p, f"(({t} != 0) {SYMBOLS[combine]} {w.read(i.operands[5], 1)})")


@op("shl", cost="alu")
def _shl(w, i, m):
    bits = width(m.type())
    a, n = w.read(i.operands[1], bits), i.operands[2]
    if isinstance(n, Imm):
        w.write(i.operands[0], f"({a} << {n.value}) & {(1 << bits) - 1}" if n.value < bits else "0")
    else:
        w.write(i.operands[0], f"alu.shifted({a}, {w.read(n, 32)}, {bits}, True)")


@op("shr", cost="alu")
def _shr(w, i, m):
    kind = m.type()
    bits, n = width(kind), i.operands[2]
    a = w.read(i.operands[1], bits)
    if isinstance(n, Imm) and not is_signed(kind):
        w.write(i.operands[0], f"{a} >> {n.value}" if n.value < bits else "0")
    else:
        w.write(i.operands[0], f"alu.shr({a}, {w.read(n, 32)}, {bits}, {is_signed(kind)})")


@op("shf", cost="alu")
def _shf(w, i, m):
    left = m.one_of("l", "r") == "l"
    wrap = m.one_of("clamp", "wrap") == "wrap"
    m.type()
    a, b, c = (w.read(o, 32) for o in i.operands[1:])
    w.write(i.operands[0], f"alu.shf({a}, {b}, {c}, {left}, {wrap})")


@op("bmsk", cost="alu")
def _bmsk(w, i, m):
    wrap = m.one_of("clamp", "wrap") == "wrap"
    m.type()
    a, b = (w.read(o, 32) for o in i.operands[1:])
    w.write(i.operands[0], f"alu.bmsk({a}, {b}, {wrap})")


@op("szext", cost="alu")
def _szext(w, i, m):
    wrap = m.one_of("clamp", "wrap") == "wrap"
    sign = is_signed(m.type())
    a, n = (w.read(o, 32) for o in i.operands[1:])
    w.write(i.operands[0], f"alu.szext({a}, {n}, {sign}, {wrap})")


@op("bfind", cost="special")
def _bfind(w, i, m):
    shiftamt = m.take("shiftamt")
    kind = m.type()
    a = w.read(i.operands[1], width(kind))
    w.write(i.operands[0], f"alu.bfind({a}, {width(kind)}, {is_signed(kind)}, {shiftamt})")


@op("prmt", cost="alu")
def _prmt(w, i, m):
    m.type()
    mode = m.one_of("f4e", "b4e", "rc8", "ecl", "ecr", "rc16", default="")
    a, b, c = (w.read(o, 32) for o in i.operands[1:])
    w.write(i.operands[0], f"alu.prmt({a}, {b}, {c}, {mode!r})")


@op("mov", cost="move", leaves_out=True)
def _mov(w, i, m):
    kind = m.type()
    d, s = i.operands
    bits = width(kind)
    if isinstance(d, Vec):  # unpack
        part = bits // len(d.items)
        value = w.temp()
        w.emit(f"{value} = {w.read(s, bits)}")
        for n, item in enumerate(flat(d)):
            one = f"alu.resize(({value} >> {part * n}) & {(1 << part) - 1}, {max(part, 16)})"
            w.write(item, w.made_of([s], one))
    elif isinstance(s, Vec):  # pack
        part = bits // len(s.items)
        if bits == 128 and part != 64:
            raise Unsupported("128-bit register packed from other than two 64-bit ones")
        parts = ", ".join(w.read(o, part) for o in s.items)
        w.write(d, w.made_of(s.items, f"alu.join({part}, {parts})"))
    elif isinstance(s, Mem):  # the address of a place in a variable
        w.write(d, f"alu.resize({w.address(s)}, {bits})")
    elif isinstance(s, (Special, Symbol)):
        w.write(d, f"alu.resize({w.read(s, bits)}, {bits})")
    else:
        w.write(d, w.read(s, bits, is_float(kind)))


@op("cvta", cost="move")
def _cvta(w, i, m):
    to = m.take("to")
    space = next((s for s in list(m.left) if s.split("::")[0] in ("shared", "global", "local", "const", "param")), None)
    if space is None:
        raise Unsupported("address space")
    m.left.remove(space)
    bits = width(m.type())
    a = i.operands[1]
    convert = "addresses.from_generic" if to else "addresses.to_generic"
    w.write(i.operands[0], f"{convert}({w.read(a, bits)}, {space.split('::')[0]!r})")


@op("isspacep", cost="alu")
def _isspacep(w, i, m):
    space = m.one_of("global", "const", "local", "shared", "shared::cta", "shared::cluster", "param", "param::entry")
    w.write(i.operands[0], f"addresses.is_space({w.read(i.operands[1], 64)}, {space!r})")
