"""The sm_90a mainloop for weights in e2m1: operand A of wgmma, from registers, where each thread makes them 16 bits.

Tokens are wgmma's N side, so that a weight is made once for all tokens of a tile, and is read from memory in 4.5 bits.
Each of two warpgroups has 64 of every 128 weight rows of the tile, and all tokens: if gated 64 of up's and the same of
gate's. Sums stay in wgmma's accumulators for all of a tile's K.

A k-block's steps of 16 of K form groups. While wgmma multiplies one, the thread makes the next one's weights, also from
one k-block to the next, and loads the words of the one after from shared memory:

    load, decode  group 1     2     3     4   ...
    wgmma               ─► 1 ──► 2 ──► 3 ──► 4         two groups' registers take turns: of 1 and 3, of 2 and 4
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from moe.kernels.config import BLOCK_K, BLOCK_N, Config
from moe.kernels.context import Warp
from moe.kernels.dequantise import scales_of, weights_of
from moe.kernels.mainloop import ByWidth, MainloopState, release
from moe.kernels.ptx import (
    fence_proxy_async,
    load_shared_pair,
    load_shared_words,
    matrix_descriptor,
    maximum,
    mbarrier_wait,
    select,
    uniform,
    wgmma_of_registers,
    wgmma_results,
    wgmma_wait_keeping,
)
from moe.kernels.schedule import WorkTile


class Fp4Weights(ByWidth):
    """out [64 weight rows, tokens] of a warpgroup, once or twice."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def multiply(self, warp: Warp, width: cutlass.Constexpr, tile: WorkTile, state: MainloopState, acc):
        """The k-blocks of a tile of which so many tokens are loaded.

        A stage is released one group into the next k-block, when its own last one is multiplied.
        """
        config, cta, lane, stage = self.config, warp.cta, warp.lane, state.stage
        parts, sums, of_part = config.block_n // BLOCK_N, width // 2, config.block_m // 2
        places = [[part * of_part + i for i in range(sums)] for part in range(parts)]
        tokens = matrix_descriptor(cta.ring)
        of_warp, row = (warp.number & 3), warp.number >> 2  # of 64
        weights = cta.ring + config.block_m * (2 * BLOCK_K) + row * 4096 + of_warp * 512 + lane * 16
        scales = cta.ring + config.block_m * (2 * BLOCK_K) + config.block_n * (BLOCK_K // 2)
        scales = scales + row * 512 + of_warp * 64 + (lane >> 2) * 8
        # Steps of a group, by how many registers of operand A it may have beside the sums. Each group costs a wait
        most = {128: 8, 64: 16}.get(config.accumulators, 32)
        count = min(4, most // (4 * parts))
        groups = [(half, [*range(i, i + count)]) for half in range(2) for i in range(0, 4, count)]
        packed = cute.make_rmem_tensor((parts, 6), Int32)  # words of the 64 of K to come
        held = cute.make_rmem_tensor((4 * parts * count,), Int32)  # operand A of the last group of the k-block before
        for i in range_constexpr(4 * parts * count):
            held[i] = Int32(0)
        mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
        self.load(weights, scales, stage.index * config.stage_bytes, 0, packed)
        before = stage.index
        for k in cutlass.range(maximum(tile.k_count, 1), unroll=1):  # ptxas must see that the loop is entered
            offset = stage.index * config.stage_bytes
            following = stage.advance(config.stages)
            more = k + 1 < tile.k_count
            index = select(more, following.index, stage.index)  # behind the last k-block its own words again
            phase = select(more, following.phase, stage.phase)
            of_block = tokens + (offset >> 4)
            under_way = [held[i] for i in range(4 * parts * count)]
            for half, steps in groups:
                if const_expr(steps[0] == 0):
                    scaled = self.scaled(packed)
                a = self.decoded(packed, steps, scaled)
                if const_expr(steps[-1] == 3 and half == 0):
                    self.load(weights, scales, offset, 1, packed)
                if const_expr(steps[-1] == 3 and half == 1):
                    mbarrier_wait(cta.full + 8 * index, phase)
                    self.load(weights, scales, index * config.stage_bytes, 0, packed)
                b = uniform(of_block + half * (width * BLOCK_K >> 4) + 2 * steps[0])
                self.issue(width, a, b, acc, places)
                wgmma_wait_keeping(1, under_way)
                under_way = sum(a, [])
                if const_expr(half == steps[0] == 0):
                    fence_proxy_async()  # what overwrites the stage is TMA, and these warps have read it
                    release(config, cta, before, lane, k > 0)
            for i in range_constexpr(4 * parts * count):
                held[i] = under_way[i]
            before = stage.index
            stage = following
        d = wgmma_results([acc[i] for i in sum(places, [])])
        for i, place in enumerate(sum(places, [])):
            acc[place] = d[i]
        fence_proxy_async()
        release(config, cta, before, lane)
        return state._replace(stage=stage)

    def load(self, weights: Int32, scales: Int32, offset: Int32, half: int, packed) -> None:
        """Load a thread's part of 64 of K: four words of weights, and a word of scales for each of two rows."""
        for part in range(self.config.block_n // BLOCK_N):
            words = load_shared_words(weights + offset + part * 8192 + half * 2048)
            words += load_shared_pair(scales + offset + part * 1024 + half * 256)
            for i, word in enumerate(words):
                packed[part, i] = word

    def issue(self, width: int, a: list[list[Int32]], b: Int32, acc, places: list[list[int]]) -> None:
        """Issue a group of wgmma."""
        d = wgmma_of_registers(width, self.config.w4a16, a, b, [[acc[i] for i in x] for x in places])
        for i, x in zip(sum(places, []), sum(d, [])):
            acc[i] = x

    def scaled(self, packed) -> list[list]:
        """Return the scales of each step of 16 of K, for the thread's two rows of each part."""
        parts = range(self.config.block_n // BLOCK_N)
        return [[*zip(*(scales_of(packed[part, i], self.config.w4a16) for i in (4, 5)))] for part in parts]

    def decoded(self, packed, steps: list[int], scaled: list[list]) -> list[list[Int32]]:
        """Return operand A's registers of these steps of 16 of K."""
        kind = self.config.w4a16
        return [
            sum((weights_of(packed[part, i], *of_part[i], kind) for i in steps), [])
            for part, of_part in enumerate(scaled)
        ]
