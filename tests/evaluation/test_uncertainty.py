"""Intervals of modelled times: what they rest on, and that they say what the known errors say."""

import math
import statistics
from pathlib import Path

import pytest

from emulated_gpu.model import uncertainty
from emulated_gpu.model.profile import load
from task import read_task_yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", uncertainty.KINDS)
def test_the_known_errors_lie_within_the_intervals(kind):
    """85 to 95 % of each kind, so that no kind's are paid for by another's."""
    within = []
    for point in uncertainty.POINTS["plain"]:
        if uncertainty.kind_of(point) == kind:
            low, high = uncertainty.interval(point["modelled_us"], kind)
            within.append(low <= point["published_us"] <= high)
    assert 0.85 <= sum(within) / len(within) <= 0.95


def test_those_of_pdl_lie_within_its_intervals():
    """Errors of the load side with PDL on an H200, where they are those without it and what PDL adds."""
    found = uncertainty.POINTS["dependent"]
    ratios = [point["modelled_us"] / point["measured_us"] for point in found]
    for kind in uncertainty.KINDS[1:]:
        low, high = uncertainty.interval(1.0, kind, pdl=True)
        plain = uncertainty.interval(1.0, kind)
        assert high / low > plain[1] / plain[0] and high > plain[1]  # wider, and later: with PDL the model is too fast
    low, high = uncertainty.interval(1.0, uncertainty.LATENCY_BOUND, pdl=True)
    assert sum(low <= 1 / ratio <= high for ratio in ratios) / len(ratios) >= 0.85


def point(us: float, read_mb: float = 0.0, in_a_row: bool = True) -> dict:
    return {"published_us": 10.0, "modelled_us": us, "read_mb": read_mb, "in a row": in_a_row}


def test_a_model_that_is_too_fast_moves_the_interval_up(monkeypatch):
    points = [point(10 * ratio) for ratio in (0.7, 0.75, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.85, 0.9)]
    monkeypatch.setattr(uncertainty, "POINTS", {"plain": points, "dependent": []})
    low, high = uncertainty.interval(8.0, uncertainty.LATENCY_BOUND)
    assert 8.0 < low < 10.0 < high
    assert (low, high) == pytest.approx((8 / 0.85, 8 / 0.7))  # eleven of twelve, of which the last is left out


@pytest.mark.parametrize("known, ends", [
    ([0.0], (0.0, 0.0)), ([-0.1, 0.2], (-0.1, 0.2)), ([-9, *range(10)], (0, 9)), ([*range(10), 20], (0, 9)),
])  # fmt: skip
def test_the_narrowest_interval_holds_nine_of_ten(known, ends):
    assert uncertainty.narrowest(known) == ends


def test_a_kind_has_its_own_errors(monkeypatch):
    """Of as many bytes as HBM brings in half of the time, of fewer, and of a single call."""
    half = 0.5 * load("b200")["hbm"]["read_tb_s"]
    points = [point(8.0, 8 * half), point(10.0, 9.9 * half), point(12.0, 12 * half, in_a_row=False)]
    monkeypatch.setattr(uncertainty, "POINTS", {"plain": points, "dependent": []})
    assert uncertainty.errors(uncertainty.BYTES_BOUND) == pytest.approx([-0.2])
    assert uncertainty.errors(uncertainty.LATENCY_BOUND) == [0.0]
    assert uncertainty.errors(uncertainty.ALONE) == pytest.approx([0.2])
    assert uncertainty.interval(8.0, uncertainty.BYTES_BOUND) == pytest.approx((10.0, 10.0))


def test_bytes_of_the_points_are_those_of_the_operands():
    for p in uncertainty.POINTS["plain"]:
        m, n, k = ([p[size]] if isinstance(p[size], int) else p[size] for size in "mnk")
        weights = 2 if "dual" in p["kernel"] else 1
        operands = sum((a + weights * b) * c for a, b, c in zip(m, n, k, strict=True))
        assert p["read_mb"] == pytest.approx(operands * (1 / 2 + 1 / 16) / 1e6, abs=0.01), p


def test_pdl_adds_its_own_error(monkeypatch):
    points = {
        "plain": [point(us) for us in (9.0, 10.0, 11.0)],
        "dependent": [{"measured_us": 5.0, "modelled_us": 4.0, "plain_measured_us": 7.0, "plain_modelled_us": 7.0}],
    }
    monkeypatch.setattr(uncertainty, "POINTS", points)
    plain, dependent = (uncertainty.interval(10.0, uncertainty.LATENCY_BOUND, pdl) for pdl in (False, True))
    assert dependent == pytest.approx([us / 0.8 for us in plain])


@pytest.mark.parametrize("between", [(1.0, 4.0), (0.1, 0.1), (3.0, 3.0 + 1e-15), (7.1, 1e9)])
def test_a_printed_time_lies_in_its_interval(between):
    low, high = between
    assert low <= uncertainty.corrected(between) <= high
    assert uncertainty.corrected((1.0, 4.0)) == 2.0  # by ratio: a factor of two from either end


@pytest.mark.parametrize("machine", ["b200", "h200"])
@pytest.mark.parametrize("kind", uncertainty.KINDS)
@pytest.mark.parametrize("pdl", [False, True])
def test_the_known_bias_is_taken_out(kind, pdl, machine):
    """What is corrected errs less in the mean than the model; and without a known error nothing is moved."""
    known = [1 + error for error in uncertainty.errors(kind, pdl, machine)]
    factor = uncertainty.corrected(uncertainty.interval(1.0, kind, pdl, machine))
    bias, left = (abs(statistics.fmean(math.log(ratio * by) for ratio in known)) for by in (1.0, factor))
    assert left < bias and left < 0.02


def test_the_mean_of_intervals():
    assert uncertainty.mean_interval([(1.0, 4.0), (4.0, 9.0)]) == pytest.approx((2.0, 6.0))


@pytest.mark.parametrize("file", ["task.yml", "task_dual.yml"])
def test_each_benchmark_has_a_public_kernel(file):
    """As the command line asks: with the sizes that the task's file has."""
    for case in read_task_yaml((ROOT / file).read_text(), "benchmarks"):
        same = uncertainty.best_public(case.args)
        assert same is not None and same["modelled_us"] > 0, case.args
