"""Products of packed FP4 with a scale factor for every 16 elements, as machine code for tensor memory: three loops.

units/mma.py says what is multiplied, and asks for it only where no bit can get lost (units/dot_add.py): then all that
is computed here is exact in float32, in whatever order. A CTA has 128 rows of D, and K is 64.
"""

from __future__ import annotations

import functools
import threading
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..formats import matrix_descriptor
from ..jit.llvm import compiler
from ..jit.loops import Function, Text, pointer
from ..state.tensor_memory import COLUMNS, TensorMemory

ROWS, K, MOST = 128, 64, 256  # MOST: columns of D
WIDE, TALL = 16, 8  # columns and rows of D that are computed together
SOME = 8  # rows of an operand that are decoded together
COLD = 250  # MMAs of a process before machine code pays
CHUNK, BLOCK = 16, 8  # bytes: what a swizzle leaves together, what one scale factor belongs to
FLOATS, BYTES = f"<{WIDE} x float>", f"<{WIDE} x i8>"
SOME_FLOATS, ALL_BYTES = f"<{SOME} x float>", f"<{SOME * CHUNK} x i8>"


PART = "rows first bytes chunks column values to by_k seen".split()  # of an operand, from one CTA's shared memory
PARTS = 3  # A, and B of both CTAs of a pair


def _decode() -> Function:
    """Parts of A and B, times their scale factors, as floats: element k of row r goes to k * by_k + r.

    Each byte of a part's `seen` whose number is that of a scale factor becomes 1. Returns 0 if a scale factor has not
    been written, or is not the same in all 32-lane partitions.
    """
    t = Text(" ".join(["parts cells written", *(f"{name}{i}" for i in range(PARTS) for name in PART)]))
    good, scales = t.variable("i8", "1"), t.variable(f"[4 x {SOME_FLOATS}]", "zeroinitializer")
    with t.loop(t["parts"]) as number:
        at = t.number("add", t.number("mul", number, len(PART)), 3)
        part = {name: t.load("i64", "%arguments", t.number("add", at, i)) for i, name in enumerate(PART)}
        bytes_at, chunks, values, to, seen = (
            t.let(f"inttoptr i64 {part[name]} to ptr") for name in ("bytes", "chunks", "values", "to", "seen")
        )
        with t.loop(part["rows"], SOME) as row:
            first = t.number("add", row, part["first"])
            factors = ["poison"] * 4
            for i in range(SOME):
                word = _scale_factors(t, t.number("add", first, i), part["column"], good)
                for block in range(4):
                    code = t.let(f"and i32 {t.let(f'lshr i32 {word}, {8 * block}')}, 255")
                    code = t.let(f"zext i32 {code} to i64")
                    t.store("i8", "1", seen, code)
                    one = f"float {t.load('float', values, code)}, i32 {i}"
                    factors[block] = t.let(f"insertelement {SOME_FLOATS} {factors[block]}, {one}")
            for block, all_rows in enumerate(factors):
                t.store(SOME_FLOATS, all_rows, scales, block)
            with t.loop(K // 2 // CHUNK) as half:  # of each row
                rows = []
                for i in range(SOME):
                    place = t.number("add", t.number("mul", t.number("add", row, i), K // 2 // CHUNK), half)
                    rows.append(t.load(f"<{CHUNK} x i8>", bytes_at, t.load("i64", chunks, place)))
                doubled = [_doubled(t, codes) for codes in _nibbles(t, _transposed(t, rows))]
                for byte in range(CHUNK):
                    block = t.number("add", t.number("mul", half, CHUNK // BLOCK), byte // BLOCK)
                    scale = t.load(SOME_FLOATS, scales, block)
                    for which, numbers in enumerate(doubled):
                        mask = ", ".join(f"i32 {byte * SOME + i}" for i in range(SOME))
                        few = f"shufflevector {ALL_BYTES} {numbers}, {ALL_BYTES} poison, <{SOME} x i32> <{mask}>"
                        value = t.let(f"sitofp <{SOME} x i8> {t.let(few)} to {SOME_FLOATS}")
                        value = t.let(f"fmul {SOME_FLOATS} {value}, splat (float 0.5)")
                        value = t.let(f"fmul {SOME_FLOATS} {value}, {scale}")
                        k = t.number("add", t.number("mul", half, 2 * CHUNK), 2 * byte + which)
                        place = t.number("add", t.number("mul", k, part["by_k"]), first)
                        t.store(SOME_FLOATS, value, to, place, "float")
    return Function(t, t.let(f"zext i8 {t.let(f'load i8, ptr {good}')} to i64"))


def _scale_factors(t: Text, row: str, column: str, good: str) -> str:
    """The four scale factors of a row, i32; `good` becomes 0 where they are not written or not replicated."""
    cell = t.number("add", t.number("mul", t.number("and", row, 31), COLUMNS), column)
    cell = t.number("add", cell, t.number("lshr", row, 5))
    word = t.load("i32", t["cells"], cell)
    for partition in range(4):
        there = t.number("add", cell, partition * 32 * COLUMNS)
        same = t.let(f"icmp eq i32 {t.load('i32', t['cells'], there)}, {word}")
        same = t.let(f"select i1 {same}, i8 {t.load('i8', t['written'], there)}, i8 0")
        t.change("i8", good, f"and i8 {{}}, {same}")
    return word


def _transposed(t: Text, rows: list[str]) -> str:
    """Chunks of SOME rows as one vector: byte 0 of each row, byte 1 of each row, and so on."""
    size = CHUNK
    while len(rows) > 1:  # rows i and i + len / 2 alternate: what is i's of the next round has every second row of i's
        mask = ", ".join(f"i32 {i // 2 + i % 2 * size}" for i in range(2 * size))
        kind, half = f"<{size} x i8>", len(rows) // 2
        rows = [
            t.let(f"shufflevector {kind} {a}, {kind} {b}, <{2 * size} x i32> <{mask}>")
            for a, b in zip(rows[:half], rows[half:], strict=True)
        ]
        size *= 2
    return rows[0]


def _nibbles(t: Text, codes: str) -> tuple[str, str]:
    """The lower halves of bytes, and the upper ones."""
    low = t.let(f"and {ALL_BYTES} {codes}, splat (i8 15)")
    return low, t.let(f"lshr {ALL_BYTES} {codes}, splat (i8 4)")


def _doubled(t: Text, codes: str) -> str:
    """Twice the E2M1 numbers of codes, as signed bytes: 0, 1, 2, 3, 4, 6, 8, 12, and their negatives from code 8 on."""
    subtract = f"@llvm.usub.sat.v{SOME * CHUNK}i8"
    t.declarations[subtract] = f"declare {ALL_BYTES} {subtract}({ALL_BYTES}, {ALL_BYTES})"
    size = t.let(f"and {ALL_BYTES} {codes}, splat (i8 7)")
    total = size
    for least in (4, 6, 6):
        more = t.let(f"call {ALL_BYTES} {subtract}({ALL_BYTES} {size}, {ALL_BYTES} splat (i8 {least}))")
        total = t.let(f"add {ALL_BYTES} {total}, {more}")
    negative = t.let(f"icmp ugt {ALL_BYTES} {codes}, splat (i8 7)")
    opposite = t.let(f"sub {ALL_BYTES} zeroinitializer, {total}")
    return t.let(f"select <{SOME * CHUNK} x i1> {negative}, {ALL_BYTES} {opposite}, {ALL_BYTES} {total}")


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
    """The accumulator at a column becomes A times B, given as [64, 128] and [64, n], to which it is added if `added` is
    1."""
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
                a = t.load("float", t["a"], t.number("add", t.number("mul", k, ROWS), t.number("add", first, i)))
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
    """Where a descriptor has this many rows. Raises Fault."""
    chunks, _, end = matrix_descriptor.located(desc, rows, K, False, 4)
    return Rows(chunks, pointer(chunks), end)


class Table(NamedTuple):
    """Scale factors by their codes, float32, and the address of those."""

    values: np.ndarray
    address: int

    @classmethod
    def of(cls, values: np.ndarray) -> Table:
        return cls(values, pointer(values))


class Place(NamedTuple):
    """Addresses of a CTA's shared memory, `smem`, and of its tensor memory's cells and of what says which are
    written."""

    smem: np.ndarray
    bytes: int
    cells: int
    written: int

    @classmethod
    def of(cls, smem: np.ndarray, tmem: TensorMemory) -> Place:
        found = _places.get(tmem)
        if found is None or found.smem is not smem:
            _places[tmem] = found = cls(smem, pointer(smem), pointer(tmem.cells), pointer(tmem.written))
        return found


_places: WeakKeyDictionary[TensorMemory, Place] = WeakKeyDictionary()


class Part(NamedTuple):
    """Rows of an operand in the shared memory of a CTA: how many, the number of the first; the addresses of that
    memory, of their chunks there, the column of their scale factors, and the address of those by their codes."""

    rows: int
    first: int
    bytes: int
    chunks: int
    column: int
    values: int


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
        self.seen = np.zeros(512, np.uint8)  # of A, of B
        self.largest, self.magic = np.zeros(WIDE, np.float32), np.zeros(1, np.float32)
        self.seen_at, self.largest_at, self.magic_at = map(pointer, (self.seen, self.largest, self.magic))
        self.lock = threading.Lock()

    def operands(self, a: Part, b: list[Part], place: Place, to: tuple[int, int], n: int) -> tuple[bytes, bytes] | None:
        """Decode A and B of a CTA; returns which codes the scale factors of each have, a byte for each, or None if
        those are not all written and the same in all partitions.

        b: B's rows that each CTA of the pair has. to: the addresses that elements go to. n: rows of B.
        """
        self.seen.fill(0)
        parts = *a, to[0], ROWS, self.seen_at
        for part in b:
            parts += *part, to[1], n, self.seen_at + 256
        parts += (0,) * (len(PART) * (PARTS - 1 - len(b)))
        if not self.decode(1 + len(b), place.cells, place.written, *parts):
            return None
        seen = self.seen.tobytes()
        return seen[:256], seen[256:]

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
