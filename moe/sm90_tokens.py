"""The tensor core's part for sm_90a with tokens on the M side of wgmma, weights on its N side: for experts of many.

    tile: 128 tokens x 64 to 256 weight rows. A warpgroup has 64 of the tokens, and up to 128 weight rows at a time:
          d = wgmma of 128 of K      | while the other scales and adds
          sum = fma(d, scale, sum)   | while the other multiplies

A thread has two of the tokens, so it needs two scales for 128 weight rows; with weights on M it needs one for every
other sum.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from moe.copied_scales import CopiedScales
from moe.joined_halves import JoinedHalves
from moe.kernel import BLOCK_K, BLOCK_N, Cta, GroupedGemm, Operands
from moe.ptx import (
    fma_in_order,
    load_shared_float,
    load_shared_words,
    matrix_descriptor,
    mbarrier_test,
    mbarrier_wait,
    minimum,
    pack_bfloat,
    select,
    store_global_words,
    store_matrix,
    uniform,
    wgmma_fp8,
    wgmma_wait,
)

ROWS = 64  # tokens of a warpgroup
HALF = 64  # weight rows that a warp stores at once


class TokensOnM(JoinedHalves, GroupedGemm):
    """What kernels with tokens on M have in common.

    Scales come to the ring as they are: those of tokens, then those of the weights of each multiplication.
    """

    def scale_place(self, column: Int32) -> Int32:
        """Byte of a token's scale behind the first one's."""
        return 4 * column

    def scales_before(self, piece, operands: Operands, k: Int32) -> Int32:
        """How many scales of others lie before those of the piece's tokens in its stage of K block k."""
        return Int32(0)

    def is_used(self, piece, group: Int32, i: int) -> Int32:
        return select(group * ROWS < piece.width, 1, 0)

    def load_scales(self, of_tokens: Int32, of_weights: Int32, count: int) -> list[Float32]:
        """Of a thread's two tokens, and of so many times config.scale_rows weight rows."""
        at = [of_tokens, of_tokens + 32, *(of_weights + 4 * i for i in range(count))]
        return [load_shared_float(x) for x in at]

    @cute.jit
    def multiply_piece(
        self, cta: Cta, piece, operands: Operands, done: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32
    ):  # fmt: skip
        if self.has_half(cta, piece, warp):
            if const_expr(self.config.overlap):
                slot, phase = self.multiply(cta, piece, operands, slot, phase, acc, warp, lane, half=True)
        elif (warp >> 2) * ROWS < piece.width:
            slot, phase = self.multiply(cta, piece, operands, slot, phase, acc, warp, lane)
        else:
            slot, phase = self.skip(cta, piece.count, slot, phase, lane)
        return slot, phase

    def has_half(self, cta: Cta, piece, warp: Int32):
        """Whether a warpgroup multiplies its tokens with the half of the weights that has its CTA's number."""
        return self.config.overlap and (piece.overlaps != 0) & ((warp >> 2) != cta.rank)

    @cute.jit
    def multiply(
        self, cta: Cta, piece, operands: Operands, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32,
        half: cutlass.Constexpr = False,
    ):  # fmt: skip
        """Multiply, scale and add the stages of a piece. Returns the next slot, and its phase."""
        config, parts = self.config, -(-self.config.rows // BLOCK_N)  # multiplications of a stage
        columns, sums = config.rows // parts, config.rows // parts // 2  # of one; a thread's results of it
        short = columns <= 64  # too short to load scales meanwhile
        cta = cta._replace(full=uniform(cta.full), empty=uniform(cta.empty), scales=uniform(cta.scales))
        first = (warp >> 2) * ROWS
        tokens = uniform(matrix_descriptor(cta.ring + (config.rows + first) * BLOCK_K))
        weights, of_weights = matrix_descriptor(cta.ring), cta.scales + config.weight_scales
        if const_expr(half):
            parts = 1
            weights, of_weights = weights + cta.rank * (columns * BLOCK_K >> 4), of_weights + 4 * cta.rank
        weights, blocks = uniform(weights), parts * columns // config.scale_rows
        of_tokens = cta.scales + (first + (warp & 3) * 16 + (lane >> 2)) * 4
        ready = mbarrier_test(cta.full + 8 * slot, phase)
        d = [Float32(0.0)] * sums
        for k in cutlass.range(piece.first, piece.first + piece.count, unroll=1):
            if ready == 0:
                mbarrier_wait(cta.full + 8 * slot, phase)
            stage, scales = uniform(slot * (config.stage_bytes >> 4)), slot * config.scale_bytes
            of_piece = of_tokens + scales + 4 * self.scales_before(piece, operands, k)
            this, loaded, scale = slot, [], []
            if const_expr(short):
                loaded = self.load_scales(of_piece, of_weights + scales, blocks)
            slot, phase = self.after(slot, phase)
            for part in range_constexpr(parts):
                rows = weights + part * (columns * BLOCK_K >> 4)
                d = wgmma_fp8(columns, tokens + stage, rows + stage, wait=False, into=d)
                # Meanwhile what else would keep the tensor core waiting between two multiplications
                if const_expr(part == 0):
                    if const_expr(not short):
                        loaded = self.load_scales(of_piece, of_weights + scales, blocks)
                    scale = [[x * y for x in loaded[:2]] for y in loaded[2:]]
                wgmma_wait(0)
                if const_expr(part == parts - 1):
                    self.release(cta, this, lane)
                    ready = mbarrier_test(cta.full + 8 * slot, phase)  # not earlier: a test that fails costs a wait
                for i in range_constexpr(sums):
                    at = part * sums + i
                    row = part * columns + i // 4 * 8
                    acc[at] = fma_in_order(d[i], scale[row // config.scale_rows][i // 2 % 2], acc[at])
        return slot, phase

    def first_token(self, warp: Int32) -> Int32:
        """Of a tile, that a warp has results of."""
        return (warp >> 2) * ROWS + (warp & 3) * 16

    @cute.jit
    def skip(self, cta: Cta, count: Int32, slot: Int32, phase: Int32, lane: Int32):
        """Stages of a tile none of whose tokens are this warpgroup's."""
        for _ in cutlass.range(count, unroll=1):
            mbarrier_wait(cta.full + 8 * slot, phase)
            self.release(cta, slot, lane)
            slot, phase = self.after(slot, phase)
        return slot, phase


class GroupedGemmTokensOnM(CopiedScales, TokensOnM):
    """The grouped GEMM with tokens on M."""

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """Results [16 tokens, 64 weight rows] of a warp at a time, to out in bf16: 128 bytes of a token together."""
        n, scratch, rows = operands.n, cta.scratch + warp * self.config.scratch, self.config.rows
        begin, end = piece.row, n
        if const_expr(self.config.overlap):
            half = self.has_half(cta, piece, warp)
            begin = begin + select(half, cta.rank * BLOCK_N, 0)
            end = select(half, minimum(begin + BLOCK_N, n), n)
        token, right = lane & 15, lane >> 4  # whose row of a matrix this lane has, swizzled by the token for the banks
        write = scratch + token * (2 * HALF)
        first = self.first_token(warp)
        if first < piece.tokens:
            for part in range_constexpr(-(-rows // HALF)):
                left = min(HALF, rows - part * HALF)
                for i in range_constexpr(left // 16):
                    base = part * (HALF // 2) + 8 * i
                    matrices = [pack_bfloat(acc[base + 2 * x], acc[base + 2 * x + 1]) for x in range(4)]
                    store_matrix(write + (((2 * i + right) ^ (token & 7)) << 4), matrices, columns=False)
                cute.arch.sync_warp()
                for i in range_constexpr(4):
                    at, own = (lane >> 3) + 4 * i, lane & 7  # 8 lanes store a token
                    x = load_shared_words(scratch + at * (2 * HALF) + ((own ^ (at & 7)) << 4))
                    row, column = first + at, begin + part * HALF + own * 8
                    address = operands.out + (Int64(piece.token + row) * Int64(n) + Int64(column)) * 2
                    inside = select(row < piece.tokens, 1, 0) & select(column < end, 1, 0)
                    if const_expr(left < HALF):
                        inside = inside & select(own * 8 < left, 1, 0)
                    store_global_words(address, x, inside)
                cute.arch.sync_warp()
