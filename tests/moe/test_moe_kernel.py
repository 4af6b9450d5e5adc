"""The kernels and the layer on an emulated H200 and an emulated B200, in a process for each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    "checks, machine",
    [
        ("experts router batched fp4 operator", "h200"),
        *((files, machine) for files in ("kernel", "layer") for machine in ("h200", "b200")),
        ("experts router batched w4a4", "b200"),
    ],
)
def test_kernels(checks, machine, pytestconfig):
    files = [str(HERE / f"{name}_checks.py") for name in checks.split()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    command += ["--thorough"] * pytestconfig.getoption("--thorough")
    env = os.environ | {"MOE_MACHINE": machine}
    done = subprocess.run(command, cwd=HERE.parents[1], env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:] + done.stderr[-2000:]
