"""Marks of the cases that `make test` leaves to `make thorough`.

Those are more of a kind of which others are kept: further shapes, configs and orders of events.
"""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def all_but(kept: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return cases for parametrize; those that are not in `kept` are run by `make thorough` alone."""
    return [case if case in kept else marked(case) for case in cases]


def all_but_every(nth: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases for parametrize; `make test` runs the first, the one `nth` behind it, and so on."""
    return [case if i % nth == 0 else marked(case) for i, case in enumerate(cases)]


def marked(case: Any) -> Any:
    """Return a case for parametrize that `make thorough` alone runs, under the name that it has unmarked."""
    return pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.thorough)


def unless(kept: bool):
    """Decorate a test that `make thorough` alone runs where this is False."""
    return (lambda test: test) if kept else pytest.mark.thorough
