"""`python -m tests.ragged_moe.count_compiles permute|model`: compiles for an H200 that is not there, and prints how
often and for how many seconds. test_moe_compile_ahead.py runs this."""

import ctypes
import sys
import time

import cutlass.cute as cute
import torch
from cutlass import Int64
from cutlass.cute.runtime import make_ptr

import ragged_moe
from ragged_moe.kernels import permute, program
from ragged_moe.runtime import device
from tests import quick_dsl


def one_kernel() -> None:
    words = (ctypes.c_int64 * permute.WORDS)()
    pointer = make_ptr(Int64, ctypes.addressof(words), cute.AddressSpace.generic)
    found = program.compiled(permute.Permute(), "", pointer)
    assert "Permute" in found.function_name and len(found.kernel_info) == 1, found.function_name


def all_of_a_model() -> None:
    """What a rank of DeepSeek-V3 calls with up to 4096 tokens."""
    gpu = object.__new__(device.Gpu)
    gpu.index, gpu.sms, gpu.capability = 0, 132, (9, 0)
    device.gpu = lambda _: gpu
    torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 0
    program.Launch = lambda *_: None  # which asks the GPU
    sizes = {"hidden": 7168, "intermediate": 2048, "local": 32}
    ragged_moe.warmup(
        experts=[{"tokens": range(1, 4097), "top_k": 8, "num_experts": 256, **sizes}],
        batched_experts=[{"most": 128, "expected_m": range(1, 129), **sizes}],
        routers=[{"experts": 256, "top_k": 8, "scoring": "sigmoid", "bias": torch.float32}],
    )


quick_dsl.install()
compiles, compile_ = [], cute.compile
cute.compile = lambda *arguments: compiles.append(1) or compile_(*arguments)
begin = time.perf_counter()
{"permute": one_kernel, "model": all_of_a_model}[sys.argv[1]]()
print(len(compiles), time.perf_counter() - begin)
