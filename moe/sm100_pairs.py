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
from cutlass import Float32, Int32, Int64

from moe.kernel import BLOCK_K, LAST, MMA_WARP, Cta, Operands, token_tensormap
from moe.ptx import (
    map_shared,
    mbarrier_arrive_cluster,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    minimum,
    select,
    tcgen05_fence,
    tma_load,
    tmem_dealloc,
    tmem_load,
    tmem_load_wait,
    twice,
)
from moe.sm100 import CONSUMER_WARPS
from moe.sm100_tokens import TOKENS, Tiles, TokensOnLanes

CTAS = 2
HALVES = 2  # of a tile's weight rows: one for each warpgroup
COLUMNS = 128  # of an accumulator
BOX = COLUMNS // CTAS  # weight rows of a half that a CTA loads
# Columns (first, how many) of a thread's results that are in registers at once: with 96 of them ptxas spills
FIRST_COLUMNS = (0, 32), (32, 32), (64, 16)
LAST_COLUMNS = (80, 32), (112, 16)
OWN = 40  # from the first half's barriers to the second's


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
    group = CTAS

    # Own shared memory: of the first half acc_full [2], acc_empty [2], then the address of tensor memory, as with one
    # accumulator for both; of the second half acc_full, acc_empty; all_read

    def own_of(self, cta: Cta, half: Int32) -> Cta:
        return cta._replace(own=cta.own + OWN * half)

    def all_read(self, cta: Cta) -> Int32:
        """Barrier: both CTAs have read all their results."""
        return cta.own + OWN + 32

    def token_maps(self, a: Int64, total_m: Int32, k: Int32) -> list:
        return [token_tensormap(a, total_m, k, TOKENS)]

    def init_accumulators(self, cta: Cta) -> None:
        for half in range(HALVES):  # read by half of the warps of two CTAs
            super().init_accumulators(self.own_of(cta, half))
        mbarrier_init(self.all_read(cta), CTAS * CONSUMER_WARPS)

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
            tmem_dealloc(self.tensor_memory(cta), 2 * self.columns, CTAS)

    def load_stage(self, cta: Cta, piece, weights_map, tokens_map, slot: Int32, x: Int32) -> None:
        """TMA copies of a stage at x of K: the CTA's tokens, and its part of each half of the weights."""
        config = self.config
        mbarrier_expect(cta.full + 8 * slot, CTAS * config.stage_bytes, select(cta.rank == 0, 1, 0))
        bar = map_shared(cta.full + 8 * slot, Int32(0))
        tokens, weights = self.operands_of(cta.ring + slot * config.stage_bytes)
        for half in range(HALVES):
            at = (x, piece.row + COLUMNS * half + BOX * cta.rank, piece.expert)
            to = weights + half * (BOX * BLOCK_K)
            tma_load(to, weights_map, at, bar, config.weights_policy, Int32(1), None, pair=True)
        tma_load(tokens, tokens_map, (x, piece.token), bar, LAST, Int32(1), None, pair=True)

    def operands_of(self, stage: Int32) -> tuple[Int32, Int32]:
        return stage + HALVES * BOX * BLOCK_K, stage

    def width_of(self, piece) -> Int32:
        return Int32(COLUMNS)

    def part_of(self, cta: Cta, half: Int32) -> tuple[Cta, Int32, Int32]:
        return self.own_of(cta, half), half * COLUMNS, half * (BOX * BLOCK_K)

    @cute.jit
    def issue(self, cta: Cta, plan, unit: Int32, half: Int32):
        """An MMA warp of the first CTA: D [2 x 128 tokens, 128 weight rows] of its half of every stage."""
        if cta.rank == 0:
            TokensOnLanes.issue(self, cta, plan, unit, half)

    def end_issue(self, own: Cta, acc: Int32, phase: Int32) -> None:
        """Until the other CTA's arrivals have come."""
        mbarrier_wait(self.acc_empty(own, acc), phase)
        mbarrier_wait(self.acc_empty(own, 1 - acc), phase ^ acc)

    def hand_back(self, own: Cta, turn: Int32, lane: Int32) -> None:
        to = map_shared(self.acc_empty(own, turn & 1), Int32(0))  # the first CTA's
        mbarrier_arrive_cluster(to, select(lane == 0, 1, 0))

    @cute.jit
    def multiply(
        self, cta: Cta, piece, operands: Operands, done: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32
    ):  # fmt: skip
        """The stages of a piece, after `done` others. A thread has one token and half of the columns.

        Of a stage's results the FIRST columns are kept and added while the LAST ones come, these while the first ones
        of the next stage do: of each stage two waits show, in which the other warps' columns come.
        """
        half = warp >> 2
        own, tmem = self.own_of(cta, half), self.tensor_memory(cta) + ((warp & 3) << 21) + half * COLUMNS
        of_token = cta.scales + (self.first_token(warp) + lane) * 4
        of_weights = [cta.scales + self.config.weight_scales + x for x in self.scales_of(half, COLUMNS)]
        kept = cute.make_rmem_tensor((LAST_COLUMNS[0][0],), Float32)
        at = self.await_results(own, tmem, done)
        coming = [load_columns(at, part) for part in FIRST_COLUMNS]
        k = piece.first
        (scale,) = self.scales_at(cta, piece, operands, k, slot, phase, of_token, of_weights, lane)
        slot, phase = self.after_scales(slot, phase)
        self.keep(kept, coming)
        for i in cutlass.range(1, piece.count, unroll=1):
            turn = done + i
            last = self.add_kept(acc, kept, scale, tmem + ((turn - 1) & 1) * (HALVES * COLUMNS))
            at = self.await_results(own, tmem, turn)
            self.end_reading(own, turn - 1, lane)
            free, *others = FIRST_COLUMNS  # where none of the last ones is, and where they are
            coming = [load_columns(at, free)]
            self.add_columns(acc, last, scale, LAST_COLUMNS)
            coming += [load_columns(at, part) for part in others]
            k = piece.first + i
            (scale,) = self.scales_at(cta, piece, operands, k, slot, phase, of_token, of_weights, lane)
            slot, phase = self.after_scales(slot, phase)
            self.keep(kept, coming)
        turn = done + piece.count - 1
        last = self.add_kept(acc, kept, scale, tmem + (turn & 1) * (HALVES * COLUMNS))
        self.end_reading(own, turn, lane)
        self.add_columns(acc, last, scale, LAST_COLUMNS)
        return slot, phase

    def await_results(self, own: Cta, tmem: Int32, turn: Int32) -> Int32:
        """Until those of stage `turn` are there. Returns where they are."""
        mbarrier_wait(*self.results_of(own, turn))
        tcgen05_fence("after")
        return tmem + (turn & 1) * (HALVES * COLUMNS)

    def end_reading(self, own: Cta, turn: Int32, lane: Int32) -> None:
        """The last columns of stage `turn` have come: hand its accumulator back."""
        tmem_load_wait()
        tcgen05_fence("before")
        cute.arch.sync_warp()
        self.hand_back(own, turn, lane)

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
        for (first, _), d in zip(parts, found):
            self.add(acc, d, scale, first)


def load_columns(at: Int32, part: tuple[int, int]) -> list[Float32]:
    """A load of these columns of a thread's results, under way."""
    first, width = part
    return tmem_load(at + first, width, wait=False)
