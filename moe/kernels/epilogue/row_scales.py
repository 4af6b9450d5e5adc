"""The last step of results of e2m1 weights by e4m3 tokens: times the scales of token and weight row, plus a bias."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from moe.kernels.config import Config
from moe.kernels.context import Warp
from moe.kernels.ptx import fma, load_global_float, select
from moe.kernels.schedule import WorkTile


class RowScales:
    """Multiplies results by a_scale, then by row_scale, and adds a bias if the config has one."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def __call__(
        self, warp: Warp, tile: WorkTile, row: Int32, inside: Int32, acc, begin: cutlass.Constexpr,
        second: cutlass.Constexpr = False,
    ):  # fmt: skip
        """The results of 64 of an expert's weight rows from `row` on, the accumulators from `begin` on.

        inside: whether there are such rows. second: whether they are of the second half of the rows, of no account.
        """
        operands, lane = warp.operands, warp.lane
        of_lane = row + (warp.number & 3) * 16 + (lane >> 2)  # a thread has two rows, 8 apart
        offset = (Int64(tile.expert) * Int64(operands.n) + Int64(of_lane)) * 4
        rows = [load_global_float(operands.row_scale + offset + 32 * i, inside) for i in range(2)]
        if const_expr(self.config.bias):
            biases = [load_global_float(operands.bias + offset + 32 * i, inside) for i in range(2)]
        at, left = operands.a_scale + Int64(tile.token) * 4, tile.tokens
        for i in range_constexpr(self.config.block_m // 8):
            for j in range_constexpr(2):
                token = 8 * i + (lane & 3) * 2 + j
                scale = load_global_float(at + Int64(token) * 4, select(token < left, 1, 0))
                for half in range_constexpr(2):
                    place = begin + 4 * i + 2 * half + j
                    if const_expr(self.config.bias):
                        acc[place] = fma(acc[place] * scale, rows[half], biases[half])
                    else:
                        acc[place] = acc[place] * scale * rows[half]
