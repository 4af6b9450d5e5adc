"""Sends each token's sum back to its rank, and adds up what the ranks send: one launch, a CTA a token for each.

    first CTAs    the other ranks' tokens: finalise.py's sum ──► the token's rank, then the token's flag
    the others    this rank's tokens: their own sum, and those of the ranks that have their experts, once here ──► out

Sums are added in f32 in the order of the ranks, whenever they come. The others wait only for the first, which start
before them, on all ranks.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr
from cutlass._mlir.dialects import cuda as cuda_ir

from ragged_moe.kernels import exchange
from ragged_moe.kernels.exchange import Layout
from ragged_moe.kernels.finalise import THREADS, TOGETHER, Finalise
from ragged_moe.kernels.ptx import (
    as_float,
    await_word,
    divide,
    let_next_kernel_start,
    load_address,
    load_global_words,
    load_relaxed,
    maximum,
    pack_bfloat,
    select,
    store_global_words,
    store_release_system,
    wait_for_previous_kernel,
)

WORDS = 14


class Combine:
    """The kernel computes output[t] = sum over the ranks of what ragged_moe.kernels.finalise gives for token t there.

    Its words: addresses of o bf16 [rows, H], places int32 [ranks * most, slots], weights f32 [ranks * most, slots],
    topk_ids int32 or, if wide, int64 [T, k], output bf16 [T, H], the ranks' windows int64 [ranks], this rank's window,
    and the word that tells the host why it trapped; T, the most of any rank, local experts of a rank, this rank,
    nanoseconds that it waits; CUDA stream.
    """

    def __init__(self, layout: Layout, slots: int, wide: bool):
        self.layout, self.wide, self.finalise = layout, wide, Finalise(slots)

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words = cute.make_tensor(host, cute.make_layout(WORDS))
        o, places, weights, ids, output, windows, own, reason = [words[i] for i in range(8)]
        count, most, local, rank = [Int32(words[i]) for i in range(8, 12)]
        stream = cuda_ir.cast(cuda_ir.StreamType.get(), words[13].ir_value())
        self.kernel(
            o, places, weights, ids, output, windows, own, reason, count, most, local, rank, words[12]
        ).launch(
            grid=(self.layout.ranks * most, 1, 1), block=(THREADS, 1, 1), stream=stream, use_pdl=True
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self, o: Int64, places: Int64, weights: Int64, ids: Int64, output: Int64, windows: Int64, own: Int64,
        reason: Int64, count: Int32, most: Int32, local: Int32, rank: Int32, patience: Int64,
    ):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        wait_for_previous_kernel()
        let_next_kernel_start()
        epoch, ranks = load_relaxed(own + self.layout.window.epoch), self.layout.ranks
        others = (ranks - 1) * most
        # The kernels that read all ranks' tokens have ended. A CTA says so that waits anyway: a release takes 1.6 us
        if (block == others) & (thread < ranks):
            of_rank = load_address(windows + Int64(thread) * 8)
            store_release_system(of_rank + self.layout.window.freed + Int64(rank) * 4, epoch, Int32(1))
        if block < others:
            self.send(o, places, weights, windows, most, rank, epoch, block, thread)
        elif block - others < count:
            token = block - others
            rows, factors = self.finalise.places(places, weights, rank * most + token)
            if self.any(rows) >= 0:
                slot = Int64(rank * self.layout.tokens + token)
                to = own + self.layout.window.sums + slot * (2 * self.layout.hidden)  # a thread reads what it wrote
                self.finalise.sum(o, rows, factors, to, Int32(self.layout.hidden), thread)
            self.add(ids, own, output, reason, local, rank, patience, epoch, token, thread)

    def any(self, rows: list[Int32]) -> Int32:
        """Return a row of these, -1 if there is none."""
        last = rows[0]
        for row in rows[1:]:
            last = maximum(last, row)
        return last

    @cute.jit
    def send(
        self, o: Int64, places: Int64, weights: Int64, windows: Int64, most: Int32, rank: Int32, epoch: Int32,
        block: Int32, thread: Int32,
    ):  # fmt: skip
        """Send the sum of another rank's token, if it has experts here."""
        window, ranks = self.layout.window, self.layout.ranks
        turn = divide(block, most)
        source = turn + rank + 1
        source = select(source < ranks, source, source - ranks)
        token = block - turn * most
        rows, factors = self.finalise.places(places, weights, source * most + token)
        if self.any(rows) >= 0:
            of_rank = load_address(windows + Int64(source) * 8)
            slot = Int64(rank * self.layout.tokens + token)
            to = of_rank + window.sums + slot * (2 * self.layout.hidden)
            self.finalise.sum(o, rows, factors, to, Int32(self.layout.hidden), thread)
            cute.arch.sync_threads()
            store_release_system(of_rank + window.arrived + slot * 4, epoch, select(thread == 0, 1, 0))

    @cute.jit
    def add(
        self, ids: Int64, own: Int64, output: Int64, reason: Int64, local: Int32, rank: Int32, patience: Int64,
        epoch: Int32, token: Int32, thread: Int32,
    ):  # fmt: skip
        """Await a token's sums of other ranks, and add them up, with this rank's."""
        ranks, hidden, k = self.layout.ranks, self.layout.hidden, self.layout.top_k
        window = self.layout.window
        warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), cute.arch.lane_idx()
        of, _ = exchange.owner(ids, self.wide, token * k + lane, lane < k, local, ranks)
        wanted = exchange.votes(of, ranks)
        if warp == 0:
            mine = Int32(0)
            for i in range_constexpr(ranks):
                mine = select((lane == i) & (rank != i), wanted[i], mine)
            flag = own + window.arrived + Int64(lane * self.layout.tokens + token) * 4
            code = lane + exchange.COMBINE * exchange.STAGE
            await_word(flag, epoch, patience, reason, code, mine)
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
            to = output + Int64(token) * (2 * hidden) + Int64(base) * 16
            for i in range_constexpr(TOGETHER):
                x = [pack_bfloat(sums[8 * i + 2 * j], sums[8 * i + 2 * j + 1]) for j in range(4)]
                store_global_words(to + i * (THREADS * 16), x, inside[i])
