"""`python -m ragged_moe bench gemm --json FILE` times the grouped GEMMs and their peers on this GPU; see contest.py.

All contestants work on the same numbers. FORMATS has what is timed with each format of the weights:

    fp8    grouped_gemm_fp8, and the peers that are installed (gemm_peers.py)
    nvfp4  grouped_gemm_nvfp4, and Marlin with the block that SGLang chooses for it, and with each other one
    mxfp4  W4A16 and W4A8, on Hopper. W4A8 rounds tokens to e4m3 in a launch in front; its launches are timed apart, too

FP8 beside the others has weights of the same sizes, but for K, which is rounded up to 128. The floor is the time of a
kernel that only loads the operands of the experts that have rows and writes as many bytes (floor.py), or of the
multiplications at the card's dense rate, whichever is longer.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ragged_moe.layers.grouped_gemm_fp4 import grouped_gemm_nvfp4, launch_quantiser
from ragged_moe.layers.grouped_gemm_fp8 import grouped_gemm_fp8, launcher
from ragged_moe.layers.signatures import TILE
from ragged_moe.measure import humming, marlin, rows
from ragged_moe.measure.contest import FP8, OURS, W4A8, W4A16, Contest, Contestant, Peers, best, how_many_sets
from ragged_moe.measure.floor import Floor
from ragged_moe.measure.gemm_peers import PEERS
from ragged_moe.measure.humming import HUMMING
from ragged_moe.measure.markdown import Column, figure, ratio, value
from ragged_moe.measure.marlin import BEST, MARLIN
from ragged_moe.measure.operands import Inputs, checkpoint_nvfp4, draw_fp8, draw_mxfp4, draw_nvfp4
from ragged_moe.measure.rows import Row
from ragged_moe.measure.timing import captured
from ragged_moe.runtime.device import device_of
from ragged_moe.runtime.sizes import BF16, E4M3, F32
from ragged_moe.tuning import sm90
from ragged_moe.tuning.back_ends import tuning

DENSE = {"H100": 989e12, "H200": 989e12, "B200": 2250e12}  # FLOP/s in bf16: the vendor's data sheets, without sparsity
FLOORS = "loads only, shares", "loads only, interleaved"
GEMM, QUANTISER = "W4A8, GEMM alone", "W4A8, quantiser alone"


class Operands(NamedTuple):
    """What contestants work on: a problem, its weights as Format.draw returns them, tokens in bf16, operands of FP8."""

    row: Row
    weights: Any
    a: torch.Tensor
    fp8: Inputs
    marlin: Callable | None


# --------------------------------------------------------------------------------------------------------- contestants


def of_fp8(x: Inputs) -> Contestant:
    """Call grouped_gemm_fp8."""
    return Contestant(lambda: grouped_gemm_fp8(x.a, x.a_scale, x.b, x.b_scale, x.m_indptr, x.out), lambda: x.out)


def of_fp4(x: Operands, weights: tuple, like: str | None = None) -> Contestant:
    """Call grouped_gemm_nvfp4 with these packed weights."""
    out = torch.empty_like(x.fp8.out)
    return Contestant(lambda: grouped_gemm_nvfp4(x.a, *weights, x.fp8.m_indptr, out), lambda: out, like)


def floors(a: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> dict[str, Contestant]:
    """Call the kernel that only loads, in both forms; it writes as many bytes as `out` has."""
    out = torch.empty_like(out)
    calls = [functools.partial(Floor(interleaved), a, weights, out) for interleaved in (False, True)]
    return {name: Contestant(call) for name, call in zip(FLOORS, calls)}


def fp8(x: Operands) -> dict[str, Contestant]:
    """Return ours, and the floors."""
    return {OURS: of_fp8(x.fp8), **floors(x.fp8.a, x.fp8.b[: x.row.used], x.fp8.out)}


def nvfp4(x: Operands) -> dict[str, Contestant]:
    """Return ours, FP8's, the floors, and Marlin's with each size of its blocks, if it is to be timed."""
    packed, of_marlin = x.weights
    loaded = torch.empty(x.row.used * x.row.n * x.row.k * 9 // 16, dtype=torch.uint8, device="cuda")  # never written
    made = {OURS: of_fp4(x, packed), FP8: of_fp8(x.fp8), **floors(x.a, loaded, x.fp8.out)}
    results, bounds = torch.empty_like(x.fp8.out), x.row.offsets
    for block in marlin.BLOCKS if x.marlin else ():
        of_block = marlin.Rows([range(*of) for of in zip(bounds, bounds[1:])], block, x.row.total)
        call = functools.partial(marlin.multiply, x.marlin, x.a, of_marlin, of_block, results)
        made[f"{MARLIN} {block}"] = Contestant(call, lambda: results, OURS)
    return made


def of_humming(layer: Callable, x: Operands) -> Contestant:
    """Call Humming's layer of these weights."""
    out, bounds = torch.empty_like(x.fp8.out), torch.tensor(x.row.offsets, device="cuda")
    return Contestant(functools.partial(humming.multiply, layer, x.a, bounds, out), lambda: out, OURS)


def mxfp4(x: Operands) -> dict[str, Contestant]:
    """Return W4A16, W4A8, its two launches (the quantiser, and a GEMM on what that left), and FP8's."""
    of_w4a16, of_w4a8 = x.weights
    quantise, gemm = w4a8_launches(x, of_w4a8)
    both = {W4A16: of_fp4(x, of_w4a16), W4A8: of_fp4(x, of_w4a8, W4A16)}
    return both | {QUANTISER: quantise, GEMM: gemm, FP8: of_fp8(x.fp8)}


def w4a8_launches(x: Operands, weights: tuple) -> tuple[Contestant, Contestant]:
    """Make the two launches of a call of W4A8: one quantises tokens, to memory of its own, one multiplies these."""
    (total, k), (b, b_scale, b_global) = x.a.shape, weights
    gemm = launcher(x.a.device, sm90.choose_fp4_by_e4m3(total, len(b), TILE * b.shape[1]))
    values, scales = torch.empty(total, k, dtype=E4M3, device="cuda"), torch.empty(total, dtype=F32, device="cuda")
    words, out = (*gemm.words(gemm.grid, total, TILE * b.shape[1], k, len(b)), scales.data_ptr()), x.fp8.out.clone()
    operands = values, b_global, b, b_scale, x.fp8.m_indptr, out
    return (
        Contestant(lambda: launch_quantiser(gemm, *(of.data_ptr() for of in (x.a, values, scales)), total, k)),
        Contestant(lambda: gemm.launch([of.data_ptr() for of in operands], words), lambda: out, W4A8),
    )


# ------------------------------------------------------------------------------------------------------------- formats


class Format(NamedTuple):
    """What is timed with weights of a format.

    rows: the problems. bits: of a weight and its share of the scales, doubled. draw: weights from experts, N, K and a
    seed. contestants: from operands. ours: whose rate is told. config: the config of a problem. columns: of the table.
    means: pairs of contestants, the geometric means of whose ratios are told.
    """

    rows: Callable[[], list[Row]]
    bits: int
    draw: Callable[[int, int, int, int], Any]
    contestants: Callable[[Operands], dict[str, Contestant]]
    ours: str
    config: Callable[[Row], object]
    columns: list[Column]
    means: dict[str, tuple[str, str]]


def of_table(row: Row):
    """Return the config that this GPU's table has for the row with FP8 weights."""
    table = tuning(device_of(torch.device("cuda", torch.cuda.current_device())).capability)
    return table.choose_gemm(row.total, len(row.ms), row.n, row.k)


def of_fp4_table(row: Row):
    """Return the config that Hopper's table has for the row with FP4 weights."""
    return sm90.choose_fp4(row.total, len(row.ms), row.n, row.k, "bf16")


SIZES: list[Column] = [("experts x m", rows.label), ("N", figure("n", "d")), ("K", figure("k", "d"))]
RATE = figure("TFLOPS", ".0f")
FORMATS = {
    "fp8": Format(
        rows.fp8_rows, 16, draw_fp8, fp8, OURS, of_table,
        [
            *SIZES, ("config", figure("config", "")), ("this, us", figure(OURS)),
            ("floor, us", lambda x: f"{x['floor us']:.1f} ({x['floor']})"), ("/ floor", ratio(OURS, "floor us")),
            ("TFLOPS", RATE), *((name, figure(name)) for name in PEERS), ("ratio to the best", figure("ratio", ".3f")),
        ],
        {},
    ),
    "nvfp4": Format(
        rows.nvfp4_rows, 9, draw_nvfp4, nvfp4, OURS, of_fp4_table,
        [
            *SIZES, ("this, us", figure(OURS)), ("loads, us", figure("loads us")), ("/ loads", ratio(OURS, "loads us")),
            ("TFLOPS", RATE), ("FP8, us", figure(FP8)), ("/ FP8", ratio(OURS, FP8)), ("Marlin, us", figure(MARLIN)),
            ("best block, us", figure(BEST)), ("/ best", ratio(OURS, BEST)), ("Humming, us", figure(HUMMING)),
            ("/ Humming", ratio(OURS, HUMMING)),
        ],
        {name: (OURS, name) for name in (FP8, MARLIN, BEST, HUMMING)},
    ),
    "mxfp4": Format(
        rows.mxfp4_rows, 8, draw_mxfp4, mxfp4, W4A8, of_fp4_table,
        [
            *SIZES, (W4A16, figure(W4A16)), (W4A8, figure(W4A8)), ("its GEMM", figure(GEMM)),
            ("its quantiser", figure(QUANTISER)), (FP8, figure(FP8)), ("W4A8 / W4A16", ratio(W4A8, W4A16)),
            ("GEMM / W4A16", ratio(GEMM, W4A16)), ("W4A8 / FP8", ratio(W4A8, FP8)), ("W4A8, TFLOPS", RATE),
        ],
        {name: (W4A8, name) for name in (W4A16, FP8)},
    ),
}  # fmt: skip


class GroupedGemm:
    """The contests of a format of the weights. Rows of the same sizes, one behind the other, have the same weights."""

    def __init__(self, kind: str, peers: Peers):
        self.of, self.fp8, self.peers = FORMATS[kind], kind == "fp8", peers
        self.drawn_for, self.weights = None, []

    def contest(self, row: Row) -> Contest:
        """Draw sets of operands that do not fit L2 together, and add all contestants."""
        experts, of_fp8 = len(row.ms), dataclasses.replace(row, k=-(-row.k // 128) * 128)
        touched = row.used * row.n * row.k * self.of.bits // 16 + 2 * row.total * (row.k + row.n)
        size = how_many_sets(touched), experts, row.n, row.k
        if self.drawn_for != size:
            self.drawn_for, self.weights = size, []
            torch.cuda.empty_cache()
            for seed in range(size[0]):
                weights = self.of.draw(*size[1:], seed)
                beside = weights if self.fp8 else draw_fp8(experts, row.n, of_fp8.k, seed)
                make = self.peers.humming
                layer = make and humming.layer_of(make, *checkpoint_nvfp4(*size[1:], seed))
                self.weights.append((weights, beside, layer))
        sets = []
        for seed, (weights, beside, _) in enumerate(self.weights):
            g = torch.Generator("cuda").manual_seed(seed)
            a = torch.randn(row.total, row.k, generator=g, device="cuda").to(BF16)
            sets.append(Operands(row, weights, a, Inputs.draw(of_fp8, seed, beside), self.peers.marlin))
        contest = Contest(row.facts | {"sets": len(sets), "config": str(self.of.config(row))})
        contest.add([self.of.contestants(x) for x in sets])
        if self.peers.humming:
            contest.admit(HUMMING, lambda: [of_humming(layer, x) for (*_, layer), x in zip(self.weights, sets)])
        if self.peers.humming:  # called, it and small problems would take the host longer than the GPU
            contest.calls = {name: captured(calls) for name, calls in contest.calls.items()}
        for name, make in PEERS.items() if self.peers.installed else ():
            contest.admit(name, lambda make=make: [make(row, x.fp8) for x in sets])
        return contest

    def derived(self, row: dict, contest: Contest) -> dict:
        """Return the rate, the floor, and the ratio to the best peer; Marlin's times by its own and the best block."""
        us, flop = row["us"], 2 * sum(row["m"]) * row["n"] * row["k"]
        found = {"TFLOPS": flop / us[self.of.ours] / 1e6}
        loads, peer = best(us, FLOORS), best(us, PEERS)
        if loads:
            dense = next((x for card, x in DENSE.items() if card in torch.cuda.get_device_name()), math.inf)
            multiply = flop / dense * 1e6 / (1 + self.fp8)
            of_loads = {"loads us": us[loads], "MMA us": multiply, "floor us": max(us[loads], multiply)}
            found |= of_loads | {"floor": "loads" if us[loads] > multiply else "MMA"}
        if self.fp8:
            found |= {"best peer": peer, "ratio": us[OURS] / us[peer] if peer else None, "all": contest.times}
        if self.peers.marlin:
            us |= marlin.chosen(us, sum(row["m"]), row["experts"])
        return found


def geomeans(kind: str, records: list[dict]) -> dict[str, float]:
    """Return geometric means of a format's ratios; with FP8 weights of those to the best peer, by rows of an expert."""

    def mean(ratios: list[float]) -> float:
        return statistics.geometric_mean(ratios) if ratios else math.nan

    if kind != "fp8":
        means = FORMATS[kind].means.items()
        return {
            name: mean([value(x, a) / value(x, b) for x in records if value(x, b)])
            for name, (a, b) in means if any(value(x, b) for x in records)
        }  # fmt: skip
    compared = [(x["ratio"], sum(x["m"]) / x["experts"] <= 128) for x in records if x["ratio"]]
    few, many = [[x for x, is_few in compared if is_few == wanted] for wanted in (True, False)]
    return {"all rows": mean(few + many), "mean m <= 128": mean(few), "mean m > 128": mean(many)}
