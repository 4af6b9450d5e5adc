"""What is guarded of the emulator is replaced by nobody but a submission: not when CUDA C++ is first served."""

from tests import forked

SCRIPT = """
import sys
from emulated_gpu.serve import run
run.install()
from emulated_gpu.serve.cuda_cpp import runtime
from evaluation.judge.guards import Guards
guards = Guards([module for name, module in sys.modules.items() if name.startswith("emulated_gpu")])
runtime.load()
print(guards.replaced())
"""


def test_serving_cuda_cpp_replaces_nothing():
    ran = forked.module("-c", SCRIPT)
    assert ran.stdout == "[]\n", ran.stdout + ran.stderr
