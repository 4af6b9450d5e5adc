"""The layer by two GEMMs of a peer's, with Triton kernels between and behind them, and by Marlin's: needs Triton."""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from ragged_moe.measure import marlin
from ragged_moe.measure.peers import combine
from ragged_moe.runtime.sizes import BF16, I32, Sizes


@triton.jit
def silu_and_mul(x, rows, out, N: tl.constexpr, SIZE: tl.constexpr):
    """out [.., N] = silu(gate) * up of x [.., gate | up], for the rows that are listed."""
    row, column = tl.load(rows + tl.program_id(0)).to(tl.int64), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    gate = tl.load(x + row * (2 * N) + column).to(tl.float32)
    up = tl.load(x + row * (2 * N) + N + column).to(tl.float32)
    tl.store(out + row * N + column, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16))


class TwoGemms:
    """A call of it is the layer. Where the rows lie, and which of them there are, it has for nothing.

    used: the rows of both results that experts here write. places: the row of each of a token's experts, or -1.
    given: by what these rows are multiplied as they are summed.
    """

    def __init__(self, sizes: Sizes, hidden: torch.Tensor, rows: int, used: list, places: list, given: torch.Tensor):
        self.sizes, self.hidden, self.given = sizes, hidden, given
        self.used, self.places = [torch.tensor(x, dtype=I32, device="cuda") for x in (used, places)]
        widths = 2 * sizes.intermediate, sizes.intermediate, sizes.hidden
        self.both, self.c, self.o = [torch.empty(rows, n, dtype=BF16, device="cuda") for n in widths]
        self.counts, self.out = torch.zeros(64, dtype=I32, device="cuda"), torch.empty_like(hidden)

    def up(self) -> None:
        """Multiply tokens by w13 into `both`."""

    def down(self) -> None:
        """Multiply `c` by w2 into `o`."""

    def __call__(self) -> None:
        h, i = self.sizes.hidden, self.sizes.intermediate
        self.up()
        if len(self.used):
            silu_and_mul[len(self.used), i // 512](self.both, self.used, self.c, N=i, SIZE=512)
        self.down()
        grid = len(self.out), h // 1024
        combine[grid](self.o, self.places, self.given, self.counts, self.out, HIDDEN=h, SIZE=1024)


class ListedGemms(TwoGemms):
    """GEMMs that read lists of rows: the result of a token's j-th expert is row token * top_k + j.

    given: as of TwoGemms. block: each expert's rows are padded to a multiple of it.
    """

    def __init__(self, sizes: Sizes, hidden: torch.Tensor, ids: torch.Tensor, given: torch.Tensor, block: int):
        flat = ids.flatten().tolist()
        self.of_experts = [[] for _ in range(sizes.local)]
        for i, e in enumerate(flat):
            if e < sizes.local:
                self.of_experts[e].append(i)
        used = [i for rows in self.of_experts for i in rows]
        places = [i if e < sizes.local else -1 for i, e in enumerate(flat)]
        super().__init__(sizes, hidden, len(flat), used, places, given)
        self.rows = marlin.Rows(self.of_experts, block, len(flat))


class MarlinLayer(ListedGemms):
    """The layer by Marlin, whose second GEMM multiplies by the router's weights, with blocks of this many rows."""

    def __init__(self, gemm: Callable, weights: dict, sizes: Sizes, hidden, ids, given, block: int):
        super().__init__(sizes, hidden, ids, torch.ones(ids.numel(), device="cuda"), block)
        self.gemm, self.weights, self.of_router = gemm, weights, given.flatten().contiguous()

    def up(self) -> None:
        marlin.multiply(self.gemm, self.hidden, self.weights["w13"], self.rows, self.both, self.sizes.top_k)

    def down(self) -> None:
        marlin.multiply(self.gemm, self.c, self.weights["w2"], self.rows, self.o, weights=self.of_router)
