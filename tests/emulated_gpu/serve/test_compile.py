"""torch.compile on the emulator: see compile_checks.py, whose checks share one process."""

from pathlib import Path

import check_scripts
import pytest

pytest.importorskip("triton", reason="needs Triton: pip install triton")
CHECKS = Path(__file__).with_name("compile_checks.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    found, done = check_scripts.results(tmp_path_factory, CHECKS)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", check_scripts.names(CHECKS))
def test_compile(results, name):
    assert results[name] == ""
