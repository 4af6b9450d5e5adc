"""These functions make calls of the grouped GEMMs and of the layer on the emulated GPU, for its timing model.

Only what decides a kernel's course has contents: m_indptr, and the layer's logits. All else is zeros that nobody has
written, which cost no memory. Import this after emulated_gpu.install.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch

import emulated_gpu
from ragged_moe.kernels.config import Config
from ragged_moe.layers.deepseek_layer import Layer
from ragged_moe.layers.experts import experts
from ragged_moe.layers.fp4_layer import COPIED_ENTRIES
from ragged_moe.layers.grouped_gemm_fp4 import grouped_gemm_nvfp4
from ragged_moe.layers.grouped_gemm_fp8 import launcher
from ragged_moe.layers.signatures import EXPERTS_FORMS, GEMM_FORMS, packing
from ragged_moe.reference import layer as d
from ragged_moe.runtime import sizes as p
from ragged_moe.runtime.device import device_of
from ragged_moe.tuning.back_ends import tuning

# Weights in e2m1: whether MXFP4, and as of `activation` packed
KINDS = {"nvfp4": (False, None), "mxfp4": (True, None), "w4a16": (False, "bf16")}
LEAST = 200 << 20  # bytes of all sets of inputs, beyond the L2


class Calls(NamedTuple):
    """Calls of a problem, back to back, and what is known of them."""

    calls: list[Callable]
    launches: int  # of each call
    more: dict  # config, or rows and experts of each set
    stages: tuple[str, ...] = ()  # names of the launches, where they are several
    polled: bool = False  # whether a kernel awaits values that another CTA's tensor core has made


def of_problem(kind: str, args: dict, count: int, config_by: Callable[[Config], Config]) -> Calls:
    """Return this many Calls of a problem. args: m of each expert, n, k; or t, the tokens of a layer.

    kind: fp8, or one of KINDS. config_by: changes the config that the table has, of FP8's GEMM.
    """
    if "t" in args:
        sets, polled = min(3, count), False
        if kind == "fp8":
            calls, drawn, stages, polled = layer(args["t"], sets, count)
        else:
            calls, drawn, stages = experts_fp4(args["t"], sets, count, kind)
        more = {"rows": [rows for rows, _ in drawn], "experts": [experts for _, experts in drawn]}
        return Calls(calls, len(stages), more, stages, polled)
    problem = tuple(args["m"]), args["n"], args["k"]
    if kind != "fp8":
        stages = ("GEMM",) if kind == "w4a16" else ("quantise", "GEMM")
        return Calls(grouped_gemm_fp4(*problem, count, kind), len(stages), {}, stages)
    config = config_by(config_of(*problem))
    calls = grouped_gemm(*problem, config, count)
    return Calls(calls, 1, {"config": str(config)}, polled=config.polled_partials)


def config_of(ms: tuple[int, ...], n: int, k: int) -> Config:
    """Return the config that this GPU's table has for a problem. ms: rows of each expert."""
    return tuning(capability()).choose_gemm(sum(ms), len(ms), n, k)


def grouped_gemm(ms: tuple[int, ...], n: int, k: int, config: Config, calls: int) -> list[Callable]:
    """Return this many calls on sets of inputs in turn, which together do not fit L2. ms: rows of each expert."""
    experts, rows = len(ms), sum(ms)
    size = experts * n * k + rows * (k + 2 * n)
    m_indptr = torch.tensor([sum(ms[:e]) for e in range(experts + 1)], dtype=torch.int32)

    def draw() -> tuple:
        empty = (
            torch.empty(rows, k, dtype=p.E4M3), torch.empty(k // 128, rows),
            torch.empty(experts, n, k, dtype=p.E4M3), torch.empty(experts, n // 128, k // 128),
        )  # fmt: skip
        out = emulated_gpu.device_tensors(torch.empty(rows, n, dtype=p.BF16), copy=False)
        return *emulated_gpu.device_tensors(empty, copy=False), emulated_gpu.device_tensors(m_indptr), out

    launch = launcher(torch.device("cpu"), config)
    sets = [draw() for _ in range(min(calls, max(3, -(-LEAST // size))))]
    return [lambda x=sets[i % len(sets)]: launch(x, rows, n, k, experts) for i in range(calls)]


def layer(tokens: int, sets: int, calls: int) -> tuple[list[Callable], list[tuple[int, int]], tuple[str, ...], bool]:
    """Return (calls, of each set of tokens its rows and the experts that have some, the stages that a call launches,
    whether a kernel awaits values that another CTA's tensor core has made).

    Logits are drawn as ragged_moe bench layer draws them, a set with no rows left out; weights are the same in
    all calls.
    """
    sizes = p.Sizes()
    made = Layer(torch.device("cpu"), sizes)
    h, i, e = sizes.hidden, sizes.intermediate, sizes.local
    weights = emulated_gpu.device_tensors(
        (
            torch.empty(e, 2 * i, h, dtype=p.E4M3), torch.empty(e, 2 * i // 128, h // 128),
            torch.empty(e, h, i, dtype=p.E4M3), torch.empty(e, h // 128, i // 128),
        ),
        copy=False,
    )  # fmt: skip
    drawn, counts, seed = [], [], 0
    while len(drawn) < sets:
        x = d.draw(dataclasses.replace(sizes, hidden=128, intermediate=128, local=1), tokens, seed)
        chosen, _ = d.route(x.routing_logits, x.routing_bias, x.routed_scaling_factor)
        rows_of = torch.bincount(chosen.flatten(), minlength=p.EXPERTS)[:e]
        seed += 1
        if rows_of.sum():
            routing = emulated_gpu.device_tensors((x.routing_logits, x.routing_bias))
            hidden = torch.empty(tokens, h, dtype=p.E4M3), torch.empty(h // 128, tokens)
            inputs = p.Inputs(*routing, *emulated_gpu.device_tensors(hidden, copy=False), *weights)
            output = emulated_gpu.device_tensors(torch.empty(tokens, h, dtype=p.BF16), copy=False)
            drawn.append((inputs, output))
            counts.append((int(rows_of.sum()), int((rows_of > 0).sum())))
    polled = any(config.polled_partials for config in made.configs(tokens))
    return [lambda s=drawn[c % sets]: made(*s) for c in range(calls)], counts, made.stages(tokens), polled


NVFP4 = 4.5 / 8  # bytes of a weight


def capability() -> tuple[int, int]:
    """The emulated GPU's."""
    return device_of(torch.device("cpu")).capability


def made(operands: tuple) -> list[torch.Tensor]:
    """Tensors on the device as these Operands say, which nobody has written."""
    return emulated_gpu.device_tensors(tuple(torch.empty(x.shape, dtype=x.dtype) for x in operands), copy=False)


def grouped_gemm_fp4(ms: tuple[int, ...], n: int, k: int, calls: int, kind: str) -> list[Callable]:
    """As `grouped_gemm`, of grouped_gemm_nvfp4, under the config that is chosen; all of its launches."""
    count, rows = len(ms), sum(ms)
    size, form = int(count * n * k * NVFP4) + rows * 2 * (k + n), GEMM_FORMS[packing(capability(), *KINDS[kind])]
    m_indptr = torch.tensor([sum(ms[:e]) for e in range(count + 1)], dtype=torch.int32)

    def draw() -> tuple:
        tensors = [torch.empty(rows, k, dtype=p.BF16), torch.empty(count), torch.empty(rows, n, dtype=p.BF16)]
        a, b_global, out = emulated_gpu.device_tensors(tuple(tensors), copy=False)
        weights = made(form.expected({"total_M": rows, "N": n, "K": k, "E": count})[2:4])
        return a, *weights, b_global, emulated_gpu.device_tensors(m_indptr), out

    sets = [draw() for _ in range(min(calls, max(3, -(-LEAST // size))))]
    return [lambda x=sets[i % len(sets)]: grouped_gemm_nvfp4(*x) for i in range(calls)]


def experts_fp4(
    tokens: int, sets: int, calls: int, kind: str
) -> tuple[list[Callable], list[tuple[int, int]], tuple[str, ...]]:
    """As `layer`, of ragged_moe.experts with weights in NVFP4 or MXFP4 and tokens in bf16, whose experts are drawn
    evenly."""
    sizes = p.Sizes()
    h, i, e, k = sizes.hidden, sizes.intermediate, sizes.local, sizes.top_k
    letters = {"T": tokens, "H": h, "I": i, "E": e, "k": k}
    weights = made(EXPERTS_FORMS[packing(capability(), *KINDS[kind])].expected(letters)[3:7])
    scales = emulated_gpu.device_tensors((torch.empty(e), torch.empty(e)), copy=False)
    options = dict(zip(("w13_global", "w2_global"), scales)) | {"num_experts": sizes.experts}
    drawn, counts = [], []
    for seed in range(sets):
        g = torch.Generator().manual_seed(seed)
        ids = torch.rand(tokens, sizes.experts, generator=g).argsort(1)[:, :k].int()
        of_local = torch.bincount(ids.flatten(), minlength=sizes.experts)[:e]
        counts.append((int(of_local.sum()), int((of_local > 0).sum())))
        empty = torch.empty(tokens, k), *(torch.empty(tokens, h, dtype=p.BF16) for _ in range(2))
        given, hidden, out = emulated_gpu.device_tensors(empty, copy=False)
        drawn.append((hidden, emulated_gpu.device_tensors(ids), given, out))

    def call(hidden, ids, given, out) -> None:
        experts(hidden, ids, given, *weights, **options, out=out)

    first = ("assign, quantise",)
    if kind == "w4a16":
        first = ("assign",) if tokens * k <= COPIED_ENTRIES else ("assign", "permute")
    stages = *first, "GEMM1", "GEMM2", "finalise"
    return [lambda x=drawn[c % sets]: call(*x) for c in range(calls)], counts, stages
