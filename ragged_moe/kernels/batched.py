"""The launches of ragged_moe.batched_experts at both ends: tokens lie [E, M, H], a counted number of each expert's M is
there.

    counts ─► ListBatch ─► m_indptr, rows (where in [E M] each row's token is); scales in e4m3's order of GEMM1
    tokens bf16 ─► QuantiseRows ─► e4m3, scales, of the tokens that are there
    o ─► UnpackRows ─► out [E, M, H], those rows
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ragged_moe.kernels import quantise
from ragged_moe.kernels.host import own_place, words_and_launch
from ragged_moe.kernels.permute import copy_row
from ragged_moe.kernels.ptx import (
    as_int,
    divide,
    follow_previous_kernel,
    load_global_float,
    load_relaxed,
    maximum,
    minimum,
    select,
    store_global_word,
)

WARPS = 8
THREADS = 32 * WARPS
PARTS = 4  # CTAs of an expert that list its rows and copy its scales
CTAS = 4  # CTAs of an SM that quantise, or unpack
LIST_WORDS, QUANTISE_WORDS, UNPACK_WORDS = 12, 9, 7


class ListBatch:
    """The kernel writes m_indptr, rows[m_indptr[e] + i] = e * M + i for i < counts[e], and if `scaled` these tokens'
    scales in another order. Counts below 0 are taken for 0, those above M for M.

    Its words: addresses of counts int32 [E], m_indptr int32 [E + 1], rows int32 [E M], scales f32 [E, M, blocks], to
    f32 [blocks, E M]; strides of scales' dimensions, in elements; E, M, blocks; CUDA stream.
    """

    def __init__(self, scaled: bool):
        self.scaled = scaled

    @cute.jit
    def __call__(self, host: cute.Pointer):
        (*addresses_and_strides, experts, most, blocks), launch = words_and_launch(host, LIST_WORDS)
        sizes = Int32(experts), Int32(most), Int32(blocks)
        launch(self.kernel(*addresses_and_strides, *sizes), sizes[0] * PARTS, THREADS)

    @cute.kernel
    def kernel(
        self, counts: Int64, m_indptr: Int64, rows: Int64, scales: Int64, to: Int64, of_expert: Int64, of_token: Int64,
        of_block: Int64, experts: Int32, most: Int32, blocks: Int32,
    ):  # fmt: skip
        warp, lane, cta, _ = own_place()
        expert = divide(cta, PARTS)
        slice = (cta - expert * PARTS) * WARPS + warp  # this warp's, of an expert's
        follow_previous_kernel()
        before = Int32(0)
        for e in cutlass.range(lane, expert, 32, unroll=4):
            before = before + minimum(maximum(load_relaxed(counts + Int64(e) * 4), 0), most)
        before = cute.arch.warp_redux_sync(before, "add")
        own = minimum(maximum(load_relaxed(counts + Int64(expert) * 4), 0), most)
        first = select((slice == 0) & (lane == 0), 1, 0)
        store_global_word(m_indptr + Int64(expert) * 4, before, first)
        last = select(expert == experts - 1, first, 0)
        store_global_word(m_indptr + Int64(experts) * 4, before + own, last)
        for i in cutlass.range(slice * 32 + lane, own, PARTS * THREADS, unroll=1):
            store_global_word(rows + Int64(before + i) * 4, expert * most + i, Int32(1))
        if const_expr(self.scaled):
            for k in cutlass.range(slice, blocks, PARTS * WARPS, unroll=1):
                at = scales + (Int64(expert) * of_expert + Int64(k) * of_block) * 4
                place = to + (Int64(k) * Int64(experts) + Int64(expert)) * Int64(most) * 4
                for i in cutlass.range(lane, own, 32, unroll=4):
                    scale = load_global_float(at + Int64(i) * of_token * 4, Int32(1))
                    store_global_word(place + Int64(i) * 4, as_int(scale), Int32(1))


class QuantiseRows:
    """The kernel quantises the tokens in `rows` as Quantise does all.

    Its words: addresses of x bf16 [E M, H], values e4m3 [E M, H], scales f32 [H/128, E M], rows int32, how many there
    are; E M, H; CTAs; CUDA stream.
    """

    def __init__(self):
        self.one = quantise.Quantise()

    @cute.jit
    def __call__(self, host: cute.Pointer):
        (*addresses, tokens, hidden, grid), launch = words_and_launch(host, QUANTISE_WORDS)
        launch(self.kernel(*addresses, Int32(tokens), Int32(hidden)), Int32(grid), quantise.THREADS)

    @cute.kernel
    def kernel(self, x: Int64, values: Int64, scales: Int64, rows: Int64, used: Int64, tokens: Int32, hidden: Int32):
        warp, lane, cta, grid = own_place()
        follow_previous_kernel()
        for row in cutlass.range(cta, load_relaxed(used), grid, unroll=1):
            token = load_relaxed(rows + Int64(row) * 4)
            self.one.quantise(x, values, scales, Int64(0), tokens, hidden, token, warp, lane, quantise.WARPS)


class UnpackRows:
    """The kernel writes out[rows[r]] = o[r] for all rows: a warp a row.

    Its words: addresses of o bf16 [rows, H], rows int32, how many there are, out bf16 [E M, H]; H; CTAs; CUDA stream.
    """

    @cute.jit
    def __call__(self, host: cute.Pointer):
        (*addresses, hidden, grid), launch = words_and_launch(host, UNPACK_WORDS)
        launch(self.kernel(*addresses, Int32(hidden)), Int32(grid), THREADS)

    @cute.kernel
    def kernel(self, o: Int64, rows: Int64, used: Int64, out: Int64, hidden: Int32):
        warp, lane, cta, grid = own_place()
        follow_previous_kernel()
        for row in cutlass.range(cta * WARPS + warp, load_relaxed(used), grid * WARPS, unroll=1):
            place = out + Int64(load_relaxed(rows + Int64(row) * 4)) * Int64(hidden) * 2
            copy_row(o + Int64(row) * Int64(hidden) * 2, place, hidden >> 3, lane)


def grid_of(tokens: int, sms: int) -> int:
    """Return how many CTAs quantise, or unpack, at most this many tokens."""
    return min(CTAS * sms, tokens)
