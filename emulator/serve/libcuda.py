"""Packages whose compiled code calls libcuda itself: there is none, so they are refused by name where they ask for it.

cuda.core and numba-cuda load it by cuda.pathfinder; CuPy is linked to it, and can do nothing without.
"""

from __future__ import annotations

import functools
import sys
import types

from ..errors import Unsupported
from .after_import import after_import

SERVED = "cuda.bindings, NVRTC, load_inline, Triton and CuTe DSL are served"


def install() -> None:
    after_import("cuda.pathfinder._dynamic_libs.load_nvidia_dynamic_lib", forbid_libcuda)
    after_import("numba.cuda.cudadrv.driver", forbid_numba)
    after_import("cupy", forbid_cupy)


def forbid_libcuda() -> None:
    """Let cuda.pathfinder say why there is no driver to load, instead of that one is to be installed."""
    pathfinder = sys.modules["cuda.pathfinder._dynamic_libs.load_nvidia_dynamic_lib"]
    load = pathfinder._load_lib_no_cache

    @functools.wraps(load)
    def load_all_but_the_driver(libname, *rest):
        if libname == "cuda":
            raise Unsupported(f"libcuda, which cuda.core calls itself, on the emulated device: {SERVED}")
        return load(libname, *rest)

    pathfinder._load_lib_no_cache = load_all_but_the_driver


def forbid_numba() -> None:
    """Let numba-cuda give our reason where it has found no driver; `numba.cuda.is_available()` stays False."""
    why = f"unsupported: libcuda, which numba-cuda calls itself, on the emulated device: {SERVED}"
    module = sys.modules["numba.cuda.cudadrv.driver"]
    module.DRIVER_NOT_FOUND_MSG = module.driver.initialization_error = why


class WithoutDevice(types.ModuleType):
    """The module `cupy` once it has been imported, which packages do that may never use it: they may ask whether there
    is a device, and whether something is an array of CuPy's."""

    def __getattribute__(self, name: str):
        if name.startswith("__") or name in ("ndarray", "cuda", "is_available"):
            return super().__getattribute__(name)
        raise Unsupported(f"cupy.{name} on the emulated device, as CuPy calls libcuda itself: {SERVED}")


def forbid_cupy() -> None:
    sys.modules["cupy"].__class__ = WithoutDevice
