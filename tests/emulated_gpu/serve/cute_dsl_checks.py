"""CuTe DSL compiled for TVM FFI and called with torch's tensors: test_cute_dsl.py runs this on the emulator."""

import os
import runpy
import subprocess
import tempfile
from pathlib import Path

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from check_scripts import run
from cutlass._mlir.passmanager import PassManager
from cutlass.cute.runtime import (
    find_runtime_libraries,
    from_dlpack,
    load_module,
    make_fake_compact_tensor,
    make_fake_stream,
)

from emulated_gpu import build_cache
from emulated_gpu.device import DEVICE
from emulated_gpu.serve.driver import modules
from emulated_gpu.serve.host import source_lines


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor, a: cutlass.Float32):
    i = cute.arch.block_idx()[0] * 32 + cute.arch.thread_idx()[0]
    y[i] = x[i] * a


@cute.jit
def scaled(x: cute.Tensor, y: cute.Tensor, a: cutlass.Float32, blocks: cutlass.Int32, queue: cuda.CUstream):
    kernel(x, y, a).launch(grid=(blocks, 1, 1), block=(32, 1, 1), stream=queue)


vector = make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),))
function = cute.compile(
    scaled, vector, vector, cutlass.Float32(1), cutlass.Int32(1), make_fake_stream(use_tvm_ffi_env_stream=True),
    options="--enable-tvm-ffi",
)  # fmt: skip
x = torch.arange(64.0, device="cuda")


def fails(call) -> str:
    try:
        call()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    raise AssertionError("it did not fail")


def check_tensors_of_the_device_are_taken():
    y = torch.zeros_like(x)
    function(x, y, 2.0, 2)
    assert torch.equal(y, 2 * x)


def check_views_are_taken_where_they_lie():
    y = torch.zeros_like(x)
    function(x[32:], y[:32], 3.0, 1)
    assert torch.equal(y[:32], 3 * x[32:]) and not y[32:].any()


def check_tensors_of_the_host_and_of_other_types_are_refused():
    assert "expected device_type=cuda" in fails(lambda: function(torch.zeros(64), torch.zeros(64), 2.0, 2))
    assert "expected dtype=float32" in fails(lambda: function(x.to(torch.float16), x, 2.0, 2))


def check_what_the_passes_made_is_taken_again():
    """Also by another process, of a copy elsewhere: only a folder is kept. Results are those of the first time, lines
    those of the copy."""
    runs, run_passes = [], PassManager.run
    PassManager.run = lambda self, operation: runs.append(self) or run_passes(self, operation)
    y, made, text = torch.zeros_like(x), [], Path(__file__).read_text().partition("\nvector =")[0]
    given = from_dlpack(x), from_dlpack(y), cutlass.Float32(5), cutlass.Int32(2), cuda.CUstream(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[build_cache.CACHE] = folder
        for place in Path(folder, "a"), Path(folder, "another"):
            place.mkdir()
            (file := place / "kernels.py").write_text(text)
            source_lines._files.clear()
            source_lines.short.cache_clear()
            made.append((cute.compile(runpy.run_path(str(file))["scaled"], *given), len(runs)))
            assert f'"{file}"' in modules.known(made[-1][0].artifacts.CUBIN)
        os.environ.pop(build_cache.CACHE)
    PassManager.run = run_passes
    (first, ran), (second, in_all) = made
    assert ran and in_all == ran
    assert first.artifacts.PTX == second.artifacts.PTX and first.artifacts.CUBIN == second.artifacts.CUBIN
    second(*given)
    assert torch.equal(y, 5 * x)


loaded = []  # which ends when Python has


def check_an_exported_function_is_taken_back():
    y = torch.zeros_like(x)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[build_cache.CACHE] = folder
        function.export_to_c(f"{folder}/scaled.o", "scaled")
        modules._texts.clear()  # as another process, which has not compiled it
        load_module(f"{folder}/scaled.o", enable_tvm_ffi=True).scaled(x, y, 4.0, 2)
        assert torch.equal(y, 4 * x)
        command = ["gcc", "-shared", "scaled.o", *find_runtime_libraries(enable_tvm_ffi=True), "-o", "scaled.so"]
        subprocess.run(command, cwd=folder, check=True)
        loaded.append(load_module(f"{folder}/scaled.so", enable_tvm_ffi=True))
        loaded[0].scaled(x, y, 5.0, 2)
        assert torch.equal(y, 5 * x)
        del os.environ[build_cache.CACHE]


def check_a_launch_that_fails_is_an_error():
    y = torch.zeros_like(x)
    assert "cudaErrorLaunchFailure" in fails(lambda: function(x, y, 2.0, 3))
    assert DEVICE.session.failure.kind == "out-of-bounds" and "cute_dsl_checks.py:32" in str(DEVICE.session.failure)


run(globals())
