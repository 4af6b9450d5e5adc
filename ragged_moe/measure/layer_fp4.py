"""`python -m ragged_moe bench layer --format nvfp4` times ragged_moe.experts on this GPU with NVFP4 weights,
and with FP8 ones.

And Marlin's two GEMMs, with each block size, composed as SGLang's fused_marlin_moe does. It has its blocks of rows for
nothing; what is between and behind its GEMMs are Triton kernels (marlin_layer.py, peers.py). The floor is two kernels
that only load the packed weights of the experts that have rows, GEMM1's and GEMM2's. Sizes are DeepSeek-V3's, with 32
of 256 experts here; tokens are routed by its groups. A timing is as layer.py's.
"""

import itertools
import random
import statistics
from collections.abc import Callable

import torch

from ragged_moe.layers.experts import experts
from ragged_moe.layers.pack_weights import U8, pack_nvfp4
from ragged_moe.measure import marlin
from ragged_moe.measure.contest import GRAPH, Contest, of_sets
from ragged_moe.measure.floor import Floor
from ragged_moe.measure.markdown import markdown
from ragged_moe.reference.layer import draw, route
from ragged_moe.runtime.sizes import BF16, E4M3, EXPERTS, F32, I32, Sizes

TOKENS = 1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096
OURS, FP8, MARLIN, BEST, LOADS = "this", "FP8", "Marlin", "Marlin, best block", "loads"


class Weights:
    """The layer's weights, drawn: NVFP4, packed and in Marlin's form, and FP8."""

    def __init__(self, sizes: Sizes, gemm: Callable | None):
        g, self.packed, self.marlin = torch.Generator("cuda").manual_seed(0), {}, {}
        for name, n, k in (("w13", 2 * sizes.intermediate, sizes.hidden), ("w2", sizes.hidden, sizes.intermediate)):
            b = torch.randint(0, 256, (sizes.local, n, k // 2), generator=g, dtype=torch.uint8, device="cuda")
            scale = torch.rand(sizes.local, n, k // 16, generator=g, device="cuda").to(E4M3)
            b_global = torch.full((sizes.local,), 2.0**-6, device="cuda")
            self.marlin[name] = marlin.weights(b, scale, b_global) if gemm else None
            names = name, f"{name}_scale", f"{name}_global"
            self.packed |= dict(zip(names, pack_nvfp4(b, scale, weight_scale_2=b_global)))
        x = draw(sizes, 1, device="cuda")
        self.fp8 = x.gemm1_weights, x.gemm1_weights_scale, x.gemm2_weights, x.gemm2_weights_scale


def contestants(tokens: int, seed: int, sizes: Sizes, weights: Weights, gemm: Callable | None) -> tuple[dict, Callable]:
    """Return calls without arguments, by name, and what reads our result and Marlin's; rows of local experts."""
    g = torch.Generator("cuda").manual_seed(seed)
    hidden = torch.randn(tokens, sizes.hidden, generator=g, device="cuda").to(BF16)
    logits = torch.randn(tokens, EXPERTS, generator=g, device="cuda")
    ids, given = route(logits, torch.zeros(EXPERTS, device="cuda", dtype=BF16), 2.5)
    ids, given = ids.to(I32), given.to(F32).contiguous()
    out, of_fp8, of_floor = [torch.empty_like(hidden) for _ in range(3)]
    used = len(ids[ids < sizes.local].unique())
    floor = [  # bytes of both GEMMs, never written, only loaded
        torch.empty(used * columns * sizes.hidden * 9 // 16, dtype=U8, device="cuda")
        for columns in (2 * sizes.intermediate, sizes.intermediate)
    ]
    calls = {
        OURS: lambda: experts(
            hidden, ids, given, **weights.packed, gate_first=True, num_experts=EXPERTS, out=out
        ),
        FP8: lambda: experts(hidden, ids, given, *weights.fp8, num_experts=EXPERTS, out=of_fp8),
        LOADS: lambda: [Floor(False)(hidden, b, of_floor) for b in floor],
    }  # fmt: skip
    if gemm:
        from ragged_moe.measure.marlin_layer import MarlinLayer  # needs Triton, which torch for CUDA brings
    for block in marlin.BLOCKS if gemm else ():
        calls[f"{MARLIN} {block}"] = MarlinLayer(gemm, sizes, weights.marlin, hidden, ids, given, block)
    return calls, out, int((ids < sizes.local).sum())


def measure(tokens: int, sizes: Sizes, weights: Weights, repeats: int, rng: random.Random, gemm: Callable | None):
    """Return the row of the results at this T: medians in us a layer, in CUDA graphs and, ours, as called."""
    drawn = (contestants(tokens, seed, sizes, weights, gemm) for seed in range(10**6))
    made = list(itertools.islice((x for x in drawn if x[2]), 3 if tokens > 900 else 8))
    first, contest = made[0], Contest()
    contest.add(of_sets([calls for calls, _, _ in made]))
    for name, call in first[0].items():
        call()
        if name.startswith(MARLIN):
            ours, found = first[1].float(), call.out.float()
            contest.difference[name] = ((found - ours).norm() / ours.norm()).item()
    contest.graphs()
    contest.calls = {x: calls for x, calls in contest.calls.items() if x.endswith(GRAPH) or x in (OURS, FP8)}
    us = contest.us(repeats, rng)
    rows = statistics.mean(x[2] for x in made)
    if gemm:
        us[MARLIN] = us[f"{MARLIN} {marlin.own_block(round(rows), sizes.local)}{GRAPH}"]
        us[BEST] = min(us[f"{MARLIN} {block}{GRAPH}"] for block in marlin.BLOCKS)
    return {"T": tokens, "rows": rows, "us": us, "difference": contest.difference}


def results(tokens: list[int], repeats: int, rng: random.Random, gemm: Callable | None):
    """Yield the row of each T. gemm: Marlin, if it is to be timed."""
    sizes = Sizes()
    weights = Weights(sizes, gemm)
    for count in tokens:
        yield measure(count, sizes, weights, repeats, rng, gemm)


def table(rows: list[dict]) -> str:
    """Return a table of whole layers in markdown; times are in microseconds."""
    head = ["T", "rows", "NVFP4, in a graph", "called", "FP8, in a graph", "called", "/ FP8", "Marlin", "best block",
            "/ best"]  # fmt: skip
    lines, timed = [], all(LOADS + GRAPH in x["us"] for x in rows)
    head += ["loads", "/ best"] * timed
    for x in rows:
        us = x["us"]
        ours, fp8 = us[OURS + GRAPH], us[FP8 + GRAPH]
        times = [f"{y:.1f}" for y in (ours, us[OURS], fp8, us[FP8])]
        cells = [str(x["T"]), f"{x['rows']:.0f}", *times, f"{ours / fp8:.2f}"]
        of_marlin = [f"{us[MARLIN]:.1f}", f"{us[BEST]:.1f}", f"{ours / us[BEST]:.2f}"] if BEST in us else [""] * 3
        of_loads = []
        if timed:
            loads = us[LOADS + GRAPH]
            of_loads = [f"{loads:.1f}", f"{loads / us[BEST]:.2f}" if BEST in us else ""]
        lines.append(cells + of_marlin + of_loads)
    return markdown(head, lines)


tables = table
