"""The profile of an H100, against points of one that no figure was fitted to (silicon/timing/h100.json)."""

import statistics

import pytest

from emulated_gpu.chip import tomllib
from emulated_gpu.model import uncertainty
from emulated_gpu.model.profile import FOLDER, load
from silicon.timing import validate
from silicon.timing.points import POINTS

pytestmark = pytest.mark.usefixtures("launches_are_freed")
QUICK = (
    "empty/plain/132x128/cold 1",
    "empty/plain/132x32/cold 15",
    "maps/first use/1 in global",
    "maps/second use/4 in global",
)
DRAWN = (
    "loads/bulk/16 rounds/plain/2x16K/cluster 2/multicast",
    "loads/bulk/16 rounds/plain/4x32K",
    "loads/tensor/16 rounds/plain/4x16K",
    "stores/plain/case 2/2 B per lane/4 warps/132 CTAs/pdl/cold 15",
    *QUICK,
)
MEDIAN, WORST = 0.06, 0.15


@pytest.mark.parametrize(
    "drawn", [pytest.param(QUICK, id="quick"), pytest.param(DRAWN, marks=pytest.mark.thorough, id="all")]
)
def test_held_out_points(drawn):
    measured, out = validate.measured("h100"), validate.held_out()
    points = [point for point in POINTS if point.name in drawn]
    assert len(points) == len(drawn) and {point.name for point in points} <= out
    errors = [abs(validate.model(point, load("h100")) / measured[point.name] - 1) for point in points]
    assert statistics.median(errors) <= MEDIAN and max(errors) <= WORST, errors


def test_it_is_an_h200_but_for_what_it_says():
    own = tomllib.loads((FOLDER / "h100.toml").read_text())
    assert own.pop("base") == "h200"
    base, profile = load("h200"), load("h100")
    for unit, figures in base.items():
        for name, value in figures.items():
            expected = own.get(unit, {}).get(name, {"value": value})["value"]
            assert profile[unit][name] == expected, (unit, name)
    assert {name for unit in own.values() for name in unit} <= {name for unit in base.values() for name in unit}


def test_its_brackets_are_an_h200s_and_say_so():
    assert uncertainty.interval(10.0, machine="h100") == uncertainty.interval(10.0, machine="h200")
    assert "none was timed on an H100" in uncertainty.basis("h100")
