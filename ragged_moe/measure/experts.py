"""`python -m ragged_moe bench experts --json FILE` times ragged_moe.experts and ragged_moe.batched_experts at
the sizes of models.

A timing is CALLS calls back to back between two events, after a fill that flushes L2; the median of --repeats timings,
contestants in random order each time. The calls go round SETS sets of tokens, with the same weights. Tokens are bf16
and choose their experts by ragged_moe.route from random logits, before the clock starts.

    experts            from tokens in bf16 to their sums, as called, and in a CUDA graph of all the calls
    layer              ragged_moe.run, at DeepSeek-V3's sizes, which routes from logits likewise: for the same rows from
    e4m3 route              the choice from f32 logits, with a bias, as DeepSeek-V3's without groups
    two GEMMs          GEMM1, with SwiGLU and its quantisation in it, and GEMM2, of these launches
    batched            ragged_moe.batched_experts on the same rows, in e4m3, each expert with room for as many as any
    has DeepGEMM ...       its two grouped GEMMs alone, on tokens that are quantised and laid out for it beforehand:
    SwiGLU,
                       quantisation, permutation and sums, which a stack pays for, are for nothing
    SGLang             its Triton fused MoE from tokens in e4m3 to their sums, under the fastest of its configs for this
                       GPU (ragged_moe.measure.fused_moe); quantisation of tokens and its lists of rows are for nothing

Peers' results are compared with these kernels', to see that they do the same work.
"""

import dataclasses
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch

from ragged_moe.kernels.config import Activation
from ragged_moe.kernels.program import OFTEN
from ragged_moe.layers.batched_experts import batched_experts
from ragged_moe.layers.deepseek_layer import layer_of, run
from ragged_moe.layers.experts import At, experts, launch, quantise_program
from ragged_moe.layers.route import route
from ragged_moe.measure import grouped_gemm
from ragged_moe.measure.contest import GRAPH, Contest, told
from ragged_moe.measure.markdown import markdown
from ragged_moe.measure.timing import captured, elapsed, flushed, need_gpu, record, turns
from ragged_moe.reference import layer as d
from ragged_moe.runtime import sizes as p
from ragged_moe.runtime.workspace import Arena
from ragged_moe.torch_ops import experts_out_op

DEEPSEEK = p.Sizes()
MODELS = {
    "DeepSeek-V3, 32 of 256 experts": DEEPSEEK,
    "Qwen3-235B, 128 experts": p.Sizes(4096, 1536, 128, 8, 128),
    "GLM-4.5, 160 experts": p.Sizes(5120, 1536, 160, 8, 160),
    "Kimi-K2, 48 of 384 experts": p.Sizes(7168, 2048, 48, 8, 384),
}
TOKENS = 1, 16, 128, 1024, 4096
OF_LAYER = 1, 16, 64, 128, 1024, 2048, 4096  # of DeepSeek-V3, whose layer there is to compare with
SETS = 3
GEMMS = "two GEMMs"
PEERS = "DeepGEMM contiguous", "DeepGEMM masked"
SGLANG = "SGLang"
FAR = 0.05  # of the norm: SGLang rounds GEMM1's results to bf16 before SwiGLU


class Set:
    """Tokens, what they chose, and what the launches left of them. weights: w13, its scale, w2, its scale."""

    def __init__(self, sizes: p.Sizes, weights: tuple, tokens: int, seed: int):
        device = weights[0].device
        g = torch.Generator(device).manual_seed(seed)
        self.sizes, self.weights, self.tokens = sizes, weights, tokens
        self.hidden = torch.randn(tokens, sizes.hidden, device=device, generator=g).to(p.BF16)
        self.logits = torch.randn(tokens, sizes.experts, device=device, generator=g)
        self.bias = torch.randn(sizes.experts, device=device, generator=g) / 32
        self.given = self.choose()
        self.out = torch.empty(tokens, sizes.hidden, dtype=p.BF16, device=device)
        self.layer = layer_of(device, sizes, Activation(), True)
        arena = Arena(device)
        self.space, self.left = self.layer.space(tokens, arena), self.layer.tensors(tokens, arena)
        x = p.Inputs(None, None, self.hidden, None, *weights)
        launch(self.layer, x, *self.given, self.space, self.out)
        at = self.hidden.data_ptr(), self.space.quantised, self.space.quantised_scale, 0
        quantise_program(device)(*at, tokens, sizes.hidden, self.layer.device.stream())  # if permute did it, for peers
        at = At(self.space.quantised, self.hidden.shape), At(self.space.quantised_scale)
        self.x = dataclasses.replace(x, hidden_states=at[0], hidden_states_scale=at[1])
        blocks = sizes.hidden // 128
        self.scale = self.left.quantised_scale.flatten()[: blocks * tokens].view(blocks, tokens)
        self.counts = self.left.m_indptr.diff()
        self.rows = int(self.left.m_indptr[-1])

    def choose(self) -> tuple[torch.Tensor, torch.Tensor]:
        """topk_ids and topk_weights."""
        groups = (8, 4) if self.sizes == DEEPSEEK else (1, 1)
        return route(
            self.logits, self.sizes.top_k, scoring="sigmoid", bias=self.bias, num_expert_group=groups[0],
            topk_group=groups[1], routed_scaling_factor=2.5,
        )  # fmt: skip

    def run(self) -> None:
        """The layer, of tokens in e4m3."""
        hidden = self.left.quantised[: self.tokens], self.scale
        run(self.logits, self.bias, *hidden, *self.weights, 0, 2.5, self.out)

    def experts(self) -> None:
        """ragged_moe.experts."""
        experts(self.hidden, *self.given, *self.weights, num_experts=self.sizes.experts, out=self.out)

    def gemms(self) -> None:
        """GEMM1 and GEMM2 of ragged_moe.experts, on what the launches before them left."""
        first, second = self.layer.configs(self.tokens)
        self.layer.gemm1(self.x, self.space, first)
        self.layer.gemm2(self.x, self.space, second)

    def fused_moe(self, sglang: "SGLang", pair: tuple[dict, dict]) -> tuple[Callable, torch.Tensor]:
        """A call of SGLang's fused MoE under a pair of configs, and what it writes."""
        from ragged_moe.measure.fused_moe import FusedMoe, lists

        (ids, chosen), local = self.given, self.sizes.local
        ids = torch.where(ids < local, ids, -1).int()
        operands = self.left.quantised[: self.tokens], self.scale.T, *sglang.gate_first, *self.weights[2:]
        of_tiles, out = lists(ids, local, pair[0]["BLOCK_SIZE_M"]), torch.empty_like(self.out)
        return FusedMoe(sglang.kernels, operands, (ids, chosen), of_tiles, out, pair, sglang.memory), out

    def tokens_of_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows' tokens in e4m3 and their scales [H/128, rows]."""
        rows = self.left.rows[: self.rows].long()
        values = self.left.quantised.view(torch.uint8)[rows].view(p.E4M3)
        return values, self.scale[:, rows].contiguous()

    def batched(self) -> Callable:
        """A call of ragged_moe.batched_experts on the same rows."""
        e, h, most = self.sizes.local, self.sizes.hidden, max(1, int(self.counts.max()))
        values, scales = self.tokens_of_rows()
        there = torch.arange(most, device=values.device) < self.counts[:, None]
        hidden = torch.zeros(e, most, h, dtype=torch.uint8, device=values.device)
        hidden[there] = values.view(torch.uint8)
        scale = torch.zeros(e, h // 128, most, device=values.device)
        scale.mT[there] = scales.t()
        out = torch.empty(e, most, h, dtype=p.BF16, device=values.device)
        hidden, counts, mean = hidden.view(p.E4M3), self.counts.int(), max(1, self.rows // e)
        return lambda: batched_experts(hidden, counts, *self.weights, hidden_scale=scale.mT, expected_m=mean, out=out)

    def deep_gemm(self, make: Callable) -> tuple[Callable, float]:
        """A call of DeepGEMM's two grouped GEMMs, and how far its results are from this one's.

        make: ragged_moe.measure.grouped_gemm.deep_gemm_contiguous or deep_gemm_masked.
        """
        h, i, m_indptr = self.sizes.hidden, self.sizes.intermediate, self.left.m_indptr
        sizes = tuple(self.counts.tolist())
        w13, w13_scale, w2, w2_scale = self.weights
        c, c_scale = self.left.c[: self.rows], self.left.c_scale[:, : self.rows].contiguous()
        o = self.left.o[: self.rows]
        calls = []
        for n, k, a, a_scale, b, b_scale in ((2 * i, h, *self.tokens_of_rows(), w13, w13_scale),
                                             (h, i, c, c_scale, w2, w2_scale)):  # fmt: skip
            row = grouped_gemm.Row("", sizes, n, k)
            calls.append(make(row, grouped_gemm.Inputs(a, a_scale, b, b_scale, m_indptr, o)))
            calls[-1][0]()
        (first, _), (second, read) = calls
        off = ((read().float() - o.float()).norm() / o.float().norm()).item()

        def call():
            first()
            second()

        return call, off


class SGLang:
    """SGLang's fused MoE with a model's weights. folder: as of ragged_moe.measure.fused_moe.load."""

    def __init__(self, folder: Path, weights: tuple):
        from ragged_moe.measure.fused_moe import Memory, load  # needs Triton, which torch for CUDA brings

        self.folder, self.kernels, self.memory = folder, load(folder), Memory()
        w13, scale = weights[:2]
        swapped = torch.cat([x for x in w13.view(torch.uint8).chunk(2, 1)][::-1], 1).view(p.E4M3)
        self.gate_first = swapped, torch.cat(scale.chunk(2, 1)[::-1], 1)

    def fastest(self, sets: list[Set], fill: torch.Tensor) -> tuple[list[Callable], float, tuple[dict, dict]]:
        """The calls on these sets under the fastest of its configs, how far they are from ours, and these configs.

        Configs that Triton does not compile, or whose results are FAR from ours, are left out; ValueError if all are.
        Of SGLang's 0.5.23, those with BLOCK_SIZE_K = 256 are wrong: they read one scale of each two.
        """
        from ragged_moe.measure.fused_moe import configs

        tried, ours = [], torch.cat([s.out for s in sets]).float()
        for pair in configs(self.folder, sets[0].tokens):
            try:
                made = [s.fused_moe(self, pair) for s in sets]
                for call, _ in made:
                    call()
            except Exception:
                continue
            off = ((torch.cat([out for _, out in made]).float() - ours).norm() / ours.norm()).item()
            if off <= FAR:
                graph = captured([call for call, _ in made])
                tried.append((min(elapsed(graph, fill, i) for i in range(3)), len(tried), made, off, pair))
        if not tried:
            raise ValueError("none of its configs compiles, and is right")
        _, _, made, off, pair = min(tried)
        return [call for call, _ in made], off, pair


def measure(
    sizes: p.Sizes, weights: tuple, tokens: int, repeats: int, wanted: bool, sglang: SGLang | None, rng: random.Random
) -> dict:
    """Time a model's experts with this many tokens; return the row of the results.

    wanted: whether to time DeepGEMM; sglang: SGLang, if it is to be.
    """
    drawn = (Set(sizes, weights, tokens, seed) for seed in range(10**6))
    sets = [next(s for s in drawn if s.rows) for _ in range(SETS)]
    contest = Contest()
    contest.add({"experts": [s.experts for s in sets], "route": [s.choose for s in sets]})
    contest.add({GEMMS: [s.gemms for s in sets], "batched": [s.batched() for s in sets]})

    def compared(make: Callable) -> tuple[list[Callable], float]:
        """DeepGEMM's calls, and by how much its results differ from ours at most."""
        made = [s.deep_gemm(make) for s in sets]
        return [call for call, _ in made], max(x for _, x in made)

    peers = (grouped_gemm.deep_gemm_contiguous, grouped_gemm.deep_gemm_masked) if wanted else ()
    for name, make in zip(PEERS, peers):
        contest.admit(name, lambda make=make: compared(make))
    of_sglang, off = {}, contest.difference

    def fastest() -> tuple[list[Callable], None]:
        calls, difference, pair = sglang.fastest(sets, flushed())
        of_sglang["sglang"] = {"difference": difference, "configs": pair}
        return calls, None

    if sglang is not None:
        contest.admit(SGLANG, fastest)
    if sizes == DEEPSEEK:
        contest.add({"layer": [s.run for s in sets]})
    for calls in contest.calls.values():  # compiled, and noted
        for call in calls:
            call()
    contest.graphs()
    contest.calls = {x: calls for x, calls in contest.calls.items() if x.endswith(GRAPH) or x == "experts"}
    us = contest.us(repeats, rng)
    us |= {f"host, {name}": host(calls) for name, calls in hosted(turns(sets)).items()}
    best = min(off, key=lambda name: us[name + GRAPH], default=None)
    ratio = us[GEMMS + GRAPH] / us[best + GRAPH] if best else None
    first, second = sets[0].layer.configs(tokens)
    return {
        "T": tokens, "rows": statistics.mean(s.rows for s in sets),
        "experts": statistics.mean(int((s.counts > 0).sum()) for s in sets), "us": us, "GEMM1": str(first),
        "GEMM2": str(second), "best": best, "ratio": ratio, "difference": off, "refused": contest.refused,
    } | of_sglang  # fmt: skip


def hosted(sets: list[Set]) -> dict[str, list[Callable]]:
    """ragged_moe.experts as a function and as an operator, whose host time is taken."""
    def call(s: Set) -> None:
        experts_out_op(s.out, s.hidden, *s.given, *s.weights, num_experts=s.sizes.experts)

    return {"function": [s.experts for s in sets], "operator": [lambda s=s: call(s) for s in sets]}


def host(calls: list[Callable]) -> float:
    """How many microseconds the host takes for a call, without gradients: the median of 20 rounds.

    The GPU has work to do meanwhile, and operands are often where they were, as of layers in decoding.
    """
    rounds = []
    with torch.inference_mode():
        for call in calls * (OFTEN + 2):
            call()
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for call in calls:
                call()
            rounds.append((time.perf_counter() - begin) / len(calls) * 1e6)
    torch.cuda.synchronize()
    return statistics.median(rounds)


# --------------------------------------------------------------------------------------------------------------- report


def over_sglang(row: dict) -> float:
    """ragged_moe.experts' time over SGLang's, both in a graph."""
    return row["us"]["experts" + GRAPH] / row["us"][SGLANG + GRAPH]


def table(rows: list[dict]) -> str:
    """Return a table in markdown; times are in microseconds, in a CUDA graph unless it says otherwise."""
    graphed = "experts", SGLANG, GEMMS, *PEERS, "batched", "route"
    head = ["model", "T", "rows", "experts", SGLANG, "ratio", GEMMS, *PEERS, "ratio", "batched", "route", "called",
            "host"]  # fmt: skip
    body = []
    for x in rows:
        us = {name: f"{x['us'][name + GRAPH]:.1f}" if name + GRAPH in x["us"] else "" for name in graphed}
        ratio = f"{x['ratio']:.2f}" if x["ratio"] else ""
        of_sglang = f"{over_sglang(x):.2f}" if us[SGLANG] else ""
        body.append([x["model"], str(x["T"]), f"{x['rows']:.0f}", us["experts"], us[SGLANG], of_sglang, us[GEMMS],
                     *(us[name] for name in PEERS), ratio, us["batched"], us["route"], f"{x['us']['experts']:.1f}",
                     f"{x['us']['host, function']:.0f} / {x['us']['host, operator']:.0f}"])  # fmt: skip
    return markdown(head, body)


@click.command()
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results there.")
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True, help="Timings, of 15 calls each.")
@click.option("--tokens", help=f"Values of T, instead of {TOKENS}, of DeepSeek-V3 {OF_LAYER}.")
@click.option("--model", default="", help="Only models that have this in their name.")
@click.option("--peers/--no-peers", "wanted", default=True, show_default=True)
@click.option("--sglang", "folder", type=click.Path(path_type=Path), help="Where sglang's 0.5.23 wheel was unzipped.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of contestants.")
def main(
    file: Path | None, repeats: int, tokens: str | None, model: str, wanted: bool, folder: Path | None, seed: int
) -> None:
    """Time the experts of models, and DeepGEMM's grouped GEMMs if sgl-deep-gemm is installed, on this GPU."""
    need_gpu()
    rng = random.Random(seed)

    def rows():
        for name, sizes in ((name, sizes) for name, sizes in MODELS.items() if model in name):
            x = d.draw(sizes, 1, device=f"cuda:{torch.cuda.current_device()}")
            weights = x.gemm1_weights, x.gemm1_weights_scale, x.gemm2_weights, x.gemm2_weights_scale
            try:
                sglang = SGLang(folder, weights) if folder else None
            except (ValueError, ImportError) as error:
                raise click.UsageError(f"--sglang: {error}") from error
            default = OF_LAYER if sizes == DEEPSEEK else TOKENS
            for count in map(int, tokens.split(",")) if tokens else default:
                yield {"model": name} | measure(sizes, weights, count, repeats, wanted, sglang, rng)
            del x, weights, sglang

    found = told(rows(), table, file, lambda found: record(repeats, found))
    click.echo(f"\n{torch.cuda.get_device_name()}, us\n\n{table(found)}")
