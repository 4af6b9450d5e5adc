"""Quantises tokens to the blocks of a format (block_scaled.py): each block of columns gets a scale."""

from dataclasses import dataclass
from typing import ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.block_scaled import BlockScaled
from ragged_moe.kernels.host import own_place, words_and_launch
from ragged_moe.kernels.ptx import (
    as_float,
    follow_previous_kernel,
    load_global_float,
    load_relaxed_words_if,
    minimum,
    select,
    store_global_byte,
    store_global_pair,
    store_global_words,
)

WARPS = 8
THREADS = 32 * WARPS
COLUMNS = 32  # that a thread loads at once: with these threads 8192
WORDS = 7


@dataclass(frozen=True)
class QuantiseBlocks:
    """The kernel writes the records to[t] of x[t].

    Its words: addresses of x bf16 [T, K], to [T, record_bytes(K)], the scale of all f32 [1], if the format has one; T;
    K; CTAs; CUDA stream. most: CTAs that quantise in assign's launch.
    """

    form: BlockScaled
    most: int = 0
    of_sm: ClassVar[int] = 2  # CTAs of assign that an SM has registers for: all are there at once

    @cute.jit
    def __call__(self, host: cute.Pointer):
        (*addresses, count, k, grid), launch = words_and_launch(host, WORDS)
        launch(self.kernel(*addresses, Int32(count), Int32(k)), Int32(grid), THREADS)

    @cute.kernel
    def kernel(self, x: Int64, to: Int64, of_all: Int64, count: Int32, k: Int32):
        warp, lane, block, grid = own_place()
        follow_previous_kernel()
        self.rows(x, to, of_all, count, k, block, grid, 32 * warp + lane)

    def ctas(self, tokens: Int32) -> Int32:
        """CTAs of `part`: those that there is room for at once, as each begins and ends in a microsecond or two."""
        return minimum((tokens + 1) >> 1, self.most)

    def part(
        self, x: Int64, to: Int64, of_all: Int64, _weights: Int64, tokens: Int32, k: Int32, number: Int32, count: Int32,
        warp: Int32, lane: Int32,
    ) -> None:  # fmt: skip
        """As one of `count` CTAs of 2 * WARPS warps, quantise two of every 2 * count tokens."""
        half = warp // WARPS
        self.rows(x, to, of_all, tokens, k, 2 * number + half, 2 * count, 32 * (warp - half * WARPS) + lane)

    @cute.jit
    def rows(
        self, x: Int64, to: Int64, of_all: Int64, tokens: Int32, k: Int32, first: Int32, step: Int32, thread: Int32
    ):  # fmt: skip
        """As one of THREADS threads, quantise every step-th token from the first on."""
        scale = load_global_float(of_all, Int32(1)) if const_expr(self.form.of_all) else None
        for token in cutlass.range(first, tokens, step, unroll=1):
            source = x + Int64(token) * Int64(k) * 2
            self.quantise(source, to + Int64(token) * Int64(self.form.record_bytes(k)), scale, k, thread)

    @cute.jit
    def quantise(self, source: Int64, to: Int64, scale, k: Int32, thread: Int32):
        """Quantise a token, a thread some blocks at a time."""
        form, block = self.form, self.form.block
        together, scales = COLUMNS // block, form.scale_bytes(k)
        for first in cutlass.range(thread, scales, THREADS * together, unroll=1):
            numbers = [first + THREADS * i for i in range(together)]
            inside = [select(number * block < k, 1, 0) for number in numbers]
            words = []
            for number, wanted in zip(numbers, inside):
                at = source + Int64(number * (2 * block))
                words.append([w for part in range(0, 2 * block, 16) for w in load_relaxed_words_if(at + part, wanted)])
            for i in range_constexpr(together):
                values = [as_float(half) for word in words[i] for half in (word << 16, word & -65536)]
                packed, byte = form.quantised_block(values, scale)
                at = to + Int64(numbers[i] * (4 * len(packed)))
                if const_expr(len(packed) == 2):
                    store_global_pair(at, packed, inside[i])
                else:
                    for j in range_constexpr(0, len(packed), 4):
                        store_global_words(at + 4 * j, packed[j : j + 4], inside[i])
                there = select(numbers[i] < scales, 1, 0)
                store_global_byte(to + Int64(form.value_bytes(k) + numbers[i]), byte, there)  # 0 behind the last column
