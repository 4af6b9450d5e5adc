"""Products of packed FP4 with a scale factor for every 16 elements, as machine code for tensor memory: three loops.

units/mma.py says what is multiplied, and asks for it only where no bit can get lost (units/dot_add.py): then all that
is computed here is exact in float32, in whatever order. A CTA has 128 rows of D, and K is 64.
"""

from __future__ import annotations

import functools
import threading

import numpy as np

from ..formats import matrix_descriptor
from ..formats.alu import fused
from ..formats.convert import whole_number
from ..jit.rules import Later, float32, int8, int32, int64, pointer, room, rule, where
from ..state.tensor_memory import COLUMNS

ROWS, K, MOST = 128, 64, 256  # MOST: columns of D
WIDE, TALL = 16, 8  # columns and rows of D that are computed together
SOME = 8  # rows of an operand that are decoded together
COLD = 250  # MMAs of a process before machine code pays
CHUNK, BLOCK = 16, 8  # bytes: what a swizzle leaves together, what one scale factor belongs to
PAIR, BLOCKS, PARTITIONS, SUMS = range(2), range(4), range(4), range(TALL)


@rule
def decode(cells, written, rows, number, memory, chunks, column, values, to, by_k, seen):
    """Rows of an operand, from this number on, times their scale factors, as floats: element k of row r goes to
    k * by_k + r of `to`. memory: a CTA's shared one, where their chunks are; column: of their scale factors' codes,
    which have these values.

    Each byte of `seen` whose number is that of a scale factor becomes 1. False if a scale factor has not been written,
    or is not the same in all 32-lane partitions.
    """
    good, scales, turned = True, room(len(BLOCKS) * SOME, float32), room(K // 2 * SOME, int8)
    for row in range(0, rows, SOME):
        first = row + number
        for i in range(SOME):
            cell = (first + i & 31) * COLUMNS + column + (first + i >> 5)
            word = int32(cells)[cell]
            for partition in PARTITIONS:
                there = cell + partition * 32 * COLUMNS
                good = (int32(cells)[there] == word) & (int8(written)[there] != 0) & good
            for block in BLOCKS:
                code = word >> 8 * block & 255
                int8(seen)[code] = 1
                scales[block * SOME + i] = float32(values)[code] * 0.5
            for half in PAIR:  # of a row
                chunk = memory + int64(chunks)[(row + i) * 2 + half] * CHUNK
                for byte in range(CHUNK):
                    turned[(half * CHUNK + byte) * SOME + i] = int8(chunk)[byte]
        for at in range(K // 2):
            here, block = at * SOME, at // BLOCK * SOME
            for which in PAIR:  # of a byte's two numbers, in its lower and in its upper half
                place = (2 * at + which) * by_k + first
                element = whole_number(doubled(turned[here : here + SOME] >> 4 * which & 15), 8, True, 32)
                float32(to)[place : place + SOME] = element * scales[block : block + SOME]
    return good


def doubled(code):
    """Twice E2M1 numbers, as signed bytes: 0, 1, 2, 3, 4, 6, 8, 12, and their negatives from code 8 on."""
    size = total = code & 7
    for least in (4, 6, 6):
        total = total + where(size > least, size - least, 0)
    return where(code > 7, -total, total)


@rule
def survey(cells, written, column, n, magic, largest):
    """The accumulator at a column, of n columns: the largest magnitude goes to `largest`. False unless all of it has
    been written and is left as it is by adding and subtracting `magic`."""
    shift, most, good = float32(magic)[0], np.zeros(WIDE, np.float32), np.ones(WIDE, bool)
    for row in range(ROWS):
        for at in range(0, n, WIDE):
            place = row * COLUMNS + column + at
            c = float32(cells)[place : place + WIDE]
            good = good & (int8(written)[place : place + WIDE] != 0) & ((c + shift) - shift == c)
            most = where(abs(c) > most, abs(c), most)
    float32(largest)[0:WIDE] = most
    return good.all()


@rule
def multiply(cells, written, column, n, added, a, b):
    """The accumulator at a column becomes A times B, given as [64, 128] and [64, n], to which it is added if `added` is
    1."""
    sums = room(TALL * WIDE, float32)
    for first in range(0, ROWS, TALL):
        for at in range(0, n, WIDE):
            corner = first * COLUMNS + column + at
            for i in SUMS:
                place, own = corner + i * COLUMNS, i * WIDE
                sums[own : own + WIDE] = where(added != 0, float32(cells)[place : place + WIDE], 0.0)
            for k in range(K):
                from_b = k * n + at
                row = float32(b)[from_b : from_b + WIDE]
                for i in SUMS:
                    own = i * WIDE
                    one = float32(a)[k * ROWS + first + i]
                    sums[own : own + WIDE] = fused(row, one, sums[own : own + WIDE])
            for i in SUMS:
                place, own = corner + i * COLUMNS, i * WIDE
                float32(cells)[place : place + WIDE] = sums[own : own + WIDE] + 0.0  # no -0
                int8(written)[place : place + WIDE] = 1


@functools.lru_cache(maxsize=8192)
def rows_of(desc: int, rows: int) -> tuple[np.ndarray, int, int]:
    """Where a descriptor has this many rows: the numbers of their 16-byte chunks in shared memory, int64 [rows, 2], the
    address of those, the end of the last one. Raises Fault."""
    chunks, _, end = matrix_descriptor.located(desc, rows, K, False, 4)
    return chunks, pointer(chunks), end


class Fp4Mma:
    """Holds the three loops and room for what they work on: operands as floats of the CTAs of a pair.

    `lock` is to be held from the first `decode` to the last `multiply` of an MMA.
    """

    def __init__(self):
        self.decode, self.survey, self.multiply = decode.compiled, survey.compiled, multiply.compiled
        self.room = np.zeros(2 * K * (ROWS + MOST) * 4 + 64, np.uint8)
        first = pointer(self.room) + -pointer(self.room) % 64
        self.a = [first + cta * K * ROWS * 4 for cta in range(2)]
        self.b = [first + 2 * K * ROWS * 4 + cta * K * MOST * 4 for cta in range(2)]
        self.seen = np.zeros(512, np.uint8)  # of A, of B
        self.largest, self.magic = np.zeros(WIDE, np.float32), np.zeros(1, np.float32)
        self.seen_at, self.largest_at, self.magic_at = map(pointer, (self.seen, self.largest, self.magic))
        self.lock = threading.Lock()

    def operands(self, place: tuple[int, int], cta: int, n: int, a: tuple, *b: tuple) -> tuple[bytes, bytes] | None:
        """Decode A and B of a CTA of the pair; returns which codes the scale factors of each have, a byte for each, or
        None if those are not all written and the same in all partitions.

        place: addresses of tensor memory's cells, and of what says which are written. n: rows of B. a, b: what `decode`
        takes behind that, up to `values`, of B for the rows that each CTA of the pair has.
        """
        self.seen.fill(0)
        parts = (*a, self.a[cta], ROWS, self.seen_at), *((*one, self.b[cta], n, self.seen_at + 256) for one in b)
        if not all(self.decode(*place, *part) for part in parts):
            return None
        seen = self.seen.tobytes()
        return seen[:256], seen[256:]

    def accumulator(self, place: tuple[int, int], column: int, n: int, q: int) -> float | None:
        """The largest magnitude of an accumulator of n columns, or None unless all of it has been written, and is
        multiples of 2 ** q, given that it is below 2 ** (q + 22)."""
        self.magic[0] = 1.5 * 2.0 ** (23 + q)
        if not self.survey(*place, column, n, self.magic_at, self.largest_at):
            return None
        return float(self.largest.max())


fp4_mma = Later(Fp4Mma, COLD)
