"""The layer's first GEMM for sm_90a with tokens on the M side of wgmma, for experts of many tokens: gemm1.py's loads.

    warpgroup: 64 tokens x 128 weight rows of up ─► sums, then the same of gate; the other one multiplies meanwhile

A thread has two tokens, so a block's scales are two numbers for up and two for gate, where gemm1.py's loads 32 each:
shared memory binds here, and those loads were a third of what it did. And it has half of a token's columns of up and
gate each, so four lanes know the largest of the 128 that are one scale.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from moe.definition import LARGEST
from moe.gemm1 import HALF, GatheredGemm, Operands, inverse, product
from moe.kernel import BLOCK_K, Cta
from moe.ptx import (
    as_int,
    fence_proxy_async,
    fma_in_order,
    load_shared_floats,
    load_shared_words,
    matrix_descriptor,
    mbarrier_wait,
    select,
    select_float,
    store_global_word,
    store_global_words,
    store_shared_e4m3_pair,
    uniform,
    wgmma_fp8,
    wgmma_wait,
)
from moe.sm90_tokens import IN_BANKS, ROWS, TokensOnM

SUMS = HALF // 2  # of a thread, for up; and for gate


class GatheredTokensOnM(GatheredGemm, TokensOnM):
    """The kernel with tokens on M; the words are those of GatheredGemm."""

    @cute.jit
    def multiply(self, cta: Cta, count: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32):
        """Multiply, scale and add `count` stages of a tile. Returns the next slot, and its phase."""
        config, group = self.config, warp >> 2
        tokens = matrix_descriptor(cta.ring + (config.rows + group * ROWS) * BLOCK_K)
        first = matrix_descriptor(cta.ring)
        of_scales = cta.scales + (group * ROWS + (warp & 3) * 16) * 8 + (lane >> 2) * 16
        for _ in cutlass.range(count, unroll=1):
            mbarrier_wait(cta.full + 8 * slot, phase)
            fence_proxy_async()  # the tokens did not come by TMA
            stage = slot * (config.stage_bytes >> 4)
            for half in range_constexpr(2):
                scales = load_shared_floats(of_scales + slot * config.scale_bytes + half * (4 * config.scale_row))
                weights = first + stage + half * (HALF * BLOCK_K >> 4)
                d = wgmma_fp8(HALF, uniform(tokens + stage), uniform(weights), wait=False)
                wgmma_wait(0)
                if const_expr(half == 1):
                    self.release(cta, slot, lane)
                for i in IN_BANKS:
                    acc[half * SUMS + i] = fma_in_order(d[i], scales[(i & 3) ^ 2], acc[half * SUMS + i])
            slot, phase = self.after(slot, phase)
        return slot, phase

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """silu(gate) * up of a warp's 16 tokens, the largest of 128 columns of each, and both to memory."""
        n, scratch = operands.n >> 1, cta.scratch + warp * self.config.scratch  # e4m3 [16 tokens, 128]
        tokens = select(piece.row < operands.n, piece.tokens, 0)  # that are stored
        first = (warp >> 2) * ROWS + (warp & 3) * 16
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
