"""What the tensor core of sm_90 computes for a wgmma.mma_async (PTX ISA 9.7.15.5.2), which leaves the rounding open.

Products are added as dot_add.py says, all K of an instruction and the accumulator at once, with F = 25 bits below the
largest exponent; FP8 products with F = 13, and their sum is rounded towards zero to 13 bits behind the leading one: an
f32 accumulator of FP8 products holds 14 bits. [read from MMA-Sim, "wgmma"; an H200 agrees bit for bit in 149 cases,
silicon/golden/wgmma.py, but for one thing: a zero product has no exponent there, however large its other factor.
MMA-Sim gives the zero that of the smallest normal number, which costs small accumulators some bits.]
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ..formats.element_types import E4M3, E5M2, F16, S8, U8, ElementType
from ..formats.wgmma_form import WgmmaForm
from .dot_add import NAN_F32, aligned_sum, dot_add, round_f16

_FRACTION, _FLOAT8_FRACTION = 25, 13
_OF_ZERO = -1000  # an exponent below all others
_SMALLEST = -114  # exponents of sums from which on float32 holds all that is computed here for FP8


def multiply(form: WgmmaForm, a: np.ndarray, b: np.ndarray, c: np.ndarray | None) -> np.ndarray:
    """D [rows, N]. a [rows, K], b [N, K]: codes of their elements. c [rows, N] in D's type, or None for zero."""
    if form.a_type in (S8, U8):
        return _integers(form, a, b, c)
    if form.a_type in (E4M3, E5M2):
        return _float8(form, a, b, c)
    return sums(form.a_type, form.b_type, form.d_type, a, b, c, form.negate_a != form.negate_b)


def sums(a_type: ElementType, b_type: ElementType, d_type: ElementType, a, b, c, negate: bool = False) -> np.ndarray:
    """D with F = 25, of mma.sync, too. a, b, c: as of `multiply`; negate: of -A."""
    av, bv = a_type.decode(a), b_type.decode(b)
    if negate:
        av = -av
    exponents = a_type.exponents(av, _OF_ZERO), b_type.exponents(bv, _OF_ZERO)
    return dot_add(av, bv, *exponents, c, d_type, _FRACTION)


def _integers(form: WgmmaForm, a, b, c) -> np.ndarray:
    """int32: exact, then wrapped or, with .satfinite, clamped. Sums of 32 products fit float64."""
    total = (form.a_type.decode(a) @ form.b_type.decode(b).T).astype(np.int64)
    if c is not None:
        total += c
    return (total.clip(-(2**31), 2**31 - 1) if form.saturate else total).astype(np.int32)


@cache
def _tables(kind: ElementType) -> tuple[np.ndarray, np.ndarray]:
    """Return the values, float32, and the exponents, int16, of all codes of a type."""
    return kind.values.astype(np.float32), np.where(kind.values == 0, _OF_ZERO, kind.exponent_table).astype(np.int16)


@np.errstate(invalid="ignore", over="ignore")
def _float8(form: WgmmaForm, a, b, c) -> np.ndarray:
    """The sum term by term in float32: terms have at most 15 bits in units of the largest, and 33 of them 21."""
    (a_values, a_exponents), (b_values, b_exponents) = _tables(form.a_type), _tables(form.b_type)
    av, bv = a_values.take(a), np.ascontiguousarray(b_values.take(b).T)  # [rows, K], [K, N]
    if form.negate_a != form.negate_b:
        av = -av
    ea, eb = a_exponents.take(a), np.ascontiguousarray(b_exponents.take(b).T)
    e_max = ea[:, :1] + eb[:1]
    for k in range(1, form.k):
        np.maximum(e_max, ea[:, k, None] + eb[k], out=e_max)
    c = None if c is None else c.astype(np.float32, copy=False)
    if c is not None and not np.isfinite(c).all() or not (np.isfinite(av).all() and np.isfinite(bv).all()):
        return _with_specials(form, av.astype(np.float64), bv.T.astype(np.float64), e_max, c)
    if c is not None:
        ec = form.d_type.exponents(c.astype(np.float64)).astype(np.int16)
        e_max = np.maximum(e_max, ec)
        if ((c != 0) & (e_max < _SMALLEST)).any():
            return _with_specials(form, av.astype(np.float64), bv.T.astype(np.float64), e_max, c)
    e_max = np.maximum(e_max, _SMALLEST).astype(np.int32)
    to_units = ((_FLOAT8_FRACTION - e_max + 127) << 23).view(np.float32)
    total = np.zeros(e_max.shape, np.float32) if c is None else np.trunc(c * to_units)
    term = np.empty_like(total)
    for k in range(form.k):
        np.multiply(av[:, k, None], bv[k], out=term)
        np.multiply(term, to_units, out=term)
        np.trunc(term, out=term)
        total += term
    return _rounded(form, np.ldexp(total, e_max - _FLOAT8_FRACTION))


def _with_specials(form: WgmmaForm, av, bv, e_max, c) -> np.ndarray:
    """Return D term by term in float64, for infinities, NaN and sums too small for float32 arithmetic."""
    special = av @ bv.T
    special = np.where(np.isfinite(special), 0.0, special)
    terms = (av[:, None, k] * bv[:, k] for k in range(form.k))
    result = aligned_sum(terms, e_max.astype(np.int64), special, c, form.d_type, _FLOAT8_FRACTION)
    return result if form.d_type is F16 else _rounded(form, result)


def _rounded(form: WgmmaForm, total: np.ndarray) -> np.ndarray:
    """An exact sum, float32, in D's type: f16 to nearest even, f32 without its 10 low bits."""
    if form.d_type is F16:
        return round_f16(total)
    result = (total.view(np.uint32) & np.uint32(0xFFFFFC00)).view(np.float32) + np.float32(0)
    return np.where(np.isnan(total), NAN_F32, result)
