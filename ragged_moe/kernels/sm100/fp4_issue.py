"""The MMA warps where weights become bf16: a thread of each issues tcgen05.mma of operand A from tensor memory.

Each has 128 of the tile's weight rows: so two schedulers share what beside two warps of consumers one had too much of.
"""

from cutlass import Int32, Int64

from ragged_moe.kernels.config import BLOCK_K, Config
from ragged_moe.kernels.ptx import mma_bf16, select
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.kernels.sm100.fp4_tensor_memory import Fp4TensorMemory
from ragged_moe.kernels.sm100.issue import OPERAND, MmaIssue
from ragged_moe.kernels.sm100.tensor_memory import LANES

STEPS = BLOCK_K // 16  # of a k-block


class Fp4MmaIssue(MmaIssue):
    """D [128 weight rows, tile.width tokens] of a warp, all of a tile's K.

    Consumers have read a stage's weights when the tensor core has multiplied them: its commit releases both.
    """

    first_parity = 0  # consumers arrive there with operand A

    def __init__(self, config: Config, tmem: Fp4TensorMemory):
        super().__init__(config, tmem)
        self.columns = config.block_m

    def idesc(self, tile: WorkTile) -> Int32:
        """Instruction descriptor (9.7.16.4.2): bf16 x bf16, f32 out, M = 128, N = width."""
        return Int32(LANES >> 4 << 24 | 1 << 10 | 1 << 7 | 1 << 4) | (tile.width >> 3 << 17)

    def multiply(
        self, stage: Int32, tmem: tuple[Int32, Int32], acc: Int32, number: Int32, tile: WorkTile, k: Int32
    ) -> None:
        """Issue the MMAs of a k-block, whose weights are in this half of operand A."""
        always = select(tile.tokens > 0, 1, 0)  # the newest DSL's ptxas crashes where no MMA has a predicate
        a = tmem[0] + self.tmem.operand(acc, number)
        b = Int64(stage >> 4) | Int64(OPERAND)
        for step in range(STEPS):
            half, of_half = step // (STEPS // 2), step % (STEPS // 2)
            at = b + Int64(half * (tile.width * BLOCK_K >> 4) + 2 * of_half)
            mma_bf16(tmem[1], a + 8 * step, at, self.idesc(tile), Int32(1) if step else k, always)
