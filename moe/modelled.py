"""Calls of the grouped GEMM and of the layer on the emulated GPU, for a timing model: launched, but with no values.

Only what decides a kernel's course has contents: m_indptr, and the layer's logits. All else is zeros that nobody has
written, which cost no memory. Import this after emulator.install.
"""

import dataclasses
from collections.abc import Callable

import torch

import emulator
from moe import api
from moe import definition as d
from moe.kernel import Config
from moe.layer import Layer

LEAST = 200 << 20  # bytes of all sets of inputs, beyond the L2


def config_of(ms: tuple[int, ...], n: int, k: int) -> Config:
    """What this GPU's table has for a problem."""
    return api.back_end(torch.device("cpu")).tuning().choose(sum(ms), len(ms), n, k)


def grouped_gemm(ms: tuple[int, ...], n: int, k: int, config: Config, calls: int) -> list[Callable]:
    """So many calls on sets of inputs in turn, which together do not fit L2. ms: rows of each expert."""
    experts, rows = len(ms), sum(ms)
    size = experts * n * k + rows * (k + 2 * n)
    m_indptr = torch.tensor([sum(ms[:e]) for e in range(experts + 1)], dtype=torch.int32)

    def draw() -> tuple:
        empty = (
            torch.empty(rows, k, dtype=d.E4M3), torch.empty(k // 128, rows),
            torch.empty(experts, n, k, dtype=d.E4M3), torch.empty(experts, n // 128, k // 128),
        )  # fmt: skip
        out = emulator.device_tensors(torch.empty(rows, n, dtype=d.BF16), copy=False)
        return *emulator.device_tensors(empty, copy=False), emulator.device_tensors(m_indptr), out

    launcher = api.launcher(torch.device("cpu"), config)
    sets = [draw() for _ in range(min(calls, max(3, -(-LEAST // size))))]
    return [lambda x=sets[i % len(sets)]: launcher(x, rows, n, k, experts) for i in range(calls)]


def layer(tokens: int, sets: int, calls: int) -> tuple[list[Callable], list[tuple[int, int]], tuple[str, ...]]:
    """(calls, of each set of tokens its rows and the experts that have some, the stages that a call launches).

    Logits are drawn as moe.layer_bench draws them, a set with no rows left out; weights are the same in all calls.
    """
    sizes = d.Sizes()
    made = Layer(torch.device("cpu"), sizes)
    h, i, e = sizes.hidden, sizes.intermediate, sizes.local
    weights = emulator.device_tensors(
        (
            torch.empty(e, 2 * i, h, dtype=d.E4M3), torch.empty(e, 2 * i // 128, h // 128),
            torch.empty(e, h, i, dtype=d.E4M3), torch.empty(e, h // 128, i // 128),
        ),
        copy=False,
    )  # fmt: skip
    drawn, counts, seed = [], [], 0
    while len(drawn) < sets:
        x = d.draw(dataclasses.replace(sizes, hidden=128, intermediate=128, local=1), tokens, seed)
        chosen, _ = d.route(x.routing_logits, x.routing_bias, x.routed_scaling_factor)
        rows_of = torch.bincount(chosen.flatten(), minlength=d.EXPERTS)[:e]
        seed += 1
        if rows_of.sum():
            routing = emulator.device_tensors((x.routing_logits, x.routing_bias))
            hidden = torch.empty(tokens, h, dtype=d.E4M3), torch.empty(h // 128, tokens)
            inputs = d.Inputs(*routing, *emulator.device_tensors(hidden, copy=False), *weights)
            output = emulator.device_tensors(torch.empty(tokens, h, dtype=d.BF16), copy=False)
            drawn.append((inputs, output))
            counts.append((int(rows_of.sum()), int((rows_of > 0).sum())))
    return [lambda s=drawn[c % sets]: made(*s) for c in range(calls)], counts, made.stages(tokens)
