"""The layer's first GEMM for sm_100a with tokens on the lanes of tensor memory, sm100_tokens.py's way to multiply.

    2 scale warps: half of a stage's token rows each, by cp.async, and their scales
    MMA warp: 128 tokens x (128 of up | 128 of gate) ─► accumulator 0 or 1, of 256 columns each
    a thread: one token, 64 columns of up and the same 64 of gate: two scales a block

Two threads, one of each warpgroup, know the largest of a token's 128 columns, which are one scale.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.definition import LARGEST
from moe.gemm1 import HALF, Operands, inverse, products
from moe.gemm1_sm100 import GatheredGemmSm100
from moe.kernel import BLOCK_K, Cta
from moe.ptx import (
    as_int,
    copy_async,
    copy_async_word,
    load_relaxed_if,
    load_shared_float,
    load_shared_words,
    mbarrier_wait,
    pack_e4m3,
    pair_barrier,
    select,
    store_global_word,
    store_global_words,
    store_shared_float,
    store_shared_words,
)
from moe.schedule import piece_at
from moe.sm100_tokens import PART, TokensOnLanes

COLUMNS = HALF // 2  # of a thread, of up; and of gate
TOGETHER = 16  # products that a thread computes step by step
PAIRS = 4  # named barriers from this one on: of warp w and warp w + 4, which have the same tokens


class GatheredTokensOnLanes(TokensOnLanes, GatheredGemmSm100):
    """The kernel with tokens on the lanes; the words are those of GatheredGemm."""

    parts = 1  # up and gate are one operand of 256 rows
    scale_warps = scale_arrivals = 2  # each copies every other 4 rows of every stage
    arrivals = 3

    def column_of(self, group: Int32, part: int) -> Int32:
        """Two parts of up, then the same two of gate."""
        return group * COLUMNS + part // 2 * HALF + part % 2 * PART

    def scales_of(self, group: Int32, columns: int) -> list[Int32]:
        """Of up, of gate."""
        return [Int32(0), Int32(4)]

    def scales_before(self, piece, operands: Operands, k: Int32) -> Int32:
        """They are copied one by one."""
        return Int32(0)

    @cute.jit
    def scale(self, cta: Cta, plan, unit: Int32, piece, operands: Operands, which: Int32, lane: Int32):
        """A scale warp: half of the token rows of every stage, 8 lanes a row, swizzled by 128 bytes; and scales."""
        config = self.config
        slot, phase, scale_slot, scale_phase = Int32(0), Int32(1), Int32(0), Int32(1)
        first, copied = 4 * which + (lane >> 3), range(0, config.tokens, 8)  # rows that this lane copies: first + each
        place = first * BLOCK_K + (((lane & 7) ^ first) << 4)
        own = 32 * which + lane  # one of the tokens whose scales this lane copies, and 64 on the other
        while unit < plan.end:
            k_blocks, scale_blocks = plan.shape.k_blocks, operands.n >> 7
            rows = operands.rows + Int64(piece.token) * 4
            left = piece.tokens - first
            tokens = [load_relaxed_if(rows + Int64(i + first) * 4, select(i < left, 1, 0)) for i in copied]
            scaled = []  # tokens
            for i in range_constexpr(2):
                there = select(own + 64 * i < piece.tokens, 1, 0)
                scaled.append(load_relaxed_if(rows + Int64(own + 64 * i) * 4, there))
            row = piece.expert * scale_blocks + (piece.row >> 8) + (lane & 1) * (scale_blocks >> 1)  # of up, of gate
            for k in cutlass.range(piece.first, piece.first + piece.count, unroll=1):
                mbarrier_wait(cta.empty + 8 * slot, phase)
                to = cta.ring + slot * config.stage_bytes + config.rows * BLOCK_K + place
                source = operands.a + Int64(k * BLOCK_K + (lane & 7) * 16)
                for i, token in zip(copied, tokens):
                    at = source + Int64(token) * Int64(k_blocks * BLOCK_K)
                    copy_async(to + i * BLOCK_K, at, select(i < left, 16, 0), Int32(1))
                self.arrive_behind_copies(cta.full + 8 * slot, lane)
                slot, phase = self.after(slot, phase)
                mbarrier_wait(cta.scales_empty + 8 * scale_slot, scale_phase)
                if which == 0:
                    self.announce(cta, scale_slot, piece, k - piece.first, lane)
                to = cta.scales + scale_slot * config.scale_bytes
                for i in range_constexpr(2):
                    at = operands.a_scale + Int64(k * operands.tokens + scaled[i]) * 4
                    copy_async_word(to + 4 * (own + 64 * i), at)
                if own < 2:
                    at = operands.b_scale + Int64(row * k_blocks + k) * 4
                    copy_async_word(to + config.weight_scales + 4 * own, at)
                self.arrive_behind_copies(cta.scales_full + 8 * scale_slot, lane)
                scale_slot, scale_phase = self.after_scales(scale_slot, scale_phase)
            unit = piece.next
            piece = piece_at(plan, config, cta.rank, unit)

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """silu(gate) * up of a warp's 32 tokens, the largest of 128 columns of each, and both to memory.

        They go through shared memory, e4m3 [32 tokens, 64], so that a token's 64 bytes are stored side by side; there
        its parts of 16 are swizzled by the token, for the banks.
        """
        n, group, first = operands.n >> 1, warp >> 2, self.first_token(warp)
        scratch = cta.scratch + warp * self.config.scratch
        of_other = cta.scratch + (warp ^ 4) * self.config.scratch
        if first < piece.tokens:
            most = Float32(0.0)
            for i in range_constexpr(0, COLUMNS, TOGETHER):
                columns = range(i, i + TOGETHER)
                of_columns = products([acc[j] for j in columns], [acc[COLUMNS + j] for j in columns])
                for j, x in zip(columns, of_columns):
                    acc[j] = x
                    most = cute.arch.fmax(most, cute.math.absf(x))
            store_shared_float(scratch + 4 * lane, most)
            pair_barrier(PAIRS + (warp & 3))
            most = cute.arch.fmax(most, load_shared_float(of_other + 4 * lane))
            pair_barrier(PAIRS + (warp & 3))  # both have read
            factor = inverse(most)
            for x in range_constexpr(COLUMNS // 16):
                words = [pack_e4m3([acc[16 * x + 4 * i + j] * factor for j in range(4)]) for i in range(4)]
                store_shared_words(scratch + lane * COLUMNS + ((x ^ ((lane >> 1) & 3)) << 4), words)
            cute.arch.sync_warp()
            column = Int64((piece.row >> 1) + group * COLUMNS + (lane & 3) * 16)
            for i in range_constexpr(4):
                token = 8 * i + (lane >> 2)
                x = load_shared_words(scratch + token * COLUMNS + (((lane ^ (token >> 1)) & 3) << 4))
                to = operands.c + Int64(piece.token + first + token) * Int64(n) + column
                store_global_words(to, x, select(first + token < piece.tokens, 1, 0))
            cute.arch.sync_warp()
            place = Int64(piece.row >> 8) * Int64(operands.total_m) + Int64(piece.token + first + lane)
            wanted = select((group == 0) & (first + lane < piece.tokens), 1, 0)
            store_global_word(operands.c_scale + place * 4, as_int(most * Float32(1 / LARGEST)), wanted)
