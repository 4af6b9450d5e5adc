"""The tensor core's sum by machine code and as Python, to the bit as by NumPy."""

import numpy as np
import pytest

from emulated_gpu.formats.element_types import BF16, F16, F32
from emulated_gpu.native import aligned_sum
from emulated_gpu.units.wgmma_arithmetic import sums

SHAPES = [(16, 8, 16), (64, 24, 8), (128, 64, 16)]


def drawn(seed: int) -> tuple:
    """Types, and codes of A, B and C: numbers alike, numbers that are not, every code, C with what is not finite."""
    rng, shape = np.random.default_rng(seed), SHAPES[seed % len(SHAPES)]
    kind, to = ((F16, F16), (F16, F32), (BF16, F32))[seed % 3]
    rows, columns, terms = shape
    a, b = (rng.standard_normal((n, terms)).astype(np.float32) for n in (rows, columns))
    if seed % 2:
        a *= 2.0 ** rng.integers(-12, 4, a.shape)
    codes = [x.view(np.uint32) >> 16 if kind is BF16 else x.astype(np.float16).view(np.uint16) for x in (a, b)]
    if seed % 5 == 4:
        codes[0] = rng.integers(0, 1 << 16, a.shape)
    c = rng.standard_normal((rows, columns)).astype(np.float16 if to is F16 else np.float32)
    c[rows // 2] = 0
    if seed % 4 == 3:
        c[1, 1], c[3, 2] = np.nan, np.inf
    return kind, kind, to, *(x.astype(np.uint16) for x in codes), None if seed % 7 == 6 else c


@pytest.mark.parametrize("seed", range(12))
def test_is_what_numpy_computes(seed, monkeypatch):
    case, found = drawn(seed), []
    for cold in (10**12, 0):
        monkeypatch.setattr(aligned_sum.function, "left", cold)
        found.append(sums(*case))
    whole = np.uint16 if case[2] is F16 else np.uint32
    np.testing.assert_array_equal(*(d.view(whole) for d in found))


def test_the_rule_as_python_is_the_same(monkeypatch):
    case, found = drawn(0), []
    for function in (aligned_sum.align.compiled, aligned_sum.align):
        monkeypatch.setattr(aligned_sum, "function", lambda cost, function=function: function)
        found.append(sums(*case))
    np.testing.assert_array_equal(*found)
