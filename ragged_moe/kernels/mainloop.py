"""What the consumers' mainloops have in common: their state, and the release of a stage."""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from ragged_moe.kernels.context import Cta, Warp
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import map_shared, mbarrier_arrive, mbarrier_arrive_cluster, minimum, select
from ragged_moe.kernels.schedule import WorkTile


class MainloopState(NamedTuple):
    """Where the consumers are between one work tile and the next."""

    stage: PipelineState  # of the ring of scales, which sm90 has in the stages of the operands
    done: Int32  # k-blocks so far, with block scales work tiles: its parity is that of the accumulator in tensor memory


@cute.jit
def release(config: cutlass.Constexpr, cta: Cta, slot: Int32, lane: Int32, condition=True, mine=None):
    """This warp has read a stage of that ring: arrive at its empty barrier, in all CTAs that write to it, if so.

    mine: with a tail 1 if this lane arrives; scales_empty is mapped to its CTA then, once for many releases.
    """
    cute.arch.sync_warp()
    bar = cta.scales_empty + 8 * slot
    if const_expr(config.cluster == 1 or config.scale_ring):
        mbarrier_arrive(bar, select((lane == 0) & condition, 1, 0))
    else:
        to = bar if const_expr(config.tail) else map_shared(bar, minimum(lane, config.cluster - 1))
        mine = select((lane < config.cluster) & condition, 1, 0) if const_expr(mine is None) else mine
        mbarrier_arrive_cluster(to, mine)


class ByWidth:
    """A swap-AB mainloop: `multiply(warp, width, tile, state, acc)` is compiled for each number of tokens of a box.

    self.config: the Config.
    """

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, state: MainloopState, acc):
        """Multiply, scale and add a work tile's k-blocks. Returns the next state."""
        for width in self.config.boxes:
            if tile.width == width:
                state = self.multiply(warp, width, tile, state, acc)
        return state
