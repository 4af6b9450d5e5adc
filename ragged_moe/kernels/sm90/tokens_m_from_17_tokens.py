"""The sm_90a mainloop with tokens on the M side of wgmma, for experts of many tokens.

    tile: 128 tokens x 64 to 256 weight rows. A warpgroup has 64 of the tokens, and up to 128 weight rows at a time:
          d = wgmma of 128 of K      | while the other scales and adds
          sum = fma(d, scale, sum)   | while the other multiplies

A thread has two of the tokens, so it needs two scales for 128 weight rows; with swap-AB it needs one for every other
sum. If gated, the first 128 weight rows are up's, the others gate's.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_K, BLOCK_N, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.layouts import WGMMA_M, AccumulatorLayout
from ragged_moe.kernels.mainloop import MainloopState, release
from ragged_moe.kernels.ptx import (
    fma_in_order,
    load_shared_float,
    map_shared,
    matrix_descriptor,
    mbarrier_test,
    mbarrier_wait,
    opaque,
    select,
    uniform,
    wgmma_fp8,
    wgmma_wait,
)
from ragged_moe.kernels.scales import padding
from ragged_moe.kernels.schedule import WorkTile


class TokensM:
    """out [64 tokens, block_n weight rows] of a warpgroup."""

    def __init__(self, config: Config):
        self.config, self.layout = config, AccumulatorLayout(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, state: MainloopState, acc):
        """Multiply, scale and add a work tile's k-blocks, or let them pass. Returns the next state."""
        if const_expr(self.config.tail):
            empty = map_shared(warp.cta.scales_empty, warp.lane & 1)
            warp = warp._replace(cta=warp.cta._replace(scales_empty=empty))
        if self.layout.has_half(warp.cta, tile, warp.number):
            if const_expr(self.config.overlaps_tokens):
                state = self.multiply(warp, tile, state, acc, half=True)
        elif (warp.number >> 2) * WGMMA_M < tile.width:
            state = self.multiply(warp, tile, state, acc)
        else:
            state = self.skip(warp, tile, state)
        return state

    @cute.jit
    def multiply(self, warp: Warp, tile: WorkTile, state: MainloopState, acc, half: cutlass.Constexpr = False):
        """half: with only that half of the weight rows that has the CTA's number."""
        config, cta, lane = self.config, warp.cta, warp.lane
        parts = -(-config.block_n // BLOCK_N)  # multiplications of a k-block
        rows, sums = config.block_n // parts, config.block_n // parts // 2  # weight rows of one; a thread's results
        short = rows <= 64  # too short to load scales meanwhile
        empty = cta.scales_empty if const_expr(config.tail) else uniform(cta.scales_empty)
        cta = cta._replace(full=uniform(cta.full), scales_empty=empty, scales=uniform(cta.scales))
        mine = self.releases(warp, tile)
        first = (warp.number >> 2) * WGMMA_M
        tokens = uniform(matrix_descriptor(cta.ring + (config.block_n + first) * BLOCK_K))
        weights, of_weights = matrix_descriptor(cta.ring), cta.scales + config.weight_scales_offset
        if const_expr(half):
            parts = 1
            weights, of_weights = weights + cta.rank * (rows * BLOCK_K >> 4), of_weights + 4 * cta.rank
        weights, blocks = uniform(weights), parts * rows // config.weight_rows_per_scale
        loads = 0 if config.channels else blocks
        of_tokens = cta.scales + (first + (warp.number & 3) * 16 + (lane >> 2)) * 4
        stage = state.stage
        ready = mbarrier_test(cta.full + 8 * stage.index, stage.phase)
        d = [Float32(0.0)] * sums
        for k in cutlass.range(tile.k_first, tile.k_first + tile.k_count, unroll=1):
            if ready == 0:
                mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
            offset, scales = uniform(stage.index * (config.stage_bytes >> 4)), stage.index * config.scale_bytes
            of_tile = of_tokens + scales + 4 * padding(config, tile, warp.operands, k)
            this, loaded, scale = stage.index, [], []
            if const_expr(short):
                loaded = load_scales(of_tile, of_weights + scales, loads)
            stage = stage.advance(config.stages)
            for part in range_constexpr(parts):
                b = weights + part * (rows * BLOCK_K >> 4)
                d = wgmma_fp8(rows, tokens + offset, b + offset, wait=False, into=d)
                # Meanwhile what else would keep the tensor core waiting between two multiplications
                if const_expr(part == 0):
                    if const_expr(not short):
                        loaded = load_scales(of_tile, of_weights + scales, loads)
                    scale = [loaded[:2]] * blocks
                    if const_expr(not config.channels):
                        scale = [[x * y for x in loaded[:2]] for y in loaded[2:]]
                wgmma_wait(0)
                if const_expr(part == parts - 1):
                    release(config, cta, this, lane, mine=mine)
                    ready = mbarrier_test(cta.full + 8 * stage.index, stage.phase)  # a test that fails costs a wait
                for i in range_constexpr(sums):
                    at = part * sums + i
                    row = part * rows + i // 4 * 8
                    acc[at] = fma_in_order(d[i], scale[row // config.weight_rows_per_scale][i // 2 % 2], acc[at])
        return state._replace(stage=stage)

    def releases(self, warp: Warp, tile: WorkTile):
        """With a tail: 1 if this lane arrives; two of the first warp do for the third warpgroup if it has no tokens."""
        if not self.config.tail:
            return None
        lanes = select((warp.number == 0) & (tile.width <= self.config.block_m), 4, 2)
        return opaque(select(warp.lane < lanes, 1, 0))  # made once: S2R stood between multiplications

    @cute.jit
    def skip(self, warp: Warp, tile: WorkTile, state: MainloopState):
        """Let the k-blocks of a tile pass none of whose tokens are this warpgroup's."""
        config, cta, stage, mine = self.config, warp.cta, state.stage, self.releases(warp, tile)
        for _ in cutlass.range(tile.k_count, unroll=1):
            mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
            release(config, cta, stage.index, warp.lane, mine=mine)
            stage = stage.advance(config.stages)
        return state._replace(stage=stage)


def load_scales(of_tokens: Int32, of_weights: Int32, count: int) -> list[Float32]:
    """Load the scales of a thread's two tokens, then this many of the weights."""
    at = [of_tokens, of_tokens + 32, *(of_weights + 4 * i for i in range(count))]
    return [load_shared_float(x) for x in at]
