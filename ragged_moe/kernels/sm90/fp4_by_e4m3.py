"""The sm_90a mainloop for weights in e2m1 and tokens in e4m3: operand A of wgmma, from registers, is made e4m3 there.

As fp4_weights.py, at twice the rate: weights are on M, tokens on N, and each of two warpgroups has 64 of every 128
weight rows of the tile. But as with all e4m3 on Hopper the tensor core's sums keep 14 bits, so that those of each 128
of K are added up in other registers, in f32. A warpgroup does one of its 64 rows after the other:

    decode half of K, wgmma │ decode the other, wgmma │ load the next words, wait │ sum += d

While one decodes and adds, the other one has the tensor core, as in the kernels with tokens on M.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_N, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.dequantise_e4m3 import weights_of
from ragged_moe.kernels.mainloop import ByWidth, MainloopState, release
from ragged_moe.kernels.ptx import (
    fence_proxy_async,
    fma_in_order,
    load_shared,
    load_shared_words,
    matrix_descriptor,
    mbarrier_wait,
    uniform,
    wgmma_of_registers,
    wgmma_wait_keeping,
)
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.kernels.sm90.fp4_registers import loaded_stage, weight_places

HALF = 64  # K of a word of scales, and of four words of weights


class Fp4ByE4m3(ByWidth):
    """out [64 weight rows, tokens] of a warpgroup, once or twice."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def multiply(self, warp: Warp, width: cutlass.Constexpr, tile: WorkTile, state: MainloopState, acc):
        """The k-blocks of a tile of which this many tokens are loaded."""
        config, cta, lane, stage = self.config, warp.cta, warp.lane, state.stage
        parts, sums, of_part = config.block_n // BLOCK_N, width // 2, config.block_m // 2
        tokens, at = matrix_descriptor(cta.ring), weight_places(config, warp, 4)
        packed = cute.make_rmem_tensor((10,), Int32)  # the words to come: 64 rows' of a k-block
        d = [Float32(0.0)] * sums
        mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
        self.load(at, stage.index * config.stage_bytes, 0, packed)
        following = stage.advance(config.stages)
        for k in cutlass.range(tile.k_count, unroll=1):
            offset = stage.index * config.stage_bytes
            index, phase = loaded_stage(stage, following, k, tile.k_count)
            b = uniform(tokens + (offset >> 4))
            for part in range_constexpr(parts):
                words, a = [packed[i] for i in range(10)], []
                for half in range_constexpr(2):
                    of_half = self.decoded(words[5 * half : 5 * half + 5])
                    at_half = b + half * (HALF >> 4)
                    (d,) = wgmma_of_registers(width, "e4m3", [of_half], at_half, [d], fresh=half == 0)
                    a += of_half
                if const_expr(part + 1 < parts):
                    self.load(at, offset, part + 1, packed)
                else:
                    mbarrier_wait(cta.full + 8 * index, phase)
                    self.load(at, index * config.stage_bytes, 0, packed)
                wgmma_wait_keeping(0, a)
                if const_expr(part + 1 == parts):
                    fence_proxy_async()  # what overwrites the stage is TMA, and this warp has read it
                    release(config, cta, stage.index, lane)
                for i in range_constexpr(sums):
                    acc[part * of_part + i] = fma_in_order(d[i], Float32(1.0), acc[part * of_part + i])
            stage, following = following, following.advance(config.stages)
        return state._replace(stage=stage)

    def load(self, at: tuple[Int32, Int32], offset: Int32, part: int, packed) -> None:
        """Load a part of the stage at this offset: of each half of K four words of weights, and one of their scales."""
        weights, scales = at
        for half in range(2):
            words = load_shared_words(weights + offset + part * 8192 + half * 2048)
            words.append(load_shared(scales + offset + part * 512 + half * 128))
            for i, word in enumerate(words):
                packed[5 * half + i] = word

    def decoded(self, words: list[Int32]) -> list[Int32]:
        """Return operand A's registers of 64 of K. words: two steps' of the upper row, of the lower; their scales."""
        *weights, scales = words
        a = []
        for step in range(2):
            upper, lower = [weights_of(weights[2 * row + step], scales, 2 * row + step) for row in range(2)]
            a += [upper[0], lower[0], upper[1], lower[1]]
        return a
