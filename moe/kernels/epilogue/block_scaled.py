"""The epilogues with block scales: sums times f32 scales, plus a bias, to bf16, or SwiGLU of them, to blocks again."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from moe.kernels.config import BLOCK_N, Config
from moe.kernels.context import Warp, global_scale_address
from moe.kernels.epilogue.activation import products
from moe.kernels.epilogue.bf16 import Bf16TmemTokensM
from moe.kernels.layouts import AccumulatorLayout
from moe.kernels.ptx import (
    fma,
    load_global_float,
    load_global_floats,
    multiply_pairs,
    select,
    store_global_byte,
    store_global_word,
    store_global_words,
)
from moe.kernels.schedule import WorkTile


class ScaleAndBias:
    """Multiplies results by the expert's b_global and a's scale of all, and adds a bias, as far as there are such."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def __call__(
        self, warp: Warp, tile: WorkTile, row: Int32, end: Int32, acc, begin: cutlass.Constexpr,
        count: cutlass.Constexpr, half: cutlass.Constexpr = 0,
    ):  # fmt: skip
        """The results of `count` weight rows from `row` on, those below `end`, the accumulators from `begin` on.

        half: 1 if they are of the second half of the expert's rows, else 0.
        """
        operands = warp.operands
        scale = load_global_float(global_scale_address(operands, tile.expert, half), Int32(1))
        if const_expr(self.config.block_scaled.of_all):
            scale = scale * load_global_float(operands.a_global, Int32(1))
        if const_expr(self.config.bias):  # of all lanes: they have the same rows of different tokens
            at = operands.bias + (Int64(tile.expert) * Int64(operands.n) + Int64(row)) * 4
            for i in range_constexpr(0, count, 4):
                biases = load_global_floats(at + 4 * i, select(row + i < end, 1, 0))
                for j in range_constexpr(4):
                    acc[begin + i + j] = fma(acc[begin + i + j], scale, biases[j])
        else:
            for i in range_constexpr(begin, begin + count, 2):
                acc[i], acc[i + 1] = multiply_pairs([acc[i], acc[i + 1]], [scale] * 2)


class Bf16TmemBlockScaled(Bf16TmemTokensM):
    """The results of a grouped GEMM."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.scale = ScaleAndBias(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Scale and store a work tile's results."""
        columns = self.config.accumulators
        row = tile.row + (warp.number >> 2) * columns
        self.scale(warp, tile, row, warp.operands.n, acc, 0, columns)
        self.store(warp, tile, acc)


class SwigluTmemBlockScaled:
    """The products of GEMM1: a thread has 64 columns of a token, in blocks, whose scales it finds alone."""

    def __init__(self, config: Config):
        self.config, self.layout, self.scale = config, AccumulatorLayout(config), ScaleAndBias(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's products and scales. A warp that has no token has nothing to do."""
        if self.layout.first_token(warp.number) < tile.tokens:
            self.store(warp, tile, acc)

    @cute.jit
    def store(self, warp: Warp, tile: WorkTile, acc):
        """The warp's products and scales."""
        operands, columns, form = warp.operands, BLOCK_N // 2, self.config.block_scaled
        width = operands.n >> 1  # of a row of out
        of_out = load_global_float(operands.out_global, Int32(1)) if const_expr(form.of_all) else None
        token = self.layout.first_token(warp.number) + warp.lane
        column = (tile.row >> 1) + (warp.number >> 2) * columns
        for half in range_constexpr(2):
            first = half * width
            self.scale(warp, tile, first + column, first + width, acc, half * columns, columns, half)
        row = operands.out + Int64(tile.token + token) * Int64(form.record_bytes(width))
        of_tile = select(token < tile.tokens, 1, 0)
        there = select((token < tile.tokens) & (column < width), 1, 0)
        words, scales = [], []
        for block in range_constexpr(columns // form.block):
            at = range(block * form.block, (block + 1) * form.block)
            pairs = [acc[i] for i in at], [acc[columns + i] for i in at]
            values, byte = form.quantised_block(products(self.config.activation, *pairs, multiply_pairs), of_out)
            words += values
            scales.append(byte)
        to = row + Int64(form.value_bytes(column))
        for i in range_constexpr(0, len(words), 4):
            store_global_words(to + 4 * i, words[i : i + 4], there)
        # Behind the last column are zeros, as a stage's scales are read whole
        to = row + Int64(form.value_bytes(width)) + Int64(column // form.block)
        if const_expr(len(scales) == 4):  # a stage has two tiles' worth of them
            scales = scales[0] | scales[1] << 8 | scales[2] << 16 | scales[3] << 24
            store_global_word(to, scales, there)
            last = select((tile.row >> 1) + BLOCK_N == width, width >> 7 & 1, 0)
            store_global_word(to + 8, Int32(0), there & last)
        else:
            for i in range_constexpr(len(scales)):
                store_global_byte(to + i, select(column < width, scales[i], 0), of_tile)
