"""Times the layer and its stages on this GPU: python -m moe.layer_bench --json FILE

A timing is CALLS calls back to back between two events, after a fill that flushes L2; the median of --repeats timings.
The calls go round several sets of tokens, with the same weights: those of all local experts are 1.4 GB. A set has at
least one row. Stages are timed apart, each on what the one before left; the whole as it is called, and as a CUDA graph
of all the calls.

Floors: moe.floor's copies of the weights of the experts that have rows, and of the rows; for finalise, a copy by torch
of as many bytes as it reads and writes. There are no peers here yet.
"""

import dataclasses
import datetime
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch

from moe import definition as d
from moe import run
from moe.bench import CALLS, FLUSH, elapsed
from moe.floor import Floor
from moe.layer import Layer, Space

TOKENS = (1, 7, 16, 64, 256, 901, 2048, 4096, 11948, 14107)


@dataclasses.dataclass
class Set:
    """Tokens, the memory of a call, and what it wrote."""

    x: d.Inputs
    space: Space
    output: torch.Tensor
    rows: int
    experts: int  # that have rows


def draw(layer: Layer, weights: d.Inputs, tokens: int, seed: int) -> Set:
    """A set on which all stages have run."""
    few = dataclasses.replace(layer.sizes, intermediate=128, local=1)  # the tokens of a layer that is quickly drawn
    drawn = d.draw(few, tokens, seed, 0, "cuda")
    names = "routing_logits", "hidden_states", "hidden_states_scale"
    x = dataclasses.replace(weights, **{name: getattr(drawn, name) for name in names})
    space = layer.allocate(layer.space(tokens).room)
    output = torch.empty(tokens, layer.sizes.hidden, dtype=d.BF16, device="cuda")
    first, second = layer.configs(tokens)
    layer.route(x, space)
    layer.gemm1(x, space, first)
    layer.gemm2(x, space, second)
    layer.finalise(space, output)
    counts = space.m_indptr.diff()
    return Set(x, space, output, int(counts.sum()), int((counts > 0).sum()))


def timed(calls: list[Callable], repeats: int, fill: torch.Tensor) -> float:
    """Microseconds of one of CALLS calls, which `calls` make together."""
    times = [elapsed(calls, fill, repeat) / CALLS for repeat in range(repeats + 1)]
    return statistics.median(times[1:])  # the first warms up


def measure(layer: Layer, weights: d.Inputs, tokens: int, repeats: int, fill: torch.Tensor) -> dict:
    drawn = (draw(layer, weights, tokens, seed) for seed in range(10**6))
    sets = list(itertools.islice((s for s in drawn if s.rows), 3 if tokens > 900 else 12))
    turns = [sets[i % len(sets)] for i in range(CALLS)]
    first, second = layer.configs(tokens)
    copies = [torch.empty(s.rows + tokens, layer.sizes.hidden, dtype=d.BF16, device="cuda") for s in sets]
    halves = [x.view(2, -1) for x in (y.flatten()[: y.numel() // 2 * 2] for y in copies)]
    floors = []
    for floor in (Floor(False), Floor(True)):
        first_floor, second_floor = [], []
        for s in turns:
            c, o = s.space.c[: s.rows], s.space.o[: s.rows]
            first_floor.append(functools.partial(floor, s.x.hidden_states, s.x.gemm1_weights[: s.experts], c))
            second_floor.append(functools.partial(floor, c, s.x.gemm2_weights[: s.experts], o))
        floors.append((first_floor, second_floor))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for s in turns:
            layer(s.x, s.output)
    calls = {
        "routing": [lambda s=s: layer.route(s.x, s.space) for s in turns],
        "GEMM1": [lambda s=s: layer.gemm1(s.x, s.space, first) for s in turns],
        "GEMM2": [lambda s=s: layer.gemm2(s.x, s.space, second) for s in turns],
        "finalise": [lambda s=s: layer.finalise(s.space, s.output) for s in turns],
        "whole": [lambda s=s: run(*s.x.tensors(), 0, 2.5, s.output) for s in turns],
        "copy for finalise": [lambda y=halves[i % len(sets)]: y[0].copy_(y[1]) for i in range(CALLS)],
    }
    us = {name: timed(x, repeats, fill) for name, x in calls.items()}
    us["whole, in a graph"] = timed([graph.replay], repeats, fill)
    for i, name in enumerate(("GEMM1", "GEMM2")):
        us[f"floor of {name}"] = min(timed(x[i], repeats, fill) for x in floors)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for call in calls["whole"]:
        call()
    us["host"] = (time.perf_counter() - begin) / CALLS * 1e6
    torch.cuda.synchronize()
    mean = [statistics.mean(getattr(s, name) for s in sets) for name in ("rows", "experts")]
    return {"T": tokens, "rows": mean[0], "experts": mean[1], "us": us, "GEMM1": str(first), "GEMM2": str(second)}


COLUMNS = (
    "routing", "GEMM1", "floor of GEMM1", "GEMM2", "floor of GEMM2", "finalise", "copy for finalise", "whole",
    "whole, in a graph", "host",
)  # fmt: skip


def table(rows: list[dict]) -> str:
    """Markdown; microseconds."""
    lines = [f"| T | rows | experts | {' | '.join(COLUMNS)} |", "|---" * (3 + len(COLUMNS)) + "|"]
    for row in rows:
        us = [f"{row['us'][name]:.1f}" for name in COLUMNS]
        lines.append(f"| {row['T']} | {row['rows']:.0f} | {row['experts']:.0f} | {' | '.join(us)} |")
    return "\n".join(lines)


@click.command()
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results there.")
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True, help="Timings, of 15 calls each.")
@click.option("--tokens", default=",".join(map(str, TOKENS)), show_default=True, help="Values of T.")
def main(file: Path | None, repeats: int, tokens: str) -> None:
    """Time the layer, and each of its stages, on this GPU."""
    if not torch.cuda.is_available():
        raise click.ClickException("there is no GPU here: times are measured, never modelled, by this command")
    sizes, rows = d.Sizes(), []
    layer = Layer(torch.device("cuda", torch.cuda.current_device()), sizes)
    weights = d.draw(sizes, 1, device="cuda")
    fill = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    for count in map(int, tokens.split(",")):
        rows.append(measure(layer, weights, count, repeats, fill))
        click.echo(table(rows[-1:]).splitlines()[-1])
        result = {
            "gpu": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(),
            "torch": torch.__version__, "calls": CALLS, "repeats": repeats, "rows": rows,
        }  # fmt: skip
        if file:
            file.write_text(json.dumps(result, indent=1) + "\n")
        layer.spaces.clear()
        torch.cuda.empty_cache()
    click.echo(f"\n{torch.cuda.get_device_name()}, us\n\n{table(rows)}")


if __name__ == "__main__":
    main()
