"""CuTe DSL by TVM FFI, with both of its versions. The checks share a process, which nothing else may share."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("cute_dsl_checks.py")
ROOT = Path(__file__).resolve().parents[2]
NEWEST = ROOT / ".venv-newest" / "bin" / "python"


@pytest.fixture(scope="module", params=[sys.executable, pytest.param(NEWEST, marks=pytest.mark.newest)],
                ids=["pinned", "newest"])  # fmt: skip
def results(request) -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    command = [str(request.param), "-m", "emulator", "run", str(CHECKS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "1 finding" in done.stderr and "internal error" not in done.stderr, done.stderr  # the last check's
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", re.findall(r"^def (check_\w+)", CHECKS.read_text(), re.MULTILINE))
def test_cute_dsl(results, name):
    assert results[name] == ""
