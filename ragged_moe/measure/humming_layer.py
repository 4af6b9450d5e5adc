"""The layer by Humming's two GEMMs, with kernels of torch and Triton before, between and behind them: needs Triton."""

from collections.abc import Callable

import torch

from ragged_moe.measure import humming
from ragged_moe.measure.marlin_layer import silu_and_mul
from ragged_moe.measure.peers import combine
from ragged_moe.runtime.sizes import BF16, I32, Sizes


class HummingLayer:
    """A call of it is the layer by Humming. Where each token's rows lie it has for nothing; it copies them itself.

    layers: of w13 and w2, as `humming.layer_of` returns them.
    """

    def __init__(self, layers: dict[str, Callable], sizes: Sizes, hidden, ids, given):
        experts = ids.flatten().cpu()
        entries = experts.sort(stable=True).indices[: int((experts < sizes.local).sum())]  # of topk_ids, by expert
        rows, places = len(entries), torch.full((len(experts),), -1)
        places[entries] = torch.arange(rows)
        counts = torch.bincount(experts[entries], minlength=sizes.local)
        self.layers, self.sizes, self.hidden, self.given = layers, sizes, hidden, given.flatten().contiguous()
        self.bounds = torch.cat((torch.zeros(1, dtype=counts.dtype), counts.cumsum(0))).cuda()
        self.tokens, self.places = (entries // sizes.top_k).cuda(), places.to(I32).cuda()
        self.used, self.counts = torch.arange(rows, dtype=I32, device="cuda"), torch.zeros(64, dtype=I32, device="cuda")
        widths = sizes.hidden, 2 * sizes.intermediate, sizes.intermediate, sizes.hidden
        self.a, self.both, self.c, self.o = [torch.empty(rows, n, dtype=BF16, device="cuda") for n in widths]
        self.out = torch.empty_like(hidden)

    def __call__(self) -> None:
        h, i = self.sizes.hidden, self.sizes.intermediate
        torch.index_select(self.hidden, 0, self.tokens, out=self.a)
        humming.multiply(self.layers["w13"], self.a, self.bounds, self.both)
        silu_and_mul[len(self.used), i // 512](self.both, self.used, self.c, N=i, SIZE=512)
        humming.multiply(self.layers["w2"], self.c, self.bounds, self.o)
        grid = len(self.out), h // 1024
        combine[grid](self.o, self.places, self.given, self.counts, self.out, HIDDEN=h, SIZE=1024)
