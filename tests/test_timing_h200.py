"""A sample of the points measured on an H200 (tests/timing) against the model: the bars of emulator/VALIDATION.md.

python -m tests.timing.validate     # all of them
"""

import hashlib
import statistics

import pytest

from emulator.profile import load
from tests.timing import validate
from tests.timing.points import POINTS

MEDIAN, WORST = 0.10, 0.25
H200 = load("h200")
FAMILIES = ("launches", "tensor maps", "single copies")


def chosen(family: str) -> list:
    """Five points that the profile was not fitted to and three that it was, by a hash of their names."""
    points = [p for p in POINTS if validate.family(p) == family and p.grid <= 132]  # larger grids take long
    points.sort(key=lambda p: hashlib.sha256(f"test {p.name}".encode()).digest())
    out = validate.held_out()
    return [p for p in points if p.name in out][:5] + [p for p in points if p.name not in out][:3]


@pytest.mark.parametrize("family", FAMILIES)
def test_errors(family):
    measured, out = validate.measured(), validate.held_out()
    points = chosen(family)
    errors = {p.name: validate.model(p, H200) / measured[p.name] - 1 for p in points}
    said = "\n".join(f"{e:+.1%} {'held out' if name in out else 'fitted'} {name}" for name, e in errors.items())
    held = [abs(e) for name, e in errors.items() if name in out]
    assert len(held) == 5 and statistics.median(held) <= MEDIAN, said
    assert max(map(abs, errors.values())) <= WORST, said


@pytest.mark.parametrize("name", ["loads/bulk/case 1/wait/6x32K/no tiles", "loads/tensor/case 1/early/12x16K/no tiles"])
def test_dependent_launches(name):
    point = next(p for p in POINTS if p.name == name)
    assert validate.model(point, H200) == pytest.approx(validate.measured()[name], rel=WORST)


def test_the_model_is_deterministic():
    point = next(p for p in POINTS if p.name == "latency/bulk load/DRAM/16384 B/132 CTAs")
    assert validate.model(point, H200) == validate.model(point, H200)
