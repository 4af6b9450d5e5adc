"""Quantises tokens to the blocks of a format (block_scaled.py): each block of columns gets a scale."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass._mlir.dialects import cuda as cuda_ir

from moe.kernels.block_scaled import BlockScaled
from moe.kernels.ptx import (
    as_float,
    let_next_kernel_start,
    load_global_float,
    load_relaxed,
    load_relaxed_words_if,
    minimum,
    select,
    store_global_byte,
    store_global_pair,
    store_global_words,
    wait_for_previous_kernel,
)

WARPS = 8
THREADS = 32 * WARPS
COLUMNS = 32  # that a thread loads at once: with these threads 8192
WORDS = 9


class QuantiseBlocks:
    """The kernel writes the records to[r] of x[r], or if gathered of x[rows[r]] for the rows r < m_indptr[E].

    Its words: addresses of x bf16 [T, K], to [rows, record_bytes(K)], the scale of all f32 [1], if the format has
    one, rows int32 [rows], m_indptr int32 [E + 1]; T or, if gathered, E; K; CTAs; CUDA stream.
    """

    def __init__(self, form: BlockScaled, gathered: bool = False):
        self.form, self.gathered = form, gathered

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
        scale = load_global_float(of_all, Int32(1)) if const_expr(self.form.of_all) else None
        token = block
        if const_expr(self.gathered):
            token = load_relaxed(rows + Int64(minimum(block, count - 1)) * 4)
        for row in cutlass.range(block, count, grid, unroll=1):
            following = row + grid
            if const_expr(self.gathered):  # comes while this row is quantised
                following = load_relaxed(rows + Int64(minimum(following, count - 1)) * 4)
            source = x + Int64(token) * Int64(k) * 2
            self.quantise(source, to + Int64(row) * Int64(self.form.record_bytes(k)), scale, k, 32 * warp + lane)
            token = following

    @cute.jit
    def quantise(self, source: Int64, to: Int64, of_all, k: Int32, thread: Int32):
        """The threads of a CTA quantise a row, some blocks each at a time."""
        form, block = self.form, self.form.block
        together, scales = COLUMNS // block, form.scale_bytes(k)
        for first in cutlass.range(thread, scales, THREADS * together, unroll=1):
            numbers = [first + THREADS * i for i in range(together)]
            inside = [select(number * block < k, 1, 0) for number in numbers]
            words = []
            for number, x in zip(numbers, inside):
                at = source + Int64(number * (2 * block))
                words.append([w for part in range(0, 2 * block, 16) for w in load_relaxed_words_if(at + part, x)])
            for i in range_constexpr(together):
                values = [as_float(half) for word in words[i] for half in (word << 16, word & -65536)]
                packed, byte = form.quantised_block(values, of_all)
                at = to + Int64(numbers[i] * (4 * len(packed)))
                if const_expr(len(packed) == 2):
                    store_global_pair(at, packed, inside[i])
                else:
                    for j in range_constexpr(0, len(packed), 4):
                        store_global_words(at + 4 * j, packed[j : j + 4], inside[i])
                there = select(numbers[i] < scales, 1, 0)
                store_global_byte(to + Int64(form.value_bytes(k) + numbers[i]), byte, there)  # 0 behind the last column
