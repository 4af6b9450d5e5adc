"""Timings of contestants on a GPU: calls back to back between two events, after a fill that flushes L2; their record.

Those of all contestants are taken in turns, in another order each time.
"""

import datetime
import random
import statistics
from collections.abc import Callable

import click
import torch

CALLS = 15
FLUSH = 2 << 30  # bytes of the fill, which takes long enough for the host to queue the calls behind it


def turns(calls: list[Callable]) -> list[Callable]:
    """Return the CALLS calls of a timing, which go round these, one for each set of inputs."""
    return [calls[i % len(calls)] for i in range(CALLS)]


def flushed() -> torch.Tensor:
    """Return what `elapsed` fills to flush L2."""
    return torch.empty(FLUSH, dtype=torch.uint8, device="cuda")


def elapsed(calls: list[Callable], fill: torch.Tensor, value: int) -> float:
    """Return how many microseconds these calls take back to back, after `fill` was filled with `value`."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    fill.fill_(value)
    start.record()
    for call in calls:
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1000


def timings(
    calls: dict[str, list[Callable]], repeats: int, fill: torch.Tensor, rng: random.Random, timed: Callable = elapsed
) -> dict[str, list[float]]:
    """Time each contestant so often, in random order; return the microseconds of a call, of CALLS, each time.

    calls: a contestant's, which `timed` times as `elapsed` does. A first round, which warms up, does not count.
    """
    times = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name in rng.sample(list(calls), len(calls)):
            times[name].append(timed(calls[name], fill, repeat) / CALLS)
    return {name: x[1:] for name, x in times.items()}


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of each contestant's timings."""
    return {name: statistics.median(x) for name, x in times.items()}


def need_gpu() -> None:
    """Raise ClickException where torch has no GPU to measure on."""
    if not torch.cuda.is_available():
        raise click.ClickException("there is no GPU here: times are measured, never modelled, by this command")


def record(repeats: int, rows: list[dict], **more) -> dict:
    """Return what a command writes of its rows: the card, the date, torch, how often it timed, and what else it has."""
    return {
        "gpu": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(), "torch": torch.__version__,
        "calls": CALLS, "repeats": repeats, **more, "rows": rows,
    }  # fmt: skip


def captured(calls: list[Callable]) -> list[Callable]:
    """Capture these calls in a CUDA graph; return one call, which replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return [graph.replay]
