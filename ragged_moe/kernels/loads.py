"""The producer: one thread of the TMA warp loads weights and tokens into the ring, a stage of BLOCK_K at a time.

What a stage's copies are depends on who shares the operands; each class here issues those of one way.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_K, BLOCK_N, WORK_TILE_BYTES, Config
from ragged_moe.kernels.context import Cta, TensorMaps
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import (
    LAST,
    map_shared,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_wait,
    minimum,
    select,
    store_shared,
    tma_load,
    tma_prefetch,
)
from ragged_moe.kernels.schedule import Plan, WorkTile, tile_at, write_tile


class Weights:
    """Boxes of B [E, N, K]: weights_box rows at once."""

    def __init__(self, config: Config):
        self.config = config

    def boxes(self, tile: WorkTile, k: Int32) -> list[tuple]:
        """Coordinates of the TMA boxes of a tile's weights at this element of K, innermost first."""
        return [(k, tile.row, tile.expert)]

    def load(self, to: Int32, tensormap: Int64, tile: WorkTile, k: Int32, bar: Int32) -> None:
        """Load those of the k-block at element k of K, for this CTA alone: boxes one behind the other from `to` on."""
        boxes, policy = self.boxes(tile, k), self.config.weights_policy
        size = self.config.block_n // len(boxes) * BLOCK_K
        for i, box in enumerate(boxes):
            tma_load(to + i * size, tensormap, box, bar, policy, Int32(1), None)

    @cute.jit
    def prefetch(self, tile: WorkTile, tensormap: Int64):
        """Prefetch the first stages of a tile's weights to L2."""
        for i in cutlass.range(minimum(tile.k_count, self.config.prefetch), unroll=1):
            for box in self.boxes(tile, (tile.k_first + i) * BLOCK_K):
                tma_prefetch(tensormap, box)


class GatedWeights(Weights):
    """Boxes of B [E, up | gate, N / 2, K]: 128 rows of up, then the same 128 of gate."""

    def boxes(self, tile: WorkTile, k: Int32) -> list[tuple]:
        return [(k, tile.row >> 1, gate, tile.expert) for gate in range(2)]


def weights_of(config: Config) -> Weights:
    """Return the boxes of weights of this config, but for those in packed e2m1."""
    return (GatedWeights if config.gated else Weights)(config)


class Fp4Weights(Weights):
    """Boxes of packed e2m1 [E, N / 64, K / 64, 2048 bytes], and of its scales, of 256 bytes or 128: a stage's at once.

    If gated [E, up | gate, N / 128, K / 64, ...]: half of the rows are up's, half gate's.
    """

    def box(self, tile: WorkTile, k: Int32, size: int) -> tuple:
        """Coordinates of the box of a tensor of this many bytes for 64 rows x 64 of K (arguments.fp4_tensormap)."""
        at = (0, (k >> 6) * (size // 256)) if size >= 256 else ((k >> 6) * size,)
        if self.config.gated:
            rows, up = tile.row >> 7, 0  # a box has both halves; CuTe puts behind what it has but one of
            return (*at, rows, up, tile.expert) if self.config.block_n > BLOCK_N else (*at, up, rows, tile.expert)
        return (*at, tile.row >> 6, tile.expert)

    def boxes(self, tile: WorkTile, k: Int32) -> list[tuple]:
        return [self.box(tile, k, 2048)]


class Fp4Loads:
    """Tokens, weights in e2m1 and their scales, of a CTA of a Hopper GPU that shares none of them."""

    def __init__(self, config: Config):
        self.config, self.weights = config, Fp4Weights(config)

    def stage(self, cta: Cta, tile: WorkTile, maps: TensorMaps, slot: Int32, k: Int32) -> None:
        """Issue the copies of the k-block at element k of K into a stage of the ring."""
        config, bar, policy = self.config, cta.full + 8 * slot, self.config.weights_policy
        tokens = cta.ring + slot * config.stage_bytes
        weights = tokens + config.token_bytes
        scales = weights + config.block_n * (BLOCK_K // 2)
        mbarrier_expect(bar, tile.width * config.token_row + config.block_n * config.fp4_row)
        tma_load(weights, maps.weights, self.weights.box(tile, k, 2048), bar, policy, Int32(1), None)
        of_scales = maps.weights + 128  # its tensormap is the next one
        of_tile = 4096 // config.fp4_scale  # bytes
        tma_load(scales, of_scales, self.weights.box(tile, k, of_tile), bar, policy, Int32(1), None)
        box = (k, tile.token) if config.fp4_tokens == "e4m3" else (0, tile.token, k >> 6)
        tma_load(tokens, maps.tokens, box, bar, LAST, Int32(1), None)


class TmaLoads:
    """Weights, and tokens that nobody gathers (gather.py), of a CTA that shares neither."""

    def __init__(self, config: Config):
        self.config, self.weights = config, weights_of(config)

    def stage(self, cta: Cta, tile: WorkTile, maps: TensorMaps, slot: Int32, k: Int32) -> None:
        """Issue the copies of the k-block at element k of K into a stage of the ring."""
        config, bar = self.config, cta.full + 8 * slot
        weights, gathered = cta.ring + slot * config.stage_bytes, config.gated and not config.permuted
        mbarrier_expect(bar, (config.block_n if gathered else tile.width + config.block_n) * BLOCK_K)
        self.weights.load(weights, maps.weights, tile, k, bar)
        if not gathered:
            tokens = weights + config.block_n * BLOCK_K
            tma_load(tokens, maps.tokens, (k, tile.token), bar, LAST, Int32(1), None)


class BlockScaledLoads:
    """Weights, tokens, and the weights' block scales, of a CTA that shares none of them.

    If gated half of the weights' rows are of up, half of gate. Others bring the tokens' scales and, if gated, the
    tokens (token_scales.py).
    """

    def __init__(self, config: Config):
        self.config, self.weights = config, weights_of(config)

    def stage(self, cta: Cta, tile: WorkTile, maps: TensorMaps, slot: Int32, k: Int32) -> None:
        """Issue the copies of the k-block at byte k of the rows, as they lie in the ring, into a stage of it."""
        config, bar, policy = self.config, cta.full + 8 * slot, self.config.weights_policy
        weights, form = cta.ring + slot * config.stage_bytes, config.block_scaled
        tokens = weights + config.block_n * BLOCK_K
        of_tokens = 0 if config.gated else config.block_m * BLOCK_K
        mbarrier_expect(bar, of_tokens + config.block_n * (form.weight_bytes + form.row_scales))
        self.weights.load(weights, maps.weights, tile, k, bar)
        piece, block = (k >> 7) * (2 * form.atoms), tile.row >> 7  # of 256 bytes, two an atom; of 128 rows
        box = (0, piece, 0, block >> 1, tile.expert) if config.gated else (0, piece, block, tile.expert)
        scales = tokens + config.block_m * BLOCK_K
        tma_load(scales, maps.weights + 128, box, bar, policy, Int32(1), None)  # its tensormap is the next one
        if const_expr(not config.gated):
            tma_load(tokens, maps.tokens, (k, tile.token), bar, LAST, Int32(1), None)


def multicast_halves(
    cta: Cta, bar: Int32, to: Int32, tensormap: Int64, box: tuple, policy: str, shared: Int32, rows
) -> None:
    """Load an operand of 2 * rows rows; if the cluster shares it, each CTA loads half of it, for both."""
    only = Int32(1) << cta.rank
    first, mask = cta.rank * shared, select(shared != 0, 3, only)  # its half, for both; or the first half
    k, row, *others = box
    box = (k, row + first * rows, *others)
    tma_load(to + first * (rows * BLOCK_K), tensormap, box, bar, policy, Int32(1), mask)
    box = (k, row + rows, *others)  # and the second
    tma_load(to + rows * BLOCK_K, tensormap, box, bar, policy, 1 - shared, only)


class MulticastLoads:
    """Weights and tokens of a cluster of two CTAs, which share one of the two by multicast."""

    def __init__(self, config: Config):
        self.config, self.weights = config, weights_of(config)

    def stage(self, cta: Cta, tile: WorkTile, maps: TensorMaps, slot: Int32, k: Int32) -> None:
        """Issue this CTA's copies of the k-block at element k of K."""
        config, bar, shared = self.config, cta.full + 8 * slot, tile.shares_weights
        mbarrier_expect(bar, (tile.width + config.block_n) * BLOCK_K)
        weights = cta.ring + slot * config.stage_bytes
        tokens = weights + config.block_n * BLOCK_K
        (box,), policy = self.weights.boxes(tile, k), config.weights_policy
        multicast_halves(cta, bar, weights, maps.weights, box, policy, shared, config.block_n // 2)
        width = minimum(tile.width, config.block_m) if const_expr(config.tail) else tile.width
        multicast_halves(cta, bar, tokens, maps.tokens, (k, tile.token), LAST, 1 - shared, width >> 1)
        if const_expr(config.tail):  # its tensormap is the next one; each CTA needs all of it
            box, wanted = (k, tile.token + config.block_m * (2 - cta.rank)), select(tile.width > config.block_m, 1, 0)
            tma_load(tokens + config.block_m * BLOCK_K, maps.weights + 128, box, bar, LAST, wanted, None)


class TwoCtaLoads:
    """Operands of a 2-CTA MMA: each CTA loads its tokens, and half of each multiplication's weight rows.

    Both signal the barrier of the cluster's first CTA, whose MMA warps wait there.
    """

    def __init__(self, config: Config):
        self.config, self.weights = config, Weights(config)

    def stage(self, cta: Cta, tile: WorkTile, maps: TensorMaps, slot: Int32, k: Int32) -> None:
        """Issue this CTA's copies of the k-block at element k of K."""
        config = self.config
        mbarrier_expect(cta.full + 8 * slot, config.cluster * config.stage_bytes, select(cta.rank == 0, 1, 0))
        bar = map_shared(cta.full + 8 * slot, Int32(0))
        weights, rows = cta.ring + slot * config.stage_bytes, config.weights_box
        tokens = weights + (config.block_n // config.cluster) * BLOCK_K
        for mma in range(config.block_n // BLOCK_N):
            box = (k, tile.row + BLOCK_N * mma + rows * cta.rank, tile.expert)
            to = weights + mma * (rows * BLOCK_K)
            tma_load(to, maps.weights, box, bar, config.weights_policy, Int32(1), None, pair=True)
        tma_load(tokens, maps.tokens, (k, tile.token), bar, LAST, Int32(1), None, pair=True)


class GatedMulticastLoads:
    """Weights and permuted tokens of GEMM1 in a cluster of two CTAs, which share one of the two by multicast.

    If they share the weights, the first CTA loads up for both, the second one gate.
    """

    def __init__(self, config: Config):
        self.config, self.weights = config, GatedWeights(config)

    def stage(self, cta: Cta, tile: WorkTile, maps: TensorMaps, slot: Int32, k: Int32) -> None:
        """Issue this CTA's copies of the k-block at element k of K."""
        config, bar, shared = self.config, cta.full + 8 * slot, tile.shares_weights
        weights = cta.ring + slot * config.stage_bytes
        mbarrier_expect(bar, (tile.width + config.block_n) * BLOCK_K)
        for gate, box in enumerate(self.weights.boxes(tile, k)):
            mine, mask = select(cta.rank == gate, 1, 1 - shared), select(shared != 0, 3, Int32(1) << cta.rank)
            at = weights + gate * (BLOCK_N * BLOCK_K)
            tma_load(at, maps.weights, box, bar, config.weights_policy, mine, mask)
        tokens = weights + config.block_n * BLOCK_K
        multicast_halves(cta, bar, tokens, maps.tokens, (k, tile.token), LAST, 1 - shared, tile.width >> 1)


def give_tail(cta: Cta, tails: Int32, state: PipelineState) -> Int32:
    """Tell the third warpgroup in which stage its tile number `tails` begins, -1 behind the last; return the next."""
    mbarrier_wait(cta.mma + 8, (tails & 1) ^ 1)
    store_shared(cta.mma + 16, state.index)
    store_shared(cta.mma + 20, state.phase ^ 1)  # that consumers wait for
    mbarrier_arrive(cta.mma, Int32(1))
    return tails + 1


class Producer:
    """The TMA warp's loop over work tiles and k-blocks.

    loads: issues a stage's copies. arrivals: of all roles at a stage's full barrier.
    """

    def __init__(self, config: Config, loads, arrivals: int):
        self.config, self.loads, self.arrivals = config, loads, arrivals

    def maps_of(self, tile: WorkTile, maps: TensorMaps) -> TensorMaps:
        """The tensormaps of a tile: that of the tokens has boxes of its width."""
        return maps._replace(tokens=maps.tokens + Int64(tile.box) * 128)

    @cute.jit
    def load_early(self, cta: Cta, tile: WorkTile, count: Int32, maps: TensorMaps):
        """Load this many stages of the first tile into the ring, which is empty."""
        with cute.arch.elect_one():
            write_tile(cta.tiles, tile)
            of_tile = self.maps_of(tile, maps)
            for i in cutlass.range(count, unroll=1):
                self.loads.stage(cta, tile, of_tile, i, (tile.k_first + i) * BLOCK_K)

    @cute.jit
    def take_back(self, cta: Cta, count: Int32):
        """Await the stages of load_early, and leave their barriers as if nothing had come."""
        with cute.arch.elect_one():
            for i in cutlass.range(count, unroll=1):
                bar = cta.full + 8 * i
                for _ in range_constexpr(self.arrivals - 1):  # for other roles
                    mbarrier_arrive(bar, Int32(1))
                mbarrier_wait(bar, Int32(0))
                for _ in range_constexpr(self.arrivals):  # a phase more, and its parity is that of a fresh one
                    mbarrier_arrive(bar, Int32(1))

    @cute.jit
    def __call__(self, cta: Cta, plan: Plan, iteration: Int32, tile: WorkTile, early: Int32, maps: TensorMaps):
        """Load all work tiles from this one on; the first stage of each comes with what it is.

        early: stages of the first tile that load_early has loaded.
        """
        config = self.config
        with cute.arch.elect_one():
            full = early == config.stages
            state = PipelineState(select(full, 0, early), select(full, 0, 1))
            tails = Int32(0)
            while iteration < plan.end:
                if early == 0:
                    mbarrier_wait(cta.empty + 8 * state.index, state.phase)
                    write_tile(cta.tiles + state.index * WORK_TILE_BYTES, tile)
                    if const_expr(config.tail):
                        if tile.width > config.block_m:
                            tails = give_tail(cta, tails, state)
                of_tile = self.maps_of(tile, maps)
                end = tile.k_first + tile.k_count
                for k in cutlass.range(tile.k_first + early, end, unroll=1):
                    if const_expr(config.burst == 1):
                        mbarrier_wait(cta.empty + 8 * state.index, state.phase)
                    elif (k - tile.k_first) % config.burst == 0:  # stages become free in their order: the last one's
                        last = state.index + minimum(config.burst, end - k) - 1
                        wraps = last >= config.stages
                        last = select(wraps, last - config.stages, last)
                        phase = select(wraps, state.phase ^ 1, state.phase)
                        mbarrier_wait(cta.empty + 8 * last, phase)
                    self.loads.stage(cta, tile, of_tile, state.index, k * BLOCK_K)
                    state = state.advance(config.stages)
                early = Int32(0)
                iteration = tile.next
                tile = tile_at(plan, config, cta.rank, iteration)  # of no meaning behind the last
            if const_expr(config.tail):
                give_tail(cta, tails, state._replace(index=Int32(-1)))
            self.drain(cta, state)

    @cute.jit
    def drain(self, cta: Cta, state: PipelineState):
        """Wait until every stage is empty: consumers, also of the other CTA, still arrive at this CTA's barriers.

        A barrier of the cluster at the end would await results that are on their way to memory, too: 0.5 us.
        """
        for _ in range_constexpr(self.config.stages):
            mbarrier_wait(cta.empty + 8 * state.index, state.phase)
            state = state.advance(self.config.stages)
