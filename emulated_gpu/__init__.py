"""Run sm_100a PTX, and CuTe DSL programs that compile to it, on a CPU: bit-exactly, with checks.

    import emulated_gpu

    emulated_gpu.launch(ptx, "kernel", grid=1, block=128, args=[a, b, 1024])      # PTX text from anywhere

    emulated_gpu.install()                                                        # before `import cutlass`
    with emulated_gpu.session(schedule=3):                                        # CuTe DSL: host code launches here
        custom_kernel(emulated_gpu.device_tensors(data))

README.md in this folder says what runs and what is refused, EVIDENCE.md what a result rests on; ../ARCHITECTURE.md
walks through the code.
"""

from .calls import device_tensors, protect, session, synchronize, timing, written
from .device import DEVICE
from .errors import EmulatorError, Fault, Hang, Unsupported
from .launch_ptx import launch
from .serve.cute.cute_dsl import install

__version__ = "0.1.0"
__all__ = [
    "DEVICE", "EmulatorError", "Fault", "Hang", "Unsupported", "device_tensors", "install", "launch", "protect",
    "session", "synchronize", "timing", "written",
]  # fmt: skip
