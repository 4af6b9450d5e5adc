"""Sends each token's sum back to its rank, and adds up what the ranks send: one launch, a CTA a token for each.

    first CTAs    the other ranks' tokens: finalise.py's sum ──► the token's rank, then the token's flag
    the others    this rank's tokens: their own sum, and those of the ranks that have their experts, once here ──► out

Sums are added in f32 in the order of the ranks, whenever they come. The others wait only for the first, which start
before them, on all ranks.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from ragged_moe.kernels import exchange
from ragged_moe.kernels.exchange import Layout
from ragged_moe.kernels.finalise import THREADS, TOGETHER, Finalise
from ragged_moe.kernels.host import words_and_launch
from ragged_moe.kernels.ptx import (
    as_float,
    await_word,
    divide,
    follow_previous_kernel,
    load_address,
    load_global_words,
    load_relaxed,
    maximum,
    pack_bfloat,
    select,
    store_global_words,
    store_release_system,
)

WORDS = 14


class Operands(NamedTuple):
    """What the kernel is given: addresses, then sizes."""

    o: Int64  # bf16 [rows, H]
    places: Int64  # int32 [ranks * most, slots]
    weights: Int64  # f32 [ranks * most, slots]
    ids: Int64  # topk_ids: int32 or, if wide, int64 [T, k]
    output: Int64  # bf16 [T, H]
    windows: Int64  # of the ranks: int64 [ranks]
    own: Int64  # this rank's window
    reason: Int64  # the word that tells the host why the kernel trapped
    count: Int32  # T
    most: Int32  # of any rank
    local: Int32  # experts of a rank
    rank: Int32  # this one
    patience: Int64  # nanoseconds that it waits


class Combine:
    """The kernel computes output[t] = sum over the ranks of what ragged_moe.kernels.finalise gives for token t there.

    Its words: the Operands; CUDA stream.
    """

    def __init__(self, layout: Layout, slots: int, wide: bool):
        self.layout, self.wide, self.finalise = layout, wide, Finalise(slots)

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words, launch = words_and_launch(host, WORDS)
        given = Operands(*words[:8], *[Int32(word) for word in words[8:12]], words[12])
        launch(self.kernel(given), self.layout.ranks * given.most, THREADS)

    @cute.kernel
    def kernel(self, given):  # Operands: a type that is written here becomes part of the kernel's name
        own, most, rank = given.own, given.most, given.rank
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        follow_previous_kernel()
        epoch, ranks = load_relaxed(own + self.layout.window.epoch), self.layout.ranks
        others = (ranks - 1) * most
        # The kernels that read all ranks' tokens have ended. A CTA says so that waits anyway: a release takes 1.6 us
        if (block == others) & (thread < ranks):
            of_rank = load_address(given.windows + Int64(thread) * 8)
            store_release_system(of_rank + self.layout.window.freed + Int64(rank) * 4, epoch, Int32(1))
        if block < others:
            self.send(given, epoch, block, thread)
        elif block - others < given.count:
            token = block - others
            rows, factors = self.finalise.places(given.places, given.weights, rank * most + token)
            if self.any(rows) >= 0:
                slot = Int64(rank * self.layout.tokens + token)
                to = own + self.layout.window.sums + slot * (2 * self.layout.hidden)  # a thread reads what it wrote
                self.finalise.sum(given.o, rows, factors, to, Int32(self.layout.hidden), thread)
            self.add(given, epoch, token, thread)

    def any(self, rows: list[Int32]) -> Int32:
        """Return a row of these, or -1."""
        last = rows[0]
        for row in rows[1:]:
            last = maximum(last, row)
        return last

    @cute.jit
    def send(self, given: Operands, epoch: Int32, block: Int32, thread: Int32):
        """Send the sum of another rank's token, if it has experts here."""
        window, ranks, most, rank = self.layout.window, self.layout.ranks, given.most, given.rank
        turn = divide(block, most)
        source = turn + rank + 1
        source = select(source < ranks, source, source - ranks)
        token = block - turn * most
        rows, factors = self.finalise.places(given.places, given.weights, source * most + token)
        if self.any(rows) >= 0:
            of_rank = load_address(given.windows + Int64(source) * 8)
            slot = Int64(rank * self.layout.tokens + token)
            to = of_rank + window.sums + slot * (2 * self.layout.hidden)
            self.finalise.sum(given.o, rows, factors, to, Int32(self.layout.hidden), thread)
            cute.arch.sync_threads()
            store_release_system(of_rank + window.arrived + slot * 4, epoch, select(thread == 0, 1, 0))

    @cute.jit
    def add(self, given: Operands, epoch: Int32, token: Int32, thread: Int32):
        """Await a token's sums of other ranks, and add them up, with this rank's."""
        ranks, hidden, k = self.layout.ranks, self.layout.hidden, self.layout.top_k
        window, own, rank = self.layout.window, given.own, given.rank
        warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), cute.arch.lane_idx()
        of, _ = exchange.owner(given.ids, self.wide, token * k + lane, lane < k, given.local, ranks)
        wanted = exchange.votes(of, ranks)
        if warp == 0:
            mine = Int32(0)
            for i in range_constexpr(ranks):
                mine = select((lane == i) & (rank != i), wanted[i], mine)
            flag = own + window.arrived + Int64(lane * self.layout.tokens + token) * 4
            code = lane + exchange.COMBINE * exchange.STAGE
            await_word(flag, epoch, given.patience, given.reason, code, mine)
        cute.arch.sync_threads()
        for base in cutlass.range(thread, hidden // 8, THREADS * TOGETHER, unroll=1):
            sums = cute.make_rmem_tensor((8 * TOGETHER,), Float32)
            sums.fill(0.0)
            inside = [select(base + i * THREADS < hidden // 8, 1, 0) for i in range(TOGETHER)]
            for source in range_constexpr(ranks):
                row = own + window.sums + Int64(source * self.layout.tokens + token) * (2 * hidden) + Int64(base) * 16
                there = [select(wanted[source] != 0, yes, 0) for yes in inside]
                x = [load_global_words(row + i * (THREADS * 16), there[i]) for i in range(TOGETHER)]
                for i in range_constexpr(8 * TOGETHER):
                    word = x[i // 8][i // 2 % 4]
                    sums[i] = sums[i] + (as_float(word & -65536) if i % 2 else as_float(word << 16))
            to = given.output + Int64(token) * (2 * hidden) + Int64(base) * 16
            for i in range_constexpr(TOGETHER):
                x = [pack_bfloat(sums[8 * i + 2 * j], sums[8 * i + 2 * j + 1]) for j in range(4)]
                store_global_words(to + i * (THREADS * 16), x, inside[i])
