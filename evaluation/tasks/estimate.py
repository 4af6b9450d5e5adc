"""Estimates how long a case of a task takes that nobody here knows, from those before it."""

import math


def size(args: dict) -> float:
    """Multiplies the numbers of a case but its seed: the unit of `Estimate`, and the order in which cases are run."""

    def number(value) -> float:
        if isinstance(value, (tuple, list)):
            return sum(map(number, value)) or 1.0
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else 1.0

    return math.prod(number(value) for name, value in args.items() if name != "seed")


class Estimate:
    """Fits seconds = a * size ** b through the smallest and the largest case that have been run; b is 1 to 3, and 2
    as long as there is one."""

    def __init__(self):
        self.known: dict[float, float] = {}  # size -> seconds, the most of any case of that size

    def add(self, size: float, seconds: float) -> None:
        """Takes note of a case that took so long."""
        self.known[size] = max(seconds, self.known.get(size, 0.0), 1e-3)

    def seconds(self, size: float) -> float | None:
        """Estimates a case of this size; None as long as nothing is known."""
        if not self.known:
            return None
        small, large = min(self.known), max(self.known)
        power = 2.0
        if large > small:
            power = math.log(self.known[large] / self.known[small]) / math.log(large / small)
        return self.known[large] * (size / large) ** min(3.0, max(1.0, power))
