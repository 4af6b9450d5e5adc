"""Lists the rows of the local experts from any router's choice, in one launch in which no CTA waits for another.

    each CTA   has some experts; it reads all tokens' experts, counts rows before its own, and those of each warp's part
    a warp     writes the rows of its part of the tokens for these experts, in their order ──► rows, places, weights

A number may be looked up first, in a map from the router's experts to those that are held, some of them several times
(Map): every thread does that for itself, so that a map may change between two launches.

So the rows of an expert are in the order of the tokens, whatever runs when. Every CTA reads topk_ids, 64 KiB for 2048
tokens of 8 experts; in return nothing has to meet. Tokens that other ranks send (dispatch.py) it awaits. In the same
launch, by more CTAs, tokens in bf16 are quantised (quantise.py, quantise_blocks.py), or few are copied to their rows.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, const_expr, range_constexpr
from cutlass._mlir.dialects import cuda as cuda_ir

from ragged_moe.kernels.exchange import DISPATCH, MOST, STAGE, Layout
from ragged_moe.kernels.host import own_place
from ragged_moe.kernels.permute import copy_row
from ragged_moe.kernels.ptx import (
    as_int,
    await_word,
    divide,
    divide_small,
    follow_previous_kernel,
    load_global_float,
    load_global_word,
    load_relaxed,
    load_relaxed_below,
    load_shared,
    maximum,
    minimum,
    select,
    store_global_word,
    store_global_words,
    store_shared,
)
from ragged_moe.kernels.quantise import Quantise
from ragged_moe.kernels.quantise_blocks import QuantiseBlocks

WARPS = 16
THREADS = 32 * WARPS
OWN = 4  # experts that a CTA can have
CTAS = 128
MAX_LOCAL = OWN * CTAS
TOGETHER = 8  # entries of topk_ids that a lane loads at once
COPIED_TOGETHER = 2  # and words of a row that a thread does: with these threads 8192 columns of bf16
WORDS, MORE, OF_MAP = 12, 4, 4


def grid_of(local: int) -> tuple[int, int]:
    """Return (CTAs, experts of each)."""
    own = -(-local // CTAS)
    return -(-local // own), own


class Lists(NamedTuple):
    """What the kernel lists rows from, where it writes them, and its sizes."""

    ids: Int64  # topk_ids: int32 or, if wide, int64 [T, k]
    given: Int64  # topk_weights: f32 [T, k]
    m_indptr: Int64  # int32 [local + 1]
    rows: Int64  # int32 [up to k T]
    places: Int64  # int32 [T, slots]
    weights: Int64  # f32 [T, slots]
    tokens: Int32  # T
    k: Int32
    local: Int32
    offset: Int32
    grid: Int32  # CTAs that list


class Map(NamedTuple):
    """Where a number is looked up, and the sizes: its row's first number, or that of the replica whose turn it is."""

    numbers: Int64  # int32 [logical, replicas]
    counts: Int64  # int32 [logical]: how many of a row are there; not read where replicas is not more than 1
    logical: Int32
    replicas: Int32


class Thread(NamedTuple):
    """Which thread this is."""

    block: Int32
    warp: Int32
    lane: Int32


class Assign:
    """The kernel writes m_indptr, rows (the token of each row), and places and weights (the row of each of a token's
    experts and its weight; -1 and 0 for an expert that is not local, and behind the last).

    Its words: the Lists; CUDA stream.
    slots: a multiple of 4, at least k. own: experts of a CTA.
    ones: the weights are 1 instead, as those given are already on the input.
    With a layout T is ranks * most, and four more words are this rank's window, the word that tells the host why it
    trapped, most, and nanoseconds that it waits for the ranks' tokens.
    maps: 1 if topk_ids are looked up in a Map, whose words are the last four; 2 if that has replicas: those of a row in
    turn, by the token's number and the entry's place among its k. What is not in the map is not local.
    With a quantiser four more words are that one's first three, and H. If it copies they are addresses of hidden_states
    [T, H] and permuted [up to k T, H], a word of no meaning, and the bytes of H, a multiple of 16; each entry of
    topk_ids has a CTA, which counts the rows before its own and then copies: permuted[r] = hidden_states[rows[r]].
    """

    def __init__(
        self, slots: int, wide: bool, own: int, layout: Layout | None = None, ones: bool = False,
        quantiser: Quantise | QuantiseBlocks | None = None, copies: bool = False, maps: int = 0,
    ):  # fmt: skip
        self.slots, self.wide, self.own, self.layout, self.ones, self.maps = slots, wide, own, layout, ones, maps
        self.quantiser, self.copies, self.reads_hidden = quantiser, copies, bool(quantiser or copies)
        assert sum(map(bool, (layout, quantiser, copies))) <= 1  # their words are the same
        # Registers are to be left for this many: min_blocks_per_mp would say it, but asks the driver of a GPU
        self.most_threads = (quantiser.of_sm * THREADS, 1, 1) if quantiser and quantiser.of_sm else (0, 0, 0)
        self.words = WORDS + MORE * bool(self.reads_hidden or layout) + OF_MAP * bool(maps)

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words = cute.make_tensor(host, cute.make_layout(self.words))
        of = Lists(*[words[i] for i in range(6)], *[Int32(words[i]) for i in range(6, 11)])
        stream = cuda_ir.cast(cuda_ir.StreamType.get(), words[11].ir_value())
        awaiting = (words[12], words[13], Int32(words[14]), words[15]) if self.layout else ()
        of_hidden = (words[12], words[13], words[14], Int32(words[15])) if self.reads_hidden else ()
        of_map = ()
        if const_expr(self.maps):
            *addresses, logical, replicas = [words[i] for i in range(self.words - OF_MAP, self.words)]
            of_map = (*addresses, Int32(logical), Int32(replicas))
        ctas = of.grid
        if const_expr(self.quantiser is not None):
            ctas = of.grid + self.quantiser.ctas(of.tokens)
        if const_expr(self.copies):
            ctas = of.grid + of.tokens * of.k
        self.kernel(of, awaiting + of_map, of_hidden).launch(
            grid=(ctas, 1, 1), block=(THREADS, 1, 1), smem=4 * WARPS * (self.own + 1), stream=stream, use_pdl=True,
            max_number_threads=self.most_threads,
        )  # fmt: skip

    def experts_from(self, of: Lists, of_map: tuple, first: Int32, step: int, count: int, end: Int32) -> list[Uint32]:
        """Return the experts of `count` entries of topk_ids, which are loaded together, less the offset.

        The entries are first, first + step, ...; one that is not before end, or has a number that no int32 has, gives
        2^32 - 1. Who compares as unsigned has one comparison: what is below `local` is a local expert.
        """
        bytes_of = 8 if self.wide else 4
        at, bounds = of.ids + Int64(first) * bytes_of, [end - step * n for n in range(count)]

        def none() -> Int32:
            return Int32(-1) if self.maps else of.offset - 1  # a map may have any other number

        def load(half: int) -> list[Int32]:
            places, other = [at + (bytes_of * step * n + half) for n in range(count)], none()
            return [load_relaxed_below(x, first, bound, other) for x, bound in zip(places, bounds)]

        found = load(0)
        if self.wide:
            other = none()
            found = [select(upper == 0, lower, other) for lower, upper in zip(found, load(4))]
        if self.maps:
            found = [self.looked_up(x, first + step * n, of.k, Map(*of_map)) for n, x in enumerate(found)]
        return [Uint32(x - of.offset) for x in found]

    def looked_up(self, number: Int32, entry: Int32, k: Int32, of: Map) -> Int32:
        """Return what a map has for the number of an entry of topk_ids, -1 if it has nothing."""
        known, at = select(Uint32(number) < Uint32(of.logical), 1, 0), Int64(number)
        place = at * Int64(of.replicas)
        if self.maps == 2:
            count = minimum(load_global_word(of.counts + at * 4, known), of.replicas)
            known, count = select(count > 0, 1, 0), maximum(count, 1)
            turn = entry - divide_small(entry, k) * (k - 1)  # the token's number and the entry's place among its k
            place = place + Int64(turn - divide_small(turn, count) * count)
        return select(known != 0, load_global_word(of.numbers + place * 4, known), -1)

    @cute.kernel
    def kernel(self, of, awaiting: tuple, of_hidden: tuple):  # Lists: a type here becomes part of the kernel's name
        warp, lane, block, _ = own_place()
        follow_previous_kernel()
        of_map = ()
        if const_expr(self.layout is not None):
            self.await_tokens(*awaiting, warp, lane)
        else:
            of_map = awaiting
        thread = Thread(block, warp, lane)
        if const_expr(self.reads_hidden):
            x, to, scales, hidden = of_hidden
            if block < of.grid:
                self.lists(of, of_map, thread)
            elif const_expr(self.copies):
                self.copy(x, to, hidden, of, of_map, Thread(block - of.grid, warp, lane))
            else:
                ctas, _, _ = cute.arch.grid_dim()
                of_cta = block - of.grid, ctas - of.grid, warp, lane
                self.quantiser.part(x, to, scales, of.given, of.tokens, hidden, *of_cta)
        else:
            self.lists(of, of_map, thread)

    @cute.jit
    def copy(self, x: Int64, to: Int64, row_bytes: Int32, of: Lists, of_map: tuple, who: Thread):
        """Copy the token of an entry of topk_ids, that of the block's number, to its row, if its expert is local."""
        entry, warp, lane = who
        of_warps, k, thread = cute.arch.get_dyn_smem(cutlass.Int8, 16).toint(), of.k, warp * 32 + lane
        (expert,) = self.experts_from(of, of_map, entry, 1, 1, entry + 1)
        if expert < Uint32(of.local):  # all threads see the same
            row, entries = Int32(0), of.tokens * k
            for i in cutlass.range(thread, entries, THREADS, unroll=1):
                (other,) = self.experts_from(of, of_map, i, 1, 1, entries)
                row = row + select((other < expert) | ((other == expert) & (i < entry)), 1, 0)
            total = cute.arch.warp_redux_sync(row, "add")
            if lane == 0:
                store_shared(of_warps + 4 * warp, total)
            cute.arch.sync_threads()
            row = sum((load_shared(of_warps + 4 * w) for w in range(WARPS)), Int32(0))
            source, place = x + Int64(divide(entry, k)) * Int64(row_bytes), to + Int64(row) * Int64(row_bytes)
            copy_row(source, place, row_bytes >> 4, thread, THREADS, COPIED_TOGETHER)

    @cute.jit
    def lists(self, of: Lists, of_map: tuple, who: Thread):
        """List the rows of this CTA's experts."""
        block, warp, lane = who
        m_indptr, local = of.m_indptr, of.local
        of_warps = cute.arch.get_dyn_smem(cutlass.Int8, 16).toint()  # [warps, 1 + own]
        own, first, entries = self.own, block * self.own, of.tokens * of.k
        share = divide(entries + (THREADS - 1), THREADS) * 32  # a warp's entries lie side by side
        begin, end = minimum(warp * share, entries), minimum((warp + 1) * share, entries)
        few = self.experts_from(of, of_map, begin + lane, 32, TOGETHER, end)  # those of few tokens are all
        self.slots_of_tokens(of, of_map, who)

        counts = [Int32(0) for _ in range(own + 1)]  # of rows before those of each own expert, and behind the last one
        counts = self.count_before(few, counts, local, first)
        for i in cutlass.range(begin + lane + 32 * TOGETHER, end, 32 * TOGETHER, unroll=1):
            experts = self.experts_from(of, of_map, i, 32, TOGETHER, end)
            counts = self.count_before(experts, counts, local, first)
        for j in range_constexpr(own + 1):
            total = cute.arch.warp_redux_sync(counts[j], "add")
            if lane == 0:
                store_shared(of_warps + (warp * (own + 1) + j) * 4, total)
        cute.arch.sync_threads()

        starts, places_of = [Int32(0)] * (own + 1), [Int32(0)] * own  # of each own expert: its rows, this warp's
        for w in range_constexpr(WARPS):
            of_warp = [load_shared(of_warps + (w * (own + 1) + j) * 4) for j in range(own + 1)]
            starts = [x + y for x, y in zip(starts, of_warp)]
            for j in range_constexpr(own):
                places_of[j] = places_of[j] + select(warp > w, of_warp[j + 1] - of_warp[j], 0)
        for j in range_constexpr(own):
            places_of[j] = places_of[j] + starts[j]
            wanted = select((warp == 0) & (lane == 0) & (first + j < local), 1, 0)
            store_global_word(m_indptr + Int64(first + j) * 4 + 4, starts[j + 1], wanted)
        store_global_word(m_indptr, Int32(0), select((block == 0) & (warp == 0) & (lane == 0), 1, 0))

        places_of = self.list_own(few, begin, places_of, of, first, lane)
        for base in cutlass.range(begin + 32 * TOGETHER, end, 32 * TOGETHER, unroll=1):
            experts = self.experts_from(of, of_map, base + lane, 32, TOGETHER, end)
            places_of = self.list_own(experts, base, places_of, of, first, lane)

    def count_before(self, experts: list[Uint32], counts: list[Int32], local: Int32, first: Int32) -> list[Int32]:
        """Count these entries in, in the place of each expert from `first` on that they come before."""
        for expert in experts:
            counts = [x + select(expert < Uint32(minimum(first + j, local)), 1, 0) for j, x in enumerate(counts)]
        return counts

    @cute.jit
    def list_own(
        self, experts: list[Uint32], base: Int32, places_of: list[Int32], of: Lists, first: Int32, lane: Int32
    ):  # fmt: skip
        """List the rows of this CTA's experts among a warp's entries from `base` on. places_of: the next row of each.
        Returns the ones behind.
        """
        own, places_of = self.own, [*places_of]
        for n in range_constexpr(TOGETHER):
            number = experts[n] - Uint32(first)
            is_own = (number < Uint32(own)) & (experts[n] < Uint32(of.local))
            if cute.arch.vote_any_sync(is_own):  # few are, of many experts
                at, i = Int32(0), base + lane + 32 * n
                for j in range_constexpr(own):
                    winners = cute.arch.vote_ballot_sync(is_own & (number == Uint32(j)))
                    place = places_of[j] + cute.arch.popc(winners & ((Int32(1) << lane) - 1))
                    at = select(number == Uint32(j), place, at)
                    places_of[j] = places_of[j] + cute.arch.popc(winners)
                token, here = divide(i, of.k), select(is_own, 1, 0)
                store_global_word(of.rows + Int64(at) * 4, token, here)
                store_global_word(of.places + Int64(token * self.slots + i - token * of.k) * 4, at, here)
        return places_of

    @cute.jit
    def slots_of_tokens(self, of: Lists, of_map: tuple, who: Thread):
        """Write the weights of this CTA's part of the tokens, a thread those of one, and which slots have no row.

        Few tokens are the last warps', as the first ones have their entries to list.
        """
        block, warp, lane = who
        given, places, weights, tokens, k, local, grid = of.given, *of[4:9], of.grid
        for token in cutlass.range(block + (lane * WARPS + WARPS - 1 - warp) * grid, tokens, THREADS * grid, unroll=1):
            first = token * k
            experts = self.experts_from(of, of_map, first, 1, self.slots, first + k)
            here = [select(expert < Uint32(local), 1, 0) for expert in experts]
            factors = [Float32(1.0)] * self.slots
            if const_expr(not self.ones):  # of all experts, while these are under way
                at = given + Int64(first) * 4
                factors = [load_global_float(at + 4 * j, select(k > j, 1, 0)) for j in range(self.slots)]
            factors = [select(x != 0, as_int(factor), 0) for x, factor in zip(here, factors)]
            at = Int64(token) * (4 * self.slots)
            for j in range_constexpr(0, self.slots, 4):
                store_global_words(weights + at + 4 * j, factors[j : j + 4], Int32(1))
            for j in range_constexpr(self.slots):
                store_global_word(places + at + 4 * j, Int32(-1), 1 - here[j])

    @cute.jit
    def await_tokens(self, window: Int64, reason: Int64, most: Int32, patience: Int64, warp: Int32, lane: Int32):
        """Wait until every rank has sent its tokens, and has the same number in mind for the most of any."""
        if warp == 0:
            at, rank = self.layout.window, Int64(lane) * 4
            there = select(lane < self.layout.ranks, 1, 0)
            epoch = load_relaxed(window + at.epoch)
            await_word(window + at.dispatched + rank, epoch, patience, reason, lane + DISPATCH * STAGE, there)
            await_word(window + at.most + rank, most, Int64(0), reason, lane + MOST * STAGE, there)
        cute.arch.sync_threads()
