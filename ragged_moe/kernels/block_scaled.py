"""Operand formats of MMAs with block scales: `W4A4`, NVFP4 by NVFP4, and `W4A8`, MXFP4 weights by MXFP8 tokens.

A row of either operand takes 128 bytes of shared memory a stage, and a stage four MMAs, of 64 of K each (W4A4) or 32.
Weights of W4A8 have 4 bits in memory and a byte in the ring: 16 numbers lie in 8 bytes, behind which are 8 of nothing,
as TMA puts 16U4_ALIGN16B (b4x16_p64) and tcgen05.mma.kind::mxf8f6f4 reads it.
A quantised row is a record: its numbers, two a byte if they have 4 bits, the one of the lower column in the lower half;
then its scales, of which there are a multiple of 16. So whoever copies or addresses a row has both.
"""

from dataclasses import dataclass
from typing import ClassVar

from cutlass import Float32, Int32

from ragged_moe.kernels.ptx import (
    as_float,
    as_int,
    largest_magnitude,
    maximum,
    minimum,
    multiply_pairs,
    pack_e2m1,
    pack_e4m3,
    round_to_e4m3,
    select_float,
)

MMAS = 4  # of a stage
ATOM_SCALES = 4  # of a row in an atom of scales (tcgen05.cp)


@dataclass(frozen=True, repr=False)  # as a dataclass it may be used inside of the kernels' loops
class BlockScaled:
    """A format: what the kernels of its two instances differ in."""

    name: ClassVar[str]
    kind: ClassVar[str]  # of tcgen05.mma
    types: ClassVar[int]  # of A, the tokens, B, the weights, and scales in an instruction descriptor (9.7.16.4.2)
    block: ClassVar[int]  # K of a scale
    token_bits: ClassVar[int]
    of_all: ClassVar[bool]  # whether tokens have an f32 scale of all beside those of blocks
    biased: ClassVar[bool]  # whether epilogues can add a bias

    def __repr__(self) -> str:
        return self.name

    @property
    def stage_k(self) -> int:
        """K of a stage."""
        return 128 * 8 // self.token_bits

    @property
    def row_scales(self) -> int:
        """Scales of a row in a stage, a byte each."""
        return self.stage_k // self.block

    @property
    def atoms(self) -> int:
        """Atoms of the scales of 128 rows in a stage."""
        return self.row_scales // ATOM_SCALES

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight row of a stage in memory, which are those that a load counts."""
        return self.stage_k // 2

    def k_blocks(self, k):
        """Stages of k columns. k: of the host or of the kernel."""
        return (k + (self.stage_k - 1)) // self.stage_k

    def value_bytes(self, k):
        """Bytes of the numbers of a record of k columns, a multiple of 64."""
        return k * self.token_bits // 8

    def scale_bytes(self, k):
        """Bytes of its scales."""
        return (k + (16 * self.block - 1)) // (16 * self.block) * 16

    def record_bytes(self, k):
        """Bytes of a record."""
        return self.value_bytes(k) + self.scale_bytes(k)

    def scales_of(self, mma: int) -> tuple[int, int]:
        """Which atom of a stage has the scales of an MMA, and from which of its row's four on."""
        of_mma = self.row_scales // MMAS
        return mma * of_mma // ATOM_SCALES, mma * of_mma % ATOM_SCALES

    def quantised_block(self, x: list[Float32], of_all: Float32 | None) -> tuple[list[Int32], Int32]:
        """Return a block of values as words of numbers, and their scale's byte, in a word."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Nvfp4(BlockScaled):
    """e2m1 by e2m1, each with an e4m3 scale for 16 of K."""

    name, kind, block, token_bits, of_all, biased = "w4a4", "mxf4nvf4.block_scale.block16", 16, 4, True, False
    types = 1 << 10 | 1 << 7
    largest = 6.0  # of e2m1

    def quantised_block(self, x: list[Float32], of_all: Float32) -> tuple[list[Int32], Int32]:
        """Return 16 values as two words of e2m1, and their scale as e4m3, in a word.

        The scale is the largest absolute value / (6 * of_all), rounded; a value is multiplied by 1 / (scale * of_all)
        and rounded. It is NaN if a value is: e2m1 has none. ragged_moe.reference.quantise_fp4 does the same, bit by
        bit.
        """
        byte, scale = round_to_e4m3(largest_magnitude(x) / (of_all * Float32(self.largest)))
        factor = select_float(scale == 0.0, Float32(0.0), Float32(1.0) / (scale * of_all))
        values = multiply_pairs(x, [factor] * len(x))
        return [pack_e2m1(values[i : i + 8]) for i in (0, 8)], byte


@dataclass(frozen=True, repr=False)
class Mxfp4ByMxfp8(BlockScaled):
    """e2m1 by e4m3, each with an e8m0 scale for 32 of K."""

    name, kind, block, token_bits, of_all, biased = "w4a8", "mxf8f6f4.block_scale.block32", 32, 8, False, True
    types = 1 << 23 | 5 << 10
    largest_exponent, largest_fraction = 8, 0x600000  # of e4m3's 448, 1.75 * 2^8

    def quantised_block(self, x: list[Float32], _of_all: None = None) -> tuple[list[Int32], Int32]:
        """Return 32 values as eight words of e4m3, and their scale as e8m0, in a word.

        The scale is the least power of two, 2^-127 at least, by which no finite value is above 448; division by it is
        exact, and its quotient is rounded. NaN stays NaN, infinity becomes 448. ragged_moe.reference.quantise_mxfp8
        does the same, bit by bit.
        """
        most = minimum(as_int(largest_magnitude(x)), 0x7F800000)
        most = most + (0x7FFFFF - self.largest_fraction)  # carries if above 1.75
        byte = maximum((most >> 23) - self.largest_exponent, 0)
        factor = as_float((2 * 127 - byte) << 23)
        values = multiply_pairs(x, [factor] * len(x))
        return [pack_e4m3(values[i : i + 4]) for i in range(0, self.block, 4)], byte


W4A4, W4A8 = Nvfp4(), Mxfp4ByMxfp8()
