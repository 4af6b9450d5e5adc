"""torch's cuda device on the emulator. The checks share one process, which nothing else may share with them."""

from pathlib import Path

import check_scripts
import pytest

from tests import forked

CHECKS = Path(__file__).with_name("torch_cuda_checks.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    found, done = check_scripts.results(tmp_path_factory, CHECKS)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.parametrize("name", check_scripts.names(CHECKS))
def test_torch_cuda(results, name):
    assert results[name] == ""


def test_who_has_no_compiler_is_told_so(tmp_path):
    (tmp_path / "script.py").write_text("import torch\ntorch.ones(1, device='cuda')\n")
    variables = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path), "EMULATED_GPU_CACHE": ""}
    done = forked.module("emulated_gpu", "run", tmp_path / "script.py", **variables)
    assert done.returncode == 1 and "needs g++ once" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_importing_the_emulator_changes_nothing():
    code = (
        "import torch, emulated_gpu.serve.torch_device.scaled_mm; "
        "assert not torch.cuda.is_available(); assert not torch.ones(2).is_cuda"
    )
    done = forked.module("-c", code)
    assert done.returncode == 0, done.stderr
