"""The epilogue of GEMM1 with weights in e2m1: silu(gate) * up in bf16, to c [total_M, N / 2].

A thread has up and gate of the same weight rows and tokens, and bf16 needs no scale: nothing is exchanged.
"""

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.kernels.config import Config
from moe.kernels.context import Warp
from moe.kernels.dequantise import FACTOR
from moe.kernels.epilogue.activation import product
from moe.kernels.epilogue.bf16 import Bf16WgmmaSwapAB
from moe.kernels.ptx import load_global_float
from moe.kernels.schedule import WorkTile


class SwigluWgmmaFp4:
    """Both results times their global scale, then the product, which is stored as the grouped GEMM's results are."""

    def __init__(self, config: Config):
        self.config, self.bf16 = config, Bf16WgmmaSwapAB(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's products."""
        operands, sums = warp.operands, self.config.block_m // 2
        of_expert = operands.b_global + Int64(tile.expert * operands.globals) * 4
        of_both = of_expert, of_expert + Int64(operands.globals - 1) * 4
        first, second = [load_global_float(x, Int32(1)) * Float32(1 / FACTOR) for x in of_both]
        for i in range_constexpr(sums):
            acc[i] = product(self.config.activation, acc[i] * first, acc[sums + i] * second)
        of_products = warp._replace(operands=operands._replace(n=operands.n >> 1))
        self.bf16.store(of_products, tile, (tile.row >> 1) + (warp.number >> 2) * 64, acc, 0)
