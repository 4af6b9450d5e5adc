"""tcgen05.mma.kind::i8 against Python integers (PTX ISA 9.7.16.4.2, table 42)."""

import numpy as np
import pytest

from emulated_gpu.errors import Fault
from emulated_gpu.formats import instruction_descriptor
from emulated_gpu.units import mma

S32 = 2


def descriptor(m, n, signed_a=False, signed_b=False, saturate=False, group=1, d_type=S32):
    idesc = saturate << 3 | d_type << 4 | signed_a << 7 | signed_b << 10 | n // 8 << 17 | m // 16 << 24
    return instruction_descriptor.decode(idesc, "i8", group)


def wrapped(x):
    return (x + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("signed_a", [False, True])
@pytest.mark.parametrize("signed_b", [False, True])
@pytest.mark.parametrize("saturate", [False, True])
def test_products(signed_a, signed_b, saturate):
    rng = np.random.default_rng(0)
    d = descriptor(64, 8, signed_a, signed_b, saturate)
    a, b = rng.integers(0, 256, (64, 32)).astype(np.uint8), rng.integers(0, 256, (8, 32)).astype(np.uint8)
    c = rng.integers(-(2**31), 2**31, (64, 8)).astype(np.int32)
    c[0], c[1] = 2**31 - 1, -(2**31)  # some sums leave the range

    def value(code, signed):
        return int(code) - 256 * (signed and int(code) > 127)

    got = mma.mma(d, a, b, c)
    for i, j in np.ndindex(64, 8):
        exact = sum(value(x, signed_a) * value(y, signed_b) for x, y in zip(a[i], b[j])) + int(c[i, j])
        assert got[i, j] == (min(max(exact, -(2**31)), 2**31 - 1) if saturate else wrapped(exact))
    assert (mma.mma(d, a, b, None) == mma.mma(d, a, b, np.zeros_like(c))).all()


@pytest.mark.parametrize(
    "m, n, group, ok",
    [(64, 8, 1, True), (128, 48, 1, True), (64, 40, 1, False), (128, 24, 1, True), (256, 32, 1, False),
     (256, 64, 2, True), (128, 48, 2, False)],
)  # fmt: skip
def test_shapes(m, n, group, ok):
    if ok:
        assert descriptor(m, n, group=group).n == n
    else:
        with pytest.raises(Fault, match="shape"):
            descriptor(m, n, group=group)


def test_only_s32_accumulates_and_nothing_is_negated():
    with pytest.raises(Fault, match="D type 1"):
        descriptor(64, 8, d_type=1)
    with pytest.raises(Fault, match="negation"):
        instruction_descriptor.decode(S32 << 4 | 1 << 13 | 1 << 17 | 4 << 24, "i8", 1)
    with pytest.raises(Fault, match="saturation"):
        instruction_descriptor.decode(1 << 3 | 1 << 4 | 1 << 17 | 4 << 24, "f16", 1)
