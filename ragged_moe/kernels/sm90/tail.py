"""The third warpgroup of consumers of an sm_90a kernel with tokens on the M side: it multiplies the few tokens that an
expert has behind its last pair of tiles, for which a tile of their own would load all of its weights once more.

The pair's weights are on the M side of these wgmma, half of them in either CTA, the tokens on the N side. The producer
says which tiles have such tokens (loads.give_tail); of others these warps see nothing.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import (
    BLOCK_K,
    BLOCK_N,
    CONSUMER_GROUPS,
    CONSUMER_WARPS,
    GROUP_WARPS,
    WORK_TILE_BYTES,
    Config,
)
from ragged_moe.kernels.context import Cta, Warp
from ragged_moe.kernels.layouts import WGMMA_M, AccumulatorLayout
from ragged_moe.kernels.mainloop import release
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import (
    fma_in_order,
    load_global_float,
    load_shared,
    map_shared,
    matrix_descriptor,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    minimum,
    select,
    store_global_bfloat,
    uniform,
    warpgroup_barrier,
    wgmma_fp8,
    wgmma_wait,
)
from ragged_moe.kernels.schedule import Plan, WorkTile, read_tile
from ragged_moe.kernels.stream_k import StreamK


class Tail:
    """out [tail, 128 weight rows] of a CTA: a thread has of each of two multiplications results as of wgmma_fp8."""

    def __init__(self, config: Config):
        self.config, self.stream_k = config, StreamK(config, AccumulatorLayout(config))

    def init_barriers(self, cta: Cta) -> None:
        """One thread initialises the barriers of loads.give_tail."""
        mbarrier_init(cta.mma, 1)
        mbarrier_init(cta.mma + 8, GROUP_WARPS)

    @cute.jit
    def __call__(self, warp: Warp, plan: Plan):
        """Multiply, scale, add and store the tails of all work tiles that have one."""
        cta = warp.cta
        acc, partials = cute.make_rmem_tensor((self.config.tail,), Float32), self.stream_k.partials_of(warp)
        turn, index = Int32(0), Int32(0)
        while index >= 0:
            mbarrier_wait(cta.mma, turn & 1)
            index, phase = load_shared(cta.mma + 16), load_shared(cta.mma + 20)
            if index >= 0:
                tile = read_tile(cta.tiles + index * WORK_TILE_BYTES)
                cute.arch.sync_warp()
                mbarrier_arrive(cta.mma + 8, select(warp.lane == 0, 1, 0))
                self.multiply(warp, plan, tile, PipelineState(index, phase), acc)
                if tile.k_first > 0:
                    self.stream_k.give(warp, tile, partials, acc)
                else:
                    if tile.k_count < plan.shape.k_blocks:
                        self.stream_k.collect(warp, plan, tile, partials, acc)
                    self.store(warp, tile, acc)
            turn = turn + 1

    @cute.jit
    def multiply(self, warp: Warp, plan: Plan, tile: WorkTile, stage: PipelineState, acc):
        """Multiply, scale and add a work tile's k-blocks."""
        config, cta, lane, sums = self.config, warp.cta, warp.lane, self.config.tail // 2
        cta = cta._replace(scales_empty=map_shared(cta.scales_empty, lane & 1))
        for i in range_constexpr(config.tail):
            acc[i] = Float32(0.0)
        weights = uniform(matrix_descriptor(cta.ring + cta.rank * (BLOCK_N * BLOCK_K)))
        tokens = uniform(matrix_descriptor(cta.ring + (config.block_n + config.block_m) * BLOCK_K))
        loaded = self.load_scales(warp, plan, tile, tile.k_first)
        mine, d = select((warp.number == CONSUMER_WARPS) & (lane < 2), 1, 0), [Float32(0.0)] * sums
        for k in cutlass.range(tile.k_first, tile.k_first + tile.k_count, unroll=1):
            mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
            offset, scale = uniform(stage.index * (config.stage_bytes >> 4)), [x * loaded[4] for x in loaded[:4]]
            for part in range_constexpr(2):
                b = weights + part * (WGMMA_M * BLOCK_K >> 4)
                d = wgmma_fp8(config.tail, b + offset, tokens + offset, wait=False, into=d)
                if const_expr(part == 0):
                    loaded = self.load_scales(warp, plan, tile, k + 1)  # which are there when the next stage is
                wgmma_wait(0)
                if const_expr(part == 1):
                    warpgroup_barrier(Int32(CONSUMER_GROUPS + 1))
                    release(config, cta, stage.index, lane, mine=mine)
                for i in range_constexpr(sums):
                    at = part * sums + i
                    acc[at] = fma_in_order(d[i], scale[i // 4 * 2 + i % 2], acc[at])
            stage = stage.advance(config.stages)

    def load_scales(self, warp: Warp, plan: Plan, tile: WorkTile, k: Int32) -> list[Float32]:
        """Load the scales of a thread's four tokens, and that of its weight rows, in this k-block."""
        operands, shape, rank = warp.operands, plan.shape, warp.cta.rank
        token, blocks = tile.token + self.config.block_m * (2 - rank) + (warp.lane & 3) * 2, shape.n >> 7
        tokens = operands.a_scale + (Int64(k) * Int64(operands.total_m) + Int64(token)) * 4
        row = tile.expert * blocks + minimum((tile.row >> 7) + rank, blocks - 1)
        weights = operands.b_scale + (Int64(row) * Int64(shape.k_blocks) + Int64(k)) * 4
        left = select(k < tile.k_first + tile.k_count, operands.total_m - token, 0)
        places = [(tokens + 4 * i, select(i < left, 1, 0)) for i in (0, 1, 8, 9)]
        return [load_global_float(*x) for x in (*places, (weights, select(left > 0, 1, 0)))]

    @cute.jit
    def store(self, warp: Warp, tile: WorkTile, acc):
        """Store a work tile's results, a thread its own one by one."""
        config, cta, operands, lane = self.config, warp.cta, warp.operands, warp.lane
        row = tile.row + cta.rank * BLOCK_N + (warp.number - CONSUMER_WARPS) * 16 + (lane >> 2)
        token = tile.token + config.block_m * (2 - cta.rank) + (lane & 3) * 2
        to = operands.out + (Int64(token) * Int64(operands.n) + Int64(row)) * 2
        left = select(row < operands.n, tile.tokens - config.block_m - (lane & 3) * 2, 0)
        for i in range_constexpr(config.tail):
            behind, of_token = i // 8 * WGMMA_M + i // 2 % 2 * 8, i // 4 % 2 * 8 + i % 2
            at = to + (Int64(of_token) * Int64(operands.n) + behind) * 2
            store_global_bfloat(at, acc[i], select(of_token < left, 1, 0))
