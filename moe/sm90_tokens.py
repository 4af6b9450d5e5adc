"""The tensor core's part for sm_90a with tokens on the M side of wgmma, weights on its N side: for experts of many.

    tile: 128 tokens x 128 or 256 weight rows. A warpgroup has 64 of the tokens, and 128 weight rows at a time:
          d = wgmma of 128 of K      | while the other scales and adds
          sum = fma(d, scale, sum)   | while the other multiplies

A thread has two of the tokens, so it needs two scales for 128 weight rows; with weights on M it needs one for every
other sum.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.kernel import BLOCK_K, Cta, GroupedGemm, Operands
from moe.ptx import (
    copy_async_arrive,
    copy_async_word,
    divide,
    fma_in_order,
    load_shared_float,
    load_shared_pair,
    load_shared_words,
    matrix_descriptor,
    mbarrier_arrive,
    mbarrier_test,
    mbarrier_wait,
    minimum,
    pack_bfloat,
    select,
    store_global_words,
    store_matrix,
    uniform,
    wgmma_fp8,
)
from moe.schedule import piece_at

ROWS = 64  # tokens of a warpgroup
COLUMNS = 128  # weight rows of a scale, and of a multiplication at most
HALF = 64  # weight rows that a warp stores at once, at most


class TokensOnM(GroupedGemm):
    """What kernels with tokens on M have in common.

    Scales come to the ring as they are: those of tokens, two of them 8 apart, which a thread has, side by side; then
    those of weights, one for each multiplication.
    """

    def scale_place(self, column: Int32) -> Int32:
        """Byte of a token's scale in its stage."""
        return (column >> 4) * 64 + (column & 7) * 8 + (column >> 3 & 1) * 4

    def is_used(self, piece, group: Int32, i: int) -> Int32:
        return select(group * ROWS < piece.width, 1, 0)

    def before_multiplication(self) -> None:
        """A consumer thread, once it knows that a stage is full."""

    @cute.jit
    def multiply_piece(self, cta: Cta, piece, done: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32):
        if (warp >> 2) * ROWS < piece.width:
            slot, phase = self.multiply(cta, piece.count, slot, phase, acc, warp, lane)
        else:
            slot, phase = self.skip(cta, piece.count, slot, phase, lane)
        return slot, phase

    @cute.jit
    def multiply(self, cta: Cta, count: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32):
        """Multiply, scale and add `count` stages of a tile. Returns the next slot, and its phase."""
        config, columns = self.config, min(self.config.rows, COLUMNS)
        parts, sums = config.rows // columns, columns // 2  # multiplications of a stage; a thread's results of one
        in_banks = [4 * i + bank for bank in range(4) for i in range(sums // 4)]  # those of a register bank together
        cta = cta._replace(full=uniform(cta.full), empty=uniform(cta.empty), scales=uniform(cta.scales))
        first = (warp >> 2) * ROWS
        tokens = uniform(matrix_descriptor(cta.ring + (config.rows + first) * BLOCK_K))
        weights = uniform(matrix_descriptor(cta.ring))
        of_tokens = cta.scales + (first + (warp & 3) * 16) * 4 + (lane >> 2) * 8
        of_weights = cta.scales + config.tokens * 4
        ready = mbarrier_test(cta.full + 8 * slot, phase)
        d = [Float32(0.0)] * sums
        for _ in cutlass.range(count, unroll=1):
            if ready == 0:
                mbarrier_wait(cta.full + 8 * slot, phase)
            self.before_multiplication()
            stage, scales = uniform(slot * (config.stage_bytes >> 4)), slot * config.scale_bytes
            token_scales = load_shared_pair(of_tokens + scales)
            weight_scales = [load_shared_float(of_weights + scales + 4 * i) for i in range(parts)]
            this = slot
            slot, phase = self.after(slot, phase)
            for part in range_constexpr(parts):
                rows = weights + part * (columns * BLOCK_K >> 4)
                d = wgmma_fp8(columns, tokens + stage, rows + stage, into=d)
                if part == parts - 1:
                    self.release(cta, this, lane)
                    ready = mbarrier_test(cta.full + 8 * slot, phase)
                scale = [x * weight_scales[part] for x in token_scales]
                for i in in_banks:
                    at = part * sums + i
                    acc[at] = fma_in_order(d[i], scale[i // 2 % 2], acc[at])
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
    """The grouped GEMM with tokens on M."""

    scale_warps = 1

    @cute.jit
    def scale(self, cta: Cta, plan, unit: Int32, operands: Operands, which: Int32, lane: Int32):
        """The scale warp: asynchronous copies."""
        config = self.config
        slot, phase = Int32(0), Int32(1)
        places = []  # of token `lane` + 32 * i
        for i in range_constexpr(config.tokens // 32):
            places.append(self.scale_place(lane + 32 * i))
        of_weights = config.tokens * 4 + lane * 4
        while unit < plan.end:
            piece = piece_at(plan, config, cta.rank, unit)
            k_blocks, scale_blocks = plan.shape.k_blocks, plan.shape.n >> 7
            stride, tokens = Int64(operands.total_m) * 4, []
            for i in range_constexpr(len(places)):  # the last ones may be no tokens of this tile, but are in memory
                token = minimum(piece.token + lane + 32 * i, operands.total_m - 1)
                tokens.append(operands.a_scale + Int64(token) * 4)
            row = minimum((piece.row >> 7) + lane, scale_blocks - 1)
            weights = operands.b_scale + Int64(piece.expert * scale_blocks + row) * Int64(k_blocks) * 4
            for k in cutlass.range(piece.first, piece.first + piece.count, unroll=1):
                mbarrier_wait(cta.empty + 8 * slot, phase)
                to = cta.scales + slot * config.scale_bytes
                for place, of_token in zip(places, tokens):
                    copy_async_word(to + place, of_token + Int64(k) * stride)
                if lane < -(-config.rows // COLUMNS):
                    copy_async_word(to + of_weights, weights + Int64(k) * 4)
                bar = cta.full + 8 * slot
                copy_async_arrive(bar)
                cute.arch.sync_warp()
                mbarrier_arrive(bar, select(lane == 0, 1, 0))
                slot, phase = self.after(slot, phase)
            unit = piece.next

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """Results [16 tokens, 64 weight rows] of a warp at a time, to out in bf16: 128 bytes of a token together."""
        n, scratch, width = operands.n, cta.scratch + warp * self.config.scratch, min(self.config.rows, HALF)
        lanes = width // 8  # that store a token, 16 bytes each, swizzled by the token for the banks
        token, right = lane & 15, lane >> 4  # whose row of a matrix this lane has
        write, swizzle = scratch + token * (2 * width), (token & 7) * lanes >> 3
        first = (warp >> 2) * ROWS + (warp & 3) * 16
        if first < piece.tokens:
            for part in range_constexpr(self.config.rows // width):
                for i in range_constexpr(width // 16):
                    base = part * (width // 2) + 8 * i
                    matrices = [pack_bfloat(acc[base + 2 * x], acc[base + 2 * x + 1]) for x in range(4)]
                    store_matrix(write + (((2 * i + right) ^ swizzle) << 4), matrices, columns=False)
                cute.arch.sync_warp()
                for i in range_constexpr(lanes // 2):
                    at, own = divide(lane, lanes) + 32 // lanes * i, lane & (lanes - 1)
                    x = load_shared_words(scratch + at * (2 * width) + ((own ^ ((at & 7) * lanes >> 3)) << 4))
                    row, column = first + at, piece.row + part * width + own * 8
                    address = operands.out + (Int64(piece.token + row) * Int64(n) + Int64(column)) * 2
                    inside = select(row < piece.tokens, 1, 0) & select(column < n, 1, 0)
                    store_global_words(address, x, inside)
                cute.arch.sync_warp()
