"""The tensor core's part for sm_90a with tokens on the M side of wgmma, weights on its N side: for experts of many.

    warpgroup:  wgmma of block i + 1 ─────────────► e          of a tile of 128 tokens x 128 weight rows each
                sum = fma(d, scale, sum) of block i    d, e    warpgroup has 64 tokens; d and e change places

A thread has two of the tokens, so it needs two scales a block; with weights on M it needs one for every other sum. That
leaves registers for a second result: a warpgroup issues its next multiplication before it scales and adds the last.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, range_constexpr

from moe.kernel import BLOCK_K, Cta, GroupedGemm, Operands
from moe.ptx import (
    fma_in_order,
    load_shared_floats,
    load_shared_words,
    matrix_descriptor,
    mbarrier_test,
    mbarrier_wait,
    pack_bfloat,
    select,
    store_global_words,
    store_matrix,
    store_shared_twice,
    uniform,
    wgmma_fp8,
    wgmma_wait,
)

ROWS = 64  # tokens of a warpgroup
COLUMNS = 128  # weight rows of a tile, and of a scale
SUMS = COLUMNS // 2  # of a thread
HALF = 64  # weight rows that a warp stores at once
# A thread's results, those of the same register bank together: each bank has a copy of their scale
IN_BANKS = tuple(4 * i + bank for bank in range(4) for i in range(SUMS // 4))


class TokensOnM(GroupedGemm):
    """The kernel with tokens on M."""

    def scale_place(self, column: Int32) -> Int32:
        """Two tokens 8 apart, which a thread has, in 16 bytes: the second one's scale twice, the first one's twice."""
        return (column >> 4) * 128 + (column & 7) * 16 + (1 - (column >> 3 & 1)) * 8

    store_scale = staticmethod(store_shared_twice)

    def is_used(self, piece, group: Int32, i: int) -> Int32:
        return select(group * ROWS < piece.width, 1, 0)

    @cute.jit
    def multiply_piece(self, cta: Cta, piece, done: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32):
        if (warp >> 2) * ROWS < piece.width:
            slot, phase = self.multiply(cta, piece.count, slot, phase, acc, warp, lane)
        else:
            slot, phase = self.skip(cta, piece.count, slot, phase, lane)
        return slot, phase

    @cute.jit
    def skip(self, cta: Cta, count: Int32, slot: Int32, phase: Int32, lane: Int32):
        """Stages of a tile none of whose tokens are this warpgroup's."""
        for _ in cutlass.range(count, unroll=1):
            mbarrier_wait(cta.full + 8 * slot, phase)
            self.release(cta, slot, lane)
            slot, phase = self.after(slot, phase)
        return slot, phase

    def words(self, bases: tuple, slot: Int32) -> tuple[Int32, Int32]:
        """Low words of the descriptors of a stage's tokens and weights."""
        stage = slot * (self.config.stage_bytes >> 4)
        return bases[0] + stage, bases[1] + stage

    def issue_stage(self, bases: tuple, slot: Int32, a: Int32, b: Int32) -> tuple:
        """Load a stage's scales and begin to multiply. Returns what `add` needs."""
        scales = load_shared_floats(bases[2] + slot * self.config.scale_bytes)
        return wgmma_fp8(COLUMNS, a, b, wait=False), scales, slot

    @cute.jit
    def add(self, cta: Cta, acc, stage: tuple, under_way: cutlass.Constexpr, lane: Int32):
        """Await a stage's results but not those of so many later ones, scale and add them.

        The operands of each fma are in three of the four register banks.
        """
        d, scales, slot = stage
        wgmma_wait(under_way)
        self.release(cta, slot, lane)
        for i in IN_BANKS:
            acc[i] = fma_in_order(d[i], scales[(i & 3) ^ 2], acc[i])

    @cute.jit
    def step(self, cta: Cta, acc, last: tuple, now: tuple, slot: Int32, phase: Int32, bases: tuple, lane: Int32):
        """Issue the stage at `slot`; meanwhile look whether the next one is full, and add the one before, `last`.

        now: (whether this stage was seen to be full, its descriptors). Returns last, now, slot and phase of the next.
        """
        ready, a, b = now
        if ready == 0:
            mbarrier_wait(cta.full + 8 * slot, phase)
        issued = self.issue_stage(bases, slot, a, b)
        slot, phase = self.after(slot, phase)
        a, b = self.words(bases, slot)
        now = mbarrier_test(cta.full + 8 * slot, phase), a, b
        self.add(cta, acc, last, 1, lane)
        return issued, now, slot, phase

    @cute.jit
    def multiply(self, cta: Cta, count: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32):
        """Multiply, scale and add `count` stages of a tile. Returns the next slot, and its phase."""
        cta = cta._replace(full=uniform(cta.full), empty=uniform(cta.empty))
        first = (warp >> 2) * ROWS
        tokens = matrix_descriptor(cta.ring + (self.config.rows + first) * BLOCK_K)
        scales = cta.scales + (first + (warp & 3) * 16) * 8 + (lane >> 2) * 16
        bases = tokens, matrix_descriptor(cta.ring), scales
        mbarrier_wait(cta.full + 8 * slot, phase)
        d = self.issue_stage(bases, slot, *map(uniform, self.words(bases, slot)))
        slot, phase = self.after(slot, phase)
        ready, a, b = Int32(0), *self.words(bases, slot)
        for _ in cutlass.range((count - 1) >> 1, unroll=1):
            now = ready, uniform(a), uniform(b)
            e, (ready, a, b), slot, phase = self.step(cta, acc, d, now, slot, phase, bases, lane)
            now = ready, uniform(a), uniform(b)
            d, (ready, a, b), slot, phase = self.step(cta, acc, e, now, slot, phase, bases, lane)
        if count & 1 == 0:
            now = ready, uniform(a), uniform(b)
            e, (ready, a, b), slot, phase = self.step(cta, acc, d, now, slot, phase, bases, lane)
            self.add(cta, acc, e, 0, lane)
        else:
            self.add(cta, acc, d, 0, lane)
        return slot, phase

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """Results [16 tokens, 64 weight rows] of a warp at a time, to out in bf16: 128 bytes of a token together."""
        n, scratch = operands.n, cta.scratch + warp * self.config.scratch
        token = (lane & 7) + ((lane >> 3 & 1) << 3)  # whose row of a matrix this lane has; 16 bytes swizzled by it
        write, swizzle, right = scratch + token * 128, token & 7, lane >> 4
        first = (warp >> 2) * ROWS + (warp & 3) * 16
        if first < piece.tokens:
            for half in range_constexpr(COLUMNS // HALF):
                for i in range_constexpr(HALF // 16):
                    base = half * (HALF // 2) + 8 * i
                    matrices = [pack_bfloat(acc[base + 2 * x], acc[base + 2 * x + 1]) for x in range(4)]
                    store_matrix(write + (((2 * i + right) ^ swizzle) << 4), matrices, columns=False)
                cute.arch.sync_warp()
                for i in range_constexpr(4):
                    at = (lane >> 3) + 4 * i
                    x = load_shared_words(scratch + at * 128 + (((lane & 7) ^ (at & 7)) << 4))
                    row, column = first + at, piece.row + half * HALF + (lane & 7) * 8
                    address = operands.out + (Int64(piece.token + row) * Int64(n) + Int64(column)) * 2
                    inside = select(row < piece.tokens, 1, 0) & select(column < n, 1, 0)
                    store_global_words(address, x, inside)
                cute.arch.sync_warp()
