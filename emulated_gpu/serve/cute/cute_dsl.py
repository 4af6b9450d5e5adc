"""Let CuTe DSL's own JIT-compiled host code launch into the emulator.

The host code that the DSL generates calls a handful of `_cuda*` functions of its runtime library, which are led here
(`entry_points.py`), so nothing has to be compiled, preloaded or linked. They get machine code; the PTX that it was made
of is known by the DSL's own "keep" option.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings
from pathlib import Path

from ... import packages, scratch
from ...chip import chip_of
from ...device import DEVICE
from ...errors import Unsupported
from ..driver import cuda_bindings, launches, modules
from ..driver.graph_calls import put_int
from ..host import entry_points, source_lines
from ..host.after_import import after_import
from . import kept_passes

RUNTIME = "libcute_dsl_runtime.so"  # with which host code is linked
DSLS = "CUTE_DSL", "CUTE_EXPERIMENTAL_DSL"  # as their variables begin; the second one: `cutlass.cute.experimental`
_u32, _u64, _i32, _ptr = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p

_callbacks: dict[str, object] = {}


class _Config(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = [
        ("grid", _u32 * 3), ("block", _u32 * 3), ("dynamic_shared", _u64), ("queue", _ptr),
        ("attributes", ctypes.POINTER(launches.Attribute)), ("count", _u32),
    ]  # fmt: skip


def _callback(name: str, *arguments):
    """Keep a function as one of C. What it raises is raised when the host code has returned, which sees one number."""

    def register(function):
        asked = launches.guarded(function)
        status = lambda *args: asked(*args) and launches.LAUNCH_FAILURE  # noqa: E731
        _callbacks[name] = ctypes.CFUNCTYPE(_i32, *arguments)(status)
        return function

    return register


@_callback("_cudaLibraryLoadData", _ptr, _ptr, _ptr, _ptr, _u32, _ptr, _ptr, _u32)
def _load_library(library, code, *_):
    _u64.from_address(library).value = handle = modules.load(code)
    loaded = modules.modules[handle]
    for kernel in loaded.module.kernels.values() if loaded else ():
        kernel.function = source_lines.function_of(kernel.name)


@_callback("_cudaLibraryGetKernel", _ptr, _ptr, ctypes.c_char_p)
def _get_kernel(kernel, library, name):
    _u64.from_address(kernel).value = handle = modules.kernel(library, name.decode())
    modules.kernels[handle].loaded()


_callback("_cudaDeviceGetAttribute", _ptr, _i32, _i32)(
    lambda value, attribute, device: put_int(value, cuda_bindings.attribute(attribute))
)
_callback("_cudaGetDevice", _ptr)(lambda device: put_int(device, DEVICE.index))
_callback("_cudaGetDeviceCount", _ptr)(lambda count: put_int(count, len(DEVICE.memories)))
_callback("_cudaSetDevice", _i32)(cuda_bindings.select)


@_callback("_cuKernelGetAttribute", _ptr, _i32, _ptr, _i32)
def _kernel_attribute(value, attribute, kernel, device):
    # 1 = static shared memory; the DSL subtracts it from the limit before it raises the dynamic one
    _i32.from_address(value).value = 0


@_callback("_cudaOccupancyMaxActiveBlocksPerMultiprocessor", _ptr, _ptr, _i32, _u64)
def _occupancy(blocks, kernel, threads, dynamic_shared):
    of = modules.kernels[kernel]
    _i32.from_address(blocks).value = modules.resident(of.loaded(), of.name, threads, dynamic_shared)


_callback("_cuTensorMapEncodeTiled", _ptr, _u32, _u32, _u64, _ptr, _ptr, _ptr, _ptr, _u32, _u32, _u32, _u32)(
    launches.encode_tensor_map
)


@_callback("_cudaLaunchKernelEx", _ptr, _ptr, _ptr)
def _launch_ex(config, kernel, arguments):
    c = _Config.from_address(config)
    options = launches.options(ctypes.cast(c.attributes, _ptr).value, c.count)
    launched = modules.kernels[kernel]
    params = launches.parameters(launched.loaded().program(launched.name).kernel, arguments)
    launches.launch(launched, c.grid, c.block, params, c.dynamic_shared, stream=c.queue or 0, **options)


def refusal(name: str) -> int | None:
    """Return the address of a function that refuses a call by its name, if it is one of CUDA's."""
    if not name.startswith("_cu"):
        return None
    _callback(name)(cuda_bindings.refusal(f"{name.lstrip('_')}() of CuTe DSL's host code"))
    return ctypes.cast(_callbacks[name], _ptr).value


@functools.cache
def configure() -> None:
    """Set what CuTe DSL reads from the environment when it is imported: the target, and to keep the PTX."""
    for dsl in DSLS:
        os.environ[f"{dsl}_ARCH"] = DEVICE.chip.arch
        os.environ[f"{dsl}_KEEP"] = "ptx,cubin"
        os.environ.setdefault(f"{dsl}_LINEINFO", "1")
    warnings.filterwarnings("ignore", "Cache is disabled as user wants to generate PTX", UserWarning)  # we want to


def install(machine: str | None = None, devices: int | None = None) -> None:
    """Patch `cuda.bindings`, and CuTe DSL when it is imported. Call it before `import cutlass`, or the first compile.

    machine: "b200" or "h200", what the device is from now on; a B200 if nobody says anything. devices: how many
    there are, one if nobody says anything; launches on several are interleaved (docs/two_gpus.md). Raises Unsupported
    where memory of another number of devices is in use.
    """
    if not packages.has("cuda.bindings"):  # for whose programs it is, too, and which comes with CuTe DSL
        packages.need("emulated_gpu.install()", "cutlass")
    if machine is not None:
        choose(machine)
    if devices is not None:
        DEVICE.become(devices)
    serve()


def choose(machine: str) -> None:
    """Make the device one of these machines. Raises Unsupported once something else was compiled for."""
    chip = chip_of(machine)
    if configure.cache_info().currsize and chip is not DEVICE.chip:
        raise Unsupported(f"machine {machine}: this process has been set up for an {DEVICE.chip.name}")
    DEVICE.chip = chip


@functools.cache
def serve() -> None:
    """Serve `cuda.bindings`, and CuTe DSL when it is imported, as far as they are installed."""
    configure()
    if packages.has("cuda.bindings"):
        cuda_bindings.install()
    DEVICE.served = True
    after_import("cutlass", _patch)


def _patch() -> None:
    from cutlass.base_dsl.arch import Arch
    from cutlass.base_dsl.common import DSLCudaRuntimeError
    from cutlass.base_dsl.env_manager import get_prefix_dsl_libs
    from cutlass.cutlass_dsl import CuTeDSL
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    if (arch := DEVICE.chip.arch) not in Arch.__members__:
        why = f"this version of CuTe DSL does not compile for {arch}, which an {DEVICE.chip.name} needs"
        raise Unsupported(f"{why}; 4.8.1 with nvidia-cutlass-dsl-libs-cu13 does")

    read = CuTeDSL._get_dsl().envar  # what it has read of the environment, if it was imported before
    read.keep_ptx = read.keep_cubin = True
    read.dump_dir = str(scratch.folder())
    os.environ.update({f"{dsl}_DUMP_DIR": read.dump_dir for dsl in DSLS})

    addresses = {name: ctypes.cast(callback, _ptr).value for name, callback in _callbacks.items()}
    for name in ("_cudaLibraryUnload", "_cudaKernelSetAttributeForDevice", "_cudaFuncSetAttribute"):
        addresses[name] = entry_points.WITHOUT_EFFECT.value
    for path in (get_prefix_dsl_libs("CUTE_DSL") or "").split(os.pathsep):
        if Path(path).name == RUNTIME:
            entry_points.replace(path, addresses, refusal)

    make = CudaDialectJitCompiledFunction.__init__

    @functools.wraps(make)
    def make_and_note(self, *args, **kwargs):
        make(self, *args, **kwargs)
        made = self.artifacts
        if made is not None and made.PTX and isinstance(made.CUBIN, bytes):  # else a path where there is nothing
            modules.note_text(made.CUBIN, source_lines.resolved(made.PTX))
            export = self.export_to_c

            @functools.wraps(export)
            def export_and_keep(*args, **kwargs):
                modules.exported(made.CUBIN)
                return export(*args, **kwargs)

            self.export_to_c = export_and_keep
        source_lines.forget()

    CudaDialectJitCompiledFunction.__init__ = make_and_note
    source_lines.install()
    kept_passes.install()
    # Else it cannot be unpickled, and a pool of processes whose result it is waits for ever.
    DSLCudaRuntimeError.__reduce__ = lambda error: (type(error), (error._error_code, error._error_name))
    # CuTe DSL 4.5 leaves this folder on sys.path, and its `utils` hides everybody else's.
    import cutlass

    own = os.path.join(os.path.dirname(os.path.abspath(cutlass.__file__)), "base_dsl")
    sys.path[:] = [path for path in sys.path if path != own]
