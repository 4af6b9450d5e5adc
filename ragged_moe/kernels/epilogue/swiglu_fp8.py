"""The epilogues of GEMM1: silu(gate) * up in e4m3, to c [total_M, N / 2], with an f32 scale for a token's 128 columns.

A tile has 128 columns of the product, which are one scale, largest / 448: the CTA knows it. Who holds a token's columns
depends on the accumulator layout, and so does how the largest absolute value is found.
"""

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from ragged_moe.kernels.config import BLOCK_N, CONSUMER_WARPS, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.epilogue.activation import product, products
from ragged_moe.kernels.layouts import AccumulatorLayout
from ragged_moe.kernels.ptx import (
    as_float,
    as_int,
    consumer_barrier,
    load_shared,
    load_shared_float,
    load_shared_words,
    maximum,
    minimum,
    pack_e4m3,
    pair_barrier,
    select,
    select_float,
    store_global_e4m3,
    store_global_word,
    store_global_words,
    store_shared,
    store_shared_e4m3,
    store_shared_e4m3_pair,
    store_shared_float,
    store_shared_words,
    warpgroup_barrier,
)
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.runtime.sizes import LARGEST

# Named barriers: 1 and 2 are of a warpgroup each
BARRIER = 3  # of both warpgroups
PAIRS = 4  # from this one on: of warp w and warp w + 4
WARP_BYTES = 1024  # of scratch that each of the 8 consumer warps has with swap-AB
TOGETHER = 16  # products that a thread computes step by step


def inverse(most: Float32) -> Float32:
    """The factor that makes the largest value that of e4m3; 0 if all are 0."""
    return select_float(most > 0.0, Float32(LARGEST) / most, Float32(0.0))


def magnitude(x: Float32, y: Float32) -> Float32:
    """The larger absolute value."""
    return cute.arch.fmax(cute.math.absf(x), cute.math.absf(y))


def scale_index(warp: Warp, tile: WorkTile, token: Int32) -> Int64:
    """Where c_scale [N / 256, total_M] has the scale of the tile's columns and this one of its tokens."""
    return Int64(tile.row >> 8) * Int64(warp.operands.total_m) + Int64(tile.token + token)


class SwigluWgmmaSwapAB:
    """wgmma with weights on M: the columns of a token are in all 8 warps, 16 each.

    Scratch: the largest of each warp's 16 columns, f32 [8, tokens]; then e4m3 of a warp [32 tokens, 16].
    """

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's products and scales."""
        block_m, scratch, lane, operands = self.config.block_m, warp.cta.scratch, warp.lane, warp.operands
        sums = block_m // 2  # a thread's products: 4 for 8 tokens, 2 of these in 2 columns
        pair = lane & 3
        largest, bytes_of = scratch, scratch + WARP_BYTES * 4 + warp.number * (WARP_BYTES // 2)
        for i in range_constexpr(sums):
            acc[i] = product(self.config.activation, acc[i], acc[sums + i])
        consumer_barrier(BARRIER)  # the tile before this one has been read
        for j in range_constexpr(block_m // 8):
            for x in range_constexpr(2):
                most = magnitude(acc[4 * j + x], acc[4 * j + 2 + x])
                for step in (4, 8, 16):
                    most = cute.arch.fmax(most, cute.arch.shuffle_sync_bfly(most, step))
                acc[sums + 2 * j + x] = most  # in gate's registers, which are free
        if lane < 4:
            for j in range_constexpr(block_m // 8):
                for x in range_constexpr(2):
                    token = 8 * j + 2 * pair + x
                    store_shared_float(largest + (warp.number * block_m + token) * 4, acc[sums + 2 * j + x])
        consumer_barrier(BARRIER)
        for j in range_constexpr(block_m // 8):
            for x in range_constexpr(2):
                most = Float32(0.0)
                for other in range_constexpr(CONSUMER_WARPS):
                    at = largest + (other * block_m + 8 * j + 2 * pair + x) * 4
                    most = cute.arch.fmax(most, load_shared_float(at))
                acc[sums + 2 * j + x] = most
        n = operands.n >> 1
        tokens = select(tile.row < operands.n, tile.tokens, 0)  # that are stored
        column = (tile.row >> 1) + warp.number * 16
        to = operands.c + Int64(tile.token + lane) * Int64(n) + Int64(column)
        for first in range_constexpr(0, block_m, 32):
            if first < tokens:
                for j in range_constexpr(first // 8, min(first + 32, block_m) // 8):
                    for x in range_constexpr(2):
                        factor = inverse(acc[sums + 2 * j + x])
                        at = bytes_of + (8 * j - first + 2 * pair + x) * 16 + (lane >> 2)
                        store_shared_e4m3(at, at + 8, acc[4 * j + x] * factor, acc[4 * j + 2 + x] * factor)
                cute.arch.sync_warp()
                x = load_shared_words(bytes_of + minimum(lane, min(32, block_m) - 1) * 16)
                store_global_words(to + Int64(first) * Int64(n), x, select(first + lane < tokens, 1, 0))
                cute.arch.sync_warp()
        if warp.number < 4:
            thread = warp.number * 32 + lane
            if thread < tokens:
                most = Float32(0.0)
                for other in range_constexpr(CONSUMER_WARPS):
                    most = cute.arch.fmax(most, load_shared_float(largest + (other * block_m + thread) * 4))
                to = operands.c_scale + scale_index(warp, tile, thread) * 4
                store_global_word(to, as_int(most * Float32(1 / LARGEST)), Int32(1))


class SwigluWgmmaTokensM:
    """wgmma with tokens on M: four lanes have a token's columns, up before gate. Scratch: e4m3 [16 tokens, 128]."""

    def __init__(self, config: Config):
        self.config, self.layout = config, AccumulatorLayout(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's products and scales."""
        lane, operands = warp.lane, warp.operands
        n, scratch = operands.n >> 1, warp.cta.scratch + warp.number * self.config.scratch_bytes
        tokens = select(tile.row < operands.n, tile.tokens, 0)  # that are stored
        first = self.layout.first_token(warp.number)
        row, pair, sums = lane >> 2, lane & 3, BLOCK_N // 2
        for i in range_constexpr(sums):
            acc[i] = product(self.config.activation, acc[i], acc[sums + i])
        if first < tokens:
            most = [Float32(0.0), Float32(0.0)]
            for i in range_constexpr(sums):
                most[i // 2 % 2] = cute.arch.fmax(most[i // 2 % 2], cute.math.absf(acc[i]))
            for step in (1, 2):
                most = [cute.arch.fmax(x, cute.arch.shuffle_sync_bfly(x, step)) for x in most]
            for x in range_constexpr(2):
                factor = inverse(most[x])
                for j in range_constexpr(BLOCK_N // 8):  # 16 bytes swizzled by the token, for the banks
                    at = scratch + (row + 8 * x) * BLOCK_N + (((j >> 1) ^ row) << 4) + (j & 1) * 8 + pair * 2
                    store_shared_e4m3_pair(at, acc[4 * j + 2 * x] * factor, acc[4 * j + 2 * x + 1] * factor)
            cute.arch.sync_warp()
            column = Int64((tile.row >> 1) + (lane & 7) * 16)
            for i in range_constexpr(4):
                token = (lane >> 3) + 4 * i
                x = load_shared_words(scratch + token * BLOCK_N + (((lane & 7) ^ (token & 7)) << 4))
                to = operands.c + Int64(tile.token + first + token) * Int64(n) + column
                store_global_words(to, x, select(first + token < tokens, 1, 0))
            cute.arch.sync_warp()
            token = first + row + 8 * pair  # for two of four lanes
            scale = select_float(pair == 0, most[0], most[1]) * Float32(1 / LARGEST)
            index, wanted = scale_index(warp, tile, token), select((pair < 2) & (token < tokens), 1, 0)
            store_global_word(operands.c_scale + index * 4, as_int(scale), wanted)


class SwigluTmemSwapAB:
    """Tensor memory with weights on the lanes: a warpgroup's four warps have the columns of its tokens, 32 each.

    Scratch: the largest of each warp's 32 columns, f32 [8, tokens / 2].
    """

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's products and scales."""
        stride, lane, operands = self.config.block_m // 2, warp.lane, warp.operands  # a thread's products
        group, columns = warp.number >> 2, tile.width >> 1
        own, of_group = warp.cta.scratch + warp.number * (4 * stride), warp.cta.scratch + group * (16 * stride)
        warpgroup_barrier(group + 1)  # the tile before this one has been read
        for j in range_constexpr(stride):
            acc[j] = product(self.config.activation, acc[j], acc[stride + j])
            most = cute.arch.warp_redux_sync(as_int(acc[j]) & 0x7FFFFFFF, "max")  # as floats without a sign compare
            if lane == 0:
                store_shared(own + 4 * j, most)
        warpgroup_barrier(group + 1)
        n = operands.n >> 1
        first = group * columns
        valid = minimum(tile.tokens - first, columns)
        column = (tile.row >> 1) + (warp.number & 3) * 32 + lane
        to = operands.c + Int64(tile.token + first) * Int64(n) + Int64(column)
        for j in range_constexpr(0, stride, 2):
            if j < valid:
                x, y = [acc[i] * inverse(largest_of(of_group + 4 * i, stride)) for i in (j, j + 1)]
                at = to + Int64(j) * Int64(n)
                store_global_e4m3(at, at + Int64(n), x, y, select(j + 1 < valid, 1, 0))
        thread = (warp.number & 3) * 32 + lane
        if thread < valid:
            scale = largest_of(of_group + 4 * thread, stride) * Float32(1 / LARGEST)
            index = scale_index(warp, tile, first + thread)
            store_global_word(operands.c_scale + index * 4, as_int(scale), Int32(1))


def largest_of(at: Int32, stride: int) -> Float32:
    """The largest of four warps'; NaN above all."""
    low, high = [maximum(load_shared(x), load_shared(x + 4 * stride)) for x in (at, at + 8 * stride)]
    return as_float(maximum(low, high))


class SwigluTmemTokensM:
    """Tensor memory with tokens on the lanes: two threads, one of each warpgroup, have the columns of a token.

    Products go through scratch, e4m3 [32 tokens, 64] of a warp, so that a token's 64 bytes are stored side by side;
    there its parts of 16 are swizzled by the token, for the banks.
    """

    def __init__(self, config: Config):
        self.config, self.layout = config, AccumulatorLayout(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's products and scales."""
        lane, operands, columns = warp.lane, warp.operands, BLOCK_N // 2
        n, group, first = operands.n >> 1, warp.number >> 2, self.layout.first_token(warp.number)
        scratch = warp.cta.scratch + warp.number * self.config.scratch_bytes
        of_other = warp.cta.scratch + (warp.number ^ 4) * self.config.scratch_bytes
        if first < tile.tokens:
            most = Float32(0.0)
            for i in range_constexpr(0, columns, TOGETHER):
                at = range(i, i + TOGETHER)
                pairs = [acc[j] for j in at], [acc[columns + j] for j in at]
                for j, x in zip(at, products(self.config.activation, *pairs)):
                    acc[j] = x
                    most = cute.arch.fmax(most, cute.math.absf(x))
            store_shared_float(scratch + 4 * lane, most)
            pair_barrier(PAIRS + (warp.number & 3))
            most = cute.arch.fmax(most, load_shared_float(of_other + 4 * lane))
            pair_barrier(PAIRS + (warp.number & 3))  # both have read
            factor = inverse(most)
            for x in range_constexpr(columns // 16):
                words = [pack_e4m3([acc[16 * x + 4 * i + j] * factor for j in range(4)]) for i in range(4)]
                store_shared_words(scratch + lane * columns + ((x ^ ((lane >> 1) & 3)) << 4), words)
            cute.arch.sync_warp()
            column = Int64((tile.row >> 1) + group * columns + (lane & 3) * 16)
            for i in range_constexpr(4):
                token = 8 * i + (lane >> 2)
                x = load_shared_words(scratch + token * columns + (((lane ^ (token >> 1)) & 3) << 4))
                to = operands.c + Int64(tile.token + first + token) * Int64(n) + column
                store_global_words(to, x, select(first + token < tile.tokens, 1, 0))
            cute.arch.sync_warp()
            index = scale_index(warp, tile, first + lane)
            wanted = select((group == 0) & (first + lane < tile.tokens), 1, 0)
            store_global_word(operands.c_scale + index * 4, as_int(most * Float32(1 / LARGEST)), wanted)
