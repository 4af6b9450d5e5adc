"""Conversions between formats on raw register bits: cvt and its packed forms (PTX ISA 9.7.9.21-22)."""

from __future__ import annotations

import numpy as np

from .alu import (
    MASK,
    NAN,
    U,
    arr,
    back,
    extend,
    finish,
    join16,
    max_int,
    min_int,
    once,
    operands,
    resize,
    round_float,
    select,
    signed,
    to_float,
)  # fmt: skip
from .element_types import E2M1, E2M3, E3M2, E4M3, E5M2
from .lanes import as_array


def float_to_int(x, kind: str, mode: str, bits: int, sign: bool, ftz=False):
    """Out-of-range values clamp; NaN gives zero, except 0x80000000.. for 64-bit results, as on hardware."""
    (v,) = operands(kind, ftz, x)
    r = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](v)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if sign else (0, MASK[bits])
    nan = 1 << 63 if bits == 64 else 0
    out = [nan if f != f else low if f <= low else high if f >= high else int(f) for f in r.tolist()]
    return back(np.array([o & MASK[bits] for o in out], U[max(bits, 16)]), x)


def int_to_float(x, bits: int, sign: bool, kind: str, mode: str = "rn"):
    values = signed(arr(x, bits), bits) if sign else arr(x, bits)
    if bits < 64:
        return back(round_float(values.astype(np.float64), kind, mode), x)
    hi = values.astype(np.float64)
    lo = np.array([float(int(v) - int(h)) for v, h in zip(values.tolist(), hi.tolist(), strict=True)])
    if kind == "f64" and mode != "rn":
        raise ValueError("directed rounding of 64-bit integers to f64")
    return back(round_float(hi, kind, mode, lo=lo if kind != "f64" else None), x)


@once
def int_to_int(x, bits: int, sign: bool, to: int, to_sign: bool, sat: bool):
    if sat:
        wide, high = extend(x, bits, sign, 64), MASK[to] >> to_sign
        if sign:
            wide = max_int(wide, -(1 << (to - 1)) & MASK[64] if to_sign else 0, 64, True)
        return resize(min_int(wide, high, 64, sign and to_sign) & MASK[to], max(to, 16))
    if to <= bits:
        return extend(x, to, to_sign, 16) if to == 8 else resize(x, to)
    return extend(x, bits, sign, to)


@once
def pack_saturated(a, b, c, bits: int, sign: bool):
    """cvt.pack.sat: a and b (s32) clamped to `bits`, a above b, and the low bits of c above them."""
    low, ones = -(1 << (bits - 1)) & MASK[32] if sign else 0, (1 << bits) - 1
    a, b = (min_int(max_int(x, low, 32, True), ones >> sign, 32, True) & ones for x in (a, b))
    out = resize(a << bits, 32) | b
    return resize(resize(c, 32) << 2 * bits, 32) | out if bits < 16 else out


def float_to_float(x, kind: str, to: str, mode: str = "rn", ftz=False, sat=False, relu=False, integer=None):
    if type(x) is int and x == 0:  # what a timed run converts: +0 is +0 everywhere
        return 0
    if kind == "f32" and to in ("f16", "bf16") and mode == "rn" and not (ftz or sat or relu or integer):
        return back(_halves(arr(x, 32), to), x)  # every epilogue does it
    if kind == "bf16" and to == "f32" and not (sat or relu):  # a shift: keeps the bits of a NaN
        return back(arr(x, 16).astype(np.uint32) << 16, x)
    # .ftz is about f32. An H200 does not flush on the way to f16 (golden case cvt_f32_to_f16).
    (v,) = operands(kind, ftz and kind == "f32" and to != "f16", x)
    if integer:
        v = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[integer](v)
        mode = "rn"
    return finish(v, None, to, mode, ftz and to == "f32", sat, relu, x)


def _halves(bits: np.ndarray, to: str) -> np.ndarray:
    """f32, uint32, -> f16 or bf16, uint16 of the same shape, to nearest."""
    floats = bits.view(np.float32)
    if to == "f16":
        halves = floats.astype(np.float16).view(np.uint16)
    else:  # f32 with 16 bits less: a carry out of the mantissa is one more in the exponent
        halves = ((bits + ((bits >> 16 & 1) + 0x7FFF)) >> 16).astype(np.uint16)
    nan = np.isnan(floats)
    if 1 in nan.tobytes():
        halves[nan] = NAN[to]
    return halves


def to_halves(hi, lo, to: str):
    """cvt.rn.f16x2.f32 and cvt.rn.bf16x2.f32: two floats to nearest, lo in the low half."""
    if type(hi) is not np.ndarray or type(lo) is not np.ndarray:
        return join16(*(float_to_float(x, "f32", to) for x in (lo, hi)))
    wide = np.empty((len(lo), 2), np.uint32)
    wide[:, 0], wide[:, 1] = lo, hi
    return _halves(wide, to).view(np.uint32).ravel()


def later_halves(hi, lo, to: str):
    """`to_halves`, or its arguments if they are arrays: `matrices` takes them in its place."""
    if type(hi) is np.ndarray and type(lo) is np.ndarray:
        return hi, lo, to
    return to_halves(hi, lo, to)


def matrices(values: tuple, trans: bool) -> np.ndarray:
    """The matrices of 8 x 8 elements of 16 bits that lie in registers of a whole warp, as they come to lie in memory:
    uint64 [16 * registers]. values: of each register, or what `later_halves` gives; trans: transposed."""
    kinds = {value[2] if type(value) is tuple else None for value in values}
    if len(kinds) == 1 and None not in kinds:  # all by one conversion
        halves = _halves(np.concatenate([x for hi, lo, _ in values for x in (lo, hi)]), *kinds)
        each = halves.reshape(-1, 2, 8, 4).transpose((0, 3, 1, 2) if trans else (0, 2, 3, 1))
    else:
        values = [to_halves(*value) if type(value) is tuple else value for value in values]
        each = np.concatenate([as_array(value, 32) for value in values]).view(np.uint16).reshape(-1, 8, 8)
        each = each.swapaxes(1, 2) if trans else each
    return np.ascontiguousarray(each).reshape(-1).view(np.uint64)


@once
def to_tf32(x, mode: str, relu: bool = False, satfinite: bool = False):
    """f32 -> tf32: 10 explicit mantissa bits, rounded; the low 13 bits become zero.

    A NaN keeps its upper bits with rna, and becomes 0x7fffe000 otherwise (golden case cvt_f32_to_tf32).
    """
    b = resize(x, 32)
    size = b & 0x7FFFFFFF
    up = 0 if mode == "rz" else size >> 12 & 1
    if mode == "rn":
        up = up & (select(size & 0xFFF != 0, 1, 0, 32) | (size >> 13 & 1))
    out = resize(((size >> 13) + up) << 13, 32)
    if satfinite:
        out = select(out >= 0x7F800000, 0x7F7FE000, out, 32)
    nan = size > 0x7F800000
    out = select(size >= 0x7F800000, size, out, 32) | (b & 0x80000000)
    out = select(nan, b & 0xFFFFE000 if mode == "rna" else 0x7FFFE000, out, 32)
    return select((b >> 31 == 1) & (nan ^ True), 0, out, 32) if relu else out


SMALL = {kind.name: kind for kind in (E4M3, E5M2, E2M3, E3M2, E2M1)}


def to_small(values: np.ndarray, kind: str, relu: bool = False, mode: str = "rn") -> np.ndarray:
    """float64 -> code with .satfinite: out of range clamps to the largest finite value, NaN to the format's NaN."""
    bits = SMALL[kind].bits - 1  # without the sign
    table = SMALL[kind].values[: 1 << bits]
    finite = table[np.isfinite(table)]
    mag = np.minimum(np.abs(values), finite[-1])
    mag = np.where(np.isnan(mag), 0, mag)
    index = np.searchsorted(finite, mag)  # first code >= mag
    below = np.maximum(index - 1, 0)
    if mode == "rz":
        code = np.where(finite[index] == mag, index, below)
    else:
        up, down = finite[index] - mag, mag - finite[below]
        nearer = (up < down) | ((up == down) & (index % 2 == 0))
        code = np.where((finite[index] == mag) | nearer, index, below)
    negative = np.signbit(values)
    code = code | (negative.astype(np.int64) << bits)
    if relu:
        code = np.where(negative, 0, code)
    nan_code = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}[kind]
    return np.where(np.isnan(values), nan_code, code)


def pack_small(kind: str, a, b, source: str = "f32", relu=False):
    """cvt.rn.satfinite.<kind>x2: a goes to the upper element, b to the lower. 4-bit pairs fill one byte."""
    shift = 4 if kind == "e2m1" else 8
    hi, lo = to_small(to_float(a, source), kind, relu), to_small(to_float(b, source), kind, relu)
    return back((hi << shift | lo).astype(np.uint16), a, b)


def unpack_small(kind: str, x, relu=False, to: str = "f16"):
    """cvt.rn.<to>x2.<kind>x2: two small floats to two halves in a 32-bit register."""
    width = 4 if kind == "e2m1" else 8
    table = SMALL[kind].values
    codes = arr(x, 16).astype(np.int64)
    size = len(table) - 1
    out = []
    for half in (codes & size if width == 8 else codes & 15, codes >> width & size):
        v = table[half]
        out.append(finish(v, None, to, "rn", False, False, relu, v).astype(np.uint32))
    return back(out[0] | (out[1] << 16), x)


def pack_ue8m0(a, b, mode: str, source: str = "f32"):
    """cvt.{rz,rp}.satfinite.ue8m0x2: powers of two 2^-127 .. 2^127, NaN 0xFF."""

    def code(v):
        m, e = np.frexp(np.abs(v))
        e = np.where(m == 0.5, e - 1, e if mode == "rp" else e - 1)
        c = np.clip(e + 127, 0, 254)
        c = np.where(v == 0, 0, np.where(np.isinf(v), 254, c))
        return np.where(np.isnan(v), 255, c).astype(np.int64)

    return back((code(to_float(a, source)) << 8 | code(to_float(b, source))).astype(np.uint16), a, b)


def unpack_ue8m0(x):
    c = arr(x, 16).astype(np.int64)
    out = []
    for half in (c & 0xFF, c >> 8):
        v = np.where(half == 255, np.nan, 2.0 ** (half - 127.0))
        out.append(round_float(v, "bf16").astype(np.uint32))
    return back(out[0] | (out[1] << 16), x)
