"""`python -m ragged_moe bench gemm --json FILE` times grouped_gemm_fp8 and the peers that are installed on
this GPU.

A timing is CALLS calls back to back between two events, on sets of inputs that together are larger than L2, after a
fill that flushes it; the median of --repeats timings, contestants in random order each time. All contestants work on
the same numbers; what a peer needs padded or laid out otherwise is made beforehand, and what it computes on padding is
its own.

Floor: the time of a kernel that only loads the operands and writes as many bytes (floor.py), or of the multiplications
at the card's dense FP8 rate, whichever is longer.
"""

import dataclasses
import functools
import math
import random
import statistics
from collections.abc import Callable

import torch

from ragged_moe.layers.grouped_gemm_fp8 import grouped_gemm_fp8
from ragged_moe.measure.contest import Contest
from ragged_moe.measure.floor import Floor
from ragged_moe.measure.markdown import markdown
from ragged_moe.measure.timing import CALLS, medians
from ragged_moe.runtime.device import device_of
from ragged_moe.tuning.back_ends import tuning

LEAST = 200 << 20  # bytes of all sets of inputs: four times the L2
DENSE_FP8 = {"H100": 1979e12, "H200": 1979e12, "B200": 4500e12}  # FLOP/s: the vendor's data sheets, without sparsity
SIZES = ((4096, 7168), (7168, 2048), (7168, 7168))  # N, K of DeepSeek-V3's layers, and a square one
OURS, FLOORS = "this", ("loads only, shares", "loads only, interleaved")


@dataclasses.dataclass(frozen=True)
class Row:
    """A problem: the rows of each expert, N, K."""

    name: str
    ms: tuple[int, ...]
    n: int
    k: int


def routed(tokens: int, experts: int, seed: int) -> tuple[int, ...]:
    """Draw the rows of the first `experts` of 256 experts if `tokens` tokens choose 8 by DeepSeek-V3's groups.

    Experts differ in popularity, log-normally: routing is never even.
    """
    generator = torch.Generator().manual_seed(seed)
    popularity = torch.randn(256, generator=generator) / 2
    scores = torch.sigmoid(torch.randn(tokens, 256, generator=generator) + popularity)
    groups = scores.view(tokens, 8, 32).topk(2, dim=2).values.sum(2).topk(4, dim=1).indices
    allowed = torch.zeros(tokens, 8, dtype=torch.bool).scatter_(1, groups, True).repeat_interleave(32, 1)
    chosen = scores.masked_fill(~allowed, -1).topk(8, dim=1).indices
    return tuple(torch.bincount(chosen.flatten(), minlength=256)[:experts].tolist())


def drawn(experts: int, mean: int, exponent: float, seed: int) -> tuple[int, ...]:
    """Draw the rows of each expert: each of experts * mean rows goes to one of them by Zipf's law with this exponent,
    0: to each as likely. The popular ones are anywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    likely = torch.arange(1, experts + 1).double() ** -exponent
    likely = likely[torch.randperm(experts, generator=generator)]
    chosen = torch.multinomial(likely, experts * mean, replacement=True, generator=generator)
    return tuple(torch.bincount(chosen, minlength=experts).tolist())


def all_rows() -> list[Row]:
    """Return the problems: even experts, routed tokens, and one expert that has all tokens."""
    rows = [Row("", (m,) * e, n, k) for e in (1, 4, 8, 32) for n, k in SIZES for m in (8, 64, 128, 512)]
    for tokens in (64, 512, 2048, 8192):
        rows += [Row(f"routed {tokens}", routed(tokens, 32, tokens), n, k) for n, k in SIZES[:2]]
    rows += [Row("one has all", (0, 0, 0, 512, 0, 0, 0, 0), n, k) for n, k in SIZES[:2]]
    return rows


@dataclasses.dataclass
class Inputs:
    """One set of operands on the GPU."""

    a: torch.Tensor
    a_scale: torch.Tensor
    b: torch.Tensor
    b_scale: torch.Tensor
    m_indptr: torch.Tensor
    out: torch.Tensor

    @classmethod
    def draw(cls, row: Row, seed: int) -> "Inputs":
        """Draw values of magnitude 1 and scales of any sign, as the definition of the DeepSeek layer has them."""
        generator = torch.Generator("cuda").manual_seed(seed)
        total, experts = sum(row.ms), len(row.ms)

        def normal(*shape):
            return torch.randn(shape, device="cuda", generator=generator)

        b = torch.empty(experts, row.n, row.k, dtype=torch.float8_e4m3fn, device="cuda")
        for e in range(experts):
            b[e] = normal(row.n, row.k).clamp_(-2, 2)
        offsets = [sum(row.ms[:e]) for e in range(experts + 1)]
        return cls(
            normal(total, row.k).clamp_(-2, 2).to(torch.float8_e4m3fn),
            normal(row.k // 128, total),
            b,
            normal(experts, row.n // 128, row.k // 128),
            torch.tensor(offsets, dtype=torch.int32, device="cuda"),
            torch.empty(total, row.n, dtype=torch.bfloat16, device="cuda"),
        )


# --------------------------------------------------------------------------------------------------------- contestants
# Each returns, for a row and its inputs, a call without arguments that writes a result, and one that reads it.


def ours(row: Row, x: Inputs) -> tuple[Callable, Callable]:
    """Call grouped_gemm_fp8."""
    out = torch.empty_like(x.out)
    return lambda: grouped_gemm_fp8(x.a, x.a_scale, x.b, x.b_scale, x.m_indptr, out), lambda: out


def loads_only(interleaved: bool, row: Row, x: Inputs) -> tuple[Callable, Callable]:
    """Call the kernel that only loads, on the weights of as many experts as have rows."""
    floor, b = Floor(interleaved), x.b[: sum(m > 0 for m in row.ms)]
    return lambda: floor(x.a, b, x.out), lambda: None


def deep_gemm_contiguous(row: Row, x: Inputs) -> tuple[Callable, Callable]:
    """Call DeepGEMM's contiguous form, with the rows of each expert padded to a multiple of 128."""
    import deep_gemm

    padded = [-(-m // 128) * 128 for m in row.ms]
    index = torch.cat([torch.full((m,), e, dtype=torch.int32) for e, m in enumerate(padded)]).cuda()
    place = torch.cat([sum(padded[:e]) + torch.arange(m) for e, m in enumerate(row.ms)]).cuda()
    a = torch.zeros(sum(padded), row.k, dtype=torch.uint8, device="cuda")
    a[place] = x.a.view(torch.uint8)
    scale = torch.zeros(sum(padded), row.k // 128, device="cuda")
    scale[place] = x.a_scale.T
    operands = (a.view(torch.float8_e4m3fn), deep_gemm.get_mn_major_tma_aligned_tensor(scale)), (x.b, x.b_scale)
    out = torch.empty(sum(padded), row.n, dtype=torch.bfloat16, device="cuda")
    return lambda: deep_gemm.m_grouped_fp8_gemm_nt_contiguous(*operands, out, index), lambda: out[place]


def deep_gemm_masked(row: Row, x: Inputs) -> tuple[Callable, Callable]:
    """Call DeepGEMM's masked form: each expert has room for as many rows as the largest has, rounded up to 128."""
    import deep_gemm

    experts, room = len(row.ms), -(-max(row.ms) // 128) * 128
    place = torch.cat([e * room + torch.arange(m) for e, m in enumerate(row.ms)]).cuda()
    a = torch.zeros(experts * room, row.k, dtype=torch.uint8, device="cuda")
    a[place] = x.a.view(torch.uint8)
    scale = torch.zeros(experts * room, row.k // 128, device="cuda")
    scale[place] = x.a_scale.T
    a, scale = a.view(torch.float8_e4m3fn).view(experts, room, -1), scale.view(experts, room, -1)
    operands = (a, deep_gemm.get_mn_major_tma_aligned_tensor(scale)), (x.b, x.b_scale)
    out = torch.empty(experts, room, row.n, dtype=torch.bfloat16, device="cuda")
    counts = torch.tensor(row.ms, dtype=torch.int32, device="cuda")
    mean = -(-sum(row.ms) // experts)
    call = lambda: deep_gemm.fp8_m_grouped_gemm_nt_masked(*operands, out, counts, mean)  # noqa: E731
    return call, lambda: out.view(experts * room, -1)[place]


def scaled_mm(row: Row, x: Inputs) -> tuple[Callable, Callable]:
    """Call torch._scaled_mm once for each expert that has rows."""
    bounds = x.m_indptr.tolist()
    calls = []
    for e, (start, end) in enumerate(zip(bounds, bounds[1:])):
        if end > start:
            scale_a = x.a_scale[:, start:end].contiguous().T
            calls.append((x.a[start:end], x.b[e].T, scale_a, x.b_scale[e].T))
    results = [None] * len(calls)

    def call():
        for i, (a, b, sa, sb) in enumerate(calls):
            results[i] = torch._scaled_mm(a, b, scale_a=sa, scale_b=sb, out_dtype=torch.bfloat16)

    return call, lambda: torch.cat(results)


PEERS = {
    "DeepGEMM masked": deep_gemm_masked,
    "DeepGEMM contiguous": deep_gemm_contiguous,
    "torch._scaled_mm": scaled_mm,
}
CONTESTANTS = {OURS: ours, **{name: functools.partial(loads_only, i == 1) for i, name in enumerate(FLOORS)}, **PEERS}


# ---------------------------------------------------------------------------------------------------------- measurement


def time_row(row: Row, contestants: dict[str, Callable], repeats: int, rng: random.Random) -> dict:
    """Time each contestant: the median and all timings in microseconds a call, and why a peer refused."""
    size = sum(m > 0 for m in row.ms) * row.n * row.k + sum(row.ms) * (row.k + 2 * row.n)  # bytes that a call touches
    sets = [Inputs.draw(row, seed) for seed in range(min(CALLS, max(3, -(-LEAST // size))))]
    contest = Contest()

    def run(make: Callable) -> tuple[list[Callable], torch.Tensor | None]:
        made = [make(row, x) for x in sets]
        made[0][0]()
        torch.cuda.synchronize()
        return [call for call, _ in made], made[0][1]()

    calls, reference = run(contestants[OURS])
    contest.add({OURS: calls})
    reference = reference.float().clone()

    def compared(make: Callable) -> tuple[list[Callable], float]:
        """And by how much the peer's result differs, to see that it does the same work."""
        calls, result = run(make)
        return calls, ((result.float() - reference).norm() / reference.norm()).item()

    for name, make in contestants.items():
        if name in FLOORS:
            contest.add({name: run(make)[0]})
        elif name != OURS:
            contest.admit(name, lambda make=make: compared(make))
    times = contest.times(repeats, rng)
    found = {"difference": contest.difference, "refused": contest.refused, "sets": len(sets), "all": times}
    return {"us": medians(times)} | found


def config_of(row: Row) -> str:
    """Return the config that this GPU's table has for the row."""
    table = tuning(device_of(torch.device("cuda", torch.cuda.current_device())).capability)
    return str(table.choose_gemm(sum(row.ms), len(row.ms), row.n, row.k))


def summary(row: Row, config: str, measured: dict, peak: float) -> dict:
    """Return the row's figures: floor, ratio to the best peer, rate. peak: FLOP/s of the MMAs."""
    us, flop = measured["us"], 2 * sum(row.ms) * row.n * row.k
    multiply = flop / peak * 1e6
    peers = {name: us[name] for name in PEERS if name in us}
    best, loads = min(peers, key=peers.get) if peers else None, min(us[name] for name in FLOORS)
    return {
        "experts": len(row.ms), "m": list(row.ms), "n": row.n, "k": row.k, "name": row.name, "config": config,
        **measured,
        "floor us": max(loads, multiply), "floor": "loads" if loads > multiply else "MMA",
        "best peer": best, "ratio": us[OURS] / peers[best] if best else None, "TFLOPS": flop / us[OURS] / 1e6,
    }  # fmt: skip


def label(x: dict) -> str:
    """Return what a table calls a row: experts x rows of each, or how rows are spread."""
    even = len(set(x["m"])) == 1
    return f"{x['experts']} x {x['m'][0]}" if even else f"{x['name']}: {x['experts']}, {sum(x['m'])} rows"


def table(rows: list[dict]) -> str:
    """Return a table of all rows in markdown; times are in microseconds."""
    head = ["experts x m", "N", "K", "config", "this, us", "floor, us", "/ floor", "TFLOPS"]
    lines = []
    for x in rows:
        us, floor = x["us"][OURS], x["floor us"]
        cells = label(x), x["n"], x["k"], x["config"], f"{us:.1f}", f"{floor:.1f} ({x['floor']})", f"{us / floor:.2f}"
        peers = [f"{x['us'][name]:.1f}" if name in x["us"] else "" for name in PEERS]
        lines.append([*map(str, cells), f"{x['TFLOPS']:.0f}", *peers, f"{x['ratio']:.3f}" if x["ratio"] else ""])
    return markdown([*head, *PEERS, "ratio to the best"], lines)


def geomeans(rows: list[dict]) -> dict[str, float]:
    """Return geometric means of the ratios to the best peer: over all rows, and by the mean rows of an expert."""

    def geomean(chosen):
        ratios = [x["ratio"] for x in chosen if x["ratio"]]
        return statistics.geometric_mean(ratios) if ratios else math.nan

    small = [x for x in rows if sum(x["m"]) / x["experts"] <= 128]
    large = [x for x in rows if sum(x["m"]) / x["experts"] > 128]
    return {"all rows": geomean(rows), "mean m <= 128": geomean(small), "mean m > 128": geomean(large)}


def measure(rows: list[Row], repeats: int, rng: random.Random, peers: bool):
    """Yield the results of each row; of the peers that are installed, too, if they are wanted."""
    peak = next((x for card, x in DENSE_FP8.items() if card in torch.cuda.get_device_name()), math.inf)
    contestants = {x: make for x, make in CONTESTANTS.items() if peers or x not in PEERS}
    for row in rows:
        yield summary(row, config_of(row), time_row(row, contestants, repeats, rng), peak)
