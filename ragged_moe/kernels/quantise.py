"""Quantises tokens: a warp rounds 128 columns of a token to e4m3, with the scale that makes the largest of them 448."""

from dataclasses import dataclass
from typing import ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.epilogue.swiglu_fp8 import inverse
from ragged_moe.kernels.host import own_place, words_and_launch
from ragged_moe.kernels.ptx import (
    as_float,
    as_int,
    follow_previous_kernel,
    load_global_float,
    load_global_words,
    load_relaxed_if,
    pack_e4m3,
    select,
    store_global_pair,
    store_global_word,
)
from ragged_moe.runtime.sizes import LARGEST

WARPS = 8
THREADS = 32 * WARPS
WORDS = 7
TOGETHER = 7  # 16-byte loads of quantise_row that a thread has under way at once: half a row of 7168


def quantised_block(words: list[Int32], lanes: int) -> tuple[list[Int32], Float32]:
    """Return the e4m3, four a word, of the bf16 that a lane has of 128 columns, and their scale, largest / 448.

    lanes: how many side by side have the 128 columns.
    """
    own = [as_float(bits) for word in words for bits in (word << 16, word & -65536)]
    most = Float32(0.0)
    for x in own:
        most = cute.arch.fmax(most, cute.math.absf(x))
    for i in range(lanes.bit_length() - 1):
        most = cute.arch.fmax(most, cute.arch.shuffle_sync_bfly(most, 1 << i))
    factor = inverse(most)
    packed = [pack_e4m3([v * factor for v in own[i : i + 4]]) for i in range(0, len(own), 4)]
    return packed, most * Float32(1 / LARGEST)


@cute.jit
def quantise_row(x: Int64, values: Int64, scales: Int64, apart: Int32, hidden: Int32, lane: Int32):
    """As a warp, quantise one token, of which each half of the warp has every other 128 columns.

    x, values, scales: where its bf16, e4m3 and first scale are. apart: how many scales its scales are apart.
    """
    half, at = lane >> 4, (lane & 15) * 8
    for first in cutlass.range(0, hidden >> 7, 2 * TOGETHER, unroll=1):
        blocks = [first + 2 * i + half for i in range(TOGETHER)]
        inside = [select(block < hidden >> 7, 1, 0) for block in blocks]
        loaded = [load_global_words(x + Int64(blocks[i] * 128 + at) * 2, inside[i]) for i in range(TOGETHER)]
        for i in range_constexpr(TOGETHER):
            words, scale = quantised_block(loaded[i], 16)
            store_global_pair(values + Int64(blocks[i] * 128 + at), words, inside[i])
            place = scales + Int64(blocks[i]) * Int64(apart) * 4
            store_global_word(place, as_int(scale), select(at == 0, inside[i], 0))


@dataclass(frozen=True)
class Quantise:
    """The kernel writes values[t] = x[t] * (448 / largest) and scales = largest / 448, for 128 columns at a time.

    So does ragged_moe.reference.layer.quantised. If weighted, scales are multiplied by the token's weight.
    Its words: addresses of x bf16 [T, H], values e4m3 [T, H], scales f32 [H/128, T], weights f32 [T]; T, H; CUDA
    stream.
    """

    weighted: bool = False
    of_sm: ClassVar[int] = 0  # CTAs of assign that an SM has registers for; 0 for as many as it happens to have

    @cute.jit
    def __call__(self, host: cute.Pointer):
        (*addresses, tokens, hidden), launch = words_and_launch(host, WORDS)
        launch(self.kernel(*addresses, Int32(tokens), Int32(hidden)), Int32(tokens), THREADS)

    @cute.kernel
    def kernel(self, x: Int64, values: Int64, scales: Int64, weights: Int64, tokens: Int32, hidden: Int32):
        warp, lane, token, _ = own_place()
        follow_previous_kernel()
        self.quantise(x, values, scales, weights, tokens, hidden, token, warp, lane, WARPS)

    def ctas(self, tokens: Int32) -> Int32:
        """CTAs of `part`."""
        return tokens

    def part(
        self, x: Int64, values: Int64, scales: Int64, weights: Int64, tokens: Int32, hidden: Int32, number: Int32,
        _count: Int32, warp: Int32, lane: Int32,
    ) -> None:  # fmt: skip
        """As a CTA of 2 * WARPS warps, quantise the token of its number."""
        self.quantise(x, values, scales, weights, tokens, hidden, number, warp, lane, 2 * WARPS)

    @cute.jit
    def quantise(
        self, x: Int64, values: Int64, scales: Int64, weights: Int64, tokens: Int32, hidden: Int32, token: Int32,
        warp: Int32, lane: Int32, warps: int,
    ):  # fmt: skip
        """Quantise one token in a CTA of this many warps."""
        for block in cutlass.range(warp, hidden >> 7, warps, unroll=1):
            at = Int64(token) * Int64(hidden) + Int64(block * 128 + lane * 4)
            (word,), scale = quantised_block([load_relaxed_if(x + at * 2 + 4 * i, Int32(1)) for i in range(2)], 32)
            store_global_word(values + at, word, Int32(1))
            if const_expr(self.weighted):
                scale = scale * load_global_float(weights + Int64(token) * 4, Int32(1))
            if lane == 0:
                place = scales + (Int64(block) * Int64(tokens) + Int64(token)) * 4
                store_global_word(place, as_int(scale), Int32(1))
