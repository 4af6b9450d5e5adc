"""Where a warp is in a ring of stages in shared memory."""

from typing import NamedTuple

from cutlass import Int32

from ragged_moe.kernels.ptx import divide, select


class PipelineState(NamedTuple):
    """A warp's place in a ring: the stage, and the parity of the phase of its barrier that the warp waits for.

    Consumers begin with parity 0, producers with parity 1, which a fresh mbarrier passes.
    """

    index: Int32
    phase: Int32

    def advance(self, stages: int | None = None) -> "PipelineState":
        """The next of this many stages; of two if None, which takes no select."""
        if stages is None:
            return PipelineState(phase=self.phase ^ self.index, index=1 - self.index)
        index = self.index + 1
        wraps = index == stages
        return PipelineState(phase=select(wraps, self.phase ^ 1, self.phase), index=select(wraps, 0, index))


def stage_after(count: Int32, stages: int) -> tuple[Int32, Int32]:
    """(index, turn) of the stage that a producer fills after `count` others: it waits for parity (turn & 1) ^ 1."""
    turn = divide(count, stages)
    return count - turn * stages, turn
