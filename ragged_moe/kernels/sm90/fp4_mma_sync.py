"""The sm_90a mainloop for weights in e2m1 and at most 8 tokens: mma.sync, whose operands are both from registers.

A wgmma with operand A from registers takes 28 cycles however few tokens it has, so that a k-block's take as long as
making its weights 16 bits does. mma.sync takes half of that for 8 tokens (for 16 it is no faster: worklog/moe.md, F56),
and awaits its own operands only: the GPU runs it beside the instructions that make the next ones.

Warps have the weight rows, and threads the fragments of both operands and of the results, that they have with wgmma
(fp4_weights.py).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ragged_moe.kernels.config import BLOCK_K, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.mainloop import MainloopState, release
from ragged_moe.kernels.ptx import fence_proxy_async, load_matrix, mbarrier_wait, mma_of_registers
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.kernels.sm90.fp4_registers import Fp4Registers, keep, loaded_stage, weight_places


class Fp4EightTokens:
    """out [64 weight rows, 8 tokens] of a warpgroup, once or twice."""

    def __init__(self, config: Config):
        self.config, self.registers = config, Fp4Registers(config)

    @cute.jit
    def __call__(self, warp: Warp, tile: WorkTile, state: MainloopState, acc):
        """Multiply a work tile's k-blocks. Returns the next state.

        What a thread needs of a half of a k-block is loaded while the half before is multiplied.
        """
        config, cta, lane, stage = self.config, warp.cta, warp.lane, state.stage
        at, parts = weight_places(config, warp, 8), self.registers.parts
        row = lane & 7  # of ldmatrix: a token. Each 8 lanes have another 8 of K, which the token swizzles
        tokens = cta.ring + row * BLOCK_K + (((lane >> 3) ^ row) << 4)
        packed = cute.make_rmem_tensor((parts, 6), Int32)  # the words of the 64 of K to come
        mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
        keep(packed, self.registers.load(at, stage.index * config.stage_bytes, 0))
        following = stage.advance(config.stages)
        for k in cutlass.range(tile.k_count, unroll=1):
            offset = stage.index * config.stage_bytes
            index, phase = loaded_stage(stage, following, k, tile.k_count)
            first = [[packed[part, i] for i in range(6)] for part in range(parts)]
            b = [self.tokens(tokens, offset + half * (8 * BLOCK_K)) for half in range(2)]
            second = self.registers.load(at, offset, 1)
            self.issue(first, b[0], acc)
            mbarrier_wait(cta.full + 8 * index, phase)
            keep(packed, self.registers.load(at, index * config.stage_bytes, 0))
            fence_proxy_async()  # what overwrites the stage is TMA, and this warp has read it
            release(config, cta, stage.index, lane)
            self.issue(second, b[1], acc)
            stage, following = following, following.advance(config.stages)
        return state._replace(stage=stage)

    def tokens(self, tokens: Int32, offset: Int32) -> list[Int32]:
        """Load operand B for 64 of K: two registers for each step of 16."""
        return load_matrix(tokens + offset) + load_matrix((tokens ^ 64) + offset)

    def issue(self, words: list[list[Int32]], b: list[Int32], acc) -> None:
        """Multiply 64 of K."""
        kind, sums, scaled = self.config.fp4_tokens, self.config.block_m // 2, self.registers.scaled(words)
        for step in range(4):
            for part, a in enumerate(self.registers.decoded(words, [step], scaled)):
                places = range(part * sums, part * sums + 4)
                d = mma_of_registers(kind, a, b[2 * step : 2 * step + 2], [acc[i] for i in places])
                for i, x in zip(places, d):
                    acc[i] = x
