"""The layer's first GEMM for sm_100a: gemm1.py's loads, sm100.py's way to multiply.

    MMA warp: up ─► accumulators 0, 1; gate ─► 2, 3 (of 128 columns in tensor memory), two of a stage
    a thread: one row of up, the same of gate, half of the tokens

So the 128 columns of a scale are the lanes of the four warps of a warpgroup.
"""

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.definition import LARGEST
from moe.gemm1 import HALF, LOG2_E, GatheredGemm, Operands, Tiles
from moe.kernel import BLOCK_K, Cta, GroupedGemm
from moe.ptx import (
    as_float,
    as_int,
    fence_proxy_async,
    fma,
    load_shared,
    load_shared_floats,
    maximum,
    mbarrier_arrive,
    mbarrier_wait,
    minimum,
    mma_commit,
    mma_fp8,
    select,
    select_float,
    store_global_e4m3,
    store_global_word,
    store_shared,
    tcgen05_fence,
    tmem_alloc,
    tmem_dealloc,
    tmem_load,
    warpgroup_barrier,
)
from moe.schedule import piece_at
from moe.sm100 import COLUMNS, GroupedGemmSm100

ALLOCATED = 4 * COLUMNS  # all of tensor memory
CHUNK = 32  # columns that a thread has in registers beside its sums
ALLOCATOR = 9  # the warp behind the TMA warp


class GatheredGemmSm100(GatheredGemm, GroupedGemmSm100):
    """The kernel for a B200; the words are those of GatheredGemm."""

    @staticmethod
    def supported(config: Tiles) -> Tiles:
        return replace(config, in_turn=False)

    def __init__(self, config: Tiles):
        assert not config.in_turn
        GroupedGemm.__init__(self, config)

    @cute.jit
    def begin(self, cta: Cta, warp: Int32):
        """All threads, before they first meet: tensor memory."""
        if warp == ALLOCATOR:
            tmem_alloc(cta.own + 32, ALLOCATED)
            tcgen05_fence("before")

    @cute.jit
    def finish(self, cta: Cta, warp: Int32):
        tcgen05_fence("before")
        cute.arch.sync_threads()
        if warp == ALLOCATOR:
            tcgen05_fence("after")
            tmem_dealloc(load_shared(cta.own + 32), ALLOCATED)

    @cute.jit
    def issue(self, cta: Cta, plan, unit: Int32):
        """MMA warp: D [128 rows of up, tokens] and the same of gate, of every stage."""
        config = self.config
        tcgen05_fence("after")
        tmem = load_shared(cta.own + 32)
        with cute.arch.elect_one():
            slot, phase, acc, acc_phase = Int32(0), Int32(0), Int32(0), Int32(1)
            while unit < plan.end:
                piece = piece_at(plan, config, cta.rank, unit)
                # Instruction descriptor (9.7.16.4.2): e4m3 x e4m3, f32 out, M = 128, N = width
                idesc = Int32(128 >> 4 << 24 | 1 << 4) | (piece.width >> 3 << 17)
                for _ in cutlass.range(piece.count, unroll=1):
                    mbarrier_wait(cta.full + 8 * slot, phase)
                    mbarrier_wait(cta.own + 16 + 8 * acc, acc_phase)
                    tcgen05_fence("after")
                    fence_proxy_async()  # the tokens did not come by TMA
                    # Matrix descriptors (9.7.16.4.1): version 1, 128-byte swizzle, groups of 8 rows 1024 bytes apart
                    weights = Int64(cta.ring + slot * config.stage_bytes >> 4) | Int64(2 << 61 | 1 << 46 | 64 << 32)
                    tokens = weights + Int64(config.rows * BLOCK_K >> 4)
                    for half in range_constexpr(2):
                        of_half = weights + Int64(half * (HALF * BLOCK_K >> 4))
                        d = tmem + (2 * half + acc) * COLUMNS
                        for j in range_constexpr(BLOCK_K // 32):
                            mma_fp8(d, of_half + 2 * j, tokens + 2 * j, idesc, int(j > 0))
                    mma_commit(cta.own + 8 * acc)
                    acc_phase = acc_phase ^ acc
                    acc = 1 - acc
                    slot = slot + 1
                    phase = select(slot == config.depth, phase ^ 1, phase)
                    slot = select(slot == config.depth, 0, slot)
                unit = piece.next

    @cute.jit
    def multiply(
        self, cta: Cta, tokens: cutlass.Constexpr, count: Int32, done: Int32, slot: Int32, phase: Int32, acc,
        warp: Int32, lane: Int32,
    ):  # fmt: skip
        """Scale and add what the MMA warp multiplies: a row of up and of gate, and half of the tokens."""
        config, columns, stride = self.config, tokens // 2, self.config.tokens // 2
        chunk = min(CHUNK, columns)
        first = (warp >> 2) * columns
        tmem = load_shared(cta.own + 32) + ((warp & 3) << 21) + first
        for i in cutlass.range(count, unroll=1):
            turn = done + i
            which = turn & 1
            mbarrier_wait(cta.full + 8 * slot, phase)  # the scales
            mbarrier_wait(cta.own + 8 * which, (turn >> 1) & 1)
            tcgen05_fence("after")
            for half in range_constexpr(2):
                for begin in range_constexpr(0, columns, chunk):
                    d = tmem_load(tmem + (2 * half + which) * COLUMNS + begin, chunk)
                    at = cta.scales + slot * config.scale_bytes + half * (4 * config.scale_row) + 4 * (first + begin)
                    scales = []
                    for j in range_constexpr(chunk // 4):
                        scales += load_shared_floats(at + 16 * j)
                    for j in range_constexpr(chunk):
                        to = half * stride + begin + j
                        acc[to] = fma(d[j], scales[j], acc[to])
            tcgen05_fence("before")
            cute.arch.sync_warp()
            mbarrier_arrive(cta.own + 16 + 8 * which, select(lane == 0, 1, 0))
            self.release(cta, slot, lane)
            slot = slot + 1
            phase = select(slot == config.depth, phase ^ 1, phase)
            slot = select(slot == config.depth, 0, slot)
        return slot, phase

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """silu(gate) * up of a warpgroup's tokens, its largest of 128 columns, and both to memory.

        Shared memory: the largest of each warp's 32 columns, f32 [8, tokens / 2].
        """
        stride = self.config.tokens // 2  # results of a thread for up
        group, columns = warp >> 2, piece.width >> 1
        own, of_group = cta.scratch + warp * (4 * stride), cta.scratch + group * (16 * stride)
        warpgroup_barrier(group + 1)  # the tile before this one has been read
        for j in range_constexpr(stride):
            up, gate = acc[j], acc[stride + j]
            c = up * (gate * cute.arch.rcp_approx(Float32(1.0) + cute.math.exp2(gate * -LOG2_E, fastmath=True)))
            acc[j] = c
            most = cute.arch.warp_redux_sync(as_int(c) & 0x7FFFFFFF, "max")  # as floats without a sign compare
            if lane == 0:
                store_shared(own + 4 * j, most)
        warpgroup_barrier(group + 1)
        n = operands.n >> 1
        first = group * columns
        valid = minimum(piece.tokens - first, columns)
        to = operands.c + Int64(piece.token + first) * Int64(n) + Int64((piece.row >> 1) + (warp & 3) * 32 + lane)
        for j in range_constexpr(0, stride, 2):
            if j < valid:
                x, y = [acc[i] * inverse(largest_of(of_group + 4 * i, stride)) for i in (j, j + 1)]
                at = to + Int64(j) * Int64(n)
                store_global_e4m3(at, at + Int64(n), x, y, select(j + 1 < valid, 1, 0))
        thread = (warp & 3) * 32 + lane
        if thread < valid:
            scale = largest_of(of_group + 4 * thread, stride) * Float32(1 / LARGEST)
            place = Int64(piece.row >> 8) * Int64(operands.total_m) + Int64(piece.token + first + thread)
            store_global_word(operands.c_scale + place * 4, as_int(scale), Int32(1))


def largest_of(at: Int32, stride: int) -> Float32:
    """Of four warps' largest; NaN above all."""
    low, high = [maximum(load_shared(x), load_shared(x + 4 * stride)) for x in (at, at + 8 * stride)]
    return as_float(maximum(low, high))


def inverse(most: Float32) -> Float32:
    """What makes the largest value that of e4m3; 0 if all are."""
    return select_float(most > 0.0, Float32(LARGEST) / most, Float32(0.0))
