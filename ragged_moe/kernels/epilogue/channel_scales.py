"""The step before the epilogue where each weight row, an output channel, has a scale of its own: results times it.

Which weight rows a thread's results are of depends on the accumulator layout (layouts.py).
"""

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from ragged_moe.kernels.config import BLOCK_N, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.layouts import AccumulatorLayout
from ragged_moe.kernels.ptx import load_global_float, minimum, select
from ragged_moe.kernels.schedule import WorkTile

TOGETHER = 16  # scales that a thread loads at once


class ChannelScaled:
    """Multiplies results by b_scale f32 [E, n], then stores them by the epilogue."""

    def __init__(self, config: Config, epilogue):
        self.config, self.layout, self.epilogue = config, AccumulatorLayout(config), epilogue

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's results."""
        for half in range_constexpr(1 + self.config.gated):
            self.multiply(warp, tile, acc, half)
        self.epilogue(warp, tile, acc)

    def multiply(self, warp: Warp, tile: WorkTile, acc, half: int) -> None:
        """Multiply a thread's results, if gated those of up or of gate."""
        sums = self.config.accumulators // (1 + self.config.gated)
        begin, end = self.span(warp, tile, half)
        rows = self.rows(warp, sums)
        for first in range(0, len(rows), TOGETHER):
            some = range(first, min(first + TOGETHER, len(rows)))
            scales = {i: self.scale(warp, tile, begin + rows[i], end) for i in some}
            for i in range(sums):
                if self.which(i, len(rows)) in some:
                    acc[half * sums + i] = acc[half * sums + i] * scales[self.which(i, len(rows))]

    def span(self, warp: Warp, tile: WorkTile, half: int) -> tuple[Int32, Int32]:
        """The weight rows of a tile's results: the first one, and where they end. half: of up, or of gate."""
        config, n = self.config, warp.operands.n
        if config.gated:
            return (tile.row >> 1) + half * (n >> 1), select(tile.row < n, n, 0)
        begin = tile.row
        if config.overlaps_tokens:
            begin = begin + select(self.layout.has_half(warp.cta, tile, warp.number), warp.cta.rank * BLOCK_N, 0)
        return begin, minimum(tile.row + config.block_n, n)

    def rows(self, warp: Warp, sums: int) -> list[Int32]:
        """The weight rows that a thread has results of, counted from the tile's first one."""
        config, lane, group = self.config, warp.lane, warp.number >> 2
        if config.arch == "sm100":
            if config.swap_ab:
                return [(warp.number & 3) * 32 + lane]
            return [group * sums + i for i in range(sums)]
        if config.swap_ab:
            first = group * 64 + (warp.number & 3) * 16 + (lane >> 2)
            return [first, first + 8]
        return [(lane & 3) * 2 + 8 * (i // 2) + i % 2 for i in range(sums // 2)]

    def which(self, i: int, rows: int) -> int:
        """Of these weight rows of a thread that of its result i."""
        if self.config.arch == "sm100":
            return i % rows
        return i // 2 % 2 if self.config.swap_ab else i // 4 * 2 + i % 2

    def scale(self, warp: Warp, tile: WorkTile, row: Int32, end: Int32) -> Float32:
        """Load the scale of a weight row of the tile's expert, 0 from `end` on."""
        at = warp.operands.b_scale + (Int64(tile.expert) * Int64(warp.operands.n) + Int64(row)) * 4
        return load_global_float(at, select(row < end, 1, 0))
