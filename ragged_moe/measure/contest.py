"""`Contest` times contestants on one problem; `timed_rows` and `told` are the loop over the problems of a command.

A contestant has a call for each set of inputs. A timing is CALLS calls that go round the sets, back to back between two
events, after a fill that flushes L2; contestants come in another order each time. One whose median is `sure` is done.
"""

import json
import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import click
import torch

from ragged_moe.measure.timing import CALLS, captured, elapsed, flushed
from ragged_moe.reference.layer import distance

GRAPH = ", in a graph"
OURS, FP8, LOADS, W4A16, W4A8 = "this", "FP8", "loads", "W4A16", "W4A8"  # contestants' names, as records have them
LEAST = 200 << 20  # bytes of all sets of inputs: four times the L2
NARROW = 0.02  # of the median: an interval of it that is as narrow is enough


class Contestant(NamedTuple):
    """A call on one set of inputs.

    result: reads what the call wrote. like: the contestant, added before, whose result it should be.
    """

    call: Callable[[], object]
    result: Callable[[], torch.Tensor] | None = None
    like: str | None = None


class Contest:
    """The contestants of a problem, and their times.

    facts: what the record has of the problem. calls: of each contestant by name, CALLS in turn, or a graph of them.
    times: microseconds of a call in each timing. difference: `distance` of a contestant's results from those that it
    should have, the largest of its sets. refused: why a peer does not take part.
    """

    def __init__(self, facts: dict):
        self.facts = facts
        self.calls: dict[str, list[Callable]] = {}
        self.times: dict[str, list[float]] = {}
        self.difference: dict[str, float] = {}
        self.refused: dict[str, str] = {}
        self.made: dict[str, list[Contestant]] = {}

    def add(self, sets: list[dict[str, Contestant]]) -> None:
        """Add contestants, given by name for each set; make each call once and compare its result."""
        for name in sets[0]:
            made = [of_set[name] for of_set in sets]
            for x in made:
                x.call()
            torch.cuda.synchronize()
            if made[0].like:
                expected = self.made[made[0].like]
                self.difference[name] = max(distance(x.result(), y.result()) for x, y in zip(made, expected))
            self.made[name], self.calls[name] = made, [made[i % len(made)].call for i in range(CALLS)]

    def admit(self, name: str, make: Callable[[], list[Contestant]]) -> None:
        """Add a peer, of which `make` returns a contestant for each set, if it does this problem and is installed."""
        try:
            self.add([{name: x} for x in make()])
        except Exception as error:
            self.refused[name] = f"{type(error).__name__}: {error}"[:300]

    def graphs(self, called: Iterable[str] | None = None) -> None:
        """Add all calls of each contestant as a CUDA graph, under its name and GRAPH.

        called: the contestants that are timed as called, too; None: all.
        """
        of_graphs = {name + GRAPH: captured(calls) for name, calls in self.calls.items()}
        self.calls = {x: calls for x, calls in self.calls.items() if called is None or x in called} | of_graphs

    def time(self, repeats: int, rng: random.Random, timed: Callable = elapsed) -> None:
        """Time each contestant until its median is sure, `repeats` times at most. A first round, which warms up, does
        not count.
        """
        fill, self.times = flushed(), {name: [] for name in self.calls}
        for repeat in range(repeats + 1):
            unsure = [name for name, times in self.times.items() if not sure(times[1:])]
            for name in rng.sample(unsure, len(unsure)):
                self.times[name].append(timed(self.calls[name], fill, repeat) / CALLS)
        self.times = {name: times[1:] for name, times in self.times.items()}

    def row(self) -> dict:
        """Return the record: facts, medians in microseconds a call, differences, and who was refused."""
        us = {name: statistics.median(times) for name, times in self.times.items()}
        return self.facts | {"us": us, "difference": self.difference, "refused": self.refused}


class Peers(NamedTuple):
    """Which peers take part: those that are installed; Marlin and Humming, as their modules' `load` returns them."""

    installed: bool
    marlin: Callable | None
    humming: Callable | None = None


class Experiment(Protocol):
    """What a command times."""

    def contest(self, problem, /) -> Contest:
        """Return the contest of a problem, with all contestants."""

    def derived(self, row: dict, contest: Contest) -> dict:
        """Return what the record has beside `Contest.row`. It may add to row["us"]."""


def timed_rows(experiment: Experiment, problems: Iterable, repeats: int, rng: random.Random) -> Iterator[dict]:
    """Yield the record of each problem."""
    for problem in problems:
        contest = experiment.contest(problem)
        contest.time(repeats, rng)
        row = contest.row()
        yield row | experiment.derived(row, contest)
        del contest
        torch.cuda.empty_cache()


def told(
    rows: Iterable[dict], table: Callable[[list[dict]], str], file: Path | None, record: Callable[[list[dict]], dict]
) -> list[dict]:
    """Say each row as it comes, and why peers refused, and write the record of all so far; return the rows.

    table: a row is its last line.
    """
    found: list[dict] = []
    for row in rows:
        found.append(row)
        click.echo(table([row]).splitlines()[-1])
        for peer, why in row.get("refused", {}).items():
            click.echo(f"  {peer}: {why}")
        if file:
            file.write_text(json.dumps(record(found), indent=1) + "\n")
    return found


def sure(times: list[float]) -> bool:
    """Whether the interval in which their median lies with 93 % is narrow. Of fewer than five none is so sure."""
    outside = (len(times) - 5) // 3  # of the smallest, and of the largest: by the sign test
    inside = sorted(times)[outside : len(times) - outside] if outside >= 0 else [0.0, 1.0]
    return inside[-1] - inside[0] <= NARROW * inside[0]


def how_many_sets(size: int) -> int:
    """Return how many sets of inputs of `size` bytes do not fit L2, three or more; a timing has no use for others."""
    return min(CALLS, max(3, -(-LEAST // size)))


def best(us: dict[str, float], names: Iterable[str]) -> str | None:
    """Return the fastest of these contestants, None if none took part."""
    return min((name for name in names if name in us), key=us.__getitem__, default=None)
