"""What the tensor core of sm_90 computes for a wgmma.mma_async (PTX ISA 9.7.15.5.2), which leaves the rounding open.

Products are added as dot_add.py says, all K of an instruction and the accumulator at once, with F = 25 bits below the
largest exponent; FP8 products with F = 13, and their sum is rounded towards zero to 13 bits behind the leading one: an
f32 accumulator of FP8 products holds 14 bits. [read from MMA-Sim, "wgmma"; an H200 agrees bit for bit in 149 cases,
silicon/golden/wgmma.py, but for one thing: a zero product has no exponent there, however large its other factor.
MMA-Sim gives the zero that of the smallest normal number, which costs small accumulators some bits.]
"""

from __future__ import annotations

import numpy as np

from ..formats.element_types import E4M3, E5M2, S8, U8, ElementType
from ..formats.wgmma_form import WgmmaForm
from .dot_add import FLOAT8, dot_add

_FRACTION, _OF_ZERO = 25, -1000  # an exponent below all others


def multiply(form: WgmmaForm, a: np.ndarray, b: np.ndarray, c: np.ndarray | None) -> np.ndarray:
    """D [rows, N]. a [rows, K], b [N, K]: codes of their elements. c [rows, N] in D's type, or None for zero."""
    if form.a_type in (S8, U8):
        return _integers(form, a, b, c)
    fraction = FLOAT8 if form.a_type in (E4M3, E5M2) else _FRACTION
    return sums(form.a_type, form.b_type, form.d_type, a, b, c, form.negate_a != form.negate_b, fraction)


def sums(a_type: ElementType, b_type, d_type, a, b, c, negate: bool = False, fraction: int = _FRACTION) -> np.ndarray:
    """D, of mma.sync, too. a, b, c: as of `multiply`; negate: of -A; fraction: F."""
    av, bv = a_type.decode(a), b_type.decode(b)
    if negate:
        av = -av
    exponents = a_type.exponents(av, _OF_ZERO), b_type.exponents(bv, _OF_ZERO)
    return dot_add(av, bv, *exponents, c, d_type, fraction)


def _integers(form: WgmmaForm, a, b, c) -> np.ndarray:
    """int32: exact, then wrapped or, with .satfinite, clamped. Sums of 32 products fit float64."""
    total = (form.a_type.decode(a) @ form.b_type.decode(b).T).astype(np.int64)
    if c is not None:
        total += c
    return (total.clip(-(2**31), 2**31 - 1) if form.saturate else total).astype(np.int32)
