"""`Contest` times the contestants of a row; `told` is the loop over the rows of a command.

A contestant has a call for each set of inputs. A timing is CALLS calls that go round the sets; timing.py has the rest.
"""

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import click
import torch

from ragged_moe.measure.timing import captured, elapsed, flushed, medians, timings, turns

GRAPH = ", in a graph"


class Contest:
    """The contestants of a row.

    calls: of each by name, CALLS in turn. refused: why a peer does not take part. difference: by how much a peer's
    results are off, as whoever admits it says.
    """

    def __init__(self):
        self.calls: dict[str, list[Callable]] = {}
        self.refused: dict[str, str] = {}
        self.difference: dict[str, float] = {}

    def add(self, contestants: dict[str, list[Callable]]) -> None:
        """Add contestants: by name, a call for each set."""
        self.calls |= {name: turns(calls) for name, calls in contestants.items()}

    def admit(self, name: str, make: Callable[[], tuple[list[Callable], float | None]]) -> None:
        """Add a peer if it does this problem and is installed: if `make` raises nothing.

        make() returns a call for each set, and by how much its results are off, if that is known.
        """
        try:
            calls, off = make()
            torch.cuda.synchronize()
        except Exception as error:
            self.refused[name] = f"{type(error).__name__}: {error}"[:300]
            return
        self.add({name: calls})
        if off is not None:
            self.difference[name] = off

    def graphs(self) -> None:
        """Add each contestant's calls as one CUDA graph, under its name and GRAPH."""
        self.calls |= {name + GRAPH: captured(calls) for name, calls in list(self.calls.items())}

    def times(self, repeats: int, rng: random.Random, timed: Callable = elapsed) -> dict[str, list[float]]:
        """Return the microseconds of a call in each timing, all contestants in another order each time."""
        return timings(self.calls, repeats, flushed(), rng, timed)

    def us(self, repeats: int, rng: random.Random, timed: Callable = elapsed) -> dict[str, float]:
        """Return the medians of `times`."""
        return medians(self.times(repeats, rng, timed))


def of_sets(made: list[dict[str, Callable]]) -> dict[str, list[Callable]]:
    """Return the calls of each contestant, a set each, given those of each set by name."""
    return {name: [calls[name] for calls in made] for name in made[0]}


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
        torch.cuda.empty_cache()
    return found
