"""The tensor core's part for sm_100a with tokens on the lanes, for experts of many tokens: a tcgen05.mma of two CTAs.

    each CTA:   128 tokens, 128 of 256 weight rows ──► its ring
    2 MMA warps of the first:  256 tokens x 128 weight rows each, 128 of K ──► accumulator 0 or 1 of a warpgroup
    a warpgroup:  128 columns of it ──► sums, as in sm100_tokens.py

Each operand lies in one of the two shared memories, so that 128 columns at once leave these as much time as 256 would
for a CTA alone. So a warpgroup hands its accumulator back on its own, and the loads of one come while the other adds.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.kernel import BLOCK_K, LAST, MMA_WARP, Cta, Operands, token_tensormap
from moe.ptx import (
    fma_pair,
    load_shared,
    load_shared_float,
    map_shared,
    mbarrier_arrive_cluster,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    minimum,
    mma_commit,
    mma_fp8,
    select,
    tcgen05_fence,
    tma_load,
    tmem_alloc,
    tmem_dealloc,
    tmem_load,
    tmem_load_wait,
    twice,
)
from moe.schedule import PIECE_BYTES, read_piece
from moe.sm100 import CONSUMER_WARPS
from moe.sm100_tokens import TOKENS, Tiles, TokensOnLanes

CTAS = 2
HALVES = 2  # of a tile's weight rows: one for each warpgroup
COLUMNS = 128  # of an accumulator
BOX = COLUMNS // CTAS  # weight rows of a half that a CTA loads
ALL_COLUMNS = 512
# Columns (first, how many) of a thread's results that are in registers at once: with 96 of them ptxas spills
FIRST_COLUMNS = (0, 32), (32, 32), (64, 16)
LAST_COLUMNS = (80, 32), (112, 16)
OWN = 32  # bytes of barriers of a half


@dataclass(frozen=True)
class Pairs(Tiles):
    """Of 2 x 128 tokens x 256 weight rows."""

    cluster: int = CTAS

    together = True
    own_bytes = 80

    @property
    def weights_box(self) -> int:
        return BOX

    @property
    def stage_bytes(self) -> int:
        """Its tokens, and a half of the weights."""
        return (self.rows // CTAS + self.tokens) * BLOCK_K


class TokensOfPairs(TokensOnLanes):
    """The kernel for pairs."""

    mma_warps = HALVES

    # Own shared memory: of each half acc_full [2], acc_empty [2]; the address of tensor memory, all_read

    def acc_full(self, cta: Cta, which: Int32, half: Int32) -> Int32:
        return cta.own + OWN * half + 8 * which

    def acc_empty(self, cta: Cta, which: Int32, half: Int32) -> Int32:
        return cta.own + OWN * half + 16 + 8 * which

    def all_read(self, cta: Cta) -> Int32:
        """Barrier: both CTAs have read all their results."""
        return cta.own + OWN * HALVES + 8

    def tensor_memory(self, cta: Cta) -> Int32:
        return load_shared(cta.own + OWN * HALVES)

    def token_maps(self, a: Int64, total_m: Int32, k: Int32) -> list:
        return [token_tensormap(a, total_m, k, TOKENS)]

    def init_barriers(self, cta: Cta) -> None:
        config = self.config
        for i in range(config.depth):
            mbarrier_init(cta.full + 8 * i, 1)  # the first CTA's TMA warp, which awaits bytes of both
            mbarrier_init(cta.empty + 8 * i, HALVES)  # commits
        for i in range(config.scale_depth):
            mbarrier_init(cta.scales_full + 8 * i, self.scale_arrivals)
            mbarrier_init(cta.scales_empty + 8 * i, CONSUMER_WARPS)
        for half in range(HALVES):
            for i in range(2):
                mbarrier_init(self.acc_full(cta, i, half), 1)  # the commit
                mbarrier_init(self.acc_empty(cta, i, half), CTAS * CONSUMER_WARPS // HALVES)
        mbarrier_init(self.all_read(cta), CTAS * CONSUMER_WARPS)

    @cute.jit
    def begin(self, cta: Cta, warp: Int32):
        if warp == MMA_WARP:
            tmem_alloc(cta.own + OWN * HALVES, ALL_COLUMNS, CTAS)
            tcgen05_fence("before")

    @cute.jit
    def finish(self, cta: Cta, warp: Int32):
        """Tensor memory is of both CTAs: it is freed when nobody reads it any more."""
        lane = cute.arch.lane_idx()
        if warp < CONSUMER_WARPS:
            tcgen05_fence("before")
            cute.arch.sync_warp()
            mbarrier_arrive_cluster(map_shared(self.all_read(cta), minimum(lane, CTAS - 1)), select(lane < CTAS, 1, 0))
        if warp == MMA_WARP:
            cute.arch.sync_warp()
            mbarrier_wait(self.all_read(cta), Int32(0))
            tcgen05_fence("after")
            tmem_dealloc(self.tensor_memory(cta), ALL_COLUMNS, CTAS)

    def load_stage(self, cta: Cta, piece, weights_map, tokens_map, slot: Int32, x: Int32) -> None:
        """TMA copies of a stage at x of K: the CTA's tokens, and its part of each half of the weights."""
        config = self.config
        mbarrier_expect(cta.full + 8 * slot, CTAS * config.stage_bytes, select(cta.rank == 0, 1, 0))
        bar = map_shared(cta.full + 8 * slot, Int32(0))
        weights = cta.ring + slot * config.stage_bytes
        for half in range(HALVES):
            at = (x, piece.row + COLUMNS * half + BOX * cta.rank, piece.expert)
            to = weights + half * (BOX * BLOCK_K)
            tma_load(to, weights_map, at, bar, config.weights_policy, Int32(1), None, pair=True)
        tokens = weights + HALVES * BOX * BLOCK_K
        tma_load(tokens, tokens_map, (x, piece.token), bar, LAST, Int32(1), None, pair=True)

    @cute.jit
    def issue(self, cta: Cta, plan, unit: Int32, half: Int32):
        """An MMA warp of the first CTA."""
        tcgen05_fence("after")
        if cta.rank == 0:
            tmem = self.tensor_memory(cta)
            with cute.arch.elect_one():
                self.issue_all(cta, plan, unit, half, tmem)

    @cute.jit
    def issue_all(self, cta: Cta, plan, unit: Int32, half: Int32, tmem: Int32):
        """One thread: D [2 x 128 tokens, 128 weight rows] of every half of every stage."""
        config = self.config
        # Instruction descriptor (9.7.16.4.2): e4m3 x e4m3, f32 out, M = 256, N = 128
        idesc = Int32(CTAS * TOKENS >> 4 << 24 | 1 << 4 | COLUMNS >> 3 << 17)
        slot, phase, acc, acc_phase = Int32(0), Int32(0), Int32(0), Int32(1)
        while unit < plan.end:
            mbarrier_wait(cta.full + 8 * slot, phase)
            piece = read_piece(cta.pieces + slot * PIECE_BYTES)
            for _ in cutlass.range(piece.count, unroll=1):
                mbarrier_wait(cta.full + 8 * slot, phase)
                # Matrix descriptors (9.7.16.4.1): version 1, 128-byte swizzle, groups of 8 rows 1024 bytes apart
                weights = cta.ring + slot * config.stage_bytes
                tokens = weights + HALVES * BOX * BLOCK_K
                a, b = [Int64(x >> 4) | Int64(2 << 61 | 1 << 46 | 64 << 32) for x in (tokens, weights)]
                mbarrier_wait(self.acc_empty(cta, acc, half), acc_phase)
                tcgen05_fence("after")
                d = tmem + (HALVES * acc + half) * COLUMNS
                of_half = b + Int64(half * (BOX * BLOCK_K >> 4))
                for j in range_constexpr(BLOCK_K // 32):
                    mma_fp8(d, a + 2 * j, of_half + 2 * j, idesc, int(j > 0), CTAS)
                mma_commit(self.acc_full(cta, acc, half), CTAS, CTAS)
                mma_commit(cta.empty + 8 * slot, CTAS, CTAS)
                acc_phase = acc_phase ^ acc
                acc = 1 - acc
                slot, phase = self.after(slot, phase)
            unit = piece.next
        for _ in range_constexpr(2):  # the other CTA's arrivals have come
            mbarrier_wait(self.acc_empty(cta, acc, half), acc_phase)
            acc_phase = acc_phase ^ acc
            acc = 1 - acc

    @cute.jit
    def skip(self, cta: Cta, count: Int32, done: Int32, slot: Int32, phase: Int32, lane: Int32):
        half = cute.arch.warp_idx() >> 2
        for i in cutlass.range(count, unroll=1):
            self.await_results(cta, Int32(0), done + i, half)
            mbarrier_wait(cta.scales_full + 8 * slot, phase)
            self.release(cta, slot, lane)
            self.hand_back(cta, done + i, half, lane)
            slot, phase = self.after_scales(slot, phase)
        return slot, phase

    @cute.jit
    def multiply(
        self, cta: Cta, piece, operands: Operands, done: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32
    ):  # fmt: skip
        """The stages of a piece, after `done` others. A thread has one token and half of the columns.

        Of a stage's results the FIRST columns are kept and added while the LAST ones come, these while the first ones
        of the next stage do: of each stage two waits show, in which the other warps' columns come.
        """
        config, half = self.config, warp >> 2
        tmem = self.tensor_memory(cta) + ((warp & 3) << 21) + half * COLUMNS
        of_token = cta.scales + ((warp & 3) * 32 + lane) * 4
        of_weights = cta.scales + config.weight_scales + 4 * half
        kept = cute.make_rmem_tensor((LAST_COLUMNS[0][0],), Float32)
        at = self.await_results(cta, tmem, done, half)
        coming = [load_columns(at, part) for part in FIRST_COLUMNS]
        scale, slot, phase = self.scale_at(cta, piece, operands, piece.first, slot, phase, of_token, of_weights, lane)
        self.keep(kept, coming)
        for i in cutlass.range(1, piece.count, unroll=1):
            turn = done + i
            last = self.add_kept(acc, kept, scale, tmem + ((turn - 1) & 1) * (HALVES * COLUMNS))
            at = self.await_results(cta, tmem, turn, half)
            tmem_load_wait()
            self.hand_back(cta, turn - 1, half, lane)
            free, *others = FIRST_COLUMNS  # where none of the last ones is, and where they are
            coming = [load_columns(at, free)]
            self.add_columns(acc, last, scale, LAST_COLUMNS)
            coming += [load_columns(at, part) for part in others]
            k = piece.first + i
            scale, slot, phase = self.scale_at(cta, piece, operands, k, slot, phase, of_token, of_weights, lane)
            self.keep(kept, coming)
        turn = done + piece.count - 1
        last = self.add_kept(acc, kept, scale, tmem + (turn & 1) * (HALVES * COLUMNS))
        tmem_load_wait()
        self.hand_back(cta, turn, half, lane)
        self.add_columns(acc, last, scale, LAST_COLUMNS)
        return slot, phase

    def await_results(self, cta: Cta, tmem: Int32, turn: Int32, half: Int32) -> Int32:
        """Until those of stage `turn` are there. Returns where they are."""
        mbarrier_wait(self.acc_full(cta, turn & 1, half), (turn >> 1) & 1)
        tcgen05_fence("after")
        return tmem + (turn & 1) * (HALVES * COLUMNS)

    def hand_back(self, cta: Cta, turn: Int32, half: Int32, lane: Int32) -> None:
        """This warp has read its results of stage `turn`: tell the first CTA."""
        tcgen05_fence("before")
        cute.arch.sync_warp()
        to = map_shared(self.acc_empty(cta, turn & 1, half), Int32(0))
        mbarrier_arrive_cluster(to, select(lane == 0, 1, 0))

    def scale_at(
        self, cta: Cta, piece, operands: Operands, k: Int32, slot: Int32, phase: Int32, of_token: Int32,
        of_weights: Int32, lane: Int32,
    ) -> tuple[Float32, Int32, Int32]:  # fmt: skip
        """a_scale * b_scale of the thread's results in K block k, the next slot of the scales' ring, and its phase."""
        mbarrier_wait(cta.scales_full + 8 * slot, phase)
        scales, before = slot * self.config.scale_bytes, self.scales_before(piece, operands, k)
        scale = load_shared_float(of_token + scales + 4 * before) * load_shared_float(of_weights + scales)
        self.release(cta, slot, lane)
        return scale, *self.after_scales(slot, phase)

    def keep(self, kept, coming: list) -> None:
        """The first columns, when they have come."""
        tmem_load_wait()
        for (first, width), d in zip(FIRST_COLUMNS, coming):
            for j in range(width):
                kept[first + j] = d[j]

    def add_kept(self, acc, kept, scale: Float32, at: Int32) -> list[list[Float32]]:
        """Add the first columns; the last ones come meanwhile, to registers that become free. Returns these."""
        later, *others = FIRST_COLUMNS
        found = [[kept[first + j] for j in range(width)] for first, width in FIRST_COLUMNS]
        self.add_columns(acc, found[1:], scale, others)
        last = [load_columns(at, part) for part in LAST_COLUMNS]
        self.add_columns(acc, found[:1], scale, [later])
        return last

    def add_columns(self, acc, found: list, scale: Float32, parts: list) -> None:
        """sum = fma(d, scale, sum) of these parts of the columns."""
        scale = twice(scale)
        for (first, width), d in zip(parts, found):
            for j in range(0, width, 2):
                to = first + j
                acc[to], acc[to + 1] = fma_pair(d[j], d[j + 1], scale, acc[to], acc[to + 1])


def load_columns(at: Int32, part: tuple[int, int]) -> list[Float32]:
    """A load of these columns of a thread's results, under way."""
    first, width = part
    return tmem_load(at + first, width, wait=False)
