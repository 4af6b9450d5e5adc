"""The sm_90a mainloops with swap-AB, for experts of few tokens, which are the N side of wgmma and so cost little.

Each of two warpgroups has 64 weight rows of the tile's 128 (if gated, 64 of up's and 64 of gate's), and all tokens.
"""

import cutlass
import cutlass.cute as cute
from cutlass import const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_K, BLOCK_N, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.mainloop import ByWidth, MainloopState, release
from ragged_moe.kernels.ptx import (
    fence_proxy_async,
    fma,
    fma_in_order,
    load_shared_floats,
    matrix_descriptor,
    mbarrier_wait,
    uniform,
    wgmma_fp8,
    wgmma_wait,
)
from ragged_moe.kernels.schedule import WorkTile


class SwapAB(ByWidth):
    """out [64 weight rows, tokens] of a warpgroup. If gated up and gate: each has its own scales, and half of the
    accumulators.
    """

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def multiply(self, warp: Warp, width: cutlass.Constexpr, tile: WorkTile, state: MainloopState, acc):
        """Multiply the k-blocks of a tile that has this many tokens."""
        config, cta, lane, group = self.config, warp.cta, warp.lane, warp.number >> 2
        stage, add = state.stage, fma_in_order if config.gated else fma
        weights = matrix_descriptor(cta.ring + group * (64 * BLOCK_K))
        tokens = matrix_descriptor(cta.ring + config.block_n * BLOCK_K)
        of_scales = cta.scales + (lane & 3) * config.scale_row_bytes
        for _ in cutlass.range(tile.k_count, unroll=1):
            mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
            if const_expr(config.gated):
                fence_proxy_async()  # the tokens did not come by TMA
            offset = stage.index * (config.stage_bytes >> 4)
            for gate in range_constexpr(1 + config.gated):
                scales = []
                for i in range_constexpr(width // 16):
                    at = of_scales + stage.index * config.scale_bytes + gate * (4 * config.scale_row_bytes) + 16 * i
                    scales += load_shared_floats(at)
                a = weights + offset + gate * (BLOCK_N * BLOCK_K >> 4)
                d = wgmma_fp8(width, uniform(a), uniform(tokens + offset), wait=not config.gated)
                if const_expr(config.gated):
                    wgmma_wait(0)
                if const_expr(gate == config.gated):
                    release(config, cta, stage.index, lane)
                for i in range_constexpr(width // 2):
                    to = gate * (config.block_m // 2) + i
                    acc[to] = add(d[i], scales[(i // 4 * 2 + i % 2) ^ 1], acc[to])  # scales.scale_offset says why
            stage = stage.advance(config.stages)
        return state._replace(stage=stage)
