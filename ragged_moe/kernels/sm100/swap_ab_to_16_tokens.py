"""The sm_100a mainloops with swap-AB, for experts of few tokens: a thread has one weight row, its lane of TMEM.

    MMA warp ─► accumulator 0 or 1 ─► 2 warpgroups, half of the tokens each: tcgen05.ld, sum = fma(d, scale, sum)
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from ragged_moe.kernels.config import Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.mainloop import ByWidth, MainloopState, release
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import fma, load_shared_floats, mbarrier_wait, tcgen05_fence, tmem_load
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.kernels.sm100.tensor_memory import TensorMemory


class SwapAB(ByWidth):
    """A weight row of out, if gated one of up and the same of gate, and half of the tokens, of a thread."""

    def __init__(self, config: Config, tmem: TensorMemory):
        self.config, self.tmem = config, tmem

    @cute.jit
    def multiply(self, warp: Warp, width: cutlass.Constexpr, tile: WorkTile, state: MainloopState, acc):
        """The k-blocks of a tile of which this many tokens are loaded."""
        config, cta, columns, stage = self.config, warp.cta, width // 2, state.stage
        first = (warp.number >> 2) * columns
        tmem = self.tmem.address(cta) + ((warp.number & 3) << 21) + first
        for i in cutlass.range(tile.k_count, unroll=1):
            turn = state.done + i
            mbarrier_wait(cta.scales_full + 8 * stage.index, stage.phase)
            self.tmem.wait_full(cta.mma, turn)
            tcgen05_fence("after")
            for gate in range_constexpr(1 + config.gated):
                d = tmem_load(tmem + (2 * gate + (turn & 1)) * self.tmem.stride, columns)
                at = cta.scales + stage.index * config.scale_bytes + gate * (4 * config.scale_row_bytes) + 4 * first
                scales = []
                for j in range_constexpr(columns // 4):
                    scales += load_shared_floats(at + 16 * j)
                if const_expr(not config.gated):
                    self.release(warp, turn, stage)
                for j in range_constexpr(columns):
                    to = gate * (config.block_m // 2) + j
                    acc[to] = fma(d[j], scales[j], acc[to])
            if const_expr(config.gated):
                self.release(warp, turn, stage)
            stage = stage.advance(config.scale_stages)
        return state._replace(stage=stage)

    def release(self, warp: Warp, turn: Int32, stage: PipelineState) -> None:
        """Hand an accumulator and a stage of scales back."""
        tcgen05_fence("before")
        cute.arch.sync_warp()
        self.tmem.release(warp.cta.mma, turn, warp.lane)
        release(self.config, warp.cta, stage.index, warp.lane)
