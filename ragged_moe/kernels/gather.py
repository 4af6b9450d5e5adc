"""Producers of GEMM1's tokens and scales where the tokens are not permuted: scale warps gather the rows by cp.async.

    rows int32 [total_m] (the token of each row), a [T, K] e4m3 ─► ring, swizzled as by TMA; a_scale, b_scale ─► scales
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_K, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.pipeline import PipelineState, stage_after
from ragged_moe.kernels.ptx import (
    copy_async,
    copy_async_arrive,
    copy_async_word,
    load_global_float,
    load_relaxed_if,
    mbarrier_arrive,
    mbarrier_wait,
    select,
    store_shared_float,
)
from ragged_moe.kernels.scales import announce, arrive_behind_copies, first_warp, scale_offset, stages_to_skip
from ragged_moe.kernels.schedule import Plan, WorkTile, tile_at


@cute.jit
def copy_rows(
    config: cutlass.Constexpr, to: Int32, source: Int64, row_bytes: Int64, tokens: list, count: Int32, width: Int32,
    lane: Int32,
):  # fmt: skip
    """As a warp, copy 128 bytes of the rows of a tile, 8 lanes a row, in the 128-byte swizzle, and zeros behind them.

    source: this lane's 16 bytes of token 0. tokens: of row `lane`, `lane` + 32, .. count: of the rows. width: of the
    rows and zeros.
    """
    first = lane >> 3
    for i in range_constexpr(config.block_m // 4):
        of_row = cute.arch.shuffle_sync(tokens[i // 8], 4 * (i % 8) + first)
        place = to + i * (4 * BLOCK_K) + first * BLOCK_K + (((lane & 7) ^ (4 * i & 4) ^ first) << 4)
        size, wanted = select(4 * i + first < count, 16, 0), select(4 * i < width, 1, 0)
        copy_async(place, source + Int64(of_row) * row_bytes, size, wanted)


class GatheredTokens:
    """Swap-AB, up to 32 tokens a tile: a lane has one of them. A warp fills every third or second stage on its own."""

    scale_arrivals = 1  # warps that fill each stage's scales
    token_arrivals = 1  # warps that fill each stage's tokens

    def __init__(self, config: Config):
        self.config = config
        self.warps = 3 if config.arch == "sm90" else 2

    @cute.jit
    def __call__(self, warp: Warp, plan: Plan, iteration: Int32, tile: WorkTile):
        """Fill this warp's stages of all work tiles from this one on: token rows, and a_scale * b_scale of each token
        for up and for gate.
        """
        config, cta, operands, lane = self.config, warp.cta, warp.operands, warp.lane
        number = warp.number - first_warp(self.warps)
        place = scale_offset(config, lane)
        count = Int32(0)  # stages before this tile
        while iteration < plan.end:
            k_blocks, scale_blocks = plan.shape.k_blocks, operands.n >> 7
            there = select(lane < tile.tokens, 1, 0)
            token = load_relaxed_if(operands.rows + Int64(tile.token + lane) * 4, there)
            address = operands.a_scale + Int64(token) * 4
            b_rows = []
            for gate in range_constexpr(2):
                row = tile.expert * scale_blocks + (tile.row >> 8) + gate * (scale_blocks >> 1)
                b_rows.append(operands.b_scale + Int64(row) * Int64(k_blocks) * 4)
            stride = Int64(operands.tokens) * 4
            skip = stages_to_skip(number, count, self.warps)
            for i in cutlass.range(skip, tile.k_count, self.warps, unroll=1):
                k = tile.k_first + i
                of_token = load_global_float(address + Int64(k) * stride, there)
                of_weights = []
                if const_expr(not config.channels):
                    of_weights = [load_global_float(x + Int64(k) * 4, Int32(1)) for x in b_rows]
                slot, turn = stage_after(count + i, config.stages)
                bar = cta.full + 8 * slot
                mbarrier_wait(cta.empty + 8 * slot, (turn & 1) ^ 1)
                to = cta.ring + slot * config.stage_bytes + config.block_n * BLOCK_K
                source = operands.a + Int64(k * BLOCK_K + (lane & 7) * 16)
                copy_rows(config, to, source, Int64(k_blocks * BLOCK_K), [token], tile.tokens, tile.width, lane)
                if const_expr(config.scale_ring):
                    arrive_behind_copies(bar, lane)
                    slot, turn = stage_after(count + i, config.scale_stages)
                    bar = cta.scales_full + 8 * slot
                    mbarrier_wait(cta.scales_empty + 8 * slot, (turn & 1) ^ 1)
                    announce(config, cta, slot, tile, i, lane)
                else:
                    copy_async_arrive(bar)
                to = cta.scales + slot * config.scale_bytes + place
                if lane < config.block_m:
                    for gate in range_constexpr(2):
                        store_shared_float(
                            to + gate * 4 * config.scale_row_bytes,
                            of_token if config.channels else of_token * of_weights[gate],
                        )
                cute.arch.sync_warp()
                mbarrier_arrive(bar, select(lane == 0, 1, 0))
            count = count + tile.k_count
            iteration = tile.next
            tile = tile_at(plan, config, cta.rank, iteration)


class GatheredTokenTiles:
    """Tokens on M, 128 a tile: two warps copy every other 4 rows of every stage, and half of the scales each."""

    warps = scale_arrivals = token_arrivals = 2

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def __call__(self, warp: Warp, plan: Plan, iteration: Int32, tile: WorkTile):
        """Fill this warp's part of every stage of all work tiles from this one on: 8 lanes a row, 128-byte swizzle."""
        config, cta, operands, lane = self.config, warp.cta, warp.operands, warp.lane
        number = warp.number - first_warp(self.warps)
        state, scale_state = PipelineState(Int32(0), Int32(1)), PipelineState(Int32(0), Int32(1))
        first, copied = 4 * number + (lane >> 3), range(0, config.block_m, 8)  # rows of this lane: first + each
        place = first * BLOCK_K + (((lane & 7) ^ first) << 4)
        own = 32 * number + lane  # one of the tokens whose scales this lane copies, and 64 on the other
        while iteration < plan.end:
            k_blocks, scale_blocks = plan.shape.k_blocks, operands.n >> 7
            rows = operands.rows + Int64(tile.token) * 4
            left = tile.tokens - first
            tokens = [load_relaxed_if(rows + Int64(i + first) * 4, select(i < left, 1, 0)) for i in copied]
            scaled = []  # tokens
            for i in range_constexpr(2):
                there = select(own + 64 * i < tile.tokens, 1, 0)
                scaled.append(load_relaxed_if(rows + Int64(own + 64 * i) * 4, there))
            row = tile.expert * scale_blocks + (tile.row >> 8) + (lane & 1) * (scale_blocks >> 1)  # of up, of gate
            for k in cutlass.range(tile.k_first, tile.k_first + tile.k_count, unroll=1):
                mbarrier_wait(cta.empty + 8 * state.index, state.phase)
                to = cta.ring + state.index * config.stage_bytes + config.block_n * BLOCK_K + place
                source = operands.a + Int64(k * BLOCK_K + (lane & 7) * 16)
                for i, token in zip(copied, tokens):
                    at = source + Int64(token) * Int64(k_blocks * BLOCK_K)
                    copy_async(to + i * BLOCK_K, at, select(i < left, 16, 0), Int32(1))
                arrive_behind_copies(cta.full + 8 * state.index, lane)
                state = state.advance(config.stages)
                mbarrier_wait(cta.scales_empty + 8 * scale_state.index, scale_state.phase)
                if number == 0:
                    announce(config, cta, scale_state.index, tile, k - tile.k_first, lane)
                to = cta.scales + scale_state.index * config.scale_bytes
                for i in range_constexpr(2):
                    at = operands.a_scale + Int64(k * operands.tokens + scaled[i]) * 4
                    copy_async_word(to + 4 * (own + 64 * i), at)
                if const_expr(not config.channels):
                    if own < 2:
                        at = operands.b_scale + Int64(row * k_blocks + k) * 4
                        copy_async_word(to + config.weight_scales_offset + 4 * own, at)
                arrive_behind_copies(cta.scales_full + 8 * scale_state.index, lane)
                scale_state = scale_state.advance(config.scale_stages)
            iteration = tile.next
            tile = tile_at(plan, config, cta.rank, iteration)
