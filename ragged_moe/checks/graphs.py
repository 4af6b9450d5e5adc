"""`python -m ragged_moe check graphs` runs this: maps, counts of replicas, tokens and weights that change between two
replays of a CUDA graph.
"""

import dataclasses
import math

import torch

from ragged_moe.layers.experts import experts
from ragged_moe.reference.experts import mapped
from ragged_moe.reference.layer import draw
from ragged_moe.runtime.sizes import BF16, I32, Sizes

SPARE = 4  # places that hold a second replica of an expert
MAPS = {"no map": 0, "a map": 1, "replicas": 2}


@dataclasses.dataclass
class Case:
    """A call whose operands stay where they are. dims: of the map, 0 without one."""

    sizes: Sizes
    tokens: int
    dims: int

    def __post_init__(self):
        few, k = self.sizes.experts - SPARE, self.sizes.top_k
        self.weights = draw(self.sizes, 1, device="cuda").tensors()[4:]
        self.hidden = torch.zeros(self.tokens, self.sizes.hidden, dtype=BF16, device="cuda")
        self.ids = torch.zeros(self.tokens, k, dtype=I32, device="cuda")
        self.given = torch.zeros(self.tokens, k, device="cuda")
        self.table = torch.zeros((few, 2) if self.dims == 2 else (few,), dtype=I32, device="cuda")
        self.counts = torch.ones(few, dtype=I32, device="cuda")

    def change(self, seed: int) -> torch.Tensor:
        """Write other tokens, weights of the router, numbers, places and counts; return the places of the numbers."""
        g, few = torch.Generator().manual_seed(seed), self.sizes.experts - SPARE
        self.hidden.copy_(torch.randn(self.hidden.shape, generator=g))
        self.given.copy_(torch.rand(self.given.shape, generator=g))
        of_tokens = torch.rand(self.tokens, few, generator=g)
        numbers = of_tokens.topk(self.sizes.top_k, 1).indices.int()
        numbers[torch.rand(numbers.shape, generator=g) < 0.05] = -1
        self.ids.copy_(numbers)
        if not self.dims:
            return numbers
        places = torch.randperm(self.sizes.experts, generator=g).int()
        owners = torch.randperm(few, generator=g)[:SPARE]
        rows = places[:few, None].repeat(1, 2)
        rows[owners, 1] = places[few:]
        self.table.copy_(rows if self.dims == 2 else rows[:, 0])
        self.counts.fill_(1)
        self.counts[owners.cuda()] = 2
        return mapped(numbers, self.table.cpu(), self.counts.cpu() if self.dims == 2 else None).int()

    def __call__(self, out: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        """Call experts by the map, or of these places without one."""
        maps = {"expert_map": self.table} if self.dims and places is None else {}
        if maps and self.dims == 2:
            maps["replica_counts"] = self.counts
        ids = self.ids if places is None else places.cuda()
        return experts(self.hidden, ids, self.given, *self.weights, num_experts=self.sizes.experts, out=out, **maps)


def wrong(case: Case, turns: int) -> str | None:
    """Capture one call, then change what it reads and replay, `turns` times; say what is not as it must be.

    A replay must have the bits of a call, not captured, whose numbers the host has looked up in the map.
    """
    replayed, expected = [torch.empty_like(case.hidden) for _ in range(2)]
    case.change(0)
    for _ in range(2):  # which compiles
        case(replayed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case(replayed)
    before = None
    for turn in range(1, turns + 1):
        places = case.change(turn)
        replayed.fill_(math.nan)
        graph.replay()
        case(expected, places)
        if not torch.equal(replayed.view(torch.int16), expected.view(torch.int16)):
            rows = int((replayed.view(torch.int16) != expected.view(torch.int16)).any(1).sum())
            return f"replay {turn}: {rows} of {case.tokens} tokens have other bits than a call of the same places"
        if not expected.any() or before is not None and torch.equal(before, expected):
            return f"replay {turn}: nothing has changed, so that this says nothing"
        before = expected.clone()
    return None
