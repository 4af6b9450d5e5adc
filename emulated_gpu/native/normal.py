"""Normally distributed numbers by machine code: Philox 4x32-10, as CUDA's libraries draw with, then Box and Muller.

A number depends on the key and its place alone. Philox and its constants: Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3" (2011). What follows it is our own, as CUDA promises no bits of normal numbers.
"""

from __future__ import annotations

import functools

import numpy as np

from ..formats.alu import fused, mul_wide, number, raw, resize, root, shr
from ..formats.convert import whole_number
from ..jit.llvm import LANES, compiler
from ..jit.rules import Function, float32, pointer, rule, where

TURN = 4 * LANES  # numbers that a turn of the loop draws
ROUNDS = 10
MULTIPLIERS, KEY_STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
EVERY_LANE = np.arange(LANES, dtype=np.uint64)
VECTORS = (0, 1, 2, 3)


def _polynomial(function, degree: int, low: float, high: float, x):
    """A function in an interval, by the polynomial that agrees with it in Chebyshev's points."""
    fit = np.polynomial.Chebyshev.interpolate(function, degree, [low, high]).convert(kind=np.polynomial.Polynomial)
    value, *others = fit.coef[::-1].astype(np.float32)
    for c in others:
        value = fused(value, x, c)
    return value


def _words(block, keys) -> list:
    """Four random words for each lane: Philox of the number of its block."""
    words = [resize(block, 32), resize(block >> 32, 32), 0, 0]
    for k in range(ROUNDS):
        key = [resize(key + k * step, 32) for key, step in zip(keys, KEY_STEPS, strict=True)]
        products = [mul_wide(words[2 * i], MULTIPLIERS[i], 32, False) for i in range(2)]
        (high0, low0), (high1, low1) = ((resize(p >> 32, 32), resize(p, 32)) for p in products)
        words = [high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0]
    return words


def _logarithm(x):
    """The natural logarithm of positive numbers: that of a power of two, and of the rest, from 0.7 to 1.4."""
    bits = raw(x)
    exponent = shr(bits - int(np.float32(0.7).view(np.uint32)), 23, 32, True)
    y = number(bits - (exponent << 23), "f32") - 1.0
    ratio = _polynomial(lambda v: np.log1p(v) / v, 9, -0.3, 0.4, y)  # none of the points is 0
    return fused(whole_number(exponent, 32, True, 32), np.float32(np.log(2)), y * ratio)


def _pair(radius, angle) -> tuple:
    """Two normal numbers for each lane, from two random words."""
    u = fused(whole_number(radius, 32, False, 32), np.float32(2.0**-32), np.float32(2.0**-33))  # above 0, at most 1
    square = _logarithm(u) * -2.0
    r = root(where(square > 0.0, square, 0.0))  # a rounding may have made it negative
    v = whole_number(angle, 32, True, 32) * 2.0**-32  # in turns, from -0.5 to 0.5
    cosine = _polynomial(lambda z: np.cos(2 * np.pi * np.sqrt(z)), 8, 0, 0.25, v * v)
    sine = _polynomial(lambda z: 2 * np.pi * np.sinc(2 * np.sqrt(z)), 8, 0, 0.25, v * v)
    return r * cosine, r * (sine * v)


def _numbers(block, keys) -> tuple:
    words = _words(block, keys)
    return *_pair(*words[:2]), *_pair(*words[2:])


@rule
def draw_turns(to, first, count, key0, key1):
    """A block of Philox for each lane in each turn; its four numbers lie in four vectors."""
    for turn in range(count):
        numbers = _numbers((turn + first) * LANES + EVERY_LANE, (key0, key1))
        for k in VECTORS:
            place = turn * TURN + k * LANES
            float32(to)[place : place + LANES] = numbers[k]


@functools.cache
def _function() -> Function:
    return Function(draw_turns)


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
