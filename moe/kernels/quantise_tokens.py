"""Quantises tokens to e4m3 with one f32 scale each, which makes the largest of a token 448: of W4A8 on Hopper."""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass._mlir.dialects import cuda as cuda_ir

from moe.kernels.epilogue.swiglu_fp8 import inverse
from moe.kernels.ptx import (
    as_float,
    as_int,
    let_next_kernel_start,
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
    wait_for_previous_kernel,
)
from moe.problem import LARGEST

WARPS = 4
THREADS = 32 * WARPS
CTAS = 16  # of an SM: all of its threads
WORDS = 10
COLUMNS = 8  # that a thread loads at once, 16 bytes
TOGETHER = 3  # of its loads under way: of all threads a row of 3072
INFINITY, NAN = 0x7F800000, 0x7FC00000


@dataclass(frozen=True)
class QuantiseTokens:
    """The kernel writes values[r] = x[r] * (448 / largest) and scales[r] = largest / 448 of each row r, a CTA a row.

    counted: only of rows r < m_indptr[E]. gathered: of x[rows[r]], not of x[r].
    Its words: addresses of x bf16 [T, K], m_indptr int32 [E + 1], rows int32 [total_m], values e4m3 [total_m, K],
    scales f32 [total_m]; total_m; K, a multiple of 8; E; CTAs; CUDA stream.
    moe.reference.quantise_tokens does the same, bit by bit.
    """

    counted: bool = False
    gathered: bool = False

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words = cute.make_tensor(host, cute.make_layout(WORDS))
        x, m_indptr, rows, values, scales = [words[i] for i in range(5)]
        total_m, k, experts, grid = [Int32(words[i]) for i in range(5, 9)]
        stream = cuda_ir.cast(cuda_ir.StreamType.get(), words[9].ir_value())
        self.kernel(x, m_indptr, rows, values, scales, total_m, k, experts).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), smem=2 * 4 * WARPS, stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(
        self, x: Int64, m_indptr: Int64, rows: Int64, values: Int64, scales: Int64, total_m: Int32, k: Int32,
        experts: Int32,
    ):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        of_warps = cute.arch.get_dyn_smem(cutlass.Int8, 16).toint()  # [2, warps]: of one row and of the next
        wait_for_previous_kernel()
        let_next_kernel_start()
        used = load_relaxed(m_indptr + Int64(experts) * 4) if const_expr(self.counted) else total_m
        for row in cutlass.range(block, used, grid, unroll=1):
            token = load_relaxed(rows + Int64(row) * 4) if const_expr(self.gathered) else row
            source, to = x + Int64(token) * Int64(k) * 2, values + Int64(row) * Int64(k)
            self.quantise(source, to, scales + Int64(row) * 4, k, thread, of_warps)
            of_warps = of_warps ^ (4 * WARPS)

    @cute.jit
    def quantise(self, x: Int64, values: Int64, scale: Int64, k: Int32, thread: Int32, of_warps: Int32):
        """As a CTA, quantise the token at x."""
        step = THREADS * COLUMNS * TOGETHER
        most = Int32(0)  # bits of the largest magnitude: as floats without a sign compare, and NaN is above all
        for first in cutlass.range(thread * COLUMNS, k, step, unroll=1):
            for words, _, _ in self.loaded(x, first, k):
                for word in words:
                    for half in (word << 16, word & -65536):
                        most = maximum(most, half & 0x7FFFFFFF)
        for i in range_constexpr(5):
            most = maximum(most, cute.arch.shuffle_sync_bfly(most, 1 << i))
        store_shared(of_warps + (thread >> 5) * 4, most)
        cute.arch.sync_threads()
        for i in range_constexpr(WARPS):
            most = maximum(most, load_shared(of_warps + 4 * i))
        factor = inverse(as_float(minimum(most, INFINITY)))
        for first in cutlass.range(thread * COLUMNS, k, step, unroll=1):
            for words, column, inside in self.loaded(x, first, k):
                own = [as_float(half) * factor for word in words for half in (word << 16, word & -65536)]
                store_global_pair(values + Int64(column), [pack_e4m3(own[:4]), pack_e4m3(own[4:])], inside)
        of_token = as_int(as_float(most) * Float32(1 / LARGEST))
        of_token = select(most >= INFINITY, Int32(NAN), of_token)
        store_global_word(scale, of_token, select(thread == 0, 1, 0))

    def loaded(self, x: Int64, first: Int32, k: Int32) -> list[tuple[list[Int32], Int32, Int32]]:
        """Return the words of TOGETHER loads, the column of each, and whether there is such a column."""
        columns = [first + THREADS * COLUMNS * i for i in range(TOGETHER)]
        inside = [select(column < k, 1, 0) for column in columns]
        words = [load_global_words(x + Int64(column) * 2, wanted) for column, wanted in zip(columns, inside)]
        return [*zip(words, columns, inside)]


def grid_of(rows: int, sms: int) -> int:
    """Return how many CTAs are launched for at most so many rows."""
    return min(CTAS * sms, rows)
