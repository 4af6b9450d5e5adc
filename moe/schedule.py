"""Who multiplies what: the schedule that every cluster makes for itself on the GPU, from m_indptr.

A tile is `rows` weight rows x `tokens` tokens of one expert. A cluster of two CTAs takes two tiles at once, which share
an operand: two token tiles of the same weights if the expert has two left, else two weight blocks with the same tokens.
An expert's only two token tiles may overlap (Config.overlap).
Units are K blocks (128 of K) of such cluster tiles, in the order expert, weight block, token tile (the last fastest).

    equal shares       every cluster takes an equal share of all units in a row, so it may begin and end inside a tile;
                       weights are read once (decode: memory binds)
    whole tiles        clusters take them in turn: the same weights are multiplied with all tokens, and the same tokens
                       with neighbouring weights, at about the same time, and come from L2 but for the first time; if in
                       the last turn many clusters would have none, its tiles are cut into equal shares
    shares first       as that, but the first one to two tiles of all clusters are shared equally: none has a tile more
                       than others, and they do not all end their tiles at once

    halves             whole tiles; of each one the two CTAs of a cluster multiply a half of K: if tiles are few

Which of the first two it is Config.in_turn says: with weights on M, whether an expert has more tokens than a tile.

Of a tile that was cut the cluster with its first unit writes the result; the others give it their sums.
"""

import functools
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from moe.ptx import divide, load_shared, load_shared_words, maximum, minimum, select, store_shared_words

MAX_EXPERTS = 512


class Shape(NamedTuple):
    """The part of the problem that the host knows, and the grid."""

    n: Int32
    k_blocks: Int32  # 128 of K each
    weight_blocks: Int32  # of an expert: n / rows, rounded up
    experts: Int32
    search: Int32  # first step of a binary search among them: the largest power of two below
    clusters: Int32


class Plan(NamedTuple):
    """The schedule, in shared memory and of this cluster."""

    shape: Shape
    table: Int32  # shared memory [experts + 1]: cluster tiles of the experts before
    offsets: Int32  # shared memory [experts + 1]: m_indptr, made monotone and clipped to total_m
    dealt: Int32  # the units from this one on are dealt in whole tiles,
    dealt_end: Int32  # up to this one
    shared: Int32  # those from this one on in equal shares,
    shared_end: Int32  # up to this one
    share: Int32  # units of a share, rounded down
    longer: Int32  # how many clusters, the first ones, have one more
    first: Int32  # whole tile of this cluster
    start: Int32  # of its share
    stop: Int32
    end: Int32  # of all its units


class Piece(NamedTuple):
    """K blocks of a tile, of one CTA."""

    expert: Int32
    token: Int32  # first row of A
    tokens: Int32  # of these rows, at most those of a tile
    width: Int32  # how many are loaded and multiplied: the least of the widths that the kernel has
    narrow: Int32  # its number among the widths, from the widest, which is 0
    row: Int32  # first weight row; at n or above if the CTA has none
    shares_weights: Int32  # 1 if both CTAs of the cluster have the same weights, 0 if they have the same tokens
    overlaps: Int32  # 1 if the second half of its tokens is the first one of the other CTA's, or the other way round
    first: Int32  # K block
    count: Int32  # K blocks
    end: Int32  # unit after the tile's last
    next: Int32  # unit at which this cluster goes on


PIECE_BYTES = 16 * -(-len(Piece._fields) // 4)  # of a piece in shared memory


def write_piece(at: Int32, piece: Piece) -> None:
    """One thread: to shared memory, for those who have no time to find it themselves."""
    fields = [*piece] + [Int32(0)] * (PIECE_BYTES // 4 - len(piece))
    for i in range(0, len(fields), 4):
        store_shared_words(at + 4 * i, fields[i : i + 4])


def read_piece(at: Int32) -> Piece:
    """What write_piece left there."""
    words = [word for i in range(0, PIECE_BYTES, 16) for word in load_shared_words(at + i)]
    return Piece(*words[: len(Piece._fields)])


@functools.cache
def first_step(experts: int) -> int:
    """Of a binary search among so many: Shape.search."""
    return 1 << (experts - 1).bit_length() >> 1


@cute.jit
def start_of(plan: Plan, cluster: Int32) -> Int32:
    """First unit of a cluster's share."""
    return minimum(plan.shared + cluster * plan.share + minimum(cluster, plan.longer), plan.shared_end)


@cute.jit
def make_plan(config: cutlass.Constexpr, shape: Shape, table: Int32, offsets: Int32, in_turn: Int32, cluster: Int32):
    """(Plan, first unit) of a cluster; in_turn: 0 for equal shares, else whole tiles in turn.

    A share has at least config.least units, so that a tile is cut into few parts. What adding them costs is about as
    many units, too: where shares of the last tiles would save less, these are dealt whole.
    """
    tiles, clusters, least = load_shared(table + 4 * shape.experts), shape.clusters, config.least
    units, rounds, of_round = tiles * shape.k_blocks, divide(tiles, clusters), clusters * shape.k_blocks
    if const_expr(config.shares_first):
        whole = maximum(rounds - 1, 0) * of_round
    else:
        saved = (clusters - (tiles - rounds * clusters)) * shape.k_blocks  # units in which clusters had nothing to do
        whole = select(saved > least * clusters, rounds * of_round, units)
    whole = select((in_turn != 0) | (tiles <= clusters), whole, 0)
    if const_expr(config.halves):
        whole = units
    rest = units - whole
    share = divide(rest, clusters)
    longer = select(share < least, 0, rest - share * clusters)
    dealt = rest if const_expr(config.shares_first) else Int32(0)
    shared = Int32(0) if const_expr(config.shares_first) else whole
    plan = Plan(
        shape, table, offsets, dealt, dealt + whole, shared, shared + rest, maximum(share, least), longer,
        dealt + cluster * shape.k_blocks, Int32(0), Int32(0), Int32(0),
    )  # fmt: skip
    start, stop, has_whole = start_of(plan, cluster), start_of(plan, cluster + 1), plan.first < plan.dealt_end
    if const_expr(config.shares_first):
        end, first = select(has_whole, units, stop), select(start < stop, start, plan.first)
    else:
        end, first = stop, select(has_whole, plan.first, start)
    return plan._replace(start=start, stop=stop, end=end), first


@cute.jit
def piece_at(plan: Plan, config: cutlass.Constexpr, rank: Int32, unit: Int32):
    """The piece at a unit, for CTA `rank` of its cluster; config: of the kernel, its tiles and cluster."""
    tokens, widths = config.tokens, config.widths
    shape, table, experts = plan.shape, plan.table, plan.shape.experts
    weight_blocks = shape.weight_blocks
    tile = divide(unit, shape.k_blocks)
    first = unit - tile * shape.k_blocks
    # The last expert whose tiles begin at or before this one
    expert, step = Int32(0), shape.search
    while step > 0:
        probe = expert + step
        if probe < experts:
            if load_shared(table + 4 * probe) <= tile:
                expert = probe
        step = step >> 1
    local = tile - load_shared(table + 4 * expert)
    token, token_end = load_shared(plan.offsets + 4 * expert), load_shared(plan.offsets + 4 * expert + 4)
    token_tiles = maximum(divide(token_end - token + (tokens - 1), tokens), 1)
    shares_weights, overlaps = Int32(0), Int32(0)
    block, column = Int32(0), Int32(0)
    if const_expr(config.cluster == 1):
        block = divide(local, token_tiles)
        column = local - block * token_tiles
    else:
        pairs = (token_tiles + int(config.together)) >> 1  # the second tile of the last may have no tokens
        paired = pairs * weight_blocks
        shares_weights = select(local < paired, 1, 0)
        block = 2 * (local - paired) + rank
        column = token_tiles - 1
        if local < paired:
            block = divide(local, pairs)
            column = 2 * (local - block * pairs) + rank
    whole = (unit >= plan.dealt) & (unit < plan.dealt_end)
    count = minimum(shape.k_blocks - first, select(whole, shape.k_blocks, plan.stop - unit))
    end = unit + shape.k_blocks - first
    if const_expr(config.halves):  # of a single block both have all
        half = (shape.k_blocks + 1) >> 1
        first = select(rank == 0, 0, shape.k_blocks - maximum(shape.k_blocks - half, 1))
        count = select(rank == 0, half, shape.k_blocks - first)
    if const_expr(config.overlap):  # of an expert's only pair: one beside full ones gets ahead of them
        overlaps = shares_weights & select(token_end - token <= tokens + (tokens >> 1), 1, 0)
    token = token + column * tokens - (overlaps & rank) * (tokens >> 1)
    valid = minimum(token_end - token, tokens)
    width, narrow = Int32(tokens), Int32(0)
    for i, narrower in enumerate(widths[1:]):
        width = select(valid <= narrower, narrower, width)
        narrow = select(valid <= narrower, i + 1, narrow)
    after, dealt = unit + count, unit + shape.clusters * shape.k_blocks
    if const_expr(config.shares_first):
        following = select(whole, dealt, select(after == plan.stop, plan.first, after))
    else:
        following = select(whole, select(dealt < plan.dealt_end, dealt, plan.start), after)
    return Piece(
        expert, token, valid, width, narrow, block * config.rows, shares_weights, overlaps, first, count, end, following
    )
