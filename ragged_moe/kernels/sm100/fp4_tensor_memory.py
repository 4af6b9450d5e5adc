"""Tensor memory of the kernel that makes weights in e2m1 bf16: sums of a whole work tile, and weights, operand A.

    columns   0 .. 256                      256 .. 512
              sums [parts, block_m tokens]  A [2, parts, 64: 128 of K, two bf16 a column]

A part is 128 weight rows: of both warpgroups 64. In a warp's quarter of the lanes each has 16, which are its rows of
wgmma's operand A and results, as tcgen05.st and tcgen05.ld of 16 lanes give threads the same of either. The barriers
are TensorMemory's, of operand A's halves:

    consumers ── every warp, when its weights are there ──► acc_empty [2] ──► MMA warps ── commit ──► acc_full [2]

Consumers wait at acc_full before they overwrite a half, and, of a tile's last k-block, before they read the sums.
"""

from cutlass import Int32

from ragged_moe.kernels.config import BLOCK_N, CONSUMER_WARPS, Config
from ragged_moe.kernels.context import Cta, Warp
from ragged_moe.kernels.ptx import mbarrier_init
from ragged_moe.kernels.sm100.tensor_memory import TensorMemory

OPERAND, OF_K = 256, 64  # A's first column; columns of 128 of K


class Fp4TensorMemory(TensorMemory):
    """parts: times 128 weight rows."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.columns, self.parts = 512, config.block_n // BLOCK_N
        self.mma_warps = self.parts
        assert self.parts * config.block_m <= OPERAND and 2 * self.parts * OF_K <= self.columns - OPERAND

    def init_barriers(self, cta: Cta) -> None:
        """One thread initialises them."""
        for i in range(2):
            mbarrier_init(self.acc_full(cta.mma, i), self.parts)  # a commit of each MMA warp
            mbarrier_init(self.acc_empty(cta.mma, i), CONSUMER_WARPS)

    def operand(self, half: Int32, part: Int32) -> Int32:
        """The first column of a part's weights."""
        return OPERAND + (half * self.parts + part) * OF_K

    def lanes(self, warp: Warp) -> Int32:
        """Address of the 16 lanes of a consumer warp."""
        return self.address(warp.cta) + ((warp.number & 3) << 21) + ((warp.number >> 2) << 20)
