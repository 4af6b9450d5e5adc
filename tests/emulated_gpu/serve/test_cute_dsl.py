"""CuTe DSL by TVM FFI, with both of its versions. The checks share a process, which nothing else may share."""

import sys
from pathlib import Path

import check_scripts
import pytest

CHECKS = Path(__file__).with_name("cute_dsl_checks.py")
ROOT = Path(__file__).resolve().parents[3]
NEWEST = ROOT / ".venv-newest" / "bin" / "python"


@pytest.fixture(scope="module", params=[sys.executable, pytest.param(NEWEST, marks=pytest.mark.newest)],
                ids=["pinned", "newest"])  # fmt: skip
def results(request, tmp_path_factory) -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    found, done = check_scripts.results(tmp_path_factory, CHECKS, python=request.param)
    assert "1 finding" in done.stderr and "internal error" not in done.stderr, done.stderr  # the last check's
    assert done.returncode == 1, done.stderr  # no crash when what was loaded is unloaded
    return found


@pytest.mark.parametrize("name", check_scripts.names(CHECKS))
def test_cute_dsl(results, name):
    assert results[name] == ""
