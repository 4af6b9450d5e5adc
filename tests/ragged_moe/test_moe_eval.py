"""`eval.py COMMAND --task fp8_grouped_gemm|fp8_moe`: what is run, what is modelled, and what is refused."""

import json

import pytest
from click.testing import CliRunner

from evaluation.commands import moe_tasks
from evaluation.commands.cli import cli
from ragged_moe.__main__ import COMMANDS


def called(monkeypatch, *arguments, code=0, task="fp8_grouped_gemm"):
    """Result of `eval.py ARGUMENTS --task TASK`, and the commands that it ran, which end with this code."""
    commands = []
    monkeypatch.setattr(moe_tasks.subprocess, "call", lambda command: commands.append(command[1:]) or code)
    return CliRunner().invoke(cli, [*arguments, "--task", task]), commands


@pytest.mark.parametrize("task, of", [("fp8_grouped_gemm", "gemm"), ("fp8_moe", "layer")])
def test_tests_run_on_both_emulated_gpus(monkeypatch, task, of):
    result, commands = called(monkeypatch, "test", "--device", "emulated", "--schedules", "20", task=task)
    check = ["-m", "ragged_moe", "check", of, "--schedules", "20", "--emulated"]
    assert result.exit_code == 0 and commands == [[*check, "h200"], [*check, "b200"]]


@pytest.mark.parametrize("task", moe_tasks.TASKS)
def test_what_is_run_is_there(task):
    assert all(of in COMMANDS[kind] for kind, of in moe_tasks.TASKS[task])


@pytest.mark.parametrize("task", moe_tasks.MODELLED)
def test_what_is_modelled_alone_is_said(monkeypatch, task):
    result, commands = called(monkeypatch, "test", "--device", "emulated", task=task)
    assert result.exit_code == 2
    assert f"is tested by python -m ragged_moe check gemm --format {task[:5]} " in result.output
    monkeypatch.setattr(moe_tasks.torch.cuda, "is_available", lambda: True)
    result, _ = called(monkeypatch, "benchmark", "--device", "cuda", task=task)
    assert result.exit_code == 2 and f"{task} is modelled alone: --device emulated" in result.output and not commands


def test_a_failure_is_the_exit_code(monkeypatch):
    assert called(monkeypatch, "test", "--device", "emulated", code=1)[0].exit_code == 1


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["benchmark", "--case", "10000"], "there is no case 10000: the last is "),
        (["benchmark", "--spec", "m: 64; n: 256; k: 128"], "expected m, a list, n and k, got k, m, n"),
        (["benchmark", "--spec", "m: [0]; n: 256; k: 128"], "m is of each expert, none negative, not all 0"),
        (["profile", "--spec", "m: [1]; n: 256; k: 100"], "k is a multiple of 128"),
        (["profile", "--submission", "x.py"], "--task fp8_grouped_gemm does not take --submission here"),
        (["test", "--spec", "m: 1"], "--task fp8_grouped_gemm does not take --spec here"),
        (["test", "--json", "x"], "--task fp8_grouped_gemm does not take --json here"),
        (["test", "--submission", "x.py"], "--task fp8_grouped_gemm does not take --submission here"),
        (["benchmark", "--schedules", "2"], "--task fp8_grouped_gemm does not take --schedules here"),
    ],
)
def test_refused(monkeypatch, arguments, sentence):
    result, commands = called(monkeypatch, *arguments)
    assert result.exit_code == 2 and sentence in result.output and not commands


ROW = "m: [20, 0, 3]; n: 256; k: 256"


@pytest.fixture
def asked(monkeypatch):
    """The requests that were made; each gets a time by its config, or is refused. Real ones: kernel_checks.py."""
    requests = []

    def ask_all(given, jobs, timeout, on_reply):
        replies = []
        for index, request in enumerate(given):
            requests.append(request)
            us = 9.0 - int(request.change.get("prefetch", 2))
            reply = {"us": us, "us_corrected": us, "us_interval": [us - 1, us + 1], "unlike": ""}
            reply |= {"calls": 15, "simulated": 5, "profile": "b200"}
            reply |= {"validation": "v", "config": str(request.change), "stages_us": {"routing": 1.0, "GEMM1": 2.0}}
            replies.append({"error": "Tiles has no depth"} if "depth" in request.change else reply)
            on_reply(index, replies[-1])
        return replies

    monkeypatch.setattr(moe_tasks.model_process, "ask_all", ask_all)
    return requests


def test_benchmark_models_without_a_gpu(asked, tmp_path):
    arguments = ["benchmark", "--task", "fp8_grouped_gemm", "--device", "emulated", "--json", str(tmp_path / "json")]
    result = CliRunner().invoke(cli, arguments)
    found = json.loads((tmp_path / "json").read_text())
    assert result.exit_code == 0 and found["kind"] == "modelled" and "modelled (profile b200" in result.output
    assert [row["case"] for row in found["cases"]] == [*moe_tasks.SHORT["fp8_grouped_gemm"]]
    assert found["cases"][0]["us_interval"] == [6.0, 8.0] and "6.00 to 8.00" in result.output
    assert all(request.calls == 15 and not request.check for request in asked)


def test_the_layer_has_stages(asked):
    result = CliRunner().invoke(cli, ["benchmark", "--task", "fp8_moe", "--device", "emulated", "--spec", "t: 3"])
    assert result.exit_code == 0 and "GEMM1" in result.output and asked[0].args == {"t": 3}


def test_sweep_ranks_what_it_checked(asked, tmp_path):
    """The one that is no config is not ranked; --resume runs only that again."""
    arguments = ["sweep", "--task", "fp8_grouped_gemm", "--spec", ROW, "--results", str(tmp_path / "kept")]
    arguments += ["--config", "prefetch=4", "--config", "depth=9", "--json", str(tmp_path / "json")]
    first = CliRunner().invoke(cli, arguments)
    cases = json.loads((tmp_path / "json").read_text())["cases"]
    assert first.exit_code == 1 and [case["us"] for case in cases] == [7.0, 5.0, None]
    assert "fastest: prefetch=4" in first.output and "Tiles has no depth" in first.output
    assert all(request.check for request in asked) and len(asked) == 3
    again = CliRunner().invoke(cli, [*arguments, "--resume"])
    assert again.exit_code == 1 and len(asked) == 4
    assert [case["us"] for case in json.loads((tmp_path / "json").read_text())["cases"]] == [7.0, 5.0, None]


def test_floors():
    """By hand: 7.14 TB/s, 4486 TFLOPS."""
    args = {"m": (64, 0), "n": 4096, "k": 7168}
    assert moe_tasks.floors(args) == pytest.approx(
        {"bytes": (4096 * 7168 + 64 * (7168 + 2 * 4096)) / 7.14e6, "MMA": 2 * 64 * 4096 * 7168 / 4.486e9}, rel=1e-3
    )
    weights = 4096 * 7168 * 9 / 16
    assert moe_tasks.floors(args, "nvfp4_grouped_gemm") == pytest.approx(
        {"bytes": (weights + 64 * 2 * (7168 + 4096)) / 7.14e6, "MMA": 64 * 4096 * 7168 / 4.486e9}, rel=1e-3
    )
    weights = 4096 * 7168 * 17 / 32
    assert moe_tasks.floors(args, "mxfp4_grouped_gemm") == pytest.approx(
        {"bytes": (weights + 64 * 2 * (7168 + 4096)) / 7.14e6, "MMA": 2 * 64 * 4096 * 7168 / 4.486e9}, rel=1e-3
    )


def test_cases_are_the_rows_of_the_benchmark():
    (number, case), *others = moe_tasks.cases("fp8_grouped_gemm", 35, ())
    assert number == 35 and not others and case.args == {"m": (512,) * 8, "n": 7168, "k": 7168}
    assert moe_tasks.cases("fp8_moe", 6, ())[0][1].args == {"t": 2048}
