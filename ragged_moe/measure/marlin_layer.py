"""The layer by Marlin's two GEMMs, with Triton kernels between and behind them: needs Triton."""

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


class MarlinLayer:
    """A call of it is the layer by Marlin, with blocks of this many rows."""

    def __init__(self, gemm: Callable, sizes: Sizes, weights: dict, hidden, ids, given, block: int):
        tokens, flat = len(hidden), ids.flatten().tolist()
        of_experts = [[] for _ in range(sizes.local)]
        for i, e in enumerate(flat):
            if e < sizes.local:
                of_experts[e].append(i)
        total, used = len(flat), [i for rows in of_experts for i in rows]
        self.gemm, self.sizes, self.weights, self.hidden = gemm, sizes, weights, hidden
        self.rows, self.given = marlin.Rows(of_experts, block, total), given.flatten().contiguous()
        self.used, self.ones = torch.tensor(used, dtype=I32, device="cuda"), torch.ones(total, device="cuda")
        self.places = torch.tensor([i if e < sizes.local else -1 for i, e in enumerate(flat)], dtype=I32, device="cuda")
        self.both = torch.empty(total, 2 * sizes.intermediate, dtype=BF16, device="cuda")
        self.c = torch.empty(total, sizes.intermediate, dtype=BF16, device="cuda")
        self.o = torch.empty(total, sizes.hidden, dtype=BF16, device="cuda")
        self.counts = torch.zeros(64, dtype=I32, device="cuda")
        self.out = torch.empty(tokens, sizes.hidden, dtype=BF16, device="cuda")

    def __call__(self) -> None:
        h, i, top_k = self.sizes.hidden, self.sizes.intermediate, self.sizes.top_k
        marlin.multiply(self.gemm, self.hidden, self.weights["w13"], self.rows, self.both, top_k)
        if len(self.used):
            silu_and_mul[len(self.used), i // 512](self.both, self.used, self.c, N=i, SIZE=512)
        marlin.multiply(self.gemm, self.c, self.weights["w2"], self.rows, self.o, weights=self.given)
        grid = len(self.out), h // 1024
        combine[grid](self.o, self.places, self.ones, self.counts, self.out, HIDDEN=h, SIZE=1024)
