"""The scale warp of the grouped GEMM where tokens are the M side of the multiplication: it copies scales as they are.

A consumer thread has one or two tokens there, and multiplies their scales with those of the weights itself. Copies are
asynchronous, so that one warp is enough.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from moe.kernel import Cta, Operands
from moe.ptx import copy_async, copy_async_word, maximum, mbarrier_wait, minimum
from moe.schedule import piece_at


class CopiedScales:
    """Part of a kernel. A stage has the scales of tokens, then those of the weights, one for each 128 rows."""

    scale_warps = 1

    def scales_before(self, piece, operands: Operands, k: Int32) -> Int32:
        """How many scales of others lie before those of the piece's tokens in its stage of K block k.

        They are copied from the multiple of 16 bytes at or before the first of them on.
        """
        return (piece.token + k * operands.total_m) & 3

    def weight_block(self, piece, blocks: Int32, i: Int32) -> Int32:
        """Which of the scales of an expert's weights, one for each 128 rows, is the stage's number i."""
        return (piece.row + i * self.config.scale_rows) >> 7

    @cute.jit
    def scale(self, cta: Cta, plan, unit: Int32, piece, operands: Operands, which: Int32, lane: Int32):
        """The scale warp: asynchronous copies."""
        config = self.config
        slot, phase = Int32(0), Int32(1)
        while unit < plan.end:
            if const_expr(config.cluster == 2):  # made here, as it then is in uniform registers: 1 % of many tiles
                piece = piece_at(plan, config, cta.rank, unit)
            k_blocks, scale_blocks = plan.shape.k_blocks, plan.shape.n >> 7
            row = minimum(self.weight_block(piece, scale_blocks, lane), scale_blocks - 1)
            weights = operands.b_scale + Int64(piece.expert * scale_blocks + row) * Int64(k_blocks) * 4
            for k in cutlass.range(piece.first, piece.first + piece.count, unroll=1):
                mbarrier_wait(cta.scales_empty + 8 * slot, phase)
                self.announce(cta, slot, piece, k - piece.first, lane)
                to = cta.scales + slot * config.scale_bytes
                begin = self.scales_before(piece, operands, k)
                left = operands.total_m - piece.token + begin  # of this row of a_scale
                source = operands.a_scale + (Int64(k) * Int64(operands.total_m) + Int64(piece.token - begin)) * 4
                size = minimum(maximum(left - 4 * lane, 0), 4) * 4
                copy_async(to + 16 * lane, source + Int64(16 * lane), size, Int32(1))
                if lane < begin:  # of tokens that there are: the others' are multiplied, too
                    word = minimum(config.tokens + lane, left - 1)
                    copy_async_word(to + 4 * (config.tokens + lane), source + Int64(4 * word))
                if lane < config.rows // config.scale_rows:
                    copy_async_word(to + config.weight_scales + 4 * lane, weights + Int64(k) * 4)
                self.arrive_behind_copies(cta.scales_full + 8 * slot, lane)
                slot, phase = self.after_scales(slot, phase)
            unit = piece.next
            if const_expr(config.cluster == 1):  # early, for the first copies: 1 % of few
                piece = piece_at(plan, config, cta.rank, unit)
