"""The layer's first GEMM for sm_100a, tokens on the lanes of tensor memory: gemm1.py's loads, sm100_tokens.py's way.

    MMA warp: 128 tokens x (128 of up | 128 of gate) ─► accumulator 0 or 1, of 256 columns each
    a thread: one token, 64 columns of up and the same 64 of gate: two scales a block

Two threads, one of each warpgroup, know the largest of a token's 128 columns, which are one scale.
"""

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.definition import LARGEST
from moe.gemm1 import HALF, GatheredGemm, Operands, inverse, product
from moe.gemm1_sm100 import GatheredGemmSm100
from moe.kernel import Cta
from moe.ptx import (
    as_int,
    load_shared_float,
    load_shared_words,
    pack_e4m3,
    pair_barrier,
    select,
    store_global_word,
    store_global_words,
    store_shared_float,
    store_shared_words,
)
from moe.sm100_tokens import PART, TokensOnLanes

COLUMNS = HALF // 2  # of a thread, of up; and of gate
PAIRS = 4  # named barriers from this one on: of warp w and warp w + 4, which have the same tokens


class GatheredTokensOnLanes(TokensOnLanes, GatheredGemmSm100):
    """The kernel with tokens on the lanes; the words are those of GatheredGemm."""

    parts = 1  # up and gate are one operand of 256 rows
    scale = GatheredGemm.scale

    def column_of(self, group: Int32, part: int) -> Int32:
        """Two parts of up, then the same two of gate."""
        return group * COLUMNS + part // 2 * HALF + part % 2 * PART

    def scales_of(self, group: Int32) -> list[Int32]:
        """Of up, of gate."""
        return [Int32(0), Int32(4 * self.config.scale_row)]

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """silu(gate) * up of a warp's 32 tokens, the largest of 128 columns of each, and both to memory.

        They go through shared memory, e4m3 [32 tokens, 64], so that a token's 64 bytes are stored side by side; there
        its parts of 16 are swizzled by the token, for the banks.
        """
        n, group, first = operands.n >> 1, warp >> 2, (warp & 3) * 32
        scratch = cta.scratch + warp * self.config.scratch
        of_other = cta.scratch + (warp ^ 4) * self.config.scratch
        if first < piece.tokens:
            most = Float32(0.0)
            for i in range_constexpr(COLUMNS):
                acc[i] = product(acc[i], acc[COLUMNS + i])
                most = cute.arch.fmax(most, cute.math.absf(acc[i]))
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
