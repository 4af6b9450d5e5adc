"""Modules, kernels and launches by `cuda.bindings`: of the driver, of the runtime's libraries, and NVRTC's cubins."""

from __future__ import annotations

import ctypes
import enum
import functools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...chip import SHARED_PORTION, SYSTEM_SHARED
from ...device import DEVICE
from ...errors import LaunchRefused, Unsupported, WrongCall
from ...formats import cubin, elf
from . import launches, modules

# CUfunction_attribute, cudaFuncAttribute
STATIC_SHARED, MAX_DYNAMIC_SHARED, CLUSTER_SIZES, FIRST_CHANGED, LAST_CHANGED = 1, 8, (11, 12, 13), 8, 15
INVALID_CONFIGURATION, FILE_NOT_FOUND = 9, 301
BUFFER_POINTER, BUFFER_SIZE = 1, 2  # CU_LAUNCH_PARAM_*, names in the list `extra`


def image_of(data) -> bytes | int:
    """Return an image as `modules.load` takes it: what a call was given, bytes or where they lie."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    return data.ctypes.data if isinstance(data, np.ndarray) else int(data)


def file_of(name) -> bytes:
    try:
        return Path(text_of(name)).read_bytes()
    except OSError as why:
        raise WrongCall(f"a module's file: {why}", FILE_NOT_FOUND) from why


def text_of(name) -> str:
    return name.decode() if isinstance(name, bytes) else name


def kernel_of(function) -> modules.Kernel:
    """Return what a CUfunction or CUkernel stands for."""
    if int(function) not in modules.kernels:
        raise Unsupported(f"function {int(function):#x}, which no module has given")
    return modules.kernels[int(function)]


def value_of(value, kind) -> bytes:
    """Return one of `cuda.bindings`' kernel parameters, a value with its ctypes type or None, as its bytes."""
    if kind is None:
        if isinstance(value, (ctypes.Structure, ctypes.Array, ctypes._SimpleCData)):
            return ctypes.string_at(ctypes.addressof(value), ctypes.sizeof(value))
        if isinstance(value, enum.Enum):
            return value.value.to_bytes(4, "little", signed=True)
        if not hasattr(value, "getPtr"):
            raise Unsupported(f"a kernel parameter of {type(value).__name__} without a ctypes type")
        size = value.__sizeof__() if type(value).__name__ in STRUCTURES else 8
        return ctypes.string_at(value.getPtr(), STRUCTURES.get(type(value).__name__, size))
    if issubclass(kind, ctypes._Pointer) or kind is ctypes.c_void_p:
        return int(value.value or 0 if isinstance(value, ctypes._SimpleCData) else int(value)).to_bytes(8, "little")
    return bytes(kind(value.value if isinstance(value, ctypes._SimpleCData) else value))


STRUCTURES = {"CUtensorMap": 128}  # bytes of what is no handle or address


def parameters(kernel: modules.Kernel, given, extra) -> bytes:
    """Return the block of parameters from `kernelParams` and `extra` of cuLaunchKernel, in any of their forms."""
    described = kernel.loaded().program(kernel.name).kernel
    if extra is not None and int(extra):
        names = ctypes.cast(int(extra), ctypes.POINTER(ctypes.c_void_p))
        values = {names[i]: names[i + 1] for i in (0, 2)}
        size = ctypes.c_size_t.from_address(values[BUFFER_SIZE]).value
        return ctypes.string_at(values[BUFFER_POINTER], size)
    if isinstance(given, (tuple, list)):
        return launches.packed(described, [value_of(*pair) for pair in zip(*given, strict=True)])
    if given is None:
        given = 0
    if isinstance(given, np.ndarray):
        address = given.ctypes.data
    elif isinstance(given, (ctypes.Array, ctypes.Structure)):
        address = ctypes.addressof(given)
    else:
        address = int(given)
    if not address and described.params:
        raise Unsupported(f"{kernel.name} takes {len(described.params)} parameters, none are given")
    return launches.parameters(described, address)


def launch(function, grid, block, shared: int, given, extra, **options) -> None:
    """Launch a CUfunction or CUkernel."""
    kernel = kernel_of(function)
    launch_with(kernel, grid, block, shared, parameters(kernel, given, extra), **options)


def launch_with(kernel: modules.Kernel, grid, block, shared: int, params: bytes, **options) -> None:
    try:
        kernel.check_shared(shared)
        launches.launch(kernel, grid, block, params, shared, **options)
    except LaunchRefused as why:
        if why.status == INVALID_CONFIGURATION:  # which is the runtime's
            why.status = modules.INVALID_VALUE
        raise


def options_of(attributes) -> dict:
    """Return the options of a launch for a list of CUlaunchAttribute."""
    packed = (launches.Attribute * len(attributes))()
    for one, attribute in zip(packed, attributes):
        one.id = int(attribute.id)
        ctypes.memmove(one.value, attribute.value.getPtr(), ctypes.sizeof(one.value))
    return launches.options(ctypes.addressof(packed), len(attributes))


def launch_ex(config, function, given, extra) -> None:
    grid, block = ([getattr(config, f"{of}Dim{axis}") for axis in "XYZ"] for of in ("grid", "block"))
    options = options_of(config.attrs[: config.numAttrs]) | {"stream": launches.handle_of(config.hStream)}
    launch(function, grid, block, config.sharedMemBytes, given, extra, **options)


def set_attribute(function, attribute, value) -> None:
    """cuFuncSetAttribute: how much dynamic shared memory is allowed; the others change no result."""
    if not FIRST_CHANGED <= int(attribute) <= LAST_CHANGED:
        raise WrongCall(f"function attribute {int(attribute)}, which there is not, or which nobody can set")
    if int(attribute) in CLUSTER_SIZES:
        raise Unsupported(f"cuFuncSetAttribute of a cluster's size ({int(attribute)}), which a launch can have")
    if int(attribute) == MAX_DYNAMIC_SHARED and int(function) in modules.kernels:
        modules.kernels[int(function)].allow_shared(int(value), "cuFuncSetAttribute")


def attribute(function, number) -> int:
    """cuFuncGetAttribute, as far as the PTX or the machine code says it: without that, registers and stack are 0."""
    kernel = kernel_of(function)
    loaded = kernel.loaded()
    used = cubin.of_kernel(loaded.machine_code, kernel.name)
    required = loaded.program(kernel.name).kernel.directives.get("reqnctapercluster")
    cluster = (*required, 1, 1)[:3] if required else (0, 0, 0)
    answers: dict[int, Callable[[], int]] = {
        0: lambda: DEVICE.chip.threads_per_cta,
        STATIC_SHARED: lambda: modules.static_shared(loaded, kernel.name),
        2: lambda: sum(v.size for v in loaded.module.variables.values() if v.space == "const"),
        3: lambda: used.get("frame", 0),
        4: lambda: used.get("registers", 0),
        5: lambda: int(re.sub(r"\D", "", loaded.module.target)),  # CUB has its policies by what was compiled
        6: lambda: 10 * DEVICE.chip.capability[0] + DEVICE.chip.capability[1],
        MAX_DYNAMIC_SHARED: lambda: kernel.dynamic_shared or DEVICE.chip.shared_by_default,
        9: lambda: -1,  # carve-out: no preference
        10: lambda: int(any(cluster)),
        **{number: functools.partial(int, size) for number, size in zip(CLUSTER_SIZES, cluster)},
    }
    if not 0 <= int(number) <= LAST_CHANGED:
        raise WrongCall(f"function attribute {int(number)}, which there is not")
    return answers.get(int(number), lambda: 0)()


def parameter(function, index: int) -> tuple[int, int]:
    """cuFuncGetParamInfo -> (offset, bytes). Raises WrongCall for a parameter that there is not."""
    kernel = kernel_of(function)
    params = kernel.loaded().program(kernel.name).kernel.params
    if index >= len(params):
        raise launches.WrongCall(f"parameter {index} of {kernel.name}, which has {len(params)}")
    return params[index].offset, params[index].size


def resident(function, threads: int, shared: int) -> int:
    """cuOccupancyMaxActiveBlocksPerMultiprocessor."""
    kernel = kernel_of(function)
    return modules.resident(kernel.loaded(), kernel.name, threads, shared)


def available_shared(function, ctas: int, threads: int) -> int:
    """cuOccupancyAvailableDynamicSMemPerBlock: bytes. Raises WrongCall where an SM has no room for them."""
    if ctas < 1 or resident(function, threads, 0) < ctas:
        raise launches.WrongCall(f"the shared memory of {ctas} blocks of {threads} threads on an SM")
    of_one = DEVICE.chip.shared_per_sm // ctas // SHARED_PORTION * SHARED_PORTION
    return of_one - SYSTEM_SHARED - attribute(function, STATIC_SHARED)


def numbers(values) -> list[int]:
    return [int(value) for value in values or ()]


def map_of(d, words: bytes):
    """Return a CUtensorMap of these bytes."""
    made = d.CUtensorMap()
    ctypes.memmove(made.getPtr(), words, len(words))
    return made


def tensor_map(d, kind, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill):
    """cuTensorMapEncodeTiled -> CUtensorMap."""
    return map_of(d, launches.tensor_map(
        int(kind), int(address), numbers(dims)[:rank], numbers(strides)[: rank - 1], numbers(box)[:rank],
        numbers(steps)[:rank], launches.MapEnums(int(interleave), int(swizzle), int(promotion), int(fill)),
    ))  # fmt: skip


def im2col_map(
    d, kind, rank, address, dims, strides, lower, upper, channels, pixels, steps, interleave, swizzle, promotion, fill
):
    """cuTensorMapEncodeIm2col -> CUtensorMap."""
    return map_of(d, launches.im2col_map(
        int(kind), int(address), numbers(dims)[:rank], numbers(strides)[: rank - 1],
        (numbers(lower)[: rank - 2], numbers(upper)[: rank - 2]), (int(channels), int(pixels)), numbers(steps)[:rank],
        launches.MapEnums(int(interleave), int(swizzle), int(promotion), int(fill)),
    ))  # fmt: skip


def driver_calls(d) -> dict:
    """Return the functions of `cuda.bindings.driver` about modules, kernels and launches, by their names."""

    def load(data, *_):
        return d.CUmodule(modules.load(image_of(data)))

    def variable(module, name):
        address, size = modules.variable(int(module), text_of(name))
        return d.CUdeviceptr(address), size

    def kernels(count, handle):
        return [d.CUkernel(modules.kernel(int(handle), name)) for name in modules.names(int(handle))[:count]]

    def launch_kernel(f, gx, gy, gz, bx, by, bz, shared, queue, given, extra=0):
        launch(f, (gx, gy, gz), (bx, by, bz), shared, given, extra, stream=launches.handle_of(queue))

    def launch_cooperative(f, gx, gy, gz, bx, by, bz, shared, queue, given):
        launch(f, (gx, gy, gz), (bx, by, bz), shared, given, 0, cooperative=True, stream=launches.handle_of(queue))

    return {
        "cuModuleLoadData": load, "cuModuleLoadDataEx": load, "cuModuleLoadFatBinary": load,
        "cuModuleLoad": lambda name: load(file_of(name)),
        "cuModuleUnload": lambda module: None,
        "cuModuleGetFunction": lambda module, name: d.CUfunction(modules.kernel(int(module), text_of(name))),
        "cuModuleGetGlobal": variable,
        "cuLibraryLoadData": lambda code, *_: d.CUlibrary(modules.load(image_of(code))),
        "cuLibraryLoadFromFile": lambda name, *_: d.CUlibrary(modules.load(file_of(name))),
        "cuLibraryUnload": lambda library: None,
        "cuLibraryGetModule": lambda library: d.CUmodule(int(library)),
        "cuLibraryGetKernel": lambda library, name: d.CUkernel(modules.kernel(int(library), text_of(name))),
        "cuLibraryGetKernelCount": lambda library: len(modules.names(int(library))),
        "cuLibraryEnumerateKernels": kernels,
        "cuLibraryGetGlobal": variable,
        "cuKernelGetFunction": lambda kernel: d.CUfunction(int(kernel)),
        "cuKernelGetName": lambda kernel: kernel_of(kernel).name.encode(),
        "cuFuncGetName": lambda function: kernel_of(function).name.encode(),
        "cuFuncSetAttribute": set_attribute,
        "cuKernelSetAttribute": lambda attribute, value, kernel, device: set_attribute(kernel, attribute, value),
        "cuFuncGetAttribute": lambda number, function: attribute(function, number),
        "cuKernelGetAttribute": lambda number, kernel, device: attribute(kernel, number),
        "cuFuncSetCacheConfig": lambda function, config: None,
        "cuLaunchKernel": launch_kernel, "cuLaunchKernelEx": launch_ex,
        "cuLaunchCooperativeKernel": launch_cooperative,
        "cuTensorMapEncodeTiled": functools.partial(tensor_map, d),
        "cuTensorMapEncodeIm2col": functools.partial(im2col_map, d),
    }  # fmt: skip


def runtime_calls(r) -> dict:
    """Return the functions of `cuda.bindings.runtime` about libraries, whose kernels the driver launches."""
    return {
        "cudaLibraryLoadData": lambda code, *_: r.cudaLibrary_t(modules.load(image_of(code))),
        "cudaLibraryLoadFromFile": lambda name, *_: r.cudaLibrary_t(modules.load(file_of(name))),
        "cudaLibraryGetKernel": lambda library, name: r.cudaKernel_t(modules.kernel(int(library), text_of(name))),
        "cudaLibraryGetGlobal": lambda library, name: modules.variable(int(library), text_of(name)),
        "cudaLibraryUnload": lambda library: None,
        "cudaKernelSetAttributeForDevice": lambda kernel, number, value, device: set_attribute(kernel, number, value),
        "cudaFuncSetAttribute": set_attribute,
    }


def install_nvrtc(nvrtc) -> None:
    """Let NVRTC's own compiler say of which PTX a cubin was made, since only PTX runs here."""
    get_cubin = nvrtc.nvrtcGetCUBIN

    @functools.wraps(get_cubin)
    def get_cubin_and_note(program, cubin):
        result = get_cubin(program, cubin)
        (_, size), text = nvrtc.nvrtcGetPTXSize(program), None
        if size > 1:
            text = bytearray(size)
            nvrtc.nvrtcGetPTX(program, text)
        if text is not None and isinstance(cubin, (bytes, bytearray)):
            code = bytes(cubin)[: elf.size(bytes(cubin[: elf.HEADER]))]
            modules.note_text(code, bytes(text).rstrip(b"\0").decode())
        return result

    nvrtc.nvrtcGetCUBIN = get_cubin_and_note
