"""torch.utils.cpp_extension on the emulated device: `load`, `load_inline` and setuptools builds of CUDA C++.

The extension is built as on a machine with CUDA, against the stand-ins for CUDA's libraries. At the call of one of its
functions a tensor of the emulated device becomes a CUDA tensor to C++ (torch_cuda.cpp), and what comes back becomes
one of the device again.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_map

from ...device import DEVICE
from ...errors import Unsupported
from . import runtime, toolkit


@functools.cache
def prepare() -> None:
    """Load the stand-ins, and tell torch's builds where they are. Raises Unsupported where there is no nvcc."""
    from torch.utils import cpp_extension

    runtime.load()
    torch.ops.load_library(str(toolkit.libraries()[1]))
    cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"] = str(toolkit.find().home)
    os.environ["PYTORCH_NVCC"] = toolkit.compiler()
    if os.access(toolkit.HOST_COMPILER, os.X_OK):  # an installer may have lost the permission
        os.environ.setdefault("CXX", str(toolkit.HOST_COMPILER))
    major, minor = DEVICE.chip.capability
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", f"{major}.{minor}a")
    os.environ.setdefault("MAX_JOBS", "2")
    searched = [os.environ.get("CPLUS_INCLUDE_PATH", ""), str(toolkit.HEADERS)]  # after all that options name
    os.environ["CPLUS_INCLUDE_PATH"] = os.pathsep.join(filter(None, searched))


def install(kind: type, to_device: Callable) -> None:
    """Serve torch.utils.cpp_extension. Nothing is looked for or built before the first extension with CUDA.

    kind: the class of tensors on the emulated device. to_device(tensor): one with the same elements, in the same memory
    if that is the device's.
    """
    from torch.utils import cpp_extension as c

    ldflags = c._prepare_ldflags

    @functools.wraps(ldflags)
    def prepare_ldflags(extra, with_cuda, *args, **kwargs):
        found = ldflags(list(extra or []), with_cuda, *args, **kwargs)
        if with_cuda:
            for library in toolkit.libraries():
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
                    setattr(made, name, across(value, kind, to_device))
        return made

    c._jit_compile = jit_compile


def across(function, kind: type, to_device: Callable):
    """Return a function of C++ as one that takes and returns tensors of the emulated device, as of `install`."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        given = {}

        def down(x):
            if not isinstance(x, kind):
                return x
            inside = torch.ops.emulated_gpu.to_cuda(x.as_subclass(torch.Tensor))
            given[id(inside)] = x, inside
            return inside

        def up(x):
            if id(x) in given:
                return given[id(x)][0]
            if not isinstance(x, torch.Tensor) or x.device.type != "cuda":
                return x
            return to_device(torch.ops.emulated_gpu.to_cpu(x))

        with torch._C.DisableTorchFunction():
            try:
                result = function(*tree_map(down, args), **tree_map(down, kwargs))
            except Exception as error:
                if DEVICE.session.failure is not None:
                    raise DEVICE.session.failure from error
                raise
            return tree_map(up, result)

    return call
