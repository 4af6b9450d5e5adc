"""`python -m ragged_moe bench layer --json FILE` times the layer, its stages and the peers that are installed
on this GPU.

A timing is CALLS calls back to back between two events, after a fill that flushes L2; the median of --repeats timings,
contestants in random order each time. The calls go round several sets of tokens, with the same weights: those of all
local experts are 1.4 GB. A set has at least one row. Stages are timed apart, each on what the one before left; whole
layers, ours and the peers' (peers.py), as they are called, and as a CUDA graph of all the calls.

Floors: floor.py's copies of the weights of the experts that have rows, and of the rows; for finalise, a copy by torch
of as many bytes as it reads and writes.
"""

import dataclasses
import functools
import itertools
import random
import statistics
import time
from collections.abc import Callable

import torch

from ragged_moe.layers.deepseek_layer import Layer, Space, run
from ragged_moe.measure.contest import GRAPH, Contest
from ragged_moe.measure.floor import Floor
from ragged_moe.measure.markdown import markdown
from ragged_moe.measure.timing import CALLS, flushed
from ragged_moe.reference import layer as d
from ragged_moe.runtime import sizes as p
from ragged_moe.runtime.workspace import Arena

TOKENS = (1, 7, 16, 64, 256, 901, 2048, 4096, 11948, 14107)
FEW = 2048  # largest T whose ratios are averaged apart from those above


@dataclasses.dataclass
class Set:
    """The tokens of a call, its memory, and what it wrote."""

    x: p.Inputs
    space: Space
    left: Space  # its tensors
    output: torch.Tensor
    sizes: list[int]  # rows of each local expert

    @property
    def rows(self) -> int:
        """Rows of all local experts."""
        return sum(self.sizes)

    @property
    def experts(self) -> int:
        """Local experts that have rows."""
        return sum(m > 0 for m in self.sizes)


def draw(layer: Layer, weights: p.Inputs, tokens: int, seed: int) -> Set:
    """Draw a set of tokens and run all stages on it."""
    few = dataclasses.replace(layer.sizes, intermediate=128, local=1)  # the tokens of a layer that is quickly drawn
    drawn = d.draw(few, tokens, seed, 0, "cuda")
    names = "routing_logits", "hidden_states", "hidden_states_scale"
    x = dataclasses.replace(weights, **{name: getattr(drawn, name) for name in names})
    arena = Arena(layer.torch_device)
    space, left = layer.space(tokens, arena), layer.tensors(tokens, arena)
    output = torch.empty(tokens, layer.sizes.hidden, dtype=p.BF16, device="cuda")
    layer.launch(x, space, output)
    return Set(x, space, left, output, left.m_indptr.diff().tolist())


def floors(layer: Layer, sets: list[Set]) -> dict[str, list[Callable]]:
    """Return the calls of the floors, by name, on each of these sets."""
    calls = {}
    for i, form in enumerate(("shares", "interleaved")):
        floor = Floor(i == 1)
        for name in ("GEMM1", "GEMM2"):
            calls[f"floor of {name}, {form}"] = of_stage = []
            for s in sets:
                c, o = s.left.c[: s.rows], s.left.o[: s.rows]
                first = s.x.hidden_states, s.x.gemm1_weights[: s.experts], c
                second = c, s.x.gemm2_weights[: s.experts], o
                of_stage.append(functools.partial(floor, *(first if name == "GEMM1" else second)))
    shapes = [(s.rows + len(s.output), layer.sizes.hidden) for s in sets]
    copies = [torch.empty(shape, dtype=p.BF16, device="cuda") for shape in shapes]
    halves = [x.flatten()[: x.numel() // 2 * 2].view(2, -1) for x in copies]
    calls["copy for finalise"] = [lambda x=x: x[0].copy_(x[1]) for x in halves]
    return calls


def measure(layer: Layer, weights: p.Inputs, tokens: int, repeats: int, peers, rng: random.Random) -> dict:
    """Time the layer, its stages, floors and peers at this T; return the row of the results."""
    drawn = (draw(layer, weights, tokens, seed) for seed in range(10**6))
    sets = list(itertools.islice((s for s in drawn if s.rows), 3 if tokens > 900 else 12))
    first, second = layer.configs(tokens)
    contest = Contest()
    contest.add({"whole": [lambda s=s: run(*s.x.tensors(), 0, 2.5, s.output) for s in sets]})

    def compared(make: Callable) -> tuple[list[Callable], float]:
        """A peer's calls, and by how much its results differ from ours, to see that it does the same work."""
        outputs = [torch.empty_like(s.output) for s in sets]
        made = make([s.x for s in sets], outputs)
        torch.cuda.synchronize()
        x, y = torch.cat(outputs).float(), torch.cat([s.output for s in sets]).float()
        return made, ((x - y).norm() / y.norm()).item()

    for name, make in (peers.contestants(flushed(), [s.sizes for s in sets]) if peers else {}).items():
        contest.admit(name, lambda make=make: compared(make))
    off = contest.difference
    contest.graphs()
    of_stages = {
        "routing": [lambda s=s: layer.route(s.x, s.space) for s in sets],
        "permute": [lambda s=s: layer.permute(s.x, s.space) for s in sets],
        "GEMM1": [lambda s=s: layer.gemm1(s.x, s.space, first) for s in sets],
        "GEMM2": [lambda s=s: layer.gemm2(s.x, s.space, second) for s in sets],
        "finalise": [lambda s=s: layer.finalise(s.space, s.output) for s in sets],
    }
    contest.add({name: of_stages[name] for name in layer.stages(tokens)} | floors(layer, sets))
    us = contest.us(repeats, rng)
    for name in ("GEMM1", "GEMM2"):
        us[f"floor of {name}"] = min(us.pop(f"floor of {name}, {form}") for form in ("shares", "interleaved"))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for call in contest.calls["whole"]:
        call()
    us["host"] = (time.perf_counter() - begin) / CALLS * 1e6
    torch.cuda.synchronize()
    mean = [statistics.mean(getattr(s, name) for s in sets) for name in ("rows", "experts")]
    row = {"T": tokens, "rows": mean[0], "experts": mean[1], "us": us, "GEMM1": str(first), "GEMM2": str(second)}
    row |= {"difference": off, "refused": contest.refused, "peers": list(off)}
    for mode in ("", GRAPH):
        best = min(off, key=lambda name: us[name + mode], default=None)
        row["best" + mode] = best
        row["ratio" + mode] = us["whole" + mode] / us[best + mode] if best else None
    return row


# --------------------------------------------------------------------------------------------------------------- report

COLUMNS = (
    "routing", "permute", "GEMM1", "floor of GEMM1", "GEMM2", "floor of GEMM2", "finalise", "copy for finalise",
    "whole", "whole, in a graph", "host",
)  # fmt: skip


def table(rows: list[dict]) -> str:
    """Return a table of the stages in markdown; times are in microseconds."""
    head = ["T", "rows", "experts", *COLUMNS]
    cells = [[f"{x['us'][name]:.1f}" if name in x["us"] else "" for name in COLUMNS] for x in rows]
    return markdown(head, [[str(x["T"]), f"{x['rows']:.0f}", f"{x['experts']:.0f}", *c] for x, c in zip(rows, cells)])


def peer_table(rows: list[dict], mode: str) -> str:
    """Return a table of whole layers in markdown: ours, the peers', ours over the best. mode: "" (called) or GRAPH."""
    names = list(dict.fromkeys(name for x in rows for name in x["peers"]))
    body = []
    for x in rows:
        us = [f"{x['us'][name + mode]:.1f}" if name in x["peers"] else "" for name in ("whole", *names)]
        us[0] = f"{x['us']['whole' + mode]:.1f}"
        ratio = x["ratio" + mode]
        body.append([str(x["T"]), *us, f"{ratio:.3f}" if ratio else ""])
    return markdown(["T", "this", *names, "ratio to the best"], body)


def results(tokens: list[int], repeats: int, rng: random.Random, wanted: bool):
    """Yield the row of each T. wanted: whether the peers that are installed are timed, too."""
    sizes = p.Sizes()
    layer = Layer(torch.device("cuda", torch.cuda.current_device()), sizes)
    weights = d.draw(sizes, 1, device="cuda")
    peers = None
    if wanted:
        from ragged_moe.measure.peers import Peers  # needs Triton, which torch for CUDA brings

        peers = Peers(weights)
    for count in tokens:
        yield measure(layer, weights, count, repeats, peers, rng)


def tables(rows: list[dict]) -> str:
    """Return all tables of these rows: stages, and whole layers beside the peers'."""
    of_peers = [f"whole layers{mode or ', as called'}\n\n{peer_table(rows, mode)}" for mode in ("", GRAPH)]
    refused = [f"T = {x['T']}, {name}: {why}" for x in rows for name, why in x["refused"].items()]
    return "\n\n".join([table(rows), *(of_peers if any(x["peers"] for x in rows) else ()), *refused])
