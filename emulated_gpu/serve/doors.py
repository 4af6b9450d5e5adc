"""Serves the libraries that CUDA's own programs and Python packages load, all but torch: `install()`."""

from __future__ import annotations

import functools

from .cuda_cpp import libcuda, static_runtime
from .cute import cute_dsl
from .driver import cuda_core


@functools.cache
def install() -> None:
    """Serve CUDA's libraries, `cuda.bindings`, cuda.core and CuTe DSL in this process, as far as they are there."""
    static_runtime.install()
    libcuda.install()
    cuda_core.install()
    cute_dsl.serve()
