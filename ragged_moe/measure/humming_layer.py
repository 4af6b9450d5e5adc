"""The layer by Humming's two GEMMs in both of its forms, with kernels of torch and Triton around them: needs Triton."""

from collections.abc import Callable

import torch

from ragged_moe.measure import humming, marlin
from ragged_moe.measure.marlin_layer import ListedGemms, TwoGemms
from ragged_moe.runtime.sizes import BF16, Sizes


class ContiguousHumming(TwoGemms):
    """The layer by its form `grouped_contiguous`: it copies tokens into the order of the experts itself.

    layers: of w13 and w2, as `humming.layer_of` returns them.
    """

    def __init__(self, layers: dict[str, Callable], sizes: Sizes, hidden, ids, given):
        experts = ids.flatten().cpu()
        entries = experts.sort(stable=True).indices[: int((experts < sizes.local).sum())]  # of topk_ids, by expert
        rows, places = len(entries), torch.full((len(experts),), -1)
        places[entries] = torch.arange(rows)
        counts = torch.bincount(experts[entries], minlength=sizes.local)
        super().__init__(sizes, hidden, rows, list(range(rows)), places.tolist(), given.flatten().contiguous())
        self.bounds = torch.cat((torch.zeros(1, dtype=counts.dtype), counts.cumsum(0))).cuda()
        self.layers, self.tokens = layers, (entries // sizes.top_k).cuda()
        self.a = torch.empty(rows, sizes.hidden, dtype=BF16, device="cuda")

    def up(self) -> None:
        torch.index_select(self.hidden, 0, self.tokens, out=self.a)
        humming.multiply(self.layers["w13"], self.a, self.bounds, self.both)

    def down(self) -> None:
        humming.multiply(self.layers["w2"], self.c, self.bounds, self.o)


class IndexedHumming(ListedGemms):
    """The layer by its form `indexed`, as SGLang 0.5.23 composes it by default. layers: as of ContiguousHumming."""

    def __init__(self, layers: dict[str, Callable], sizes: Sizes, hidden, ids, given):
        blocks = {name: humming.block_of(layer, ids.numel()) for name, layer in layers.items()}
        super().__init__(sizes, hidden, ids, given.flatten().contiguous(), blocks["w13"])
        self.layers, self.rows_down = layers, marlin.Rows(self.of_experts, blocks["w2"], ids.numel())

    def up(self) -> None:
        humming.multiply_listed(self.layers["w13"], self.hidden, self.rows, self.both, self.sizes.top_k)

    def down(self) -> None:
        humming.multiply_listed(self.layers["w2"], self.c, self.rows_down, self.o)
