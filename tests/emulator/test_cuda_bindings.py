"""`cuda.bindings` and NVRTC on the emulator. The checks share one process, which nothing else may share with them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("cuda_bindings_checks.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    command = [sys.executable, "-m", "emulator", "run", str(CHECKS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", re.findall(r"^def (check_\w+)", CHECKS.read_text(), re.MULTILINE))
def test_cuda_bindings(results, name):
    assert results[name] == ""
