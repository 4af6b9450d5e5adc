"""`eval.py test|benchmark --task fp8_grouped_gemm|fp8_moe`: what is run, and what is refused."""

import importlib.util

import pytest
from click.testing import CliRunner

from evaluation import fp8
from evaluation.cli import cli


def called(monkeypatch, *arguments, code=0, task="fp8_grouped_gemm"):
    """Result of `eval.py ARGUMENTS --task TASK`, and the commands that it ran, which end with this code."""
    commands = []
    monkeypatch.setattr(fp8.subprocess, "call", lambda command: commands.append(command[1:]) or code)
    return CliRunner().invoke(cli, [*arguments, "--task", task]), commands


@pytest.mark.parametrize("task, module", [("fp8_grouped_gemm", "moe.check"), ("fp8_moe", "moe.layer_check")])
def test_tests_run_on_both_emulated_gpus(monkeypatch, task, module):
    result, commands = called(monkeypatch, "test", "--device", "emulated", "--schedules", "20", task=task)
    check = ["-m", module, "--schedules", "20", "--emulated"]
    assert result.exit_code == 0 and commands == [[*check, "h200"], [*check, "b200"]]


@pytest.mark.parametrize("task", fp8.TASKS)
def test_what_is_run_is_there(task):
    assert all(importlib.util.find_spec(module) for module in fp8.TASKS[task])


def test_a_failure_is_the_exit_code(monkeypatch):
    assert called(monkeypatch, "test", "--device", "emulated", code=1)[0].exit_code == 1


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["benchmark", "--device", "emulated"], "times of fp8_grouped_gemm are measured only"),
        (["test", "--spec", "m: 1"], "--task fp8_grouped_gemm does not take --spec here"),
        (["test", "--json", "x"], "--task fp8_grouped_gemm does not take --json here"),
        (["test", "--submission", "x.py"], "--task fp8_grouped_gemm does not take --submission here"),
        (["benchmark", "--schedules", "2"], "--task fp8_grouped_gemm does not take --schedules here"),
    ],
)
def test_refused(monkeypatch, arguments, sentence):
    result, commands = called(monkeypatch, *arguments)
    assert result.exit_code == 2 and sentence in result.output and not commands
