"""The mistakes that people make in their first CUDA C++: each found in schedule 0, and silence where it is mended."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import H200
from emulated_gpu.errors import NOTES
from emulated_gpu.serve.cuda_cpp import toolkit

SOURCE = Path(__file__).with_name("newcomers.cu")
PROGRAMS = re.findall(r"// ([\w -]+) <<<(\d+), (\d+)>>>\n(?:__device__.*\n)?__global__ void (\w+)", SOURCE.read_text())


@pytest.fixture(scope="module", params=[0, 1], ids=["wrong", "mended"])
def compiled(request, tmp_path_factory) -> tuple[bool, str]:
    """Whether it is mended, and the PTX."""
    folder = tmp_path_factory.mktemp("newcomers")
    options = ["-arch=sm_90a", "-ptx", "-lineinfo", f"-DMENDED={request.param}", "-o", "k.ptx"]
    subprocess.run([str(toolkit.find().nvcc), *options, str(SOURCE)], cwd=folder, check=True)
    return bool(request.param), (folder / "k.ptx").read_text()


def test_all_programs_are_here():
    assert len(PROGRAMS) == SOURCE.read_text().count("__global__") > 20


@pytest.mark.parametrize(("kinds", "grid", "block", "name"), PROGRAMS, ids=[p[3] for p in PROGRAMS])
def test_first_programs(compiled, kinds, grid, block, name):
    mended, ptx = compiled
    memory = [np.zeros(512, np.float32), np.arange(4096, dtype=np.float32)]
    with emulated_gpu.DEVICE.as_chip(H200), emulated_gpu.session(strict=True, most=9) as session:
        try:
            emulated_gpu.launch(ptx, name, int(grid), int(block), memory)
        except emulated_gpu.EmulatorError as error:
            session.errors.append(error)
    found = {getattr(e, "note", "") or e.kind for e in session.errors}
    if mended:
        assert not found
    else:
        assert found and found <= {*kinds.split(), *NOTES} and found & {*kinds.split()}
        assert "newcomers.cu:" in str(session.errors[0])
