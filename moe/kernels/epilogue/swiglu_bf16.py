"""The epilogue of GEMM1 with weights in e2m1: silu(gate) * up in bf16, to c [total_M, N / 2].

A thread has up and gate of the same weight rows and tokens, and bf16 needs no scale: nothing is exchanged.
"""

import cutlass.cute as cute
from cutlass import range_constexpr

from moe.kernels.config import Config
from moe.kernels.context import Warp
from moe.kernels.epilogue.activation import product
from moe.kernels.epilogue.bf16 import Bf16WgmmaSwapAB
from moe.kernels.epilogue.row_scales import scale
from moe.kernels.ptx import select
from moe.kernels.schedule import WorkTile


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
            self.scale(warp, tile, column + half * columns, inside, acc, half * sums, half == 1)
        for i in range_constexpr(sums):
            acc[i] = product(self.config.activation, acc[i], acc[sums + i])
        of_products = warp._replace(operands=warp.operands._replace(n=columns))
        self.bf16.store(of_products, tile, column, acc, 0)
