"""The accumulator layout: which tokens of a tile the results of a consumer warp are of.

    sm90, swap-AB        wgmma, weights on M: a warpgroup has 64 weight rows of each operand, and all tokens
    sm90, tokens on M    wgmma, a warpgroup has 64 of the tokens, a warp 16, a thread two, and all weight rows
    sm100, swap-AB       tensor memory, weights on the lanes: a thread has one weight row, and half of the tokens
    sm100, tokens on M   tensor memory, tokens on the lanes: a thread has one token, and half of the weight rows
"""

import cutlass.cute as cute
from cutlass import Int32

from ragged_moe.kernels.config import Config
from ragged_moe.kernels.context import Cta
from ragged_moe.kernels.ptx import minimum, select
from ragged_moe.kernels.schedule import WorkTile

WGMMA_M = 64  # tokens of a warpgroup


class AccumulatorLayout:
    """Where results are, under one config."""

    def __init__(self, config: Config):
        self.config = config

    def is_used(self, tile: WorkTile, warp: Int32, i: int) -> Int32:
        """1 if accumulators 4 * i to 4 * i + 3 of a thread of this warp are of tokens that the tile has, else 0."""
        block_m, as_wgmma = self.config.block_m, self.config.as_wgmma
        if not self.config.swap_ab and as_wgmma:
            used = (warp >> 2) * WGMMA_M < tile.width
        elif not self.config.swap_ab:
            # The number is found anew, which is modelled 2 % faster than to keep it in a register through the mainloop
            used = self.first_token(cute.arch.warp_idx()) < tile.tokens
        elif as_wgmma:  # they are of two weight rows, and of two of 8 neighbouring tokens (PTX ISA, 9.7.15.5.1.1)
            used = i * 8 % block_m < tile.tokens
        else:
            columns = tile.width >> 1
            used = 4 * i % (block_m // 2) < minimum(tile.tokens - (warp >> 2) * columns, columns)
        return select(used, 1, 0)

    def first_token(self, warp: Int32) -> Int32:
        """The first of the tile's tokens that the warp has results of, with tokens on M."""
        if self.config.arch == "sm90":
            return (warp >> 2) * WGMMA_M + (warp & 3) * 16
        return (warp & 3) * 32

    def has_half(self, cta: Cta, tile: WorkTile, warp: Int32):
        """Whether a warp's tokens are multiplied with only that half of the weight rows that has its CTA's number:
        where two tiles overlap (Config.overlaps_tokens).
        """
        return self.config.overlaps_tokens and (tile.overlaps != 0) & ((warp >> 2) != cta.rank)
