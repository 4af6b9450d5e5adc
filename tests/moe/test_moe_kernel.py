"""The kernels on an emulated H200 and an emulated B200: kernel_checks.py, in a process for each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["h200", "b200"])
def test_kernel(machine):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "kernel_checks.py")]
    env = os.environ | {"MOE_MACHINE": machine}
    done = subprocess.run(command, cwd=HERE.parents[1], env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:] + done.stderr[-2000:]
