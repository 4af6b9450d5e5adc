"""The loop of a contest, and how much an emulated check does: what is timed, refused, said and written."""

import json
import random
import types

import pytest
import torch

from ragged_moe.checks import amount
from ragged_moe.measure import contest as contests
from ragged_moe.measure import grouped_gemm, layer_fp4, marlin, timing
from ragged_moe.measure.contest import (
    FP8,
    GRAPH,
    LOADS,
    OURS,
    W4A8,
    W4A16,
    Contest,
    Contestant,
    Peers,
    timed_rows,
    told,
)
from ragged_moe.measure.rows import Row

MARLINS = [f"{marlin.MARLIN} {block}" for block in marlin.BLOCKS]


@pytest.fixture
def on_cpu(monkeypatch):
    """Time by counting: a call's contestant is noted, and takes 15 us by its number of sets. Returns what was timed."""
    order = []

    def elapsed(calls, fill, value):
        order.append([call() for call in calls])
        return 15.0 * len(set(order[-1]))

    monkeypatch.setattr(contests, "flushed", lambda: torch.empty(0))
    monkeypatch.setattr(contests, "captured", lambda calls: [*calls])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert Contest.time.__defaults__ == (timing.elapsed,)
    monkeypatch.setattr(Contest.time, "__defaults__", (elapsed,))
    return order


def test_calls_go_round_the_sets_in_shuffled_rounds(on_cpu):
    contest = Contest({"T": 3})
    contest.add([{"a": Contestant(lambda i=i: f"a{i}"), "b": Contestant(lambda: "b")} for i in range(3)])
    contest.graphs()
    contest.time(20, random.Random(0))
    us = {"a": 3.0, "b": 1.0, "a" + GRAPH: 3.0, "b" + GRAPH: 1.0}
    assert contest.row() == {"T": 3, "us": us, "difference": {}, "refused": {}}
    assert len(on_cpu) == 6 * 4 and all(len(calls) == timing.CALLS for calls in on_cpu)
    assert on_cpu[0][:4] in (["a0", "a1", "a2", "a0"], ["b"] * 4)
    rounds = {tuple(calls[0] for calls in on_cpu[i : i + 4]) for i in range(0, len(on_cpu), 4)}
    assert len(rounds) > 2  # not in the same order each time


@pytest.mark.parametrize("times, is_sure", [
    ([100, 101, 102, 100, 101], True), ([100, 101, 102.5, 100, 101], False), ([100] * 4, False),
    ([90, 110] + [100, 101] * 3, True), ([90, 110, 111] + [100, 101] * 3, False),
])  # fmt: skip
def test_times_that_agree_are_enough(times, is_sure):
    """Five timings within 2 %; of eight one may be far above, and one below."""
    assert contests.sure(times) == is_sure


def test_a_peer_that_fails_is_refused(on_cpu):
    contest = Contest({})
    contest.admit("there", lambda: [Contestant(lambda: "x")])
    contest.admit("absent", lambda: __import__("no_such_peer"))
    contest.admit("unable", lambda: [Contestant(lambda: __import__("no_such_kernel"))])
    assert list(contest.calls) == ["there"]
    assert contest.refused == {
        "absent": "ModuleNotFoundError: No module named 'no_such_peer'",
        "unable": "ModuleNotFoundError: No module named 'no_such_kernel'",
    }


def test_a_result_is_compared_on_each_set(on_cpu):
    """The largest difference counts, whichever set has it."""
    contest = Contest({})
    contest.add([{OURS: call(1.0), "near": call(1.0 + i, like=OURS)} for i in range(3)])
    assert contest.difference == {"near": 2.0}
    contest.graphs(called=[OURS])
    assert list(contest.calls) == [OURS, OURS + GRAPH, "near" + GRAPH]


def test_rows_are_told_as_they_come(on_cpu, tmp_path, capsys):
    file, rows = tmp_path / "rows.json", iter([{"T": 1, "refused": {"peer": "why"}}, {"T": 2}])
    record = lambda rows: {"rows": rows}  # noqa: E731
    found = told(rows, lambda rows: f"head\n{rows[-1]['T']}", file, record)
    assert capsys.readouterr().out.splitlines() == ["1", "  peer: why", "2"]
    assert json.loads(file.read_text()) == {"rows": found} and len(found) == 2


def call(value: float, like: str | None = None) -> Contestant:
    """A contestant that writes this, and has it for a name."""
    out = torch.empty(4, 128)

    def run():
        out.fill_(value)
        return value

    return Contestant(run, lambda: out, like)


def timed(experiment, problem) -> dict:
    """The record of a problem."""
    (row,) = timed_rows(experiment, [problem], 2, random.Random(0))
    return row


def test_rows_of_each_format(on_cpu, monkeypatch):
    """What a record has of its contestants, whose calls are stand-ins: times, differences, who is refused."""
    row, floors = Row("", (4, 0), 128, 128), {name: call(0.0) for name in grouped_gemm.FLOORS}
    generated = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device: generated())
    monkeypatch.setattr(torch, "randn", lambda *shape, **_: torch.zeros(shape))
    monkeypatch.setattr(grouped_gemm, "draw_fp8", lambda *_: None)
    monkeypatch.setattr(grouped_gemm.Inputs, "draw", lambda *_: types.SimpleNamespace())
    monkeypatch.setattr(grouped_gemm, "PEERS", {
        "near": lambda *_: call(1.5, OURS), "absent": lambda *_: __import__("no_such_peer"),
    })  # fmt: skip

    def of(kind: str, made: dict[str, Contestant], peers: Peers) -> dict:
        stand_ins = {"draw": lambda *_: None, "contestants": lambda _: made, "config": lambda _: "128x128"}
        monkeypatch.setitem(grouped_gemm.FORMATS, kind, grouped_gemm.FORMATS[kind]._replace(**stand_ins))
        return timed(grouped_gemm.GroupedGemm(kind, peers), row)

    found = of("fp8", {OURS: call(1.0), **floors}, Peers(True, None))
    assert found["difference"] == {"near": 0.5} and [*found["refused"]] == ["absent"] and found["sets"] == timing.CALLS
    assert [*found["us"]] == [*found["all"]] == [OURS, *floors, "near"]
    assert (found["best peer"], found["ratio"], found["floor us"], found["config"]) == ("near", 1.0, 1.0, "128x128")

    blocks = {name: call(2.0, OURS) for name in MARLINS}
    found = of("nvfp4", {OURS: call(1.0), FP8: call(0.0), **floors, **blocks}, Peers(False, lambda: None))
    assert set(found["difference"].values()) == {1.0} and found["us"][marlin.BEST] == found["us"][marlin.MARLIN] == 1.0
    assert found["loads us"] == 1.0 and found["MMA us"] == 2 * 4 * 128 * 128 / 989e12 * 1e6

    calls = {W4A16: call(1.0), W4A8: call(2.0, W4A16), grouped_gemm.GEMM: call(3.0, W4A8), FP8: call(9.0)}
    found = of("mxfp4", calls, Peers(False, None))
    assert found["difference"] == {W4A8: 1.0, grouped_gemm.GEMM: 0.5} and [*found["us"]] == [*calls]

    calls = {name: calls[name] for name in (W4A16, W4A8)}
    mxfp4 = layer_fp4.Mxfp4Layer.__new__(layer_fp4.Mxfp4Layer)
    monkeypatch.setattr(mxfp4, "contestants", lambda *_: calls, raising=False)
    found = timed(mxfp4, 64)
    assert [*found["us"]] == [*calls, *(name + GRAPH for name in calls)] and found["difference"] == {W4A8: 1.0}

    nvfp4 = layer_fp4.Nvfp4Layer.__new__(layer_fp4.Nvfp4Layer)
    nvfp4.model, nvfp4.sizes, nvfp4.marlin = "DeepSeek-V3", layer_fp4.Sizes(), True
    called = {name: call(1.0) for name in (OURS, FP8, LOADS)} | blocks
    monkeypatch.setattr(nvfp4, "contestants", lambda *_: (called, 5), raising=False)
    found = timed(nvfp4, 64)
    names = {OURS, FP8, *(name + GRAPH for name in called), marlin.MARLIN, marlin.BEST}
    assert set(found["us"]) == names and set(found["difference"]) == set(blocks)


@pytest.mark.parametrize("cases, configs", [("abcde", "xy"), ("ab", "uvwxyz"), ("abcd", "wxyz"), ("a", "x")])
def test_an_emulated_check_leaves_no_case_and_no_config_out(cases, configs):
    chosen = amount.pairs(cases, configs, False)
    assert {case for case, _ in chosen} == set(cases) and {config for _, config in chosen} == set(configs)
    assert len(chosen) == max(len(cases), len(configs)) == len(set(chosen))
    assert len(set(amount.pairs(cases, configs, True))) == len(cases) * len(configs)


def test_a_check_says_how_long_it_takes(capsys):
    amount.say("abc", 90, 40.0)
    amount.say("abc", 3, 40.0)
    assert capsys.readouterr().out.splitlines() == [
        "3 launches, about 2 min on a core; --all does 90, about 60 min", "3 launches, about 2 min on a core"
    ]  # fmt: skip
