"""Conversions between formats on raw register bits: cvt and its packed forms (PTX ISA 9.7.9.21-22)."""

from __future__ import annotations

import numpy as np

from ..jit.llvm import Value
from ..jit.rules import where
from . import alu
from .alu import resize, select
from .element_types import E2M1, E2M3, E3M2, E4M3, E5M2
from .lanes import as_array


def float_to_int(x, kind: str, rounded: str, bits: int, sign: bool, ftz=False):
    """Out-of-range values clamp; NaN gives zero, except 0x80000000.. for 64-bit results, as on hardware."""
    (v,) = alu.operands(kind, 64, ftz, x)
    r = alu.ieee(rounded, v)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if sign else (0, alu.MASK[bits])
    inside = (r > low) & (r < high)
    whole, least, of_nan = where(inside, r, 0.0), low & alu.MASK[64], 1 << 63 if bits == 64 else 0
    if type(r) is Value:
        whole = r.code.convert("fptosi" if sign else "fptoui", whole, 64)
    else:
        whole = whole.astype(alu.S[64] if sign else alu.U[64]).view(alu.U[64])
    out = alu.rarely(~inside, lambda: select(r >= high, high, select(r <= low, least, of_nan, 64), 64), whole, 64)
    return alu.back(resize(resize(out, bits), max(bits, 16)), x)


def whole_number(x, bits: int, sign: bool, to: int = 64):
    """Integers of at most 32 bits as floats of 64 or 32 bits, the nearest."""
    if type(x) is Value:
        return x.code.convert("sitofp" if sign else "uitofp", x, to, True)
    return (alu.signed(x, bits) if sign else x).astype(alu.F[to])


def int_to_float(x, bits: int, sign: bool, kind: str, mode: str):
    v, lost = alu.arr(x, bits), None
    if bits == 64:
        high, low = whole_number(resize(v >> 32, 32), 32, sign), whole_number(resize(v, 32), 32, False)
        total, lost = alu.two_sum(high * 2.0**32, low)
    else:
        total = whole_number(v, bits, sign)
    return alu.finish(total, kind, mode, False, False, False, x, lo=lost)


def pack_saturated(a, b, c, bits: int, sign: bool):
    """cvt.pack.sat: a and b (s32) clamped to `bits`, a above b, and the low bits of c above them."""
    a, b = (resize(alu.saturated(x, 32, True, bits, sign), 32) for x in (a, b))
    out = resize(a << bits, 32) | b
    return resize(c << 2 * bits, 32) | out if bits < 16 else out


def float_to_float(x, kind: str, to: str, mode: str = "rn", ftz=False, sat=False, relu=False, integer=None):
    if type(x) is int and x == 0:  # what a timed run converts: +0 is +0 everywhere
        return 0
    if kind == "bf16" and to == "f32" and not (sat or relu):  # a shift: keeps the bits of a NaN
        return alu.extend(x, 16, False, 32) << 16
    # .ftz is about f32. An H200 does not flush on the way to f16 (golden case cvt_f32_to_f16).
    (v,) = alu.operands(kind, max(alu.WIDTH[kind], 32), ftz and kind == "f32" and to != "f16", x)
    if integer:
        v, mode = alu.ieee(integer, v), "rn"
    return alu.finish(v, to, mode, ftz and to == "f32", sat, relu, x)


def finite(bits, kind: str):
    """Bits of f16 or bf16, an infinity as the largest number: .satfinite (golden case cvt_f32_satfinite)."""
    return select((bits & 0x7FFF) == alu.INFINITY[kind], bits - 1, bits, 16)


def to_halves(hi, lo, to: str):
    """cvt.rn.f16x2.f32 and cvt.rn.bf16x2.f32: two floats to nearest, lo in the low half."""
    if type(hi) is np.ndarray and type(lo) is np.ndarray:  # every epilogue does it: both at once
        pairs = np.empty((len(lo), 2), np.uint32)
        pairs[:, 0], pairs[:, 1] = lo, hi
        return float_to_float(pairs, "f32", to).view(np.uint32).ravel()
    return alu.join(16, *(float_to_float(x, "f32", to) for x in (lo, hi)))


def later_halves(hi, lo, to: str):
    """`to_halves`, or its arguments if they are arrays: `matrices` takes them in its place."""
    if type(hi) is np.ndarray and type(lo) is np.ndarray:
        return hi, lo, to
    return to_halves(hi, lo, to)


def matrices(values: tuple, trans: bool) -> np.ndarray:
    """The matrices of 8 x 8 elements of 16 bits that lie in registers of a whole warp, as they come to lie in memory:
    uint64 [16 * registers]. values: of each register, or what `later_halves` gives; trans: transposed."""
    to, *others = {value[2] if type(value) is tuple else "" for value in values}
    if to and not others:  # all by one conversion
        halves = float_to_float(np.concatenate([x for hi, lo, _ in values for x in (lo, hi)]), "f32", to)
        each = halves.reshape(-1, 2, 8, 4).transpose((0, 3, 1, 2) if trans else (0, 2, 3, 1))
    else:
        each = (to_halves(*value) if type(value) is tuple else value for value in values)
        each = np.concatenate([as_array(value, 32) for value in each]).view(np.uint16).reshape(-1, 8, 8)
        each = each.swapaxes(1, 2) if trans else each
    return np.ascontiguousarray(each).reshape(-1).view(np.uint64)


def to_tf32(b, mode: str, relu: bool = False, satfinite: bool = False):
    """f32 -> tf32: 10 explicit mantissa bits, rounded; the low 13 bits become zero.

    A NaN keeps its upper bits with rna, and becomes 0x7fffe000 otherwise (golden case cvt_f32_to_tf32). With rna,
    satfinite takes one of the last place from it, as from what is infinite (golden case cvt_f32_satfinite).
    """
    size = b & 0x7FFFFFFF
    short = alu.shortened(size, 13) if mode == "rn" else size + (0x1000 if mode == "rna" else 0) >> 13
    out = select(size >= 0x7F800000, size & 0xFFFFE000, resize(short << 13, 32), 32)
    if satfinite:
        out = select(out >= 0x7F800000, out - 0x2000, out, 32)
    out, nan = out | (b & 0x80000000), size > 0x7F800000
    out = select(nan, 0x7FFFE000, out, 32) if mode != "rna" else out
    return select((b >> 31 == 1) & (nan ^ True), 0, out, 32) if relu else out


SMALL = {kind.name: kind for kind in (E4M3, E5M2, E2M3, E3M2, E2M1)}
LARGEST = {name: np.count_nonzero(np.isfinite(kind.values)) // 2 - 1 for name, kind in SMALL.items()}  # finite codes


def to_small(bits, kind: str, relu: bool = False):
    """Bits of f32 -> code with .satfinite: out of range clamps to the largest finite value, NaN to the format's NaN."""
    form = SMALL[kind]
    less, least, sign = 23 - form.mantissa_bits, 126 + form.min_exponent, 1 << (form.bits - 1)
    size = bits & 0x7FFFFFFF
    code = alu.shortened(size, less) - (least << form.mantissa_bits)
    # Below the smallest normal number, f32 whose last place is that of the format round as it does
    unit = 2.0 ** (form.min_exponent + less)
    few = alu.raw(alu.number(size, "f32") + unit) - int(np.float32(unit).view(np.uint32))
    code = select(size < least + 1 << 23, few, code, 32)
    code = alu.min_int(code, LARGEST[kind], 32, False)
    minus = bits >= 1 << 31
    code = select(minus, 0 if relu else code | sign, code, 32)
    return select(size > alu.INFINITY["f32"], 0x7F if form.bits == 8 else LARGEST[kind], code, 32)


def to_ue8m0(bits, mode: str):
    """Bits of f32 -> powers of two 2^-127 .. 2^127, by rz or rp; of a NaN 0xFF. 2^-127 is half of a normal number."""
    size = bits & 0x7FFFFFFF
    up = select(size < 1 << 23, 0x3FFFFF, 0x7FFFFF, 32) if mode == "rp" else 0
    return select(size > alu.INFINITY["f32"], 0xFF, alu.min_int(size + up >> 23, 0xFE, 32, False), 32)


def pack_small(kind: str, a, b, source: str, mode: str, relu: bool):
    """cvt to <kind>x2: a goes to the upper element, b to the lower. 4-bit pairs fill one byte."""
    each = [alu.raw(v) for v in alu.operands(source, 32, False, a, b)]
    hi, lo = (to_ue8m0(v, mode) if kind == "ue8m0" else to_small(v, kind, relu) for v in each)
    return alu.back(resize(hi << (4 if kind == "e2m1" else 8) | lo, 16), a, b)


def unpack_small(kind: str, x, relu=False, to: str = "f16"):
    """cvt.rn.<to>x2.<kind>x2: two small floats to two halves in a 32-bit register."""
    form, both = SMALL[kind], resize(alu.arr(x, 16), 32)
    sign = 1 << (form.bits - 1)

    def half(code):
        size = code & (sign - 1)
        v = alu.number(size << (23 - form.mantissa_bits), "f32") * 2.0 ** (126 + form.min_exponent)
        out = alu.nearest(v, to)
        if form.has_inf:
            out = select(size > LARGEST[kind], alu.INFINITY[to], out, 16)
        out = select(code & sign != 0, 0 if relu else out | 0x8000, out, 16)
        return select(size > LARGEST[kind] + form.has_inf, alu.NAN[to], out, 16)

    return alu.back(alu.join(16, half(both), half(both >> (4 if kind == "e2m1" else 8))), x)


def unpack_ue8m0(x):
    codes = (resize(code, 16) for code in alu.parts(x, 8, 16))
    return alu.join(16, *(select(c == 0xFF, alu.NAN["bf16"], select(c == 0, 0x40, c << 7, 16), 16) for c in codes))
