"""Quantises tokens to e4m3 with one f32 scale each, which makes the largest of a token 448: of W4A8 on Hopper."""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ragged_moe.kernels.epilogue.swiglu_fp8 import inverse
from ragged_moe.kernels.host import words_and_launch
from ragged_moe.kernels.ptx import (
    as_float,
    as_int,
    follow_previous_kernel,
    load_global_words,
    load_relaxed,
    load_shared,
    maximum,
    minimum,
    pack_e4m3,
    select,
    store_global_pair,
    store_global_word,
    store_shared,
)
from ragged_moe.runtime.sizes import LARGEST

MAX_WARPS = 32
SM_WARPS, SM_CTAS = 64, 32  # that an SM has at once
WORDS = 10
COLUMNS = 8  # that a thread loads at once, 16 bytes
TOGETHER = 2  # loads of a thread, all under way at once: with 3 it would need more than 32 registers
OF_WARP = 32 * COLUMNS * TOGETHER  # columns that a warp holds
INFINITY, NAN = 0x7F800000, 0x7FC00000


@dataclass(frozen=True)
class QuantiseTokens:
    """The kernel writes values[r] = x[r] * (448 / largest) and scales[r] = largest / 448 of each row r, a CTA a row.

    counted: only of rows r < m_indptr[E]. gathered: of x[rows[r]], not of x[r]. warps: of a CTA, `warps_of(K)`; a row
    stays in their registers from finding its largest on, but for columns beyond 16384, which are loaded twice.
    Its words: addresses of x bf16 [T, K], m_indptr int32 [E + 1], rows int32 [total_m], values e4m3 [total_m, K],
    scales f32 [total_m]; total_m; K, a multiple of 8; E; CTAs; CUDA stream.
    ragged_moe.reference.quantise_tokens does the same, bit by bit.
    """

    counted: bool = False
    gathered: bool = False
    warps: int = 1

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words, launch = words_and_launch(host, WORDS)
        *sizes, grid = [Int32(word) for word in words[5:]]
        launch(self.kernel(*words[:5], *sizes), grid, 32 * self.warps, smem=2 * 4 * MAX_WARPS)

    @cute.kernel
    def kernel(
        self, x: Int64, m_indptr: Int64, rows: Int64, values: Int64, scales: Int64, total_m: Int32, k: Int32,
        experts: Int32,
    ):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        of_warps = cute.arch.get_dyn_smem(cutlass.Int8, 8 * MAX_WARPS).toint()  # [2, warps]: of a row, of the next
        follow_previous_kernel()
        used = load_relaxed(m_indptr + Int64(experts) * 4) if const_expr(self.counted) else total_m
        for row in cutlass.range(block, used, grid, unroll=1):
            token = load_relaxed(rows + Int64(row) * 4) if const_expr(self.gathered) else row
            source, to = x + Int64(token) * Int64(k) * 2, values + Int64(row) * Int64(k)
            self.quantise(source, to, scales + Int64(row) * 4, k, thread, of_warps)
            of_warps = of_warps ^ (4 * MAX_WARPS)

    @cute.jit
    def quantise(self, x: Int64, values: Int64, scale: Int64, k: Int32, thread: Int32, of_warps: Int32):
        """As a CTA, quantise the token at x."""
        step, lane = self.warps * OF_WARP, thread & 31
        held = self.loaded(x, thread * COLUMNS, k)
        most = largest(Int32(0), held)  # bits of a magnitude: as floats without a sign compare, and NaN is above all
        for first in cutlass.range(step + thread * COLUMNS, k, step, unroll=1):
            most = largest(most, self.loaded(x, first, k))
        store_shared(of_warps + (thread >> 5) * 4, of_all_lanes(most))
        cute.arch.sync_threads()
        most = of_all_lanes(load_shared(of_warps + 4 * minimum(lane, self.warps - 1)))
        factor = inverse(as_float(minimum(most, INFINITY)))
        self.store(values, held, factor)
        for first in cutlass.range(step + thread * COLUMNS, k, step, unroll=1):
            self.store(values, self.loaded(x, first, k), factor)
        of_token = as_int(as_float(most) * Float32(1 / LARGEST))
        of_token = select(most >= INFINITY, Int32(NAN), of_token)
        store_global_word(scale, of_token, select(thread == 0, 1, 0))

    def loaded(self, x: Int64, first: Int32, k: Int32) -> list[tuple[list[Int32], Int32, Int32]]:
        """Return the words of TOGETHER loads, the column of each, and whether there is such a column."""
        columns = [first + 32 * self.warps * COLUMNS * i for i in range(TOGETHER)]
        inside = [select(column < k, 1, 0) for column in columns]
        words = [load_global_words(x + Int64(column) * 2, wanted) for column, wanted in zip(columns, inside)]
        return [*zip(words, columns, inside)]

    def store(self, values: Int64, of: list[tuple[list[Int32], Int32, Int32]], factor: Float32) -> None:
        """Store what was `loaded`, times this factor."""
        for words, column, inside in of:
            own = [as_float(half) * factor for word in words for half in halves(word)]
            store_global_pair(values + Int64(column), [pack_e4m3(own[:4]), pack_e4m3(own[4:])], inside)


def halves(word: Int32) -> tuple[Int32, Int32]:
    """Bits as f32 of the two bf16 of a word."""
    return word << 16, word & -65536


def largest(most: Int32, of: list[tuple[list[Int32], Int32, Int32]]) -> Int32:
    """The largest magnitude's bits of most and of what was `loaded`."""
    for words, _, _ in of:
        for word in words:
            for half in halves(word):
                most = maximum(most, half & 0x7FFFFFFF)
    return most


def of_all_lanes(most: Int32) -> Int32:
    """The largest of a warp's."""
    for i in range(5):
        most = maximum(most, cute.arch.shuffle_sync_bfly(most, 1 << i))
    return most


def warps_of(k: int) -> int:
    """Return of how many warps a CTA is, for rows of k columns."""
    return min(-(-k // OF_WARP), MAX_WARPS)


def grid_of(rows: int, sms: int, k: int) -> int:
    """Return how many CTAs are launched for at most this many rows of k columns."""
    return min(min(SM_WARPS // warps_of(k), SM_CTAS) * sms, rows)
