"""`python -m ragged_moe bench layer --format nvfp4` times ragged_moe.experts on this GPU with NVFP4 weights; --format
mxfp4, on Hopper, with MXFP4 weights, W4A16 and W4A8. contest.py says how.

nvfp4: sizes are those of MODELS; tokens are routed by random logits, DeepSeek-V3's by its groups. Beside it experts in
FP8, and the layer by two GEMMs of Marlin's, with each block size, composed as SGLang's fused_marlin_moe does,
and by Humming's in both of its forms. They get their tables of rows for nothing; what is before, between and behind
their GEMMs are kernels of Triton and torch (marlin_layer.py, humming_layer.py, peers.py). The floor is two kernels that
only load the packed weights of the experts that have rows, GEMM1's and GEMM2's.

mxfp4: both have the same weights, packed for each: gpt-oss-20b's sizes, experts, biases and SwiGLU, 4 experts a token.
"""

import functools
import itertools
import statistics
from collections.abc import Callable

import torch

from ragged_moe.layers.experts import experts
from ragged_moe.measure import humming, marlin
from ragged_moe.measure.contest import FP8, GRAPH, LOADS, OURS, W4A8, W4A16, Contest, Contestant, Peers
from ragged_moe.measure.experts import DEEPSEEK, MODELS
from ragged_moe.measure.floor import Floor
from ragged_moe.measure.humming import HUMMING, LISTED
from ragged_moe.measure.markdown import Column, figure, ratio, table
from ragged_moe.measure.marlin import BEST, MARLIN
from ragged_moe.measure.operands import checkpoint_nvfp4, draw_mxfp4, draw_nvfp4
from ragged_moe.reference.layer import draw, route
from ragged_moe.runtime.sizes import BF16, F32, I32, Sizes

GPT_OSS = Sizes(2880, 2880, 32, 4, 32)  # of ragged_moe.experts, which pads; not of Layer
SWIGLU = {"gate_first": True, "limit": 7.0, "alpha": 1.702, "shift": 1.0}  # gpt-oss's
B_GLOBAL = 2.0**-6  # of NVFP4 weights
T: Column = ("T", figure("T", "d"))


def drawn_by(sizes: Sizes, draw_packed: Callable) -> dict[str, tuple]:
    """Draw w13 and w2 by experts, N, K and a seed, each another one."""
    shapes = {"w13": (2 * sizes.intermediate, sizes.hidden), "w2": (sizes.hidden, sizes.intermediate)}
    return {name: draw_packed(sizes.local, *shape, seed) for seed, (name, shape) in enumerate(shapes.items())}


def weights_of(sizes: Sizes, draw_packed: Callable) -> list[dict[str, tuple]]:
    """Draw w13 and w2; return for each form in which `draw_packed` returns weights those of both, by name."""
    drawn = drawn_by(sizes, draw_packed)
    return [dict(zip(drawn, of_form)) for of_form in zip(*drawn.values())]


def arguments(packed: dict[str, tuple]) -> dict[str, torch.Tensor]:
    """Return packed weights as ragged_moe.experts names them."""
    return {f"{name}{end}": x for name, of in packed.items() for end, x in zip(("", "_scale", "_global"), of)}


class Nvfp4Layer:
    """The contests of a model's experts with NVFP4 weights."""

    tokens = 1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096

    def __init__(self, peers: Peers, model: str):
        self.model, self.sizes, self.marlin = model, MODELS[model], peers.marlin
        packed, self.of_marlin = weights_of(self.sizes, functools.partial(draw_nvfp4, b_global=B_GLOBAL))
        self.humming = {}
        if peers.humming:
            checkpoint = drawn_by(self.sizes, functools.partial(checkpoint_nvfp4, b_global=B_GLOBAL))
            self.humming = {name: humming.layer_of(peers.humming, *of) for name, of in checkpoint.items()}
        self.packed, self.fp8 = arguments(packed), draw(self.sizes, 1, device="cuda").tensors()[4:]

    def contestants(self, tokens: int, seed: int) -> tuple[dict[str, Contestant], int]:
        """Draw tokens; return the contestants by name, and the rows of local experts."""
        g, sizes = torch.Generator("cuda").manual_seed(seed), self.sizes
        hidden = torch.randn(tokens, sizes.hidden, generator=g, device="cuda").to(BF16)
        logits = torch.randn(tokens, sizes.experts, generator=g, device="cuda")
        if sizes == DEEPSEEK:
            ids, given = route(logits, torch.zeros(sizes.experts, device="cuda", dtype=BF16), 2.5)
        else:
            given, ids = logits.softmax(1).topk(sizes.top_k)
        ids, given = ids.to(I32), given.to(F32).contiguous()
        out, of_fp8, of_floor = [torch.empty_like(hidden) for _ in range(3)]
        used, call = len(ids[ids < sizes.local].unique()), functools.partial(experts, hidden, ids, given)
        widths = 2 * sizes.intermediate, sizes.intermediate
        loaded = [torch.empty(used * n * sizes.hidden * 9 // 16, dtype=torch.uint8, device="cuda") for n in widths]
        ours = functools.partial(call, **self.packed, gate_first=True, num_experts=sizes.experts, out=out)
        made = {
            OURS: Contestant(ours, lambda: out),
            FP8: Contestant(functools.partial(call, *self.fp8, num_experts=sizes.experts, out=of_fp8)),
            LOADS: Contestant(lambda: [Floor(False)(hidden, b, of_floor) for b in loaded]),
        }
        if self.marlin:
            from ragged_moe.measure.marlin_layer import MarlinLayer  # needs Triton, which torch for CUDA brings

            for block in marlin.BLOCKS:
                layer = MarlinLayer(self.marlin, self.of_marlin, sizes, hidden, ids, given, block)
                made[f"{MARLIN} {block}"] = Contestant(layer, lambda layer=layer: layer.out, OURS)
        if self.humming:
            from ragged_moe.measure.humming_layer import ContiguousHumming, IndexedHumming

            for name, make in ((HUMMING, ContiguousHumming), (LISTED, IndexedHumming)):
                layer = make(self.humming, sizes, hidden, ids, given)
                made[name] = Contestant(layer, lambda layer=layer: layer.out, OURS)
        return made, int((ids < sizes.local).sum())

    def contest(self, tokens: int) -> Contest:
        """Draw sets of tokens that have rows here, and add all contestants."""
        drawn = (self.contestants(tokens, seed) for seed in range(10**6))
        made = list(itertools.islice((x for x in drawn if x[1]), 3 if tokens > 900 else 8))
        contest = Contest({"model": self.model, "T": tokens, "rows": statistics.mean(rows for _, rows in made)})
        contest.add([contestants for contestants, _ in made])
        contest.graphs(called=(OURS, FP8))
        return contest

    def derived(self, row: dict, contest: Contest) -> dict:
        """Add Marlin's times, by its own block and by the best."""
        if self.marlin:
            row["us"] |= marlin.chosen(row["us"], round(row["rows"]), self.sizes.local, GRAPH)
        return {}


class Mxfp4Layer:
    """The contests of experts with MXFP4 weights."""

    tokens = 64, 256, 512, 1024, 2048, 4096, 8192, 16384

    def __init__(self, peers: Peers):
        g, biases = torch.Generator("cuda").manual_seed(2), {}
        for name, n in (("w13", 2 * GPT_OSS.intermediate), ("w2", GPT_OSS.hidden)):
            biases[f"{name}_bias"] = torch.randn(GPT_OSS.local, n, generator=g, device="cuda")
        forms = weights_of(GPT_OSS, draw_mxfp4)
        self.options = {name: arguments(of) | biases | SWIGLU for name, of in zip((W4A16, W4A8), forms)}

    def contestants(self, tokens: int, seed: int) -> dict[str, Contestant]:
        """Draw tokens; return both by name."""
        g = torch.Generator("cuda").manual_seed(seed)
        hidden = (torch.randn(tokens, GPT_OSS.hidden, generator=g, device="cuda") / 16).to(BF16)
        given, ids = torch.randn(tokens, GPT_OSS.local, generator=g, device="cuda").topk(GPT_OSS.top_k)
        call = functools.partial(experts, hidden, ids.to(I32), given.softmax(1).to(F32))
        outs = {name: torch.empty_like(hidden) for name in self.options}
        calls = {name: functools.partial(call, **x, out=outs[name]) for name, x in self.options.items()}
        like = {W4A16: None, W4A8: W4A16}
        return {name: Contestant(calls[name], lambda out=outs[name]: out, like[name]) for name in calls}

    def contest(self, tokens: int) -> Contest:
        """Draw three sets of tokens, as weights alone are 0.4 GB, and add both."""
        contest = Contest({"T": tokens})
        contest.add([self.contestants(tokens, seed) for seed in range(3)])
        contest.graphs()
        return contest

    def derived(self, row: dict, contest: Contest) -> dict:
        """Return nothing: the times say all."""
        return {}


def nvfp4_table(rows: list[dict]) -> str:
    """Return a table of whole layers in markdown; times are in microseconds."""
    ours, fp8, loads = OURS + GRAPH, FP8 + GRAPH, LOADS + GRAPH
    columns = [
        ("model", lambda x: x["model"]), T,
        ("rows", figure("rows", ".0f")), ("NVFP4, in a graph", figure(ours)), ("called", figure(OURS)),
        ("FP8, in a graph", figure(fp8)), ("called", figure(FP8)), ("/ FP8", ratio(ours, fp8)),
        ("Marlin", figure(MARLIN)), ("best block", figure(BEST)), ("/ best", ratio(ours, BEST)),
    ]  # fmt: skip
    for name in HUMMING, LISTED:
        columns += [(name, figure(name + GRAPH)), ("ratio", ratio(ours, name + GRAPH))]
    return table([*columns, ("loads", figure(loads)), ("/ loads", ratio(ours, loads))], rows)


def of_humming(row: dict) -> float:
    """Return the time of Humming's faster form, in a graph."""
    return min(row["us"][name + GRAPH] for name in (HUMMING, LISTED))


def mxfp4_table(rows: list[dict]) -> str:
    """Return a table of whole layers in markdown; times are in microseconds."""
    names = [name + mode for name in (W4A16, W4A8) for mode in (GRAPH, "")]
    heads = "W4A16, in a graph", "called", "W4A8, in a graph", "called"
    times = [(head, figure(name)) for head, name in zip(heads, names)]
    ratios = ("W4A8 / W4A16, in a graph", GRAPH), ("called", "")
    return table([T, *times, *((head, ratio(W4A8 + mode, W4A16 + mode)) for head, mode in ratios)], rows)
