"""Programs that nvcc has made: a library that is preloaded starts Python in them (cuda_cpp/program.cpp, in_program.py).

Kernels then run in the program's own process, whose memory is the device's, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from ...errors import Unsupported
from ...formats import elf
from . import static_runtime, toolkit

INSIDE = b"cuGetExportTable"  # what CUDA's runtime asks the driver for, as others do not
PRELOADED = "libemulated_program.so"
PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")  # of the system's libraries
PROGRAM = "EMULATED_GPU_PROGRAM"  # environment: its path
BEFORE = "EMULATED_GPU_BEFORE_"  # environment: what a variable was before the program was started
CHANGED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")


def is_program(path: str) -> bool:
    """Return whether a file is machine code, no script."""
    with open(path, "rb") as file:
        return file.read(4) == elf.MAGIC.to_bytes(4, "little")


def libpython() -> str:
    """Return the path of this Python's shared library. Raises Unsupported if it has none."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    for folder in (sysconfig.get_config_var("LIBDIR") or "", os.path.join(sys.base_prefix, "lib"), *PLACES):
        for one in (name, f"libpython{sysconfig.get_python_version()}.so.1.0"):
            if ".so" in one and os.path.exists(os.path.join(folder, one)):
                return os.path.join(folder, one)
    raise Unsupported(f"a program of CUDA runs with Python inside, of which there is no libpython"
                      f"{sysconfig.get_python_version()}.so here: a package of the system's, or a Python of its own")


def run(program: str, args: list[str], environment: dict[str, str], devices: int) -> int:
    """Run a program with CUDA's runtime linked in, or beside it, on the emulated device; returns its exit status.

    environment: more variables. Raises Unsupported for several devices, where there is no nvcc, whose headers say what
    the stand-in has, and for a program that has no runtime which could be led here.
    """
    if devices > 1:
        raise Unsupported(f"{program}: a program on {devices} devices")
    path = os.path.realpath(program)
    parts = static_runtime.parts_of(path)
    if static_runtime.HAS_RUNTIME not in elf.functions(parts):
        if toolkit.RUNTIME not in elf.needed(parts) and INSIDE in Path(path).read_bytes():
            raise Unsupported(f"{program}: CUDA's runtime is in it, stripped of the symbols that name its functions")
        if not static_runtime.wants(elf.needed(parts)):
            raise Unsupported(f"{program}: a program without CUDA's runtime")
    folders = [str(toolkit.cudart().parent), str(toolkit.driver().parent)]
    preloaded = toolkit.built(PRELOADED, [(toolkit.HERE / "program.cpp").read_text()], ["-std=c++17", "-ldl"])
    old = {name: os.environ.get(name, "") for name in CHANGED}
    changed = {
        "LD_PRELOAD": ":".join(filter(None, [str(preloaded), old["LD_PRELOAD"]])),
        "LD_LIBRARY_PATH": ":".join(filter(None, [*folders, old["LD_LIBRARY_PATH"]])),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), *sys.path])),
        "PYTHONHOME": sys.base_prefix,
    }
    more = {PROGRAM: path, "EMULATED_GPU_LIBPYTHON": libpython()}
    more |= {BEFORE + name: environment.get(name, value) for name, value in old.items()}
    status = subprocess.run([path, *args], env=os.environ | environment | changed | more).returncode
    return 128 - status if status < 0 else status  # as a shell says that a signal has ended it
