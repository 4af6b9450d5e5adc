"""`elapsed` times calls on a GPU: back to back between two events, after a fill that flushes L2."""

from collections.abc import Callable

import torch

CALLS = 15
FLUSH = 2 << 30  # bytes of the fill, which takes long enough for the host to queue the calls behind it


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


def captured(calls: list[Callable]) -> list[Callable]:
    """Capture these calls in a CUDA graph; return one call, which replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return [graph.replay]
