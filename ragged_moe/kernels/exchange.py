"""What the kernels of expert parallelism share: the window of memory that other ranks write to, and who has an expert.

Every rank has a window, at an address of its own that all ranks can reach, with the same parts at the same offsets. A
rank writes tokens, sums and flags into the others' windows, and reads only its own. A flag is the number of the call,
which each rank counts for itself (`epoch`), so that nothing has to be cleared.
"""

import functools
from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Int32, Int64

from ragged_moe.kernels.ptx import divide, load_relaxed_if, select
from ragged_moe.runtime.sizes import BF16, E4M3, F32, I32
from ragged_moe.runtime.workspace import Part, offsets

MAX_RANKS = 32  # a lane each
DISPATCH, MOST, FREED, COMBINE = 1, 2, 3, 4  # what a kernel was waiting for, in the word that it leaves the host
STAGE = 256  # times the stage, plus the rank
VECTOR = 8  # columns of a thread
MAX_THREADS = 896  # 7168 columns


class Window(NamedTuple):
    """Where in a window each part begins, in bytes. Slot s * most + t is token t of rank s."""

    hidden: int  # e4m3 [ranks * most, H]: tokens that have experts here
    scale: int  # f32 [H/128, ranks * most]
    ids: int  # int32 [ranks * most, k]: local experts; -1 for one that is not here, and in slots without a token
    weights: int  # f32 [ranks * most, k]
    sums: int  # bf16 [ranks, tokens, H]: of each rank's experts, for this rank's tokens
    arrived: int  # int32 [ranks, tokens]: the call whose sums these are
    dispatched: int  # int32 [ranks]: the call whose tokens of that rank are all here
    most: int  # int32 [ranks]: what that rank says is the most tokens of any
    freed: int  # int32 [ranks]: the call whose tokens that rank has read
    epoch: int  # int32: calls that this rank has begun
    counter: int  # int32: CTAs that have sent their tokens
    end: int


class Layout(NamedTuple):
    """Says for how many ranks and what tokens a window is: `tokens` is the most of a rank in any call, k of whose
    experts are local or not.
    """

    ranks: int
    tokens: int
    hidden: int
    top_k: int

    def parts(self) -> list[Part]:
        """The parts of a window, in the order of Window."""
        slots = self.ranks * self.tokens
        return [
            Part("hidden", E4M3, (slots, self.hidden)), Part("scale", F32, (self.hidden // 128, slots)),
            Part("ids", I32, (slots, self.top_k)), Part("weights", F32, (slots, self.top_k)),
            Part("sums", BF16, (slots, self.hidden)), Part("arrived", I32, (slots,)),
            *(Part(name, I32, (self.ranks,)) for name in ("dispatched", "most", "freed")),
            Part("epoch", I32, (1,)), Part("counter", I32, (1,)),
        ]  # fmt: skip

    @property
    def window(self) -> Window:
        """Where each part begins."""
        return window_of(self)

    @property
    def threads(self) -> int:
        """Threads of a CTA that has a token's columns, VECTOR of them a thread at a time."""
        return min(MAX_THREADS, -(-self.hidden // (32 * VECTOR)) * 32)

    @property
    def turns(self) -> int:
        """How often a thread has VECTOR columns of a token."""
        return -(-self.hidden // (VECTOR * self.threads))


@functools.cache
def window_of(layout: Layout) -> Window:
    """The window's parts, one behind the other."""
    return Window(*offsets(layout.parts()))


def owner(ids: Int64, wide: bool, entry: Int32, wanted, local: Int32, ranks: int) -> tuple[Int32, Int32]:
    """Return (rank, local expert) of an entry of topk_ids, int64 if wide; (-1, 0) where not wanted or nobody has it."""
    wanted = select(wanted, 1, 0)
    step = 8 if wide else 4
    expert = load_relaxed_if(ids + Int64(entry) * step, wanted)
    valid = (expert >= 0) & (expert < local * ranks) & (wanted != 0)
    if wide:  # numbers that no int32 has are nobody's, whatever their lower half
        valid = valid & (load_relaxed_if(ids + Int64(entry) * step + 4, wanted) == 0)
    expert = select(valid, expert, 0)
    rank = divide(expert, local)
    return select(valid, rank, -1), expert - rank * local


def votes(rank: Int32, ranks: int) -> list[Int32]:
    """Return for each rank which lanes of the warp have it."""
    return [cute.arch.vote_ballot_sync(rank == i) for i in range(ranks)]
