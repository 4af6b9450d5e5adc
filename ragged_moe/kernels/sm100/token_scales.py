"""The warps that bring tokens' block scales to the ring, where tcgen05.cp finds them, and announce work tiles.

In memory a token's scales of a stage are 16 bytes of its record, or 4 (W4A8). In the ring are as many atoms of 128
tokens x 4 blocks of K as these have words, whose bytes are [token % 32, token / 32, block] (PTX ISA, 9.7.16.10.7). A
lane loads those of four tokens, 32 apart: what it has of an atom is 16 bytes. In the layer's GEMM1 they gather the
tokens' numbers, too: a token's record is where `rows` says.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_K, SCALED_MMA_WARP, WORK_TILE_BYTES, Config
from ragged_moe.kernels.context import BlockScaledOperands, Warp
from ragged_moe.kernels.gather import copy_rows
from ragged_moe.kernels.pipeline import stage_after
from ragged_moe.kernels.ptx import (
    as_int,
    fence_proxy_async,
    load_global_float,
    load_global_words,
    load_relaxed_if,
    mbarrier_arrive,
    mbarrier_wait,
    select,
    store_shared_words,
)
from ragged_moe.kernels.scales import arrive_behind_copies, stages_to_skip
from ragged_moe.kernels.schedule import Plan, WorkTile, tile_at, write_tile
from ragged_moe.kernels.sm100.scaled_tensor_memory import ATOM

QUARTER = 32  # tokens of an atom that a warp loads at once


class TokenScales:
    """Two warps, each of which fills every other stage. Consumers have no scales: their ring is of work tiles."""

    warps = 2
    scale_arrivals = token_arrivals = 1

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def __call__(self, warp: Warp, plan: Plan, iteration: Int32, tile: WorkTile):
        """Fill this warp's stages of all work tiles from this one on."""
        config, cta, operands, lane = self.config, warp.cta, warp.operands, warp.lane
        number = warp.number - (SCALED_MMA_WARP - self.warps)
        form = config.block_scaled
        record, values, row = form.record_bytes(operands.k), form.value_bytes(operands.k), form.row_scales
        piece = (lane & 7) * 16  # of 128 bytes of a token's numbers
        stages, tiles = Int32(0), Int32(0)  # before this tile
        coming = self.tokens_of(operands, tile, lane)
        while iteration < plan.end:
            tokens, there = coming, self.are_there(tile, lane)
            # Those of the next tile already: when its first stage is free, nobody awaits where its tokens are
            iteration = tile.next
            following = tile_at(plan, config, cta.rank, iteration)
            coming = self.tokens_of(operands, following, lane)
            skip = stages_to_skip(number, stages, self.warps)
            if skip == 0:
                slot, turn = stage_after(tiles, config.scale_stages)
                mbarrier_wait(cta.scales_empty + 8 * slot, (turn & 1) ^ 1)
                if lane == 0:
                    write_tile(cta.scale_tiles + slot * WORK_TILE_BYTES, tile)
                mbarrier_arrive(cta.scales_full + 8 * slot, select(lane == 0, 1, 0))
            for i in cutlass.range(skip, tile.k_count, self.warps, unroll=1):
                k = tile.k_first + i
                at, x = operands.a + Int64(values + k * row), []
                for token, wanted in zip(tokens, there):
                    x.append(words_at(at + Int64(token) * Int64(record), row // 4, wanted))
                slot, turn = stage_after(stages + i, config.stages)
                mbarrier_wait(cta.empty + 8 * slot, (turn & 1) ^ 1)
                to = cta.ring + slot * config.stage_bytes
                if const_expr(config.gated):  # behind the last of K are zeros
                    source = operands.a + Int64(k * BLOCK_K + piece)
                    count = select(k * BLOCK_K + piece < values, tile.tokens, 0)
                    of_numbers = to + config.block_n * BLOCK_K
                    copy_rows(config, of_numbers, source, Int64(record), tokens, count, tile.width, lane)
                for atom in range_constexpr(form.atoms):
                    at_atom = to + config.token_scales_offset + atom * ATOM + lane * 16
                    store_shared_words(at_atom, [of_quarter[atom] for of_quarter in x])
                if const_expr(config.gated):  # the MMA warp has the fence, as copies end later
                    arrive_behind_copies(cta.full + 8 * slot, lane)
                else:
                    fence_proxy_async()  # tcgen05.cp reads them
                    cute.arch.sync_warp()
                    mbarrier_arrive(cta.full + 8 * slot, select(lane == 0, 1, 0))
            stages, tiles = stages + tile.k_count, tiles + 1
            tile = following

    def are_there(self, tile: WorkTile, lane: Int32) -> list[Int32]:
        """Whether a tile has each of this lane's tokens, 32 apart."""
        return [select(lane + QUARTER * quarter < tile.tokens, 1, 0) for quarter in range(4)]

    def tokens_of(self, operands: BlockScaledOperands, tile: WorkTile, lane: Int32) -> list[Int32]:
        """Find which tokens these are. The tile may be of no meaning, behind the last: then they are, too."""
        found = []
        for quarter, there in enumerate(self.are_there(tile, lane)):
            row = tile.token + lane + QUARTER * quarter
            found.append(load_relaxed_if(operands.rows + Int64(row) * 4, there) if self.config.gated else row)
        return found


def words_at(address: Int64, count: int, condition: Int32) -> list[Int32]:
    """Load one word or four; 0 where condition is 0."""
    return load_global_words(address, condition) if count == 4 else [as_int(load_global_float(address, condition))]
