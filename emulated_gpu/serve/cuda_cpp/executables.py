"""Programs that nvcc has made: a library that is preloaded starts Python in them (cuda_cpp/program.cpp, in_program.py).

Kernels then run in the program's own process, whose memory is the device's, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from ...errors import Unsupported
from ...formats import elf
from . import static_runtime, toolkit

PROGRAM = "EMULATED_GPU_PROGRAM"  # environment: its path
BEFORE = "EMULATED_GPU_BEFORE_"  # environment: what a variable was before the program was started
PROFILE = "EMULATED_GPU_PROFILE"  # environment: the file that asks for a profile (serve/profile.py)
CHANGED = ("LD_PRELOAD", "LD_LIBRARY_PATH")


def is_program(path: str) -> bool:
    """Return whether a file is machine code, no script."""
    with open(path, "rb") as file:
        return file.read(4) == elf.MAGIC.to_bytes(4, "little")


def run_executable(program: str, args: list[str], environment: dict[str, str], devices: int) -> int:
    """Run a program with CUDA's runtime linked in, or beside it, on the emulated device; returns its exit status.

    environment: more variables. Raises Unsupported for several devices, where there is no nvcc, whose headers say what
    the stand-in has, and for a program that has no runtime which could be led here.
    """
    if devices > 1:
        raise Unsupported(f"{program}: a program on {devices} devices")
    path = os.path.realpath(program)
    parts = static_runtime.parts_of(path)
    if static_runtime.HAS_RUNTIME not in elf.functions(parts):
        if toolkit.RUNTIME not in elf.needed(parts) and static_runtime.holds(path, static_runtime.INSIDE):
            raise Unsupported(static_runtime.STRIPPED.format(program))
        if not static_runtime.wants(elf.needed(parts)):
            if static_runtime.looks_for_driver(path):
                return status_of([path, *args], environment)
            raise Unsupported(f"{program}: a program without CUDA's runtime or driver")
    folders = [str(toolkit.cudart().parent), str(toolkit.driver().parent)]
    if any("cublas" in name for name in elf.needed(parts)):
        folders.append(str(toolkit.blas().parent))
    if any("nvrtc" in name for name in elf.needed(parts)):
        folders.append(str(toolkit.find().home / "lib"))
    old = {name: environment.get(name, os.environ.get(name, "")) for name in CHANGED}
    changed = {
        "LD_PRELOAD": ":".join(filter(None, [str(toolkit.preloaded()), old["LD_PRELOAD"]])),
        "LD_LIBRARY_PATH": ":".join(filter(None, [*folders, old["LD_LIBRARY_PATH"]])),
    }
    more = {PROGRAM: path, **toolkit.for_python()} | {BEFORE + name: value for name, value in old.items()}
    return status_of([path, *args], environment | changed | more)


def status_of(command: list[str], environment: dict[str, str]) -> int:
    """Run a command with more variables; returns its exit status, as a shell has it, and says which signal ends it."""
    status = subprocess.run(command, env=os.environ | environment).returncode
    if status < 0:
        what = f"signal {-status} ({signal.strsignal(-status)})"
        print(f"emulated-gpu: {command[0]}: ended by {what}", file=sys.stderr, flush=True)
    return 128 - status if status < 0 else status  # as a shell says that a signal has ended it
