"""torch.utils.cpp_extension on the emulated device: `load`, `load_inline` and setuptools builds of CUDA C++.

The extension is built as on a machine with CUDA, against the stand-ins for CUDA's libraries; tensors of the emulated
device are CUDA tensors to C++, too.
"""

from __future__ import annotations

import functools
import inspect
import os
import types

import torch

from ...device import DEVICE
from ...errors import Unsupported
from . import runtime, toolkit


@functools.cache
def prepare() -> None:
    """Load the stand-ins, and tell torch's builds where they are. Raises Unsupported where there is no nvcc."""
    from torch.utils import cpp_extension

    runtime.load()
    torch.ops.load_library(str(toolkit.libraries()[1]))
    cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"] = str(toolkit.led())
    if os.access(toolkit.HOST_COMPILER, os.X_OK):  # an installer may have lost the permission
        os.environ.setdefault("CXX", str(toolkit.HOST_COMPILER))
        os.environ["EMULATED_GPU_PRECOMPILED"] = str(toolkit.precompiled())
    major, minor = DEVICE.chip.capability
    suffix = "a" if DEVICE.chip.arch.endswith("a") else ""
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", f"{major}.{minor}{suffix}")
    os.environ.setdefault("MAX_JOBS", "2")
    searched = [os.environ.get("CPLUS_INCLUDE_PATH", ""), str(toolkit.HEADERS)]  # after all that options name
    os.environ["CPLUS_INCLUDE_PATH"] = os.pathsep.join(filter(None, searched))


def install() -> None:
    """Serve torch.utils.cpp_extension. Nothing is looked for or built before the first extension with CUDA."""
    from torch.utils import cpp_extension as c

    ldflags = c._prepare_ldflags

    @functools.wraps(ldflags)
    def prepare_ldflags(extra, with_cuda, *args, **kwargs):
        found = ldflags(list(extra or []), with_cuda, *args, **kwargs)
        if with_cuda:
            blas = [toolkit.blas()] if any("cublas" in one for one in extra or ()) else []
            for library in (*toolkit.libraries(), *blas):
                found[:0] = [f"-L{library.parent}", f"-Wl,-rpath,{library.parent}"]
        return found

    c._prepare_ldflags = prepare_ldflags
    build = c._jit_compile

    @functools.wraps(build)
    def jit_compile(*args, **kwargs):
        bound = inspect.signature(build).bind(*args, **kwargs)
        sources, with_cuda = bound.arguments["sources"], bound.arguments.get("with_cuda")
        if with_cuda is None:
            with_cuda = any(map(c._is_cuda_file, [sources] if isinstance(sources, str) else sources))
        if with_cuda:
            if DEVICE.node is not None:
                raise Unsupported("CUDA C++ extensions on several devices")
            prepare()
        made = build(*args, **kwargs)
        if with_cuda and isinstance(made, types.ModuleType):
            for name, value in vars(made).items():
                if isinstance(value, types.BuiltinFunctionType) and not name.startswith("__"):
                    setattr(made, name, guarded(value))
        return made

    c._jit_compile = jit_compile


def guarded(function):
    """Return a function of C++ that raises what a launch has found, of which C++ has only seen an error number."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if DEVICE.session.failure is not None:
                raise DEVICE.session.failure from error
            raise

    return call
