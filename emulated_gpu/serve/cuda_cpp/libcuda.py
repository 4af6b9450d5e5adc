"""Packages that look for libcuda: numba-cuda, which calls `cuda.bindings`, and CuPy, whose compiled code needs it."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
import types

from ...errors import Unsupported
from ..host.after_import import after_import
from . import static_runtime

# The CUDA toolkit's libraries, as cuda.pathfinder calls them
LIBRARIES = re.compile(r"cu(blas|blasLt|rand|solver|solverMg|sparse|fft|fftw)|npp.*|nvjpeg")


def install() -> None:
    after_import("cuda.pathfinder._dynamic_libs.load_nvidia_dynamic_lib", hide_libraries)
    after_import("numba.cuda.cudadrv.driver", tell_numba)
    after_import("cupy_backends", serve_cupy)
    for version in (12, 13):
        after_import(f"jax_plugins.xla_cuda{version}", tell_of_jax)


def hide_libraries() -> None:
    """Let nobody find libraries that are machine code alone. Without nvJitLink cuda.core links by the driver, and what
    is linked stays PTX."""
    pathfinder = sys.modules["cuda.pathfinder._dynamic_libs.load_nvidia_dynamic_lib"]
    load = pathfinder._load_lib_no_cache

    @functools.wraps(load)
    def load_what_runs_here(libname, *rest):
        if libname == "nvJitLink":
            raise pathfinder.DynamicLibNotFoundError("nvJitLink is not used on the emulated device")
        if LIBRARIES.fullmatch(libname):
            why = f"lib{libname} is not served on the emulated device: it is machine code, and PTX runs here"
            raise pathfinder.DynamicLibNotFoundError(why)
        return load(libname, *rest)

    pathfinder._load_lib_no_cache = load_what_runs_here


def tell_numba() -> None:
    """Let numba-cuda go on without libcuda, which it has not found: it calls no function of the library itself."""
    driver = sys.modules["numba.cuda.cudadrv.driver"].driver
    driver.is_initialized, driver.initialization_error = False, None


def tell_of_jax() -> None:
    """Say why jax goes on without this device: its plug-in wants NVML and cuDNN, and would launch machine code."""
    why = "jax's plug-in compiles to machine code, which does not run on the emulated device: jax has its CPU alone"
    print(f"emulated-gpu: {why}", file=sys.stderr)


# ---- CuPy: its compiled modules have CUDA's runtime inside, and load libcuda by its name


def serve_cupy() -> None:
    """Lead CuPy's compiled modules here, before the first of them is loaded. Without nvcc there is no device."""
    try:
        static_runtime.load_driver()
    except Unsupported as why:
        for package in ("cupy", "cupy_backends", "cupyx"):
            if found := importlib.util.find_spec(package):
                static_runtime.leave(found.submodule_search_locations[0])
        after_import("cupy", functools.partial(forbid_cupy, str(why)))
    # CuPy's own options: it keeps machine code alone otherwise, and its wheels have CUB as machine code
    os.environ.setdefault("CUPY_COMPILE_WITH_PTX", "1")
    os.environ.setdefault("CUPY_ACCELERATORS", "")


class WithoutDevice(types.ModuleType):
    """The module `cupy` where it cannot be served, which packages import that may never use it: they may ask whether
    there is a device, and whether something is an array of CuPy's."""

    def __getattribute__(self, name: str):
        if name.startswith("__") or name in ("ndarray", "cuda", "is_available"):
            return super().__getattribute__(name)
        raise Unsupported(f"cupy.{name} on the emulated device: {sys.modules['cupy'].__dict__['__why__']}")


def forbid_cupy(why: str) -> None:
    sys.modules["cupy"].__why__ = why
    sys.modules["cupy"].__class__ = WithoutDevice
