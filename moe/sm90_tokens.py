"""The tensor core's part for sm_90a with tokens on the M side of wgmma, weights on its N side: for experts of many.

    tile: 128 tokens x 128 or 256 weight rows; a warpgroup has 64 of the tokens, and 128 weight rows at a time:
          d = wgmma of 128 of K      | the other warpgroup's wgmma runs
          sum = fma(d, scale, sum)   | while this one scales and adds

A thread has two of the tokens, so it needs two scales for 128 weight rows; with weights on M it needs one for every
other sum. So the scales of tokens and weights come to shared memory as they are, and the threads multiply them.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.kernel import BLOCK_K, SCALE_BOX, Cta, GroupedGemm, Operands, scale_tensormap
from moe.ptx import (
    NORMAL,
    fma_in_order,
    load_shared_float,
    load_shared_words,
    matrix_descriptor,
    mbarrier_test,
    mbarrier_wait,
    pack_bfloat,
    select,
    store_global_words,
    store_matrix,
    store_shared_twice,
    tma_load,
    uniform,
    wgmma_fp8,
)

ROWS = 64  # tokens of a warpgroup
COLUMNS = 128  # weight rows of a multiplication at most, and of a scale
HALF = 64  # weight rows that a warp stores at once
# A thread's results of 128 weight rows, those of the same register bank together
IN_BANKS = tuple(4 * i + bank for bank in range(4) for i in range(COLUMNS // 8))


class TokensOnM(GroupedGemm):
    """What kernels with tokens on M have in common."""

    def scale_place(self, column: Int32) -> Int32:
        """Two tokens 8 apart, which a thread has, in 16 bytes: the second one's scale twice, the first one's twice."""
        return (column >> 4) * 128 + (column & 7) * 16 + (1 - (column >> 3 & 1)) * 8

    store_scale = staticmethod(store_shared_twice)

    def is_used(self, piece, group: Int32, i: int) -> Int32:
        return select(group * ROWS < piece.width, 1, 0)

    @cute.jit
    def multiply_piece(self, cta: Cta, piece, done: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32):
        if (warp >> 2) * ROWS < piece.width:
            slot, phase = self.multiply(cta, piece, slot, phase, acc, warp, lane)
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

class GroupedGemmTokensOnM(TokensOnM):
    """The grouped GEMM with tokens on M. Scales come by TMA: those of a stage's tokens, and one for 128 weight rows.

    TMA wants them to begin on 16 bytes, so it loads from a multiple of 4 on, and 4 more.
    """

    scale_warps = 0

    def __init__(self, config):
        super().__init__(config)
        self.columns = min(COLUMNS, config.rows)  # of a multiplication
        self.parts = config.rows // self.columns
        self.weight_scales = config.scale_bytes - SCALE_BOX * self.parts  # where they lie behind those of tokens
        self.scale_load = 4 * (config.tokens + 4) + 16 * self.parts  # bytes a stage

    def scale_tensormaps(self, a_scale: Int64, b_scale: Int64, total_m: Int32, n: Int32, k: Int32, experts: Int32):
        of_tokens = scale_tensormap(a_scale, total_m * (k >> 7), self.config.tokens + 4)
        return [of_tokens, scale_tensormap(b_scale, experts * (n >> 7) * (k >> 7), 4)]

    def places(self, piece, k: Int32, part: int) -> tuple[Int32, Int32]:
        """Numbers of the scales of K block k: of the first token, and of a part of the weight rows."""
        shape, row = piece.shape, (piece.row >> 7) + part
        return k * shape.total_m + piece.token, (piece.expert * (shape.n >> 7) + row) * shape.k_blocks + k

    def load_scales(self, cta: Cta, piece, scale_maps: Int64, slot: Int32, bar: Int32, k: Int32) -> None:
        to = cta.scales + slot * self.config.scale_bytes
        only = None if self.config.cluster == 1 else Int32(1) << cta.rank
        token, _ = self.places(piece, k, 0)
        tma_load(to, scale_maps, (token & -4,), bar, NORMAL, Int32(1), only)
        for i in range(self.parts):
            _, row = self.places(piece, k, i)
            at = to + self.weight_scales + SCALE_BOX * i
            tma_load(at, scale_maps + 128, (row & -4,), bar, NORMAL, Int32(1), only)

    @cute.jit
    def multiply(self, cta: Cta, piece, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32):
        """Multiply, scale and add the stages of a piece. Returns the next slot, and its phase."""
        config = self.config
        cta = cta._replace(full=uniform(cta.full), empty=uniform(cta.empty), scales=uniform(cta.scales))
        first = (warp >> 2) * ROWS
        tokens = uniform(matrix_descriptor(cta.ring + (config.rows + first) * BLOCK_K))
        weights = uniform(matrix_descriptor(cta.ring))
        of_tokens = cta.scales + (first + (warp & 3) * 16 + (lane >> 2)) * 4
        of_weights = cta.scales + self.weight_scales
        sums = self.columns // 2  # of a multiplication
        ready = mbarrier_test(cta.full + 8 * slot, phase)
        d = [Float32(0.0)] * sums
        for k in cutlass.range(piece.first, piece.first + piece.count, unroll=1):
            if ready == 0:
                mbarrier_wait(cta.full + 8 * slot, phase)
            stage, scales = uniform(slot * (config.stage_bytes >> 4)), slot * config.scale_bytes
            token_scales, weight_scales = [], []
            for i in range_constexpr(2):  # tokens that are 8 apart
                place, _ = self.places(piece, k, 0)
                token_scales.append(load_shared_float(of_tokens + scales + ((place & 3) << 2) + 32 * i))
            for i in range_constexpr(self.parts):
                _, place = self.places(piece, k, i)
                weight_scales.append(load_shared_float(of_weights + scales + ((place & 3) << 2) + SCALE_BOX * i))
            this = slot
            slot, phase = self.after(slot, phase)
            for part in range_constexpr(self.parts):
                rows = weights + part * (self.columns * BLOCK_K >> 4)
                d = wgmma_fp8(self.columns, tokens + stage, rows + stage, into=d)
                if part == self.parts - 1:
                    self.release(cta, this, lane)
                    ready = mbarrier_test(cta.full + 8 * slot, phase)
                scale = [x * weight_scales[part] for x in token_scales]
                for i in [x for x in IN_BANKS if x < sums]:
                    at = part * sums + i
                    acc[at] = fma_in_order(d[i], scale[i // 2 % 2], acc[at])
        return slot, phase

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """Results [16 tokens, 64 or 32 weight rows] of a warp at a time, to out in bf16: those of a token together."""
        half_rows = min(HALF, self.config.rows)
        lanes = half_rows // 8  # that store a token's
        n, scratch = operands.n, cta.scratch + warp * self.config.scratch
        token = (lane & 7) + ((lane >> 3 & 1) << 3)  # whose row of a matrix this lane has; 16 bytes swizzled by it
        write, swizzle, right = scratch + token * 128, token & 7, lane >> 4
        first = (warp >> 2) * ROWS + (warp & 3) * 16
        if first < piece.tokens:
            for half in range_constexpr(self.config.rows // half_rows):
                for i in range_constexpr(half_rows // 16):
                    base = half * (half_rows // 2) + 8 * i
                    matrices = [pack_bfloat(acc[base + 2 * x], acc[base + 2 * x + 1]) for x in range(4)]
                    store_matrix(write + (((2 * i + right) ^ swizzle) << 4), matrices, columns=False)
                cute.arch.sync_warp()
                for i in range_constexpr(lanes // 2):
                    at, chunk = lane // lanes + (32 // lanes) * i, lane % lanes
                    x = load_shared_words(scratch + at * 128 + ((chunk ^ (at & 7)) << 4))
                    row, column = first + at, piece.row + half * half_rows + chunk * 8
                    address = operands.out + (Int64(piece.token + row) * Int64(n) + Int64(column)) * 2
                    inside = select(row < piece.tokens, 1, 0) & select(column < n, 1, 0)
                    store_global_words(address, x, inside)
                cute.arch.sync_warp()
