"""The epilogues of e2m1 by e2m1: sums times both operands' f32 scales, to bf16, or SwiGLU of them, to NVFP4 again."""

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.kernels.config import BLOCK_N, Config
from moe.kernels.context import Warp
from moe.kernels.epilogue.activation import products
from moe.kernels.epilogue.bf16 import Bf16TmemTokensM
from moe.kernels.layouts import AccumulatorLayout
from moe.kernels.ptx import load_global_float, select, store_global_word, store_global_words
from moe.kernels.quantise_fp4 import BLOCK, quantised_block, record_bytes
from moe.kernels.schedule import WorkTile


def scale_of(warp: Warp, tile: WorkTile, half: int = 0) -> Float32:
    """The expert's b_global times a's scale of all. half: of the weights' first rows, or 1: of the second ones."""
    operands = warp.operands
    index = tile.expert * operands.globals + (operands.globals - 1) * half
    of_weights = load_global_float(operands.b_global + Int64(index) * 4, Int32(1))
    return of_weights * load_global_float(operands.a_global, Int32(1))


class Bf16TmemW4a4(Bf16TmemTokensM):
    """The results of a grouped GEMM."""

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Scale and store a work tile's results."""
        scale = scale_of(warp, tile)
        for i in range_constexpr(self.config.accumulators):
            acc[i] = acc[i] * scale
        self.store(warp, tile, acc)


class SwigluTmemW4a4:
    """The products of GEMM1: a thread has 64 columns of a token, in blocks of 16, whose scale it finds alone."""

    def __init__(self, config: Config):
        self.config, self.layout = config, AccumulatorLayout(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's products and scales."""
        operands, columns = warp.operands, BLOCK_N // 2
        width = operands.n >> 1  # of a row of out
        first, second = scale_of(warp, tile), scale_of(warp, tile, 1)
        of_out = load_global_float(operands.out_global, Int32(1))
        token = self.layout.first_token(warp.number) + warp.lane
        column = (tile.row >> 1) + (warp.number >> 2) * columns
        row = operands.out + Int64(tile.token + token) * Int64(record_bytes(width))
        there = select((token < tile.tokens) & (column < width), 1, 0)
        words, scales = [], Int32(0)
        for block in range_constexpr(columns // BLOCK):
            at = range(block * BLOCK, (block + 1) * BLOCK)
            pairs = [acc[i] * first for i in at], [acc[columns + i] * second for i in at]
            values, byte = quantised_block(products(self.config.activation, *pairs), of_out)
            words += values
            scales = scales | byte << 8 * block
        to = row + Int64(column >> 1)
        for i in range_constexpr(0, len(words), 4):
            store_global_words(to + 4 * i, words[i : i + 4], there)
        to = row + Int64((width >> 1) + (column >> 4))
        store_global_word(to, scales, there)
        last = select((tile.row >> 1) + BLOCK_N == width, width >> 7 & 1, 0)  # of two tiles' worth of scales: no second
        store_global_word(to + 8, Int32(0), there & last)
