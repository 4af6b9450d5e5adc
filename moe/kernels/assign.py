"""Lists the rows of the local experts from any router's choice, in one launch in which no CTA waits for another.

    each CTA   has some experts; it reads all tokens' experts, counts rows before its own, and those of each warp's part
    a warp     writes the rows of its part of the tokens for these experts, in their order ──► rows, places, weights

So the rows of an expert are in the order of the tokens, whatever runs when. Every CTA reads topk_ids, 64 KiB for 2048
tokens of 8 experts; in return nothing has to meet. Tokens that other ranks send (dispatch.py) it awaits. Tokens in bf16
are quantised (quantise.py) in the same launch, by more CTAs.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass._mlir.dialects import cuda as cuda_ir

from moe.kernels.exchange import DISPATCH, MOST, STAGE, Layout
from moe.kernels.ptx import (
    as_int,
    await_word,
    divide,
    let_next_kernel_start,
    load_global_float,
    load_relaxed,
    load_relaxed_if,
    load_shared,
    minimum,
    select,
    store_global_word,
    store_shared,
    wait_for_previous_kernel,
)
from moe.kernels.quantise import Quantise

WARPS = 16
THREADS = 32 * WARPS
OWN = 4  # experts that a CTA can have
TOGETHER = 8  # loads of topk_ids that a thread has under way at once
CTAS = 128
MAX_LOCAL = OWN * CTAS
MAX_TOP_K = 16
WORDS, MORE_WORDS = 13, 17


def grid_of(local: int) -> tuple[int, int]:
    """Return (CTAs, experts of each)."""
    own = -(-local // CTAS)
    return -(-local // own), own


class Assign:
    """The kernel writes m_indptr, rows (the token of each row), and places and weights (the row of each of a token's
    experts and its weight; -1 and 0 for an expert that is not local, and behind the last).

    Its words: addresses of topk_ids int32 or, if wide, int64 [T, k], topk_weights f32 [T, k], m_indptr int32
    [local + 1], rows int32 [up to k T], places int32 [T, slots], weights f32 [T, slots]; T, k, local, offset, CTAs,
    experts of a CTA; CUDA stream.
    ones: the weights are 1 instead, as those given are already on the input.
    With a layout T is ranks * most, and four more words are this rank's window, the word that tells the host why it
    trapped, most, and nanoseconds that it waits for the ranks' tokens.
    If it quantises, four more words are those of moe.kernels.quantise for x, values, scales, and H; weights that are
    already on the input are then on the scales.
    """

    def __init__(
        self, slots: int, wide: bool, layout: Layout | None = None, ones: bool = False, quantises: bool = False
    ):
        self.slots, self.wide, self.layout, self.ones = slots, wide, layout, ones
        self.quantise = Quantise(ones) if quantises else None
        self.words = MORE_WORDS if quantises or layout else WORDS

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words = cute.make_tensor(host, cute.make_layout(self.words))
        ids, given, m_indptr, rows, places, weights = [words[i] for i in range(6)]
        tokens, k, local, offset, grid, own = [Int32(words[i]) for i in range(6, 12)]
        stream = cuda_ir.cast(cuda_ir.StreamType.get(), words[12].ir_value())
        awaiting = (words[13], words[14], Int32(words[15]), words[16]) if self.layout else ()
        quantised = (words[13], words[14], words[15], Int32(words[16])) if self.quantise else ()
        ctas = grid + tokens if const_expr(self.quantise is not None) else grid
        self.kernel(
            ids, given, m_indptr, rows, places, weights, tokens, k, local, offset, grid, own, awaiting, quantised
        ).launch(
            grid=(ctas, 1, 1), block=(THREADS, 1, 1), smem=4 * WARPS * (OWN + 1), stream=stream, use_pdl=True
        )

    def load(self, ids: Int64, i: Int32, end: Int32) -> list[Int32]:
        """Load entry i of topk_ids, if it is before end: its lower half, and if wide its upper one."""
        there, step = select(i < end, 1, 0), 8 if self.wide else 4
        return [load_relaxed_if(ids + Int64(i) * step + half, there) for half in range(0, step, 4)]

    def expert_of(self, entry: list[Int32], i: Int32, end: Int32, offset: Int32, local: Int32) -> Int32:
        """Return the local expert of a loaded entry i; -1 if it is not local, or i is not before end."""
        expert = entry[0] - offset
        valid = (expert >= 0) & (expert < local) & (i < end)
        if self.wide:  # numbers that no int32 has are not local, whatever their lower half
            valid = valid & (entry[1] == 0)
        return select(valid, expert, -1)

    @cute.kernel
    def kernel(
        self, ids: Int64, given: Int64, m_indptr: Int64, rows: Int64, places: Int64, weights: Int64, tokens: Int32,
        k: Int32, local: Int32, offset: Int32, grid: Int32, own: Int32, awaiting: tuple, quantised: tuple,
    ):  # fmt: skip
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        block, _, _ = cute.arch.block_idx()
        wait_for_previous_kernel()
        let_next_kernel_start()
        if const_expr(self.layout is not None):
            self.await_tokens(*awaiting, warp, lane)
        of_lists = ids, given, m_indptr, rows, places, weights, tokens, k, local, offset, grid, own, block, warp, lane
        if const_expr(self.quantise is not None):
            x, values, scales, hidden = quantised
            if block < grid:
                self.lists(*of_lists)
            else:
                token = block - grid
                self.quantise.quantise(x, values, scales, given, tokens, hidden, token, warp, lane, WARPS)
        else:
            self.lists(*of_lists)

    @cute.jit
    def lists(
        self, ids: Int64, given: Int64, m_indptr: Int64, rows: Int64, places: Int64, weights: Int64, tokens: Int32,
        k: Int32, local: Int32, offset: Int32, grid: Int32, own: Int32, block: Int32, warp: Int32, lane: Int32,
    ):  # fmt: skip
        """List the rows of this CTA's experts."""
        of_warps = cute.arch.get_dyn_smem(cutlass.Int8, 16).toint()  # [warps, 1 + OWN]: rows before, rows of each
        first, entries = block * own, tokens * k
        share = divide(entries + (THREADS - 1), THREADS) * 32  # a warp's entries lie side by side
        begin, end = minimum(warp * share, entries), minimum((warp + 1) * share, entries)

        counts = [Int32(0) for _ in range(OWN + 1)]
        for base in cutlass.range(begin + lane, end, 32 * TOGETHER, unroll=1):
            at = [base + 32 * d for d in range(TOGETHER)]
            entries_at = [self.load(ids, i, end) for i in at]
            for d in range_constexpr(TOGETHER):
                expert = self.expert_of(entries_at[d], at[d], end, offset, local)
                counts[0] = counts[0] + select((expert >= 0) & (expert < first), 1, 0)
                for j in range_constexpr(OWN):
                    counts[1 + j] = counts[1 + j] + select((expert == first + j) & (j < own), 1, 0)
        for j in range_constexpr(OWN + 1):
            total = cute.arch.warp_redux_sync(counts[j], "add")
            if lane == 0:
                store_shared(of_warps + (warp * (OWN + 1) + j) * 4, total)
        cute.arch.sync_threads()

        start = Int32(0)  # of this CTA's rows
        for w in range_constexpr(WARPS):
            start = start + load_shared(of_warps + w * (OWN + 1) * 4)
        places_of = []  # of each expert: where this warp's rows begin
        for j in range_constexpr(OWN):
            before = start
            for w in range_constexpr(WARPS):
                of_warp = load_shared(of_warps + (w * (OWN + 1) + 1 + j) * 4)
                before = before + select(warp > w, of_warp, 0)
                start = start + of_warp
            places_of.append(before)
            wanted = select((warp == 0) & (lane == 0) & (j < own) & (first + j < local), 1, 0)
            store_global_word(m_indptr + Int64(first + j) * 4 + 4, start, wanted)
        store_global_word(m_indptr, Int32(0), select((block == 0) & (warp == 0) & (lane == 0), 1, 0))

        for base in cutlass.range(begin, end, 32 * TOGETHER, unroll=1):
            at = [base + 32 * d + lane for d in range(TOGETHER)]
            entries_at = [self.load(ids, i, end) for i in at]
            for d in range_constexpr(TOGETHER):
                i = at[d]
                expert = self.expert_of(entries_at[d], i, end, offset, local)
                token = divide(i, k)
                nobodys = (expert < 0) & (i < end) & (token % grid == block)
                if cute.arch.vote_ballot_sync(nobodys | ((expert >= first) & (expert < first + own))) != 0:
                    slot = Int64(token * self.slots + i - token * k)
                    for j in range_constexpr(OWN):
                        mine = (expert == first + j) & (j < own)
                        winners = cute.arch.vote_ballot_sync(mine)
                        place = places_of[j] + cute.arch.popc(winners & ((Int32(1) << lane) - 1))
                        here = select(mine, 1, 0)
                        store_global_word(rows + Int64(place) * 4, token, here)
                        store_global_word(places + slot * 4, place, here)
                        weight = Float32(1.0) if self.ones else load_global_float(given + Int64(i) * 4, here)
                        store_global_word(weights + slot * 4, as_int(weight), here)
                        places_of[j] = places_of[j] + cute.arch.popc(winners)
                    of_nobody = select(nobodys, 1, 0)
                    store_global_word(places + slot * 4, Int32(-1), of_nobody)
                    store_global_word(weights + slot * 4, Int32(0), of_nobody)
        thread = warp * 32 + lane
        for token in cutlass.range(block + thread * grid, tokens, THREADS * grid, unroll=1):
            for j in range_constexpr(self.slots):
                behind = select(k <= j, 1, 0)
                store_global_word(places + Int64(token * self.slots + j) * 4, Int32(-1), behind)
                store_global_word(weights + Int64(token * self.slots + j) * 4, Int32(0), behind)

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
