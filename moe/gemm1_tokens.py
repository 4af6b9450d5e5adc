"""The layer's first GEMM for sm_90a where experts have many tokens: permuted by permute.py, on the M side of wgmma.

    warpgroup: 64 tokens x 128 weight rows of up ─► sums, then the same of gate; the other one multiplies meanwhile

All but the two halves of the weights and the stores is the grouped GEMM's. Four lanes know the largest of a token's 128
columns, which are one scale.
"""

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.copied_scales import CopiedScales
from moe.definition import LARGEST
from moe.gemm1 import HALF, GatheredGemm, Operands, inverse, product
from moe.kernel import BLOCK_K, Cta
from moe.ptx import (
    LAST,
    as_int,
    load_shared_words,
    mbarrier_expect,
    select,
    select_float,
    store_global_word,
    store_global_words,
    store_shared_e4m3_pair,
    tma_load,
)
from moe.sm90_tokens import TokensOnM

SUMS = HALF // 2  # of a thread, for up; and for gate


class PermutedGemm(CopiedScales, TokensOnM, GatheredGemm):
    """The kernel with tokens on M, which nobody has to gather; the words are those of GatheredGemm."""

    early_table = True  # the kernel before this one is permute, which has waited for routing

    def weight_block(self, piece, blocks: Int32, i: Int32) -> Int32:
        """Of up, of gate."""
        return (piece.row >> 8) + i * (blocks >> 1)

    def load_stage(self, cta: Cta, piece, weights_map, tokens_map, slot: Int32, x: Int32) -> None:
        """TMA copies of a stage. If both CTAs have the same weights, the first loads up for both, the second gate."""
        config, bar, shared = self.config, cta.full + 8 * slot, piece.shares_weights
        weights = cta.ring + slot * config.stage_bytes
        mbarrier_expect(bar, (piece.width + config.rows) * BLOCK_K)
        for half in range(2):
            mine, mask = select(cta.rank == half, 1, 1 - shared), select(shared != 0, 3, Int32(1) << cta.rank)
            at = (x, piece.row >> 1, half, piece.expert)
            tma_load(weights + half * (HALF * BLOCK_K), weights_map, at, bar, config.weights_policy, mine, mask)
        to = weights + config.rows * BLOCK_K
        self.load_halves(cta, bar, to, tokens_map, x, (piece.token,), LAST, 1 - shared, piece.width >> 1)

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """silu(gate) * up of a warp's 16 tokens, the largest of 128 columns of each, and both to memory."""
        n, scratch = operands.n >> 1, cta.scratch + warp * self.config.scratch  # e4m3 [16 tokens, 128]
        tokens = select(piece.row < operands.n, piece.tokens, 0)  # that are stored
        first = self.first_token(warp)
        row, pair = lane >> 2, lane & 3
        for i in range_constexpr(SUMS):
            acc[i] = product(acc[i], acc[SUMS + i])
        if first < tokens:
            most = [Float32(0.0), Float32(0.0)]
            for i in range_constexpr(SUMS):
                most[i // 2 % 2] = cute.arch.fmax(most[i // 2 % 2], cute.math.absf(acc[i]))
            for step in (1, 2):
                most = [cute.arch.fmax(x, cute.arch.shuffle_sync_bfly(x, step)) for x in most]
            for x in range_constexpr(2):
                factor = inverse(most[x])
                for j in range_constexpr(HALF // 8):  # 16 bytes swizzled by the token, for the banks
                    at = scratch + (row + 8 * x) * HALF + (((j >> 1) ^ row) << 4) + (j & 1) * 8 + pair * 2
                    store_shared_e4m3_pair(at, acc[4 * j + 2 * x] * factor, acc[4 * j + 2 * x + 1] * factor)
            cute.arch.sync_warp()
            column = Int64((piece.row >> 1) + (lane & 7) * 16)
            for i in range_constexpr(4):
                token = (lane >> 3) + 4 * i
                x = load_shared_words(scratch + token * HALF + (((lane & 7) ^ (token & 7)) << 4))
                to = operands.c + Int64(piece.token + first + token) * Int64(n) + column
                store_global_words(to, x, select(first + token < tokens, 1, 0))
            cute.arch.sync_warp()
            token = first + row + 8 * pair  # for two of four lanes
            scale = select_float(pair == 0, most[0], most[1]) * Float32(1 / LARGEST)
            place = Int64(piece.row >> 8) * Int64(operands.total_m) + Int64(piece.token + token)
            wanted = select((pair < 2) & (token < tokens), 1, 0)
            store_global_word(operands.c_scale + place * 4, as_int(scale), wanted)
