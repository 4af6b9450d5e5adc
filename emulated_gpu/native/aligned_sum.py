"""The tensor core's sum where bits get lost (units/dot_add.py): each term is truncated to a unit, then added."""

from __future__ import annotations

import numpy as np

from ..formats.alu import number
from ..formats.convert import integral
from ..jit.rules import Function, Later, float64, int64, pointer, rule, where

WIDE = 8  # columns that are computed together
BIAS = 1 << 12  # of exponents, which have no sign here
COLD, CALL = 10_000_000, 20_000  # terms of a process before machine code pays, and what a call costs in terms


def units(e_max, fraction_bits: int):
    """2 ** (fraction_bits - e_max), float64, which makes the unit of a sum 1. e_max: integers of 64 bits."""
    return number((1023 + fraction_bits - e_max) << 52, "f64")


def truncated(term, to_units):
    """Return a term in units, without what is below one."""
    return integral(term * to_units, "rzi")


@rule
def align(a, b, ea, eb, sums, largest, rows, columns, terms, bits):
    """Add the products of a row of A [rows, terms] and a column of B [terms, columns] to each of `sums`.

    ea, eb: their exponents, each with BIAS; largest [rows, columns]: that of the sum, with twice as much. bits: what is
    kept below the largest exponent, less twice the BIAS.
    """
    for row in range(rows):
        for at in range(0, columns, WIDE):
            place = row * columns + at
            e_max = int64(largest)[place : place + WIDE]
            for k in range(terms):
                there = k * columns + at
                e = int64(eb)[there : there + WIDE] + int64(ea)[row * terms + k]
                e_max = where(e > e_max, e, e_max)
            to_units = units(e_max, bits)
            total = truncated(float64(sums)[place : place + WIDE], to_units)
            for k in range(terms):
                there = k * columns + at
                term = float64(b)[there : there + WIDE] * float64(a)[row * terms + k]
                total = total + truncated(term, to_units)
            float64(sums)[place : place + WIDE] = total / to_units


function = Later(lambda: Function(align), COLD)


def products(a, b, ea, eb, c, ec, fraction_bits: int) -> np.ndarray | None:
    """a @ b.T + c, float64 [M, N], of which each term loses what lies fraction_bits below the largest exponent. None
    where machine code does not serve, or does not pay yet.

    a [M, K], b [N, K], c [M, N]: exact float64; ea, eb, ec: exponents of their elements, int64.
    """
    if len(b) % WIDE or (run := function(c.size * a.shape[1] + CALL)) is None:
        return None
    sums, biased = np.array(c, np.float64, order="C"), ((ea, BIAS), (eb.T, BIAS), (ec, 2 * BIAS))
    operands = [np.ascontiguousarray(a), np.ascontiguousarray(b.T), *(np.ascontiguousarray(e + n) for e, n in biased)]
    at_a, at_b, at_ea, at_eb, at_ec = map(pointer, operands)
    sizes = (*sums.shape, a.shape[1])
    run(at_a, at_b, at_ea, at_eb, pointer(sums), at_ec, *sizes, fraction_bits + 2 * BIAS)
    return sums
