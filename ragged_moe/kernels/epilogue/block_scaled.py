"""The epilogues with block scales: sums times f32 scales, plus a bias, to bf16, or SwiGLU of them, to blocks again."""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_N, Config
from ragged_moe.kernels.context import BlockScaledOperands, Warp, global_scale_address
from ragged_moe.kernels.epilogue.activation import products
from ragged_moe.kernels.epilogue.bf16 import Bf16TmemTokensM
from ragged_moe.kernels.layouts import AccumulatorLayout
from ragged_moe.kernels.ptx import (
    as_float,
    fma,
    fma_pair,
    load_global_float,
    load_global_floats,
    load_global_words,
    load_relaxed_if,
    multiply_pairs,
    pack_bfloat,
    select,
    select_float,
    store_global_byte,
    store_global_word,
    store_global_words,
    twice,
)
from ragged_moe.kernels.schedule import WorkTile


class ScaleAndBias:
    """Multiplies results by the expert's b_global and a's scale of all, and adds a bias, as far as there are such."""

    def __init__(self, config: Config):
        self.config = config

    def scales(self, operands: BlockScaledOperands, expert: Int32) -> list[Float32]:
        """Load the products of an expert's b_global and a's scale of all: of its weight rows, or of both halves."""
        halves = range(1 + self.config.gated)
        found = [load_global_float(global_scale_address(operands, expert, half), Int32(1)) for half in halves]
        if self.config.block_scaled.of_all:
            of_all = load_global_float(operands.a_global, Int32(1))
            found = [scale * of_all for scale in found]
        return found

    @cute.jit
    def __call__(
        self, warp: Warp, tile: WorkTile, scale: Float32, row: Int32, end: Int32, acc, begin: cutlass.Constexpr,
        count: cutlass.Constexpr,
    ):  # fmt: skip
        """The results of `count` weight rows from `row` on, those below `end`, the accumulators from `begin` on."""
        operands = warp.operands
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

    def begin(self, warp: Warp, tile: WorkTile):
        """Load what a work tile's results are multiplied by, before they are there."""
        (scale,) = self.scale.scales(warp.operands, tile.expert)
        return (scale,)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc, scale: Float32, rows=None):
        """Scale and store a work tile's results. rows: as of `store`."""
        columns = self.config.accumulators
        row = tile.row + (warp.number >> 2) * columns
        self.scale(warp, tile, scale, row, warp.operands.n, acc, 0, columns)
        self.store(warp, tile, acc, rows)


class Destinations(NamedTuple):
    """Where the results of a warp's tokens go, a lane's token each: to out, or, weighted, to the output."""

    row: Int32  # of out; or, of a token that has no other row, -1 - its number
    weight: Int64  # a pair of the token's, to multiply by where it goes to the output, else of 1

    def address(self, operands: BlockScaledOperands, lane: Int32, column: Int32) -> Int64:
        """Where the results of that lane's token begin, from this column on."""
        row = cute.arch.shuffle_sync(self.row, lane)
        alone = select(row < 0, 1, 0)
        to = operands.out + Int64(alone) * (operands.output - operands.out)
        return to + (Int64(row ^ -alone) * Int64(operands.n) + Int64(column)) * 2

    def weighted(self, words: list[Int32]) -> list[Int32]:
        """This lane's results in bf16, as finalise would sum them: a token's single row times its weight."""
        zero, found = Float32(0.0), []
        for word in words:
            pair = fma_pair(as_float(word << 16), as_float(word & -65536), self.weight, zero, zero)
            found.append(pack_bfloat(*pair))
        return found


class Bf16TmemOfLayer(Bf16TmemBlockScaled):
    """The results of the layer's GEMM2. What a token gets that has one row, is the layer's output: it is written there,
    times its weight, and finalise is left those of other tokens.
    """

    def begin(self, warp: Warp, tile: WorkTile):
        """Find, too, where they go."""
        return *super().begin(warp, tile), self.destinations(warp, tile)

    @cute.jit
    def destinations(self, warp: Warp, tile: WorkTile):
        """Find where the results of a work tile go, from what assign has written."""
        operands, slots, lane = warp.operands, self.config.slots, warp.lane
        at = self.layout.first_token(warp.number) + lane
        there, row = select(at < tile.tokens, 1, 0), tile.token + at
        token = load_relaxed_if(operands.rows + Int64(row) * 4, there)
        count, weight, of_token = Int32(0), Float32(1.0), Int64(token) * (4 * slots)
        for i in range_constexpr(0, slots, 4):
            places = load_global_words(operands.places + of_token + 4 * i, there)
            weights = load_global_floats(operands.weights + of_token + 4 * i, there)
            for j in range_constexpr(4):
                count = count + select(places[j] >= 0, 1, 0)
                weight = select_float(places[j] >= 0, weights[j], weight)
        alone = (count == 1) & (there != 0)
        return Destinations(select(alone, -1 - token, row), twice(select_float(alone, weight, Float32(1.0))))


class SwigluTmemBlockScaled:
    """The products of GEMM1: a thread has 64 columns of a token, in blocks, whose scales it finds alone."""

    def __init__(self, config: Config):
        self.config, self.layout, self.scale = config, AccumulatorLayout(config), ScaleAndBias(config)

    def begin(self, warp: Warp, tile: WorkTile):
        """Load the scales of a work tile, before its sums are there: up's, gate's, and that of all of out."""
        of_all = self.config.block_scaled.of_all
        of_out = [load_global_float(warp.operands.out_global, Int32(1))] if of_all else []
        return *self.scale.scales(warp.operands, tile.expert), *of_out

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc, up: Float32, gate: Float32, of_out=None):
        """Store a work tile's products and scales. A warp that has no token has nothing to do."""
        if self.layout.first_token(warp.number) < tile.tokens:
            self.store(warp, tile, acc, up, gate, of_out)

    @cute.jit
    def store(self, warp: Warp, tile: WorkTile, acc, up: Float32, gate: Float32, of_out):
        """The warp's products and scales."""
        operands, columns, form = warp.operands, BLOCK_N // 2, self.config.block_scaled
        width = operands.n >> 1  # of a row of out
        token = self.layout.first_token(warp.number) + warp.lane
        column = (tile.row >> 1) + (warp.number >> 2) * columns
        self.scale(warp, tile, up, column, width, acc, 0, columns)
        self.scale(warp, tile, gate, width + column, 2 * width, acc, columns, columns)
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
