"""numba-cuda on the emulator, where it is installed: a kernel that it compiles, with shared memory and an atomic."""

import importlib.util
import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np
from numba import cuda, float32

@cuda.jit
def total(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t == 0:
        for i in range(64):
            cuda.atomic.add(out, 0, s[i])

out = np.zeros(1, np.float32)
total[2, 64](np.arange(128, dtype=np.float32), out)
assert out[0] == 127 * 64
"""


@pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="needs numba-cuda: pip install numba-cuda")
def test_numba_cuda(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    script = str(tmp_path / "script.py")
    command = [sys.executable, "-W", "ignore", "-m", "emulated_gpu", "run", "--must-launch", script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "1 launch, 0 findings" in done.stderr, done.stderr
