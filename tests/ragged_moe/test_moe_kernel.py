"""The kernels and the layer on an emulated H200 and an emulated B200, in a process or two for each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

HERE = Path(__file__).parent
NEWEST = HERE.parents[1] / ".venv-newest" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize(
    "checks, machine",
    [
        ("kernel layer experts equal_sizes router batched", "h200"),
        ("kernel layer experts router batched w4a4 w4a8 w4a16", "b200"),
        ("fp4 fp4_by_e4m3 operator", "h200"),
    ],
)
def test_kernels(checks, machine, pytestconfig):
    run(sys.executable, checks, machine, *["--thorough"] * pytestconfig.getoption("--thorough"))


@pytest.mark.newest
@pytest.mark.thorough
def test_w4a4_by_the_newest_dsl():
    """Tokens rounded, a checkpoint's tensors called with, and the layers."""
    run(NEWEST, "w4a4 w4a8 w4a16", "b200", "-k", "quantised or checkpoint or test_layer and not full")


def run(python: str | Path, checks: str, machine: str, *options: str) -> None:
    """Run these files of checks on this emulated machine in a process of its own."""
    files = [str(HERE / f"{name}_checks.py") for name in checks.split()]
    command, variables = ["pytest", "-q", "-p", "no:cacheprovider", *files, *options], {"MOE_MACHINE": machine}
    if python == sys.executable:
        done = forked.module(*command, **variables)
    else:
        env = os.environ | variables
        done = subprocess.run(
            [str(python), "-m", *command], cwd=HERE.parents[1], env=env, capture_output=True, text=True, timeout=1800
        )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:] + done.stderr[-2000:]
