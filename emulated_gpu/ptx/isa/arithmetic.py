"""Integer, floating point, half precision and extended precision arithmetic (PTX ISA 9.7.1-9.7.5)."""

from __future__ import annotations

from types import MappingProxyType

from ...errors import Unsupported
from ...formats.alu import ONE
from ..syntax import Imm
from .registry import UNTIMED, Mods, is_float, is_signed, op, plain, width

ROUNDINGS = ("rn", "rz", "rm", "rp")
SOURCES = dict.fromkeys(("add", "sub", "mul", "div"), (2,)) | {"fma": (3,), "mad": (3,), "min": (2, 3), "max": (2, 3)}
FULL_RATE = {"f16", "f16x2", "bf16", "bf16x2", "f32"}  # types with as many products as sums a cycle in the guide

# Costs. `alu`: measured (chain/add.s32, add.f32, fma.f32, issue/); no measurement of add.cc, addc, abs, neg, min,
# max, sad, dp4a, dp2a, copysign, testp, nor of f16, bf16 and f64. `multiply`: measured (chain/mad.s32, mul.wide,
# issue/mad.s32); madc as mad; mul24 and mad24 (several instructions by the guide): no measurement. Products of floats
# are as sums and fma by the guide (f64 apart), not measured.
# `divide`: measured of u32 (mechanisms/div.u32); no measurement of floats. `special`: measured (chain/ex2); the guide
# has 16 results for all of these. `packed`: inferred, see profiles/b200.toml.


def _mixed(m: Mods, kind: str) -> str | None:
    """Take the other type of a mixed-precision form, PTX ISA 9.7.5: `add.rn.f32.bf16`, whose last type is `kind`.

    Returns the type of the narrow sources, "f16" or "bf16", else None.
    """
    narrow = kind if kind in ("f16", "bf16") and m.take("f32") else None
    if narrow and "ftz" in m.left:
        raise Unsupported(".ftz of a mixed-precision form")
    return narrow


def _float(w, i, m, kind: str, what: str, extra: str = "", narrow: dict[int, str] | None = None):
    """d = what(sources...) for scalar and packed kinds.

    narrow: the types of the sources, by number, that are f16 or bf16 where the others are f32.
    """
    kind = "f32" if narrow else kind
    options = {"mode": m.one_of(*ROUNDINGS, default="rn"), "ftz": m.take("ftz"), "sat": m.take("sat")}
    if options["sat"] and kind.startswith("bf"):
        raise Unsupported(".sat on bf16")
    args = ", ".join(f"{k}={v!r}" for k, v in options.items()) + extra
    _apply(w, i, kind, f"alu.arithmetic({what!r}, ", args, narrow or {})


def _apply(w, i, kind: str, function: str, args: str, narrow: dict[int, str] = MappingProxyType({})):
    bits = width(kind) if kind != "f32x2" else 64
    sources = [w.read(o, 16 if n in narrow else bits, float_kind=True) for n, o in enumerate(i.operands[1:])]
    if len(sources) not in SOURCES.get(i.parts[0], (1,)):
        raise ValueError(f"{len(sources)} operands")
    for n, source_kind in narrow.items():
        sources[n] = f"convert.float_to_float({sources[n]}, {source_kind!r}, 'f32')"
    names = [f"v{n}" for n in range(len(sources))]
    if kind.endswith("x2"):
        call = f"{function}{kind[:-2]!r}, {', '.join(names)}, {args})"
        value = f"alu.packed(lambda {', '.join(names)}: {call}, {', '.join(sources)}, bits={bits // 2})"
    else:
        value = f"{function}{kind!r}, {', '.join(sources)}, {args})"
    w.write(i.operands[0], w.made_of(i.operands[1:], value))


def _packed_or(cost: str):
    """The cost of an opcode that has a form for two f32: `cost` of its other forms."""
    return lambda i: "packed" if "f32x2" in i.parts else cost


def _multiplication(i) -> str:
    """Floating-point products are issued as fast as sums, those of integers at half the rate."""
    return _packed_or("alu" if FULL_RATE & set(i.parts) else "multiply")(i)


def _division(i) -> str:
    """A division by a constant becomes a multiplication."""
    return "multiply" if len(i.operands) > 2 and isinstance(i.operands[2], Imm) else "divide"


def _type(m: Mods) -> str:
    """Type suffix, with the packed f32x2 that TYPE_BITS does not list."""
    return "f32x2" if m.take("f32x2") else m.type()


@op("add", "sub", cost=_packed_or("alu"), leaves_out=True)
def _add(w, i, m):
    minus = i.op.startswith("sub")
    kind = _type(m)
    if narrow := _mixed(m, kind):
        _float(w, i, m, kind, i.parts[0], "", {0: narrow})
        return
    if is_float(kind):
        _float(w, i, m, kind, i.parts[0])
    else:
        bits = width(kind)
        a, b = (w.read(o, bits) for o in i.operands[1:])
        if m.take("sat"):
            w.write(i.operands[0], f"alu.sat_add({a}, {b}, {minus})")
        elif kind in ("s16x2", "u16x2"):
            if minus:
                raise Unsupported(f"sub.{kind}")
            w.write(i.operands[0], f"alu.packed(lambda a, b: (a + b) & 0xffff, {a}, {b})")
        else:
            w.write(i.operands[0], f"({a} {'-' if minus else '+'} {b}) & {(1 << bits) - 1}")


def _carry(w, i, a: str, b: str, bits: int, carry_in: str, out: bool, minus: bool = False) -> None:
    total, carry = w.temp(), w.temp()
    w.emit(f"{total}, {carry} = alu.carry({a}, {b}, {carry_in}, {bits}, {minus})")
    w.write(i.operands[0], total)
    if out:
        w.emit(f"g.carry = {carry}")


@op("add.cc", "sub.cc", "addc", "subc", cost="alu")
def _add_cc(w, i, m):
    chained = i.op.startswith(("addc", "subc"))
    out, bits = not chained or m.take("cc"), width(m.type())
    a, b = (w.read(o, bits) for o in i.operands[1:3])
    _carry(w, i, a, b, bits, "g.carry" if chained else "0", out, i.op.startswith("sub"))


@op("mul", cost=_multiplication, leaves_out=True)
def _mul(w, i, m):
    kind = _type(m)
    if is_float(kind):
        _float(w, i, m, kind, "mul")
    else:
        w.write(i.operands[0], _product(w, i, m, kind))


def _product(w, i, m, kind: str) -> str:
    bits, sign = width(kind), is_signed(kind)
    a, b = (w.read(o, bits) for o in i.operands[1:3])
    part = m.one_of("lo", "hi", "wide")
    if part == "lo":
        return f"(({a} * {b}) & {(1 << bits) - 1})"
    if part == "hi":
        return f"alu.mul_hi({a}, {b}, {bits}, {sign})"
    return f"alu.mul_wide({a}, {b}, {bits}, {sign})"


@op("mul24", "mad24", cost="multiply")
def _mul24(w, i, m):
    kind = m.type()
    high = m.one_of("lo", "hi") == "hi"
    a, b = (w.read(o, 32) for o in i.operands[1:3])
    product = f"alu.mul24({a}, {b}, {is_signed(kind)}, {high})"
    if i.op.startswith("mad"):
        product = f"({product} + {w.read(i.operands[3], 32)}) & {0xFFFFFFFF}"
    w.write(i.operands[0], product)


@op("mad", cost=_multiplication, leaves_out=True)
def _mad(w, i, m):
    kind = m.type()
    if is_float(kind):
        _float(w, i, m, kind, "fma")
        return
    bits = width(kind) * (2 if "wide" in m.left else 1)
    product = _product(w, i, m, kind)
    c = w.read(i.operands[3], bits)
    if m.take("cc"):
        _carry(w, i, product, c, bits, "0", True)
    elif m.take("sat"):
        w.write(i.operands[0], f"alu.sat_add({product}, {c}, False)")
    else:
        w.write(i.operands[0], f"({product} + {c}) & {(1 << bits) - 1}")


@op("madc", cost="multiply")
def _madc(w, i, m):
    kind = m.type()
    bits = width(kind)
    product = _product(w, i, m, kind)
    _carry(w, i, product, w.read(i.operands[3], bits), bits, "g.carry", m.take("cc"))


@op("fma", cost=_packed_or("alu"), leaves_out=True)
def _fma(w, i, m):
    kind = _type(m)
    if narrow := _mixed(m, kind):
        _float(w, i, m, kind, "fma", "", {0: narrow, 1: narrow})
        return
    relu = m.take("relu")
    _float(w, i, m, kind, "fma", f", relu={relu}" if relu else "")


@op("div", cost=_division)
def _div(w, i, m):
    kind = m.type()
    if is_float(kind):
        mode = m.one_of(*ROUNDINGS, "approx", "full")
        mode = "rn" if mode in ("approx", "full") else mode
        _apply(w, i, kind, "alu.arithmetic('div', ", f"mode={mode!r}, ftz={m.take('ftz')}")
    else:
        a, b = (w.read(o, width(kind)) for o in i.operands[1:])
        w.write(i.operands[0], f"alu.div_int({a}, {b}, {width(kind)}, {is_signed(kind)})")


plain(__name__, "alu.div_int({0}, {1}, {bits}, {sign}, True)", "rem", cost=_division)
APART = "(alu.max_int({0}, {1}, {bits}, {sign}) - alu.min_int({0}, {1}, {bits}, {sign})) & {ones}"
plain(__name__, f"(({APART}) + {{2}}) & {{ones}}", "sad", cost="alu")


@op("abs", "neg", cost="alu")
def _abs_neg(w, i, m):
    kind = m.type()
    absolute = i.op.startswith("abs")
    if is_float(kind):
        _apply(w, i, kind, "alu.fneg(", f"ftz={m.take('ftz')}, absolute={absolute}")
    elif kind.endswith("x2"):
        raise Unsupported(f"{i.op} of packed integers")
    else:
        a, bits = w.read(i.operands[1], width(kind)), width(kind)
        w.write(i.operands[0], f"alu.magnitude({a}, {bits})" if absolute else f"(-{a}) & {(1 << bits) - 1}")


@op("min", "max", cost="alu")
def _min_max(w, i, m):
    kind = m.type()
    is_max = i.op.startswith("max")
    if is_float(kind):
        nan, sign, absolute, three = m.take("NaN"), m.take("xorsign"), m.take("abs"), len(i.operands) > 3
        if sign != (absolute and not three) or three and kind != "f32":
            raise Unsupported("one of .xorsign and .abs, or three operands")
        options = f"ftz={m.take('ftz')}, nan={nan}, xorsign={sign}, absolute={absolute}"
        _apply(w, i, kind, "alu.fminmax(", f"is_max={is_max}, {options}")
        return
    relu = m.take("relu")
    a, b = (w.read(o, width(kind)) for o in i.operands[1:])
    bits = width(kind.removesuffix("x2"))

    def one(a, b):
        text = f"alu.{'max' if is_max else 'min'}_int({a}, {b}, {bits}, {is_signed(kind)})"
        return f"alu.max_int({text}, 0, {bits}, True)" if relu else text

    packed = f"alu.packed(lambda a, b: {one('a', 'b')}, {a}, {b})"
    w.write(i.operands[0], packed if kind.endswith("x2") else one(a, b))


@op("dp4a", "dp2a", cost="alu")
def _dp(w, i, m):
    part = 8 if i.op.startswith("dp4a") else 16
    high = part == 16 and m.one_of("lo", "hi") == "hi"
    of_b, of_a = m.type(), m.type()
    a, b, c = (w.read(o, 32) for o in i.operands[1:])
    w.write(i.operands[0], f"alu.dp({a}, {b}, {c}, {(is_signed(of_a), is_signed(of_b))}, {part}, {high})")


@op(*(f"v{what}{parts}" for what in ("add", "sub", "avrg", "absdiff", "min", "max") for parts in (2, 4)), cost=UNTIMED)
def _video(w, i, m):
    """PTX ISA 9.7.20, of all halves or bytes in their order; ptxas makes several instructions of it."""
    sat, add = m.take("sat"), m.take("add")
    if sat and add:
        raise Unsupported(".sat of a sum")
    of_b, of_a, of_d = m.type(), m.type(), m.type()
    signs = tuple(map(is_signed, (of_d, of_a, of_b)))
    a, b, c = (w.read(o, 32) for o in i.operands[1:])
    name = i.parts[0]
    w.write(i.operands[0], f"alu.video({name[1:-1]!r}, {a}, {b}, {c}, {32 // int(name[-1])}, {signs}, {sat}, {add})")


@op("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", cost="special")
def _special_function(w, i, m):
    name = i.op.split(".")[0]
    kind = m.type()
    ftz = m.take("ftz")
    mode = m.one_of("approx", *(ROUNDINGS if name in ("rcp", "sqrt") else ()))
    if mode in ROUNDINGS:
        what, one = ("'div', ", f"{ONE[kind]}, ") if name == "rcp" else (f"{name!r}, ", "")
        a = w.read(i.operands[1], width(kind), True)
        w.write(i.operands[0], f"alu.arithmetic({what}{kind!r}, {one}{a}, mode={mode!r}, ftz={ftz})")
    elif kind == "f64":
        if name not in ("rcp", "rsqrt") or not ftz:
            raise Unsupported("approximate f64")
        w.write(i.operands[0], f"alu.approx_high({name!r}, {w.read(i.operands[1], 64, True)})")
    else:
        _apply(w, i, kind, f"alu.approx({name!r}, ", f"ftz={ftz}")


@op("copysign", cost="alu")
def _copysign(w, i, m):
    bits = width(m.type())
    sign = 1 << (bits - 1)
    a, b = (w.read(o, bits, True) for o in i.operands[1:])
    w.write(i.operands[0], f"({a} & {sign}) | ({b} & {sign - 1})")


@op("testp", cost="alu")
def _testp(w, i, m):
    what = m.one_of("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind = m.type()
    w.write(i.operands[0], f"alu.testp({kind!r}, {what!r}, {w.read(i.operands[1], width(kind), True)})")
