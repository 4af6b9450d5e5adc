"""LLVM for what generated code calls of formats/convert.py: the same names, arguments and bits."""

from __future__ import annotations

from ..formats.alu import NAN, WIDTH, join16
from ..jit.llvm import Code, Untranslated, Value, compiler
from .arithmetic import Int, canonical, finish, is_nan, number, round_bf16, round_float

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
    return join16(*(float_to_float(c, x, "f32", to) for x in (lo, hi)))
