"""submission.py itself passes the evaluator, compiled by the pinned and by the newest CuTe DSL; from any folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parents[2]
NEWEST = ROOT / ".venv-newest" / "bin" / "python"
SPEC = "m: [40, 0, 136]; n: [48, 128, 16]; k: [128, 64, 320]; g: 3; seed: 1111"


@pytest.mark.parametrize(
    "python, constraints",
    [
        pytest.param(Path(sys.executable), "constraints.txt", id="pinned"),
        pytest.param(NEWEST, "constraints-newest.txt", id="newest", marks=[pytest.mark.newest, pytest.mark.thorough]),
    ],
)
def test_submission_is_exact(python, constraints, tmp_path):
    assert python.exists(), f"{python} is missing: `make test` makes it"
    options = ["--device", "emulated", "--spec", SPEC, "--json", str(tmp_path / "out.json")]
    if python == Path(sys.executable):
        process = forked.module("eval", "test", *options, cwd=tmp_path, PYTHONPATH=str(ROOT))
    else:
        command = [python, ROOT / "eval.py", "test", *options]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "1 of 1 done" in process.stderr and "1 case passed" in process.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert [(case["status"], case["mismatches"]) for case in result["cases"]] == [("pass", 0)]
    assert f"nvidia-cutlass-dsl=={result['versions']['nvidia-cutlass-dsl']}\n" in (ROOT / constraints).read_text()
