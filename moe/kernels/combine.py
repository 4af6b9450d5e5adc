"""Adds up what the ranks' experts gave this rank's tokens: a CTA a token, as soon as that token's sums are there.

The sums of the ranks that have experts of the token are added in f32, in the order of the ranks, whenever they come.
"""

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr
from cutlass._mlir.dialects import cuda as cuda_ir

from moe.kernels import exchange
from moe.kernels.exchange import Layout
from moe.kernels.ptx import (
    as_float,
    await_word,
    let_next_kernel_start,
    load_global_words,
    load_relaxed,
    pack_bfloat,
    select,
    store_global_words,
    wait_for_previous_kernel,
)

WORDS = 8


class Combine:
    """The kernel computes output[t] = sum over the ranks that have experts of token t of their sums.

    Its words: addresses of topk_ids int32 or, if wide, int64 [T, k], this rank's window, output bf16 [T, H], and
    the word that tells the host why it trapped; T, local experts of a rank, nanoseconds that it waits; CUDA stream.
    """

    def __init__(self, layout: Layout, wide: bool):
        self.layout, self.wide = layout, wide

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words = cute.make_tensor(host, cute.make_layout(WORDS))
        ids, own, output, reason = [words[i] for i in range(4)]
        stream = cuda_ir.cast(cuda_ir.StreamType.get(), words[7].ir_value())
        self.kernel(ids, own, output, reason, Int32(words[5]), words[6]).launch(
            grid=(Int32(words[4]), 1, 1), block=(self.layout.threads, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(self, ids: Int64, own: Int64, output: Int64, reason: Int64, local: Int32, patience: Int64):
        ranks, hidden, k = self.layout.ranks, self.layout.hidden, self.layout.top_k
        window = self.layout.window
        thread, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), cute.arch.lane_idx()
        wait_for_previous_kernel()
        let_next_kernel_start()
        epoch = load_relaxed(own + window.epoch)
        of, _ = exchange.owner(ids, self.wide, token * k + lane, lane < k, local, ranks)
        wanted = exchange.votes(of, ranks)
        if warp == 0:
            mine = Int32(0)
            for i in range_constexpr(ranks):
                mine = select(lane == i, wanted[i], mine)
            flag = own + window.arrived + Int64(lane * self.layout.tokens + token) * 4
            code = lane + exchange.COMBINE * exchange.STAGE
            await_word(flag, epoch, patience, reason, code, mine)
        cute.arch.sync_threads()
        for turn in range_constexpr(self.layout.turns):
            column = (thread + turn * self.layout.threads) * exchange.VECTOR
            inside = column < hidden
            x = []
            for i in range_constexpr(ranks):
                at = Int64(i * self.layout.tokens + token) * hidden + Int64(column)
                x.append(load_global_words(own + window.sums + at * 2, select(inside & (wanted[i] != 0), 1, 0)))
            sums = [Float32(0.0)] * exchange.VECTOR
            for words in x:
                values = [as_float(half) for word in words for half in (word << 16, word & -65536)]
                sums = [sum + value for sum, value in zip(sums, values)]
            to = output + (Int64(token) * hidden + Int64(column)) * 2
            packed = [pack_bfloat(sums[2 * i], sums[2 * i + 1]) for i in range(4)]
            store_global_words(to, packed, select(inside, 1, 0))
