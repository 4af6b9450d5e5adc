"""The last step of results of e2m1 weights by e4m3 tokens: times the scales of token and weight row, plus a bias."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.epilogue.global_scale import GlobalScale, of_rows
from ragged_moe.kernels.ptx import fma, load_global_float, select
from ragged_moe.kernels.schedule import WorkTile


class RowScales:
    """Multiplies results by a_scale, then by row_scale, and adds a bias if the config has one."""

    def __init__(self, config: Config):
        self.config = config

    def begin(self, _warp: Warp, _tile: WorkTile, _second: bool = False) -> tuple:
        """Load nothing yet."""
        return ()

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, row: Int32, inside: Int32, acc, begin: cutlass.Constexpr):
        """The results of 64 of an expert's weight rows from `row` on, the accumulators from `begin` on.

        inside: whether there are such rows.
        """
        operands, lane = warp.operands, warp.lane
        rows = of_rows(operands.row_scale, warp, tile, row, inside)
        if const_expr(self.config.bias):
            biases = of_rows(operands.bias, warp, tile, row, inside)
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


def scale(config: Config) -> GlobalScale | RowScales:
    """Return what scales the results of e2m1 weights by tokens of the config's type."""
    return (RowScales if config.fp4_tokens == "e4m3" else GlobalScale)(config)
