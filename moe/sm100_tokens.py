"""The tensor core's part for sm_100a with tokens on the lanes of tensor memory, for experts of many tokens.

    MMA warp:  128 tokens x 256 weight rows, 128 of K ──► accumulator 0 or 1, of 256 columns each: all of tensor memory
    a thread:  one token, half of the columns, of one b_scale; a_scale * b_scale is one number a block;
               tcgen05.ld, sum = fma(d, scale, sum) two at once ──► bf16 ──► through shared memory ──► out

Of a thread's 128 results 96 are in registers at once, and the last 32 come while two thirds of these are added. A tile
has 224 weight rows instead, 128 and 96 of a warpgroup, where these fill more SMs; or 128 or 64 where there are few
tiles: less to add up where one is cut, or where two CTAs have half of its K each.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from moe.copied_scales import CopiedScales
from moe.joined_halves import JOINS, JoinedHalves
from moe.kernel import BLOCK_K, GROUP_THREADS, GROUP_WARPS, GROUPS, Config, Cta, Operands
from moe.ptx import (
    divide,
    fma_pair,
    load_shared_float,
    load_shared_words,
    mbarrier_arrive,
    mbarrier_wait,
    minimum,
    pack_bfloat,
    select,
    store_global_words,
    store_shared_words,
    tcgen05_fence,
    tmem_load,
    tmem_load_wait,
    twice,
)
from moe.sm100 import GroupedGemmSm100, TwoRings

TOKENS = 128  # of a tile: the lanes of tensor memory
PART = 32  # columns that come from tensor memory at once


@dataclass(frozen=True)
class Tiles(TwoRings, Config):
    """Of 128 tokens x weights, which are the columns of an accumulator."""

    tokens: int = TOKENS
    tokens_on_m: bool = True
    weights: int = 256
    shares_first: bool = True

    overlap = False  # a warpgroup has half of the columns of all tokens

    def __post_init__(self):
        super().__post_init__()
        assert self.tokens == TOKENS and self.tokens_on_m and self.weights % PART == 0

    @property
    def sums(self) -> int:
        """Of a thread of the first warpgroup; the second may have fewer columns."""
        return -(-self.rows // 64) * 32

    @property
    def partial_bytes(self) -> int:
        return self.sums * GROUPS * GROUP_THREADS * 4

    @property
    def own_bytes(self) -> int:
        return 64 + JOINS * self.halves

    def grid(self, most: int, total_m: int, n: int, experts: int) -> int:
        """As many CTAs as have equally many whole tiles, or halves, of even experts, if a quarter or less is idle.

        Three quarters of the SMs load as fast as the HBM can, and no sums of cut tiles go through memory. Clusters are
        for many tokens, where the tensor cores bind: all SMs pay there, even at 1 x 512 (modelled: 29.8 us, not 32.1).
        """
        tiles = experts * -(-total_m // (experts * TOKENS)) * -(-n // self.rows) * (1 + self.halves)
        fewer = -(-tiles // -(-tiles // most))
        fewer = -(-fewer // self.launched) * self.launched
        return fewer if self.cluster == 1 and 4 * fewer >= 3 * most else most

    @property
    def in_turn(self) -> bool | None:
        return None  # what binds an H200 here, between the halves of L2, is not modelled

    @property
    def widths(self) -> tuple[int, ...]:
        return (TOKENS,)


class TokensOnLanes(CopiedScales, JoinedHalves, GroupedGemmSm100):
    """The kernel with tokens on the lanes."""

    def __init__(self, config: Tiles):
        super().__init__(config)
        self.half = config.sums  # columns of the first warpgroup; the second has the rest
        self.columns = 2 * self.half  # from one accumulator to the next

    def operands_of(self, stage: Int32) -> tuple[Int32, Int32]:
        """Where A and B of a stage lie: tokens behind the weights."""
        return stage + self.config.rows * BLOCK_K, stage

    def width_of(self, piece) -> Int32:
        return Int32(self.config.rows)

    def is_used(self, piece, group: Int32, i: int) -> Int32:
        return select(self.first_token(cute.arch.warp_idx()) < piece.tokens, 1, 0)

    @cute.jit
    def multiply_piece(
        self, cta: Cta, piece, operands: Operands, done: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32
    ):  # fmt: skip
        """Scale and add what the MMA warp multiplies, or let a piece pass that has no tokens of this warp's."""
        rest = self.config.rows - self.half
        if self.first_token(warp) < piece.tokens:
            if const_expr(rest == self.half):
                slot, phase = self.multiply(cta, piece, operands, done, slot, phase, acc, warp, lane)
            elif warp < GROUP_WARPS:
                slot, phase = self.multiply(cta, piece, operands, done, slot, phase, acc, warp, lane)
            else:
                slot, phase = self.multiply(cta, piece, operands, done, slot, phase, acc, warp, lane, rest)
        else:
            slot, phase = self.skip(cta, piece.count, done, slot, phase, lane)
        return slot, phase

    def first_token(self, warp: Int32) -> Int32:
        return (warp & 3) * 32

    def own_of(self, cta: Cta, group: Int32) -> Cta:
        """The CTA with a warpgroup's barriers of accumulators."""
        return cta

    def hand_back(self, own: Cta, turn: Int32, lane: Int32) -> None:
        """This warp has read its results of stage `turn`."""
        mbarrier_arrive(self.acc_empty(own, turn & 1), select(lane == 0, 1, 0))

    @cute.jit
    def skip(self, cta: Cta, count: Int32, done: Int32, slot: Int32, phase: Int32, lane: Int32):
        own = self.own_of(cta, cute.arch.warp_idx() >> 2)
        for i in cutlass.range(count, unroll=1):
            turn = done + i
            mbarrier_wait(*self.results_of(own, turn))
            mbarrier_wait(cta.scales_full + 8 * slot, phase)
            self.release(cta, slot, lane)
            self.hand_back(own, turn, lane)
            slot, phase = self.after_scales(slot, phase)
        return slot, phase

    @cute.jit
    def multiply(
        self, cta: Cta, piece, operands: Operands, done: Int32, slot: Int32, phase: Int32, acc, warp: Int32,
        lane: Int32, columns: cutlass.Constexpr = 0,
    ):  # fmt: skip
        """The stages of a piece, after `done` others. A thread has one token and half of the columns, or so many."""
        config, columns = self.config, columns or self.half
        tmem = self.tensor_memory(cta) + ((warp & 3) << 21)
        parts = [tmem + self.column_of(warp >> 2, part) for part in range(columns // PART)]
        of_token = cta.scales + (self.first_token(warp) + lane) * 4
        of_weights = [cta.scales + config.weight_scales + x for x in self.scales_of(warp >> 2, columns)]
        last = columns // PART - 1
        for i in cutlass.range(piece.count, unroll=1):
            turn = done + i
            mbarrier_wait(*self.results_of(cta, turn))
            tcgen05_fence("after")
            at = [x + (turn & 1) * self.columns for x in parts]
            d = [tmem_load(x, PART, wait=False) for x in at[:3]]
            # While they come: the scales
            k = piece.first + i
            scale = self.scales_at(cta, piece, operands, k, slot, phase, of_token, of_weights, lane)
            slot, phase = self.after_scales(slot, phase)
            tmem_load_wait()
            if const_expr(last == 3):  # it comes while two others are added
                self.add_part(acc, d[0], scale, 0, columns)
                d.append(tmem_load(at[3], PART, wait=False))
                self.add_part(acc, d[1], scale, 1, columns)
                self.add_part(acc, d[2], scale, 2, columns)
                tmem_load_wait()
            tcgen05_fence("before")
            cute.arch.sync_warp()
            self.hand_back(cta, turn, lane)
            for part in range_constexpr(last if last == 3 else 0, last + 1):
                self.add_part(acc, d[part], scale, part, columns)
        return slot, phase

    def column_of(self, group: Int32, part: int) -> Int32:
        """Where a part of a warpgroup's columns begins in an accumulator."""
        return group * self.half + part * PART

    def scales_of(self, group: Int32, columns: int) -> list[Int32]:
        """Where a warpgroup's scales are among those of a stage's weights, each for equally many of its columns."""
        rows = self.config.scale_rows
        return [divide(group * self.half + first, rows) * 4 for first in range(0, columns, min(rows, columns))]

    def scales_at(
        self, cta: Cta, piece, operands: Operands, k: Int32, slot: Int32, phase: Int32, of_token: Int32,
        of_weights: list[Int32], lane: Int32,
    ) -> list[Float32]:  # fmt: skip
        """a_scale * b_scale of the thread's results in K block k, from this slot of the scales' ring."""
        mbarrier_wait(cta.scales_full + 8 * slot, phase)
        scales, before = slot * self.config.scale_bytes, self.scales_before(piece, operands, k)
        scale = load_shared_float(of_token + scales + 4 * before)
        scale = [scale * load_shared_float(x + scales) for x in of_weights]
        self.release(cta, slot, lane)
        return scale

    def add_part(self, acc, d: list[Float32], scales: list[Float32], part: int, columns: int) -> None:
        """A part of so many columns, with its scale of equally many parts each."""
        self.add(acc, d, twice(scales[part * len(scales) // (columns // PART)]), PART * part)

    def add(self, acc, d: list[Float32], scale: Int64, first: int) -> None:
        """sum = fma(d, scale, sum) of the columns from the first one on, two at once."""
        for j in range(0, len(d), 2):
            to = first + j
            acc[to], acc[to + 1] = fma_pair(d[j], d[j + 1], scale, acc[to], acc[to + 1])

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """Results [32 tokens, half of the columns] of a warp to out in bf16, 16 tokens x up to 64 columns at once.

        They go through shared memory, so that whole sectors are stored. There the parts of 16 bytes of a token are
        swizzled by it, for the banks.
        """
        n, width = operands.n, min(64, self.half)
        parts = width // 8  # of a token, which as many lanes store
        scratch = cta.scratch + warp * self.config.scratch
        first = self.first_token(warp)
        write, swizzle = scratch + (lane & 15) * (2 * width), lane & (parts - 1)
        token, part = lane // parts, lane & (parts - 1)  # of 32 // parts tokens that are stored at once
        column = piece.row + (warp >> 2) * self.half
        to = operands.out + (Int64(piece.token + first + token) * Int64(n) + Int64(column + part * 8)) * 2
        left = select(column < n, piece.tokens - first - token, 0)
        end = minimum(n, piece.row + self.config.rows) - column - part * 8  # of the columns from this lane's on
        if first < piece.tokens:
            for c in range_constexpr(self.half // width):
                if const_expr(self.config.rows % 64 != 0):
                    left = select(c * width < end, piece.tokens - first - token, 0)
                words = [pack_bfloat(acc[c * width + 2 * i], acc[c * width + 2 * i + 1]) for i in range(width // 2)]
                for tokens in range_constexpr(2):
                    if lane >> 4 == tokens:
                        for x in range_constexpr(parts):
                            store_shared_words(write + ((x ^ swizzle) << 4), words[4 * x : 4 * x + 4])
                    cute.arch.sync_warp()
                    for i in range_constexpr(parts // 2):
                        before = 32 // parts * i
                        row = before + token
                        found = load_shared_words(scratch + row * (2 * width) + ((part ^ (row & (parts - 1))) << 4))
                        at = to + (Int64(16 * tokens + before) * Int64(n) + c * width) * 2
                        store_global_words(at, found, select(16 * tokens + before < left, 1, 0))
                    cute.arch.sync_warp()
