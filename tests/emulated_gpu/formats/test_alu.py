"""Arithmetic on register bits where silicon/golden has few operands: directed double precision, zeros, bit fields."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from emulated_gpu.formats import alu, convert

RNG = np.random.default_rng(7)
SPECIAL = [0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1.0, 1 + 2**-52, 3.0, 1e-160, 1e160]
NUMBERS = [s * x for s in (1, -1) for x in (*SPECIAL, *np.ldexp(RNG.random(9), RNG.integers(-1000, 1000, 9)).tolist())]


def bits(values) -> np.ndarray:
    return np.array(values, np.float64).view(np.uint64)


def check(result: float, exact: Fraction, mode: str):
    """The result is the last number on its side of the exact value."""
    up = mode == "rp" or mode == "rz" and exact < 0
    other = math.nextafter(result, -math.inf if up else math.inf)
    if up:
        assert result >= exact > other, (result, exact)
    else:
        assert result <= exact < other, (result, exact)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "mul", "div", "fma", "sqrt"])
def test_directed_double_precision(name, mode):
    with np.errstate(all="ignore"):
        if name == "sqrt":
            roots = alu.arithmetic("sqrt", "f64", bits(NUMBERS), mode=mode).view(np.float64)
            for x, r in zip(NUMBERS, roots.tolist(), strict=True):
                if x > 0:
                    up = Fraction(math.nextafter(r, math.inf)) ** 2
                    down = Fraction(math.nextafter(r, 0.0)) ** 2
                    square = Fraction(r) ** 2
                    assert square >= x > down if mode == "rp" else square <= x < up
                else:
                    assert r == 0 if x == 0 else math.isnan(r)
            return
        x, y = (a.ravel() for a in np.meshgrid(NUMBERS, NUMBERS))
        z = np.roll(x, 5)
        operands = [bits(v) for v in ((x, y, z) if name == "fma" else (x, y))]
        results = alu.arithmetic(name, "f64", *operands, mode=mode).view(np.float64)
    for a, b, c, r in zip(*(v.tolist() for v in (x, y, z, results)), strict=True):
        if name == "div" and b == 0:
            assert math.isnan(r) if a == 0 else math.isinf(r)
            continue
        a, b, c = map(Fraction, (a, b, c))
        if name == "div":
            exact = a / b
        else:
            exact = {"add": a + b, "mul": a * b, "fma": a * b + c}[name]
        assert r == 0 if exact == 0 else True
        if exact:
            check(r, exact, mode)


@pytest.mark.parametrize("kind, one", [("f32", 0x3F800000), ("f16", 0x3C00), ("f64", 0x3FF0000000000000)])
def test_a_sum_of_zero_is_negative_only_when_rounded_down(kind, one):
    sign = 1 << (alu.WIDTH[kind] - 1)
    for mode in ("rn", "rz", "rm", "rp"):
        expected = sign if mode == "rm" else 0
        assert alu.arithmetic("add", kind, one, one | sign, mode=mode) == expected
        assert alu.arithmetic("sub", kind, one, one, mode=mode) == expected
        assert alu.arithmetic("add", kind, 0, sign, mode=mode) == expected
        assert alu.arithmetic("fma", kind, one, one, one | sign, mode=mode) == expected
        assert alu.arithmetic("fma", kind, 0, one, 0, mode=mode) == 0
        assert alu.arithmetic("fma", kind, sign, one, sign, mode=mode) == sign
        assert alu.arithmetic("mul", kind, sign, one, mode=mode) == sign
        assert alu.arithmetic("mul", kind, 0, one, mode=mode) == 0


@np.errstate(invalid="ignore")
def test_infinities_survive_directed_rounding():
    inf, one = 0x7FF0000000000000, 0x3FF0000000000000
    for mode in ("rn", "rz", "rm", "rp"):
        assert alu.arithmetic("fma", "f64", inf, one, one, mode=mode) == inf
        assert alu.arithmetic("div", "f64", one, inf, mode=mode) == 0
        assert alu.arithmetic("div", "f64", inf, one, mode=mode) == inf
        assert alu.arithmetic("div", "f32", 0x3F800000, 0x7F800000, mode=mode) == 0
        assert alu.arithmetic("sqrt", "f64", inf, mode=mode) == inf


def test_relu_keeps_nan_and_sat_does_not():
    assert convert.float_to_float(0x7FC00000, "f32", "f16", relu=True) == 0x7FFF
    assert convert.float_to_float(0x7FC00000, "f32", "f16", sat=True) == 0
    assert convert.float_to_float(0x80000000, "f32", "bf16", relu=True) == 0
    assert alu.arithmetic("fma", "f16", 0x8000, 0x3C00, 0x8000, relu=True) == 0


@pytest.mark.parametrize("value, to, bits_to", [(0x3F800001, "bf16", 16), (0x00000001, "f16", 16)])
def test_uniform_values_and_arrays_agree(value, to, bits_to):
    """A register that is the same in all lanes is an int: the same function gives the same bits."""
    for options in ({}, {"mode": "rp"}, {"ftz": True}, {"sat": True}, {"relu": True}):
        one = convert.float_to_float(value, "f32", to, **options)
        assert convert.float_to_float(np.full(3, value, np.uint32), "f32", to, **options).tolist() == [one] * 3


@pytest.mark.parametrize(
    "a, n, sign, wrap, expected",
    [
        (0xFFFF_FF85, 8, True, False, 0xFFFF_FF85), (0x0000_0085, 8, True, False, 0xFFFF_FF85),
        (0xFFFF_FF85, 8, False, False, 0x85), (0xFFFF_FFFF, 0, True, False, 0),
        (0x8000_0001, 32, True, False, 0x8000_0001), (0x8000_0001, 99, False, False, 0x8000_0001),
        (0x8000_0001, 32, False, True, 0), (0x8000_0003, 33, True, True, 0xFFFF_FFFF),
    ],
)  # fmt: skip
def test_szext(a, n, sign, wrap, expected):
    assert alu.szext(a, n, sign, wrap) == expected
    lanes = alu.szext(np.full(2, a, np.uint32), n, sign, wrap)  # one value for both, where n is 0
    assert np.broadcast_to(lanes, 2).tolist() == [expected] * 2


@pytest.mark.parametrize(
    "mask, base, offset, expected",
    [
        (0b101100, 0, 1, 2), (0b101100, 3, 1, 3), (0b101100, 3, 2, 5), (0b101100, 4, -1, 3), (0b101100, 5, -3, 2),
        (0b101100, 5, -4, 0xFFFFFFFF), (0b101100, 0, 4, 0xFFFFFFFF), (0b101100, 2, 0, 2), (0b101100, 1, 0, 0xFFFFFFFF),
    ],
)  # fmt: skip
def test_fns(mask, base, offset, expected):
    assert alu.fns(mask, base, offset & 0xFFFFFFFF) == expected


def test_cvt_pack_clamps_and_shifts():
    minus = 0x1_0000_0000
    assert convert.pack_saturated(70000, minus - 5, 0, 16, False) == 0xFFFF0000
    assert convert.pack_saturated(70000, minus - 5, 0, 16, True) == 0x7FFFFFFB
    assert convert.pack_saturated(300, minus - 300, 0xABCDEF12, 8, True) == 0xEF127F80
    assert convert.pack_saturated(np.array([9, 1], np.uint32), 3, 5, 2, True).tolist() == [0x55, 0x55]


VIDEO = {  # PTX ISA 9.7.20, "SIMD video instructions"
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "absdiff": lambda a, b: abs(a - b), "min": min, "max": max,
    "avrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}  # fmt: skip


@pytest.mark.parametrize("what", VIDEO)
def test_video_instructions(what):
    a, b, c = np.random.default_rng(len(what)).integers(0, 1 << 32, (3, 64), dtype=np.uint32)
    for width, signs, how in itertools.product((8, 16), itertools.product((0, 1), repeat=3), ("", "sat", "add")):
        found = alu.video(what, a, b, c, width, tuple(map(bool, signs)), how == "sat", how == "add")
        ones = (1 << width) - 1
        for x, y, z, d in zip(a.tolist(), b.tolist(), c.tolist(), found.tolist(), strict=True):
            wanted = z if how == "add" else 0
            for i in range(0, 32, width):
                parts = [(v >> i & ones, s) for v, s in zip((x, y), signs[1:], strict=True)]
                each = VIDEO[what](*(p - (p >> width - 1 << width) * s for p, s in parts))
                if how == "sat":
                    each = min(max(each, -signs[0] << width - 1), (1 << width - signs[0]) - 1)
                wanted += each if how == "add" else (each & ones) << i
            assert d == wanted & 0xFFFFFFFF


@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_scale_factors_are_powers_of_two(mode):
    """Of f32 and bf16 (PTX ISA 9.7.9.21), the next one down or up of those that E8M0 has (OCP MX, 5.4.1)."""
    powers = 2.0 ** (np.arange(255) - 127.0)
    short = np.array([2.0**e * m for e in range(-133, 128) for m in (1, 1.25, 1.9921875)] + [0, np.inf], np.float32)
    values = np.concatenate([short, 2.0 ** np.arange(-149, -133), short[100:700] * np.float32(1 + 2**-23)])
    values = values.astype(np.float32)
    side, less = ("right", 1) if mode == "rz" else ("left", 0)
    wanted = np.clip(np.searchsorted(powers, values.astype(np.float64), side) - less, 0, 254)
    assert (convert.pack_small("ue8m0", -values.view(np.uint32), 0x7FC00000, "f32", mode, False) & 0xFF == 0xFF).all()
    assert (convert.pack_small("ue8m0", values.view(np.uint32), 0, "f32", mode, False) == wanted << 8).all()
    halves = (short.view(np.uint32) >> 16).astype(np.uint16)
    assert (convert.pack_small("ue8m0", 0, halves, "bf16", mode, False) == wanted[: len(short)]).all()
    codes = convert.unpack_ue8m0(wanted.astype(np.uint16))
    assert ((codes << 16).view(np.float32) == powers[wanted]).all()
