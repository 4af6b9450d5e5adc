"""The tensor core's sum where bits get lost (units/dot_add.py): each term is truncated to a unit, then added."""

from __future__ import annotations

import numpy as np

from ..formats.alu import ieee, number, raw, resize, resized
from ..formats.element_types import F32, ZERO_EXPONENT, ElementType
from ..jit.rules import float32, float64, int64, pointer, rule, where

WIDE = 8  # columns that are computed together
BIAS = 1 << 12  # of exponents, which have no sign here


def units(e_max, fraction_bits: int):
    """2 ** (fraction_bits - e_max), float64, which makes the unit of a sum 1. e_max: integers of 64 bits."""
    return number((1023 + fraction_bits - e_max) << 52, "f64")


def truncated(term, to_units):
    """Return a term in units, without what is below one."""
    return ieee("trunc", term * to_units)


def towards_zero(x):
    """Numbers of 64 bits that 32 bits hold, likewise, infinity from 2 ** 128 on; zeros become positive."""
    tiny = ieee("trunc", x * 2.0**149) * 2.0**-149 + 0.0
    return resized(where(abs(x) < 2.0**-126, tiny, number(raw(x) >> 29 << 29, "f64")), 32)


@rule
def align(a, b, ea, eb, c, sums, rows, columns, terms, bits, least, single):
    """Write `sums` [rows, columns] of C and the products of rows of A [rows, terms] and columns of B [terms, columns].

    a, b: float64; ea, eb: their exponents; c: float32. bits: what is kept below the largest exponent, less the BIAS.
    least: the exponent of the smallest normal number of C, with BIAS. single: write float32, towards zero, not float64.
    """
    for row in range(rows):
        for at in range(0, columns, WIDE):
            place = row * columns + at
            total = resized(float32(c)[place : place + WIDE], 64)
            e = (raw(total) >> 52 & 0x7FF) + (BIAS - 1023)
            e_max = where(total == 0, BIAS + ZERO_EXPONENT, where(e > least, e, least))
            for k in range(terms):
                there = k * columns + at
                e = int64(eb)[there : there + WIDE] + resize(int64(ea)[row * terms + k] + BIAS, 64)
                e_max = where(e > e_max, e, e_max)
            to_units = units(e_max, bits)
            total = truncated(total, to_units)
            for k in range(terms):
                there = k * columns + at
                term = float64(b)[there : there + WIDE] * float64(a)[row * terms + k]
                total = total + truncated(term, to_units)
            total = total / to_units
            if single:
                float32(sums)[place : place + WIDE] = towards_zero(total)
            else:
                float64(sums)[place : place + WIDE] = total


def products(a, b, ea, eb, c, d_type: ElementType, fraction_bits: int) -> np.ndarray:
    """a @ b.T + c [M, N], of which each term loses what lies fraction_bits below the largest exponent: float32, towards
    zero, or float64 for another type of D.

    a [M, K], b [N, K]: exact float64; ea, eb: exponents of their elements, int64; c [M, N]: finite, in D's type.
    """
    n, more = len(b), ((0, -len(b) % WIDE), (0, 0))
    if n % WIDE:
        b, eb, c = np.pad(b, more), np.pad(eb, more), np.pad(c, more[::-1])
    sums = np.empty(c.shape, np.float32 if d_type is F32 else np.float64)
    operands = [np.ascontiguousarray(x) for x in (a, b.T, ea, eb.T, c.astype(np.float32, copy=False))]
    sizes, least = (*sums.shape, a.shape[1]), BIAS + d_type.min_exponent
    align.compiled(*map(pointer, operands), pointer(sums), *sizes, fraction_bits + BIAS, least, d_type is F32)
    return sums[:, :n]
