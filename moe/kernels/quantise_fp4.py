"""Quantises tokens to NVFP4: e2m1 with an e4m3 scale for 16 columns, and one f32 scale for all.

A quantised row is a record: its numbers, two a byte, the one of the lower column in the lower half; then its scales, of
which there are a multiple of 16, for loads of 16 bytes. So whoever copies or addresses a row has both.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass._mlir.dialects import cuda as cuda_ir

from moe.kernels.ptx import (
    as_float,
    as_int,
    let_next_kernel_start,
    load_global_float,
    load_relaxed,
    load_relaxed_words_if,
    maximum,
    minimum,
    pack_e2m1,
    round_to_e4m3,
    select,
    select_float,
    store_global_byte,
    store_global_pair,
    wait_for_previous_kernel,
)

WARPS = 8
THREADS = 32 * WARPS
TOGETHER = 2  # blocks that a thread loads at once: with these threads 8192 columns
WORDS = 9
BLOCK = 16  # columns of a scale
LARGEST = 6.0  # of e2m1


def record_bytes(k: int) -> int:
    """Bytes of a row of k columns, a multiple of 64: numbers, then scales. k: of the host or of the kernel."""
    return (k >> 1) + scale_bytes(k)


def scale_bytes(k: int) -> int:
    """Bytes of a row's scales."""
    return ((k + 255) >> 8) << 4


def quantised_block(x: list[Float32], of_all: Float32) -> tuple[list[Int32], Int32]:
    """Return 16 values as two words of e2m1, and their scale as e4m3, in a word.

    The scale is the largest absolute value / (6 * of_all), rounded; a value is multiplied by 1 / (scale * of_all) and
    rounded. It is NaN if a value is: e2m1 has none. moe.reference.quantise_fp4 does the same, bit by bit.
    """
    most = as_int(x[0]) & 0x7FFFFFFF  # as floats without a sign compare: NaN is above all
    for i in range(1, BLOCK):
        most = maximum(most, as_int(x[i]) & 0x7FFFFFFF)
    byte, scale = round_to_e4m3(as_float(most) / (of_all * Float32(LARGEST)))
    factor = select_float(scale == 0.0, Float32(0.0), Float32(1.0) / (scale * of_all))
    values = [v * factor for v in x]
    return [pack_e2m1(values[i : i + 8]) for i in (0, 8)], byte


class QuantiseFp4:
    """The kernel writes the records to[r] of x[r], or if gathered of x[rows[r]] for the rows r < m_indptr[E].

    Its words: addresses of x bf16 [T, K], to [rows, record_bytes(K)], the scale of all f32 [1], rows int32 [rows],
    m_indptr int32 [E + 1]; T or, if gathered, E; K; CTAs; CUDA stream.
    """

    def __init__(self, gathered: bool = False):
        self.gathered = gathered

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words = cute.make_tensor(host, cute.make_layout(WORDS))
        x, to, of_all, rows, m_indptr = [words[i] for i in range(5)]
        count, k, grid = [Int32(words[i]) for i in range(5, 8)]
        stream = cuda_ir.cast(cuda_ir.StreamType.get(), words[8].ir_value())
        self.kernel(x, to, of_all, rows, m_indptr, count, k).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(self, x: Int64, to: Int64, of_all: Int64, rows: Int64, m_indptr: Int64, count: Int32, k: Int32):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        block, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        wait_for_previous_kernel()
        let_next_kernel_start()
        if const_expr(self.gathered):
            count = load_relaxed(m_indptr + Int64(count) * 4)
        scale = load_global_float(of_all, Int32(1))
        token = block
        if const_expr(self.gathered):
            token = load_relaxed(rows + Int64(minimum(block, count - 1)) * 4)
        for row in cutlass.range(block, count, grid, unroll=1):
            following = row + grid
            if const_expr(self.gathered):  # comes while this row is quantised
                following = load_relaxed(rows + Int64(minimum(following, count - 1)) * 4)
            source = x + Int64(token) * Int64(k) * 2
            self.quantise(source, to + Int64(row) * Int64(record_bytes(k)), scale, k, 32 * warp + lane)
            token = following

    @cute.jit
    def quantise(self, source: Int64, to: Int64, of_all: Float32, k: Int32, thread: Int32):
        """The threads of a CTA quantise a row, TOGETHER times 16 columns each at a time."""
        for first in cutlass.range(thread, scale_bytes(k), THREADS * TOGETHER, unroll=1):
            numbers = [first + THREADS * i for i in range(TOGETHER)]
            inside = [select(number * BLOCK < k, 1, 0) for number in numbers]
            at = [source + Int64(number * (2 * BLOCK)) for number in numbers]
            words = [[w for half in (0, 16) for w in load_relaxed_words_if(y + half, x)] for y, x in zip(at, inside)]
            for i in range_constexpr(TOGETHER):
                block = [as_float(half) for word in words[i] for half in (word << 16, word & -65536)]
                values, byte = quantised_block(block, of_all)
                store_global_pair(to + Int64(numbers[i] * (BLOCK // 2)), values, inside[i])
                there = select(numbers[i] < scale_bytes(k), 1, 0)
                store_global_byte(to + Int64((k >> 1) + numbers[i]), byte, there)  # 0 behind the last column
