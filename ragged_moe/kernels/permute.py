"""The layer's kernel before GEMM1 where experts have many tokens: it copies their rows in the order of the experts.

A CTA copies 8 rows at a time: each of eight warps a row, a lane 16 bytes at once, and the ninth warp the scales of all
eight, a lane those of one row for every fourth k-block. GEMM1 then loads tokens by TMA, as the grouped GEMM does. With
few tokens it gathers them itself. With weights in e2m1 tokens are bf16, have no scales, and are always permuted; few
are by assign.

Tokens that come in bf16 and have few rows each are quantised here, for each of their rows (PermuteQuantised): quantised
before, they would be read once more.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels import quantise
from ragged_moe.kernels.host import own_place, words_and_launch
from ragged_moe.kernels.ptx import (
    as_int,
    follow_previous_kernel,
    load_global_float,
    load_global_words,
    load_relaxed,
    minimum,
    select,
    store_global_word,
    store_global_words,
)

ROWS = 8  # rows that a CTA copies at a time
THREADS = 32 * (ROWS + 1)
CTAS = 2  # CTAs of an SM
TOGETHER = 14  # 16-byte loads that a thread has under way at once: a row of 7168 bytes
BLOCKS = 14  # scales that a thread loads at once: those of a row of 7168
WORDS = 12


@cute.jit
def copy_row(
    source: Int64, place: Int64, words: Int32, thread: Int32, threads: cutlass.Constexpr = 32,
    together: cutlass.Constexpr = TOGETHER,
):  # fmt: skip
    """Copy this many times 16 bytes from one address to another, as one of these threads, with this many under way."""
    for base in cutlass.range(thread, words, threads * together, unroll=1):
        inside = [select(base + threads * i < words, 1, 0) for i in range(together)]
        at = Int64(base) * 16
        x = [load_global_words(source + at + 16 * threads * i, inside[i]) for i in range(together)]
        for i in range_constexpr(together):
            store_global_words(place + at + 16 * threads * i, x[i], inside[i])


class Permute:
    """The kernel writes permuted[r] = hidden_states[rows[r]], and its scales if `scaled`, for the rows r < m_indptr[E].

    Its words: addresses of hidden_states e4m3 [T, H], their scales f32 [H/128, T], m_indptr int32 [E + 1], rows int32
    [total_m] (the token of each row), permuted e4m3 [total_m, H], its scales f32 [H/128, total_m]; T, H, total_m, E;
    CTAs; CUDA stream. Of tokens that are not scaled H is the bytes of a row, a multiple of 16, and the addresses of
    scales are of no meaning.
    """

    def __init__(self, scaled: bool = True):
        self.scaled = scaled

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words, launch = words_and_launch(host, WORDS)
        *sizes, grid = [Int32(word) for word in words[6:]]
        launch(self.kernel(*words[:6], *sizes), grid, THREADS)

    @cute.kernel
    def kernel(
        self, hidden: Int64, scales: Int64, m_indptr: Int64, rows: Int64, to: Int64, to_scales: Int64, tokens: Int32,
        h: Int32, total_m: Int32, experts: Int32,
    ):  # fmt: skip
        warp, lane, block, grid = own_place()
        follow_previous_kernel()
        used = load_relaxed(m_indptr + Int64(experts) * 4)
        for first in cutlass.range(block * ROWS, used, grid * ROWS, unroll=1):
            row = first + select(warp == ROWS, lane & (ROWS - 1), warp)
            token = load_relaxed(rows + Int64(minimum(row, used - 1)) * 4)
            if warp == ROWS:
                if const_expr(self.scaled):
                    for base in cutlass.range(lane // ROWS, h >> 7, 32 // ROWS * BLOCKS, unroll=1):
                        blocks = [base + 32 // ROWS * i for i in range(BLOCKS)]
                        wanted = [select((k < h >> 7) & (row < used), 1, 0) for k in blocks]
                        at = [scales + (Int64(k) * Int64(tokens) + Int64(token)) * 4 for k in blocks]
                        x = [load_global_float(at[i], wanted[i]) for i in range(BLOCKS)]
                        at = [to_scales + (Int64(k) * Int64(total_m) + Int64(row)) * 4 for k in blocks]
                        for i in range_constexpr(BLOCKS):
                            store_global_word(at[i], as_int(x[i]), wanted[i])
            elif row < used:
                copy_row(hidden + Int64(token) * Int64(h), to + Int64(row) * Int64(h), h >> 4, lane)


class PermuteQuantised:
    """The kernel writes permuted[r] = hidden_states[rows[r]] in e4m3, and its scales, as ragged_moe.kernels.quantise
    does.

    Its words are Permute's, of hidden_states bf16 [T, H] and no scales of them.
    """

    @cute.jit
    def __call__(self, host: cute.Pointer):
        (hidden, _, *addresses, _, h, total_m, experts, grid), launch = words_and_launch(host, WORDS)
        sizes = Int32(h), Int32(total_m), Int32(experts)
        launch(self.kernel(hidden, *addresses, *sizes), Int32(grid), 32 * ROWS)

    @cute.kernel
    def kernel(
        self, hidden: Int64, m_indptr: Int64, rows: Int64, to: Int64, to_scales: Int64, h: Int32, total_m: Int32,
        experts: Int32,
    ):  # fmt: skip
        warp, lane, block, grid = own_place()
        follow_previous_kernel()
        used = load_relaxed(m_indptr + Int64(experts) * 4)
        for row in cutlass.range(block * ROWS + warp, used, grid * ROWS, unroll=1):
            token = Int64(load_relaxed(rows + Int64(row) * 4))
            own = to + Int64(row) * Int64(h)
            quantise.quantise_row(hidden + token * Int64(h) * 2, own, to_scales + Int64(row) * 4, total_m, h, lane)


def grid_of(rows: int, sms: int) -> int:
    """Return how many CTAs are launched for at most this many rows."""
    return min(CTAS * sms, -(-rows // ROWS))
