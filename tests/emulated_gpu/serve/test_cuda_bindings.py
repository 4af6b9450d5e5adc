"""`cuda.bindings` and NVRTC on the emulator. The checks share one process, which nothing else may share with them."""

import subprocess
from pathlib import Path

import check_scripts
import pytest

CHECKS = Path(__file__).with_name("cuda_bindings_checks.py")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[dict[str, str], subprocess.CompletedProcess]:
    """Name of each check -> its traceback, or nothing; and how the process ended."""
    return check_scripts.results(tmp_path_factory, CHECKS)


@pytest.mark.parametrize("name", check_scripts.names(CHECKS))
def test_cuda_bindings(made, name):
    assert made[0][name] == ""


def test_what_cuda_core_still_holds_is_released_when_python_is_gone(made):
    assert made[1].returncode == 1, made[1].stderr[-2000:]  # for its findings; a signal's is negative
