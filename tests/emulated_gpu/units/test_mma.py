"""tcgen05.mma against a scalar model in exact rationals, and whole instructions against plain matrix products."""

import math
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats import instruction_descriptor
from emulated_gpu.formats.instruction_descriptor import MmaForm
from emulated_gpu.state.tensor_memory import TensorMemory
from emulated_gpu.units import mma

# name -> exponent bits, mantissa bits; E8M0 apart
FORMATS = {"e2m1": (2, 1), "e2m3": (2, 3), "e3m2": (3, 2), "e4m3": (4, 3), "e5m2": (5, 2), "ue4m3": (4, 3)}
FORMATS |= {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 10), "f32": (8, 23)}
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}


def decode(code, name):
    """(value as Fraction, "nan", "inf" or "-inf"; exponent) of a code, in MMA-Sim's convention for exponents."""
    if name == "ue8m0":
        return ("nan", 0) if code == 255 else (Fraction(2) ** (code - 127), code - 127)
    e_bits, m_bits = FORMATS[name]
    if name == "tf32":
        code >>= 13
    bias = 2 ** (e_bits - 1) - 1
    sign, field, mantissa = code >> (e_bits + m_bits) & 1, code >> m_bits & (1 << e_bits) - 1, code & (1 << m_bits) - 1
    top = (1 << e_bits) - 1
    if name in ("e4m3", "ue4m3") and field == top and mantissa == 7:
        return "nan", 0
    if name in ("e5m2", "f16", "bf16", "tf32", "f32") and field == top:
        return ("nan" if mantissa else "-inf" if sign else "inf"), 0
    exponent = max(field, 1) - bias
    value = (Fraction(mantissa, 1 << m_bits) + (field > 0)) * Fraction(2) ** exponent
    if name == "ue4m3":
        sign = 0
    return (-value if sign else value), (exponent if value else -126)


@lru_cache(maxsize=4096)
def round_f32(x):
    """Bits of x rounded towards zero."""
    if x == 0:
        return 0
    sign, x = (1 << 31 if x < 0 else 0), abs(x)
    exponent = max(x.numerator.bit_length() - x.denominator.bit_length() - 1, -127) + 1
    while x < Fraction(2) ** exponent and exponent > -126:
        exponent -= 1
    units = math.floor(x / Fraction(2) ** (exponent - 23))
    if units >= 1 << 24:
        units, exponent = units >> 1, exponent + 1
    if exponent > 127:
        return sign | 0x7F800000
    if units == 0:
        return 0
    return sign | (units if units < 1 << 23 else (exponent + 127) << 23 | units & 0x7FFFFF)


def round_f16(x):
    """Bits of x rounded to nearest even, by bisection of all finite codes."""
    if x == 0:
        return 0

    def magnitude(code):
        return decode(code, "f16")[0] if code < 0x7C00 else Fraction(65536)

    lo, hi = 0, 0x7C00
    if abs(x) >= 65536:
        lo = hi
    while hi - lo > 1:
        mid = (lo + hi) // 2
        lo, hi = (mid, hi) if magnitude(mid) <= abs(x) else (lo, mid)
    below, above = abs(x) - magnitude(lo), magnitude(hi) - abs(x)
    code = lo if below < above or (below == above and lo % 2 == 0) else hi
    return 0 if code == 0 else code | (0x8000 if x < 0 else 0)


def model(terms, c_bits, d_name, fraction_bits):
    """terms: (value, exponent) each, in the words of units/mma.py's docstring. Returns the bits of D."""
    terms = terms + [decode(c_bits, d_name)]
    values = [value for value, _ in terms]
    nan, infinity, round_to = (0x7FFF, 0x7C00, round_f16) if d_name == "f16" else (0x7FFFFFFF, 0x7F800000, round_f32)
    if "nan" in values or ("inf" in values and "-inf" in values):
        return nan
    if "inf" in values:
        return infinity
    if "-inf" in values:
        return infinity | (0x8000 if d_name == "f16" else 0x80000000)
    unit = Fraction(2) ** (max(exponent for _, exponent in terms) - fraction_bits)
    return round_to(sum(math.trunc(value / unit) for value in values) * unit)


def times(*factors):
    """The product of (value, exponent) pairs."""
    names = [value for value, _ in factors if isinstance(value, str)]
    exponent = sum(exponent for _, exponent in factors)
    sign = 1
    for value, _ in factors:
        sign *= -1 if value == "-inf" or (not isinstance(value, str) and value < 0) else 1
    if "nan" in names or (names and any(value == 0 for value, _ in factors)):
        return "nan", exponent
    if names:
        return ("inf" if sign > 0 else "-inf"), exponent
    return math.prod(value for value, _ in factors), exponent


def idesc_bits(
    kind, m, n, a="e2m1", b="e2m1", scale="ue4m3", negate_a=0, negate_b=0, d="f32", a_mn=0, b_mn=0, ids=(0, 0)
):
    bits = negate_a << 13 | negate_b << 14 | a_mn << 15 | b_mn << 16 | n >> 3 << 17
    if kind in ("mxf4", "mxf4nvf4"):
        return bits | 1 << 7 | 1 << 10 | (scale == "ue8m0") << 23 | m >> 7 << 27 | ids[0] << 29 | ids[1] << 4
    bits |= CODES[a] << 7 | CODES[b] << 10
    if kind == "mxf8f6f4":
        return bits | 1 << 23 | m >> 7 << 27 | ids[0] << 29 | ids[1] << 4
    return bits | (d == "f32") << 4 | m >> 4 << 24


# ---- arithmetic ----

nibbles = st.integers(0, 15)
F32_EDGES = [0, 1 << 31, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000]
F32_EDGES += [0xFF800000, 0x7FC00000, 0x7F800001]
f32_codes = st.one_of(st.sampled_from(F32_EDGES), st.integers(0, 2**32 - 1), st.integers(0x3C000000, 0x4C000000))


@st.composite
def fp4_cases(draw):
    scale, scale_vec = draw(st.sampled_from([("ue4m3", 4), ("ue8m0", 4), ("ue8m0", 2)]))
    kind = draw(st.sampled_from(["mxf4nvf4", "mxf4"])) if scale_vec == 2 else "mxf4nvf4"
    near = draw(st.integers(0, 255))  # scale factors close together align, others truncate each other away
    sf = st.one_of(st.integers(0, 255), st.integers(max(near - 20, 0), min(near + 20, 255)))
    a = draw(st.lists(nibbles, min_size=64, max_size=64))
    b = draw(st.lists(nibbles, min_size=64, max_size=64))
    sfa, sfb = (draw(st.lists(sf, min_size=scale_vec, max_size=scale_vec)) for _ in "ab")
    negate = draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
    return kind, scale, scale_vec, a, b, sfa, sfb, draw(f32_codes), negate


def fp4_model(scale, a, b, sfa, sfb, c, negate):
    terms = []
    for group in range(4):
        block = group * len(sfa) // 4
        sign = (-1) ** sum(negate)
        dot = sum(sign * decode(a[k], "e2m1")[0] * decode(b[k], "e2m1")[0] for k in range(16 * group, 16 * group + 16))
        (sa, ea), (sb, eb) = decode(sfa[block], scale), decode(sfb[block], scale)
        terms.append(("nan", 0) if "nan" in (sa, sb) else (dot * sa * sb, ea + eb))
    return model(terms, c, "f32", 35)


def pack(codes):
    codes = np.asarray(codes, np.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4


@settings(max_examples=250, deadline=None)
@given(fp4_cases())
def test_fp4_is_the_model(case):
    kind, scale, scale_vec, a, b, sfa, sfb, c, negate = case
    bits = idesc_bits(kind, 128, 8, scale=scale, negate_a=negate[0], negate_b=negate[1])
    idesc = instruction_descriptor.decode(bits, kind, 1, scale_vec)
    got = mma.mma(idesc, pack([a]), pack([b]), np.array([[c]], np.uint32).view(np.float32), *u8([sfa], [sfb]))
    assert hex(got.view(np.uint32)[0, 0]) == hex(fp4_model(scale, a, b, sfa, sfb, c, negate))


def u8(*lists):
    return [np.array(x, np.uint8) for x in lists]


@pytest.mark.parametrize("scale, spread", [("ue4m3", 3), ("ue4m3", 128), ("ue8m0", 3), ("ue8m0", 256)])
def test_fp4_rows_do_not_disturb_each_other(scale, spread):
    """Whole tiles, where one test decides between BLAS and alignment for all elements."""
    rng = np.random.default_rng(spread)
    idesc = instruction_descriptor.decode(idesc_bits("mxf4nvf4", 128, 16, scale=scale), "mxf4nvf4", 1, 4)
    m, n = 4, 3
    a, b = rng.integers(0, 16, (m, 64)), rng.integers(0, 16, (n, 64))
    base = 100 if spread == 3 else 0
    sfa, sfb = (rng.integers(base, base + spread, (rows, 4), np.int64).astype(np.uint8) for rows in (m, n))
    c = rng.integers(0x3F000000, 0x46000000, (m, n), dtype=np.uint32)
    got = mma.mma(idesc, pack(a), pack(b), c.view(np.float32), sfa, sfb).view(np.uint32)
    for i in range(m):
        for j in range(n):
            expected = fp4_model(
                scale, *(list(map(int, x)) for x in (a[i], b[j], sfa[i], sfb[j])), int(c[i, j]), (0, 0)
            )
            assert got[i, j] == expected


@pytest.mark.parametrize("scale", ["ue4m3", "ue8m0"])
@pytest.mark.parametrize("with_c", [False, True])
def test_fp4_cancellation_shows_the_last_bits(scale, with_c):
    """Groups 0 and 1 cancel exactly, so that what is left of groups 2 and 3 and of C shows where truncation cuts."""
    rng = np.random.default_rng(0)
    idesc = instruction_descriptor.decode(idesc_bits("mxf4nvf4", 128, 8, scale=scale), "mxf4nvf4", 1, 4)
    for _ in range(400):
        a, b = rng.integers(0, 16, (2, 64))
        a[16:32], b[16:32] = a[:16], b[:16] ^ 8
        if scale == "ue4m3":
            sfa, sfb = rng.integers(0, 127, (2, 4))
        else:
            sfa, sfb = 127 + rng.integers(-20, 20, (2, 4))
            sfa[:2] += 10
        sfa[1], sfb[1] = sfa[0], sfb[0]
        c = int(rng.integers(0x30000000, 0x48000000)) & -1 << int(rng.integers(0, 20)) if with_c else 0
        c_array = np.array([[c]], np.uint32).view(np.float32) if with_c else None
        got = mma.mma(idesc, pack([a]), pack([b]), c_array, *u8([sfa], [sfb])).view(np.uint32)[0, 0]
        assert got == fp4_model(scale, *(list(map(int, x)) for x in (a, b, sfa, sfb)), c, (0, 0))


def test_an_absent_accumulator_still_aligns_as_zero():
    """2^-149 less 2^-162: the second term is below what zero's exponent, -126, leaves, and must not cost the first."""
    idesc = instruction_descriptor.decode(idesc_bits("mxf4nvf4", 128, 8, scale="ue8m0"), "mxf4nvf4", 1, 4)
    a, b = pack([[2] + [0] * 15 + [2] + [0] * 47]), pack([[2] + [0] * 15 + [2 | 8] + [0] * 47])  # 1 * 1, 1 * -1
    sfa, sfb = u8([[127 - 70] * 4], [[127 - 79, 127 - 92, 127 - 92, 127 - 92]])
    assert mma.mma(idesc, a, b, None, sfa, sfb).view(np.uint32)[0, 0] == 1
    sfb[0, 1] += 1  # 2^-161 does count
    assert mma.mma(idesc, a, b, None, sfa, sfb).view(np.uint32)[0, 0] == 0


def test_subnormals_align_with_the_exponent_of_normals():
    """Two terms cancel; their exponent decides whether the last bit of C survives."""
    bits = idesc_bits("f8f6f4", 128, 8, "e5m2", "e5m2")
    a, b = [1, 1] + [0] * 30, [0x3C, 0xBC] + [0] * 30  # 2^-16 * 1 - 2^-16 * 1, with exponent -14
    for last in (39, 40):
        c = np.array([[2.0**-20 + 2.0**-last]], np.float32)
        got = mma.mma(instruction_descriptor.decode(bits, "f8f6f4", 1), *u8([a], [b]), c)[0, 0]
        assert got == (c[0, 0] if last == 39 else 2.0**-20)
    idesc = instruction_descriptor.decode(idesc_bits("mxf4nvf4", 128, 8), "mxf4nvf4", 1)
    a, b = pack([[2] + [0] * 15 + [2] + [0] * 47]), pack([[2] + [0] * 15 + [2 | 8] + [0] * 47])  # 1 * 1, 1 * -1
    sfa, sfb = np.full((1, 4), 1, np.uint8), np.full((1, 4), 0x38, np.uint8)  # 2^-9, with exponent -6, and 1
    for last in (41, 42):
        c = np.array([[2.0**-20 + 2.0**-last]], np.float32)
        assert mma.mma(idesc, a, b, c, sfa, sfb)[0, 0] == (c[0, 0] if last == 41 else 2.0**-20)


def test_sum_of_25_bits():
    """The products fit 24 bits and so does C, the sum does not: it is odd, and must be truncated, not rounded."""
    idesc = instruction_descriptor.decode(idesc_bits("mxf4nvf4", 128, 8), "mxf4nvf4", 1)
    sixes, sf = np.full((1, 32), 0x77, np.uint8), u8([[0x3F] * 3 + [0x27]], [[0x3F] * 4])  # 15/8, last one 15/64
    unit = 2.0**-11
    c = np.array([[(2**22 - 1) * unit]], np.float32)
    assert mma.mma(idesc, sixes, sixes, c, *sf)[0, 0] == (12960000 + 2**22 - 2) * unit


def test_operands_beyond_float32():
    """Scaled elements of 6 * 2^127 and 6 * 2^-127 have a modest product."""
    idesc = instruction_descriptor.decode(idesc_bits("mxf4nvf4", 128, 8, scale="ue8m0"), "mxf4nvf4", 1, 4)
    sixes = np.full((1, 32), 0x77, np.uint8)
    assert mma.mma(idesc, sixes, sixes, None, *u8([[254] * 4], [[0] * 4]))[0, 0] == 36 * 64


def test_negative_results_that_round_to_zero_are_positive_zeros():
    idesc = instruction_descriptor.decode(idesc_bits("f8f6f4", 128, 8, "e5m2", "e5m2", d="f16"), "f8f6f4", 1)
    tiny, minus_tiny = np.full((1, 32), 1, np.uint8), np.full((1, 32), 0x81, np.uint8)  # +- 2^-16
    for c in (None, np.full((1, 1), -0.0, np.float16)):
        assert mma.mma(idesc, tiny, minus_tiny, c).view(np.uint16)[0, 0] == 0
    idesc = instruction_descriptor.decode(idesc_bits("mxf4nvf4", 128, 8), "mxf4nvf4", 1)
    zeros, sf = np.full((1, 32), 0x88, np.uint8), np.full((1, 4), 0x38, np.uint8)  # all -0 times all +0
    for c in (None, np.full((1, 1), -0.0, np.float32)):
        assert mma.mma(idesc, zeros, np.zeros((1, 32), np.uint8), c, sf, sf).view(np.uint32)[0, 0] == 0


@pytest.mark.parametrize("magnitude", [0.25, 1, 2.0**14])
def test_exact_tiles_never_take_the_slow_path(monkeypatch, magnitude):
    """Scale factors and accumulators of well-behaved inputs: BLAS must do, and give the aligned sum's bits."""
    rng = np.random.default_rng(0)
    idesc = instruction_descriptor.decode(idesc_bits("mxf4nvf4", 128, 64), "mxf4nvf4", 1)
    a, b = rng.integers(0, 256, (128, 32), np.uint8), rng.integers(0, 256, (64, 32), np.uint8)
    sfa, sfb = (rng.choice(np.array([0x00, 0x30, 0x38, 0x40, 0x44], np.uint8), (rows, 4)) for rows in (128, 64))
    c = (rng.integers(-(2**12), 2**12, (128, 64)) * magnitude).astype(np.float32)
    values = [mma._FP4_PAIRS.take(x).view(np.float32) for x in (a, b)]
    aligned = [mma._aligned_fp4(idesc.scale_type, *values, x, sfa, sfb) for x in (None, c)]
    monkeypatch.setattr(mma, "_aligned_fp4", None)
    for x, expected in zip((None, c), aligned):
        np.testing.assert_array_equal(mma.mma(idesc, a, b, x, sfa, sfb).view(np.uint32), expected.view(np.uint32))


def test_every_fp4_pair_under_every_scale_factor():
    """All 256 bytes (two E2M1) times all 256 UE4M3 codes."""
    idesc = instruction_descriptor.decode(idesc_bits("mxf4nvf4", 128, 8), "mxf4nvf4", 1)
    scale_factors = [decode(code, "ue4m3")[0] for code in range(256)]
    one = pack([[2, 0] + [0] * 62, [0, 2] + [0] * 62])  # picks the even, the odd element
    for byte in range(256):
        a = np.zeros((256, 32), np.uint8)
        a[:, 0] = byte
        sfa = np.zeros((256, 4), np.uint8)
        sfa[:, 0] = np.arange(256)
        got = mma.mma(idesc, a, one, None, sfa, np.full((2, 4), 0x38, np.uint8)).view(np.uint32)
        for half in range(2):
            element = decode(byte >> 4 * half & 15, "e2m1")[0]
            expected = [0x7FFFFFFF if sf == "nan" else round_f32(element * sf) for sf in scale_factors]
            assert got[:, half].tolist() == expected


SPECIAL_16 = [0, 0x8000, 1, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7F80, 0x3F80, 0x0080]


@st.composite
def product_cases(draw):
    kind = draw(st.sampled_from(["f16", "tf32", "f8f6f4", "mxf8f6f4"]))
    d = "f32"
    if kind == "f16":
        a = b = draw(st.sampled_from(["f16", "bf16"]))
        d = draw(st.sampled_from(["f32", "f16"])) if a == "f16" else d
        codes = {
            a: st.one_of(st.sampled_from(SPECIAL_16[:8]), st.sampled_from(SPECIAL_16), st.integers(0x3000, 0x4400))
        }
    elif kind == "tf32":
        a = b = "tf32"
        codes = {a: st.one_of(f32_codes, st.integers(0x3F000000, 0x42000000))}
    else:
        a, b = (draw(st.sampled_from(["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])) for _ in "ab")
        d = draw(st.sampled_from(["f32", "f16"])) if kind == "f8f6f4" else d
        sizes = {name: 1 << 1 + sum(FORMATS[name]) for name in (a, b)}
        codes = {
            name: st.one_of(st.integers(0, size - 1), st.integers(0, size // 2 - 9 if size > 16 else 7))
            for name, size in sizes.items()
        }
    k = {"f16": 16, "tf32": 8}.get(kind, 32)
    finite = draw(st.booleans())

    def operand(name):
        values = codes[name]
        if finite:
            values = values.filter(lambda code: not isinstance(decode(code, name)[0], str))
        few = draw(st.lists(values, min_size=1, max_size=6))
        return draw(st.lists(st.sampled_from(few), min_size=k, max_size=k))

    av, bv = operand(a), operand(b)
    sfs = draw(st.tuples(st.integers(0, 255), st.integers(0, 255))) if kind == "mxf8f6f4" else None
    c = draw(f32_codes) if d == "f32" else draw(st.one_of(st.sampled_from(SPECIAL_16), st.integers(0, 0xFFFF)))
    return kind, a, b, d, av, bv, sfs, c, draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))


@settings(max_examples=300, deadline=None)
@given(product_cases())
def test_product_kinds_are_the_model(case):
    kind, a, b, d, av, bv, sfs, c, negate = case
    bits = idesc_bits(kind, 128, 16, a, b, negate_a=negate[0], negate_b=negate[1], d=d)
    idesc = instruction_descriptor.decode(bits, kind, 1)
    dtype = {"f16": np.uint16, "tf32": np.uint32}.get(kind, np.uint8)
    c_array = np.array([[c]], np.uint32).view(np.float32) if d == "f32" else np.array([[c]], np.uint16).view(np.float16)
    scales = [(Fraction((-1) ** sum(negate)), 0)]
    if sfs:
        scales += [decode(code, "ue8m0") for code in sfs]
    terms = [times(decode(x, a), decode(y, b), *scales) for x, y in zip(av, bv)]
    expected = model(terms, c, d, 25)
    got = mma.mma(
        idesc, np.array([av], dtype), np.array([bv], dtype), c_array, *(u8([[sfs[0]]], [[sfs[1]]]) if sfs else ())
    )
    assert hex(got.view(np.uint32 if d == "f32" else np.uint16)[0, 0]) == hex(expected)


def test_product_rows_do_not_disturb_each_other():
    """One NaN, one infinity and one huge element, each in a row of its own, change nothing elsewhere."""
    idesc = instruction_descriptor.decode(idesc_bits("f16", 128, 16, "f16", "f16"), "f16", 1)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0x3000, 0x4400, (rows, 16)).astype(np.uint16) for rows in (5, 4))
    a[1, 3], a[2, 5], a[3, 7], b[2, 1] = 0x7E00, 0x7C00, 0x7BFF, 0xFC00
    c = rng.standard_normal((5, 4)).astype(np.float32)
    got = mma.mma(idesc, a, b, c).view(np.uint32)
    for i in range(5):
        for j in range(4):
            terms = [times(decode(int(x), "f16"), decode(int(y), "f16")) for x, y in zip(a[i], b[j])]
            assert got[i, j] == model(terms, int(c.view(np.uint32)[i, j]), "f32", 25)


# ---- whole instructions ----


def swizzled(base, row, byte, row_bytes=128):
    """Address of a byte of a K-major 128B-swizzled tile with 8-row groups packed back to back."""
    address = base + row * row_bytes + byte
    return address ^ (address >> 7 & 7) << 4


def k_major_desc(base):
    return base >> 4 | 1024 >> 4 << 32 | 1 << 46 | 2 << 61


def store_tile(smem, base, codes):
    """codes uint8 [rows, 128 bytes] into a 128B-swizzled tile."""
    for row in range(codes.shape[0]):
        for byte in range(0, 128, 16):
            address = swizzled(base, row, byte)
            smem[address : address + 16] = codes[row, byte : byte + 16]


def store_scale_factors(smem, tmem, base, column, codes):
    """codes uint8 [128, 4]: the 512-byte atom in shared memory, then tcgen05.cp to `column`."""
    for m in range(128):
        smem[base + m % 32 * 16 + m // 32 * 4 :][:4] = codes[m]
    tmem.copy(smem, base >> 4 | 128 >> 4 << 32 | 1 << 46, "32x128b", "warpx4", column)


def new_cta():
    cta = SimpleNamespace(smem=np.zeros(1 << 17, np.uint8), tmem=TensorMemory())
    cta.tmem.alloc(512)
    return cta


E2M1_VALUES = [float(decode(code, "e2m1")[0]) for code in range(16)]


def unpack(codes):
    return np.stack([np.take(E2M1_VALUES, codes & 15), np.take(E2M1_VALUES, codes >> 4)], -1).reshape(len(codes), -1)


def read_back(tmem, column, columns):
    """Lanes x columns, through tcgen05.ld by four warps."""
    parts = [tmem.load(32 * w << 16 | column + c, w, "32x32b", 8).T for w in range(4) for c in range(0, columns, 8)]
    rows = [np.concatenate(parts[w * columns // 8 : (w + 1) * columns // 8], 1) for w in range(4)]
    return np.concatenate(rows).view(np.float32)


@pytest.mark.parametrize("cta_group, n", [(1, 128), (1, 256), (1, 40), (2, 128), (2, 256), (2, 48)])
def test_nvfp4_tile(cta_group, n):
    """A K = 256 tile: four MMAs on operands in 128B-swizzled tiles, scale factors through tcgen05.cp."""
    rng = np.random.default_rng(n)
    m = 128 * cta_group
    a, b = rng.integers(0, 256, (m, 128), np.uint8), rng.integers(0, 256, (n, 128), np.uint8)
    sfa, sfb = rng.choice(np.array([0x30, 0x38, 0x40, 0xB8], np.uint8), (2, 256, 16))  # 0.5, 1, 2, 1 with a sign
    ctas = [new_cta() for _ in range(cta_group)]
    a_base, b_base, sf_base, d_column = 0x400 + 640, 0x8000 + 128, 0x18000, 16
    for rank, cta in enumerate(ctas):
        rows = n // cta_group
        store_tile(cta.smem, a_base, a[rank * 128 : rank * 128 + 128])
        store_tile(cta.smem, b_base, b[rank * rows : rank * rows + rows])
        for k in range(4):
            block = np.s_[:, 4 * k : 4 * k + 4]
            store_scale_factors(cta.smem, cta.tmem, sf_base, 400 + 4 * k, sfa[rank * 128 : rank * 128 + 128][block])
            for j in range(2):
                store_scale_factors(
                    cta.smem, cta.tmem, sf_base, 420 + 8 * k + 4 * j, sfb[128 * j : 128 * j + 128][block]
                )
    for k in range(4):
        execute(
            "mxf4nvf4",
            cta_group,
            idesc_bits("mxf4nvf4", m, n),
            d_column,
            k_major_desc(a_base + 32 * k),
            k_major_desc(b_base + 32 * k),
            ctas,
            accumulate=k > 0,
            sfa=400 + 4 * k,
            sfb=420 + 8 * k,
        )
    scale = {0x30: 0.5, 0x38: 1.0, 0x40: 2.0, 0xB8: 1.0}
    expand = np.vectorize(scale.get)
    expected = (unpack(a) * np.repeat(expand(sfa[:m]), 16, 1)) @ (unpack(b) * np.repeat(expand(sfb[:n]), 16, 1)).T
    for rank, cta in enumerate(ctas):
        np.testing.assert_array_equal(read_back(cta.tmem, d_column, n), expected[rank * 128 : rank * 128 + 128])
        assert not cta.tmem.written[:, d_column + n : 400].any() and not cta.tmem.written[:, :d_column].any()


def test_shifted_scale_factor_base():
    """A 64-column tile may use the second half of a 128-row scale factor block, two columns further."""
    cta, rng = new_cta(), np.random.default_rng(0)
    sf = rng.integers(0, 127, (128, 4), np.uint8)
    store_scale_factors(cta.smem, cta.tmem, 1024, 40, sf)
    np.testing.assert_array_equal(mma.scale_factors(cta.tmem, 40, 128, 4, 0), sf)
    np.testing.assert_array_equal(mma.scale_factors(cta.tmem, 42, 64, 4, 0), sf[64:])
    np.testing.assert_array_equal(mma.scale_factors(cta.tmem, 42, 40, 4, 0), sf[64:104])
    np.testing.assert_array_equal(mma.scale_factors(cta.tmem, 2 << 30 | 40, 128, 2, 2), sf[:, 2:])
    np.testing.assert_array_equal(mma.scale_factors(cta.tmem, 41, 8, 1, 3), sf[32:40, 3:])


def test_scale_factors_must_be_written_and_replicated():
    cta = new_cta()
    with pytest.raises(Fault, match="tmem-uninitialised"):
        mma.scale_factors(cta.tmem, 0, 128, 4, 0)
    for lane in range(0, 128, 32):
        cta.tmem.write(lane, 0, np.full((32, 4), 7, np.uint32), "test")
    mma.scale_factors(cta.tmem, 0, 128, 4, 0)
    cta.tmem.write(70, 1, np.full((1, 1), 8, np.uint32), "test")
    with pytest.raises(Fault, match="scale-factors-not-replicated"):
        mma.scale_factors(cta.tmem, 0, 128, 4, 0)
    with pytest.raises(Fault, match="tmem-lane-access"):
        mma.scale_factors(cta.tmem, 32 << 16, 128, 4, 0)


LAYOUTS = {  # ISA 9.7.16.10.5: (m, cta_group) -> lane of row r, and the half of N that lanes 64.. hold
    (128, 1): lambda r, c, n: (r, c),
    (64, 1): lambda r, c, n: (r // 16 * 32 + r % 16, c),
    (256, 2): lambda r, c, n: (r % 128, c),
    (128, 2): lambda r, c, n: (r % 64 + (64 if c >= n // 2 else 0), c % (n // 2)),
}


def execute(kind, group, bits, d, a, b, ctas, accumulate, a_in_tmem=False, sfa=None, sfb=None, vec=None, shift_a=False):
    form = MmaForm(kind, group, vec, a_in_tmem, shift_a)
    memories = [(cta.smem, cta.tmem) for cta in ctas]
    mma.execute(form, form.decode(bits), mma.Operands(d, a, b, accumulate, sfa, sfb), memories)


def accumulator_cells(m, n, cta_group, rank, d_addr):
    """(lane, column), each int64 [rows of this CTA, N], of every element of D, and the slice of D's rows they are."""
    rows = m // cta_group
    lane, column = np.empty((2, rows, n), np.int64)
    for r, c, first in mma.accumulator_blocks(m, n, cta_group):
        lane[r, c] = (d_addr >> 16) + first + np.arange(r.stop - r.start)[:, None]
        column[r, c] = (d_addr & 0xFFFF) + np.arange(c.stop - c.start)[None, :]
    return lane, column, slice(rank * rows, (rank + 1) * rows)


@pytest.mark.parametrize("m, cta_group", LAYOUTS)
def test_accumulator_cells(m, cta_group):
    n, d_addr = 32, 100 | (16 << 16 if m == 64 else 0)
    seen = set()
    for rank in range(cta_group):
        lane, column, rows = accumulator_cells(m, n, cta_group, rank, d_addr)
        for i, r in enumerate(range(m)[rows]):
            for c in range(n):
                expected = LAYOUTS[m, cta_group](r, c, n)
                assert (lane[i, c], column[i, c]) == (expected[0] + (d_addr >> 16), expected[1] + 100)
                seen.add((rank, r, c))
    assert len(seen) == m * n


F16_TILES = [(*shape, a_mn, b_mn, False) for shape in LAYOUTS for a_mn in (0, 1) for b_mn in (0, 1)]
F16_TILES += [(*shape, 0, 0, True) for shape in LAYOUTS]


@pytest.mark.parametrize("m, cta_group, a_mn, b_mn, a_in_tmem", F16_TILES)
def test_f16_tile(m, cta_group, a_mn, b_mn, a_in_tmem):
    rng = np.random.default_rng(m + a_mn)
    n, half = 64, m // cta_group
    a, b = rng.integers(-8, 9, (m, 16)).astype(np.float16), rng.integers(-8, 9, (n, 16)).astype(np.float16)
    c = rng.integers(-100, 100, (m, n)).astype(np.float32)
    ctas, d_addr, a_addr = [new_cta() for _ in range(cta_group)], 32, 200
    for rank, cta in enumerate(ctas):
        for base, tile, mn in (
            (0x2000, a[rank * half :][:half], a_mn),
            (0x8000, b[rank * n // cta_group :][: n // cta_group], b_mn),
        ):
            for r in range(len(tile)):
                for k in range(16):
                    # no swizzle: 8x8 blocks of 128 bytes; M or N blocks 128 apart, K blocks 4096
                    inside = (k % 8 * 8 + r % 8) if mn else (r % 8 * 8 + k % 8)
                    at = base + r // 8 * 128 + k // 8 * 4096 + inside * 2
                    cta.smem[at : at + 2] = tile[r : r + 1, k].view(np.uint8)
        lane, column, rows = accumulator_cells(m, n, cta_group, rank, d_addr)
        cta.tmem.cells[lane, column] = c[rows].view(np.uint32)
        cta.tmem.written[lane, column] = True
        if a_in_tmem:
            for lanes in (lane[:, 0], lane[:, -1]):  # a 2x2 tile wants A in either half of the lanes
                cta.tmem.cells[lanes, 200:208] = a[rows].view(np.uint32)
                cta.tmem.written[lanes, 200:208] = True
    desc = 4096 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
    a_operand = a_addr if a_in_tmem else desc | 0x2000 >> 4
    bits = idesc_bits("f16", m, n, "f16", "f16", a_mn=a_mn, b_mn=b_mn)
    execute("f16", cta_group, bits, d_addr, a_operand, desc | 0x8000 >> 4, ctas, True, a_in_tmem=a_in_tmem)
    expected = c + a.astype(np.float32) @ b.astype(np.float32).T
    for rank, cta in enumerate(ctas):
        lane, column, rows = accumulator_cells(m, n, cta_group, rank, d_addr)
        np.testing.assert_array_equal(cta.tmem.cells[lane, column].view(np.float32), expected[rows])


@pytest.mark.parametrize("name, bits", [("e2m1", 4), ("e3m2", 6)])
def test_padded_small_elements(name, bits):
    """f8f6f4 kinds: 16 elements packed at the start of each 16 bytes."""
    rng, cta = np.random.default_rng(bits), new_cta()
    a, b = rng.integers(0, 1 << bits, (128, 32)), rng.integers(0, 0x78, (16, 32))
    for r in range(128):
        for group in range(2):
            packed = sum(int(x) << bits * i for i, x in enumerate(a[r, 16 * group : 16 * group + 16]))
            at = r // 8 * 128 + r % 8 * 16 + group * 4096
            cta.smem[at : at + 16] = np.frombuffer(packed.to_bytes(16, "little"), np.uint8)
            if r < 16:
                cta.smem[at + 0x8000 :][:16] = b[r, 16 * group : 16 * group + 16]
            cta.smem[at + 2 * bits : at + 16] = 0xFF  # padding is ignored
    desc = 4096 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
    execute("f8f6f4", 1, idesc_bits("f8f6f4", 128, 16, name, "e4m3"), 0, desc, desc | 0x8000 >> 4, [cta], False)
    got = cta.tmem.cells[:, :16]
    for i, j in ((0, 0), (5, 3), (127, 15), (64, 9)):
        terms = [times(decode(int(x), name), decode(int(y), "e4m3")) for x, y in zip(a[i], b[j])]
        assert got[i, j] == model(terms, 0, "f32", 25)


@pytest.mark.parametrize("name, bits, shift", [("e2m1", 4, 2), ("e3m2", 6, 1), ("e2m3", 6, 1), ("e4m3", 8, 0)])
@pytest.mark.parametrize("kind", ["f8f6f4", "mxf8f6f4"])
def test_small_elements_in_tensor_memory(kind, name, bits, shift):
    """A from tensor memory has one element to a byte, in its middle; tcgen05.cp puts it there."""
    rng, cta = np.random.default_rng(bits), new_cta()
    a, b = rng.integers(0, min(1 << bits, 0x78), (128, 32)), rng.integers(0, 0x78, (16, 32))
    for r in range(128):
        for group in range(2):
            at = r // 8 * 128 + r % 8 * 16 + group * 4096
            packed = sum(int(x) << bits * i for i, x in enumerate(a[r, 16 * group : 16 * group + 16]))
            cta.smem[at : at + 16] = np.frombuffer(packed.to_bytes(16, "little"), np.uint8)
            if r < 16:
                cta.smem[at + 0x8000 :][:16] = b[r, 16 * group : 16 * group + 16]
    desc = 4096 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
    cta.tmem.copy(cta.smem, desc, "128x256b", None, 200, {4: "b4x16_p64", 6: "b6x16_p32", 8: None}[bits])
    np.testing.assert_array_equal(cta.tmem.cells[:, 200:208].copy().view(np.uint8), a << shift)
    scales = {}
    if kind == "mxf8f6f4":
        for lane in range(0, 128, 32):
            cta.tmem.write(lane, 300, np.full((32, 8), 0x7F7F7F7F, np.uint32), "test")  # ones
        scales = dict(sfa=300, sfb=304)
    d = idesc_bits(kind, 128, 16, name, "e4m3")
    execute(kind, 1, d, 0, 200, desc | 0x8000 >> 4, [cta], False, a_in_tmem=True, **scales)
    for i, j in ((0, 0), (5, 3), (127, 15), (64, 9)):
        terms = [times(decode(int(x), name), decode(int(y), "e4m3")) for x, y in zip(a[i], b[j])]
        assert cta.tmem.cells[i, j] == model(terms, 0, "f32", 25)
    if shift:
        cta.tmem.cells[3, 201] |= 1
        with pytest.raises(Unsupported, match="beside the element"):
            execute(kind, 1, d, 0, 200, desc | 0x8000 >> 4, [cta], False, a_in_tmem=True, **scales)


def test_ashift_moves_a_for_the_next_product():
    """D = A * B, and then A moves up a lane in every 32, so that the next product with it sees rows 1, 2, .. 31, 31."""
    rng, cta = np.random.default_rng(0), new_cta()
    a, b = rng.integers(-8, 9, (128, 16)).astype(np.float16), rng.integers(-8, 9, (16, 16)).astype(np.float16)
    cta.tmem.write(0, 200, a.view(np.uint32), "test")
    for r in range(16):
        for k in range(16):
            at = r // 8 * 128 + k // 8 * 4096 + (r % 8 * 8 + k % 8) * 2
            cta.smem[at : at + 2] = b[r : r + 1, k].view(np.uint8)
    desc, bits = 4096 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46, idesc_bits("f16", 128, 16, "f16", "f16")
    shifted = a[[r + 1 if r % 32 < 31 else r for r in range(128)]]
    for want, shift_a in ((a, True), (shifted, False), (shifted, False)):
        execute("f16", 1, bits, 0, 200, desc, [cta], False, a_in_tmem=True, shift_a=shift_a)
        np.testing.assert_array_equal(cta.tmem.cells[:, :16].view(np.float32), want.astype(np.float32) @ b.T)
    with pytest.raises(Fault, match="ashift"):
        bits = idesc_bits("f16", 64, 16, "f16", "f16")
        execute("f16", 1, bits, 0, 200, desc, [cta], False, a_in_tmem=True, shift_a=True)


def scaled_cta():
    """Scale factors of one in columns 400..507."""
    cta = new_cta()
    cta.tmem.write(0, 400, np.full((128, 108), 0x38383838, np.uint32), "test")
    return cta


@pytest.mark.parametrize("n", [64, 256])
def test_nvfp4_tile_of_128_rows_by_a_pair(n):
    """A 2x2 tile: scale factors of B lie in the half of the lanes whose columns of D they scale, as CUTLASS's
    experimental/primitives/tcgen05/2cta_mma_blockscale_m128.py puts them with tcgen05.cp.64x128b.warpx2::01_23."""
    rng = np.random.default_rng(n)
    a, b = rng.integers(0, 256, (128, 32), np.uint8), rng.integers(0, 256, (n, 32), np.uint8)
    sfa, sfb = (rng.choice(np.array([0x30, 0x38, 0x40], np.uint8), (rows, 4)) for rows in (128, n))
    ctas = [new_cta(), new_cta()]
    for rank, cta in enumerate(ctas):
        for base, tile in ((0x2000, a[64 * rank :][:64]), (0x8000, b[n // 2 * rank :][: n // 2])):
            for r, row in enumerate(tile):
                for chunk in range(2):
                    at = base + r // 8 * 128 + r % 8 * 16 + chunk * 4096
                    cta.smem[at : at + 16] = row[16 * chunk :][:16]
        cta.smem[:1024] = rng.integers(0, 256, 1024, np.uint8)
        for m in range(64):
            cta.smem[m % 32 * 16 + m // 32 * 4 :][:4] = sfa[64 * rank + m]
        cta.tmem.copy(cta.smem, 128 >> 4 << 32 | 1 << 46, "32x128b", "warpx4", 400)
        for i in range(n):
            half, i_half = divmod(i, n // 2)
            cta.smem[half * 512 + i_half % 32 * 16 + i_half // 32 * 4 :][:4] = sfb[i]
        cta.tmem.copy(cta.smem, 128 >> 4 << 32 | 1 << 46, "64x128b", "warpx2::01_23", 420)
    desc = 4096 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
    bits = idesc_bits("mxf4nvf4", 128, n)
    execute("mxf4nvf4", 2, bits, 0, desc | 0x200, desc | 0x800, ctas, False, False, 400, 420, 4)
    value = np.vectorize({0x30: 0.5, 0x38: 1.0, 0x40: 2.0}.get)
    expected = (unpack(a) * np.repeat(value(sfa), 16, 1)) @ (unpack(b) * np.repeat(value(sfb), 16, 1)).T
    for rank, cta in enumerate(ctas):
        for r in range(64):
            for c in range(n):
                lane, column = LAYOUTS[128, 2](r, c, n)
                assert cta.tmem.cells[lane, column].view(np.float32) == expected[64 * rank + r, c]


def test_instruction_descriptor_fields():
    # the word that CuTe DSL emits for a 128x128 mxf4nvf4 MMA
    d = instruction_descriptor.decode(0x08200480, "mxf4nvf4", 1, 4)
    assert (d.m, d.n, d.k, d.a_type.name, d.b_type.name, d.d_type.name) == (128, 128, 64, "e2m1", "e2m1", "f32")
    assert (d.scale_type.name, d.scale_vec, d.sfa_id, d.sfb_id, d.negate_a, d.negate_b) == (
        "ue4m3",
        4,
        0,
        0,
        False,
        False,
    )
    bits = idesc_bits("mxf8f6f4", 256, 48, "e3m2", "e5m2", negate_b=1, b_mn=0, a_mn=0, ids=(3, 1))
    d = instruction_descriptor.decode(bits, "mxf8f6f4", 2)
    assert (d.m, d.n, d.k, d.a_type.name, d.b_type.name, d.scale_type.name) == (256, 48, 32, "e3m2", "e5m2", "ue8m0")
    assert (d.scale_vec, d.sfa_id, d.sfb_id, d.negate_a, d.negate_b) == (1, 3, 1, False, True)
    d = instruction_descriptor.decode(idesc_bits("f16", 64, 8, "bf16", "bf16", a_mn=1), "f16", 1)
    assert (d.m, d.n, d.a_type.name, d.d_type.name, d.a_mn_major, d.b_mn_major) == (64, 8, "bf16", "f32", True, False)


def test_refusals():
    nvfp4 = idesc_bits("mxf4nvf4", 128, 128)
    faults = [
        ("mxf4nvf4", 1, nvfp4 | 1 << 15, 4),  # transpose
        ("mxf4nvf4", 1, nvfp4 | 1 << 29, 4),  # scale factor id 1 with 4X
        ("mxf4nvf4", 1, nvfp4 | 1 << 24, 4),
        ("mxf4nvf4", 1, nvfp4 | 1 << 6, 4),
        ("mxf4nvf4", 1, nvfp4 ^ 1 << 7 ^ 5 << 7, 4),  # E2M1 in the encoding of f8f6f4
        ("mxf4nvf4", 1, nvfp4, 2),
        ("mxf4nvf4", 1, nvfp4 | 1 << 23, None),  # scale_vec must be explicit
        ("mxf4", 1, nvfp4, 2),  # ue4m3
        ("mxf4nvf4", 1, idesc_bits("mxf4nvf4", 256, 128), 4),
        ("mxf4nvf4", 2, idesc_bits("mxf4nvf4", 256, 136), 4),
        ("mxf4nvf4", 1, idesc_bits("mxf4nvf4", 128, 0), 4),
        ("mxf4nvf4", 1, idesc_bits("mxf4nvf4", 128, 264), 4),
        ("f16", 1, idesc_bits("f16", 128, 64, "bf16", "bf16", d="f16"), None),
        ("f16", 1, idesc_bits("f16", 256, 64, "f16", "f16"), None),
        ("f16", 2, idesc_bits("f16", 64, 64, "f16", "f16"), None),
        ("f16", 1, idesc_bits("f16", 64, 64, "f16", "f16") | 1 << 30, None),
        ("f16", 1, idesc_bits("f16", 64, 64, "f16", "f16"), 4),
        ("f8f6f4", 1, idesc_bits("f8f6f4", 128, 64, "e2m3", "e4m3", a_mn=1), None),
        ("f8f6f4", 1, idesc_bits("f8f6f4", 128, 8, "e4m3", "e4m3", b_mn=1), None),
        ("tf32", 1, idesc_bits("tf32", 128, 64, "tf32", "f16"), None),
    ]
    for kind, cta_group, bits, scale_vec in faults:
        with pytest.raises(Fault, match="instruction-descriptor"):
            instruction_descriptor.decode(bits, kind, cta_group, scale_vec)
    unsupported = [
        ("mxf4nvf4", 1, nvfp4 | 1 << 31, 4),  # K = 96
        ("mxf4nvf4", 1, nvfp4 | 1 << 2, 4),  # sparse
        ("f4", 1, nvfp4, None),
    ]
    for kind, cta_group, bits, scale_vec in unsupported:
        with pytest.raises(Unsupported):
            instruction_descriptor.decode(bits, kind, cta_group, scale_vec)
    cta, f16, desc = new_cta(), idesc_bits("f16", 128, 64, "f16", "f16"), 128 >> 4 << 32 | 1 << 46
    with pytest.raises(Unsupported):  # the upper half of a 2x2 tile's N starts inside a column of scale factors
        bits = idesc_bits("mxf4nvf4", 128, 96)
        execute("mxf4nvf4", 2, bits, 0, desc, desc, [scaled_cta(), scaled_cta()], False, False, 400, 420, 4)
    with pytest.raises(Fault, match="tmem-uninitialised"):
        execute("f16", 1, f16, 0, desc, desc, [cta], True)
    with pytest.raises(Fault, match="tmem-lane-access"):
        execute("f16", 1, f16, 16 << 16, desc, desc, [cta], False)
