"""Says which kernels the timing model can tell apart, from pairs on one problem whose times on silicon are known.

The points are those of the intervals of modelled times whose calls came in a row, as a grader's do and those that
`sweep` and `compare` model. An interval says where a time may lie; of two kernels on one
problem the errors are alike, so that an order may be right where intervals overlap.
"""

from __future__ import annotations

import itertools
import json

from . import uncertainty


def known_pairs() -> list[tuple[float, bool]]:
    """Lists pairs of kernels on one problem: (by how much the slower one is slower by the model, whether it is on
    silicon).

    From `plain` come those that were timed by calls in a row; from `dependent` all load sides of a case, and that
    without PDL.
    """
    problems: dict[str, set[tuple[float, float]]] = {}  # -> (time on silicon, the model's)
    for point in uncertainty.POINTS["plain"]:
        if not point["in a row"]:
            continue
        problem = json.dumps([point[name] for name in "mnk"])
        problems.setdefault(problem, set()).add((point["published_us"], point["modelled_us"]))
    for point in uncertainty.POINTS["dependent"]:
        load_sides = problems.setdefault(point["what"].split(", ")[1], set())
        load_sides.add((point["measured_us"], point["modelled_us"]))
        load_sides.add((point["plain_measured_us"], point["plain_modelled_us"]))
    found = []
    for times in problems.values():
        for (real, modelled), (other_real, other_modelled) in itertools.combinations(sorted(times), 2):
            difference = max(modelled, other_modelled) / min(modelled, other_modelled) - 1
            found.append((difference, (modelled - other_modelled) * (real - other_real) > 0))
    return found


def error() -> float:
    """Finds the largest relative difference of modelled times that came with the wrong order, or a tie, on silicon."""
    return max((difference for difference, right in known_pairs() if not right), default=0.0)


def tells(us: float, other_us: float) -> bool:
    """Tells whether two modelled times differ by more than the model has ever been wrong about an order."""
    return max(us, other_us) / min(us, other_us) - 1 > error()


def basis() -> str:
    """Says in a sentence what `tells` rests on."""
    limit, pairs = error(), known_pairs()
    below = [right for difference, right in pairs if difference <= limit]
    return (
        f"The model can tell two kernels apart that differ by more than {100 * limit:.1f} %: of {len(pairs)} known "
        f"pairs on one problem, in calls in a row, the {len(pairs) - len(below)} that differ by more are all in the "
        f"right order, of the {len(below)} others {below.count(False)} are not. See emulated_gpu/VALIDATION.md"
    )
