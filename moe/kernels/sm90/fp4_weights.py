"""The sm_90a mainloop for weights in e2m1: operand A of wgmma, from registers, where each thread makes them 16 bits.

Tokens are wgmma's N side, so that a weight is made once for all tokens of a tile, and is read from memory in 4.5 bits.
Each of two warpgroups has 64 of every 128 weight rows of the tile, and all tokens: if gated 64 of up's and the same of
gate's. Sums stay in wgmma's accumulators for all of a tile's K.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from moe.kernels.config import BLOCK_K, BLOCK_N, Config
from moe.kernels.context import Cta, Warp
from moe.kernels.dequantise import scales_of, weights_of
from moe.kernels.mainloop import ByWidth, MainloopState, release
from moe.kernels.pipeline import PipelineState
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
        self.config, self.parts = config, config.block_n // BLOCK_N
        self.overlaps = config.accumulators <= 64  # whether registers hold more operands beside the sums

    def load(self, weights: Int32, scales: Int32, half: int) -> list:
        """Words of weights and of scales that this thread has of a half of a k-block, for each part."""
        found = []
        for part in range(self.parts):
            words = load_shared_words(weights + part * 8192 + half * 2048)
            found.append((words, load_shared_pair(scales + part * 1024 + half * 256)))
        return found

    def operands(self, loaded: list) -> list[list[Int32]]:
        """Registers of operand A, 16 for each part."""
        made = []
        for words, of_rows in loaded:
            upper, lower = [scales_of(x, self.config.w4a16) for x in of_rows]
            steps = [weights_of(word, *of_step, self.config.w4a16) for word, *of_step in zip(words, upper, lower)]
            made.append([x for step in steps for x in step])
        return made

    @cute.jit
    def multiply(self, warp: Warp, width: cutlass.Constexpr, tile: WorkTile, state: MainloopState, acc):
        """The k-blocks of a tile of which so many tokens are loaded.

        While the tensor core multiplies the second half of a k-block, operands for the next one's first half are made.
        """
        config, cta, lane, stage = self.config, warp.cta, warp.lane, state.stage
        sums, sums_of_part = width // 2, config.block_m // 2
        tokens = matrix_descriptor(cta.ring)
        of_warp, row = (warp.number & 3), warp.number >> 2  # of 64
        weights = cta.ring + config.block_m * (2 * BLOCK_K) + row * 4096 + of_warp * 512 + lane * 16
        scales = cta.ring + config.block_m * (2 * BLOCK_K) + config.block_n * (BLOCK_K // 2)
        scales = scales + row * 512 + of_warp * 64 + (lane >> 2) * 8
        places = [part * sums_of_part + i for part in range(self.parts) for i in range(sums)]
        mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
        offset = stage.index * config.stage_bytes
        a = self.operands(self.load(weights + offset, scales + offset, 0))
        for k in cutlass.range(tile.k_count, unroll=1):
            offset = stage.index * config.stage_bytes
            loaded, read = self.load(weights + offset, scales + offset, 1), []
            for half in range_constexpr(2):
                b = uniform(tokens + (offset >> 4) + half * (width * BLOCK_K >> 4))
                for part in range_constexpr(self.parts):
                    at = part * sums_of_part
                    d = wgmma_of_registers(width, config.w4a16, a[part], b, [acc[at + i] for i in range(sums)])
                    for i in range_constexpr(sums):
                        acc[at + i] = d[i]
                read += [x for of_part in a for x in of_part]
                if const_expr(half == 0):
                    a = self.operands(loaded)
            following = stage.advance(config.stages)
            if const_expr(self.overlaps):
                a = self.next_operands(cta, following, weights, scales, k + 1 < tile.k_count, a)
            d = wgmma_results([acc[i] for i in places], read)
            for i in range_constexpr(len(places)):
                acc[places[i]] = d[i]
            fence_proxy_async()  # what overwrites the stage is TMA, and these warps have read it
            release(config, cta, stage.index, lane)
            stage = following
            if const_expr(not self.overlaps):
                a = self.next_operands(cta, following, weights, scales, k + 1 < tile.k_count, a)
        return state._replace(stage=stage)

    @cute.jit
    def next_operands(self, cta: Cta, stage: PipelineState, weights: Int32, scales: Int32, exists, a: list):
        """Those of the first half of the k-block in this stage, if there is one; else what they were."""
        if exists:
            mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
            offset = stage.index * self.config.stage_bytes
            a = self.operands(self.load(weights + offset, scales + offset, 0))
        return a
