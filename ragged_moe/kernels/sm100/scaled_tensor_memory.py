"""Tensor memory of MMAs with block scales: accumulators of a whole work tile, and the scales of a stage behind them.

    columns   0 .. block_n   [2 * block_n]          464 .. 480               480 .. 512
              accumulator 0  [accumulator 1]        tokens' scales [4 atoms, 4]   weights' [4 atoms, block_n / 32]

A tile of 256 weight rows has one accumulator: two would leave no columns for scales. Consumers take all of it to
registers at once, so that the next tile's MMAs wait for some hundred cycles of some thousand.
"""

from cutlass import Int32

from ragged_moe.kernels.block_scaled import W4A4
from ragged_moe.kernels.config import Config
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import mbarrier_wait
from ragged_moe.kernels.sm100.tensor_memory import TensorMemory

ATOM = 512  # bytes of the scales of 128 rows x 4 blocks of K
ATOMS = W4A4.atoms  # of a stage, at most
COLUMNS = 512  # of tensor memory
ATOM_COLUMNS = 4
TOKEN_SCALES = COLUMNS - ATOMS * (1 + 2) * ATOM_COLUMNS
WEIGHT_SCALES = TOKEN_SCALES + ATOMS * ATOM_COLUMNS


class ScaledTensorMemory(TensorMemory):
    """One or two accumulators, used in turn. The barriers are TensorMemory's."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.columns, self.stride = COLUMNS, config.block_n
        self.accumulators = min(2, TOKEN_SCALES // config.block_n)

    def wait_full(self, barriers: Int32, turn: Int32) -> None:
        """A consumer waits for the results of work tile `turn`, counted from the CTA's first."""
        if self.accumulators == 2:
            super().wait_full(barriers, turn)
        else:
            mbarrier_wait(self.acc_full(barriers, Int32(0)), turn & 1)

    def release(self, barriers: Int32, turn: Int32, lane: Int32) -> None:
        """A consumer warp has read its results of work tile `turn`."""
        super().release(barriers, turn if self.accumulators == 2 else Int32(0), lane)

    def first_column(self, turn: Int32) -> Int32:
        """Where the accumulator of work tile `turn` begins."""
        return (turn & 1) * self.stride if self.accumulators == 2 else Int32(0)

    def advance(self, state: PipelineState) -> PipelineState:
        """The next accumulator."""
        return state.advance() if self.accumulators == 2 else state.advance(1)
