"""The loop of a contest, and how much an emulated check does: what is timed, refused, said and written."""

import json
import random

import pytest
import torch

from ragged_moe.checks import amount
from ragged_moe.measure import contest as contests
from ragged_moe.measure import grouped_gemm, grouped_gemm_fp4, grouped_gemm_mxfp4, layer_fp4, layer_mxfp4, timing
from ragged_moe.measure.contest import GRAPH, Contest, of_sets, told


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
    defaults = Contest.times.__defaults__, Contest.us.__defaults__
    monkeypatch.setattr(Contest.times, "__defaults__", (elapsed,))
    monkeypatch.setattr(Contest.us, "__defaults__", (elapsed,))
    assert defaults == ((timing.elapsed,), (timing.elapsed,))
    return order


def test_calls_go_round_the_sets_in_shuffled_rounds(on_cpu):
    contest = Contest()
    contest.add(of_sets([{"a": lambda i=i: f"a{i}", "b": lambda: "b"} for i in range(3)]))
    contest.graphs()
    assert contest.us(20, random.Random(0)) == {"a": 3.0, "b": 1.0, "a" + GRAPH: 3.0, "b" + GRAPH: 1.0}
    assert len(on_cpu) == 21 * 4 and all(len(calls) == timing.CALLS for calls in on_cpu)
    assert on_cpu[0][:4] in (["a0", "a1", "a2", "a0"], ["b"] * 4)
    rounds = {tuple(calls[0] for calls in on_cpu[i : i + 4]) for i in range(0, len(on_cpu), 4)}
    assert len(rounds) > 2  # not in the same order each time


def test_a_peer_that_fails_is_refused(on_cpu):
    contest = Contest()
    contest.admit("there", lambda: ([lambda: "x"], 0.25))
    contest.admit("unknown", lambda: ([lambda: "x"], None))
    contest.admit("absent", lambda: __import__("no_such_peer"))
    assert list(contest.calls) == ["there", "unknown"] and contest.difference == {"there": 0.25}
    assert contest.refused == {"absent": "ModuleNotFoundError: No module named 'no_such_peer'"}


def test_rows_are_told_as_they_come(on_cpu, tmp_path, capsys):
    file, rows = tmp_path / "rows.json", iter([{"T": 1, "refused": {"peer": "why"}}, {"T": 2}])
    record = lambda rows: {"rows": rows}  # noqa: E731
    found = told(rows, lambda rows: f"head\n{rows[-1]['T']}", file, record)
    assert capsys.readouterr().out.splitlines() == ["1", "  peer: why", "2"]
    assert json.loads(file.read_text()) == {"rows": found} and len(found) == 2


def call(out: torch.Tensor, value: float):
    """A contestant that writes this, and has it for a name."""

    def run():
        out.fill_(value)
        return value

    run.out = out
    return run


def test_rows_of_each_format(on_cpu, monkeypatch):
    """What a row has of its contestants, whose calls are stand-ins: times, differences, who is refused."""
    row, rng, ours = grouped_gemm.Row("", (4, 0), 128, 128), random.Random(0), torch.empty(4, 128)

    def make(value):
        out = torch.empty_like(ours)
        return lambda row, x: (call(out, value), lambda: out)

    monkeypatch.setattr(grouped_gemm.Inputs, "draw", lambda row, seed: None)
    of_fp8 = {name: make(1.0) for name in (grouped_gemm.OURS, *grouped_gemm.FLOORS)}
    of_fp8 |= {"near": make(1.5), "absent": lambda row, x: __import__("no_such_peer")}
    found = grouped_gemm.time_row(row, of_fp8, 2, rng)
    assert found["difference"] == {"near": 0.5} and [*found["refused"]] == ["absent"] and found["sets"] == timing.CALLS
    assert [*found["us"]] == [*found["all"]] == [grouped_gemm.OURS, *grouped_gemm.FLOORS, "near"]

    fp4, results = grouped_gemm_fp4, torch.empty(4, 128)
    blocks = {f"{fp4.MARLIN} {block}": call(results, 2.0) for block in fp4.marlin.BLOCKS}
    of_set = {name: call(torch.empty(1), 0.0) for name in (fp4.FP8, *fp4.FLOORS)}
    drawn = {fp4.OURS: call(ours, 1.0)} | of_set | blocks, ours, results
    monkeypatch.setattr(fp4, "contestants", lambda *_: drawn)
    found = fp4.time_row(row, [None] * 3, 2, rng, lambda: None)
    assert set(found["difference"].values()) == {1.0} and found["us"][fp4.BEST] == found["us"][fp4.MARLIN] == 1.0

    mxfp4 = grouped_gemm_mxfp4
    outs = {name: torch.empty(4, 128) for name in (mxfp4.W4A16, mxfp4.W4A8, mxfp4.GEMM)}
    calls = {name: call(out, 1.0 + i) for i, (name, out) in enumerate(outs.items())}
    calls |= {name: call(torch.empty(1), 9.0) for name in (mxfp4.QUANTISER, mxfp4.FP8)}
    monkeypatch.setattr(mxfp4, "contestants", lambda *_: (calls, outs))
    found = mxfp4.time_row(row, [None] * 3, 2, rng)
    assert found["difference"] == {mxfp4.W4A8: 1.0, mxfp4.GEMM: 1.0} and [*found["us"]] == [*calls]

    calls, outs = [{name: of[name] for name in (mxfp4.W4A16, mxfp4.W4A8)} for of in (calls, outs)]
    monkeypatch.setattr(layer_mxfp4, "contestants", lambda *_: (calls, outs))
    found = layer_mxfp4.measure(64, {}, 2, rng)
    assert [*found["us"]] == [*calls, *(name + GRAPH for name in calls)] and found["difference"] == {mxfp4.W4A8: 1.0}

    layer = layer_fp4
    blocks = {f"{layer.MARLIN} {block}": call(results, 2.0) for block in layer.marlin.BLOCKS}
    called = {name: call(ours, 1.0) for name in (layer.OURS, layer.FP8, layer.LOADS)} | blocks
    monkeypatch.setattr(layer, "contestants", lambda *_: (called, ours, 5))
    found = layer.measure(64, layer.Sizes(), None, 2, rng, lambda: None)
    timed = {layer.OURS, layer.FP8, *(name + GRAPH for name in called)}
    assert set(found["us"]) == timed | {layer.MARLIN, layer.BEST} and set(found["difference"]) == set(blocks)


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
