"""The layer's last kernel: a CTA sums a token's rows, those that its local experts gave it, by their weights."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.host import words_and_launch
from ragged_moe.kernels.ptx import (
    as_float,
    fma,
    follow_previous_kernel,
    load_global_floats,
    load_global_words,
    pack_bfloat,
    select,
    store_global_words,
)

THREADS = 224
TOGETHER = 4  # 16-byte loads of a thread that are under way at once: with these threads 7168 columns
WORDS = 7


class Finalise:
    """The kernel computes output[t] = sum over j of weights[t, j] * o[places[t, j]]:
    ragged_moe.reference.layer.combined.

    Its words: addresses of o bf16 [rows, H], places int32 [T, slots], weights f32 [T, slots], output bf16 [T, H]; T, H;
    CUDA stream. Places of -1 are left out. slots: a multiple of 4. others: only of tokens that have no row or several:
    GEMM2 has written the output of those with one.
    """

    def __init__(self, slots: int, others: bool = False):
        self.slots, self.others = slots, others

    @cute.jit
    def __call__(self, host: cute.Pointer):
        (*addresses, tokens, hidden), launch = words_and_launch(host, WORDS)
        launch(self.kernel(*addresses, Int32(hidden)), Int32(tokens), THREADS)

    @cute.kernel
    def kernel(self, o: Int64, places: Int64, weights: Int64, output: Int64, hidden: Int32):
        thread, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        follow_previous_kernel()
        rows, factors = self.places(places, weights, token)
        to = output + Int64(token) * Int64(hidden) * 2
        if const_expr(self.others):
            count = Int32(0)
            for row in rows:
                count = count + select(row >= 0, 1, 0)
            if count != 1:
                self.sum(o, rows, factors, to, hidden, thread)
        else:
            self.sum(o, rows, factors, to, hidden, thread)

    def places(self, places: Int64, weights: Int64, token: Int32) -> tuple[list[Int32], list[Float32]]:
        """Return the places of a token's rows, and their weights."""
        at, rows, factors = Int64(token) * (4 * self.slots), [], []
        for i in range(self.slots // 4):
            rows += load_global_words(places + at + 16 * i, Int32(1))
            factors += load_global_floats(weights + at + 16 * i, Int32(1))
        return rows, factors

    @cute.jit
    def sum(self, o: Int64, rows: list, factors: list, output: Int64, hidden: Int32, thread: Int32):
        """Write the weighted sum of a token's rows to its row of the output."""
        for base in cutlass.range(thread, hidden >> 3, THREADS * TOGETHER, unroll=1):
            sums = cute.make_rmem_tensor((8 * TOGETHER,), Float32)
            sums.fill(0.0)
            inside = [select(base + i * THREADS < hidden >> 3, 1, 0) for i in range(TOGETHER)]
            for j in range_constexpr(self.slots):
                if rows[j] >= 0:
                    row = o + (Int64(rows[j]) * Int64(hidden) + Int64(base) * 8) * 2
                    x = [load_global_words(row + i * (THREADS * 16), inside[i]) for i in range(TOGETHER)]
                    for i in range_constexpr(8 * TOGETHER):
                        word = x[i // 8][i // 2 % 4]
                        value = as_float(word & -65536) if i % 2 else as_float(word << 16)
                        sums[i] = fma(value, factors[j], sums[i])
            to = output + Int64(base) * 16
            for i in range_constexpr(TOGETHER):
                x = [pack_bfloat(sums[8 * i + 2 * j], sums[8 * i + 2 * j + 1]) for j in range(4)]
                store_global_words(to + i * (THREADS * 16), x, inside[i])
