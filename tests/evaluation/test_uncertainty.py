"""Intervals of modelled times: what they rest on, and that they say what the known errors say."""

from pathlib import Path

import pytest

from emulator.model import uncertainty
from task import read_task_yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_known_errors_lie_within_the_intervals():
    for point in uncertainty.POINTS["plain"]:
        point["within"] = (
            uncertainty.interval(point["modelled_us"], pdl=False)[0]
            <= point["published_us"]
            <= uncertainty.interval(point["modelled_us"], pdl=False)[1]
        )
    share = sum(point["within"] for point in uncertainty.POINTS["plain"]) / len(uncertainty.POINTS["plain"])
    assert uncertainty.COVERED - 0.06 <= share < 1


def test_a_model_that_is_too_fast_moves_the_interval_up(monkeypatch):
    points = [{"published_us": 10.0, "modelled_us": 10 * ratio} for ratio in (0.75, 0.8, 0.8, 0.8, 0.85)]
    monkeypatch.setattr(uncertainty, "POINTS", {"plain": points, "dependent": []})
    low, high = uncertainty.interval(8.0, pdl=False)
    assert 8.0 < low < 10.0 < high
    assert low == pytest.approx(8 / 0.84) and high == pytest.approx(8 / 0.76)


def test_pdl_adds_its_own_error(monkeypatch):
    points = {
        "plain": [{"published_us": 10.0, "modelled_us": us} for us in (9.0, 10.0, 11.0)],
        "dependent": [{"measured_us": 5.0, "modelled_us": 4.0, "plain_measured_us": 7.0, "plain_modelled_us": 7.0}],
    }
    monkeypatch.setattr(uncertainty, "POINTS", points)
    plain, dependent = uncertainty.interval(10.0, False), uncertainty.interval(10.0, True)
    assert dependent == pytest.approx([us / 0.8 for us in plain])


def test_the_mean_of_intervals():
    assert uncertainty.mean_interval([(1.0, 4.0), (4.0, 9.0)]) == pytest.approx((2.0, 6.0))


@pytest.mark.parametrize("file", ["task.yml", "task_dual.yml"])
def test_each_benchmark_has_a_public_kernel(file):
    """As the command line asks: with the sizes that the task's file has."""
    for case in read_task_yaml((ROOT / file).read_text(), "benchmarks"):
        same = uncertainty.best_public(case.args)
        assert same is not None and same["modelled_us"] > 0, case.args
