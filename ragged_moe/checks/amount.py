"""How much of a check is done: all of it, or, on an emulated GPU, what takes less than two minutes."""

import itertools
from collections.abc import Iterable, Sequence

import click

ALL = click.option("--all", "everything", is_flag=True, help="Emulated: every case under every config, not a choice.")


def pairs(cases: Iterable, configs: Iterable, everything: bool) -> list[tuple]:
    """Return the (case, config) to check: all, or, without `everything`, each case and each config once or more.

    >>> pairs("abc", "xy", False)
    [('a', 'x'), ('b', 'y'), ('c', 'x')]
    """
    cases, configs = list(cases), list(configs)
    if everything:
        return list(itertools.product(cases, configs))
    number = max(len(cases), len(configs))
    return [(cases[i % len(cases)], configs[i % len(configs)]) for i in range(number)]


def say(chosen: Sequence, of_all: int, seconds: float, what: str = "launches") -> None:
    """Say how much is checked, and for how long. seconds: of each, on an emulated GPU, on a core that is free."""
    minutes = [f"about {max(1, round(count * seconds / 60))} min" for count in (len(chosen), of_all)]
    rest = f"; --all does {of_all}, {minutes[1]}" if len(chosen) < of_all else ""
    click.echo(f"{len(chosen)} {what}, {minutes[0]} on a core{rest}")
