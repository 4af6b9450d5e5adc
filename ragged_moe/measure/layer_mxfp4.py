"""`python -m ragged_moe bench layer --format mxfp4` times ragged_moe.experts on this Hopper GPU with MXFP4
weights, W4A16 and W4A8.

Both have the same weights, packed for each: gpt-oss-20b's sizes, experts, biases and SwiGLU, 4 experts a token, drawn
at random. A timing is as layer.py's.
"""

import random

import torch

from ragged_moe.layers.experts import experts
from ragged_moe.measure.contest import GRAPH, Contest, of_sets
from ragged_moe.measure.grouped_gemm_mxfp4 import W4A8, W4A16, packed
from ragged_moe.measure.markdown import markdown
from ragged_moe.reference.layer import distance
from ragged_moe.runtime.sizes import BF16, F32, I32

TOKENS = 64, 256, 512, 1024, 2048, 4096, 8192, 16384
EXPERTS, TOP_K, SIZE = 32, 4, 2880  # of a layer; of a token; H and I
SWIGLU = {"gate_first": True, "limit": 7.0, "alpha": 1.702, "shift": 1.0}
SETS = 3  # of tokens: weights alone are 0.4 GB
PACKED_FOR = {W4A16: None, W4A8: "fp8"}


def weights_of(activation: str | None) -> dict[str, torch.Tensor]:
    """The layer's weights and biases, as ragged_moe.experts takes them."""
    given, g = {}, torch.Generator("cuda").manual_seed(2)
    for seed, (name, n) in enumerate((("w13", 2 * SIZE), ("w2", SIZE))):
        given |= dict(zip((name, f"{name}_scale", f"{name}_global"), packed(EXPERTS, n, SIZE, seed, activation)))
        given[f"{name}_bias"] = torch.randn(EXPERTS, n, generator=g, device="cuda")
    return given


def contestants(tokens: int, seed: int, weights: dict[str, dict]) -> tuple[dict, dict[str, torch.Tensor]]:
    """Return calls without arguments, and where they leave their results, by name."""
    g = torch.Generator("cuda").manual_seed(seed)
    hidden = (torch.randn(tokens, SIZE, generator=g, device="cuda") / 16).to(BF16)
    given, ids = torch.randn(tokens, EXPERTS, generator=g, device="cuda").topk(TOP_K)
    routed = hidden, ids.to(I32), given.softmax(1).to(F32)
    outs = {name: torch.empty_like(hidden) for name in weights}
    calls = {name: lambda name=name: experts(*routed, **weights[name], **SWIGLU, out=outs[name]) for name in weights}
    return calls, outs


def measure(tokens: int, weights: dict[str, dict], repeats: int, rng: random.Random) -> dict:
    """Return the row of the results at this T: medians in us a layer, in CUDA graphs and as called."""
    made = [contestants(tokens, seed, weights) for seed in range(SETS)]
    contest, (calls, outs) = Contest(), made[0]
    contest.add(of_sets([calls for calls, _ in made]))
    for call in calls.values():
        call()
    contest.graphs()
    us = contest.us(repeats, rng)
    return {"T": tokens, "us": us, "difference": {W4A8: distance(outs[W4A8], outs[W4A16])}}


def results(tokens: list[int], repeats: int, rng: random.Random):
    """Yield the row of each T."""
    weights = {name: weights_of(activation) for name, activation in PACKED_FOR.items()}
    for count in tokens:
        yield measure(count, weights, repeats, rng)


def table(rows: list[dict]) -> str:
    """Return a table of whole layers in markdown; times are in microseconds."""
    head = ["T", "W4A16, in a graph", "called", "W4A8, in a graph", "called", "W4A8 / W4A16, in a graph", "called"]
    lines = []
    for x in rows:
        us = [x["us"][name + mode] for name in (W4A16, W4A8) for mode in (GRAPH, "")]
        lines.append([str(x["T"]), *(f"{y:.1f}" for y in us), *(f"{us[2 + i] / us[i]:.2f}" for i in range(2))])
    return markdown(head, lines)


tables = table
