"""The epilogues of the grouped GEMM: sums rounded to bf16, to out [total_M, N]."""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_N, TRANSPOSED_TOKENS, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.epilogue.row_scales import scale
from ragged_moe.kernels.layouts import AccumulatorLayout
from ragged_moe.kernels.ptx import (
    load_shared_words,
    minimum,
    pack_bfloat,
    select,
    store_global_bfloat,
    store_global_words,
    store_matrix,
    store_shared_words,
)
from ragged_moe.kernels.schedule import WorkTile

STORED_ROWS = 64  # weight rows of a token that a warp stores at once, with tokens on M


class Bf16WgmmaSwapAB:
    """A warp's [16 weight rows, tokens], transposed through shared memory: 32 bytes of a token are stored together."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's results."""
        self.store(warp, tile, tile.row + (warp.number >> 2) * 64, acc, 0)

    @cute.jit
    def store(self, warp: Warp, tile: WorkTile, row: Int32, acc, begin: cutlass.Constexpr):
        """Store the results of 64 weight rows from `row` on, the accumulators from `begin` on."""
        config, lane, operands = self.config, warp.lane, warp.operands
        chunk = math.gcd(TRANSPOSED_TOKENS, config.block_m)
        scratch = warp.cta.scratch + warp.number * config.scratch_bytes
        # A lane's row of an 8x8 matrix: a token's 8 weight rows; halves change places every 4 tokens, for the banks
        token = (lane & 7) + ((lane >> 4) << 3)
        write = scratch + token * 32 + ((((lane >> 3) ^ (token >> 2)) & 1) << 4)
        token = lane >> 1
        read = scratch + token * 32 + (((lane ^ (token >> 2)) & 1) << 4)
        first = row + (warp.number & 3) * 16 + (lane & 1) * 8
        to = operands.out + (Int64(tile.token + token) * Int64(operands.n) + Int64(first)) * 2
        n, tokens = operands.n, tile.tokens
        left = select(first < n, tokens - token, 0)
        for c in range_constexpr(config.block_m // chunk):
            if c * chunk < tokens:
                for j in range_constexpr(chunk // 16):
                    base = begin + (c * chunk + j * 16) // 2
                    matrices = [pack_bfloat(acc[base + 2 * i], acc[base + 2 * i + 1]) for i in range(4)]
                    store_matrix(write + j * 512, matrices)
                cute.arch.sync_warp()
                for j in range_constexpr(chunk // 16):
                    x = load_shared_words(read + j * 512)
                    at = c * chunk + j * 16
                    store_global_words(to + Int64(at) * Int64(n) * 2, x, select(at < left, 1, 0))
                cute.arch.sync_warp()


class Bf16WgmmaFp4(Bf16WgmmaSwapAB):
    """The results of weights in e2m1, times their scales: each warpgroup has 64 of every 128 rows."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.scale = scale(config)
        self.begin = self.scale.begin  # loads what is one for all rows, before the tile is multiplied

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc, *begun):
        """Store a work tile's results."""
        for part in range_constexpr(self.config.block_n // BLOCK_N):
            row, begin = tile.row + part * BLOCK_N + (warp.number >> 2) * 64, part * (self.config.block_m // 2)
            self.scale(warp, tile, row, select(row < warp.operands.n, 1, 0), acc, begin, *begun)
            self.store(warp, tile, row, acc, begin)


class Bf16WgmmaTokensM:
    """A warp's [16 tokens, 64 weight rows] at a time: 128 bytes of a token are stored together."""

    def __init__(self, config: Config):
        self.config, self.layout = config, AccumulatorLayout(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's results."""
        config, lane, operands = self.config, warp.lane, warp.operands
        n, scratch, rows = operands.n, warp.cta.scratch + warp.number * config.scratch_bytes, config.block_n
        begin, end = tile.row, n
        if const_expr(config.overlaps_tokens):
            half, rank = self.layout.has_half(warp.cta, tile, warp.number), warp.cta.rank
            begin = begin + select(half, rank * BLOCK_N, 0)
            end = select(half, minimum(begin + BLOCK_N, n), n)
        token, right = lane & 15, lane >> 4  # whose row of a matrix this lane has, swizzled by the token for the banks
        write = scratch + token * (2 * STORED_ROWS)
        first = self.layout.first_token(warp.number)
        if first < tile.tokens:
            for part in range_constexpr(-(-rows // STORED_ROWS)):
                left = min(STORED_ROWS, rows - part * STORED_ROWS)
                for i in range_constexpr(left // 16):
                    base = part * (STORED_ROWS // 2) + 8 * i
                    matrices = [pack_bfloat(acc[base + 2 * x], acc[base + 2 * x + 1]) for x in range(4)]
                    store_matrix(write + (((2 * i + right) ^ (token & 7)) << 4), matrices, columns=False)
                cute.arch.sync_warp()
                for i in range_constexpr(4):
                    at, own = (lane >> 3) + 4 * i, lane & 7  # 8 lanes store a token
                    x = load_shared_words(scratch + at * (2 * STORED_ROWS) + ((own ^ (at & 7)) << 4))
                    row, column = first + at, begin + part * STORED_ROWS + own * 8
                    address = operands.out + (Int64(tile.token + row) * Int64(n) + Int64(column)) * 2
                    inside = select(row < tile.tokens, 1, 0) & select(column < end, 1, 0)
                    if const_expr(left < STORED_ROWS):
                        inside = inside & select(own * 8 < left, 1, 0)
                    store_global_words(address, x, inside)
                cute.arch.sync_warp()


class Bf16TmemSwapAB:
    """A thread's weight row, token by token: a warp writes 64 bytes of a token at once."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's results."""
        operands, row = warp.operands, tile.row + (warp.number & 3) * 32 + warp.lane
        columns = tile.width >> 1
        first = (warp.number >> 2) * columns
        n, left = operands.n, minimum(tile.tokens - first, columns)
        left = select(row < n, left, 0)
        to = operands.out + (Int64(tile.token + first) * Int64(n) + Int64(row)) * 2
        for j in range_constexpr(self.config.block_m // 2):
            store_global_bfloat(to + Int64(j) * Int64(n) * 2, acc[j], select(j < left, 1, 0))


class Bf16TmemTokensM:
    """A warp's [32 tokens, half of the columns], 16 tokens x as many columns at once as its scratch has room for.

    They go through shared memory, so that whole sectors are stored. There the parts of 16 bytes of a token are swizzled
    by it, for the banks.
    """

    def __init__(self, config: Config):
        self.config, self.layout = config, AccumulatorLayout(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's results."""
        self.store(warp, tile, acc)

    @cute.jit
    def store(self, warp: Warp, tile: WorkTile, acc, rows=None):
        """Store these results. rows: what says where to, if not to the rows of out in their order."""
        config, lane, operands, columns = self.config, warp.lane, warp.operands, self.config.accumulators
        n, width = operands.n, min(config.scratch_bytes // 32, columns)
        parts = width // 8  # of a token, which as many lanes store
        scratch = warp.cta.scratch + warp.number * config.scratch_bytes
        first = self.layout.first_token(warp.number)
        write, swizzle = scratch + (lane & 15) * (2 * width), lane & (parts - 1)
        token, part = lane // parts, lane & (parts - 1)  # of 32 // parts tokens that are stored at once
        column = tile.row + (warp.number >> 2) * columns
        to = operands.out + (Int64(tile.token + first + token) * Int64(n) + Int64(column + part * 8)) * 2
        left = select(column < n, tile.tokens - first - token, 0)
        end = minimum(n, tile.row + config.block_n) - column - part * 8  # of the columns from this lane's on
        if first < tile.tokens:
            if const_expr(rows is not None):
                ats = [16 * tokens + 32 // parts * i + token for tokens in range(2) for i in range(parts // 2)]
                ats = [rows.address(operands, x, column + part * 8) for x in ats]
            for c in range_constexpr(columns // width):
                if const_expr(config.ends_inside):
                    left = select(c * width < end, tile.tokens - first - token, 0)
                words = [pack_bfloat(acc[c * width + 2 * i], acc[c * width + 2 * i + 1]) for i in range(width // 2)]
                if const_expr(rows is not None):
                    words = rows.weighted(words)
                for tokens in range_constexpr(2):
                    if lane >> 4 == tokens:
                        for x in range_constexpr(parts):
                            store_shared_words(write + ((x ^ swizzle) << 4), words[4 * x : 4 * x + 4])
                    cute.arch.sync_warp()
                    for i in range_constexpr(parts // 2):
                        before = 32 // parts * i
                        row = before + token
                        found = load_shared_words(scratch + row * (2 * width) + ((part ^ (row & (parts - 1))) << 4))
                        if const_expr(rows is not None):
                            at = ats[tokens * (parts // 2) + i] + c * width * 2
                        else:
                            at = to + (Int64(16 * tokens + before) * Int64(n) + c * width) * 2
                        store_global_words(at, found, select(16 * tokens + before < left, 1, 0))
                    cute.arch.sync_warp()
