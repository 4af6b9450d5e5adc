"""The C functions of `cuda.bindings`, which the compiled code of cuda.core calls past the functions of Python.

Cython's modules find each other's C functions in capsules, `__pyx_capi__`, whose names are the functions' signatures.
Each is made to lead to a callback, which calls the function of Python of the same name, or refuses by that name.
"""

from __future__ import annotations

import ctypes

from ..host.after_import import after_import
from . import c_driver, modules
from .cuda_bindings import refusal

_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_pointer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_SetPointer", ctypes.pythonapi)
)


def signature(capsule) -> str:
    return _name(capsule).decode()


def replace_driver(cydriver) -> None:
    """Answer the driver's functions in the capsules of the module `cydriver`."""
    for name, capsule in cydriver.__pyx_capi__.items():
        function = c_driver.function_of(name, c_driver.split(signature(capsule)))
        _set_pointer(capsule, function or c_driver.pointer(refusal(f"{name}() of compiled code"), []))


def replace_nvrtc(cynvrtc) -> None:
    """Let NVRTC's own compiler say of which PTX a cubin was made, as `cuda_modules.install_nvrtc` does."""
    types = ["nvrtcProgram *", "void *"]

    def original(name):
        capsule = cynvrtc.__pyx_capi__[name]
        address = _pointer(capsule, _name(capsule))
        return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(address)

    noting = modules.noting(*map(original, ("nvrtcGetCUBIN", "nvrtcGetPTXSize", "nvrtcGetPTX")))
    _set_pointer(cynvrtc.__pyx_capi__["nvrtcGetCUBIN"], c_driver.pointer(noting, types, answers=True))


def serve() -> None:
    from cuda.bindings import cydriver, cynvrtc

    replace_driver(cydriver)
    replace_nvrtc(cynvrtc)


def install() -> None:
    """Serve cuda.core, once it begins to be imported: before its compiled modules comes `_version`."""
    after_import("cuda.core._version", serve)
