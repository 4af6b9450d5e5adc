"""The last step of results of weights in e2m1: times the expert's global scale, plus a bias of each weight row."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import Config
from ragged_moe.kernels.context import Warp, global_scale_address
from ragged_moe.kernels.dequantise import FACTOR
from ragged_moe.kernels.ptx import fma, load_global_float
from ragged_moe.kernels.schedule import WorkTile


class GlobalScale:
    """Multiplies results by b_global, and adds a bias if the config has one."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def begin(self, warp: Warp, tile: WorkTile, second: cutlass.Constexpr = False):
        """Load the scale of a work tile's expert. second: of the second half of its rows."""
        return (load_global_float(global_scale_address(warp.operands, tile.expert, int(second)), Int32(1)),)

    @cute.jit
    def __call__(
        self, warp: Warp, tile: WorkTile, row: Int32, inside: Int32, acc, begin: cutlass.Constexpr, scale: Float32
    ):
        """The results of 64 of an expert's weight rows from `row` on, the accumulators from `begin` on.

        inside: whether there are such rows. scale: what `begin` has loaded.
        """
        operands, sums, scale = warp.operands, self.config.block_m // 2, scale * Float32(1 / FACTOR)
        if const_expr(self.config.bias):
            biases = of_rows(operands.bias, warp, tile, row, inside)
            for i in range_constexpr(sums):
                acc[begin + i] = fma(acc[begin + i], scale, biases[i // 2 % 2])
        else:
            for i in range_constexpr(sums):
                acc[begin + i] = acc[begin + i] * scale


def of_rows(array: Int64, warp: Warp, tile: WorkTile, row: Int32, inside: Int32) -> list[Float32]:
    """Load a thread's two of an array f32 [E, n], 8 rows apart: of 64 of a tile's expert from `row` on, if `inside`."""
    of_lane = row + (warp.number & 3) * 16 + (warp.lane >> 2)
    at = array + (Int64(tile.expert) * Int64(warp.operands.n) + Int64(of_lane)) * 4
    return [load_global_float(at + 32 * i, inside) for i in range(2)]
