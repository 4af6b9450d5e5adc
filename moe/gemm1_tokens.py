"""The layer's first GEMM for sm_90a with tokens on the M side of wgmma, for experts of many tokens: gemm1.py's loads.

    warpgroup: 64 tokens x 128 weight rows of up ─► sums, then the same of gate; the other one multiplies meanwhile

A thread has two tokens, so a block's scales are two numbers of these, one of up, one of gate, where gemm1.py's loads
32 products for each. And four lanes know the largest of a token's 128 columns, which are one scale.
"""

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.definition import LARGEST
from moe.gemm1 import HALF, GatheredGemm, Operands, inverse, product
from moe.kernel import Cta
from moe.ptx import (
    as_int,
    copy_async_arrive,
    fence_proxy_async,
    load_shared_words,
    select,
    select_float,
    store_global_word,
    store_global_words,
    store_shared_e4m3_pair,
    store_shared_float,
)
from moe.sm90_tokens import ROWS, TokensOnM

SUMS = HALF // 2  # of a thread, for up; and for gate


class GatheredTokensOnM(TokensOnM, GatheredGemm):
    """The kernel with tokens on M; the words are those of GatheredGemm."""

    def before_multiplication(self) -> None:
        """The tokens did not come by TMA."""
        fence_proxy_async()

    @cute.jit
    def store_scales(self, to: Int32, bar: Int32, places: list, of_tokens: list, of_weights: list, lane: Int32):
        """As they are; the copies are announced behind them, which is 5 % faster here (and slower there)."""
        for place, x in zip(places, of_tokens):
            store_shared_float(to + place, x)
        if lane < 2:
            store_shared_float(to + self.config.weight_scales + 4 * lane, select_float(lane == 0, *of_weights))
        copy_async_arrive(bar)

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
