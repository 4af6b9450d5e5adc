"""Serves torch's device `cuda` in this process: `install()`."""

from __future__ import annotations

import functools

import torch

from ...device import DEVICE
from ...errors import Unsupported
from .. import doors
from ..cuda_cpp import extension
from ..host.after_import import after_import
from ..triton import triton_driver
from . import compilers, kernels, names
from .memory import TorchMemory, before, spoilt, told, undefined


@functools.cache
def install() -> None:
    """Serve `cuda` in this process, to torch, `cuda.bindings` and CuTe DSL. It cannot be undone.

    Raises Unsupported where there is a GPU, or no C++ compiler for the library that torch needs.
    """
    if torch.cuda.is_available():
        raise Unsupported("this process has a GPU: the emulated one would take its name")
    memory = TorchMemory()
    doors.install()
    callbacks = before, told, undefined, spoilt
    memory.library.emulated_install(len(DEVICE.memories), *callbacks, torch.version.cuda is not None)
    DEVICE.allocator = memory
    memory.watch()
    kernels.install()
    names.install()
    compilers.install()
    after_import("triton", triton_driver.install)
    after_import("torch.utils.cpp_extension", extension.install)
