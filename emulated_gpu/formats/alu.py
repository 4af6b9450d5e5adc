"""Arithmetic on raw register bits (PTX ISA 9.7.1-9.7.9).

A register holds a Python int (the same value in every lane: unsigned bits; predicates are bools) or a NumPy array with
one unsigned element a lane. Every function here takes and returns such values, so a warp whose lanes agree costs no
more than one lane. Integer add, sub, logic and compare need no function: generated code writes `(a + b) & MASK`, which
means the same for both forms.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ..jit.llvm import Untranslated, Value, compiler, writer_of
from ..jit.rules import count_ones, where

U = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64, 128: object}
S = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
F = {16: np.float16, 32: np.float32, 64: np.float64}
MASK = {n: (1 << n) - 1 for n in (1, 2, 4, 8, 16, 32, 64, 128)}


def is_array(x) -> bool:
    return type(x) is np.ndarray


def arr(x, bits: int):
    """A register as an array of unsigned `bits`-wide elements (one element if uniform), or as a Value."""
    return np.array([x & MASK[bits]], U[bits]) if isinstance(x, int) else resize(x, bits)


def back(result: np.ndarray, *inputs):
    """Undo `arr`: a uniform int if every input was uniform."""
    return result if type(result) is Value or np.ndarray in map(type, inputs) else result[0].item()


# Each function has a fast form, which comes from its own text: called with Values, which stand for registers of machine
# code that is written (jit/llvm.py), operators and what is below write instructions. What is the same for all
# instructions of a form, as bits and sign, it takes as Python constants.
def resize(x, bits: int):
    """Truncate or zero-extend to a register of `bits`."""
    if type(x) is Value:
        return x.code.cast(x, bits)
    if type(x) is np.ndarray:
        return x if x.dtype == U[bits] else x.astype(U[bits])
    return x & MASK[bits]


def signed(x, bits: int):
    """Two's complement value: a Python int or an array of signed integers."""
    x = resize(x, bits)
    if type(x) is np.ndarray:
        return x.view(S[bits])
    return x - (1 << bits) if x >> (bits - 1) else x


def extend(x, bits: int, sign: bool, to: int):
    """A `bits`-wide integer as an unsigned `to`-bit pattern."""
    if type(x) is Value:
        return x.code.cast(resize(x, bits), to, sign)
    return resize(signed(x, bits) if sign else resize(x, bits), to)


def select(p, a, b, bits: int):
    """p ? a : b, lane by lane; an undefined (None) side counts as zero where it is not chosen."""
    if type(p) is Value:
        return where(p, p.code.cast(a, bits), p.code.cast(b, bits))
    if p is True:
        return a
    if p is False:
        return b
    return np.where(p, *(np.asarray(0 if v is None else resize(v, bits), U[bits]) for v in (a, b)))


def some(p) -> bool:
    """Whether a predicate, a bool or an array, holds anywhere."""
    if type(p) is Value:
        raise Untranslated("what is done if any lane does it")
    return p if isinstance(p, bool) else 1 in p.tobytes()  # an array's any() takes a microsecond and a half


# -- integers ----------------------------------------------------------------------------------------------------------
def negative(x, bits: int):
    return resize(x, bits) >> (bits - 1) != 0


def magnitude(x, bits: int, sign: bool = True):
    return select(negative(x, bits), resize(-x, bits), x, bits) if sign else resize(x, bits)


def extreme(is_max: bool, a, b, bits: int, sign: bool):
    """The larger or the smaller of two integers."""
    a, b, flip = resize(a, bits), resize(b, bits), sign << (bits - 1)
    return select((a ^ flip) < (b ^ flip), *((b, a) if is_max else (a, b)), bits)


min_int, max_int = (functools.partial(extreme, is_max) for is_max in (False, True))


def shifted(x, n, bits: int, left: bool):
    """A shift of which amounts beyond the register give zero (PTX 9.7.8.7: clamped, not masked)."""
    inside = resize(n & (bits - 1), bits)
    return select(n < bits, resize(x << inside if left else x >> inside, bits), 0, bits)


def popc(x, bits: int):
    return resize(count_ones(resize(x, bits)), 32)


def clz(x, bits: int):
    for n in (n for n in (1, 2, 4, 8, 16, 32) if n < bits):
        x = x | x >> n
    return bits - popc(x, bits)


def mul_wide(a, b, bits: int, sign: bool):
    return extend(a, bits, sign, 2 * bits) * extend(b, bits, sign, 2 * bits) & MASK[2 * bits]


def mul_hi(a, b, bits: int, sign: bool):
    return resize(mul_wide(a, b, bits, sign) >> bits, bits)


def mul24(a, b, sign: bool, hi: bool):
    product = mul_wide(resize(a << 8, 32), resize(b << 8, 32), 32, sign)
    return resize(product >> (32 if hi else 16), 32)


def div_int(a, b, bits: int, sign: bool, rem: bool = False):
    """All ones for a divisor of 0: what the hardware's division routine leaves (golden case int_div_by_zero)."""
    none = resize(b, bits) == 0
    x, y = magnitude(a, bits, sign), select(none, 1, magnitude(b, bits, sign), bits)
    out = x % y if rem else x // y
    if sign:
        minus = negative(a, bits) if rem else negative(a, bits) ^ negative(b, bits)
        out = select(minus, resize(-out, bits), out, bits)
    return select(none, MASK[bits], out, bits)


def saturated(x, bits: int, sign: bool, to: int, to_sign: bool):
    """An integer, clamped to what another type has."""
    wide = extend(x, bits, sign, 64)
    if sign:
        wide = max_int(wide, -(1 << (to - 1)) & MASK[64] if to_sign else 0, 64, True)
    return resize(min_int(wide, MASK[to] >> to_sign, 64, sign and to_sign) & MASK[to], max(to, 16))


def shr(a, b, bits: int, sign: bool):
    flip = resize(-(a >> (bits - 1)), bits) if sign else 0  # all bits of what is negative: zeros come in, then ones
    return shifted(a ^ flip, b, bits, False) ^ flip


def amount(n, wrap: bool):
    """Return how far a register of 32 bits is shifted."""
    return n & 31 if wrap else min_int(n, 32, 32, False)


def shf(lo, hi, n, left: bool, wrap: bool):
    pair, n = join(32, lo, hi), resize(amount(n, wrap), 64)
    return resize((pair << n) >> 32 if left else pair >> n, 32)


def bfe(a, pos, length, bits: int, sign: bool):
    """Shift the field up to the end of the register, then down; what would lie beyond the register is the sign."""
    p, n = pos & 0xFF, length & 0xFF
    up = bits - min_int(p + n, bits, 32, False)
    return select(n == 0, 0, shr(shifted(a, up, bits, True), up + p, bits, sign), bits)


def bfi(a, b, pos, length, bits: int):
    p, n = pos & 0xFF, length & 0xFF
    ones = shifted(resize(shifted(1, n, bits, True) - 1, bits), p, bits, True)
    return b ^ (b ^ shifted(a, p, bits, True)) & ones


def bmsk(a, n, wrap: bool):
    return bfi(MASK[32], 0, amount(a, wrap), amount(n, wrap), 32)


def lop3(a, b, c, lut: int):
    out = 0
    for k in range(8):
        if lut >> k & 1:
            term = (a if k & 4 else a ^ MASK[32]) & (b if k & 2 else b ^ MASK[32]) & (c if k & 1 else c ^ MASK[32])
            out = out | term
    return out


def bfind(x, bits: int, sign: bool, shiftamt: bool):
    before = clz(select(negative(x, bits), x ^ MASK[bits], x, bits) if sign else x, bits)
    return select(before == bits, MASK[32], before if shiftamt else bits - 1 - before, 32)


def szext(a, n, sign: bool, wrap: bool):
    """The low n bits of a, extended to 32."""
    return bfe(a, 0, amount(n, wrap), 32, sign)


def fns(mask, base, offset):
    """Position of the |offset|-th set bit of mask, counted from base upwards or (offset < 0) downwards."""
    down, far = negative(offset, 32), magnitude(offset, 32)
    start = select(down, 31 - min_int(base, 31, 32, False), base, 32)
    there = shifted(select(offset == 0, 1, MASK[32], 32), start, 32, True)
    left = select(down, brev(mask, 32), mask, 32) & there
    for k in range(1, 33):
        left = select(far > k, left & left - 1 & MASK[32], left, 32)
    above = clz(left & -left, 32)
    return select(left == 0, MASK[32], select(down, above, 31 - above, 32), 32)


def brev(x, bits: int):
    """Bits in the opposite order: neighbours change places, then pairs of them, ..."""
    x, n = resize(x, bits), 1
    while n < bits:
        low = MASK[bits] // ((1 << n) + 1)  # n ones, n zeros, and so on
        x, n = (x >> n & low) | resize((x & low) << n, bits), 2 * n
    return x


PICKS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543), "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333), "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210), "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}  # which bytes modes of prmt pick, by the lowest two bits of what selects  # fmt: skip


def prmt(a, b, sel, mode: str):
    """Four bytes of a pair; a digit of 8 or more picks the sign of a byte."""
    if mode:
        sel = resize(join(16, *PICKS[mode]) >> ((resize(sel, 64) & 3) << 4), 32)
    pair, out = join(32, a, b), 0
    for i in range(4):
        pick = sel >> 4 * i & 15
        byte = resize(pair >> resize((pick & 7) << 3, 64), 32) & 0xFF
        if type(pick) is not int or pick >= 8:
            byte = select(pick >= 8, select(byte >= 0x80, 0xFF, 0, 32), byte, 32)
        out = out | byte << 8 * i
    return out


def parts(x, bits: int, whole: int = 32) -> list:
    """Return the parts of a register, of this many bits each, the lowest first: `join` undoes it."""
    return [resize(resize(x, whole) >> n, bits) for n in range(0, whole, bits)]


def dp(a, b, c, signs: tuple[bool, bool], width: int, high: bool):
    """dp4a (width 8) and dp2a (width 16 by 8)."""
    for x, y in zip(parts(a, width), parts(b, 8)[2 * high :]):
        c = resize(c + resize(extend(x, width, signs[0], 32) * extend(y, 8, signs[1], 32), 32), 32)
    return c


VIDEO: dict[str, Callable] = {
    "add": operator.add,
    "sub": operator.sub,
    "absdiff": lambda x, y: magnitude(x - y, 32),
    "min": lambda x, y: min_int(x, y, 32, True),
    "max": lambda x, y: max_int(x, y, 32, True),
    "avrg": lambda x, y: shr(resize(x + y + (resize(~(x + y), 32) >> 31), 32), 1, 32, True),  # halves away from zero
}


def video(what: str, a, b, c, width: int, signs: tuple[bool, bool, bool], sat: bool, add: bool):
    """Of each `width` bits of a and b a result, in its place, or all added to c. signs: of the result, a, b."""
    out = []
    for x, y in zip(parts(a, width), parts(b, width), strict=True):
        each = resize(VIDEO[what](extend(x, width, signs[1], 32), extend(y, width, signs[2], 32)), 32)
        out.append(resize(saturated(each, 32, True, width, signs[0]), 32) if sat else each)
    return resize(sum(out, c), 32) if add else join(width, *out)


def sat_add(a, b, sub: bool):
    a, b = (extend(x, 32, True, 64) for x in (a, b))
    return saturated(a - b if sub else a + b, 64, True, 32, True)


def carry(a, b, c, bits: int, sub: bool = False):
    """(sum, carry out) of a + b + c, or (difference, borrow out) of a - b - c."""
    a, b, c = (resize(x, bits) for x in (a, b, c))
    part = resize(a - b if sub else a + b, bits)
    total = resize(part - c if sub else part + c, bits)
    return total, select((a < b) | (part < c) if sub else (part < a) | (total < part), 1, 0, 32)


# -- floats ------------------------------------------------------------------------------------------------------------
# Bits of a kind are arrays of one element where lanes agree, until `back`; numbers are arrays of NumPy's floats. Of
# machine code, both are Values.
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}
INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}  # the bits of the exponent too
ONE = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000, "f64": 0x3FF0000000000000}
WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
MANTISSA = {"f16": 10, "bf16": 7, "f32": 23}


def patterns(kind: str, ftz: bool, *values) -> list:
    """Registers of a kind as bits of one width; .ftz flushes subnormals."""
    code = writer_of(*values)
    each = [arr(v, WIDTH[kind]) if code is None else code.cast(v, WIDTH[kind]) for v in values]
    return [flush(x, kind) for x in each] if ftz else each


def number(x, kind: str, bits: int = 0):
    """The numbers that bits of a kind stand for, exactly, in the kind's own format (bf16: f32) or of this many bits."""
    own = 32 if kind == "bf16" else WIDTH[kind]
    x = extend(x, 16, False, 32) << 16 if kind == "bf16" else x
    return resized(x.code.convert("bitcast", x, x.bits, True) if type(x) is Value else x.view(F[own]), bits or own)


def operands(kind: str, bits: int, ftz: bool, *values) -> list:
    return [number(x, kind, bits) for x in patterns(kind, ftz, *values)]


def raw(v):
    """The bits of numbers."""
    return v.code.convert("bitcast", v, v.bits) if type(v) is Value else v.view(U[8 * v.itemsize])


def precision(v) -> int:
    return v.bits if type(v) is Value else 8 * v.itemsize


def resized(v, bits: int):
    """Numbers in another format; rounded to nearest."""
    if precision(v) == bits:
        return v
    if type(v) is not Value:
        return v.astype(F[bits])
    if 16 in (bits, v.bits) and not compiler().has_halves:
        raise Untranslated("conversions of f16 on this machine")
    return v.code.convert("fpext" if bits > v.bits else "fptrunc", v, bits, True)


def flush(bits, kind: str):
    """.ftz: bits of a subnormal become those of a zero of the same sign."""
    sign = 1 << (WIDTH[kind] - 1)
    return select(bits & INFINITY[kind] == 0, bits & sign, bits, WIDTH[kind])


def rarely(p, a, b, bits: int):
    """p ? a : b, where p hardly ever holds; a may be a function, which gives it."""
    if type(p) is not Value and not some(p):
        return b
    return select(p, a() if callable(a) else a, b, bits)


def moved(bits, rest, kind: str, mode: str):
    """Move bits of the nearest number by one where a mode rounds elsewhere. rest: the exact number less the nearest."""
    minus, even = bits >= 1 << (WIDTH[kind] - 1), bits & 1 == 0
    falls, rises = {"rm": (True, False), "rp": (False, True), "rz": (~minus, minus), "odd": (even, even)}[mode]
    falls, rises = (rest < 0) & falls, (rest > 0) & rises
    return rarely(falls | rises, lambda: select(rises ^ minus, bits + 1, bits - 1, WIDTH[kind]), bits, WIDTH[kind])


def odd(hi, lo):
    """hi + lo, of which hi is nearest, rounded to odd in its format: a second rounding, to a shorter one, is right then
    (Boldo, Melquiond)."""
    kind = f"f{precision(hi)}"
    return number(moved(raw(hi), lo, kind, "odd"), kind)


def nearest(v, kind: str):
    """Bits of a kind, to nearest; of a NaN anything. What has 16 bits is rounded to odd in float32 before."""
    near = resized(v, max(WIDTH[kind], 32))
    if WIDTH[kind] >= 32:
        return raw(near)
    if precision(v) == 64:
        near = odd(near, v - resized(near, 64))
    return raw(resized(near, 16)) if kind == "f16" else resize(shortened(raw(near), 16), 16)


def shortened(bits, less: int):
    """Bits of numbers without the last ones, to nearest, ties to even; a mantissa's carry adds to the exponent."""
    return bits + ((bits >> less & 1) + ((1 << (less - 1)) - 1)) >> less


def canonical(bits, kind: str):
    return rarely(bits & (MASK[WIDTH[kind]] >> 1) > INFINITY[kind], NAN[kind], bits, WIDTH[kind])


def finish(v, kind: str, mode: str, ftz: bool, sat: bool, relu: bool, *inputs, lo=None):
    """Numbers, and exact remainders `lo` of float64, as bits of a kind, rounded once; NaN becomes the canonical NaN.

    Clamped by .sat ([0, 1], NaN to 0) or .relu (NaN stays). Both turn -0 into +0 (silicon/golden/README.md).
    """
    width = WIDTH[kind]
    if lo is not None and kind != "f64":
        v, lo = odd(v, lo), None
    bits = nearest(v, kind)
    if mode != "rn":
        bits = moved(bits, v - number(bits, kind, precision(v)) if lo is None else lo, kind, mode)
    bits = flush(bits, kind) if ftz else bits
    bits = rarely(v != v, NAN[kind], bits, width)
    if sat:
        bits = select(bits > INFINITY[kind], 0, min_int(bits, ONE[kind], width, False), width)
    if relu:
        bits = select(bits >= 1 << (width - 1), 0, bits, width)
    return back(bits, *inputs)


def two_sum(a, b):
    """(a + b rounded to nearest, what the rounding lost: anything where that is not finite)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def exactly(near, f: Callable, *numbers):
    """(what is nearest to f of numbers, on which side of that it lies: -1, 0 or 1), by rationals where those are
    finite and f of them is one; else as `near` has it."""
    if writer_of(near) is not None:
        raise Untranslated("exact rationals: double precision rounded in another direction than to nearest")
    near, sides, each = near.copy(), np.zeros(near.shape), np.broadcast_arrays(near, *numbers)
    for at in np.flatnonzero(np.isfinite(each[1:]).all(0)).tolist():
        if exact := f(*(Fraction(v.flat[at].item()) for v in each[1:])):
            try:
                near.flat[at] = value = float(exact)
            except OverflowError:
                near.flat[at] = value = math.inf if exact > 0 else -math.inf
            sides.flat[at] = (exact > value) - (exact < value)  # Python compares floats and rationals exactly
    return near, sides


def fused(x, y, z):
    """x * y + z of numbers of 32 or 64 bits, rounded once, to their own format."""
    if (code := writer_of(x, y, z)) is not None:
        return code.intrinsic("fma", x, y, z)
    if precision(x) == 32:  # the product of two f32 is exact in f64
        x, y, z = (np.asarray(v, np.float64) for v in (x, y, z))
        s = x * y + z
        near = resized(s, 32)
        beyond = 2.0 * s - near  # the f32 on the other side of s, if that lies in the middle
        if some((resized(beyond, 32) == beyond) & (beyond != near)):
            near = resized(odd(*two_sum(x * y, z)), 32)
        return near
    return exactly(x * y + z, EXACT["fma"], x, y, z)[0]


NEAREST: dict[str, Callable] = {
    "add": operator.add, "mul": operator.mul, "div": operator.truediv, "fma": fused, "sqrt": lambda x: ieee("sqrt", x),
}  # fmt: skip
EXACT = NEAREST | {"fma": lambda x, y, z: x * y + z, "div": lambda n, d: n / d if d else None}  # of rationals


def arithmetic(what: str, kind: str, *values, mode="rn", ftz=False, sat=False, relu=False):
    """add, sub, mul, fma, div and sqrt, rounded once. Rounding downwards, a sum of zero is -0 unless both terms are +0
    (IEEE 754, 6.3). In float64 a product of what f32 has is exact; a quotient or root lies on the exact one's side of
    all that f32 has, and of what is halfway between (Figueroa): they differ by more than its last place."""
    bits = 32 if kind == "f32" and mode == "rn" else 64  # its own, if one operation rounds as it is asked for
    given = operands(kind, bits, ftz, *values)
    if what == "sub":
        what, given = "add", [given[0], -given[1]]
    in_two = what in ("add", "fma") and (WIDTH[kind] < bits or mode == "rm")
    if in_two:  # what is nearest in float64, and what that lost
        a, b = given if what == "add" else (given[0] * given[1], given[2])
        near, lo = two_sum(a, b)
    else:
        near, lo = NEAREST[what](*given), None
    if kind == "f64" and mode != "rn":
        if what == "sqrt":
            lo, _ = exactly(0.0 * near, lambda x, r: (x > r * r) - (x < r * r), *given, near)
        else:
            near, lo = exactly(near, EXACT[what], *given)
    if in_two and mode == "rm":
        near = where((near == 0) & (lo == 0) & ((raw(a) | raw(b)) >= 1 << 63), -0.0, near)
    return finish(near, kind, mode, ftz, sat, relu, *values, lo=lo)


def ieee(name: str, x):
    """A function that is rounded correctly everywhere, and which NumPy and LLVM call by the same name."""
    return x.code.intrinsic(name, x) if type(x) is Value else getattr(np, name)(x)


APPROXIMATE: dict[str, Callable] = {
    "rcp": lambda x: 1.0 / x, "sqrt": lambda x: ieee("sqrt", x), "rsqrt": lambda x: 1.0 / ieee("sqrt", x),
}  # fmt: skip
NEAR = 32  # of the last places of a double, within which two libraries agree on a function
LIBRARY = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}


def library(name: str, x, kind: str):
    """A function of float64. Machine code has it from the C library, which differs from NumPy's in the last places:
    where that could change the result of a kind, Python decides."""
    if type(x) is not Value:
        return getattr(np, name)(x)
    y = x.code.library(name, x)
    bits, less = raw(y), 52 - MANTISSA[kind]
    tie = (bits & ((1 << less) - 1)) - ((1 << (less - 1)) - NEAR)
    size = bits & ((1 << 63) - 1)
    smallest = 1023 - 14 if kind == "f16" else 1023 - 126  # exponents of normal numbers, and of half a subnormal one's
    short = (size < smallest << 52) & (size > smallest - MANTISSA[kind] - 2 << 52)
    x.code.bail_where((tie <= 2 * NEAR) | short)
    return y


def approx(name: str, kind: str, a, ftz=False):
    """.approx functions: the correctly rounded result. Hardware differs in the last places (PTX gives the bounds)."""
    (x,) = operands(kind, 64, ftz, a)
    y = APPROXIMATE[name](x) if name in APPROXIMATE else library(LIBRARY[name], x, kind)
    return finish(y, kind, "rn", ftz, False, False, a)


def approx_high(name: str, a):
    """rcp and rsqrt.approx.ftz.f64: of the high 32 bits of a, in the high 32 bits of the result, rounded to nearest."""
    (bits,) = patterns("f64", True, a)
    y = APPROXIMATE[name](number(bits >> 32 << 32, "f64"))
    return back(canonical(flush(shortened(raw(y), 32) << 32, "f64"), "f64"), a)


def fminmax(kind: str, *values, is_max: bool, ftz=False, nan=False, xorsign=False, absolute=False):
    width, ones = WIDTH[kind], MASK[WIDTH[kind]]
    given = patterns(kind, ftz, *values)

    def pick(a, b):
        x, y = (number(bits, kind, max(width, 32)) for bits in (a, b))
        lower = (x < y) | ((x == y) & (a > b))  # -0 < +0
        out = select(lower, *((b, a) if is_max else (a, b)), width)
        return rarely(x != x, a if nan else b, rarely(y != y, b if nan else a, out, width), width)

    out = functools.reduce(pick, [bits & ones >> 1 for bits in given] if absolute else given)
    if xorsign:
        out = out | (given[0] ^ given[1]) & 1 << (width - 1)
    return back(canonical(out, kind), *values)


def fneg(kind: str, a, ftz=False, absolute=False):
    """-a or |a|; a NaN becomes the canonical one, except in double precision (golden case f64_sign_class)."""
    bits, ones = resize(a, WIDTH[kind]), MASK[WIDTH[kind]]
    bits = flush(bits, kind) if ftz else bits
    bits = bits & ones >> 1 if absolute else bits ^ (ones >> 1) + 1
    return bits if kind == "f64" else canonical(bits, kind)


def fcompare(kind: str, op: str, a, b, ftz=False):
    x, y = operands(kind, max(WIDTH[kind], 32), ftz, a, b)
    unordered = (x != x) | (y != y)
    if op in ("num", "nan"):
        return back(unordered ^ (op == "num"), a, b)
    out = getattr(operator, op[:2])(x, y)
    return back(out | unordered if len(op) == 3 else out & ~unordered, a, b)


def halves(f, *values, bits: int = 16) -> tuple:
    """Apply f to the low halves, of this many bits, of registers, and to the high ones."""
    return tuple(map(f, *(parts(v, bits, 2 * bits) for v in values)))


def packed(f, *values, bits: int = 16):
    return join(bits, *halves(f, *values, bits=bits))


def join(bits: int, first, *more):
    """A register of parts of this many bits each, the first the lowest."""
    whole = bits * (1 + len(more))
    out = extend(first, bits, False, whole)
    for n, part in enumerate(more, 1):
        out = out | (extend(part, bits, False, whole) << bits * n)
    return out


def testp(kind: str, what: str, a):
    size, infinity = resize(a, WIDTH[kind]) & ((1 << (WIDTH[kind] - 1)) - 1), INFINITY[kind]
    tiny = (size != 0) & (size & infinity == 0)
    return {
        "finite": size < infinity,
        "infinite": size == infinity,
        "number": size <= infinity,
        "notanumber": size > infinity,
        "normal": (size < infinity) & (tiny ^ True),  # zero too: golden case f32_sign_class
        "subnormal": tiny,
    }[what]


BITS = WIDTH | {f"{sign}{bits}": bits for sign in "bsu" for bits in (16, 32, 64, 128)}


# -- atomics -----------------------------------------------------------------------------------------------------------
def combine(what: str, kind: str, old, *values, ftz: bool = False):
    """New content of cells of a type: what atom, red, st.async and the reductions of copies do (9.7.13.13).

    `values`: one operand, two of cas. On an H200, too: f16 and bf16 min and max take the number if one is a NaN.
    """
    if kind.endswith("x2"):
        return packed(functools.partial(combine, what, kind[:-2]), old, *values)
    bits, new = BITS[kind], values[0]
    if what == "cas":
        return select(old == (new & MASK[bits]), values[1] & MASK[bits], old, bits)
    if what in ("exch", "and", "or", "xor"):
        return {"exch": new, "and": old & new, "or": old | new, "xor": old ^ new}[what] & MASK[bits]
    if what == "inc":
        return select(old >= new, 0, old + 1, bits)
    if what == "dec":
        return select((old == 0) | (old > new), new, old - 1, bits)
    if what == "add":
        return arithmetic("add", kind, old, new, ftz=ftz) if kind in WIDTH else (old + new) & MASK[bits]
    if kind in WIDTH:
        return fminmax(kind, old, new, is_max=what == "max")
    return extreme(what == "max", old, new & MASK[bits], bits, kind[0] == "s")
