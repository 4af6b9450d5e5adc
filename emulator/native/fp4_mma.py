"""Products of packed FP4 with a scale factor for every 16 elements, as machine code for tensor memory: three loops.

units/mma.py says what is multiplied, and asks for it only where no bit can get lost (units/dot_add.py): then all that
is computed here is exact in float32, in whatever order. A CTA has 128 rows of D, and K is 64.
"""

from __future__ import annotations

import functools
import threading
from typing import NamedTuple

import numpy as np

from ..formats import matrix_descriptor
from ..state.tensor_memory import COLUMNS, TensorMemory
from .llvm import compiler
from .loops import Function, Text, pointer

ROWS, K, MOST = 128, 64, 256  # MOST: columns of D
WIDE, TALL = 16, 8  # columns and rows of D that are computed together
COLD = 250  # MMAs of a process before machine code pays
CHUNK, BLOCK = 16, 8  # bytes: what a swizzle leaves together, what one scale factor belongs to
FLOATS, BYTES = f"<{WIDE} x float>", f"<{WIDE} x i8>"


def _decode() -> Function:
    """Rows of A or B, times their scale factors, as floats: element k of a row goes to row * by_row + k * by_k.

    Each byte of `seen` whose number is that of a scale factor becomes 1. Returns 0 if a scale factor has not been
    written, or is not the same in all 32-lane partitions.
    """
    t = Text("rows first bytes chunks cells written column pairs values to by_row by_k seen")
    good = t.variable("i8", "1")
    with t.loop(t["rows"]) as i:
        row = t.number("add", i, t["first"])
        lane = t.number("mul", t.number("and", row, 31), COLUMNS)
        cell = t.number("add", t.number("add", lane, t["column"]), t.number("lshr", row, 5))
        word = t.load("i32", t["cells"], cell)
        for partition in range(4):
            there = t.number("add", cell, partition * 32 * COLUMNS)
            same = t.let(f"icmp eq i32 {t.load('i32', t['cells'], there)}, {word}")
            same = t.let(f"select i1 {same}, i8 {t.load('i8', t['written'], there)}, i8 0")
            t.change("i8", good, f"and i8 {{}}, {same}")
        to = t.number("mul", row, t["by_row"])
        for block in range(4):
            code = t.let(f"and i32 {t.let(f'lshr i32 {word}, {8 * block}')}, 255")
            code = t.let(f"zext i32 {code} to i64")
            t.store("i8", "1", t["seen"], code)
            scale = t.load("float", t["values"], code)
            chunk = t.load("i64", t["chunks"], t.number("add", t.number("mul", i, 2), block // 2))
            first = t.number("add", t.number("mul", chunk, CHUNK), block % 2 * BLOCK)
            for byte in range(BLOCK):
                codes = t.let(f"zext i8 {t.load('i8', t['bytes'], t.number('add', first, byte))} to i64")
                for half in range(2):
                    value = t.load("float", t["pairs"], t.number("add", t.number("mul", codes, 2), half))
                    k = 2 * (block * BLOCK + byte) + half
                    value = t.let(f"fmul float {value}, {scale}")
                    t.store("float", value, t["to"], t.number("add", to, t.number("mul", t["by_k"], k)))
    return Function(t, t.let(f"zext i8 {t.let(f'load i8, ptr {good}')} to i64"))


def _survey() -> Function:
    """The accumulator at a column, of n columns: the largest magnitude goes to `largest`. Returns 0 unless all of it
    has been written and is left as it is by adding and subtracting `magic`."""
    t = Text("cells written column n magic largest")
    written, same = t.variable(BYTES, "splat (i8 1)"), t.variable(f"<{WIDE} x i1>", "splat (i1 true)")
    most = t.variable(FLOATS, "zeroinitializer")
    one = t.load("float", t["magic"])
    one = t.let(f"insertelement {FLOATS} poison, float {one}, i32 0")
    magic = t.let(f"shufflevector {FLOATS} {one}, {FLOATS} poison, <{WIDE} x i32> zeroinitializer")
    t.declarations["fabs"] = f"declare {FLOATS} @llvm.fabs.v{WIDE}f32({FLOATS})"
    with t.loop(ROWS) as row, t.loop(t["n"], WIDE) as column:
        at = t.number("add", t.number("add", t.number("mul", row, COLUMNS), t["column"]), column)
        t.change(BYTES, written, f"and {BYTES} {{}}, {t.load(BYTES, t['written'], at, 'i8')}")
        c = t.load(FLOATS, t["cells"], at, "float")
        rounded = t.let(f"fsub {FLOATS} {t.let(f'fadd {FLOATS} {c}, {magic}')}, {magic}")
        kept = t.let(f"fcmp oeq {FLOATS} {rounded}, {c}")
        t.change(f"<{WIDE} x i1>", same, f"and <{WIDE} x i1> {{}}, {kept}")
        size = t.let(f"call {FLOATS} @llvm.fabs.v{WIDE}f32({FLOATS} {c})")
        old = t.let(f"load {FLOATS}, ptr {most}")
        above = t.let(f"fcmp ogt {FLOATS} {size}, {old}")
        t.emit(f"store {FLOATS} {t.let(f'select <{WIDE} x i1> {above}, {FLOATS} {size}, {FLOATS} {old}')}, ptr {most}")
    t.store(FLOATS, t.let(f"load {FLOATS}, ptr {most}"), t["largest"])
    all_written = t.let(f"icmp ne {BYTES} {t.let(f'load {BYTES}, ptr {written}')}, zeroinitializer")
    good = t.let(f"and <{WIDE} x i1> {all_written}, {t.let(f'load <{WIDE} x i1>, ptr {same}')}")
    good = t.let(f"icmp eq i{WIDE} {t.let(f'bitcast <{WIDE} x i1> {good} to i{WIDE}')}, -1")
    return Function(t, t.let(f"zext i1 {good} to i64"))


def _multiply() -> Function:
    """The accumulator at a column becomes A [128, 64] times B [64, n], to which it is added if `added` is 1."""
    t = Text("cells written column n added a b")
    multiply = f"@llvm.fmuladd.v{WIDE}f32"
    t.declarations[multiply] = f"declare {FLOATS} {multiply}({FLOATS}, {FLOATS}, {FLOATS})"
    added = t.let(f"trunc i64 {t['added']} to i1")
    sums = [t.variable(FLOATS, "zeroinitializer") for _ in range(TALL)]
    with t.loop(ROWS, TALL) as first, t.loop(t["n"], WIDE) as column:
        places = []
        for i, total in enumerate(sums):
            row = t.number("mul", t.number("add", first, i), COLUMNS)
            places.append(t.number("add", t.number("add", row, t["column"]), column))
            c = t.load(FLOATS, t["cells"], places[-1], "float")
            c = t.let(f"select i1 {added}, {FLOATS} {c}, {FLOATS} zeroinitializer")
            t.emit(f"store {FLOATS} {c}, ptr {total}")
        with t.loop(K) as k:
            b = t.load(FLOATS, t["b"], t.number("add", t.number("mul", k, t["n"]), column), "float")
            for i, total in enumerate(sums):
                a = t.load("float", t["a"], t.number("add", t.number("mul", t.number("add", first, i), K), k))
                a = t.let(f"insertelement {FLOATS} poison, float {a}, i32 0")
                a = t.let(f"shufflevector {FLOATS} {a}, {FLOATS} poison, <{WIDE} x i32> zeroinitializer")
                t.change(FLOATS, total, f"call {FLOATS} {multiply}({FLOATS} {a}, {FLOATS} {b}, {FLOATS} {{}})")
        for place, total in zip(places, sums, strict=True):
            positive = t.let(f"fadd {FLOATS} {t.let(f'load {FLOATS}, ptr {total}')}, zeroinitializer")  # no -0
            t.store(FLOATS, positive, t["cells"], place, "float")
            t.store(BYTES, "splat (i8 1)", t["written"], place, "i8")
    return Function(t, "0")


class Rows(NamedTuple):
    """The 16-byte chunks of rows of an operand in shared memory: their numbers, int64 [rows, 2], and the address of
    those; the end of the last one."""

    chunks: np.ndarray
    address: int
    end: int


@functools.lru_cache(maxsize=8192)
def rows_of(desc: int, rows: int) -> Rows:
    """Where a descriptor has so many rows. Raises Fault."""
    chunks, _, end = matrix_descriptor.located(desc, rows, K, False, 4)
    return Rows(chunks, pointer(chunks), end)


class Tables(NamedTuple):
    """Addresses of float32 tables: of the two elements of a byte, of scale factors; `kept` are those."""

    pairs: int
    values: int
    kept: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, pairs: np.ndarray, values: np.ndarray) -> Tables:
        return cls(pointer(pairs), pointer(values), (pairs, values))


class Place(NamedTuple):
    """Addresses of a CTA's shared memory, and of its tensor memory's cells and of what says which are written."""

    bytes: int
    cells: int
    written: int

    @classmethod
    def of(cls, smem: np.ndarray, tmem: TensorMemory) -> Place:
        return cls(pointer(smem), pointer(tmem.cells), pointer(tmem.written))


class Fp4Mma:
    """Holds the three loops and room for what they work on: operands as floats of the CTAs of a pair.

    `lock` is to be held from the first `decode` to the last `multiply` of an MMA.
    """

    def __init__(self):
        self.decode, self.survey, self.multiply = _decode(), _survey(), _multiply()
        self.room = np.zeros(2 * K * (ROWS + MOST) * 4 + 64, np.uint8)
        first = pointer(self.room) + -pointer(self.room) % 64
        self.a = [first + cta * K * ROWS * 4 for cta in range(2)]
        self.b = [first + 2 * K * ROWS * 4 + cta * K * MOST * 4 for cta in range(2)]
        self.seen = np.zeros(256, np.uint8)
        self.largest, self.magic = np.zeros(WIDE, np.float32), np.zeros(1, np.float32)
        self.seen_at, self.largest_at, self.magic_at = map(pointer, (self.seen, self.largest, self.magic))
        self.lock = threading.Lock()

    def operand(
        self, rows: int, chunks: int, parts: list[int], place: Place, column: int, tables: Tables, to: int, strides
    ) -> bytes | None:
        """Decode A or B of a CTA; returns which codes its scale factors have, a byte for each, or None if those are not
        all written and the same in all partitions.

        parts: the shared memory of the CTAs that have so many rows each; chunks: where there. column: of the scale
        factors. to, strides: the address that the elements go to, and by how many floats rows and columns are apart.
        """
        self.seen.fill(0)
        for i, smem in enumerate(parts):
            where = rows, i * rows, smem, chunks, place.cells, place.written, column
            if not self.decode(*where, tables.pairs, tables.values, to, *strides, self.seen_at):
                return None
        return self.seen.tobytes()

    def accumulator(self, place: Place, column: int, n: int, q: int) -> float | None:
        """The largest magnitude of an accumulator of n columns, or None unless all of it has been written, and is
        multiples of 2 ** q, given that it is below 2 ** (q + 22)."""
        self.magic[0] = 1.5 * 2.0 ** (23 + q)
        if not self.survey(place.cells, place.written, column, n, self.magic_at, self.largest_at):
            return None
        return float(self.largest.max())


_cold = COLD


def fp4_mma() -> Fp4Mma | None:
    """The process's loops; None for its first MMAs, and without llvmlite."""
    global _cold
    if _cold:
        _cold -= 1
        return None
    return _loops()


@functools.cache
def _loops() -> Fp4Mma | None:
    return Fp4Mma() if compiler() else None
