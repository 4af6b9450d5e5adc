"""LLVM for what generated code calls of formats/alu.py: the same names, arguments and bits.

Each function takes the Code that it writes to, then what its namesake takes; that one's docstring says what it does.
"""

from __future__ import annotations

from ..formats.alu import NAN, WIDTH, flush
from ..jit.llvm import Code, Untranslated, Value, compiler
from .warp_code import WarpCode

Int = Value | int


# -- floats ------------------------------------------------------------------------------------------------------------
def bits_of(c: Code, x: Int, kind: str, ftz: bool = False) -> Value:
    x = c.cast(x, WIDTH[kind])
    return flush(x, kind) if ftz else x


def number(c: Code, x: Int, kind: str, bits: int, ftz: bool = False) -> Value:
    """The number that bits of a kind stand for, exactly, as a float of at least as many bits."""
    x = bits_of(c, x, kind, ftz)
    if kind == "bf16":
        x, own = c.shift("shl", c.cast(x, 32), 16), 32
    else:
        own = WIDTH[kind]
        if own == 16 and not compiler().has_halves:
            raise Untranslated("conversions of f16 on this machine")
    v = c.as_real(x)
    if own == bits:
        return v
    wide = Value("", bits, v.vary, True)
    return c.value(f"fpext {v} to {wide.type}", bits, v.vary, True)


def is_nan(c: Code, v: Value) -> Value:
    return c.compare("uno", v, v)


def canonical(c: Code, v: Value, kind: str, ftz: bool = False) -> Value:
    """A number of a kind's own format as its bits; NaN becomes the canonical NaN."""
    bits = c.as_bits(v)
    if ftz:
        bits = flush(bits, kind)
    return c.choose(is_nan(c, v), NAN[kind], bits)


def to_odd(c: Code, v: Value) -> Value:
    """A double as a float, rounded to odd: what it rounds to in a shorter format is right (Boldo, Melquiond)."""
    near = c.value(f"fptrunc {v} to {Value('', 32, v.vary, True).type}", 32, v.vary, True)
    wide = c.value(f"fpext {near} to {v.type}", 64, v.vary, True)
    bits = c.as_bits(near)
    size = c.intrinsic("fabs", wide), c.intrinsic("fabs", v)
    over = c.cast(c.compare("ogt", *size), 32)
    cut = c.binary("or", c.binary("sub", bits, over), 1)
    exact = c.binary("or", c.compare("ueq", wide, v), c.compare("oeq", size[1], c.real(float("inf"), 64, v.vary)))
    return c.as_real(c.choose(exact, bits, cut))


def round_float(c: Code, v: Value, kind: str, mode: str = "rn", ftz: bool = False, lo: Value | None = None) -> Value:
    if lo is not None:
        v = _odd(c, v, lo)
    if kind == "f64":
        return canonical(c, v, kind)
    if kind == "f32":
        near = c.value(f"fptrunc {v} to {Value('', 32, v.vary, True).type}", 32, v.vary, True)
        if mode != "rn":
            near = _directed(c, near, v, mode)
        return canonical(c, near, kind, ftz)
    if mode != "rn":
        raise Untranslated(f"{kind} rounded by .{mode}")
    odd = to_odd(c, v)
    if kind == "f16":
        if not compiler().has_halves:
            raise Untranslated("conversions of f16 on this machine")
        bits = c.as_bits(c.value(f"fptrunc {odd} to {Value('', 16, v.vary, True).type}", 16, v.vary, True))
    else:
        bits = round_bf16(c, c.as_bits(odd))
    if ftz:
        bits = flush(bits, kind)
    return c.choose(is_nan(c, v), NAN[kind], bits)


def round_bf16(c: Code, bits: Value) -> Value:
    """Bits of a float, rounded to the nearest bf16; NaN to anything."""
    odd = c.binary("and", c.shift("lshr", bits, 16), 1)
    return c.cast(c.shift("lshr", c.binary("add", bits, c.binary("add", odd, 0x7FFF)), 16), 16)


def _directed(c: Code, near: Value, v: Value, mode: str) -> Value:
    """A float that is nearest to a double, moved by one where it lies on the wrong side of it."""
    wide = c.value(f"fpext {near} to {v.type}", 64, v.vary, True)
    bits = c.as_bits(near)
    negative = c.compare("slt", bits, 0)
    if mode == "rz":
        wrong = c.compare("ogt", c.intrinsic("fabs", wide), c.intrinsic("fabs", v))
        return c.as_real(c.binary("sub", bits, c.cast(wrong, 32)))
    up = mode == "rp"
    wrong = c.compare("olt" if up else "ogt", wide, v)
    grows = c.invert(negative) if up else negative  # away from zero, the bits count up
    step = c.choose(grows, 1, -1, 32)
    zero = c.compare("eq", c.binary("and", bits, 0x7FFFFFFF), 0)
    moved = c.choose(zero, 1 if up else 0x80000001, c.binary("add", bits, step))
    return c.as_real(c.choose(wrong, moved, bits))


def _odd(c: Code, hi: Value, lo: Value) -> Value:
    bits = c.as_bits(hi)
    zero = c.real(0.0, 64, hi.vary)
    finite = c.compare("olt", c.intrinsic("fabs", hi), c.real(float("inf"), 64, hi.vary))
    even = c.compare("eq", c.binary("and", bits, 1), 0)
    inexact = c.binary("and", c.binary("and", c.compare("une", lo, zero), finite), even)
    away = c.compare("eq", c.compare("ogt", lo, zero), c.compare("ogt", hi, zero))
    moved = c.choose(away, c.binary("add", bits, 1), c.binary("sub", bits, 1))
    return c.as_real(c.choose(inexact, moved, bits))


def _two_sum(c: Code, a: Value, b: Value, mode: str) -> tuple[Value, Value]:
    s = c.binary("fadd", a, b)
    t = c.binary("fsub", s, a)
    err = c.binary("fadd", c.binary("fsub", a, c.binary("fsub", s, t)), c.binary("fsub", b, t))
    finite = c.compare("olt", c.intrinsic("fabs", s), c.real(float("inf"), 64, s.vary))
    if mode == "rm":  # a sum of zero is -0 unless both terms are +0
        negative = c.binary("or", c.compare("slt", c.as_bits(a), 0), c.compare("slt", c.as_bits(b), 0))
        zero = c.compare("oeq", s, c.real(0.0, 64, s.vary))
        s = c.choose(c.binary("and", zero, negative), c.real(-0.0, 64, s.vary), s)
    return s, c.choose(finite, err, c.real(0.0, 64, s.vary))


def _clamped(c: Code, hi: Value, lo: Value | None, sat: bool, relu: bool) -> tuple[Value, Value | None]:
    """Return a double (its low part, too) clamped by .sat and .relu, as formats/alu.finish does it."""
    zero, one = c.real(0.0, 64, hi.vary), c.real(1.0, 64, hi.vary)
    low = c.invert(c.compare("ogt", hi, zero)) if sat else c.compare("ole", hi, zero)
    high = c.compare("ogt", hi, one) if sat else None
    out = c.choose(low, zero, hi if high is None else c.choose(high, one, hi))
    if lo is not None:
        lo = c.choose(low if high is None else c.binary("or", low, high), zero, lo)
    return out, lo


def finish(c: Code, hi: Value, lo: Value | None, kind: str, mode: str, ftz: bool, sat: bool, relu: bool) -> Value:
    if sat or relu:
        hi, lo = _clamped(c, hi, lo, sat, relu)
    return round_float(c, hi, kind, mode, ftz, lo)


def _plain(kind: str, mode: str, sat: bool, relu: bool = False) -> bool:
    """Whether the machine's own instructions do it."""
    return kind in ("f32", "f64") and mode == "rn" and not sat and not relu


def _wide(kind: str, mode: str) -> None:
    if kind == "f64":
        raise Untranslated(f"f64 rounded by .{mode}")


def fadd(c: Code, kind: str, a, b, mode="rn", ftz=False, sat=False, sub=False) -> Value:
    if _plain(kind, mode, sat):
        x, y = (number(c, v, kind, WIDTH[kind], ftz) for v in (a, b))
        return canonical(c, c.binary("fsub" if sub else "fadd", x, y), kind, ftz)
    _wide(kind, mode)
    x, y = (number(c, v, kind, 64, ftz) for v in (a, b))
    if sub:
        y = c.value(f"fneg {y}", 64, y.vary, True)
    if x.vary != y.vary:
        x, y = c.spread(x), c.spread(y)
    return finish(c, *_two_sum(c, x, y, mode), kind, mode, ftz, sat, False)


def fmul(c: Code, kind: str, a, b, mode="rn", ftz=False, sat=False) -> Value:
    if _plain(kind, mode, sat):
        x, y = (number(c, v, kind, WIDTH[kind], ftz) for v in (a, b))
        return canonical(c, c.binary("fmul", x, y), kind, ftz)
    _wide(kind, mode)
    x, y = (number(c, v, kind, 64, ftz) for v in (a, b))
    return finish(c, c.binary("fmul", x, y), None, kind, mode, ftz, sat, False)


def ffma(c: Code, kind: str, a, b, d, mode="rn", ftz=False, sat=False, relu=False) -> Value:
    if _plain(kind, mode, sat, relu):
        x, y, z = (number(c, v, kind, WIDTH[kind], ftz) for v in (a, b, d))
        return canonical(c, c.intrinsic("fma", x, y, z), kind, ftz)
    _wide(kind, mode)
    x, y, z = (number(c, v, kind, 64, ftz) for v in (a, b, d))
    product = c.binary("fmul", x, y)
    if product.vary != z.vary:
        product, z = c.spread(product), c.spread(z)
    return finish(c, *_two_sum(c, product, z, mode), kind, mode, ftz, sat, relu)


def fdiv(c: Code, kind: str, a, b, mode="rn", ftz=False) -> Value:
    if not _plain(kind, mode, False):
        raise Untranslated(f"division of {kind}, .{mode}")
    x, y = (number(c, v, kind, WIDTH[kind], ftz) for v in (a, b))
    return canonical(c, c.binary("fdiv", x, y), kind, ftz)


def fsqrt(c: Code, kind: str, a, mode="rn", ftz=False) -> Value:
    if not _plain(kind, mode, False):
        raise Untranslated(f"root of {kind}, .{mode}")
    return canonical(c, c.intrinsic("sqrt", number(c, a, kind, WIDTH[kind], ftz)), kind, ftz)


def frcp(c: Code, kind: str, a, mode="rn", ftz=False) -> Value:
    return fdiv(c, kind, {"f32": 0x3F800000, "f64": 0x3FF0000000000000}[kind], a, mode, ftz)


NEAR = 32  # of the last places of a double, within which two libraries agree on a function


def approx(c: WarpCode, name: str, a, ftz=False, kind="f32") -> Value:
    if kind != "f32":
        raise Untranslated(f"approximation in {kind}")
    x = number(c, a, kind, 64, ftz)
    if name in ("rcp", "sqrt", "rsqrt"):
        y = c.intrinsic("sqrt", x) if "sqrt" in name else x
        y = c.binary("fdiv", c.real(1.0, 64, x.vary), y) if name[0] == "r" else y
        return round_float(c, y, kind, "rn", ftz)
    y = c.library({"ex2": "exp2", "lg2": "log2"}.get(name, name), x)
    # The C library and NumPy differ in the last places of a double. Where that could change the float, Python decides.
    bits = c.as_bits(y)
    tie = c.binary("sub", c.binary("and", bits, (1 << 29) - 1), (1 << 28) - NEAR)
    size = c.binary("and", bits, (1 << 63) - 1)
    doubtful = c.compare("ule", tie, 2 * NEAR)
    smallest, vanishing = 0x3810000000000000, 0x3680000000000000  # 2^-126 and 2^-151
    short = c.binary("and", c.compare("ult", size, smallest), c.compare("ugt", size, vanishing))
    c.bail_where(c.binary("or", doubtful, short))
    return round_float(c, y, kind, "rn", ftz)


def fminmax(c: Code, kind, is_max, a, b, ftz=False, nan=False, xorsign=False, absolute=False) -> Value:
    width = max(WIDTH[kind], 32)
    x, y = (number(c, v, kind, width, ftz) for v in (a, b))
    if x.vary != y.vary:
        x, y = c.spread(x), c.spread(y)
    sign = c.binary("xor", c.as_bits(x), c.as_bits(y)) if xorsign else None
    if absolute:
        x, y = c.intrinsic("fabs", x), c.intrinsic("fabs", y)
    first, second = (c.compare("slt", c.as_bits(v), 0) for v in (x, y))
    zeros = c.binary("and", c.compare("oeq", x, y), c.binary("and", first, c.invert(second)))
    lower = c.binary("or", c.compare("olt", x, y), zeros)  # -0 < +0
    out = c.choose(lower, y, x) if is_max else c.choose(lower, x, y)
    out = c.choose(is_nan(c, x), y, c.choose(is_nan(c, y), x, out))
    if nan:
        out = c.choose(c.compare("uno", x, y), c.real(float("nan"), width, x.vary), out)
    if sign is not None:
        top = 1 << (width - 1)
        size = c.binary("and", c.as_bits(out), top - 1)
        out = c.as_real(c.binary("or", size, c.binary("and", sign, top)))
    if WIDTH[kind] >= 32:
        return canonical(c, out, kind, ftz)
    wide = c.value(f"fpext {out} to {Value('', 64, out.vary, True).type}", 64, out.vary, True)
    return round_float(c, wide, kind, "rn", ftz)


def fcompare(c: Code, kind: str, op: str, a, b, ftz=False) -> Value:
    width = max(WIDTH[kind], 32)
    x, y = (number(c, v, kind, width, ftz) for v in (a, b))
    if op in ("num", "nan"):
        return c.compare("ord" if op == "num" else "uno", x, y)
    return c.compare(("u" if len(op) == 3 else "o") + op[:2], x, y)


def fcompare_packed(c: Code, kind: str, op: str, a, b, ftz=False) -> tuple[Value, Value]:
    low, high = [[c.cast(c.shift("lshr", c.cast(v, 32), s), 16) for v in (a, b)] for s in (0, 16)]
    return fcompare(c, kind, op, low[0], low[1], ftz), fcompare(c, kind, op, high[0], high[1], ftz)
