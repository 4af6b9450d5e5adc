"""Triton on the emulator. The checks share a process for each machine, which nothing else may share with them."""

import os
import subprocess
import sys
from pathlib import Path

import check_scripts
import pytest

CHECKS = Path(__file__).with_name("triton_checks.py")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", params=["b200", "h200"])
def results(request) -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    found, done = check_scripts.results(CHECKS, "--machine", request.param)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", check_scripts.names(CHECKS))
def test_triton(results, name):
    assert results[name] == ""


SCRIPT = """
import torch
import triton_checks as t

x = torch.arange(4096.0, device="cuda")
y = torch.empty_like(x)
t.scaled[lambda meta: (4096 // meta["BLOCK"],)](x, y, 4096, 2.0, False)
assert torch.equal(y, 2 * x)
assert 0.001 < t.triton.testing.do_bench(lambda: t.softmax[(1,)](x, y, 64, 64, BLOCK=64)) < 0.1
"""


def test_the_model_tunes(tmp_path):
    """Under `run --timed` all configurations are timed, and the choice is said with its grounds."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(CHECKS.parent)])}
    command = [sys.executable, "-m", "emulated_gpu", "run", "--timed", str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("modelled, not measured") == 3 and "the fastest by the model" in done.stderr
