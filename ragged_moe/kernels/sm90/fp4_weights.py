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
from cutlass import Float32, Int32, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_K, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.mainloop import ByWidth, MainloopState, release
from ragged_moe.kernels.ptx import (
    fence_proxy_async,
    matrix_descriptor,
    maximum,
    mbarrier_wait,
    uniform,
    wgmma_of_registers,
    wgmma_results,
    wgmma_wait_keeping,
)
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.kernels.sm90.fp4_mma_sync import Fp4EightTokens
from ragged_moe.kernels.sm90.fp4_registers import Fp4Registers, keep, loaded_stage, weight_places


class Fp4Weights(ByWidth):
    """out [64 weight rows, tokens] of a warpgroup, once or twice."""

    def __init__(self, config: Config):
        self.config, self.registers, self.eight = config, Fp4Registers(config), Fp4EightTokens(config)

    def multiply(self, warp: Warp, width: int, tile: WorkTile, state: MainloopState, acc):
        """Multiply the k-blocks of a tile that has this many tokens."""
        by_width = self.eight(warp, tile, state, acc) if width == 8 else self.by_wgmma(warp, width, tile, state, acc)
        if self.config.widths:  # the others' registers are free in the loop, if nobody reads what was there before
            for i in {*range(self.config.accumulators)} - {*sum(self.places(width), [])}:
                acc[i] = Float32(0.0)
        return by_width

    def steps(self, width: int) -> int:
        """Return how many steps a group has, by how many registers of operand A it may have beside the sums. Each group
        costs a wait. Of several widths beside 128 sums ptxas gives none more than the widest has.
        """
        own = self.config.widths and self.config.accumulators <= 96
        sums = self.registers.parts * width // 2 if own else self.config.accumulators
        most = 32 if sums <= 32 else 16 if sums <= 64 else 8
        return min(4, most // (4 * self.registers.parts))

    def places(self, width: int) -> list[list[int]]:
        """Which accumulators have each part's sums of this many tokens."""
        of_part = self.config.block_m // 2
        return [[part * of_part + i for i in range(width // 2)] for part in range(self.registers.parts)]

    @cute.jit
    def by_wgmma(self, warp: Warp, width: cutlass.Constexpr, tile: WorkTile, state: MainloopState, acc):
        """The same by wgmma.

        A stage is released one group into the next k-block, when its own last one is multiplied.
        """
        config, cta, lane, stage = self.config, warp.cta, warp.lane, state.stage
        parts, places = self.registers.parts, self.places(width)
        tokens = matrix_descriptor(cta.ring)
        at = weight_places(config, warp, 8)
        count = self.steps(width)
        groups = [(half, [*range(i, i + count)]) for half in range(2) for i in range(0, 4, count)]
        packed = cute.make_rmem_tensor((parts, 6), Int32)  # words of the 64 of K to come
        held = cute.make_rmem_tensor((4 * parts * count,), Int32)  # operand A of the last group of the k-block before
        for i in range_constexpr(4 * parts * count):
            held[i] = Int32(0)
        mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
        keep(packed, self.registers.load(at, stage.index * config.stage_bytes, 0))
        before = stage.index
        following = stage.advance(config.stages)
        for k in cutlass.range(maximum(tile.k_count, 1), unroll=1):  # ptxas must see that the loop is entered
            offset = stage.index * config.stage_bytes
            index, phase = loaded_stage(stage, following, k, tile.k_count)
            of_block = tokens + (offset >> 4)
            under_way = [held[i] for i in range(4 * parts * count)]
            for half, steps in groups:
                if const_expr(steps[0] == 0):
                    words = [[packed[part, i] for i in range(6)] for part in range(parts)]
                    scaled = self.registers.scaled(words)
                a = self.registers.decoded(words, steps, scaled)
                if const_expr(steps[-1] == 3 and half == 0):
                    keep(packed, self.registers.load(at, offset, 1))
                if const_expr(steps[-1] == 3 and half == 1):
                    mbarrier_wait(cta.full + 8 * index, phase)
                    keep(packed, self.registers.load(at, index * config.stage_bytes, 0))
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
            stage, following = following, following.advance(config.stages)
        d = wgmma_results([acc[i] for i in sum(places, [])])
        for i, place in enumerate(sum(places, [])):
            acc[place] = d[i]
        fence_proxy_async()
        release(config, cta, before, lane)
        return state._replace(stage=stage)

    def issue(self, width: int, a: list[list[Int32]], b: Int32, acc, places: list[list[int]]) -> None:
        """Issue a group of wgmma."""
        d = wgmma_of_registers(width, self.config.fp4_tokens, a, b, [[acc[i] for i in x] for x in places])
        for i, x in zip(sum(places, []), sum(d, [])):
            acc[i] = x
