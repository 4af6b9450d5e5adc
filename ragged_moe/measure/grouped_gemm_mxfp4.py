"""`python -m ragged_moe bench gemm --format mxfp4` times grouped_gemm_nvfp4 on this Hopper GPU with MXFP4
weights, W4A16 and W4A8.

As grouped_gemm.py times. Both have the same weights, packed for each, and the same tokens in bf16. W4A8 rounds them to
e4m3 in a launch in front; its two launches are timed apart, too. FP8 is grouped_gemm_fp8 with weights of the same
sizes, but for K, which it wants as a multiple of 128, and with tokens that are e4m3 already.
"""

import random
import statistics
from collections.abc import Callable

import torch

from ragged_moe.layers.grouped_gemm_fp4 import grouped_gemm_nvfp4, launch_quantiser
from ragged_moe.layers.grouped_gemm_fp8 import grouped_gemm_fp8, launcher
from ragged_moe.layers.pack_weights import pack_mxfp4
from ragged_moe.layers.signatures import TILE
from ragged_moe.measure.contest import Contest, of_sets
from ragged_moe.measure.grouped_gemm import Inputs, Row, label
from ragged_moe.measure.grouped_gemm_fp4 import with_weights
from ragged_moe.measure.markdown import markdown
from ragged_moe.reference.layer import distance
from ragged_moe.runtime.sizes import BF16, E4M3, F32, I32
from ragged_moe.tuning import sm90

SIZES = ((5760, 2880), (4096, 7168))  # N, K of GEMM1 of gpt-oss and of DeepSeek-V3
W4A16, W4A8, GEMM, QUANTISER, FP8 = "W4A16", "W4A8", "W4A8, GEMM alone", "W4A8, quantiser alone", "FP8"
LEAST_SCALE, MOST_SCALE = 115, 120  # e8m0: a row's may span 2^11 for W4A8


def all_rows() -> list[Row]:
    """Return the problems: even experts, from few tokens each to where the tensor core binds."""
    return [Row("", (m,) * e, n, k) for n, k in SIZES for e in (8, 32) for m in (16, 64, 128, 512, 2048)]


def packed(experts: int, n: int, k: int, seed: int, activation: str | None) -> tuple[torch.Tensor, ...]:
    """MXFP4 weights [experts, n, k], drawn, packed for tokens of this type: pack_mxfp4's b, b_scale and b_global."""
    g = torch.Generator("cuda").manual_seed(seed)
    b = torch.randint(0, 256, (experts, n, k // 2), generator=g, dtype=torch.uint8, device="cuda")
    size = experts, n, k // 32
    scale = torch.randint(LEAST_SCALE, MOST_SCALE + 1, size, generator=g, dtype=torch.uint8, device="cuda")
    return pack_mxfp4(b, scale, activation=activation)


class Weights:
    """Weights [experts, n, k] in MXFP4, drawn, packed for W4A16 and for W4A8; and others in e4m3."""

    def __init__(self, experts: int, n: int, k: int, seed: int):
        self.w4a16, self.w4a8 = [packed(experts, n, k, seed, activation) for activation in (None, "fp8")]
        self.fp8 = Inputs.draw(Row("", (0,) * experts, n, -(-k // 128) * 128), seed)


def contestants(row: Row, weights: Weights, seed: int) -> tuple[dict[str, Callable], dict[str, torch.Tensor]]:
    """Return calls without arguments, and where the first three of them leave their results, by name."""
    g, total = torch.Generator("cuda").manual_seed(seed), sum(row.ms)
    a = torch.randn(total, row.k, generator=g, device="cuda").to(BF16)
    m_indptr = torch.tensor([sum(row.ms[:e]) for e in range(len(row.ms) + 1)], dtype=I32, device="cuda")
    outs = {name: torch.empty(total, row.n, dtype=BF16, device="cuda") for name in (W4A16, W4A8, GEMM)}
    fp8, of_fp8 = weights.fp8, torch.empty(total, row.n, dtype=BF16, device="cuda")
    k = fp8.b.shape[2]
    a8 = torch.randn(total, k, generator=g, device="cuda").to(E4M3)
    a_scale = torch.rand(k // 128, total, generator=g, device="cuda")
    quantise, multiply = launches(a, weights.w4a8, m_indptr, outs[GEMM])
    quantise()  # once, as the GEMM alone is timed on what that leaves
    calls = {
        W4A16: lambda: grouped_gemm_nvfp4(a, *weights.w4a16, m_indptr, outs[W4A16]),
        W4A8: lambda: grouped_gemm_nvfp4(a, *weights.w4a8, m_indptr, outs[W4A8]),
        GEMM: multiply,
        QUANTISER: quantise,
        FP8: lambda: grouped_gemm_fp8(a8, a_scale, fp8.b, fp8.b_scale, m_indptr, of_fp8),
    }
    return calls, outs


def launches(a: torch.Tensor, of: tuple, m_indptr: torch.Tensor, out: torch.Tensor) -> tuple[Callable, Callable]:
    """Return the two launches of a call of W4A8: that quantises a, to memory of its own, and that multiplies this."""
    (total, k), (b, b_scale, b_global), gemm = a.shape, of, launcher(a.device, sm90.FP4_BY_E4M3)
    values, scales = torch.empty(total, k, dtype=E4M3, device="cuda"), torch.empty(total, dtype=F32, device="cuda")
    words = *gemm.words(gemm.grid, total, TILE * b.shape[1], k, len(b)), scales.data_ptr()
    operands = values, b_global, b, b_scale, m_indptr, out
    return (
        lambda: launch_quantiser(gemm, *(x.data_ptr() for x in (a, values, scales)), total, k),
        lambda: gemm.launch([x.data_ptr() for x in operands], words),
    )


def time_row(row: Row, sets: list[Weights], repeats: int, rng: random.Random) -> dict:
    """Time each contestant: medians in us a call, and by how much W4A8's results differ from W4A16's."""
    made = [contestants(row, weights, seed) for seed, weights in enumerate(sets)]
    contest, (calls, outs) = Contest(), made[0]
    contest.add(of_sets([calls for calls, _ in made]))
    for call in calls.values():
        call()
    apart = (outs[GEMM].float() - outs[W4A8].float()).abs().max().item()
    difference = {W4A8: distance(outs[W4A8], outs[W4A16]), GEMM: apart}
    us = contest.us(repeats, rng)
    return {
        "experts": len(row.ms), "m": list(row.ms), "n": row.n, "k": row.k, "name": row.name, "us": us,
        "config": str(sm90.choose_fp4(sum(row.ms), len(row.ms), row.n, row.k, "bf16")), "difference": difference,
        "TFLOPS": 2 * sum(row.ms) * row.n * row.k / us[W4A8] / 1e6,
    }  # fmt: skip


def table(rows: list[dict]) -> str:
    """Return a table of all rows in markdown; times are in microseconds."""
    head = ["experts x m", "N", "K", W4A16, W4A8, "its GEMM", "its quantiser", FP8, "W4A8 / W4A16", "GEMM / W4A16",
            "W4A8 / FP8", "W4A8, TFLOPS"]  # fmt: skip
    lines = []
    for x in rows:
        us = x["us"]
        times = [f"{us[name]:.1f}" for name in (W4A16, W4A8, GEMM, QUANTISER, FP8)]
        ratios = [f"{us[over] / us[name]:.2f}" for over, name in ((W4A8, W4A16), (GEMM, W4A16), (W4A8, FP8))]
        lines.append([label(x), str(x["n"]), str(x["k"]), *times, *ratios, f"{x['TFLOPS']:.0f}"])
    return markdown(head, lines)


def geomeans(rows: list[dict]) -> dict[str, float]:
    """Return geometric means of a call of W4A8's time over that of each other one."""
    return {name: statistics.geometric_mean(x["us"][W4A8] / x["us"][name] for x in rows) for name in (W4A16, FP8)}


def measure(rows: list[Row], repeats: int, rng: random.Random):
    """Yield the results of each row."""
    for row, sets in with_weights(rows, 8, Weights):
        yield time_row(row, sets, repeats, rng)
