"""The epilogues of GEMM1 with weights in e2m1, or in bf16: silu(gate) * up in bf16, to c [total_M, N / 2].

Of tiles of 256 rows a thread has up and gate of the same weight rows and tokens, and bf16 needs no scale: nothing is
exchanged. Of tiles of 128 rows one warpgroup has up and the other one gate.
"""

import dataclasses

import cutlass.cute as cute
from cutlass import range_constexpr

from ragged_moe.kernels.config import BLOCK_N, GROUP_WARPS, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.epilogue.activation import product
from ragged_moe.kernels.epilogue.bf16 import Bf16WgmmaSwapAB, Bf16WgmmaTokensM
from ragged_moe.kernels.epilogue.row_scales import scale
from ragged_moe.kernels.ptx import (
    as_float,
    as_int,
    consumer_barrier,
    load_shared_words,
    select,
    store_shared_words,
)
from ragged_moe.kernels.schedule import WorkTile

BARRIER = 3  # of the consumers; each warpgroup has one of its own, 1 or 2


class SwigluWgmmaFp4:
    """Both results times their scales, then the product, which is stored as the grouped GEMM's results are."""

    def __init__(self, config: Config):
        self.config, self.bf16 = config, Bf16WgmmaSwapAB(config)
        self.scale = scale(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's products."""
        sums, columns = self.config.block_m // 2, warp.operands.n >> 1
        column = (tile.row >> 1) + (warp.number >> 2) * 64
        for half in range_constexpr(2):
            inside = select(column < columns, 1, 0)
            begun = self.scale.begin(warp, tile, half == 1)
            self.scale(warp, tile, column + half * columns, inside, acc, half * sums, *begun)
        for i in range_constexpr(sums):
            acc[i] = product(self.config.activation, acc[i], acc[sums + i])
        of_products = warp._replace(operands=warp.operands._replace(n=columns))
        self.bf16.store(of_products, tile, column, acc, 0)


class SwigluOfTwoWarpgroups:
    """The second warpgroup gives its results to the first one, where the same threads have the same rows and tokens."""

    def __init__(self, config: Config):
        self.config, self.bf16 = config, Bf16WgmmaSwapAB(config)
        self.scale = scale(config)
        assert 4 * config.accumulators * 32 <= config.scratch_bytes  # a warp's

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's products."""
        config, sums, columns = self.config, self.config.accumulators, warp.operands.n >> 1
        column, is_first = tile.row >> 1, warp.number < GROUP_WARPS
        inside = select(column < columns, 1, 0)
        given = warp.cta.scratch + (warp.number | GROUP_WARPS) * config.scratch_bytes + warp.lane * 16
        if is_first:
            self.scale(warp, tile, column, inside, acc, 0, *self.scale.begin(warp, tile))
        else:
            self.scale(warp, tile, column + columns, inside, acc, 0, *self.scale.begin(warp, tile, True))
            for i in range_constexpr(0, sums, 4):
                store_shared_words(given + i * 128, [as_int(acc[i + j]) for j in range(4)])
        consumer_barrier(BARRIER)
        if is_first:
            for i in range_constexpr(0, sums, 4):
                for j, word in enumerate(load_shared_words(given + i * 128)):
                    acc[i + j] = product(config.activation, acc[i + j], as_float(word))
        consumer_barrier(BARRIER)
        if is_first:
            of_products = warp._replace(operands=warp.operands._replace(n=columns))
            self.bf16.store(of_products, tile, column, acc, 0)


class SwigluWgmmaBf16:
    """Of weights in bf16, whose results have no scale: up and gate are of the same thread."""

    def __init__(self, config: Config):
        self.config = config
        of_products = dataclasses.replace(config, block_n=BLOCK_N, gated=False, permuted=False, copied=False)
        self.bf16 = (Bf16WgmmaSwapAB if config.swap_ab else Bf16WgmmaTokensM)(of_products)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's products."""
        sums, columns = self.config.accumulators // 2, warp.operands.n >> 1
        for i in range_constexpr(sums):
            acc[i] = product(self.config.activation, acc[i], acc[sums + i])
        of_products = warp._replace(operands=warp.operands._replace(n=columns))
        self.bf16(of_products, tile._replace(row=tile.row >> 1), acc)


def swiglu(config: Config) -> SwigluWgmmaFp4 | SwigluOfTwoWarpgroups:
    """Return the epilogue for the config's tile."""
    return (SwigluOfTwoWarpgroups if config.block_n == BLOCK_N else SwigluWgmmaFp4)(config)
