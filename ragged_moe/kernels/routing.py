"""The layer's routing in one launch: it chooses each token's experts and lists the local experts' rows.

    a warp a token   scores experts, takes 4 of 8 groups, then 8 experts ──► weights; it leaves a mask of its local ones
    each CTA         counts the rows that its tokens give each local expert ──► counts
    all CTAs         meet at a barrier over the grid
    each CTA         adds up all counts: where each expert's rows begin, and where those of its own warps do
    a warp           writes the rows of its tokens, in their order ──► rows, places

So the rows of an expert are in the order of the tokens, whatever runs when. ragged_moe.reference.layer.route says what
is chosen.

Memory is idle meanwhile. If the caller expects rows for every expert, further CTAs prefetch to L2 the weights that the
next kernel's CTAs begin with if each expert has one tile of rows: a guess, but nothing waits for it.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from ragged_moe.kernels.host import words_and_launch
from ragged_moe.kernels.program import float_bits
from ragged_moe.kernels.ptx import (
    as_float,
    as_int,
    atomic_inc,
    bulk_prefetch,
    divide,
    follow_previous_kernel,
    load_acquire,
    load_global_floats,
    load_global_words,
    load_relaxed,
    load_relaxed_if,
    load_shared,
    maximum,
    minimum,
    pause,
    prefix_sum,
    select,
    select_float,
    store_global_word,
    store_release,
    store_shared,
)
from ragged_moe.runtime.sizes import EXPERTS, GROUPS, MAX_LOCAL, PRUNED, TOP_GROUPS, TOP_K

WARPS = 16
THREADS = 32 * WARPS
OWN = EXPERTS // 32  # consecutive experts that a lane has, so that 4 lanes have a group
LANES_OF_GROUP = 32 // GROUPS
MAX_TOKENS = 16384
MAX_CHUNK = 128  # tokens that a CTA can have
MAX_CTAS = 160
COOPERATIVE = True  # all CTAs of the grid run at once, or the launch fails, as they wait for each other
EARLY = 6  # k-blocks that are prefetched for each CTA of GEMM1
WORDS = 21
LOWEST, HIGHEST = -(2**31), 2**31 - 1


def grid_of(tokens: int, sms: int) -> tuple[int, int]:
    """Return (CTAs, tokens of each). The CTAs wait for each other, so all fit the GPU; a warp has a token at least."""
    chunk = max(WARPS, -(-tokens // min(sms, MAX_CTAS)))
    return -(-tokens // chunk), chunk


def key_of(x: Float32) -> Int32:
    """Return bits of x that order floats when compared as signed integers, NaN above all."""
    bits = as_int(x)
    key = bits ^ ((bits >> 31) & HIGHEST)
    return select((bits & HIGHEST) > 0x7F800000, HIGHEST, key)


def value_of(key: Int32) -> Float32:
    """Return the float that has this key."""
    return as_float(key ^ ((key >> 31) & HIGHEST))


PRUNED_KEY = float_bits(PRUNED) ^ HIGHEST  # of a negative number
PRUNED_KEY = PRUNED_KEY - 2**32 if PRUNED_KEY >= 2**31 else PRUNED_KEY


class Operands(NamedTuple):
    """What the kernel chooses from, where it writes, and its sizes."""

    logits: Int64  # f32 [T, 256]
    bias: Int64  # [256] bf16 or, if f32_bias, f32
    m_indptr: Int64  # int32 [local + 1]
    rows: Int64  # int32 [up to 8 T]
    places: Int64  # int32 [T, 8]
    weights: Int64  # f32 [T, 8]
    counts: Int64  # int32 [CTAs, 32]
    barrier: Int64  # int32 [2], which is 0 at first
    tokens: Int32  # T
    local: Int32
    offset: Int32
    chunk: Int32  # tokens of a CTA
    grid: Int32  # CTAs
    factor: Int32  # its bits


class Prefetch(NamedTuple):
    """What is prefetched, and for which launch."""

    weights: Int64  # gemm1_weights: e4m3 [local, n, k]
    n: Int32
    k: Int32
    ctas: Int32  # of GEMM1, 0 if nothing is to be prefetched
    cluster: Int32  # CTAs of its clusters
    whole: Int32  # 1 if these take whole tiles in turn


class Routing:
    """The kernel writes m_indptr, rows (the token of each row), and places and weights (the rows of each token and
    their weights, by ascending local expert, then -1 and 0).

    Its words: the addresses of Operands, then of Prefetch; the other fields of both; CUDA stream.
    """

    def __init__(self, f32_bias: bool = False):
        self.f32_bias = f32_bias

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words, launch = words_and_launch(host, WORDS)
        given = Operands(*words[:8], *[Int32(word) for word in words[9:15]])
        early = Prefetch(words[8], *[Int32(word) for word in words[15:]])
        shared = 4 * (MAX_CHUNK + WARPS * 3 * 32)
        launch(self.kernel(given, early), given.grid + early.ctas, THREADS, smem=shared, cooperative=COOPERATIVE)

    @cute.kernel
    def kernel(self, given, early):  # Operands, Prefetch: types that are written here become part of the kernel's name
        block, _, _ = cute.arch.block_idx()
        if block < given.grid:
            self.route(given, block)
        else:
            self.prefetch(early, given.local, block - given.grid)

    @cute.jit
    def prefetch(self, early: Prefetch, local: Int32, cta: Int32):
        """Prefetch the weights of the tile that schedule.py gives a CTA of GEMM1 first, if each expert has one.

        A thread prefetches EARLY k-blocks of a weight row.
        """
        weights, n, k, ctas, cluster, whole = early
        thread, _, _ = cute.arch.thread_idx()
        k_blocks, blocks = k >> 7, n >> 8  # tiles of 128 rows of up and as many of gate
        of_expert, clusters = divide(blocks + cluster - 1, cluster), divide(ctas, cluster)
        number = divide(cta, cluster)
        units = local * of_expert * k_blocks
        share = divide(units, clusters)
        unit = number * share + minimum(number, units - share * clusters)
        unit = select(whole != 0, number * k_blocks, unit)
        tile = divide(unit, k_blocks)
        first, expert = unit - tile * k_blocks, divide(tile, of_expert)
        block = (tile - expert * of_expert) * cluster + cta - number * cluster
        row = expert * n + block * 128 + (thread & 127) + select(thread & 128 != 0, n >> 1, 0)
        wanted = select((thread < 256) & (block < blocks) & (unit < units), 1, 0)
        size = minimum(k_blocks - first, EARLY) * 128
        bulk_prefetch(weights + Int64(row) * Int64(k) + Int64(first) * 128, size, wanted)

    @cute.jit
    def route(self, given: Operands, block: Int32):
        """Choose the experts of this CTA's tokens and write their rows, places and weights."""
        m_indptr, rows, places, weights, counts = given.m_indptr, given.rows, given.places, given.weights, given.counts
        local, chunk, grid = given.local, given.chunk, given.grid
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        masks = cute.arch.get_dyn_smem(cutlass.Int8, 16).toint()  # [tokens]: bit i: the token chose local expert i
        partial = masks + 4 * MAX_CHUNK  # [warps, 2, 32]
        of_warps = partial + 4 * WARPS * 2 * 32  # [warps, 32]
        follow_previous_kernel()

        biases = self.load_biases(given.bias, lane)
        first = block * chunk
        count = minimum(given.tokens - first, chunk)
        share = divide(count + (WARPS - 1), WARPS)  # a warp's tokens lie side by side
        begin, end = minimum(warp * share, count), minimum((warp + 1) * share, count)
        own = Int32(0)  # rows that the warp's tokens give this lane's expert
        for i in cutlass.range(begin, end, unroll=1):
            token = Int64(first + i)
            mask = self.choose(given.logits + token * (4 * EXPERTS), biases, places + token * (4 * TOP_K),
                               weights + token * (4 * TOP_K), given.offset, local, as_float(given.factor),
                               lane)  # fmt: skip
            own = own + ((mask >> lane) & 1)
            if lane == 0:
                store_shared(masks + 4 * i, mask)
        store_shared(of_warps + (warp * 32 + lane) * 4, own)
        cute.arch.sync_threads()

        if warp == 0:
            of_cta = Int32(0)
            for j in range_constexpr(WARPS):
                of_cta = of_cta + load_shared(of_warps + (j * 32 + lane) * 4)
            store_global_word(counts + Int64(block * MAX_LOCAL + lane) * 4, of_cta, Int32(1))
            cute.arch.sync_warp()
            if lane == 0:
                self.meet(given.barrier, grid)
        cute.arch.sync_threads()

        found = []  # loaded before any is used, so that all loads are under way at once
        for j in range_constexpr(MAX_CTAS // WARPS):
            cta = warp + j * WARPS
            there = select(cta < grid, 1, 0)
            found.append(load_relaxed_if(counts + Int64(cta * MAX_LOCAL + lane) * 4, there))
        before, total = Int32(0), Int32(0)
        for j in range_constexpr(MAX_CTAS // WARPS):
            total = total + found[j]
            before = before + select(warp + j * WARPS < block, found[j], 0)
        store_shared(partial + (warp * 64 + lane) * 4, before)
        store_shared(partial + (warp * 64 + 32 + lane) * 4, total)
        cute.arch.sync_threads()
        if warp == 0:
            before, total = Int32(0), Int32(0)
            for j in range_constexpr(WARPS):
                before = before + load_shared(partial + (j * 64 + lane) * 4)
                total = total + load_shared(partial + (j * 64 + 32 + lane) * 4)
            last = prefix_sum(total, lane)  # where the rows of this lane's expert end
            if (block == 0) & (lane < local):
                store_global_word(m_indptr + Int64(lane) * 4 + 4, last, Int32(1))
                store_global_word(m_indptr, Int32(0), select(lane == 0, 1, 0))
            place = last - total + before
            for j in range_constexpr(WARPS):  # overwrite how many rows each warp has by where they begin
                at = of_warps + (j * 32 + lane) * 4
                of_warp = load_shared(at)
                store_shared(at, place)
                place = place + of_warp
        cute.arch.sync_threads()
        place = load_shared(of_warps + (warp * 32 + lane) * 4)
        for i in cutlass.range(begin, end, unroll=1):
            mask = load_shared(masks + 4 * i)
            here = (mask >> lane) & 1
            slot = cute.arch.popc(mask & ((Int32(1) << lane) - 1))
            store_global_word(rows + Int64(place) * 4, first + i, here)
            store_global_word(places + (Int64(first + i) * TOP_K + Int64(slot)) * 4, place, here)
            place = place + here

    def load_biases(self, bias: Int64, lane: Int32) -> list[Float32]:
        """Biases of a lane's experts."""
        if self.f32_bias:
            at = bias + Int64(lane * (4 * OWN))
            return load_global_floats(at, Int32(1)) + load_global_floats(at + 16, Int32(1))
        words = load_global_words(bias + Int64(lane * (2 * OWN)), Int32(1))
        return [as_float(half) for word in words for half in (word << 16, word & -65536)]

    @cute.jit
    def meet(self, barrier: Int64, grid: Int32):
        """Wait, in one thread of each CTA, until all have come.

        barrier: how many have come, and how often all have.
        """
        times = load_relaxed(barrier + 4)
        if atomic_inc(barrier, grid - 1) == grid - 1:
            store_release(barrier + 4, times + 1)
        else:
            while load_acquire(barrier + 4) == times:
                pause()

    def choose(self, logits, biases, places, weights, offset, local, factor, lane) -> Int32:
        """Choose one token's experts in a warp, and write the weights of the local ones. Returns their mask.

        places, weights: addresses of this token's. biases: those of this lane's OWN experts.
        """
        x = load_global_floats(logits + Int64(lane * (4 * OWN)), Int32(1))
        x += load_global_floats(logits + Int64(lane * (4 * OWN) + 16), Int32(1))
        s = [Float32(1.0) / (Float32(1.0) + cute.math.exp(-v)) for v in x]
        keys = [key_of(v + bias) for v, bias in zip(s, biases)]

        high, low = Int32(LOWEST), Int32(LOWEST)  # the group's two largest
        for key in keys:
            low = maximum(low, minimum(high, key))
            high = maximum(high, key)
        for step in (1, 2):
            other_high = cute.arch.shuffle_sync_bfly(high, step)
            other_low = cute.arch.shuffle_sync_bfly(low, step)
            low = maximum(maximum(low, other_low), minimum(high, other_high))
            high = maximum(high, other_high)
        score = key_of(value_of(high) + value_of(low))
        rank, group = Int32(0), lane // LANES_OF_GROUP
        for g in range(GROUPS):
            other = cute.arch.shuffle_sync(score, g * LANES_OF_GROUP)
            rank = rank + select((other > score) | ((other == score) & (group > g)), 1, 0)
        keys = [select(rank < TOP_GROUPS, key, PRUNED_KEY) for key in keys]

        chosen = Int32(0)  # a bit for each of the lane's experts
        for _ in range(TOP_K):
            best, which = keys[0], Int32(0)
            for i in range(1, OWN):
                which = select(keys[i] > best, i, which)
                best = maximum(best, keys[i])
            winners = cute.arch.vote_ballot_sync(best == cute.arch.warp_redux_sync(best, "max"))
            taken = select((winners & -winners) == Int32(1) << lane, Int32(1) << which, 0)
            chosen = chosen | taken
            keys = [select((taken & (1 << i)) != 0, LOWEST, key) for i, key in enumerate(keys)]
        total = Float32(0.0)
        for i in range(OWN):
            total = total + select_float((chosen & (1 << i)) != 0, s[i], 0.0)
        for step in (1, 2, 4, 8, 16):
            total = total + cute.arch.shuffle_sync_bfly(total, step)

        # From here on a lane has a local expert
        expert = offset + lane
        owner, bit = minimum(expert // OWN, 31), expert & (OWN - 1)
        here = (cute.arch.shuffle_sync(chosen, owner) >> bit) & select((lane < local) & (expert < EXPERTS), 1, 0)
        of_owner = Float32(0.0)
        for i in range(OWN):
            of_owner = select_float(bit == i, cute.arch.shuffle_sync(s[i], owner), of_owner)
        mask = cute.arch.vote_ballot_sync(here != 0)
        slot = cute.arch.popc(mask & ((Int32(1) << lane) - 1))
        weight = of_owner / (total + Float32(1e-20)) * factor
        store_global_word(weights + Int64(slot) * 4, as_int(weight), here)
        unused = select((lane < TOP_K) & (lane >= cute.arch.popc(mask)), 1, 0)
        store_global_word(places + Int64(lane) * 4, Int32(-1), unused)
        store_global_word(weights + Int64(lane) * 4, Int32(0), unused)
        return mask
