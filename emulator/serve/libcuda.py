"""Packages that look for libcuda: numba-cuda, which then calls `cuda.bindings`, and CuPy, whose compiled code needs it.

CuPy is linked to CUDA's runtime, which can do nothing without a driver: it is refused by name.
"""

from __future__ import annotations

import functools
import sys
import types

from ..errors import Unsupported
from .after_import import after_import

SERVED = "cuda.bindings, cuda.core, numba-cuda, NVRTC, load_inline, Triton and CuTe DSL are served"


def install() -> None:
    after_import("cuda.pathfinder._dynamic_libs.load_nvidia_dynamic_lib", hide_nvjitlink)
    after_import("numba.cuda.cudadrv.driver", tell_numba)
    after_import("cupy", forbid_cupy)


def hide_nvjitlink() -> None:
    """Let cuda.core link by the driver: what nvJitLink makes is machine code alone, and PTX is what runs here."""
    pathfinder = sys.modules["cuda.pathfinder._dynamic_libs.load_nvidia_dynamic_lib"]
    load = pathfinder._load_lib_no_cache

    @functools.wraps(load)
    def load_all_but_nvjitlink(libname, *rest):
        if libname == "nvJitLink":
            raise pathfinder.DynamicLibNotFoundError("nvJitLink is not used on the emulated device")
        return load(libname, *rest)

    pathfinder._load_lib_no_cache = load_all_but_nvjitlink


def tell_numba() -> None:
    """Let numba-cuda go on without libcuda, which it has not found: it calls no function of the library itself."""
    driver = sys.modules["numba.cuda.cudadrv.driver"].driver
    driver.is_initialized, driver.initialization_error = False, None


class WithoutDevice(types.ModuleType):
    """The module `cupy` once it has been imported, which packages do that may never use it: they may ask whether there
    is a device, and whether something is an array of CuPy's."""

    def __getattribute__(self, name: str):
        if name.startswith("__") or name in ("ndarray", "cuda", "is_available"):
            return super().__getattribute__(name)
        raise Unsupported(f"cupy.{name} on the emulated device, as CuPy calls libcuda itself: {SERVED}")


def forbid_cupy() -> None:
    sys.modules["cupy"].__class__ = WithoutDevice
