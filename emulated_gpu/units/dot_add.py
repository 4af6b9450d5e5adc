"""How tensor cores add: products and an accumulator, aligned to the largest exponent, truncated, added, rounded once.

No ISA defines it. The model is the one that microsoft/MMA-Sim (https://github.com/microsoft/MMA-Sim, mmasim/simulator)
presents as bit-accurate [read there]; its parameter is F, the bits that are kept below the largest exponent:
  * C is one more term beside the products. Exponents are those of `element_types.ElementType.exponents`;
  * every term is truncated towards zero to a multiple of 2 ** (largest exponent - F); then they are added exactly;
  * the sum is rounded towards zero to f32, of FP8 products to 14 bits of that, or to nearest even to f16. Sums out of
    range become infinities, zeros are positive;
  * a NaN anywhere gives 0x7FFFFFFF (f16: 0x7FFF).

Most sums are truncated nowhere, and BLAS computes them. Let all terms be multiples of 2 ** q, e_max a bound of all
exponents, and unit = 2 ** (e_max - F). If q >= e_max - F and C is a multiple of unit, nothing is truncated. Then
  * a term is below 2 ** (e_max + 12) in magnitude (FP4: 16 products of at most 36, times two significands below 2), and
    there are few: the sum, with C, is a multiple of unit below 2 ** (e_max + 15). So is every partial sum of products,
    in any order, as products are multiples of 2 ** q too. 15 + F <= 50 bits: float64 arithmetic makes no error;
  * if moreover the magnitudes, with C, add up to at most 2 ** (q + 24) and C is a multiple of 2 ** q, every partial
    sum fits float32, float32 arithmetic makes no error, and nothing is left to round.
Otherwise the terms are aligned one by one (`products`, `aligned_sum`).
"""

from __future__ import annotations

import numpy as np

from ..formats.element_types import F16, F32, ZERO_EXPONENT, ElementType, lowest_bits
from ..native.aligned_sum import products, towards_zero, truncated, units

FEW = 1 << 18  # terms that machine code adds in less time than it takes to find out whether BLAS may
FLOAT8, SUM_OF_FLOAT8 = 13, np.uint32(0xFFFFFC00)  # F of FP8 products, and which bits an f32 sum of those keeps
NAN_F32, NAN_F16 = np.uint32(0x7FFFFFFF).view(np.float32), np.uint16(0x7FFF).view(np.float16)


@np.errstate(invalid="ignore", over="ignore")  # what is not finite, whose terms do not count
def dot_add(a, b, ea, eb, c, d_type: ElementType, fraction_bits: int) -> np.ndarray:
    """a @ b.T + c, each product a term.

    a, b: exact float64 [M, K], [N, K]; ea, eb: exponents of their elements, int of the same shapes; c [M, N] in D's
    type, or None for zero. Returns [M, N] in D's type.
    """
    special, k = None, a.shape[1]
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        # what is not finite makes its own row or column special, whose terms count for nothing, and no other
        special = a @ b.T
        special = np.where(np.isfinite(special), 0.0, special)
    if len(a) * len(b) * k > FEW and (special is None or not special.any()):
        q = int(lowest_bits(a).min() + lowest_bits(b).min())
        bound = k * float(np.abs(a).max()) * float(np.abs(b).max())
        dtype = exact_type(q, bound, int(ea.max()), int(eb.max()))
        e_max = int(ea.max() + eb.max())
        result = exact_sum(a.astype(dtype), b.astype(dtype), c, d_type, e_max, q, bound, fraction_bits)
        if result is not None:
            return rounded(result, None, d_type, fraction_bits)
    c, special = accumulator(np.zeros((len(a), len(b)), np.float32) if c is None else c, special)
    return rounded(products(a, b, ea, eb, c, d_type, fraction_bits), special, d_type, fraction_bits)


def exact_type(q: int, bound: float, ea: int, eb: int) -> type:
    """float32 if it holds A, of exponents up to ea, B, of up to eb, and all sums of their products, else float64.

    The limit of 64 on exponents keeps operands, sums and C far from overflow and from subnormals.
    """
    return np.float32 if abs(q) <= 64 and max(ea, eb) <= 64 and bound <= 2.0 ** (q + 24) else np.float64


def exact_sum(a, b, c, d_type: ElementType, e_max: int, q: int, bound: float, fraction_bits: int) -> np.ndarray | None:
    """a [M, K] @ b.T [K, N] + c if the module docstring proves that no bit of it gets lost, else None.

    Requires: terms are multiples of 2 ** q with exponents of at most e_max, and sums of their magnitudes at most
    `bound`. a and b are of `exact_type`.
    """
    e_max = max(e_max, ZERO_EXPONENT)  # zeros, C for instance, take part with it
    if q < e_max - fraction_bits:
        return None
    if c is None:
        return a @ b.T + a.dtype.type(0)  # + 0: no negative zeros
    if c.dtype == np.float16:
        c = c.astype(np.float32)
    c_max = max(-float(c.min()), float(c.max()))
    if not np.isfinite(c_max):  # min and max of an array with a NaN are NaN
        return None
    if a.dtype == np.float32 and fits_float32(q, bound, c_max) and _all_multiples(c, q):
        return a @ b.T + c + np.float32(0)
    unit = max(e_max, int(d_type.exponents(np.float64(c_max)))) - fraction_bits
    c = c.astype(np.float64)
    if q < unit or not _all_multiples(c, unit):
        return None
    return (a @ b.T).astype(np.float64) + c + 0.0


def fits_float32(q: int, bound: float, c_max: float) -> bool:
    """Whether float32 holds all sums of products, up to `bound`, and of a C of multiples of 2 ** q up to c_max."""
    return bound + c_max <= 2.0 ** (q + 24) and c_max < 2.0 ** (q + 22)


def _all_multiples(c: np.ndarray, exponent: int) -> bool:
    """Whether all of c are multiples of 2 ** exponent, given |c| < 2 ** (exponent + 22), for float64 + 51."""
    digits = 23 if c.dtype == np.float32 else 52
    magic = c.dtype.type(1.5 * 2.0 ** (digits + exponent))  # its unit in the last place is 2 ** exponent
    return bool(((c + magic) - magic == c).all())


@np.errstate(invalid="ignore", over="ignore")
def aligned_sum(terms, e_max, special, c, fraction_bits: int) -> np.ndarray:
    """The model term by term, with D of float32. terms: exact float64 [M, N] each; e_max: their largest exponent, int64
    [M, N]; special: float64 [M, N], not zero where a term is infinite or NaN, whose terms are then ignored."""
    c, special = accumulator(np.zeros(special.shape) if c is None else c, special)
    c = c.astype(np.float64)
    to_units = units(np.maximum(e_max, F32.exponents(c)), fraction_bits)
    total = truncated(c, to_units)
    for term in terms:
        total += truncated(term, to_units)
    return rounded(total / to_units, special, F32, fraction_bits)


def accumulator(c, special) -> tuple[np.ndarray, np.ndarray | None]:
    """C with zeros for what is not finite; and `special`, None for none, with that."""
    if not (finite := np.isfinite(c)).all():
        special = np.where(finite, 0.0, c.astype(np.float64)) + (0.0 if special is None else special)
        c = np.where(finite, c, c.dtype.type(0))
    return c, special


def rounded(total, special, d_type: ElementType, fraction_bits: int) -> np.ndarray:
    """Return sums, or what is special, in D's type."""
    result = total if special is None else np.where(special == 0, total, special)
    if d_type is F16:
        return round_f16(result)
    result = round_f32(result)
    if fraction_bits == FLOAT8:
        result = np.where(np.isnan(result), result, (result.view(np.uint32) & SUM_OF_FLOAT8).view(np.float32) + 0)
    return result


def round_f32(x: np.ndarray) -> np.ndarray:
    """Towards zero, but to infinity from 2 ** 128 on; zeros become positive, NaN becomes NAN_F32."""
    if x.dtype == np.float32:  # exact already
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(np.isnan(x), NAN_F32, towards_zero(x))


def round_f16(x: np.ndarray) -> np.ndarray:
    """To nearest even; zeros become positive, NaN becomes NAN_F16."""
    with np.errstate(over="ignore"):
        y = x.astype(np.float16) + np.float16(0)
    y[np.isnan(x)] = NAN_F16
    return y
