"""The number formats that tensor cores multiply: element codes to exact values.

Implements PTX ISA 5.2.3 (alternate floating-point formats) and the scale types of 9.7.16.10.7. Every value of every
format here is exact in float64. [read from PTX ISA] the formats; the sign bit of a UE4M3 scale factor "must be 0", and
[read from microsoft/MMA-Sim] hardware ignores it. [read from the OCP MX v1.0 specification] E2M1, E2M3, E3M2 have
neither infinities nor NaN; E8M0 has NaN = 0xFF and no zero. [run: constants of type fnv8E5M3FNU, CuTe DSL 4.8.1's
compiler] UE5M3, NV8E5M3 elsewhere: 0x01 is 2^-17, 0x78 is 1, 0xFE is 114688, 0xFF is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from .alu import number

# MMA-Sim's convention, mmasim/simulator/arithmetic.py: hardware gives a zero the exponent of the smallest normal float
ZERO_EXPONENT = -126
_NO_BIT = 10000  # lowest set bit of zero: it never limits anything


@dataclass(frozen=True)
class ElementType:
    """A floating-point format of at most 8 bits (`values` is its whole table), or a 16/32-bit one of numpy's own.

    `min_exponent` is the exponent of the smallest normal value: subnormals keep it, with a significand below 1.
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    min_exponent: int
    has_inf: bool = False

    @cached_property
    def values(self) -> np.ndarray:
        """float64 [2 ** bits], the value of every code."""
        assert self.bits <= 8
        if self.name == "ue8m0":
            table = np.ldexp(1.0, np.arange(256) - 127)
            table[255] = np.nan
            return table
        if self.exponent_bits == 0:  # integers
            codes, sign = np.arange(1 << self.bits, dtype=np.float64), 1 << (self.bits - 1)
            return np.where(codes >= sign, codes - 2 * sign, codes) if self.name[0] == "s" else codes
        code = np.arange(1 << self.bits)
        mantissa = (code & ((1 << self.mantissa_bits) - 1)).astype(np.float64)
        field = code >> self.mantissa_bits & ((1 << self.exponent_bits) - 1)
        significand = np.where(field == 0, mantissa, mantissa + (1 << self.mantissa_bits))
        table = np.ldexp(significand, np.maximum(field, 1) - 1 + self.min_exponent - self.mantissa_bits)
        top = field == (1 << self.exponent_bits) - 1
        if self.has_inf:
            table[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
        elif self.name in ("e4m3", "ue4m3", "ue5m3"):
            table[top & (mantissa == (1 << self.mantissa_bits) - 1)] = np.nan
        sign = code >> (self.exponent_bits + self.mantissa_bits) & 1
        return np.where(sign & (self.name != "ue4m3"), -table, table)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Codes (unsigned integers of the format's container) to float64."""
        if self.bits <= 8:
            return self.values.take(codes & ((1 << self.bits) - 1))
        if self.name == "tf32":  # an f32 whose 13 low bits the tensor core does not see
            return number(codes & np.uint32(0xFFFFE000), "f32", 64)
        return number(codes, self.name, 64)

    def exponents(self, values: np.ndarray, of_zero: int = ZERO_EXPONENT) -> np.ndarray:
        """Exponents of finite float64 values, int64: those of subnormals clamped."""
        return _exponents(self.min_exponent, of_zero).take(np.asarray(values, np.float64).view(np.int64) >> 52 & 0x7FF)

    @cached_property
    def exponent_table(self) -> np.ndarray:
        """int64 [2 ** bits]; entries of infinities and NaN mean nothing."""
        return self.exponents(np.nan_to_num(self.values, nan=0.0, posinf=0.0, neginf=0.0))

    @cached_property
    def lowest_bit_table(self) -> np.ndarray:
        """int64 [2 ** bits]; entries of infinities and NaN mean nothing."""
        return lowest_bits(np.nan_to_num(self.values, nan=0.0, posinf=0.0, neginf=0.0))


@lru_cache
def _exponents(least: int, of_zero: int) -> np.ndarray:
    """int64 [2 ** 11], by the field of a float64, of which none is subnormal."""
    return np.append(of_zero, np.maximum(np.arange(1, 2048) - 1023, least))


def lowest_bits(values: np.ndarray) -> np.ndarray:
    """The exponents of the lowest set bits of finite float64 values, int64: each value is a multiple of 2 ** that."""
    fraction, exponent = np.frexp(values)
    integer = (fraction * 2.0**53).astype(np.int64)
    lowest = (integer & -integer).astype(np.float64)
    return np.where(values == 0, _NO_BIT, np.frexp(lowest)[1] - 1 + exponent - 53)


E2M1 = ElementType("e2m1", 4, 2, 1, 0)
E2M3 = ElementType("e2m3", 6, 2, 3, 0)
E3M2 = ElementType("e3m2", 6, 3, 2, -2)
E4M3 = ElementType("e4m3", 8, 4, 3, -6)
E5M2 = ElementType("e5m2", 8, 5, 2, -14, has_inf=True)
UE4M3 = ElementType("ue4m3", 8, 4, 3, -6)
UE5M3 = ElementType("ue5m3", 8, 5, 3, -14)
UE8M0 = ElementType("ue8m0", 8, 8, 0, -127)
F16 = ElementType("f16", 16, 5, 10, -14, has_inf=True)
BF16 = ElementType("bf16", 16, 8, 7, -126, has_inf=True)
TF32 = ElementType("tf32", 32, 8, 10, -126, has_inf=True)
F32 = ElementType("f32", 32, 8, 23, -126, has_inf=True)
F64 = ElementType("f64", 64, 11, 52, -1022, has_inf=True)
# Integers: no exponent
U8 = ElementType("u8", 8, 0, 8, 0)
S8 = ElementType("s8", 8, 0, 7, 0)
S32 = ElementType("s32", 32, 0, 31, 0)
U4 = ElementType("u4", 4, 0, 4, 0)
S4 = ElementType("s4", 4, 0, 3, 0)
U1 = ElementType("b1", 1, 0, 1, 0)

# A 4- or 6-bit element alone in a byte, as in tensor memory, is shifted up by this many bits: 00xxxx00, 0xxxxxx0.
# The ISA has a figure only (9.7.16.10.4.3); in words: CUTLASS's cp_narrow_a_to_tmem_mma.py, see state/tensor_memory.py.
CONTAINER_SHIFT = {4: 2, 6: 1}


def unpack_slots(slots: np.ndarray, bits: int) -> np.ndarray:
    """Codes, uint8 [rows, K], of 4-bit or 6-bit elements of which every 16 bytes hold 16, packed and then padded.

    That is how f8f6f4 kinds find them in shared memory (ISA 9.7.16.10.4.4) and what tcgen05.cp expands (9.7.16.9.1).
    Low bits come first [inferred]. slots: uint8 [rows, K].
    """
    return unpack(slots.reshape(len(slots), -1, 16)[:, :, : 2 * bits].reshape(len(slots), -1), bits)


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Codes, uint8 [.., K], of elements that lie side by side, low bits first. packed: uint8 [.., K * bits / 8]."""
    if bits == 8:
        return packed
    digits = np.unpackbits(packed, axis=-1, bitorder="little").reshape(*packed.shape[:-1], -1, bits)
    return np.packbits(digits, axis=-1, bitorder="little")[..., 0]
