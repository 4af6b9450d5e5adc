"""torch's cuda device on the emulator. The checks share one process, which nothing else may share with them."""

import subprocess
import sys
from pathlib import Path

import check_scripts
import pytest

CHECKS = Path(__file__).with_name("torch_cuda_checks.py")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    found, done = check_scripts.results(CHECKS)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.parametrize("name", check_scripts.names(CHECKS))
def test_torch_cuda(results, name):
    assert results[name] == ""


def test_importing_the_emulator_changes_nothing():
    code = (
        "import torch, emulated_gpu.serve.torch_device.scaled_mm; "
        "assert not torch.cuda.is_available(); assert not torch.ones(2).is_cuda"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
