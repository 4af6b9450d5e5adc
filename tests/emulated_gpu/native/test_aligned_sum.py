"""The tensor core's sum by machine code and as Python, to the bit as by NumPy."""

import numpy as np
import pytest

from emulated_gpu.formats.element_types import BF16, F16, F32
from emulated_gpu.native import aligned_sum
from emulated_gpu.units.wgmma_arithmetic import sums

SHAPES = [(16, 8, 16), (64, 21, 8), (128, 64, 16)]


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


def expected(kind, _, to, a, b, c) -> np.ndarray:
    """The model in NumPy, term by term."""
    a, b = kind.decode(a), kind.decode(b)
    c = np.zeros((len(a), len(b)), np.float32) if c is None else c
    special = a @ b.T + c
    exponents, largest = (kind.exponents(x, -1000) for x in (a, b)), to.exponents(np.where(np.isfinite(c), c, 0.0))
    ea, eb = exponents
    for k in range(a.shape[1]):
        largest = np.maximum(largest, ea[:, k, None] + eb[:, k])
    units = 2.0 ** (25 - largest)
    total = np.trunc(c * units)
    for k in range(a.shape[1]):
        total = total + np.trunc(a[:, k, None] * b[:, k] * units)
    total = np.where(np.isfinite(special), total / units, special)
    near = total.astype(np.float16 if to is F16 else np.float32)
    if to is F32:
        near = np.where(abs(near) > abs(total), np.nextafter(near, np.float32(0)), near)
    nan = np.uint16(0x7FFF).view(np.float16) if to is F16 else np.uint32(0x7FFFFFFF).view(np.float32)
    return np.where(np.isnan(near), nan, near + near.dtype.type(0))


@pytest.mark.parametrize("seed, compiled", [*((seed, True) for seed in range(12)), (0, False)])
def test_is_what_numpy_computes(seed, compiled, monkeypatch):
    case = drawn(seed)
    if not compiled:
        monkeypatch.setattr(aligned_sum.align, "compiled", aligned_sum.align)
    whole = np.uint16 if case[2] is F16 else np.uint32
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(sums(*case).view(whole), expected(*case).view(whole))
