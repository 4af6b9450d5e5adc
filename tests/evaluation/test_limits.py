"""What the judge waits for, and what memory costs it."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluation.judge import submission_process
from evaluation.judge.recorded_calls import RecordedCalls
from evaluation.judge.submission_process import last_line
from evaluation.judge.time_limit import Late, limit
from evaluation.judge.verdict import Refused, Verdict

ROOT = Path(__file__).parents[2]


def test_time_limits_count_what_they_say():
    """A process that sleeps, as on a busy machine, is not late by the time that it computes; one that computes is."""
    with limit(0.05, working=True):
        time.sleep(0.15)
    with pytest.raises(Late), limit(0.05, working=True):
        while True:
            pass
    with pytest.raises(Late), limit(0.05):
        time.sleep(10)
    time.sleep(0.1)  # nothing of these is left


def test_a_time_is_limited_by_what_the_judge_computes():
    """Beside other work on the machine the judge waits as long as it takes."""
    nothing = SimpleNamespace(kill=lambda: None, renew=lambda: None, notes=[])
    calls = RecordedCalls.__new__(RecordedCalls)
    calls.trial = SimpleNamespace(options=SimpleNamespace(timeout=0.05), verdict=Verdict(""))
    calls.case, calls.process, calls.arena = SimpleNamespace(timed_calls=1), nothing, nothing
    calls.prepared = lambda count: contextlib.nullcontext((nothing, [], []))
    calls.record = lambda *_: ([], [])
    calls.check = lambda *_: time.sleep(0.2) or {"us": 1.0}
    assert calls.time() == {"us": 1.0}


def test_of_any_output_the_end_is_read(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"")
    assert last_line(path) == ""
    with open(path, "r+b") as file:
        file.seek(2**40)
        file.write(b"\n last words\n\n")
    assert last_line(path) == "last words"


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["test", "benchmark"])
def test_memory_that_nothing_touches_costs_nothing(tmp_path, mode):
    """Each of some twenty calls keeps another 256 MiB; the largest process stays below 1 GiB."""
    path, keeps = tmp_path / "submission.py", "torch.empty(1 << 27, device='cuda', dtype=torch.uint8)"
    path.write_text(
        f"{(ROOT / 'tests' / 'naive_kernel.py').read_text()}\n\nKEPT, compute = [], custom_kernel\n\n\n"
        f"def custom_kernel(data):\n    KEPT.append(({keeps}, torch.zeros_like(KEPT[-1][0] if KEPT else {keeps})))\n"
        "    return compute(data)\n"
    )
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:])\n"
        "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        "sys.exit(done.returncode)\n"
    )
    spec = "m: [16]; n: [16]; k: [64]; g: 1; seed: 1"
    command = [sys.executable, "-c", code, sys.executable, "eval.py", mode, "--spec", spec, path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    peak = int(done.stdout.split("peak")[1]) / 2**20
    assert peak < 1.0, f"{peak:.2f} GiB"


@pytest.fixture
def waiting(monkeypatch):
    """A SubmissionProcess, without a process, that has 0.2 s to answer."""
    process = object.__new__(submission_process.SubmissionProcess)
    process.options, process.pid = SimpleNamespace(timeout=0.2), None
    monkeypatch.setattr(submission_process.SubmissionProcess, "kill", lambda self: None)
    return process


def test_a_launch_that_other_work_delays_is_no_hang(waiting):
    with waiting.answering("result"):
        waiting.emulating = True
        time.sleep(0.5)  # without a core


def test_a_launch_that_the_judge_emulates_for_too_long_is_called_slow(waiting):
    with pytest.raises(Refused, match="^slow .its kernels were still being emulated, .*no result within 0.2 s"):
        with waiting.answering("result"):
            waiting.emulating = True
            while True:
                pass


def test_a_launch_that_never_gets_a_core_ends(waiting, monkeypatch):
    monkeypatch.setattr(submission_process, "STARVED", 2)
    with pytest.raises(Refused, match="^slow"), waiting.answering("result"):
        waiting.emulating = True
        time.sleep(60)


def test_a_submission_that_does_not_answer_is_a_hang(waiting):
    with pytest.raises(Refused, match="^hang: no result within 0.2 s"), waiting.answering("result"):
        time.sleep(60)
