"""The sm_90a mainloop for weights in e2m1: operand A of wgmma, from registers, where each thread makes them 16 bits.

Tokens are wgmma's N side, so that a weight is made once for all tokens of a tile, and is read from memory in 4.5 bits.
Each of two warpgroups has 64 of every 128 weight rows of the tile, and all tokens: if gated 64 of up's and the same of
gate's. Sums stay in wgmma's accumulators for all of a tile's K.
"""

import cutlass
import cutlass.cute as cute
from cutlass import range_constexpr

from moe.kernels.config import BLOCK_K, BLOCK_N, Config
from moe.kernels.context import Warp
from moe.kernels.dequantise import scales_of, weights_of
from moe.kernels.mainloop import ByWidth, MainloopState, release
from moe.kernels.ptx import (
    fence_proxy_async,
    load_shared_pair,
    load_shared_words,
    matrix_descriptor,
    mbarrier_wait,
    uniform,
    wgmma_of_registers,
    wgmma_results,
)
from moe.kernels.schedule import WorkTile


class Fp4Weights(ByWidth):
    """out [64 weight rows, tokens] of a warpgroup, once or twice."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def multiply(self, warp: Warp, width: cutlass.Constexpr, tile: WorkTile, state: MainloopState, acc):
        """The k-blocks of a tile of which so many tokens are loaded."""
        config, cta, lane, stage = self.config, warp.cta, warp.lane, state.stage
        parts, sums, of_part = config.block_n // BLOCK_N, width // 2, config.block_m // 2
        tokens = matrix_descriptor(cta.ring)
        of_warp, row = (warp.number & 3), warp.number >> 2  # of 64
        weights = cta.ring + config.block_m * (2 * BLOCK_K) + row * 4096 + of_warp * 512 + lane * 16
        scales = cta.ring + config.block_m * (2 * BLOCK_K) + config.block_n * (BLOCK_K // 2)
        scales = scales + row * 512 + of_warp * 64 + (lane >> 2) * 8
        for _ in cutlass.range(tile.k_count, unroll=1):
            mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
            offset = stage.index * config.stage_bytes
            for half in range_constexpr(2):
                b = uniform(tokens + (offset >> 4) + half * (width * BLOCK_K >> 4))
                for part in range_constexpr(parts):
                    words = load_shared_words(weights + offset + part * 8192 + half * 2048)
                    of_rows = load_shared_pair(scales + offset + part * 1024 + half * 256)
                    upper, lower = [scales_of(x, config.w4a16) for x in of_rows]
                    a = []
                    for word, *of_step in zip(words, upper, lower):
                        a += weights_of(word, *of_step, config.w4a16)
                    at = part * of_part
                    d = wgmma_of_registers(width, config.w4a16, a, b, [acc[at + i] for i in range(sums)])
                    for i in range_constexpr(sums):
                        acc[at + i] = d[i]
            places = [part * of_part + i for part in range(parts) for i in range(sums)]
            d = wgmma_results([acc[i] for i in places])
            for i in range_constexpr(len(places)):
                acc[places[i]] = d[i]
            fence_proxy_async()  # what overwrites the stage is TMA, and these warps have read it
            release(config, cta, stage.index, lane)
            stage = stage.advance(config.stages)
        return state._replace(stage=stage)
