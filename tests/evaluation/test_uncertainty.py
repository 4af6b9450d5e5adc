"""Intervals of modelled times: what they rest on, and that they say what the known errors say."""

import math
import statistics
from pathlib import Path

import pytest

from emulated_gpu.model import uncertainty
from emulated_gpu.model.made_of import WORDS, MadeOf
from emulated_gpu.model.profile import load
from task import read_task_yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("machine, low, high", [("b200", 0.85, 0.95), ("h200", 0.85, 0.95)])
def test_brackets_hold_times_of_authors_whom_they_do_not_rest_on(machine, low, high):
    """Leaving one author out: nine of ten are claimed."""
    held = uncertainty.held(uncertainty.known(machine))
    within, count = (sum(each) for each in zip(*held.values(), strict=True))
    assert len(held) >= 4
    assert low <= within / count <= high


def test_those_of_pdl_are_wider_and_later():
    """With PDL the model is too fast; and the load side's own errors lie within."""
    plain, pdl = (uncertainty.interval(1.0, pdl) for pdl in (False, True))
    assert pdl[1] / pdl[0] > plain[1] / plain[0] and pdl[1] > plain[1]
    ratios = [point["measured_us"] / point["modelled_us"] for point in uncertainty.POINTS["dependent"]]
    assert sum(pdl[0] <= ratio <= pdl[1] for ratio in ratios) / len(ratios) >= 0.85


def point(us: float, author: str = "a", kernel: str = "k", m: int | list = 128) -> dict:
    return {"author": author, "kernel": f"GEMM, {kernel}", "m": m, "published_us": 10.0, "modelled_us": us}


def test_a_model_that_is_too_fast_moves_the_interval_up(monkeypatch):
    points = [point(us, author, author) for author in "ab" for us in (8.0, 8.0)]
    monkeypatch.setattr(uncertainty, "POINTS", {"plain": points, "strangers": [], "dependent": []})
    assert uncertainty.interval(4.0, contest=True) == pytest.approx((5.0, 5.0))


def test_a_width_is_that_between_authors_and_kernels(monkeypatch):
    """Many points of one kernel make nothing surer: two authors whose kernels are a factor apart remain so."""
    points = [point(10.0, "a")] * 50 + [point(10.0 * math.e**0.2, "b")] * 50
    monkeypatch.setattr(uncertainty, "POINTS", {"plain": points, "strangers": [], "dependent": []})
    assert uncertainty.constant(uncertainty.known()) == pytest.approx(-0.1)
    assert uncertainty.width(uncertainty.known()) == pytest.approx(0.2 * statistics.NormalDist().inv_cdf(0.95))


def test_brackets_are_continuous():
    """A time that is 0.3 % longer has bounds that are 0.3 % later, whatever it is."""
    for us in (6.0, 97.0):
        for one, other in zip(uncertainty.interval(us), uncertainty.interval(1.003 * us), strict=True):
            assert other == pytest.approx(1.003 * one)


def test_strangers_make_brackets_wider_and_share_no_constant(monkeypatch):
    points = [point(us, author) for us, author in ((9.0, "a"), (10.0, "b"), (11.0, "d"))]
    others = [{"author": "c", "kernel": str(n), "published_us": 20.0, "modelled_us": 10.0} for n in range(2)]
    found = []
    for strangers in ([], others[:1], others):  # one point of a family says nothing of how its kernels differ
        monkeypatch.setattr(uncertainty, "POINTS", {"plain": points, "strangers": strangers})
        found.append((uncertainty.constant(uncertainty.known()), uncertainty.width(uncertainty.known())))
    assert found[0] == found[1] and found[2][0] == found[0][0] and found[2][1] > 2 * found[0][1]
    assert uncertainty.held(uncertainty.known())["c"] == (0, 2)


def test_a_constant_is_of_problems_that_two_authors_show(monkeypatch):
    """One author's may be the author's own; elsewhere the model's own time is printed, in the middle of its bracket."""
    plain = [point(8.0, "a"), point(8.0, "b"), point(2.0, "a", m=[64, 96])]
    monkeypatch.setattr(uncertainty, "POINTS", {"plain": plain, "strangers": [], "dependent": []})
    assert uncertainty.contests() == {"GEMM"}
    assert uncertainty.constant(uncertainty.known()) == pytest.approx(math.log(10 / 8))
    assert uncertainty.corrected(uncertainty.interval(4.0)) == pytest.approx(4.0)
    assert [uncertainty.of_point(one) for one in plain] == pytest.approx([10.0, 10.0, 2.0])
    assert uncertainty.held(uncertainty.known())["b"] == (1, 1)


def test_what_is_printed_of_other_families_errs_less_than_by_the_constant():
    """No family's mean lies beyond 8 %, and the old points' median error is at most 4.5 %."""
    families: dict[str, list[float]] = {}
    for known in uncertainty.POINTS["strangers"]:
        families.setdefault(known["author"], []).append(uncertainty.modelled_us(known) / known["published_us"] - 1)
    assert len(families) == 3 and all(abs(statistics.fmean(errors)) <= 0.08 for errors in families.values())
    assert statistics.median(abs(error) for errors in families.values() for error in errors) <= 0.08
    old = [uncertainty.of_point(known) / known["published_us"] - 1 for known in uncertainty.POINTS["plain"]]
    assert statistics.median(map(abs, old)) <= 0.045


SHARES = MadeOf(0.5, 0.2, 0.1, 0.5)
B200, H200 = map(load, ("b200", "h200"))


def test_what_is_made_otherwise_than_all_that_is_known_has_no_bracket():
    found = uncertainty.estimate(9.0, SHARES, B200)
    assert found.between and not found.unlike and found.between[0] <= found.corrected <= found.between[1]
    for name, share in (("hbm", 0.99), ("issue", 0.5), ("tensor", 0.0), ("hbm", 0.01), ("warp", 0.02)):
        found = uncertainty.estimate(9.0, SHARES._replace(**{name: share}), B200)
        assert found.between is None and found.corrected == found.us == 9.0
        assert found.unlike.startswith(f"no bracket: {WORDS[name]} {share:.1%} of the time, in kernels whose times are")
    assert uncertainty.estimate(9.0, SHARES, B200, beyond="of stack").unlike == "no bracket: of stack"
    assert uncertainty.estimate(9.0, SHARES, H200, beyond="of stack").between is None
    assert uncertainty.estimate(9.0, SHARES._replace(tensor=0.9), H200).between


def test_each_known_kernel_has_a_bracket():
    for known in uncertainty.POINTS["plain"]:
        hbm, tensor = uncertainty.least_shares(known)
        assert 0 < hbm < 1 and 0 < tensor < 1
        assert not uncertainty.unlike(SHARES._replace(hbm=hbm, tensor=tensor)), known


def test_a_stranger_has_a_bracket_or_is_told_why_not():
    """FlashInfer's kernel, whose promotion nobody else's is like, has none; the others' shares are known."""
    noted = [known for known in uncertainty.POINTS["strangers"] if len(known["made_of"]) == len(MadeOf._fields)]
    without = {known["kernel"] for known in noted if uncertainty.unlike(MadeOf(**known["made_of"]))}
    assert without == {"FlashInfer #4734"} and len(noted) > 10


def test_bytes_of_the_points_are_those_of_the_operands():
    for p in uncertainty.POINTS["plain"]:
        m, n, k = ([p[size]] if isinstance(p[size], int) else p[size] for size in "mnk")
        weights = 2 if "dual" in p["kernel"] else 1
        operands = sum((a + weights * b) * c for a, b, c in zip(m, n, k, strict=True))
        assert p["read_mb"] == pytest.approx(operands * (1 / 2 + 1 / 16) / 1e6, abs=0.01), p


def test_pdl_adds_its_own_error(monkeypatch):
    points = {
        "strangers": [],
        "plain": [point(us, author) for us, author in ((9.0, "a"), (10.0, "b"), (11.0, "c"))],
        "dependent": [{"measured_us": 5.0, "modelled_us": 4.0, "plain_measured_us": 7.0, "plain_modelled_us": 7.0}],
    }
    monkeypatch.setattr(uncertainty, "POINTS", points)
    plain, dependent = (uncertainty.interval(10.0, pdl) for pdl in (False, True))
    assert dependent == pytest.approx([us / 0.8 for us in plain])


@pytest.mark.parametrize("between", [(1.0, 4.0), (0.1, 0.1), (3.0, 3.0 + 1e-15), (7.1, 1e9)])
def test_a_printed_time_lies_in_its_interval(between):
    low, high = between
    assert low <= uncertainty.corrected(between) <= high
    assert uncertainty.corrected((1.0, 4.0)) == 2.0  # by ratio: a factor of two from either end


@pytest.mark.parametrize("machine", ["b200", "h200"])
def test_the_known_bias_is_taken_out(machine):
    """What is corrected errs less in the mean of kernels than the model."""
    kernels: dict[str, list[float]] = {}
    for each in (point for point in uncertainty.known(machine) if point.shares):
        kernels.setdefault(each.kernel, []).append(each.error)
    factor = math.log(uncertainty.corrected(uncertainty.interval(1.0, machine=machine, contest=True)))
    bias = statistics.fmean(map(statistics.fmean, kernels.values()))
    assert abs(bias - factor) < 1e-9 < abs(bias)


def test_the_mean_of_intervals():
    assert uncertainty.mean_interval([(1.0, 4.0), (4.0, 9.0)]) == pytest.approx((2.0, 6.0))
    assert uncertainty.mean_interval([(1.0, 4.0), None]) is None


@pytest.mark.parametrize("file", ["task.yml", "task_dual.yml"])
def test_each_benchmark_has_a_public_kernel(file):
    """As the command line asks: with the sizes that the task's file has."""
    for case in read_task_yaml((ROOT / file).read_text(), "benchmarks"):
        same = uncertainty.best_public(case.args)
        assert same is not None and same["modelled_us"] > 0, case.args
