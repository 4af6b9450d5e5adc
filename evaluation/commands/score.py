"""Which case of a benchmark is worth an author's time, where the score is the geometric mean of all.

In a geometric mean a percent of each case counts the same, however long it takes. What tells cases apart is how far
each is above its floor, the time that nothing can beat: the logarithm of that ratio is its share of what is left.
"""

import dataclasses
import math

LESS = 0.1  # by which a case is thought shorter


@dataclasses.dataclass(frozen=True)
class Worth:
    """Says what a case is worth. above: its time over its floor, at least 1; None where no floor is known. left: its
    share of all that is left to gain, by logarithms; None unless all floors are known. gain: by which share the score
    falls if the case takes LESS of its time less, or is at its floor, whichever is less."""

    above: float | None
    left: float | None
    gain: float


def worths(times: list[float], floors: list[float]) -> list[Worth]:
    """Says what each case is worth. times, floors: microseconds of each; a floor of 0 is not known."""
    above = [max(1.0, us / floor) if floor else None for us, floor in zip(times, floors, strict=True)]
    known = [math.log(ratio) for ratio in above if ratio is not None]
    left = known if len(known) == len(above) else []
    rest, count = sum(left), len(times)
    return [
        Worth(
            ratio,
            (left[at] / rest if rest else 0.0) if left else None,
            1 - max(1 - LESS, 1 / ratio if ratio else 0.0) ** (1 / count),
        )
        for at, ratio in enumerate(above)
    ]


def rows(numbers, times: list[float], floors: list[float], mean: float) -> tuple[list[str], list[list[str]]]:
    """Makes the columns and rows of a table. mean: the score, in microseconds."""
    columns = ["case", "floor", "times the floor", "of what is left", f"{LESS:.0%} less brings"]
    found = []
    for number, floor, worth in zip(numbers, floors, worths(times, floors), strict=True):
        above = [f"{floor:.2f}", f"{worth.above:.2f}"] if worth.above else ["-", "-"]
        left = "-" if worth.left is None else f"{worth.left:.0%}"
        found.append([str(number), *above, left, f"{worth.gain:.1%}, {worth.gain * mean:.3f} us"])
    return columns, found
