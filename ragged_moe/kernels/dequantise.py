"""Weights in e2m1 with scales of 16 of K, and how they become bf16 or f16 in the registers of wgmma's operand A.

A warpgroup has tiles of 64 weight rows x 64 of K. In one a thread has 16 bytes, a word of 8 weights for each 16 of K:
those of its four registers of A (ptx.wgmma_of_registers). The numbers of register i are in the word's lower and upper
half, where PLACES says: sign, and lowest of the other three bits. Shifted and masked these are the lowest exponent bits
and the highest mantissa bit of a bf16 (or f16), and so 2^-126 (2^-14) times the weight. Three shifts are of both sign
and magnitude, so that 8 weights take 11 instructions.

A scale is a byte, 5 bits of exponent and 3 of mantissa: a non-negative e4m3 with a wider exponent, so that none is
subnormal. It becomes 2^119 (2^7) times what it is; 0xff becomes a NaN. So a product is FACTOR times weight * scale. It
has at most 6 significant bits and is exact in either type.
"""

from itertools import chain, zip_longest

from cutlass import Int32

from ragged_moe.kernels.ptx import ptx, structure, unpack

PLACES = (15, 6), (12, 3), (14, 0), (13, 9)
FACTOR = 2.0**-7
NAN_SCALE = 0xFF
EXPONENT_OF_ONE = 22  # of a scale's byte
SIGNS = 0x80008000
AND_OR = 0xEA  # lop3's table of a & b | c

# What shifts and masks lead to: the lowest bit of a magnitude; of a scale's byte, its mask, and what is added
MAGNITUDE = {"bf16": 6, "f16": 9}
SCALE = {"bf16": (4, 0x0FF00FF0, 0x70007000), "f16": (7, 0x7F807F80, 0)}


def shift(to: str, source: str, left: int) -> str:
    """PTX that shifts by this many bits, to the right if negative."""
    return f"shl.b32 {to}, {source}, {left};" if left >= 0 else f"shr.u32 {to}, {source}, {-left};"


def scales_of(word: Int32, kind: str) -> list[tuple[Int32, int]]:
    """Return the scales of a row's four bytes: words, and which half of each."""
    left, mask, base = SCALE[kind]
    text = f"{shift('$0', '$2', left)} {shift('$1', '$2', left - 8)}"
    for i in range(2):
        text += f" lop3.b32 ${i}, ${i}, {mask}, {base}, {AND_OR};"
    pairs = unpack(ptx(text, "=&r,=&r,r", word, result=structure(2, "i32")), 2, Int32)
    return [(pairs[i % 2], i // 2) for i in range(4)]


def weights_of(
    word: Int32, upper: tuple[Int32, int], lower: tuple[Int32, int], kind: str, abreast: bool = False
) -> list[Int32]:
    """Return a step's registers of operand A. upper, lower: the scales of the thread's two rows, 8 apart.

    abreast: write the instructions of all registers in turn. ptxas orders them anyhow, the timing model does not.
    """
    text = "{ .reg .b16 h<4>; .reg .b32 x<4>, y<4>, s0, s1;"
    for i, (_, half) in enumerate((upper, lower)):  # one instruction multiplies by a half, twice
        text += f" mov.b32 {{h{2 * i}, h{2 * i + 1}}}, ${5 + i}; mov.b32 s{i}, {{h{2 * i + half}, h{2 * i + half}}};"
    registers = []
    for i, (sign, magnitude) in enumerate(PLACES):
        left, of_sign, x = MAGNITUDE[kind] - magnitude, 15 - sign, i * abreast
        mask = 7 << MAGNITUDE[kind]
        steps = [shift(f"x{x}", "$4", left)]
        if left == of_sign:
            steps += [f"and.b32 x{x}, x{x}, {SIGNS | mask * 0x10001};"]
        else:
            steps += [f"and.b32 x{x}, x{x}, {mask * 0x10001};", shift(f"y{x}", "$4", of_sign)]
            steps += [f"lop3.b32 x{x}, y{x}, {SIGNS}, x{x}, {AND_OR};"]
        registers.append([*steps, f"mul.rn.{kind}x2 ${i}, x{x}, s{i % 2};"])
    in_turn = zip_longest(*registers, fillvalue="") if abreast else registers
    text += " " + " ".join(chain.from_iterable(in_turn))
    operands = word, upper[0], lower[0]
    return unpack(ptx(text + " }", "=&r,=&r,=&r,=&r,r,r,r", *operands, result=structure(4, "i32")), 4, Int32)
