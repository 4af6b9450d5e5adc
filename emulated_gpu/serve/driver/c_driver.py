"""The driver's functions as functions of C: what `cuda_bindings` answers to Python, compiled code may call, too.

A function is made of its parameters' types in C, as Cython's signatures and cuda.h have them.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re

from ... import packages
from ...device import DEVICE
from ...errors import Unsupported
from ...ptx.joined import joined
from ..host import entry_points
from . import (
    c_calls,
    contexts,
    cuda_bindings,
    cuda_modules,
    graph_calls,
    graph_nodes,
    images,
    launches,
    modules,
    virtual_memory,
)  # fmt: skip

SCALARS = {
    "int": ctypes.c_int, "unsigned int": ctypes.c_uint, "float": ctypes.c_float, "size_t": ctypes.c_size_t,
    "unsigned char": ctypes.c_ubyte, "unsigned short": ctypes.c_ushort, "CUdevice": ctypes.c_int,
    "CUdeviceptr": ctypes.c_uint64, "cuuint32_t": ctypes.c_uint, "cuuint64_t": ctypes.c_uint64,
}  # fmt: skip
HANDLES = """
    CUcontext CUmodule CUfunction CUlibrary CUkernel CUstream CUevent CUmemoryPool CUlinkState CUgraph CUgraphExec
    CUgraphNode CUmemGenericAllocationHandle CUarray CUtexObject CUsurfObject CUhostFn CUstreamCallback
    CUoccupancyB2DSize
""".split()
STRING = "char const *"
# What a null handle is answered by: CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE
NULL = dict.fromkeys(("CUevent", "CUfunction", "CUmodule", "CUlibrary", "CUkernel"), 400)
NULL |= dict.fromkeys(("CUgraph", "CUgraphExec", "CUhostFn", "CUstreamCallback"), 1)
# Structures that a call reads
NEEDED = re.compile(r"(CUDA_(?!RESOURCE_VIEW)\w+|CUlaunchConfig|CUmemPoolProps) const \*")
NO_RESULT_WANTED = {"cuCtxPopCurrent"}
RESULT = re.compile(r"(?!.*const|(void|char) \*$)[\w ]+ \*+")

PTX_INPUT, LIBRARY_INPUT = 1, 4  # CUjitInputType
LOGS, LOG_SIZES = (3, 5), (4, 6)  # CUjit_option: of what it says, and of errors
INVALID_PTX = 218  # CUDA_ERROR_INVALID_PTX
MEMORY_TYPES = {None: 0, "host": 1, "device": 2}  # CUmemorytype, cudaMemoryType

_handles = itertools.count(1)
_links: dict[int, list[str]] = {}  # CUlinkState -> its PTX texts
_kept: list = []  # callbacks, and strings that the driver owns


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("dynamic_shared", ctypes.c_uint),
        ("queue", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    ]  # fmt: skip


def kind_of(name: str) -> type:
    """Return the ctypes type of a parameter of C: what is no pointer, handle or number is one of an enumeration."""
    return SCALARS.get(name, ctypes.c_uint64 if name in HANDLES or name.endswith("*") else ctypes.c_int)


def split(signature: str) -> list[str]:
    """Return the parameters' types of 'CUresult (CUdevice *, int)'."""
    inside = signature.partition("(")[2].rpartition(")")[0]
    return [one.strip() for one in inside.split(",")] if inside not in ("", "void") else []


def results_of(types: list[str]) -> list[int]:
    """Return the parameters by which a function returns something: the first ones, and strings."""
    first = itertools.takewhile(lambda i: RESULT.fullmatch(types[i]), range(len(types)))
    return sorted({*first, *(i for i, name in enumerate(types) if name == f"{STRING}*")})


def put(address: int, name: str, value) -> None:
    """Store a result at an address whose type in C is `name`."""
    name = name[:-1].strip()
    if name == STRING:
        _kept.append(ctypes.create_string_buffer(value))
        value = ctypes.addressof(_kept[-1])
    if address:
        kind_of(name).from_address(address).value = value if name == "float" else int(value)


def not_null(address: int) -> int:
    if not address:
        raise launches.WrongCall("a null pointer")
    return address


def checked(function, types: list[str]):
    """Return a function of C that refuses calls without a context, devices that there are not, null handles, no place
    for its only result."""
    need = contexts.need_of(function.__name__)
    devices = [i for i, name in enumerate(types) if name == "CUdevice"]
    handles = [(i, name, NULL[name]) for i, name in enumerate(types) if name in NULL]
    structures = [i for i, name in enumerate(types) if NEEDED.fullmatch(name)]
    answers = results_of(types) == [0] and function.__name__ not in NO_RESULT_WANTED

    @functools.wraps(function)
    def call(*args):
        if need:
            contexts.check(function.__name__, need)
        for i in devices:
            cuda_bindings.device_of(args[i])
        for i, name, status in handles:
            if not args[i]:
                raise launches.WrongCall(f"{function.__name__} of no {name}", status)
        for i in [*structures, *[0] * answers]:
            not_null(args[i])
        return function(*args)

    return call


def adapted(call, types: list[str]):
    """Return `call`, a function as of `cuda_bindings.driver_calls`, as one of C with parameters of these types."""
    results = results_of(types)

    def function(*args):
        given = [
            ctypes.string_at(not_null(value)) if name == STRING else value
            for i, (name, value) in enumerate(zip(types, args)) if i not in results
        ]  # fmt: skip
        value = call(*given)
        for i, one in zip(results, value if isinstance(value, tuple) else (value,)):
            put(args[i], types[i], one)

    return function


def launch_ex(config: int, function: int, given: int, extra: int) -> None:
    c = Config.from_address(config)
    options = launches.options(c.attributes, c.count)
    cuda_modules.launch(function, c.grid, c.block, c.dynamic_shared, given, extra, stream=c.queue or 0, **options)


def active_clusters(out: int, function: int, config: int) -> None:
    c = Config.from_address(config)
    x, y, z = launches.options(c.attributes, c.count)["cluster"] or (1, 1, 1)
    put(out, "int *", DEVICE.chip.active_clusters(x * y * z))


def device_name(out: int, size: int, device: int) -> None:
    ctypes.memmove(out, DEVICE.chip.name.encode()[: size - 1] + b"\0", min(size, len(DEVICE.chip.name) + 1))


def error_name(status: int, out: int) -> None:
    """cuGetErrorName: null for what is no CUresult."""
    from cuda.bindings import driver

    put(out, "CUdeviceptr *", 0)
    names = {int(one): one.name for one in driver.CUresult}
    if status not in names:
        raise launches.WrongCall(f"cuGetErrorName of {status}, which is no CUresult")
    put(out, f"{STRING}*", names[status].encode())


def parameter_info(function: int, index: int, offset: int, size: int) -> None:
    """cuFuncGetParamInfo, cuKernelGetParamInfo."""
    for out, value in zip((offset, size), cuda_modules.parameter(function, index)):
        put(out, "size_t *", value)


def device_uuid(out: int, device: int) -> None:
    ctypes.memmove(out, device.to_bytes(16, "big"), 16)


def pointer_attribute(place: int, number: int, address: int) -> None:
    """cuPointerGetAttribute. Raises WrongCall for memory that is neither a device's nor pinned, as the driver does."""
    if cuda_bindings.memory_at(address)[0] is None:
        raise launches.WrongCall(f"cuPointerGetAttribute of {address:#x}, which is no memory of CUDA's")
    numbers, places = ctypes.c_int(number), ctypes.c_uint64(place)
    pointer_attributes(1, ctypes.addressof(numbers), ctypes.addressof(places), address)


def pointer_attributes(count: int, numbers: int, places: int, address: int) -> None:
    """cuPointerGetAttributes: of memory that is neither a device's nor pinned, all are 0."""
    memory, device = cuda_bindings.memory_at(address)
    region = DEVICE.region_at(address, 1)
    known = {  # CUpointer_attribute -> its type and value
        1: ("CUcontext *", int(memory is not None)),
        2: ("int *", MEMORY_TYPES[memory]),
        3: ("CUdeviceptr *", address if memory else 0),
        4: ("CUdeviceptr *", address if memory == "host" else 0),
        8: ("int *", int(region is not None and region.managed)),
        9: ("int *", device),
    }
    for i in range(count):
        number = ctypes.c_int.from_address(numbers + 4 * i).value
        if number not in known:
            raise Unsupported(f"pointer attribute {number}")
        kind, value = known[number]
        put(ctypes.c_uint64.from_address(places + 8 * i).value, kind, value)


# ---- links: the driver's linker makes machine code of PTX; here the linked image is that PTX


def link_create(count: int, options: int, values: int, out: int) -> None:
    empty_logs(count, options, values)
    handle = next(_handles)
    _links[handle] = []
    put(out, "CUlinkState *", handle)


def empty_logs(count: int, options: int, values: int) -> None:
    """Say that the driver's compiler has written nothing to the logs that a call gives it."""
    for i in range(count):
        number, value = ctypes.c_int.from_address(options + 4 * i).value, ctypes.c_uint64.from_address(values + 8 * i)
        if number in LOG_SIZES:
            value.value = 0
        elif number in LOGS and value.value:
            ctypes.c_char.from_address(value.value).value = b"\0"


def load_module(out: int, image: int, count: int, options: int, values: int) -> None:
    """cuModuleLoadDataEx."""
    empty_logs(count, options, values)
    put(out, "CUmodule *", modules.load(image))


def link_add(link: int, kind: int, data: int, size: int, name: bytes, *_) -> None:
    if kind == LIBRARY_INPUT:
        return  # a call of what only that has is refused where it is made; of libcudadevrt see ptx/device_runtime.py
    if kind != PTX_INPUT:
        raise Unsupported(f"cuLinkAddData of input type {kind} on the emulated device, which links PTX ({PTX_INPUT})")
    text = ctypes.string_at(data, size)
    if b".version" not in text:
        raise launches.WrongCall("cuLinkAddData of what is no PTX", INVALID_PTX)
    _links[link].append(text.rstrip(b"\0").decode())


def link_add_file(link: int, kind: int, name: int, *_) -> None:
    """cuLinkAddFile."""
    if kind != LIBRARY_INPUT:
        text = ctypes.create_string_buffer(cuda_modules.file_of(ctypes.string_at(not_null(name))))
        link_add(link, kind, ctypes.addressof(text), len(text) - 1, b"")


def link_complete(link: int, out: int, size: int) -> None:
    if not _links[link]:
        raise launches.WrongCall("cuLinkComplete of nothing")
    _kept.append(ctypes.create_string_buffer(joined(_links[link]).encode()))
    put(out, "void **", ctypes.addressof(_kept[-1]))
    put(size, "size_t *", len(_kept[-1]))


def pool_of(out: int, place: int, kind: int) -> None:
    """cuMemGetDefaultMemPool, cuMemGetMemPool: there is one pool."""
    graph_calls.put(out, c_calls.POOL)


OWN = {  # what takes or returns something else than the function of Python does
    "cuLaunchKernelEx": launch_ex, "cuDeviceGetName": device_name, "cuDeviceGetUuid": device_uuid,
    "cuModuleLoadDataEx": load_module, "cuLinkAddFile": link_add_file,
    "cuLinkCreate": link_create, "cuLinkAddData": link_add, "cuLinkComplete": link_complete,
    "cuLinkDestroy": None, "cuOccupancyMaxActiveClusters": active_clusters,
    "cuMemGetDefaultMemPool": pool_of, "cuMemGetMemPool": pool_of,
    "cuPointerGetAttribute": pointer_attribute, "cuPointerGetAttributes": pointer_attributes,
    "cuTensorMapEncodeTiled": launches.encode_tensor_map,
    "cuGetErrorName": error_name,
    "cuFuncGetParamInfo": parameter_info, "cuKernelGetParamInfo": parameter_info,
}  # fmt: skip
OWN |= images.FUNCTIONS


@functools.cache
def calls() -> dict:
    """Return the driver's functions that are served."""
    packages.need("CUDA C++ on the emulated GPU", "cuda.bindings")
    from cuda.bindings import driver

    own = c_calls.calls() | virtual_memory.calls() | graph_nodes.calls()
    return cuda_bindings.driver_calls(driver) | own | graph_calls.driver_calls()


def function_of(name: str, types: list[str]) -> ctypes.c_void_p | None:
    """Return the driver's function `name` with parameters of these types in C; None if it is not served."""
    if name not in OWN and name not in calls():
        return None
    if name not in images.FUNCTIONS and re.search("(?<!Ctx|ool)Destroy(?!Node)|Unload|PrimaryCtxRelease", name):
        return entry_points.WITHOUT_EFFECT
    function = OWN[name] if name in OWN else adapted(calls()[name], types)
    function.__name__ = name
    return pointer(checked(function, types), types)


def pointer(function, types: list[str], answers: bool = False) -> ctypes.c_void_p:
    """Return a function of C that calls `function`, whose parameters have these types in C; see launches.guarded."""
    guarded = launches.guarded(function, going_on=True, answers=answers)
    _kept.append(ctypes.CFUNCTYPE(ctypes.c_int, *map(kind_of, types))(guarded))
    return ctypes.cast(_kept[-1], ctypes.c_void_p)
