"""The sm_100a mainloop with block scales, tokens on M: the MMA scales and adds; a thread takes its sums once a tile.

    MMA warp:  128 tokens x 256 weight rows, all of the tile's K ──► accumulator
    a thread:  one token, half of the columns: tcgen05.ld
"""

import cutlass.cute as cute
from cutlass import range_constexpr

from ragged_moe.kernels.config import Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.layouts import AccumulatorLayout
from ragged_moe.kernels.mainloop import MainloopState, release
from ragged_moe.kernels.ptx import tcgen05_fence, tmem_load, tmem_load_wait
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.kernels.sm100.scaled_tensor_memory import ScaledTensorMemory
from ragged_moe.kernels.sm100.tokens_m_from_17_tokens import PART, TokensM

TOGETHER = 2  # parts that come at once: with all four the registers of sums and loads were too many


class ScaledTokensM(TokensM):
    """A token, and half of the tile's weight rows, of a thread."""

    def __init__(self, config: Config, tmem: ScaledTensorMemory):
        self.config, self.tmem, self.layout = config, tmem, AccumulatorLayout(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, state: MainloopState, acc):
        """Add what the MMA warp multiplies of a work tile, or let it pass if no token is this warp's.

        Returns the next state.
        """
        cta, turn, group = warp.cta, state.done, warp.number >> 2
        release(self.config, cta, state.stage.index, warp.lane)  # the work tile has been read
        self.tmem.wait_full(cta.mma, turn)
        if self.layout.first_token(warp.number) < tile.tokens:
            tcgen05_fence("after")
            at = self.tmem.address(cta) + ((warp.number & 3) << 21) + self.tmem.first_column(turn)
            parts = self.config.accumulators // PART
            for first in range_constexpr(0, parts, TOGETHER):
                coming = range(first, first + TOGETHER)
                d = [tmem_load(at + self.column_of(group, part), PART, wait=False) for part in coming]
                tmem_load_wait()
                for part in coming:
                    for i in range_constexpr(PART):
                        acc[PART * part + i] = acc[PART * part + i] + d[part - first][i]
            tcgen05_fence("before")
        cute.arch.sync_warp()
        self.tmem.release(cta.mma, turn, warp.lane)
        return state._replace(stage=state.stage.advance(self.config.scale_stages))
