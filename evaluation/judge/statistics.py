"""Statistics of times, as the grader takes them: https://github.com/gpu-mode/reference-kernels."""

import dataclasses
import math
from collections.abc import Iterable


@dataclasses.dataclass
class Stats:
    """Nanoseconds per call over `runs` timings; `err` is the standard error of the mean."""

    runs: int
    mean: float
    std: float
    err: float
    best: float
    worst: float


def calculate_stats(durations: list[float]) -> Stats:
    """Stats of at least two durations."""
    runs = len(durations)
    mean = sum(durations) / runs
    std = math.sqrt(sum((x - mean) ** 2 for x in durations) / (runs - 1))
    return Stats(runs, mean, std, std / math.sqrt(runs), float(min(durations)), float(max(durations)))


def precise_enough(durations: list[float], elapsed_ns: float, max_time_ns: float) -> bool:
    """The grader's stopping rule: an error below 0.1 %, or the time is used up; never before three timings or 0.1 s."""
    if len(durations) < 3 or elapsed_ns <= 1e8:
        return False
    stats = calculate_stats(durations)
    return stats.err / stats.mean < 0.001 or stats.mean * stats.runs > max_time_ns or elapsed_ns > 120e9


def geometric_mean(times: Iterable[float | None]) -> float | None:
    """None unless there are times, and none of them is missing."""
    times = list(times)
    logs = [math.log(us) for us in times if us is not None]
    return math.exp(sum(logs) / len(logs)) if logs and len(logs) == len(times) else None
