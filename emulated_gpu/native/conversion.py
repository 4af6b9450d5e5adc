"""LLVM for what generated code calls of formats/convert.py: the same names, arguments and bits."""

from __future__ import annotations

from ..formats.alu import MASK, NAN, WIDTH
from ..jit.llvm import Code, Untranslated, Value, compiler
from .arithmetic import Int, bits_of, canonical, finish, is_nan, join16, number, round_bf16, round_float

INTEGRAL = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def float_to_int(c: Code, x: Int, kind: str, mode: str, bits: int, sign: bool, ftz=False) -> Value:
    v = number(c, x, kind, 64, ftz)
    whole = c.intrinsic(INTEGRAL[mode], v)
    out = c.intrinsic("fptosi.sat" if sign else "fptoui.sat", whole, result=Value("", bits, v.vary))
    if bits == 64:
        out = c.choose(is_nan(c, v), 1 << 63, out)
    return c.cast(out, max(bits, 16))


def int_to_float(c: Code, x: Int, bits: int, sign: bool, kind: str, mode: str = "rn") -> Value:
    how, v = "sitofp" if sign else "uitofp", c.cast(x, bits)
    if bits == 64:
        if mode != "rn" or kind not in ("f32", "f64"):
            raise Untranslated(f"64-bit integers to {kind}.{mode}")
        near = c.value(f"{how} {v} to {Value('', WIDTH[kind], v.vary, True).type}", WIDTH[kind], v.vary, True)
        return c.as_bits(near)
    wide = c.value(f"{how} {v} to {Value('', 64, v.vary, True).type}", 64, v.vary, True)
    return round_float(c, wide, kind, mode or "rn")


def int_to_int(c: Code, x: Int, bits: int, sign: bool, to: int, to_sign: bool, sat: bool) -> Value:
    v = c.cast(x, bits)
    if sat:
        low, high = (-(1 << (to - 1)), (1 << (to - 1)) - 1) if to_sign else (0, MASK[to])
        wide = c.cast(v, 128, sign)  # where every bound fits
        wide = c.intrinsic("smax", *c.alike(wide, low, bits=128))
        wide = c.intrinsic("smin", *c.alike(wide, high, bits=128))
        return c.cast(c.cast(wide, to), max(to, 16))
    if to <= bits:
        return c.cast(c.cast(v, 8), max(to, 16), to_sign) if to == 8 else c.cast(v, to)
    return c.cast(v, to, sign)


def pack_saturated(c: Code, a: Int, b: Int, d: Int, bits: int, sign: bool) -> Value:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if sign else (0, (1 << bits) - 1)
    out: Int = 0
    for v in (a, b):
        v = c.intrinsic("smax", *c.alike(c.cast(v, 32), low, bits=32))
        v = c.binary("and", c.intrinsic("smin", *c.alike(v, high, bits=32)), (1 << bits) - 1)
        out = v if isinstance(out, int) else c.binary("or", c.shift("shl", out, bits), v)
    return c.binary("or", out, c.shift("shl", c.cast(d, 32), 2 * bits)) if bits < 16 else out


def float_to_float(c: Code, x: Int, kind, to, mode="rn", ftz=False, sat=False, relu=False, integer=None) -> Value:
    plain = mode == "rn" and not (ftz or sat or relu or integer)
    if plain and kind == "f32" and to in ("f16", "bf16"):
        v = number(c, x, kind, 32)
        if to == "bf16":
            return c.choose(is_nan(c, v), NAN[to], round_bf16(c, c.as_bits(v)))
        if not compiler().has_halves:
            raise Untranslated("conversions of f16 on this machine")
        half = c.as_bits(c.value(f"fptrunc {v} to {Value('', 16, v.vary, True).type}", 16, v.vary, True))
        return c.choose(is_nan(c, v), NAN[to], half)
    if kind == "bf16" and to == "f32" and not (sat or relu):
        return c.shift("shl", c.cast(c.cast(x, 16), 32), 16)
    if plain and kind == "f16" and to == "f32":
        return canonical(c, number(c, x, kind, 32), to)
    v = number(c, x, kind, 64, ftz and kind == "f32" and to != "f16")
    if integer:
        v, mode = c.intrinsic(INTEGRAL[integer], v), "rn"
    return finish(c, v, None, to, mode, ftz and to == "f32", sat, relu)


def to_halves(c: Code, hi: Int, lo: Int, to: str) -> Value:
    return join16(c, *(float_to_float(c, x, "f32", to) for x in (lo, hi)))


def to_tf32(c: Code, x: Int, mode: str, relu: bool = False, satfinite: bool = False) -> Value:
    b = bits_of(c, x, "f32")
    size = c.binary("and", b, 0x7FFFFFFF)
    half, last = (c.binary("and", c.shift("lshr", size, n), 1) for n in (12, 13))
    if mode == "rn":
        sticky = c.cast(c.compare("ne", c.binary("and", size, 0xFFF), 0), 32)
        half = c.binary("and", half, c.binary("or", sticky, last))
    up = half if mode != "rz" else 0
    out = c.shift("shl", c.binary("add", c.shift("lshr", size, 13), up), 13)
    special = c.compare("uge", size, 0x7F800000)
    if satfinite:
        out = c.choose(c.compare("uge", out, 0x7F800000), 0x7F7FE000, out)
    out = c.binary("or", c.choose(special, size, out), c.binary("and", b, 0x80000000))
    nan = c.compare("ugt", size, 0x7F800000)
    out = c.choose(nan, c.binary("and", b, 0xFFFFE000) if mode == "rna" else 0x7FFFE000, out)
    if relu:
        out = c.choose(c.binary("and", c.compare("slt", b, 0), c.invert(nan)), 0, out)
    return out
