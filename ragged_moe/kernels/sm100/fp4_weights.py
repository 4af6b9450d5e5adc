"""The sm_100a mainloop for weights in e2m1 by tokens in bf16: operand A of tcgen05.mma, from tensor memory, where
consumers put it when they have made it bf16.

    a stage's words ─► registers: bf16, as sm90's (fp4_registers.py) ─► A, half 0 or 1 ─► MMA warp ─► sums, once a tile

Tokens are on N: a weight is made once for all tokens of a tile, and is read from memory in 4.5 bits.
"""

import cutlass
import cutlass.cute as cute
from cutlass import range_constexpr

from ragged_moe.kernels.config import Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.mainloop import MainloopState
from ragged_moe.kernels.ptx import (
    fence_proxy_async,
    mbarrier_wait,
    tcgen05_fence,
    tmem_load_rows,
    tmem_store_rows,
    tmem_store_wait,
)
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.kernels.sm90.fp4_registers import Fp4Registers, weight_places
from ragged_moe.kernels.sm100.fp4_tensor_memory import Fp4TensorMemory

TOGETHER = 16  # tokens whose sums come from tensor memory at once


class Fp4Weights:
    """out [64 weight rows, tokens] of a warpgroup, once or twice, in registers as wgmma would leave it."""

    def __init__(self, config: Config, tmem: Fp4TensorMemory):
        self.config, self.tmem, self.registers = config, tmem, Fp4Registers(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, state: MainloopState, acc):
        """Make the weights of a work tile's k-blocks bf16, and take their sums. Returns the next state."""
        config, cta, stage, parts = self.config, warp.cta, state.stage, self.tmem.parts
        at, tmem = weight_places(config, warp, 8), self.tmem.lanes(warp)
        for i in cutlass.range(tile.k_count, unroll=1):
            turn = state.done + i
            mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
            words = [self.registers.load(at, stage.index * config.stage_bytes, half) for half in range(2)]
            self.tmem.wait_full(cta.mma, turn - 2)  # of the first two a fresh barrier's parity
            tcgen05_fence("after")
            for half in range_constexpr(2):
                for part in range_constexpr(parts):
                    of_part = words[half][part : part + 1]
                    (a,) = self.registers.decoded(of_part, [*range(4)], self.registers.scaled(of_part))
                    tmem_store_rows(tmem + self.tmem.operand(turn & 1, part) + 32 * half, a)
            tmem_store_wait()
            tcgen05_fence("before")
            fence_proxy_async()  # what overwrites the stage is TMA, and this warp has read it
            cute.arch.sync_warp()
            self.tmem.release(cta.mma, turn, warp.lane)
            stage = stage.advance(config.stages)
        self.tmem.wait_full(cta.mma, state.done + tile.k_count - 1)
        tcgen05_fence("after")
        for first in range_constexpr(0, config.block_m, TOGETHER):
            if first < tile.width:
                for part in range_constexpr(parts):
                    at_part, to = part * config.block_m + first, (part * config.block_m + first) // 2
                    d = tmem_load_rows(tmem + at_part, TOGETHER)
                    for j in range_constexpr(TOGETHER // 2):
                        acc[to + j] = acc[to + j] + d[j]
        tcgen05_fence("before")
        return state._replace(stage=stage)
