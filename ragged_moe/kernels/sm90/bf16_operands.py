"""The sm_90a mainloops for weights and tokens in bf16: wgmma of both from shared memory, sums in its accumulators.

The frame counts K in bytes, so that a k-block is 64 of K here. Sums stay where they are for all of a tile's K, and one
k-block's group is under way while the next one's operands are waited for: a stage is released one k-block later.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from ragged_moe.kernels.config import BLOCK_K, BLOCK_N, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.layouts import WGMMA_M
from ragged_moe.kernels.mainloop import ByWidth, MainloopState, release
from ragged_moe.kernels.ptx import (
    matrix_descriptor,
    maximum,
    mbarrier_wait,
    uniform,
    wgmma_of_bf16,
    wgmma_results,
    wgmma_wait,
)
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.kernels.sm90.tokens_m_from_17_tokens import TokensM


@cute.jit
def multiply(
    config: cutlass.Constexpr, warp: Warp, width: cutlass.Constexpr, a: list, b: Int32, count: Int32,
    state: MainloopState, acc,
):  # fmt: skip
    """Add A [64, 64] @ B [width, 64].T of each k-block to the sums, which are side by side, for each of these A.

    a, b: low words of the descriptors in stage 0.
    """
    cta, stage, before, sums = warp.cta, state.stage, state.stage.index, len(a) * width // 2
    part = config.accumulators // len(a)  # from one operand's sums to the next one's
    places = [i * part + j for i in range(len(a)) for j in range(width // 2)]
    for k in cutlass.range(maximum(count, 1), unroll=1):  # ptxas must see that the loop is entered
        mbarrier_wait(cta.full + 8 * stage.index, stage.phase)
        offset = uniform(stage.index * (config.stage_bytes >> 4))
        d = wgmma_of_bf16(width, [x + offset for x in a], b + offset, [acc[i] for i in places])
        for i in range_constexpr(sums):
            acc[places[i]] = d[i]
        wgmma_wait(1)
        release(config, cta, before, warp.lane, k > 0)
        before = stage.index
        stage = stage.advance(config.stages)
    d = wgmma_results([acc[i] for i in places])
    for i in range_constexpr(sums):
        acc[places[i]] = d[i]
    release(config, cta, before, warp.lane)
    return state._replace(stage=stage)


class Bf16SwapAB(ByWidth):
    """out [64 weight rows, tokens] of a warpgroup; if gated of up, and of gate."""

    def __init__(self, config: Config):
        self.config = config

    def multiply(self, warp: Warp, width: int, tile: WorkTile, state: MainloopState, acc):
        """The k-blocks of a tile of which this many tokens are loaded."""
        config, group = self.config, warp.number >> 2
        first = uniform(matrix_descriptor(warp.cta.ring + group * (64 * BLOCK_K)))
        weights = [first + gate * (BLOCK_N * BLOCK_K >> 4) for gate in range(1 + config.gated)]
        tokens = uniform(matrix_descriptor(warp.cta.ring + config.block_n * BLOCK_K))
        return multiply(config, warp, width, weights, tokens, tile.k_count, state, acc)


class Bf16TokensM(TokensM):
    """out [64 tokens, block_n weight rows] of a warpgroup."""

    def multiply(self, warp: Warp, tile: WorkTile, state: MainloopState, acc, half: bool = False):
        """half: with only that half of the weight rows that has the CTA's number."""
        config, cta, rows = self.config, warp.cta, self.config.block_n
        first = (warp.number >> 2) * WGMMA_M
        tokens = uniform(matrix_descriptor(cta.ring + (rows + first) * BLOCK_K))
        weights = matrix_descriptor(cta.ring)
        if const_expr(half):
            rows = rows // 2
            weights = weights + cta.rank * (rows * BLOCK_K >> 4)
        return multiply(config, warp, rows, [tokens], uniform(weights), tile.k_count, state, acc)
