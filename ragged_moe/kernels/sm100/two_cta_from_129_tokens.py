"""The sm_100a mainloop with tokens on M and a 2-CTA MMA (cta_group::2), for experts of more than 128 tokens.

    each CTA:   128 tokens, 128 of 256 weight rows ──► its ring
    2 MMA warps of the first:  256 tokens x 128 weight rows each, 128 of K ──► accumulator 0 or 1 of a warpgroup
    a warpgroup:  128 columns of it ──► sums, as in tokens_m_from_17_tokens.py

Each operand lies in one of the two shared memories, so that 128 columns at once leave these as much time as 256 would
for a CTA alone. So a warpgroup hands its accumulator back on its own, and the loads of one come while the other adds.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ragged_moe.kernels.config import BLOCK_N
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.mainloop import MainloopState
from ragged_moe.kernels.ptx import tcgen05_fence, tmem_load, tmem_load_wait, twice
from ragged_moe.kernels.schedule import WorkTile
from ragged_moe.kernels.sm100.tokens_m_from_17_tokens import TokensM, add_scaled, load_scales

# Columns (first, how many) of a thread's results that are in registers at once: with 96 of them ptxas spills
FIRST_COLUMNS = (0, 32), (32, 32), (64, 16)
LAST_COLUMNS = (80, 32), (112, 16)


class TwoCta(TokensM):
    """A token, and 128 of the tile's 256 weight rows, of a thread."""

    @cute.jit
    def add(self, warp: Warp, tile: WorkTile, state: MainloopState, acc, columns: cutlass.Constexpr):
        """The k-blocks of a tile, as a software pipeline.

        Of a k-block's results the first columns are kept and added while the last ones come, these while the first
        ones of the next k-block do: of each k-block two waits show, in which the other warps' columns come.
        """
        config, cta, lane, group, stage = self.config, warp.cta, warp.lane, warp.number >> 2, state.stage
        barriers = self.tmem.barriers_of(cta, group)
        tmem = self.tmem.address(cta) + ((warp.number & 3) << 21) + group * BLOCK_N
        scales = self.scales_of(warp, columns)
        kept = cute.make_rmem_tensor((LAST_COLUMNS[0][0],), Float32)
        at = self.wait_results(barriers, tmem, state.done)
        coming = [load_columns(at, part) for part in FIRST_COLUMNS]
        (scale,) = load_scales(config, warp, tile, tile.k_first, stage, scales)
        stage = stage.advance(config.scale_stages)
        keep(kept, coming)
        for i in cutlass.range(1, tile.k_count, unroll=1):
            turn = state.done + i
            last = add_kept(acc, kept, scale, tmem + ((turn - 1) & 1) * self.tmem.stride)
            at = self.wait_results(barriers, tmem, turn)
            self.end_reading(barriers, turn - 1, lane)
            free, *others = FIRST_COLUMNS  # where none of the last ones is, and where they are
            coming = [load_columns(at, free)]
            add_columns(acc, last, scale, LAST_COLUMNS)
            coming += [load_columns(at, part) for part in others]
            (scale,) = load_scales(config, warp, tile, tile.k_first + i, stage, scales)
            stage = stage.advance(config.scale_stages)
            keep(kept, coming)
        turn = state.done + tile.k_count - 1
        last = add_kept(acc, kept, scale, tmem + (turn & 1) * self.tmem.stride)
        self.end_reading(barriers, turn, lane)
        add_columns(acc, last, scale, LAST_COLUMNS)
        return state._replace(stage=stage)

    def wait_results(self, barriers: Int32, tmem: Int32, turn: Int32) -> Int32:
        """Wait for the results of k-block `turn`. Returns where they are."""
        self.tmem.wait_full(barriers, turn)
        tcgen05_fence("after")
        return tmem + (turn & 1) * self.tmem.stride

    def end_reading(self, barriers: Int32, turn: Int32, lane: Int32) -> None:
        """When the last columns of k-block `turn` have come, hand its accumulator back."""
        tmem_load_wait()
        tcgen05_fence("before")
        cute.arch.sync_warp()
        self.tmem.release(barriers, turn, lane)


def load_columns(at: Int32, part: tuple[int, int]) -> list[Float32]:
    """Begin to load these columns of a thread's results."""
    first, width = part
    return tmem_load(at + first, width, wait=False)


def keep(kept, coming: list) -> None:
    """Keep the first columns, when they have come."""
    tmem_load_wait()
    for (first, width), d in zip(FIRST_COLUMNS, coming):
        for j in range(width):
            kept[first + j] = d[j]


def add_kept(acc, kept, scale: Float32, at: Int32) -> list[list[Float32]]:
    """Add the first columns; the last ones come meanwhile, to registers that become free. Returns these."""
    later, *others = FIRST_COLUMNS
    found = [[kept[first + j] for j in range(width)] for first, width in FIRST_COLUMNS]
    add_columns(acc, found[1:], scale, others)
    last = [load_columns(at, part) for part in LAST_COLUMNS]
    add_columns(acc, found[:1], scale, [later])
    return last


def add_columns(acc, found: list, scale: Float32, parts: list) -> None:
    """sum = fma(d, scale, sum) of these parts of the columns."""
    scale = twice(scale)
    for (first, _), d in zip(parts, found):
        add_scaled(acc, d, scale, first)
