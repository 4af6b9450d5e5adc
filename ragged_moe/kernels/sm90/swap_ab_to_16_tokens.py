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
    """out [64 weight rows, tokens] of a warpgroup."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def multiply(self, warp: Warp, width: cutlass.Constexpr, tile: WorkTile, state: MainloopState, acc):
        """Multiply the k-blocks of a tile that has this many tokens."""
        config, cta, lane, group = self.config, warp.cta, warp.lane, warp.number >> 2
        stage = state.stage
        weights = matrix_descriptor(cta.ring + group * (64 * BLOCK_K))
        tokens = matrix_descriptor(cta.ring + config.block_n * BLOCK_K)
        of_scales = cta.scales + (lane & 3) * config.scale_row_bytes
        for _ in cutlass.range(tile.k_count, unroll=1):
            mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
            offset = stage.index * (config.stage_bytes >> 4)
            scales = []
            for i in range_constexpr(width // 16):
                scales += load_shared_floats(of_scales + stage.index * config.scale_bytes + 16 * i)
            d = wgmma_fp8(width, uniform(weights + offset), uniform(tokens + offset))
            release(config, cta, stage.index, lane)
            for i in range_constexpr(width // 2):
                acc[i] = fma(d[i], scales[(i // 4 * 2 + i % 2) ^ 1], acc[i])  # scales.scale_offset says why
            stage = stage.advance(config.stages)
        return state._replace(stage=stage)


class GatedSwapAB(SwapAB):
    """up and gate [64 weight rows, tokens] of a warpgroup: each has its own scales, and half of the accumulators."""

    @cute.jit
    def multiply(self, warp: Warp, width: cutlass.Constexpr, tile: WorkTile, state: MainloopState, acc):
        config, cta, lane, group = self.config, warp.cta, warp.lane, warp.number >> 2
        stage = state.stage
        sums, of_gate = width // 2, config.block_m // 2
        first_weights = matrix_descriptor(cta.ring + group * (64 * BLOCK_K))
        tokens = matrix_descriptor(cta.ring + config.block_n * BLOCK_K)
        of_scales = cta.scales + (lane & 3) * config.scale_row_bytes
        for _ in cutlass.range(tile.k_count, unroll=1):
            mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
            fence_proxy_async()  # the tokens did not come by TMA
            offset = stage.index * (config.stage_bytes >> 4)
            for gate in range_constexpr(2):
                scales = []
                for i in range_constexpr(width // 16):
                    at = of_scales + stage.index * config.scale_bytes + gate * (4 * config.scale_row_bytes) + 16 * i
                    scales += load_shared_floats(at)
                weights = first_weights + offset + gate * (BLOCK_N * BLOCK_K >> 4)
                d = wgmma_fp8(width, uniform(weights), uniform(tokens + offset), wait=False)
                wgmma_wait(0)
                if const_expr(gate == 1):
                    release(config, cta, stage.index, lane)
                for i in range_constexpr(sums):
                    scale = scales[(i // 4 * 2 + i % 2) ^ 1]
                    acc[gate * of_gate + i] = fma_in_order(d[i], scale, acc[gate * of_gate + i])
            stage = stage.advance(config.stages)
        return state._replace(stage=stage)
