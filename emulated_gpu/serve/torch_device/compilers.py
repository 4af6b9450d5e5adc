"""torch.compile on the emulated device: Inductor's Triton is compiled as for a GPU, and launched here."""

from __future__ import annotations

import os

import torch

from ..driver import timed
from ..host.after_import import after_import
from ..triton.triton_driver import milliseconds, say

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


def keep_operands() -> None:
    """Let no kernel write over what it reads: of values that only some threads store, Triton loads copies in several
    warps, which by the PTX ISA race with the store, though what they load is stored nowhere."""
    from torch._inductor import config

    config.inplace_buffers = False


def empty_strided_cuda(size, stride, dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def install() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    torch._C._dynamo.guards._empty_strided_cuda = empty_strided_cuda
    after_import("torch._inductor.config", keep_operands)
    after_import("torch._inductor.runtime.benchmarking", install_benchmark)
