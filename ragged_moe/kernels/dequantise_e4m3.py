"""Weights in e2m1 with powers of two as scales of 32 of K, and how they become e4m3 in registers: W4A8 on Hopper.

e2m1's magnitudes are 0 and seven normal numbers of e4m3, whose exponents a scale of 2^-5 to 2^6 moves and keeps normal:
so a product is exact in e4m3. A scale is the byte 8 * (its exponent + 5), which is added to each of the seven bytes
that the magnitudes have with a scale of 2^-5; zero's stays. These eight bytes are a table in two registers, from which
prmt takes four at once, each by four bits of a word of eight weights: the upper of these bits must be 0.

A word has the weights of a row that a thread needs for 32 of K, for two of its registers of wgmma's operand A
(ptx.wgmma_of_registers). PLACES says where: sign, and lowest of the other three bits.
"""

from cutlass import Int32

from ragged_moe.kernels.ptx import ptx, structure, unpack

LEAST_EXPONENT, LARGEST_EXPONENT = -5, 6  # of a scale
SPAN = LARGEST_EXPONENT - LEAST_EXPONENT
PLACES = tuple((8 * (i % 4) + (7 if i < 4 else 3), 4 * i) for i in range(8))
TABLE = 0x14100800, 0x24201C18  # e4m3 of 2^-5 times 0, 0.5, 1, 1.5 and 2, 3, 4, 6, the first one lowest
MAGNITUDES, SIGNS = 0x77777777, 0x80808080
AND_OR = 0xEA  # lop3's table of a & b | c


def table_of(scales: Int32, i: int) -> list[Int32]:
    """Return the table for the scale that is byte i of a word."""
    text = f"prmt.b32 $0, $2, 0, {0x1110 * i + 4:#x}; prmt.b32 $1, $2, 0, {0x1111 * i:#x};"
    text += f" add.u32 $0, $0, {TABLE[0]}; add.u32 $1, $1, {TABLE[1]};"
    return unpack(ptx(text, "=&r,=&r,r", scales, result=structure(2, "i32")), 2, Int32)


def weights_of(word: Int32, scales: Int32, i: int) -> list[Int32]:
    """Return a word's weights as two registers of e4m3. Their scale is byte i of `scales`."""
    text = "{ .reg .b32 m, h; and.b32 m, $2, " + f"{MAGNITUDES};"
    text += " prmt.b32 $0, $3, $4, m; shr.u32 m, m, 16; prmt.b32 $1, $3, $4, m; shl.b32 h, $2, 4;"
    text += f" lop3.b32 $0, $2, {SIGNS}, $0, {AND_OR}; lop3.b32 $1, h, {SIGNS}, $1, {AND_OR}; }}"
    operands = word, *table_of(scales, i)
    return unpack(ptx(text, "=&r,=&r,r,r,r", *operands, result=structure(2, "i32")), 2, Int32)
