"""Prices of cp.async, atomics, other CTAs' shared memory, constants, against an H200 (silicon/probes/accesses.py)."""

import statistics

import pytest

from emulated_gpu.model.profile import load
from silicon.probes import accesses, cycles

MEASURED = cycles.recorded(accesses.TABLE)
SMALL = 65  # instructions: what runs within a second
DRAWN = {
    name: point
    for name, point in accesses.points().items()
    if accesses.held_out(name) and point.grid <= 2 and point.warps * point.count < SMALL
}
MEDIAN, COPIES = 0.22, 0.20  # errors


@pytest.mark.parametrize("card", ["h200", "h100"])
def test_the_recordings_are_of_these_kernels(card):
    recorded = cycles.recorded(accesses.TABLE.with_name(f"accesses_{card}.json"))
    assert {name: accesses.digest(point) for name, point in accesses.points().items()} == {
        name: entry[2] for name, entry in recorded.items()
    }


def test_about_half_is_held_out():
    names = accesses.points()
    assert 0.4 < sum(map(accesses.held_out, names)) / len(names) < 0.6


def test_held_out_points_of_one_sm():
    errors = {}
    for name, point in list(DRAWN.items())[::2]:
        errors[name] = abs(accesses.on_the_model(point, load("h200"))[1] / MEASURED[name][1] - 1)
    assert len(errors) > 20
    assert statistics.median(errors.values()) <= MEDIAN
    assert statistics.median(error for name, error in errors.items() if name.startswith("cp.async")) <= COPIES
