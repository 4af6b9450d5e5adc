"""`python -m ragged_moe bench experts --json FILE` times ragged_moe.experts and ragged_moe.batched_experts at the sizes
of models: contest.py says how.

The calls go round SETS sets of tokens, with the same weights. Tokens are bf16 and choose their experts by
ragged_moe.route from random logits, before the clock starts.

    experts       from tokens in bf16 to their sums, as called, and in a CUDA graph of all the calls
    layer         ragged_moe.run at DeepSeek-V3's sizes, which routes from logits likewise: for the same rows from e4m3
    route         the choice from f32 logits, with a bias, as DeepSeek-V3's without groups
    two GEMMs     GEMM1, with SwiGLU and its quantisation in it, and GEMM2, of these launches
    batched       ragged_moe.batched_experts on the same rows, in e4m3, each expert with room for as many as any has
    DeepGEMM ...  its two grouped GEMMs alone, on tokens that are quantised and laid out for it beforehand: SwiGLU,
                  quantisation, permutation and sums, which a stack pays for, are for nothing
    SGLang        its Triton fused MoE from tokens in e4m3 to their sums, under the fastest of its configs for this GPU
                  (fused_moe.py); quantisation of tokens and its lists of rows are for nothing
"""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ragged_moe.kernels.config import Activation
from ragged_moe.kernels.program import OFTEN
from ragged_moe.layers.batched_experts import batched_experts
from ragged_moe.layers.deepseek_layer import layer_of, run
from ragged_moe.layers.experts import At, Choice, experts, launch, quantise_program
from ragged_moe.layers.route import route
from ragged_moe.measure.contest import GRAPH, Contest, Contestant, best
from ragged_moe.measure.gemm_peers import DEEP_GEMM
from ragged_moe.measure.markdown import Column, figure, ratio, table
from ragged_moe.measure.operands import Inputs
from ragged_moe.measure.rows import Row
from ragged_moe.measure.timing import flushed
from ragged_moe.reference.layer import distance
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
OF_ZIPF = 128, 1024, 4096
LAWS = {"uniform": 0.0, "Zipf 0.6": 0.6}  # by which tokens choose experts, and its exponent
SETS = 3
EXPERTS, GEMMS, SGLANG = "experts", "two GEMMs", "SGLang"  # contestants, as records have them
PEERS = "DeepGEMM contiguous", "DeepGEMM masked"
FAR = 0.05  # of the norm: SGLang rounds GEMM1's results to bf16 before SwiGLU


class Set:
    """Tokens, what they chose by a law, and what the launches left of them. weights: w13, its scale, w2, its scale."""

    def __init__(self, sizes: p.Sizes, weights: tuple, tokens: int, seed: int, law: str = "uniform"):
        device = weights[0].device
        g = torch.Generator(device).manual_seed(seed)
        self.sizes, self.weights, self.tokens = sizes, weights, tokens
        self.hidden = torch.randn(tokens, sizes.hidden, device=device, generator=g).to(p.BF16)
        self.logits = torch.randn(tokens, sizes.experts, device=device, generator=g)
        self.bias = torch.randn(sizes.experts, device=device, generator=g) / 32
        if LAWS[law]:  # logits with Gumbel's noise: the largest are a draw by their softmax
            rank = 1 + torch.randperm(sizes.experts, device=device, generator=g)
            noise = -torch.rand(self.logits.shape, device=device, generator=g).log()
            self.logits, self.bias = -LAWS[law] * rank.log() - noise.log(), torch.zeros_like(self.bias)
        self.given = self.choose()
        self.out = torch.empty(tokens, sizes.hidden, dtype=p.BF16, device=device)
        self.layer = layer_of(device, sizes, Activation(), True)
        arena = Arena(device)
        self.space, self.left = self.layer.space(tokens, arena), self.layer.tensors(tokens, arena)
        x = p.Inputs(None, None, self.hidden, None, *weights)
        launch(self.layer, x, Choice(*self.given), self.space, self.out)
        at = self.hidden.data_ptr(), self.space.quantised, self.space.quantised_scale, 0
        quantise_program(device)(*at, tokens, sizes.hidden, self.layer.device.stream())  # if permute did it, for peers
        at = At(self.space.quantised, self.hidden.shape), At(self.space.quantised_scale)
        self.x = dataclasses.replace(x, hidden_states=at[0], hidden_states_scale=at[1])
        blocks = sizes.hidden // 128
        self.scale = self.left.quantised_scale.flatten()[: blocks * tokens].view(blocks, tokens)
        self.counts = self.left.m_indptr.diff()
        self.rows = int(self.left.m_indptr[-1])

    def choose(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return topk_ids and topk_weights."""
        groups = (8, 4) if self.sizes == DEEPSEEK else (1, 1)
        return route(
            self.logits, self.sizes.top_k, scoring="sigmoid", bias=self.bias, num_expert_group=groups[0],
            topk_group=groups[1], routed_scaling_factor=2.5,
        )  # fmt: skip

    def contestants(self) -> dict[str, Contestant]:
        """Return ours by name."""
        configs, o = self.layer.configs(self.tokens), self.left.o[: self.rows]

        def gemms():
            self.layer.gemm1(self.x, self.space, configs[0])
            self.layer.gemm2(self.x, self.space, configs[1])

        quantised = self.left.quantised[: self.tokens], self.scale
        of_layer = Contestant(lambda: run(self.logits, self.bias, *quantised, *self.weights, 0, 2.5, self.out))
        made = {
            EXPERTS: Contestant(self.experts, lambda: self.out), "route": Contestant(self.choose),
            GEMMS: Contestant(gemms, lambda: o), "batched": self.batched(),
        }  # fmt: skip
        return made | ({"layer": of_layer} if self.sizes == DEEPSEEK else {})

    def experts(self) -> None:
        """Call ragged_moe.experts."""
        experts(self.hidden, *self.given, *self.weights, num_experts=self.sizes.experts, out=self.out)

    def operator(self) -> None:
        """Call it as an operator."""
        experts_out_op(self.out, self.hidden, *self.given, *self.weights, num_experts=self.sizes.experts)

    def tokens_of_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows' tokens in e4m3 and their scales [H/128, rows]."""
        rows = self.left.rows[: self.rows].long()
        values = self.left.quantised.view(torch.uint8)[rows].view(p.E4M3)
        return values, self.scale[:, rows].contiguous()

    def batched(self) -> Contestant:
        """Return a call of ragged_moe.batched_experts on the same rows."""
        e, h, most = self.sizes.local, self.sizes.hidden, max(1, int(self.counts.max()))
        values, scales = self.tokens_of_rows()
        there = torch.arange(most, device=values.device) < self.counts[:, None]
        hidden = torch.zeros(e, most, h, dtype=torch.uint8, device=values.device)
        hidden[there] = values.view(torch.uint8)
        scale = torch.zeros(e, h // 128, most, device=values.device)
        scale.mT[there] = scales.t()
        out = torch.empty(e, most, h, dtype=p.BF16, device=values.device)
        operands = hidden.view(p.E4M3), self.counts.int(), *self.weights
        options = {"hidden_scale": scale.mT, "expected_m": max(1, self.rows // e), "out": out}
        return Contestant(lambda: batched_experts(*operands, **options))

    def deep_gemm(self, name: str) -> Contestant:
        """Return a call of DeepGEMM's two grouped GEMMs."""
        h, i, m_indptr, o = self.sizes.hidden, self.sizes.intermediate, self.left.m_indptr, self.left.o[: self.rows]
        of_c, ms = (self.left.c[: self.rows], self.left.c_scale[:, : self.rows].contiguous()), self.counts.tolist()
        of_first, of_second = (*self.tokens_of_rows(), *self.weights[:2]), (*of_c, *self.weights[2:])
        first = DEEP_GEMM[name](Row("", tuple(ms), 2 * i, h), Inputs(*of_first, m_indptr, o))
        second = DEEP_GEMM[name](Row("", tuple(ms), h, i), Inputs(*of_second, m_indptr, o))
        return Contestant(lambda: (first.call(), second.call()), second.result, GEMMS)

    def fused_moe(self, sglang: "SGLang", pair: tuple[dict, dict]) -> Contestant:
        """Return a call of SGLang's fused MoE under a pair of configs."""
        from ragged_moe.measure.fused_moe import FusedMoe, lists

        (ids, chosen), local, out = self.given, self.sizes.local, torch.empty_like(self.out)
        ids = torch.where(ids < local, ids, -1).int()
        operands = self.left.quantised[: self.tokens], self.scale.T, *sglang.gate_first, *self.weights[2:]
        of_tiles = lists(ids, local, pair[0]["BLOCK_SIZE_M"])
        call = FusedMoe(sglang.kernels, operands, (ids, chosen), of_tiles, out, pair, sglang.memory)
        return Contestant(call, lambda: out)


class SGLang:
    """SGLang's fused MoE with a model's weights. folder: as of ragged_moe.measure.fused_moe.load."""

    def __init__(self, folder: Path, weights: tuple):
        from ragged_moe.measure import fused_moe  # needs Triton, which torch for CUDA brings

        self.of, self.folder, self.kernels, self.memory = fused_moe, folder, fused_moe.load(folder), fused_moe.Memory()
        self.gate_first = fused_moe.gate_first(*weights[:2])

    def fastest(self, sets: list[Set]) -> tuple[list[Contestant], dict]:
        """Return the calls on these sets under the fastest of its configs, and how far they are from ours, and these.

        Configs that Triton does not compile, or whose results are FAR from ours, are left out; ValueError if all are.
        Of SGLang's 0.5.23, those with BLOCK_SIZE_K = 256 are wrong: they read one scale of each two.
        """
        off = {}

        def calls(pair: tuple[dict, dict]) -> list[Contestant]:
            made = [s.fused_moe(self, pair) for s in sets]
            for x in made:
                x.call()
            off[repr(pair)] = max(distance(x.result(), s.out) for x, s in zip(made, sets))
            if off[repr(pair)] > FAR:
                raise ValueError(f"{pair}: {off[repr(pair)]:.2g} of the norm off")
            return made

        made, pair = self.of.fastest(self.of.configs(self.folder, sets[0].tokens), calls, flushed())
        return made, {"difference": off[repr(pair)], "configs": pair}


class Experts:
    """The contests of a model's experts. weights: w13, its scale, w2, its scale. peers: whether to time DeepGEMM."""

    def __init__(self, model: str, weights: tuple, peers: bool, sglang: SGLang | None):
        self.model, self.sizes, self.weights, self.peers, self.sglang = model, MODELS[model], weights, peers, sglang

    def contest(self, problem: tuple[int, str]) -> Contest:
        """Draw sets of tokens, each with other rows, and add all contestants. problem: how many, and by which law."""
        tokens, law = problem
        drawn = (Set(self.sizes, self.weights, tokens, seed, law) for seed in itertools.count())
        sets = list(itertools.islice((s for s in drawn if s.rows), SETS))
        used = statistics.mean(int((s.counts > 0).sum()) for s in sets)
        configs = dict(zip(("GEMM1", "GEMM2"), map(str, sets[0].layer.configs(tokens))))
        rows = statistics.mean(s.rows for s in sets)
        facts = {"model": self.model, "T": tokens, "law": law, "rows": rows, "experts": used}
        contest = Contest(facts | configs)
        contest.add([s.contestants() for s in sets])
        for name in PEERS if self.peers else ():
            contest.admit(name, lambda name=name: [s.deep_gemm(name) for s in sets])

        def fastest() -> list[Contestant]:
            made, contest.facts["sglang"] = self.sglang.fastest(sets)
            return made

        if self.sglang is not None:
            contest.admit(SGLANG, fastest)
        self.hosted = {"function": [s.experts for s in sets], "operator": [s.operator for s in sets]}
        contest.graphs(called=(EXPERTS,))
        return contest

    def derived(self, row: dict, contest: Contest) -> dict:
        """Add the host's times; return the ratio to the faster of DeepGEMM's."""
        us = row["us"]
        us |= {f"host, {name}": host_us(calls) for name, calls in self.hosted.items()}
        peer = best(us, [name + GRAPH for name in PEERS])
        ratio = us[GEMMS + GRAPH] / us[peer] if peer else None
        return {"best": peer and peer.removesuffix(GRAPH), "ratio": ratio}


def host_us(calls: list[Callable]) -> float:
    """Return how many microseconds the host takes for a call, without gradients: the median of 20 rounds.

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


def over_sglang(row: dict) -> float:
    """Return ragged_moe.experts' time over SGLang's, both in a graph."""
    return row["us"][EXPERTS + GRAPH] / row["us"][SGLANG + GRAPH]


COLUMNS: list[Column] = [
    ("model", lambda x: x["model"]), ("T", figure("T", "d")), ("chosen", lambda x: x.get("law", "uniform")),
    ("rows", figure("rows", ".0f")),
    (EXPERTS, figure(EXPERTS + GRAPH)), (SGLANG, figure(SGLANG + GRAPH)),
    ("ratio", ratio(EXPERTS + GRAPH, SGLANG + GRAPH)), (GEMMS, figure(GEMMS + GRAPH)),
    *((name, figure(name + GRAPH)) for name in PEERS), ("ratio", figure("ratio", ".2f")),
    ("batched", figure("batched" + GRAPH)), ("route", figure("route" + GRAPH)), ("called", figure(EXPERTS)),
    ("host", lambda x: f"{x['us']['host, function']:.0f} / {x['us']['host, operator']:.0f}"),
]  # fmt: skip


def experts_table(rows: list[dict]) -> str:
    """Return a table in markdown; times are in microseconds, in a CUDA graph unless it says otherwise."""
    return table(COLUMNS, rows)
