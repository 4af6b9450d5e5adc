"""A timing on a GPU, of calls back to back between two events, after a fill that flushes L2; a command's record."""

import datetime
from collections.abc import Callable

import click
import torch

CALLS = 15
FLUSH = 2 << 30  # bytes of the fill, which takes long enough for the host to queue the calls behind it


def flushed() -> torch.Tensor:
    """Return what `elapsed` fills to flush L2."""
    return torch.empty(FLUSH, dtype=torch.uint8, device="cuda")


def elapsed(calls: list[Callable], fill: torch.Tensor, value: int, begin: Callable = lambda: None) -> float:
    """Return how many microseconds these calls take back to back, after `fill` was filled with `value`, and `begin`."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    fill.fill_(value)
    begin()
    start.record()
    for call in calls:
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1000


def need_gpu() -> None:
    """Raise ClickException where torch has no GPU to measure on."""
    if not torch.cuda.is_available():
        raise click.ClickException("there is no GPU here: times are measured, never modelled, by this command")


def record(repeats: int, rows: list[dict], **more) -> dict:
    """Return what a command writes of its rows: the card, the date, torch, how often it timed, and what else it has."""
    return {
        "gpu": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(), "torch": torch.__version__,
        "calls": CALLS, "repeats": f"up to {repeats}", **more, "rows": rows,
    }  # fmt: skip


def captured(calls: list[Callable]) -> list[Callable]:
    """Capture these calls in a CUDA graph; return one call, which replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return [graph.replay]
