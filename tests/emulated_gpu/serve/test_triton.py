"""Triton on the emulator. The checks share a process for each machine, which nothing else may share with them."""

from pathlib import Path

import check_scripts
import pytest

from tests import forked

CHECKS = Path(__file__).with_name("triton_checks.py")


@pytest.fixture(scope="module", params=["b200", "h200"])
def results(request, tmp_path_factory) -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    found, done = check_scripts.results(tmp_path_factory, CHECKS, "--machine", request.param)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", check_scripts.names(CHECKS))
def test_triton(results, name):
    assert results[name] == ""


SCRIPT = f"""
import sys
import torch
sys.path.append({str(CHECKS.parent)!r})
import triton_checks as t

x = torch.arange(4096.0, device="cuda")
y = torch.empty_like(x)
t.scaled[lambda meta: (4096 // meta["BLOCK"],)](x, y, 4096, 2.0, False)
assert torch.equal(y, 2 * x)
assert 0.001 < t.triton.testing.do_bench(lambda: t.softmax[(1,)](x, y, 64, 64, BLOCK=64)) < 0.1
"""


def test_the_model_tunes(tmp_path):
    """Under `run --timed` all configurations are timed, and the choice is said with its grounds."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = forked.emulated_gpu("run", "--timed", script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("modelled, not measured") == 3 and "the fastest by the model" in done.stderr
