"""`python -m ragged_moe bench gemm --format nvfp4` times grouped_gemm_nvfp4 on this GPU, Marlin,
grouped_gemm_fp8 and a floor.

As grouped_gemm.py times: calls back to back on sets of inputs that together are larger than L2, contestants shuffled.
Marlin is timed with the block that SGLang chooses for it, and with each other one. FP8 has weights of the same sizes.
The floor is a kernel that only loads the packed weights and scales of the experts that have rows, and the tokens.
"""

import functools
import random
import statistics
from collections.abc import Callable

import torch

from ragged_moe.layers.grouped_gemm_fp4 import grouped_gemm_nvfp4
from ragged_moe.layers.grouped_gemm_fp8 import grouped_gemm_fp8
from ragged_moe.layers.pack_weights import pack_nvfp4
from ragged_moe.measure import marlin
from ragged_moe.measure.contest import Contest, of_sets
from ragged_moe.measure.floor import Floor
from ragged_moe.measure.grouped_gemm import FLOORS, LEAST, OURS, Inputs, Row, drawn, label, routed
from ragged_moe.measure.markdown import markdown
from ragged_moe.measure.timing import CALLS
from ragged_moe.runtime.sizes import BF16, E4M3, I32
from ragged_moe.tuning import sm90

SIZES = ((4096, 7168), (7168, 2048), (3072, 4096), (4096, 1536))  # N, K of DeepSeek-V3 and of Qwen3-235B
FP8, MARLIN, BEST = "FP8", "Marlin", "Marlin, best block"
DENSE_BF16 = 989e12  # FLOP/s of an H100 or H200: the vendor's data sheets, without sparsity


def all_rows() -> list[Row]:
    """Return the problems: even experts, tokens routed to 32 of 256 experts, and rows drawn for as many in the mean."""
    even = [Row("", (m,) * e, n, k) for n, k in SIZES for e in (1, 8, 32) for m in (1, 8, 16, 64, 128, 512)]
    uneven = [Row(f"routed {t}", routed(t, 32, t), n, k) for n, k in SIZES[:2] for t in (16, 64, 512, 2048)]
    laws = {"uniform": 0.0, "Zipf 0.6": 0.6}
    drawings = [
        Row(f"{law}, mean {m}", drawn(e, m, exponent, m), n, k)
        for n, k in SIZES for e in (8, 32) for m in (8, 16, 64, 128, 512) for law, exponent in laws.items()
    ]  # fmt: skip
    return even + uneven + drawings


class Weights:
    """Weights [experts, n, k] in NVFP4, drawn; packed for the kernel and, with Marlin, for that; and others in e4m3."""

    def __init__(self, experts: int, n: int, k: int, seed: int, gemm: Callable | None):
        g = torch.Generator("cuda").manual_seed(seed)
        b = torch.randint(0, 256, (experts, n, k // 2), generator=g, dtype=torch.uint8, device="cuda")
        scale = torch.rand(experts, n, k // 16, generator=g, device="cuda").to(E4M3)
        b_global = torch.full((experts,), 0.5, device="cuda")
        self.marlin = marlin.weights(b, scale, b_global) if gemm else None
        self.packed = pack_nvfp4(b, scale, weight_scale_2=b_global)
        self.fp8 = Inputs.draw(Row("", (0,) * experts, n, k), seed)


def contestants(row: Row, weights: Weights, seed: int, gemm: Callable | None) -> tuple[dict, torch.Tensor, list]:
    """Return calls without arguments, by name, our result, and Marlin's."""
    g, total, used = torch.Generator("cuda").manual_seed(seed), sum(row.ms), sum(m > 0 for m in row.ms)
    a = torch.randn(total, row.k, generator=g, device="cuda").to(BF16)
    m_indptr = torch.tensor([sum(row.ms[:e]) for e in range(len(row.ms) + 1)], dtype=I32, device="cuda")
    out = torch.empty(total, row.n, dtype=BF16, device="cuda")
    a8, a_scale = a.to(E4M3), torch.rand(row.k // 128, total, generator=g, device="cuda")
    fp8, of_fp8, of_floor = weights.fp8, torch.empty_like(out), torch.empty_like(out)
    both = torch.empty(used * row.n * row.k * 9 // 16, dtype=torch.uint8, device="cuda")  # never written, only loaded
    calls = {
        OURS: lambda: grouped_gemm_nvfp4(a, *weights.packed, m_indptr, out),
        FP8: lambda: grouped_gemm_fp8(a8, a_scale, fp8.b, fp8.b_scale, m_indptr, of_fp8),
        **{name: lambda i=i: Floor(i == 1)(a, both, of_floor) for i, name in enumerate(FLOORS)},
    }
    results, bounds = torch.empty_like(out), m_indptr.tolist()
    of_experts = [range(*x) for x in zip(bounds, bounds[1:])]
    for block in marlin.BLOCKS if gemm else ():
        rows = marlin.Rows(of_experts, block, total)
        calls[f"{MARLIN} {block}"] = lambda rows=rows: marlin.multiply(gemm, a, weights.marlin, rows, results)
    return calls, out, results


def time_row(row: Row, sets: list[Weights], repeats: int, rng: random.Random, gemm: Callable | None) -> dict:
    """Time each contestant: medians in us a call, and by how much Marlin's results differ."""
    made = [contestants(row, weights, seed, gemm) for seed, weights in enumerate(sets)]
    contest = Contest()
    contest.add(of_sets([calls for calls, _, _ in made]))
    for name, call in made[0][0].items():
        call()
        if name.startswith(MARLIN):
            ours, found = [x.float() for x in made[0][1:]]
            contest.difference[name] = ((found - ours).norm() / ours.norm()).item()
    us = contest.us(repeats, rng)
    flop, total = 2 * sum(row.ms) * row.n * row.k, sum(row.ms)
    found = {
        "experts": len(row.ms), "m": list(row.ms), "n": row.n, "k": row.k, "name": row.name, "us": us,
        "config": str(sm90.choose_fp4(total, len(row.ms), row.n, row.k, "bf16")), "difference": contest.difference,
        "loads us": min(us[name] for name in FLOORS), "MMA us": flop / DENSE_BF16 * 1e6,
        "TFLOPS": flop / us[OURS] / 1e6,
    }  # fmt: skip
    if gemm:
        us[MARLIN] = us[f"{MARLIN} {marlin.own_block(total, len(row.ms))}"]
        us[BEST] = min(us[f"{MARLIN} {block}"] for block in marlin.BLOCKS)
    return found


def table(rows: list[dict]) -> str:
    """Return a table of all rows in markdown; times are in microseconds."""
    head = ["experts x m", "N", "K", "this, us", "loads, us", "/ loads", "TFLOPS", "FP8, us", "/ FP8", "Marlin, us",
            "best block, us", "/ best"]  # fmt: skip
    lines = []
    for x in rows:
        us, loads = x["us"], x["loads us"]
        cells = [label(x), str(x["n"]), str(x["k"]), f"{us[OURS]:.1f}", f"{loads:.1f}", f"{us[OURS] / loads:.2f}"]
        cells += [f"{x['TFLOPS']:.0f}", f"{us[FP8]:.1f}", f"{us[OURS] / us[FP8]:.2f}"]
        of_marlin = [f"{us[MARLIN]:.1f}", f"{us[BEST]:.1f}", f"{us[OURS] / us[BEST]:.2f}"] if BEST in us else [""] * 3
        lines.append(cells + of_marlin)
    return markdown(head, lines)


def geomeans(rows: list[dict]) -> dict[str, float]:
    """Return geometric means of our time over that of each other contestant."""
    others = [name for name in (FP8, MARLIN, BEST) if name in rows[0]["us"]]
    return {name: statistics.geometric_mean(x["us"][OURS] / x["us"][name] for x in rows) for name in others}


def with_weights(rows: list[Row], size: int, make: Callable):
    """Yield each row and its sets of weights, which together are larger than L2; rows of one size have the same sets.

    size: bytes of 16 weights. make(experts, n, k, seed): a set.
    """
    made, sets = None, []
    for row in rows:
        if made != (len(row.ms), row.n, row.k):
            sets, made = [], (len(row.ms), row.n, row.k)
            torch.cuda.empty_cache()
            count = min(CALLS, max(3, -(-LEAST // (len(row.ms) * row.n * row.k * size // 16))))
            sets = [make(*made, seed) for seed in range(count)]
        yield row, sets


def measure(rows: list[Row], repeats: int, rng: random.Random, gemm: Callable | None):
    """Yield the results of each row. gemm: Marlin, if it is to be timed (marlin.load)."""
    for row, sets in with_weights(rows, 9, functools.partial(Weights, gemm=gemm)):
        yield time_row(row, sets, repeats, rng, gemm)
