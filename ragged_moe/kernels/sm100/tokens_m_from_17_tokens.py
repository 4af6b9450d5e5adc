"""The sm_100a mainloop with tokens on M, the lanes of tensor memory, for experts of many tokens.

    MMA warp:  128 tokens x 256 weight rows, 128 of K ──► accumulator 0 or 1, of 256 columns each: all of tensor memory
    a thread:  one token, half of the columns; a_scale * b_scale is one number for 128 of them;
               tcgen05.ld, sum = fma(d, scale, sum) two at once

Of a thread's 128 results 96 are in registers at once, and the last 32 come while two thirds of these are added. A tile
has 224 weight rows instead, 128 and 96 of a warpgroup, where these fill more SMs; or 128 or 64 where there are few
tiles: less to add up where one's K is shared (stream-K, split-K). If gated a warpgroup has 64 columns of up and the
same 64 of gate.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_N, GROUP_WARPS, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.layouts import AccumulatorLayout
from ragged_moe.kernels.mainloop import MainloopState, release
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import (
    divide,
    fma_pair,
    load_shared_float,
    mbarrier_wait,
    tcgen05_fence,
    tmem_load,
    tmem_load_wait,
    twice,
)
from ragged_moe.kernels.scales import padding
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.kernels.sm100.tensor_memory import TensorMemory

PART = 32  # columns that come from tensor memory at once


class TokensM:
    """A token, and half of the tile's weight rows, of a thread."""

    def __init__(self, config: Config, tmem: TensorMemory):
        self.config, self.tmem, self.layout = config, tmem, AccumulatorLayout(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, state: MainloopState, acc):
        """Scale and add what the MMA warp multiplies of a work tile, or let it pass if no token is this warp's.

        Returns the next state.
        """
        columns = self.config.accumulators  # of the first warpgroup; the second has the rest
        rest = self.config.block_n - columns
        if self.layout.first_token(warp.number) < tile.tokens:
            if const_expr(rest == columns):
                state = self.add(warp, tile, state, acc, columns)
            elif warp.number < GROUP_WARPS:
                state = self.add(warp, tile, state, acc, columns)
            else:
                state = self.add(warp, tile, state, acc, rest)
        else:
            state = self.skip(warp, tile, state)
        return state

    @cute.jit
    def skip(self, warp: Warp, tile: WorkTile, state: MainloopState):
        """Let the k-blocks of a tile pass none of whose tokens are this warp's."""
        cta, stage = warp.cta, state.stage
        barriers = self.tmem.barriers_of(cta, cute.arch.warp_idx() >> 2)  # found anew: AccumulatorLayout.is_used
        for i in cutlass.range(tile.k_count, unroll=1):
            turn = state.done + i
            self.tmem.wait_full(barriers, turn)
            mbarrier_wait(cta.scales_full + 8 * stage.index, stage.phase)
            release(self.config, cta, stage.index, warp.lane)
            self.tmem.release(barriers, turn, warp.lane)
            stage = stage.advance(self.config.scale_stages)
        return state._replace(stage=stage)

    @cute.jit
    def add(self, warp: Warp, tile: WorkTile, state: MainloopState, acc, columns: cutlass.Constexpr):
        """The k-blocks of a tile, of this many columns of a thread."""
        config, cta, lane, group, stage = self.config, warp.cta, warp.lane, warp.number >> 2, state.stage
        tmem = self.tmem.address(cta) + ((warp.number & 3) << 21)
        parts = [tmem + self.column_of(group, part) for part in range(columns // PART)]
        scales = self.scales_of(warp, columns)
        last = columns // PART - 1
        for i in cutlass.range(tile.k_count, unroll=1):
            turn = state.done + i
            self.tmem.wait_full(cta.mma, turn)
            tcgen05_fence("after")
            at = [x + (turn & 1) * self.tmem.stride for x in parts]
            d = [tmem_load(x, PART, wait=False) for x in at[:3]]
            # While they come: the scales
            scale = load_scales(config, warp, tile, tile.k_first + i, stage, scales)
            stage = stage.advance(config.scale_stages)
            tmem_load_wait()
            if const_expr(last == 3):  # it comes while two others are added
                add_part(acc, d[0], scale, 0, columns)
                d.append(tmem_load(at[3], PART, wait=False))
                add_part(acc, d[1], scale, 1, columns)
                add_part(acc, d[2], scale, 2, columns)
                tmem_load_wait()
            tcgen05_fence("before")
            cute.arch.sync_warp()
            self.tmem.release(cta.mma, turn, lane)
            for part in range_constexpr(last if last == 3 else 0, last + 1):
                add_part(acc, d[part], scale, part, columns)
        return state._replace(stage=stage)

    def column_of(self, group: Int32, part: int) -> Int32:
        """Where a part of a warpgroup's columns begins in an accumulator; gated: two of up, then the same of gate."""
        if self.config.gated:
            return group * (BLOCK_N // 2) + part // 2 * BLOCK_N + part % 2 * PART
        return group * self.config.accumulators + part * PART

    def scales_of(self, warp: Warp, columns: int) -> tuple[Int32, list[Int32]]:
        """Addresses of a thread's scales in stage 0: its token's, and those of equally many of its columns each."""
        config, group = self.config, warp.number >> 2
        of_token = warp.cta.scales + (self.layout.first_token(warp.number) + warp.lane) * 4
        if config.gated:
            offsets = [Int32(0), Int32(4)]
        else:
            rows = config.weight_rows_per_scale
            firsts = range(0, columns, min(rows, columns))
            offsets = [divide(group * config.accumulators + first, rows) * 4 for first in firsts]
        return of_token, [warp.cta.scales + config.weight_scales_offset + x for x in offsets]


def load_scales(
    config: Config, warp: Warp, tile: WorkTile, k: Int32, stage: PipelineState, scales: tuple
) -> list[Float32]:
    """a_scale * b_scale of a thread's results in k-block k, from this stage of the ring of scales."""
    of_token, of_weights = scales
    mbarrier_wait(warp.cta.scales_full + 8 * stage.index, stage.phase)
    offset, before = stage.index * config.scale_bytes, padding(config, tile, warp.operands, k)
    scale = load_shared_float(of_token + offset + 4 * before)
    scale = [scale if config.channels else scale * load_shared_float(x + offset) for x in of_weights]
    release(config, warp.cta, stage.index, warp.lane)
    return scale


def add_part(acc, d: list[Float32], scales: list[Float32], part: int, columns: int) -> None:
    """Add a part of this many columns, with its scale: each is of equally many parts."""
    add_scaled(acc, d, twice(scales[part * len(scales) // (columns // PART)]), PART * part)


def add_scaled(acc, d: list[Float32], scale: Int64, first: int) -> None:
    """sum = fma(d, scale, sum) of the columns from the first one on, two at once."""
    for j in range(0, len(d), 2):
        to = first + j
        acc[to], acc[to + 1] = fma_pair(d[j], d[j + 1], scale, acc[to], acc[to + 1])
