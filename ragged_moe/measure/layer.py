"""`python -m ragged_moe bench layer --json FILE` times the layer, its stages and the peers that are installed
on this GPU: contest.py says how.

The calls go round several sets of tokens, with the same weights: those of all local experts are 1.4 GB. A set has at
least one row. Stages are timed apart, each on what the one before left; whole layers, ours and the peers' (peers.py),
as they are called, and as a CUDA graph of all the calls.

Floors: floor.py's copies of the weights of the experts that have rows, and of the rows; for finalise, a copy by torch
of as many bytes as it reads and writes.
"""

import dataclasses
import functools
import itertools
import statistics
import time
from collections.abc import Callable

import torch

from ragged_moe.layers.deepseek_layer import Layer, Space, run
from ragged_moe.measure.contest import GRAPH, Contest, Contestant, Peers, best
from ragged_moe.measure.floor import Floor
from ragged_moe.measure.markdown import figure, table
from ragged_moe.measure.timing import CALLS, flushed
from ragged_moe.reference import layer as d
from ragged_moe.runtime import sizes as p
from ragged_moe.runtime.workspace import Arena

TOKENS = (1, 7, 16, 64, 256, 901, 2048, 4096, 11948, 14107)
FEW = 2048  # largest T whose ratios are averaged apart from those above
WHOLE = "whole"
FORMS = {"shares": False, "interleaved": True}  # of the kernel that only loads
TIMES = (
    "routing", "permute", "GEMM1", "floor of GEMM1", "GEMM2", "floor of GEMM2", "finalise", "copy for finalise",
    WHOLE, WHOLE + GRAPH, "host",
)  # fmt: skip


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


class WholeLayer:
    """The contests of the layer with FP8 weights."""

    tokens = TOKENS

    def __init__(self, peers: Peers):
        self.layer = Layer(torch.device("cuda", torch.cuda.current_device()), p.Sizes())
        self.weights, self.peers = d.draw(self.layer.sizes, 1, device="cuda"), None
        if peers.installed:
            from ragged_moe.measure.peers import Peers as OfLayer  # needs Triton, which torch for CUDA brings

            self.peers = OfLayer(self.weights)

    def draw(self, tokens: int, seed: int) -> Set:
        """Draw a set of tokens and run all stages on it."""
        layer = self.layer
        few = dataclasses.replace(layer.sizes, intermediate=128, local=1)  # the tokens of a layer that is quickly drawn
        drawn, names = d.draw(few, tokens, seed, 0, "cuda"), ("routing_logits", "hidden_states", "hidden_states_scale")
        x = dataclasses.replace(self.weights, **{name: getattr(drawn, name) for name in names})
        arena = Arena(layer.torch_device)
        space, left = layer.space(tokens, arena), layer.tensors(tokens, arena)
        output = torch.empty(tokens, layer.sizes.hidden, dtype=p.BF16, device="cuda")
        layer.launch(x, space, output)
        return Set(x, space, left, output, left.m_indptr.diff().tolist())

    def contest(self, tokens: int) -> Contest:
        """Draw sets of tokens and add whole layers, and stages with their floors."""
        drawn = (self.draw(tokens, seed) for seed in range(10**6))
        sets = list(itertools.islice((s for s in drawn if s.rows), 3 if tokens > 900 else 12))
        mean = {name: statistics.mean(getattr(s, name) for s in sets) for name in ("rows", "experts")}
        configs = dict(zip(("GEMM1", "GEMM2"), map(str, self.layer.configs(tokens))))
        contest = Contest({"T": tokens} | mean | configs)
        wholes = [functools.partial(run, *s.x.tensors(), 0, 2.5, s.output) for s in sets]
        contest.add([{WHOLE: Contestant(call, lambda s=s: s.output)} for call, s in zip(wholes, sets)])
        of_peers = self.peers.contestants(flushed(), [s.sizes for s in sets]) if self.peers else {}
        for name, make in of_peers.items():
            contest.admit(name, lambda make=make: of_peer(make, sets))
        contest.graphs()
        contest.add([self.stages(s) for s in sets])
        return contest

    def stages(self, s: Set) -> dict[str, Contestant]:
        """Return the stages that a call of this set launches, and their floors."""
        layer, x, c, o = self.layer, s.x, s.left.c[: s.rows], s.left.o[: s.rows]
        first, second = layer.configs(len(s.output))
        calls = {
            "routing": lambda: layer.route(x, s.space), "permute": lambda: layer.permute(x, s.space),
            "GEMM1": lambda: layer.gemm1(x, s.space, first), "GEMM2": lambda: layer.gemm2(x, s.space, second),
            "finalise": lambda: layer.finalise(s.space, s.output),
        }  # fmt: skip
        calls = {name: calls[name] for name in layer.stages(len(s.output))}
        w13, w2 = x.gemm1_weights[: s.experts], x.gemm2_weights[: s.experts]
        for form, interleaved in FORMS.items():
            floor = Floor(interleaved)
            calls[f"floor of GEMM1, {form}"] = functools.partial(floor, x.hidden_states, w13, c)
            calls[f"floor of GEMM2, {form}"] = functools.partial(floor, c, w2, o)
        moved = torch.empty(2, (s.rows + len(s.output)) * layer.sizes.hidden // 2, dtype=p.BF16, device="cuda")
        calls["copy for finalise"] = lambda: moved[0].copy_(moved[1])
        return {name: Contestant(call) for name, call in calls.items()}

    def derived(self, row: dict, contest: Contest) -> dict:
        """Add the floors and the host's time; return the ratios to the best peer, as called and in a graph."""
        us, names = row["us"], list(contest.difference)
        for gemm in ("GEMM1", "GEMM2"):
            us[f"floor of {gemm}"] = min(us.pop(f"floor of {gemm}, {form}") for form in FORMS)
        us["host"] = host_us(contest.calls[WHOLE])
        found = {"peers": names}
        for mode in ("", GRAPH):
            of = {name: us[name + mode] for name in names}
            peer = best(of, names)
            found |= {"best" + mode: peer, "ratio" + mode: us[WHOLE + mode] / of[peer] if peer else None}
        return found


def of_peer(make: Callable, sets: list[Set]) -> list[Contestant]:
    """Return a peer's calls, made by a function of inputs and outputs of all sets."""
    outputs = [torch.empty_like(s.output) for s in sets]
    calls = make([s.x for s in sets], outputs)
    return [Contestant(call, lambda out=out: out, WHOLE) for call, out in zip(calls, outputs)]


def host_us(calls: list[Callable]) -> float:
    """Return how many microseconds the host takes for one of these calls, of CALLS."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for call in calls:
        call()
    took = time.perf_counter() - begin
    torch.cuda.synchronize()
    return took / CALLS * 1e6


# --------------------------------------------------------------------------------------------------------------- report


def stage_table(rows: list[dict]) -> str:
    """Return a table of the stages in markdown; times are in microseconds."""
    counts = [(name, lambda x, name=name: f"{x[name]:.0f}") for name in ("T", "rows", "experts")]
    return table([*counts, *((name, figure(name)) for name in TIMES)], rows)


def peer_table(rows: list[dict], mode: str) -> str:
    """Return a table of whole layers in markdown: ours, the peers', ours over the best. mode: "" (called) or GRAPH."""
    names = dict.fromkeys(name for x in rows for name in x["peers"])
    of_peers = [(name, figure(name + mode)) for name in names]
    ratio = "ratio to the best", figure("ratio" + mode, ".3f")
    return table([("T", figure("T", "d")), ("this", figure(WHOLE + mode)), *of_peers, ratio], rows)


def tables(rows: list[dict]) -> str:
    """Return all tables of these rows: stages, and whole layers beside the peers'."""
    of_peers = [f"whole layers{mode or ', as called'}\n\n{peer_table(rows, mode)}" for mode in ("", GRAPH)]
    refused = [f"T = {x['T']}, {name}: {why}" for x in rows for name, why in x["refused"].items()]
    return "\n\n".join([stage_table(rows), *(of_peers if any(x["peers"] for x in rows) else ()), *refused])
