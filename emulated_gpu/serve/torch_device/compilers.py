"""Compilers that time what they make, with torch: Inductor, whose Triton is launched here, and tilelang."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from ...errors import Unsupported
from ..driver import modules, timed
from ..host.after_import import after_import
from ..triton.triton_driver import bench_of, milliseconds, say

ENVIRONMENT = {  # of Inductor: its own launcher is C++ that calls libcuda; its workers have no emulated device
    "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


def benchmark(self, call, **_) -> float:
    """Time a configuration for Inductor, in ms: modelled, or else the same for each, so that it takes the first."""
    if not timed.on():
        say("Inductor takes the first configuration of each kernel; `run --timed` asks the model")
        return 1.0
    return milliseconds(call)


def install_benchmark() -> None:
    from torch._inductor.runtime import benchmarking

    for kind in (benchmarking.Benchmarker, benchmarking.TritonBenchmarker, benchmarking.InductorBenchmarker):
        kind.benchmark_gpu = benchmark


def install_in_tilelang() -> None:
    profiler: Any = sys.modules["tilelang.profiler"]
    profiler.do_bench = profiler.bench.do_bench = bench_of("tilelang's do_bench")


def refuse_files() -> None:
    """AOTInductor's programs load machine code by themselves."""
    from torch._inductor.codecache import AotCodeCompiler

    for_others = AotCodeCompiler.compile

    def compiled(*given, device_type, **options):
        if device_type == "cuda":
            raise Unsupported("AOTInductor for cuda on the emulated device: torch.compile serves it")
        return for_others(*given, device_type=device_type, **options)

    setattr(AotCodeCompiler, "compile", compiled)  # noqa: B010


def compile_with_nvrtc() -> None:
    """Let what torch.cuda._compile_kernel compiles run, as PTX."""
    utils: Any = sys.modules["torch.cuda._utils"]
    find = utils._get_nvrtc_library

    def found():
        library = find()
        library.nvrtcGetCUBIN = modules.noting(library.nvrtcGetCUBIN, library.nvrtcGetPTXSize, library.nvrtcGetPTX)
        return library

    utils._get_nvrtc_library = found


def empty_strided_cuda(size, stride, dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def install() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    torch._C._dynamo.guards._empty_strided_cuda = empty_strided_cuda
    after_import("torch._inductor.runtime.benchmarking", install_benchmark)
    after_import("torch._inductor.codecache", refuse_files)
    after_import("torch.cuda._utils", compile_with_nvrtc)
    after_import("tilelang.profiler", install_in_tilelang)
