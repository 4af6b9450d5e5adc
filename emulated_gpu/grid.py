"""What `--config` and `--grid` name: values of entries, as they are written."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from typing import Any

MANY = 10_000  # points of a grid that nobody wants to wait for


def parse_config(text: str) -> dict[str, str]:
    """`stages=4,gran=32` -> {"stages": "4", "gran": "32"}. Raises ValueError."""
    pairs = [part.split("=") for part in text.split(",") if part.strip()]
    if not pairs or any(len(pair) != 2 or not all(map(str.strip, pair)) for pair in pairs):
        raise ValueError(f"'{text}' is no config: expected name=value,name=value")
    return {name.strip(): value.strip() for name, value in pairs}


def parse_grid(text: str | None) -> list[dict[str, str]]:
    """`stages=3,4 prefetch=1..3` -> the six combinations. Raises ValueError."""
    axes = {}
    for part in (text or "").split():
        name, equals, values = part.partition("=")
        if not name or not equals or not all(values.split(",")):
            raise ValueError(f"'{part}' is no axis of a grid: expected name=value,value or name=first..last")
        if name in axes:
            raise ValueError(f"'{part}': {name} is given twice")
        axes[name] = [(name, value) for item in values.split(",") for value in _range(item)]
    points = 1
    for axis in axes.values():
        points *= len(axis)
    if points > MANY:
        raise ValueError(f"the grid has {points} points; more than {MANY} are refused")
    return [dict(point) for point in itertools.product(*axes.values())] if axes else []


def without_effect(points: list[tuple[dict[str, str], Any]]) -> list[str]:
    """Of (values, what came of them): names whose values change nothing, whatever the others are."""
    found = []
    for name in dict.fromkeys(name for values, _ in points for name in values):
        beside = defaultdict(list)  # values of the others -> what came of each value of this one
        for values, came in points:
            if name in values:
                beside[frozenset(values.items() - {(name, values[name])})].append(came)
        several = [of for of in beside.values() if len(of) > 1]
        if several and all(came == of[0] for of in several for came in of):
            found.append(name)
    return found


def _range(item: str) -> list[str]:
    """Expands `2..4` to 2, 3, 4; anything else is itself."""
    if ".." not in item:
        return [item]
    ends = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", item)
    first, last = map(int, ends.groups()) if ends else (1, 0)
    if last < first or last - first >= MANY:
        raise ValueError(f"'{item}' is no range: expected first..last, two integers, not descending")
    return [*map(str, range(first, last + 1))]
