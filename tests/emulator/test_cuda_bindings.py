"""`cuda.bindings` and NVRTC on the emulator. The checks share one process, which nothing else may share with them."""

from pathlib import Path

import check_scripts
import pytest

CHECKS = Path(__file__).with_name("cuda_bindings_checks.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    return check_scripts.results(CHECKS)[0]


@pytest.mark.parametrize("name", check_scripts.names(CHECKS))
def test_cuda_bindings(results, name):
    assert results[name] == ""
