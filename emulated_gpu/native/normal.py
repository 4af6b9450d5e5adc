"""Normally distributed numbers by machine code: Philox 4x32-10, as CUDA's libraries draw with, then Box and Muller.

A number depends on the key and its place alone. Philox and its constants: Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3" (2011). What follows it is our own, as CUDA promises no bits of normal numbers.
"""

from __future__ import annotations

import functools

import numpy as np

from ..jit.llvm import LANES, Value, compiler
from ..jit.loops import Function, Text, pointer

TURN = 4 * LANES  # numbers that a turn of the loop draws
ROUNDS = 10
MULTIPLIERS, KEY_STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def _real(t: Text, value: float) -> Value:
    return t.real(np.float32(value), 32, True)


def _number(t: Text, how: str, bits: Value) -> Value:
    """Integers as float32, the nearest: by `uitofp` or `sitofp`."""
    return t.value(f"{how} {bits} to <{LANES} x float>", 32, True, True)


def _polynomial(t: Text, function, degree: int, low: float, high: float, x: Value) -> Value:
    """A function in an interval, by the polynomial that agrees with it in Chebyshev's points."""
    fit = np.polynomial.Chebyshev.interpolate(function, degree, [low, high]).convert(kind=np.polynomial.Polynomial)
    first, *others = fit.coef[::-1]
    value = _real(t, first)
    for c in others:
        value = t.intrinsic("fma", value, x, _real(t, c))
    return value


def _words(t: Text, turn: str) -> list[Value]:
    """Four random words for each lane: Philox of the number of its block."""
    lanes = Value(f"<{', '.join(f'i64 {k}' for k in range(LANES))}>", 64, True)
    block = t.binary("add", t.spread(t.binary("mul", Value(turn, 64, False), LANES)), lanes)
    words = [t.cast(block, 32), t.cast(t.shift("lshr", block, 32), 32), *[t.constant(0, 32, True)] * 2]
    keys = [Value(t[name], 64, False) for name in ("key0", "key1")]
    for k in range(ROUNDS):
        key = [t.cast(t.binary("add", key, k * step), 32) for key, step in zip(keys, KEY_STEPS, strict=True)]
        (high0, low0), (high1, low1) = (
            (t.cast(t.shift("lshr", product, 32), 32), t.cast(product, 32))
            for product in (t.binary("mul", t.cast(words[2 * i], 64), MULTIPLIERS[i]) for i in range(2))
        )
        first = t.binary("xor", t.binary("xor", high1, words[1]), key[0])
        second = t.binary("xor", t.binary("xor", high0, words[3]), key[1])
        words = [first, low1, second, low0]
    return words


def _logarithm(t: Text, x: Value) -> Value:
    """The natural logarithm of positive numbers: that of a power of two, and of the rest, from 0.7 to 1.4."""
    bits = t.as_bits(x)
    exponent = t.shift("ashr", t.binary("sub", bits, int(np.float32(0.7).view(np.uint32))), 23)
    rest = t.as_real(t.binary("sub", bits, t.shift("shl", exponent, 23)))
    y = t.binary("fadd", rest, _real(t, -1))
    ratio = _polynomial(t, lambda v: np.log1p(v) / v, 9, -0.3, 0.4, y)  # none of the points is 0
    return t.intrinsic("fma", _number(t, "sitofp", exponent), _real(t, np.log(2)), t.binary("fmul", ratio, y))


def _pair(t: Text, radius: Value, angle: Value) -> tuple[Value, Value]:
    """Two normal numbers for each lane, from two random words."""
    u = _number(t, "uitofp", radius)
    u = t.intrinsic("fma", u, _real(t, 2.0**-32), _real(t, 2.0**-33))  # above 0, at most 1
    square = t.binary("fmul", _logarithm(t, u), _real(t, -2))
    r = t.intrinsic("sqrt", t.intrinsic("maxnum", square, _real(t, 0)))  # a rounding may have made it negative
    v = t.binary("fmul", _number(t, "sitofp", angle), _real(t, 2.0**-32))  # in turns, from -0.5 to 0.5
    v2 = t.binary("fmul", v, v)
    cosine = _polynomial(t, lambda z: np.cos(2 * np.pi * np.sqrt(z)), 8, 0, 0.25, v2)
    sine = _polynomial(t, lambda z: 2 * np.pi * np.sinc(2 * np.sqrt(z)), 8, 0, 0.25, v2)
    return t.binary("fmul", r, cosine), t.binary("fmul", r, t.binary("fmul", sine, v))


@functools.cache
def _function() -> Function:
    t = Text("to first count key0 key1")
    with t.loop(t["count"]) as turn:
        words = _words(t, t.number("add", turn, t["first"]))
        for k, numbers in enumerate([*_pair(t, *words[:2]), *_pair(t, *words[2:])]):
            place = t.number("add", t.number("mul", turn, TURN), k * LANES)
            t.store(numbers.type, numbers.text, t["to"], place, "float")
    return Function(t, "0")


def served() -> bool:
    """Whether LLVM is there."""
    return compiler() is not None


def draw(out: np.ndarray, key: int, first: int = 0) -> None:
    """Write the numbers from `first` on, a multiple of TURN, that belong to a key of 64 bits to float32 [n]."""
    turn, keys = first // TURN, (key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF)
    turns, rest = divmod(len(out), TURN)
    if turns:
        _function()(pointer(out), turn, turns, *keys)
    if rest:
        last = np.empty(TURN, np.float32)
        _function()(pointer(last), turn + turns, 1, *keys)
        out[-rest:] = last[:rest]
