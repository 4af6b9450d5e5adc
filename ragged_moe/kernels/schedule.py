"""The tile scheduler: which work tile each cluster computes next, from m_indptr, found by every CTA for itself.

A tile is block_n weight rows x block_m tokens of one expert. A cluster of two CTAs takes two tiles at once, which share
an operand: two token tiles of the same weights if the expert has two left, else two blocks of weight rows with the same
tokens. An expert's only two token tiles may overlap (Config.overlaps_tokens).
The work is a line of iterations: k-blocks (128 of K) of such cluster tiles, in the order expert, block of weight rows,
token tile (the last fastest).

    stream-K           every cluster takes an equal share of all iterations in a row, so it may begin and end inside a
                       tile; weights are read once (decode: memory binds)
    data-parallel      clusters take whole tiles in turn: the same weights are multiplied with all tokens, and the same
                       tokens with neighbouring weights, at about the same time, and come from L2 but for the first
                       time; if in the last wave many clusters would have none, its tiles are shared stream-K
    stream-K first     data-parallel, but the first one to two tiles of all clusters are shared stream-K: none has a
                       tile more than others, and they do not all end their tiles at once
    split-K            data-parallel; the two CTAs of a cluster have half of each tile's K: if tiles are few

Config.data_parallel chooses between the first two: with swap-AB, but for weights in e2m1, it is whether an expert has
more tokens than a tile.

Of a tile whose K several clusters share, the cluster with its first iteration writes the result; the others give it
their partial sums (stream_k.py).
"""

import functools
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.config import CUT, GROUP_THREADS, WORK_TILE_BYTES, Config
from ragged_moe.kernels.ptx import (
    divide,
    load_relaxed,
    load_shared,
    load_shared_words,
    maximum,
    minimum,
    prefix_sum,
    select,
    store_shared,
    store_shared_words,
)


class Shape(NamedTuple):
    """The part of the problem that the host knows, and the grid."""

    n: Int32
    k_blocks: Int32  # 128 of K each
    n_tiles: Int32  # of an expert: n / block_n, rounded up
    experts: Int32
    search: Int32  # first step of a binary search among them: the largest power of two below
    clusters: Int32


class Tables(NamedTuple):
    """Addresses in shared memory of what the CTA has made of m_indptr."""

    tiles: Int32  # [experts + 1]: cluster tiles of the experts before, in the order of `order`
    offsets: Int32  # [experts + 1]: m_indptr, made monotone and clipped to total_m
    data_parallel: Int32  # [2]: 1 if clusters take whole tiles in turn; if Config.narrow, how many tiles are wider
    order: Int32  # [experts], if Config.widths: those of the widest tiles first


class Plan(NamedTuple):
    """The schedule of a cluster. Fields that end a range are one past its last iteration."""

    shape: Shape
    tables: Tables
    data_parallel: Int32  # iterations from this one on are taken in whole tiles,
    data_parallel_end: Int32
    stream_k: Int32  # those from this one on in equal shares,
    stream_k_end: Int32
    share: Int32  # iterations of a share, rounded down
    longer: Int32  # how many clusters, the first ones, have one more
    first_whole: Int32  # the first whole tile of this cluster
    start: Int32  # of its share
    stop: Int32
    end: Int32  # of all its iterations


class WorkTile(NamedTuple):
    """K-blocks of a tile that one CTA computes."""

    expert: Int32
    token: Int32  # first row of A
    tokens: Int32  # of these rows, at most block_m, and those of a tail
    width: Int32  # how many are loaded and multiplied: the least of Config.boxes, and a tail's
    box: Int32  # its number in Config.boxes
    row: Int32  # first weight row; at n or above if the CTA has none
    shares_weights: Int32  # 1 if both CTAs of the cluster have the same weights, 0 if they have the same tokens
    overlaps: Int32  # 1 if the second half of its tokens is the first one of the other CTA's, or the other way round
    k_first: Int32  # k-block
    k_count: Int32  # k-blocks
    end: Int32  # iteration after the tile's last
    next: Int32  # iteration at which this cluster goes on


assert WORK_TILE_BYTES == 16 * -(-len(WorkTile._fields) // 4)


def write_tile(at: Int32, tile: WorkTile) -> None:
    """One thread writes a work tile to shared memory, for warps that have no time to find it themselves."""
    fields = [*tile] + [Int32(0)] * (WORK_TILE_BYTES // 4 - len(tile))
    for i in range(0, len(fields), 4):
        store_shared_words(at + 4 * i, fields[i : i + 4])


def read_tile(at: Int32) -> WorkTile:
    """The work tile that write_tile left there."""
    words = [word for i in range(0, WORK_TILE_BYTES, 16) for word in load_shared_words(at + i)]
    return WorkTile(*words[: len(WorkTile._fields)])


def tile_tokens(tokens: Int32, tiles: Int32) -> Int32:
    """Tokens of each but the last of an expert's tiles, which are about even."""
    return (divide(tokens + (tiles - 1), tiles) + (CUT - 1)) & -CUT


def tail_of(config: Config, tokens: Int32) -> Int32:
    """Tokens of an expert that are multiplied beside its last pair of tiles; 0 if they are too many."""
    behind = tokens & (2 * config.block_m - 1)
    return select((behind <= config.tail) & (tokens >= 2 * config.block_m), behind, 0)


@functools.cache
def search_step(experts: int) -> int:
    """First step of a binary search among this many experts: Shape.search."""
    return 1 << (experts - 1).bit_length() >> 1


@cute.jit
def share_start(plan: Plan, cluster: Int32) -> Int32:
    """First iteration of a cluster's stream-K share."""
    return minimum(plan.stream_k + cluster * plan.share + minimum(cluster, plan.longer), plan.stream_k_end)


@cute.jit
def make_plan(config: cutlass.Constexpr, shape: Shape, tables: Tables, cluster: Int32):
    """(Plan, first iteration) of a cluster.

    A share has at least config.min_share iterations, so that a tile is cut into few parts. What adding them costs is
    about as many iterations, too: where shares of the last tiles would save less, these are taken whole.
    """
    data_parallel = load_shared(tables.data_parallel)
    tiles, clusters, least = load_shared(tables.tiles + 4 * shape.experts), shape.clusters, config.min_share
    iterations, waves, of_wave = tiles * shape.k_blocks, divide(tiles, clusters), clusters * shape.k_blocks
    if const_expr(config.stream_k_first):
        whole = maximum(waves - 1, 0) * of_wave
    else:
        saved = (clusters - (tiles - waves * clusters)) * shape.k_blocks  # that idle clusters could have taken
        whole = select(saved > least * clusters, waves * of_wave, iterations)
    whole = select((data_parallel != 0) | (tiles <= clusters), whole, 0)
    if const_expr(config.split_k == 2):
        whole = iterations
    rest = iterations - whole
    share = divide(rest, clusters)
    longer = select(share < least, 0, rest - share * clusters)
    first_whole = rest if const_expr(config.stream_k_first) else Int32(0)
    first_shared = Int32(0) if const_expr(config.stream_k_first) else whole
    plan = Plan(
        shape, tables, first_whole, first_whole + whole, first_shared, first_shared + rest, maximum(share, least),
        longer, first_whole + cluster * shape.k_blocks, Int32(0), Int32(0), Int32(0),
    )  # fmt: skip
    start, stop = share_start(plan, cluster), share_start(plan, cluster + 1)
    has_whole = plan.first_whole < plan.data_parallel_end
    if const_expr(config.stream_k_first):
        end, first = select(has_whole, iterations, stop), select(start < stop, start, plan.first_whole)
    else:
        end, first = stop, select(has_whole, plan.first_whole, start)
    return plan._replace(start=start, stop=stop, end=end), first


@cute.jit
def tile_at(plan: Plan, config: cutlass.Constexpr, rank: Int32, iteration: Int32):
    """The work tile at an iteration, for CTA `rank` of its cluster."""
    block_m, boxes = config.block_m, config.boxes
    shape, table, offsets, experts = plan.shape, plan.tables.tiles, plan.tables.offsets, plan.shape.experts
    n_tiles = shape.n_tiles
    tile = divide(iteration, shape.k_blocks)
    first = iteration - tile * shape.k_blocks
    # The last expert whose tiles begin at or before this one
    place, step = Int32(0), shape.search
    while step > 0:
        probe = place + step
        if probe < experts:
            if load_shared(table + 4 * probe) <= tile:
                place = probe
        step = step >> 1
    local = tile - load_shared(table + 4 * place)
    expert = load_shared(plan.tables.order + 4 * place) if const_expr(config.widths) else place
    token, token_end = load_shared(offsets + 4 * expert), load_shared(offsets + 4 * expert + 4)
    tail = tail_of(config, token_end - token) if const_expr(config.tail) else Int32(0)
    m_tiles = maximum(divide(token_end - token - tail + (block_m - 1), block_m), 1)
    shares_weights, overlaps = Int32(0), Int32(0)
    n_tile, m_tile = Int32(0), Int32(0)
    if const_expr(config.cluster == 1):
        n_tile = divide(local, m_tiles)
        m_tile = local - n_tile * m_tiles
    else:
        pairs = (m_tiles + int(config.two_cta)) >> 1  # the second tile of the last may have no tokens
        paired = pairs * n_tiles
        shares_weights = select(local < paired, 1, 0)
        n_tile = 2 * (local - paired) + rank
        m_tile = m_tiles - 1
        if local < paired:
            n_tile = divide(local, pairs)
            m_tile = 2 * (local - n_tile * pairs) + rank
    whole = (iteration >= plan.data_parallel) & (iteration < plan.data_parallel_end)
    count = minimum(shape.k_blocks - first, select(whole, shape.k_blocks, plan.stop - iteration))
    end = iteration + shape.k_blocks - first
    if const_expr(config.split_k == 2):  # of a single k-block both CTAs have all
        half = (shape.k_blocks + 1) >> 1
        first = select(rank == 0, 0, shape.k_blocks - maximum(shape.k_blocks - half, 1))
        count = select(rank == 0, half, shape.k_blocks - first)
    if const_expr(config.overlaps_tokens):  # of an expert's only pair: one beside full ones gets ahead of them
        overlaps = shares_weights & select(token_end - token <= block_m + (block_m >> 1), 1, 0)
    of_tile = tile_tokens(token_end - token, m_tiles) if const_expr(config.widths) else block_m
    token = token + m_tile * of_tile - (overlaps & rank) * (block_m >> 1)
    valid = minimum(token_end - token, of_tile)
    width, box, room = Int32(block_m), Int32(0), valid
    if const_expr(config.narrow > 0):  # an expert's last tile is multiplied in the loop of its others
        room = select(of_tile > config.narrow, maximum(valid, config.narrow + 1), valid)
    for i, narrower in enumerate(boxes[1:]):
        width = select(room <= narrower, narrower, width)
        box = select(room <= narrower, i + 1, box)
    if const_expr(config.tail):
        tail = select(m_tile >= m_tiles - 2, tail, 0)  # of this pair
        valid, width = valid + tail, select(tail > 0, block_m + config.tail, width)
    after, next_whole = iteration + count, iteration + shape.clusters * shape.k_blocks
    if const_expr(config.widths):  # there and back: who had the widest tile of a round has the next one's narrowest
        place = tile - divide(tile, shape.clusters) * shape.clusters
        next_whole = iteration + (2 * (shape.clusters - place) - 1) * shape.k_blocks
    if const_expr(config.stream_k_first):
        following = select(whole, next_whole, select(after == plan.stop, plan.first_whole, after))
    else:
        following = select(whole, select(next_whole < plan.data_parallel_end, next_whole, plan.start), after)
    return WorkTile(
        expert, token, valid, width, box, n_tile * config.block_n, shares_weights, overlaps, first, count, end,
        following,
    )  # fmt: skip


class Scheduler:
    """Makes a CTA's schedule from m_indptr [experts + 1] int32 in global memory, and checks it again."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def __call__(
        self, m_indptr: Int64, shape: Shape, total_m: Int32, tables: Tables, rank: Int32, cluster: Int32, warp: Int32,
        lane: Int32, thread: Int32,
    ):  # fmt: skip
        """All threads fill the tables. Returns the plan, its first iteration and the work tile there."""
        for i in cutlass.range(thread, shape.experts + 1, GROUP_THREADS * (self.config.groups + 1), unroll=1):
            store_shared(tables.offsets + 4 * i, load_relaxed(m_indptr + Int64(i) * 4))
        cute.arch.sync_threads()
        if warp == 0:
            self.count_tiles(tables, total_m, shape, lane)
        cute.arch.sync_threads()
        plan, iteration = make_plan(self.config, shape, tables, cluster)
        return plan, iteration, tile_at(plan, self.config, rank, iteration)

    @cute.jit
    def has_changed(self, m_indptr: Int64, offsets: Int32, experts: Int32, lane: Int32):
        """A warp finds out whether m_indptr is not what the schedule was made from."""
        changed = Int32(0)
        for base in cutlass.range(0, experts + 1, 64, unroll=1):
            for j in range_constexpr(2):  # two loads under way
                i = minimum(base + 32 * j + lane, experts)
                changed = changed | (load_relaxed(m_indptr + Int64(i) * 4) ^ load_shared(offsets + 4 * i))
        return cute.arch.vote_any_sync(changed != 0)

    @cute.jit
    def count_tiles(self, tables: Tables, total_m: Int32, shape: Shape, lane: Int32):
        """One warp clips m_indptr and makes it monotone, and counts the cluster tiles before each expert."""
        config, offsets, n_tiles, experts = self.config, tables.offsets, shape.n_tiles, shape.experts
        before, most, wrong, wide = Int32(0), Int32(0), Int32(0), Int32(0)
        for base in cutlass.range(0, experts, 32, unroll=1):
            i = minimum(base + lane, experts - 1)
            start, end = load_shared(offsets + 4 * i), load_shared(offsets + 4 * i + 4)
            wrong = select((start >= 0) & (start <= end) & (end <= total_m), wrong, 1)
        if cute.arch.vote_any_sync(wrong != 0):
            self.mend(offsets, total_m, experts, lane)
        if const_expr(config.widths):
            self.sort(tables, experts, lane)
        for base in cutlass.range(0, experts, 32, unroll=1):
            i = base + lane
            tiles, depth = Int32(0), Int32(0)
            if i < experts:
                expert = load_shared(tables.order + 4 * i) if const_expr(config.widths) else i
                m = load_shared(offsets + 4 * expert + 4) - load_shared(offsets + 4 * expert)
                if const_expr(config.tail):
                    m = m - tail_of(config, m)
                m_tiles = (m + (config.block_m - 1)) // config.block_m
                tiles, depth = m_tiles * n_tiles, m_tiles
                if const_expr(config.two_cta):
                    tiles = ((m_tiles + 1) >> 1) * n_tiles
                elif const_expr(config.cluster == 2):
                    tiles = (m_tiles >> 1) * n_tiles + (m_tiles & 1) * ((n_tiles + 1) >> 1)
                if const_expr(config.cluster == 2):
                    depth = (m_tiles + 1) >> 1
            total = prefix_sum(tiles, lane)
            if const_expr(config.narrow > 0):
                expert = load_shared(tables.order + 4 * minimum(i, experts - 1))
                wider = select(self.width(tables, expert) > config.narrow, tiles, 0)
                wide = wide + cute.arch.warp_redux_sync(wider, "add")
            if i < experts:
                store_shared(tables.tiles + 4 * i, before + total - tiles)
            before = before + cute.arch.shuffle_sync(total, 31)
            most = maximum(most, select(cute.arch.vote_any_sync(depth > 1), 1, 0))
        if lane == 0:
            store_shared(tables.tiles + 4 * experts, before)
            if const_expr(config.narrow > 0):
                store_shared(tables.data_parallel + 4, wide)
            store_shared(tables.data_parallel, most if config.data_parallel is None else Int32(config.data_parallel))

    @cute.jit
    def sort(self, tables: Tables, experts: Int32, lane: Int32):
        """One warp lists the experts, those of the widest tiles first, else in their order."""
        block_m, uneven = self.config.block_m, Int32(0)
        first = self.width(tables, Int32(0))
        for base in cutlass.range(0, experts, 32, unroll=1):
            i = base + lane
            if i < experts:
                width = self.width(tables, i)
                store_shared(tables.tiles + 4 * i, width)  # where `count_tiles` will count
                store_shared(tables.order + 4 * i, i)
                uneven = select(width == first, uneven, 1)
        cute.arch.sync_warp()
        if cute.arch.vote_any_sync(uneven != 0):
            before = Int32(0)
            for step in cutlass.range(0, block_m // CUT + 1, unroll=1):
                for base in cutlass.range(0, experts, 32, unroll=1):
                    i = base + lane
                    width = load_shared(tables.tiles + 4 * minimum(i, experts - 1))
                    mine = (i < experts) & (width == block_m - CUT * step)
                    those = cute.arch.vote_ballot_sync(mine)
                    if mine:
                        lower = those & ((Int32(1) << lane) - 1)
                        store_shared(tables.order + 4 * (before + cute.arch.popc(lower)), i)
                    before = before + cute.arch.popc(those)
            cute.arch.sync_warp()

    def width(self, tables: Tables, expert: Int32) -> Int32:
        """Tokens of an expert's first tile, rounded up; 0 if it has none."""
        at = tables.offsets + 4 * expert
        tokens = load_shared(at + 4) - load_shared(at)
        return tile_tokens(tokens, maximum(divide(tokens + (self.config.block_m - 1), self.config.block_m), 1))

    @cute.jit
    def mend(self, offsets: Int32, total_m: Int32, experts: Int32, lane: Int32):
        """One warp clips m_indptr to the rows that there are, and makes it monotone."""
        reach = Int32(0)
        for base in cutlass.range(0, experts + 1, 32, unroll=1):
            i = base + lane
            offset = Int32(0)
            if i <= experts:
                offset = load_shared(offsets + 4 * i)
            offset = maximum(minimum(offset, total_m), 0)
            for step in range_constexpr(5):  # the largest so far: never below what came before
                other = cute.arch.shuffle_sync_up(offset, 1 << step, mask_and_clamp=0)
                offset = select(lane >= 1 << step, maximum(offset, other), offset)
            offset = maximum(offset, reach)
            if i <= experts:
                store_shared(offsets + 4 * i, offset)
            reach = cute.arch.shuffle_sync(offset, 31)
        cute.arch.sync_warp()
