"""Let CuTe DSL's own JIT-compiled host code launch into the emulator.

The host code that the DSL generates calls a handful of `_cuda*` functions of its runtime library, which are led here
(`entry_points.py`), so nothing has to be compiled, preloaded or linked. They get machine code; the PTX that it was made
of is known by the DSL's own "keep" option.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from ..chip import chip_of
from ..device import DEVICE, LoadedModule
from ..errors import EmulatorError, Unsupported
from ..formats import fatbin
from ..formats.tensormap import DRIVER_SWIZZLES, DRIVER_TYPES, L2_PROMOTIONS, NBYTES, TensorMap, encode
from . import cuda_bindings, entry_points, source_lines

KEEP_PTX = "EMULATOR_PTX"  # environment: a folder for the PTX of what CuTe DSL compiles, as it is run here
RUNTIME = "libcute_dsl_runtime.so"  # with which host code is linked
SUCCESS, LAUNCH_FAILURE = 0, 719
CLUSTER, COOPERATIVE, PROGRAMMATIC, PREFERRED_CLUSTER = 4, 2, 6, 11  # cudaLaunchAttributeID
_u32, _u64, _i32, _ptr = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p

_libraries: dict[int, LoadedModule] = {}
_kernels: dict[int, tuple[LoadedModule, str]] = {}
_callbacks: dict[str, object] = {}
_texts: dict[bytes, str] = {}  # digest of machine code -> the PTX that it was made of


class _Attribute(ctypes.Structure):
    _fields_ = [("id", _i32), ("pad", _i32), ("value", _i32 * 16)]


class _Config(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = [
        ("grid", _u32 * 3), ("block", _u32 * 3), ("dynamic_shared", _u64), ("queue", _ptr),
        ("attributes", ctypes.POINTER(_Attribute)), ("count", _u32),
    ]  # fmt: skip


def _callback(name: str, *arguments):
    def register(function):
        @functools.wraps(function)
        def guarded(*args):
            try:
                return function(*args)
            except EmulatorError as e:
                DEVICE.fail(e)  # kept in the session, raised when the host code has returned
                return LAUNCH_FAILURE
            except Exception as e:  # an exception must not cross into native code
                DEVICE.fail(EmulatorError(f"internal error in {name}: {type(e).__name__}: {e}"))
                return LAUNCH_FAILURE

        _callbacks[name] = ctypes.CFUNCTYPE(_i32, *arguments)(guarded)
        return function

    return register


@_callback("_cudaLibraryLoadData", _ptr, _ptr, _ptr, _ptr, _u32, _ptr, _ptr, _u32)
def _load_library(library, code, *_):
    handle = len(_libraries) + 1
    machine_code = fatbin.parts(code, fatbin.CUBIN)[0]
    text = _texts.get(digest(machine_code))
    if text is None:
        raise Unsupported("machine code whose PTX is not known: this process has not compiled it")
    text = source_lines.resolved(text)
    keep(text)
    _libraries[handle] = loaded = DEVICE.module(text, machine_code=machine_code)
    for kernel in loaded.module.kernels.values():
        kernel.function = source_lines.function_of(kernel.name)
    _u64.from_address(library).value = handle
    return SUCCESS


@_callback("_cudaLibraryGetKernel", _ptr, _ptr, ctypes.c_char_p)
def _get_kernel(kernel, library, name):
    handle = len(_kernels) + 1
    _kernels[handle] = (_libraries[library], name.decode())
    _u64.from_address(kernel).value = handle
    return SUCCESS


@_callback("_cudaLibraryUnload", _ptr)
def _unload_library(library):
    return SUCCESS


@_callback("_cudaDeviceGetAttribute", _ptr, _i32, _i32)
def _device_attribute(value, attribute, device):
    _i32.from_address(value).value = cuda_bindings.attribute(attribute)
    return SUCCESS


@_callback("_cudaGetDevice", _ptr)
def _get_device(device):
    _i32.from_address(device).value = 0
    return SUCCESS


@_callback("_cudaGetDeviceCount", _ptr)
def _get_device_count(count):
    _i32.from_address(count).value = 1
    return SUCCESS


@_callback("_cudaSetDevice", _i32)
def _set_device(device):
    return SUCCESS


@_callback("_cuKernelGetAttribute", _ptr, _i32, _ptr, _i32)
def _kernel_attribute(value, attribute, kernel, device):
    # 1 = static shared memory; the DSL subtracts it from the limit before it raises the dynamic one
    _i32.from_address(value).value = 0
    return SUCCESS


@_callback("_cudaKernelSetAttributeForDevice", _ptr, _i32, _i32, _i32)
def _set_kernel_attribute(kernel, attribute, value, device):
    return SUCCESS


@_callback("_cudaFuncSetAttribute", _ptr, _i32, _i32)
def _set_function_attribute(kernel, attribute, value):
    return SUCCESS


@_callback("_cudaOccupancyMaxActiveBlocksPerMultiprocessor", _ptr, _ptr, _i32, _u64)
def _occupancy(blocks, kernel, threads, dynamic_shared):
    _i32.from_address(blocks).value = DEVICE.chip.resident_ctas(dynamic_shared, threads)
    return SUCCESS


@_callback("_cuTensorMapEncodeTiled", _ptr, _u32, _u32, _u64, _ptr, _ptr, _ptr, _ptr, _u32, _u32, _u32, _u32)
def encode_tensormap(out, kind, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill):
    """cuTensorMapEncodeTiled, for host code that does not pack the words itself (cutlass.experimental)."""
    if interleave or kind >= len(DRIVER_TYPES) or swizzle >= len(DRIVER_SWIZZLES):
        raise Unsupported(f"cuTensorMapEncodeTiled with data type {kind}, interleave {interleave}, swizzle {swizzle}")
    span, atom = DRIVER_SWIZZLES[swizzle]
    tensormap = TensorMap(
        address or 0, DRIVER_TYPES[kind], tuple((_u64 * rank).from_address(dims)),
        tuple((_u64 * (rank - 1)).from_address(strides)) if rank > 1 else (), tuple((_u32 * rank).from_address(box)),
        tuple((_u32 * rank).from_address(steps)), span, atom, bool(fill), L2_PROMOTIONS[promotion],
    )  # fmt: skip
    ctypes.memmove(out, encode(tensormap), NBYTES)
    return SUCCESS


@_callback("_cudaLaunchKernelEx", _ptr, _ptr, _ptr)
def _launch_ex(config, kernel, arguments):
    c = _Config.from_address(config)
    module, name = _kernels[kernel]
    options = launch_options(ctypes.cast(c.attributes, _ptr).value, c.count)
    params = parameters(module.program(name).kernel, arguments)
    DEVICE.launch(
        module, name, tuple(c.grid), tuple(c.block), params, dynamic_shared=c.dynamic_shared, **options
    )  # fmt: skip
    return SUCCESS


def launch_options(attributes: int | None, count: int) -> dict:
    """Return what an array of so many cudaLaunchAttribute at an address asks for, as options of `Device.launch`."""
    cluster, preferred, pdl = None, None, False
    for a in (_Attribute * count).from_address(attributes) if count else ():
        if a.id == CLUSTER:
            cluster = tuple(a.value[:3])
        elif a.id == PREFERRED_CLUSTER:
            preferred = tuple(a.value[:3])
        elif a.id == PROGRAMMATIC:
            pdl = bool(a.value[0])
        elif a.id == COOPERATIVE:
            if a.value[0]:
                raise Unsupported("cooperative launch")
        else:
            raise Unsupported(f"launch attribute {a.id}")
    if preferred and all(preferred) and DEVICE.session.schedule.seed % 2 == 0:
        cluster = preferred  # a GPU takes either, cluster by cluster; here it is one of them for the whole launch
    return {"cluster": cluster, "pdl": pdl}


def parameters(kernel, arguments: int) -> bytes:
    """Return the block of a kernel's parameters, whose addresses are an array at `arguments`."""
    params = bytearray(kernel.param_bytes)
    pointers = (_u64 * len(kernel.params)).from_address(arguments) if kernel.params else ()
    for p, address in zip(kernel.params, pointers, strict=True):
        params[p.offset : p.offset + p.size] = ctypes.string_at(address, p.size)
    return bytes(params)


def refusal(name: str) -> int | None:
    """Return the address of a function that refuses a call by its name, if it is one of CUDA's."""
    if not name.startswith("_cu"):
        return None

    def refuse():
        raise Unsupported(f"{name.lstrip('_')}() of CuTe DSL's host code on the emulated device")

    _callback(name)(refuse)
    return ctypes.cast(_callbacks[name], _ptr).value


def digest(machine_code: bytes) -> bytes:
    return hashlib.blake2b(machine_code, digest_size=16).digest()


def keep(text: str) -> None:
    """Write PTX to the folder that the environment names: a file for each kernel and whatever else makes it another."""
    folder = os.environ.get(KEEP_PTX)
    if folder:
        os.makedirs(folder, exist_ok=True)
        kernel = re.search(r"\.entry\s+([\w$]+)", text)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        Path(folder, f"{kernel[1][:120] if kernel else 'no_kernel'}-{digest}.ptx").write_text(text)


@functools.cache
def configure() -> None:
    """Set what CuTe DSL reads from the environment when it is imported: the target, and to keep the PTX."""
    folder = tempfile.mkdtemp(prefix="emulator-ptx-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for dsl in ("CUTE_DSL", "CUTE_EXPERIMENTAL_DSL"):  # the second one: `cutlass.cute.experimental`
        os.environ[f"{dsl}_ARCH"] = DEVICE.chip.arch
        os.environ[f"{dsl}_DUMP_DIR"] = folder
        os.environ[f"{dsl}_KEEP"] = "ptx,cubin"
        os.environ.setdefault(f"{dsl}_LINEINFO", "1")
    warnings.filterwarnings("ignore", "Cache is disabled as user wants to generate PTX", UserWarning)  # we want to


def install(machine: str | None = None) -> None:
    """Patch CuTe DSL and `cuda.bindings`. Call it before `import cutlass`, or the first compile.

    machine: "b200" or "h200", of which the device is one from now on; a B200 if nobody says anything.
    """
    if machine is not None:
        choose(machine)
    _install()


def choose(machine: str) -> None:
    """Make the device one of these machines. Raises Unsupported once something else was compiled for."""
    chip = chip_of(machine)
    if configure.cache_info().currsize and chip is not DEVICE.chip:
        raise Unsupported(f"machine {machine}: this process has been set up for an {DEVICE.chip.name}")
    DEVICE.chip = chip


@functools.cache
def _install() -> None:
    configure()
    from cutlass.base_dsl.common import DSLCudaRuntimeError
    from cutlass.base_dsl.env_manager import get_prefix_dsl_libs
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    addresses = {name: ctypes.cast(callback, _ptr).value for name, callback in _callbacks.items()}
    for path in (get_prefix_dsl_libs("CUTE_DSL") or "").split(os.pathsep):
        if Path(path).name == RUNTIME:
            entry_points.replace(path, addresses, refusal)

    make = CudaDialectJitCompiledFunction.__init__

    @functools.wraps(make)
    def make_and_note(self, *args, **kwargs):
        make(self, *args, **kwargs)
        made = self.artifacts
        if made is not None and made.PTX and made.CUBIN:
            _texts[digest(made.CUBIN)] = made.PTX

    CudaDialectJitCompiledFunction.__init__ = make_and_note
    source_lines.install()
    # Else it cannot be unpickled, and a pool of processes whose result it is waits for ever.
    DSLCudaRuntimeError.__reduce__ = lambda error: (type(error), (error._error_code, error._error_name))
    cuda_bindings.install()
    DEVICE.served = True
    # CuTe DSL 4.5 leaves this folder on sys.path, and its `utils` hides everybody else's.
    import cutlass

    own = os.path.join(os.path.dirname(os.path.abspath(cutlass.__file__)), "base_dsl")
    sys.path[:] = [path for path in sys.path if path != own]
