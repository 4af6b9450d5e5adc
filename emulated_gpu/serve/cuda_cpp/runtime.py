"""What the stand-in for CUDA's runtime (runtime.cpp) asks the emulated device to do."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable

from ...device import DEVICE, LoadedModule
from ...errors import Fault, Unsupported
from ...formats import fatbin
from ...ptx.joined import joined
from ...state import host_order
from ..driver import c_driver, contexts, cuda_bindings, launches, modules
from ..host import guarded_pages, native_lines, source_lines
from . import blas, toolkit

_u32, _u64, _int, _ptr, _str = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p

NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND

# cudaError_t
INVALID_SYMBOL, INVALID_DIRECTION, INVALID_FUNCTION = 13, 21, 98
# cudaMemcpyKind: whether the target and the source are the device's; None: they may be anything
DIRECTIONS = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True), 4: (None, None)}

_wrappers: dict[int, int] = {}  # handle of a fat binary -> address of its wrapper
_kernels: dict[int, tuple[int, str]] = {}  # host function -> (fat binary, kernel)
_variables: dict[int, tuple[int, str, int]] = {}  # host variable -> (fat binary, variable, bytes)
SHARED = "cudaFuncSetAttribute(..., cudaFuncAttributeMaxDynamicSharedMemorySize, ...)"


NOT_SERVED = {  # what functions of such names are for
    "Mipmap": "mipmapped arrays",
    "Conditional": "conditional nodes of graphs",
}


def refuse(name: bytes) -> None:
    called = name.decode()
    what = next((of for names, of in NOT_SERVED.items() if re.search(names, called)), "")
    raise Unsupported(f"{called} on the emulated device" + f", which has no {what}" * bool(what))


def register_module(wrapper: int, handle: int) -> None:
    _wrappers[handle] = wrapper


def register_kernel(handle: int, host: int, name: bytes) -> None:
    _kernels[host] = handle, name.decode()


def register_variable(handle: int, host: int, name: bytes, size: int) -> None:
    _variables[host] = handle, name.decode(), size


def register_managed(handle: int, host: int, name: bytes, size: int) -> None:
    """Tell the host where a variable is that is its own, too. host: where its pointer to that is."""
    address = module(handle).symbols[name.decode()]
    DEVICE.memory.find(address, 1, write=False).managed = DEVICE.order.shares = True
    guarded_pages.install()
    register_variable(handle, address, name, size)
    _u64.from_address(host).value = address


@functools.cache
def module(handle: int) -> LoadedModule:
    """Return the module of a fat binary for this machine. Raises a Fault if it has none, Unsupported without PTX."""
    wrapper = _wrappers[handle]
    try:
        texts = [source_lines.resolved(modules.chosen(each)) for each in fatbin.linked_at(wrapper)]
    except Fault as why:
        if not (others := fatbin.machine_code(wrapper)):
            raise
        raise Unsupported(f"{why} in PTX; machine code ({', '.join(others)}) does not run here") from why
    return DEVICE.module(joined(texts))


def function(host: int) -> modules.Kernel:
    """Return a kernel, which the driver's functions take from now on by its host function's address. Raises WrongCall
    for a function of the host that is none."""
    if host not in modules.kernels:
        if host not in _kernels:
            raise launches.WrongCall("a function that is no kernel of this program", INVALID_FUNCTION)
        handle, name = _kernels[host]
        modules.kernels[host] = modules.Kernel(module(handle), name)
    return modules.kernels[host]


def launch(host, grid, block, args, shared, attributes, count, queue: int) -> None:
    kernel = function(host)
    kernel.check_shared(shared, SHARED)
    options = launches.options(attributes, count)
    params = launches.parameters(kernel.loaded().program(kernel.name).kernel, args)
    of = lambda at: (_u32 * 3).from_address(at)  # noqa: E731
    launches.launch(kernel, of(grid), of(block), params, shared, stream=queue, **options)


def set_shared(host, size: int) -> None:
    function(host).allow_shared(size, "cudaFuncSetAttribute")


def symbol(address, size, host) -> None:
    if host not in _variables:
        raise launches.WrongCall("a variable that is none of the device's in this program", INVALID_SYMBOL)
    handle, name, bytes_ = _variables[host]
    _u64.from_address(address).value = module(handle).symbols[name]
    _u64.from_address(size).value = bytes_


def copy(to, source, size: int, kind: int, queue: int, waits: int) -> None:
    """kind: a cudaMemcpyKind. waits: false for the calls that end in Async."""
    if kind not in DIRECTIONS:
        raise launches.WrongCall(f"cudaMemcpyKind {kind}", INVALID_DIRECTION)
    if size:
        what = "cudaMemcpy" if waits else "cudaMemcpyAsync"
        cuda_bindings.copy(to or 0, source or 0, size, queue, bool(waits), what, DIRECTIONS[kind])


def fill(to, value: int, size: int, queue: int, waits: int) -> None:
    if size:
        what = "cudaMemset" if waits else "cudaMemsetAsync"
        cuda_bindings.fill(to or 0, "u1", value & 255, size, queue, bool(waits), what)


def driver_function(name: bytes, out: int) -> None:
    """cudaGetDriverEntryPoint: a function by its name in programs. One that is not served refuses calls."""
    _u64.from_address(out).value = address_of(name.decode())
    if not _u64.from_address(out).value:
        refuse(name)


@functools.cache
def address_of(name: str, version: int = toolkit.NEWEST_VERSION) -> int:
    """Return the address of a function of the driver in the form that CUDA had at a version, 0 if it had none then.

    name: as in programs. version: as of cuGetProcAddress, such as 12040.
    """
    forms = toolkit.forms(toolkit.find()).get(name, [])
    known = [types for since, types in forms if since <= version]
    if not known or known[-1] is forms[-1][1]:
        of_library = toolkit.newest(toolkit.find()).get(name, name)
        return (load().emulator_function(of_library.encode()) or 0) if known or not forms else 0
    served = function_of(name, known[-1])
    return (served.value if served else refusal(name)) or 0


@functools.cache
def refusal(name: str) -> int:
    """Return the address of a function that refuses by a name."""
    return c_driver.pointer(lambda: refuse(name.encode()), []).value or 0


def proc_address(name: int, out: int, version: int, flags: int, status: int = 0) -> int:
    """cuGetProcAddress: as cudaGetDriverEntryPoint, but programs may ask for what a driver does not have yet."""
    _u64.from_address(out).value = address = address_of(ctypes.string_at(name).decode(), version)
    if status:
        _int.from_address(status).value = 0 if address else 1  # CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
    return 0 if address else NOT_FOUND


def error_string(status: int, out: int) -> int:
    """cuGetErrorString: null for what is no CUresult."""
    of_runtime = load().cudaGetErrorString
    of_runtime.restype = _ptr
    text = of_runtime(status)
    known = ctypes.string_at(text) != b"unrecognized error code"
    _u64.from_address(out).value = text if known else 0
    return 0 if known else modules.INVALID_VALUE


def export_table(*_) -> int:
    """cuGetExportTable: tables of functions that have no names. NVRTC asks for one, and goes on without it."""
    return NOT_FOUND


SIGNATURES = [
    (refuse, _str), (register_module, _ptr, _u64), (register_kernel, _u64, _ptr, _str),
    (register_variable, _u64, _ptr, _str, _u64), (register_managed, _u64, _ptr, _str, _u64),
    (launch, _ptr, _ptr, _ptr, _ptr, _u64, _ptr, _u32, _u64),
    (set_shared, _ptr, _int), (symbol, _ptr, _ptr, _ptr), (copy, _ptr, _ptr, _u64, _int, _u64, _int),
    (fill, _ptr, _int, _u64, _u64, _int), (function, _ptr), (driver_function, _str, _ptr),
    (blas.product, _ptr),
]  # fmt: skip
_callbacks = [
    ctypes.CFUNCTYPE(_int, *arguments)(launches.guarded(function, going_on=True)) for function, *arguments in SIGNATURES
]


def _watch(library: ctypes.CDLL, address: int, size: int) -> Callable[[], bool]:
    """Return what says whether memory of the host is gone: freed, or of a function that has returned."""
    returned, program = library.emulator_returned, ctypes.CDLL(None)
    returned.restype, returned.argtypes = ctypes.c_bool, [_ptr]
    if not hasattr(program, "emulator_keeps"):  # only in programs that nvcc has made
        return lambda: returned(address)
    program.emulator_freed.restype = ctypes.c_bool
    number = program.emulator_keeps(_ptr(address), ctypes.c_size_t(size))
    return lambda: program.emulator_freed(number) or returned(address)


@functools.cache
def load() -> ctypes.CDLL:
    """Load the stand-in for CUDA's runtime and driver into this process, and let it call here."""
    library = ctypes.CDLL(str(toolkit.cudart()), mode=ctypes.RTLD_GLOBAL)
    library.emulator_set((_ptr * len(_callbacks))(*[ctypes.cast(callback, _ptr) for callback in _callbacks]))
    library.emulator_function.restype, library.emulator_called.restype = _ptr, ctypes.c_bool
    contexts.runtime_called.append(library.emulator_called)
    native_lines.install(library.emulator_stack)
    host_order.COMPILED.watch = functools.partial(_watch, library)
    for name, (base, types) in toolkit.driver_functions(toolkit.find()).items():
        if served := function_of(base, types):
            library.emulator_slot(name.encode(), served)
    return library


def function_of(name: str, types: list[str]) -> ctypes.c_void_p | None:
    """Return the driver's function `name` with parameters of these types in C; None if it is not served."""
    own = {
        "cuGetProcAddress": proc_address, "cuGetExportTable": export_table, "cuGetErrorString": error_string,
    }.get(name)  # fmt: skip
    if any("CUdeviceptr_v1" in one for one in types):  # of 32 bits, which no address fits into
        return None
    return c_driver.pointer(own, types, answers=True) if own else c_driver.function_of(name, types)
