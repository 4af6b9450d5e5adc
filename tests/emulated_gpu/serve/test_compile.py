"""torch.compile on the emulator: see compile_checks.py, whose checks share one process."""

from pathlib import Path

import check_scripts
import pytest

from tests.thorough import all_but

pytest.importorskip("triton", reason="needs Triton: pip install triton")
CHECKS = Path(__file__).with_name("compile_checks.py")
NAMES = check_scripts.names(CHECKS)
KEPT = NAMES[:2]


@pytest.fixture(scope="module")
def results(tmp_path_factory, pytestconfig) -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    asked = NAMES if pytestconfig.getoption("--thorough") else KEPT
    found, done = check_scripts.results(tmp_path_factory, CHECKS, asked=asked)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", all_but(KEPT, NAMES))
def test_compile(results, name):
    assert results[name] == ""
