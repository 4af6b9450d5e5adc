"""Producers of scales: the warps that bring a stage's a_scale and b_scale to shared memory.

With swap-AB a consumer thread has many tokens and one weight row, so what it needs is a_scale * b_scale of each token
(MultipliedScales). With tokens on M it has one or two tokens and many weight rows, and multiplies their few scales
itself (CopiedScales): the copies are asynchronous, so that one warp is enough.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import TMA_WARP, WORK_TILE_BYTES, Config
from ragged_moe.kernels.context import Cta, Warp
from ragged_moe.kernels.pipeline import PipelineState, stage_after
from ragged_moe.kernels.ptx import (
    copy_async,
    copy_async_arrive,
    copy_async_word,
    load_global_float,
    maximum,
    mbarrier_arrive,
    mbarrier_wait,
    minimum,
    select,
    store_shared_float,
)
from ragged_moe.kernels.schedule import Plan, WorkTile, tile_at, write_tile

BATCH = 3  # stages whose scales a warp of MultipliedScales loads at once


def first_warp(warps: int) -> int:
    """Number of the first of this many scale warps: they are the last ones of the producers' warpgroup."""
    return TMA_WARP + 4 - warps


def scale_offset(config: Config, token: Int32) -> Int32:
    """Byte of a token's scale in a stage, with swap-AB.

    sm100: in the order of the tokens, as all lanes need the same one at once. sm90: [lane % 4, 8 tokens, 2], so that
    what a thread of wgmma's accumulators needs lies side by side. There a pair of tokens lies the wrong way round: so
    its scales come to registers of the other parity than its results, which all three operands of an FFMA would share
    otherwise, and with it the register bank.
    """
    if config.arch == "sm100":
        return token * 4
    return ((token >> 1) & 3) * config.scale_row_bytes + (token >> 3) * 8 + ((token & 1) ^ 1) * 4


def padding(config: Config, tile: WorkTile, operands: tuple, k: Int32) -> Int32:
    """Scales of other tokens before the tile's own in its stage of k-block k, with tokens on M.

    cp.async starts at the multiple of 16 bytes at or before the first of them: 0 to 3. Gathered scales have none.
    """
    if config.gated and not config.permuted:
        return Int32(0)
    return (tile.token + k * operands.total_m) & 3


def arrive_behind_copies(bar: Int32, lane: Int32) -> None:
    """A warp arrives once when the asynchronous copies that its lanes have issued are done."""
    copy_async_arrive(bar)
    cute.arch.sync_warp()
    mbarrier_arrive(bar, select(lane == 0, 1, 0))


@cute.jit
def announce(config: cutlass.Constexpr, cta: Cta, slot: Int32, tile: WorkTile, i: Int32, lane: Int32):
    """With the first stage of a tile tell consumers whose ring is that of the scales what it is."""
    if const_expr(config.scale_ring):
        if (i == 0) & (lane == 0):
            write_tile(cta.scale_tiles + slot * WORK_TILE_BYTES, tile)


def stages_to_skip(number: Int32, count: Int32, warps: int) -> Int32:
    """Stages of a tile before the first of warp `number`, which has every `warps`-th of all, after `count` others."""
    skip = number - count % warps
    return skip + select(skip < 0, warps, 0)


class NoScales:
    """Scales that come with the weights, by TMA: no warp brings any."""

    warps = scale_arrivals = token_arrivals = 0

    def __init__(self, config: Config):
        pass

    def __call__(self, warp: Warp, plan: Plan, iteration: Int32, tile: WorkTile) -> None:
        """Nothing to do."""


class MultipliedScales:
    """a_scale * b_scale of each token of a tile, by scale warps that load them first and store when a stage is free."""

    scale_arrivals = 1  # warps that fill each stage's scales
    token_arrivals = 0  # warps that fill each stage's tokens

    def __init__(self, config: Config):
        self.config = config
        self.warps = 3 if config.arch == "sm90" else 2  # each has every third or second stage: as many loads under way

    @cute.jit
    def __call__(self, warp: Warp, plan: Plan, iteration: Int32, tile: WorkTile):
        """Fill this warp's stages of all work tiles from this one on."""
        config, cta, operands, lane = self.config, warp.cta, warp.operands, warp.lane
        number = warp.number - first_warp(self.warps)
        per_lane = (config.block_m + 31) // 32
        places = []  # of token `lane` + 32 * i
        for i in range_constexpr(per_lane):
            places.append(scale_offset(config, lane + 32 * i))
        count = Int32(0)  # stages before this tile
        while iteration < plan.end:
            k_blocks, scale_blocks = plan.shape.k_blocks, plan.shape.n >> 7
            conditions, addresses = [], []
            for i in range_constexpr(per_lane):
                token = tile.token + lane + 32 * i
                conditions.append(select(lane + 32 * i < tile.tokens, 1, 0))
                addresses.append(operands.a_scale + Int64(token) * 4)
            row = minimum(tile.row >> 7, scale_blocks - 1)
            weights = operands.b_scale + Int64(tile.expert * scale_blocks + row) * Int64(k_blocks) * 4
            stride = Int64(operands.total_m) * 4
            skip = stages_to_skip(number, count, self.warps)
            for base in cutlass.range(skip, tile.k_count, self.warps * BATCH, unroll=1):
                of_tokens, of_weights = [], []
                for j in range_constexpr(BATCH):
                    k = tile.k_first + base + self.warps * j
                    wanted = select(k < tile.k_first + tile.k_count, 1, 0)
                    at = [x + Int64(k) * stride for x in addresses]
                    of_tokens.append([load_global_float(x, c & wanted) for x, c in zip(at, conditions)])
                    if const_expr(not config.channels):
                        of_weights.append(load_global_float(weights + Int64(k) * 4, wanted))
                for j in range_constexpr(BATCH):
                    i = base + self.warps * j
                    if i < tile.k_count:
                        slot, turn = stage_after(count + i, config.scale_stages)
                        mbarrier_wait(cta.scales_empty + 8 * slot, (turn & 1) ^ 1)
                        announce(config, cta, slot, tile, i, lane)
                        to = cta.scales + slot * config.scale_bytes
                        for place, of_token in zip(places, of_tokens[j]):
                            if lane < config.block_m:
                                store_shared_float(
                                    to + place, of_token if config.channels else of_token * of_weights[j]
                                )
                        cute.arch.sync_warp()
                        mbarrier_arrive(cta.scales_full + 8 * slot, select(lane == 0, 1, 0))
            count = count + tile.k_count
            iteration = tile.next
            tile = tile_at(plan, config, cta.rank, iteration)


class CopiedScales:
    """Scales as they are in memory: the tokens', then the weights', one for each weight_rows_per_scale rows."""

    warps = 1
    scale_arrivals = 1
    token_arrivals = 0

    def __init__(self, config: Config):
        self.config = config

    def weight_block(self, tile: WorkTile, blocks: Int32, i: Int32) -> Int32:
        """Return which of an expert's `blocks` rows of b_scale is number i of the tile: up's and gate's if gated."""
        if self.config.gated:
            return (tile.row >> 8) + i * (blocks >> 1)
        return (tile.row + i * self.config.weight_rows_per_scale) >> 7

    @cute.jit
    def __call__(self, warp: Warp, plan: Plan, iteration: Int32, tile: WorkTile):
        """Copy the scales of all work tiles from this one on."""
        config, cta, operands, lane = self.config, warp.cta, warp.operands, warp.lane
        if const_expr(config.tail):  # a shuffle of itself: else it would be read anew in the loop, and waited for
            lane = cute.arch.shuffle_sync(lane, lane)
        state = PipelineState(Int32(0), Int32(1))
        while iteration < plan.end:
            if const_expr(config.cluster == 2):  # made here, as it then is in uniform registers: 1 % of many tiles
                tile = tile_at(plan, config, cta.rank, iteration)
            k_blocks, scale_blocks = plan.shape.k_blocks, plan.shape.n >> 7
            row = minimum(self.weight_block(tile, scale_blocks, lane), scale_blocks - 1)
            weights = operands.b_scale + Int64(tile.expert * scale_blocks + row) * Int64(k_blocks) * 4
            for k in cutlass.range(tile.k_first, tile.k_first + tile.k_count, unroll=1):
                mbarrier_wait(cta.scales_empty + 8 * state.index, state.phase)
                announce(config, cta, state.index, tile, k - tile.k_first, lane)
                to = cta.scales + state.index * config.scale_bytes
                before = padding(config, tile, operands, k)
                left = operands.total_m - tile.token + before  # of this row of a_scale
                source = operands.a_scale + (Int64(k) * Int64(operands.total_m) + Int64(tile.token - before)) * 4
                size = minimum(maximum(left - 4 * lane, 0), 4) * 4
                copy_async(to + 16 * lane, source + Int64(16 * lane), size, Int32(1))
                if lane < before:  # of tokens that there are: the others' are multiplied, too
                    word = minimum(config.block_m + lane, left - 1)
                    copy_async_word(to + 4 * (config.block_m + lane), source + Int64(4 * word))
                if const_expr(not config.channels):
                    if lane < config.block_n // config.weight_rows_per_scale:
                        copy_async_word(to + config.weight_scales_offset + 4 * lane, weights + Int64(k) * 4)
                arrive_behind_copies(cta.scales_full + 8 * state.index, lane)
                state = state.advance(config.scale_stages)
            iteration = tile.next
            if const_expr(config.cluster == 1):  # early, for the first copies: 1 % of few
                tile = tile_at(plan, config, cta.rank, iteration)
