"""Sends this rank's tokens to the ranks that have their experts, quantised: each token crosses a link once a rank.

    a CTA       some tokens: bf16 ──► e4m3, scales ──► the windows of the ranks that have one of their experts
    last CTA    fence.acq_rel.sys, then the call's number to each rank's window: all of this rank's tokens are there

Nothing is sent before all ranks have read the call before (`freed`), whose tokens it overwrites. Every slot gets its
experts, those without a token -1.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, range_constexpr

from ragged_moe.kernels import exchange
from ragged_moe.kernels.exchange import Layout
from ragged_moe.kernels.host import words_and_launch
from ragged_moe.kernels.ptx import (
    as_int,
    atomic_inc,
    await_word,
    fence_system,
    follow_previous_kernel,
    load_address,
    load_global_float,
    load_global_words,
    load_relaxed,
    select,
    store_global_pair,
    store_global_word,
    store_relaxed_system,
)
from ragged_moe.kernels.quantise import quantised_block

WORDS = 13
CTAS_PER_SM = 2


class Operands(NamedTuple):
    """What the kernel is given: addresses, then sizes."""

    x: Int64  # bf16 [T, H]
    ids: Int64  # topk_ids: int32 or, if wide, int64 [T, k]
    weights: Int64  # topk_weights: f32 [T, k]
    windows: Int64  # of the ranks: int64 [ranks]
    own: Int64  # this rank's window
    reason: Int64  # the word that tells the host why the kernel trapped
    count: Int32  # T
    most: Int32  # of any rank
    local: Int32  # experts of a rank
    rank: Int32  # this one
    patience: Int64  # nanoseconds that it waits


class Dispatch:
    """The kernel writes values and scales as ragged_moe.kernels.quantise does, and topk_ids as their ranks number them.

    Its words: the Operands, but CTAs before the last; CUDA stream.
    """

    def __init__(self, layout: Layout, wide: bool):
        self.layout, self.wide = layout, wide

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words, launch = words_and_launch(host, WORDS)
        *sizes, grid = [Int32(word) for word in words[6:11]]
        launch(self.kernel(Operands(*words[:6], *sizes, words[11])), grid, self.layout.threads)

    @cute.kernel
    def kernel(self, given):  # Operands: a type that is written here becomes part of the kernel's name
        x, ids, weights, windows, own, reason, count, most, local, rank, patience = given
        ranks, hidden, k = self.layout.ranks, self.layout.hidden, self.layout.top_k
        window, threads = self.layout.window, self.layout.threads
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), cute.arch.lane_idx()
        follow_previous_kernel()
        bases = [load_address(windows + 8 * i) for i in range(ranks)]
        epoch = load_relaxed(own + window.epoch) + 1
        for token in cutlass.range(block, most, grid, unroll=1):
            there = token < count
            columns = [(thread + i * threads) * exchange.VECTOR for i in range(self.layout.turns)]
            inside = [select(there & (column < hidden), 1, 0) for column in columns]
            row = Int64(token) * hidden
            halves = [load_global_words(x + (row + column) * 2, yes) for column, yes in zip(columns, inside)]
            entry = token * k + lane
            to, expert = exchange.owner(ids, self.wide, entry, there & (lane < k), local, ranks)
            weight = as_int(load_global_float(weights + Int64(entry) * 4, select(to >= 0, 1, 0)))
            wanted = exchange.votes(to, ranks)
            if token == block:  # the first
                self.await_freed(own, epoch - 1, patience, reason, lane)
            slot = Int64(rank * most + token)
            for turn in range_constexpr(self.layout.turns):
                packed, scale = quantised_block(halves[turn], 128 // exchange.VECTOR)
                at = Int64(columns[turn] >> 7) * Int64(ranks * most) + slot
                for i in range_constexpr(ranks):
                    sent = select((wanted[i] != 0) & (inside[turn] != 0), 1, 0)
                    store_global_pair(bases[i] + window.hidden + slot * hidden + Int64(columns[turn]), packed, sent)
                    store_global_word(bases[i] + window.scale + at * 4, as_int(scale), select(lane & 15 == 0, sent, 0))
            of_entry = (slot * k + Int64(lane)) * 4
            for i in range_constexpr(ranks):
                sent = select((warp == 0) & (lane < k), 1, 0)
                store_global_word(bases[i] + window.ids + of_entry, select(to == i, expert, -1), sent)
                store_global_word(bases[i] + window.weights + of_entry, weight, sent)
        cute.arch.sync_threads()
        if thread == 0:
            # At the GPU's scope: the last CTA's fence hands on to other GPUs what it has learnt, too (PTX ISA 8.9.5)
            if atomic_inc(own + window.counter, grid - 1) == grid - 1:
                store_relaxed_system(own + window.epoch, epoch)
                for i in range_constexpr(ranks):
                    store_relaxed_system(bases[i] + window.most + Int64(rank) * 4, most)
                fence_system()
                for i in range_constexpr(ranks):
                    store_relaxed_system(bases[i] + window.dispatched + Int64(rank) * 4, epoch)

    @cute.jit
    def await_freed(self, own: Int64, epoch: Int32, patience: Int64, reason: Int64, lane: Int32):
        """Wait until each rank has read what the call of this number sent it."""
        code = lane + exchange.FREED * exchange.STAGE
        there = select(lane < self.layout.ranks, 1, 0)
        await_word(own + self.layout.window.freed + Int64(lane) * 4, epoch, patience, reason, code, there)
        cute.arch.sync_warp()
