"""The C functions of `cuda.bindings`, which the compiled code of cuda.core calls past the functions of Python.

Cython's modules find each other's C functions in capsules, `__pyx_capi__`, whose names are the functions' signatures.
Each is made to lead to a callback, which calls the function of Python of the same name, or refuses by that name.
"""

from __future__ import annotations

import ctypes
import itertools
import re

from ..device import DEVICE
from ..errors import Unsupported
from ..formats import elf
from ..state.global_memory import HOST
from . import cuda_bindings, cuda_modules, cute_dsl, launches, modules
from .after_import import after_import

SCALARS = {
    "int": ctypes.c_int, "unsigned int": ctypes.c_uint, "float": ctypes.c_float, "size_t": ctypes.c_size_t,
    "unsigned char": ctypes.c_ubyte, "unsigned short": ctypes.c_ushort, "CUdevice": ctypes.c_int,
    "CUdeviceptr": ctypes.c_uint64,
}  # fmt: skip
HANDLES = "CUcontext CUmodule CUfunction CUlibrary CUkernel CUstream CUevent CUmemoryPool CUlinkState".split()
STRING = "char const *"
RESULT = re.compile(r"(?!.*const|(void|char) \*$)[\w ]+ \*+")
# What ends something of the driver has no effect, and may be called when Python is gone: a function that returns 0
WITHOUT_EFFECT = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p)

PTX_INPUT = 1  # CUjitInputType

_handles = itertools.count(1)
_links: dict[int, list] = {}  # CUlinkState -> its PTX texts, as C has them
_kept: list = []  # callbacks, and strings that the driver owns
_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_pointer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_SetPointer", ctypes.pythonapi)
)


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
    """Return which parameters are addresses of what a function returns: the first ones, and those of strings."""
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


def adapted(call, types: list[str], driver):
    """Return `call`, a function as of `cuda_bindings.driver_calls`, as one of C with parameters of these types."""
    results = results_of(types)

    def function(*args):
        given = [
            ctypes.string_at(value) if name == STRING else driver.CUresult(value) if name == "CUresult" else value
            for i, (name, value) in enumerate(zip(types, args)) if i not in results
        ]  # fmt: skip
        value = call(*given)
        for i, one in zip(results, value if isinstance(value, tuple) else (value,)):
            put(args[i], types[i], one)

    return function


def launch_ex(config: int, function: int, given: int, extra: int) -> None:
    c = Config.from_address(config)
    options = launches.options(c.attributes, c.count)
    cuda_modules.launch(function, c.grid, c.block, c.dynamic_shared, given, extra, **options)


def device_name(out: int, size: int, device: int) -> None:
    ctypes.memmove(out, DEVICE.chip.name.encode()[: size - 1] + b"\0", min(size, len(DEVICE.chip.name) + 1))


def device_uuid(out: int, device: int) -> None:
    ctypes.memmove(out, device.to_bytes(16, "big"), 16)


def pointer_attributes(count: int, numbers: int, places: int, address: int) -> None:
    """cuPointerGetAttributes: of memory that is neither a device's nor pinned, all are 0."""
    region = DEVICE.region_at(address, 1)
    of_host = region is not None and region.device == HOST
    known = {  # CUpointer_attribute -> its type and value
        1: ("CUcontext *", int(region is not None)),
        2: ("int *", 0 if region is None else 1 if of_host else 2),  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE
        3: ("CUdeviceptr *", address if region is not None else 0),
        4: ("CUdeviceptr *", address if of_host else 0),
        8: ("int *", 0),  # managed
        9: ("int *", 0 if region is None or of_host else region.device),
    }
    for i in range(count):
        number = ctypes.c_int.from_address(numbers + 4 * i).value
        if number not in known:
            raise Unsupported(f"pointer attribute {number}")
        kind, value = known[number]
        put(ctypes.c_uint64.from_address(places + 8 * i).value, kind, value)


# ---- links: the driver's linker makes machine code of PTX; here the linked image is that PTX


def link_create(count: int, options: int, values: int, out: int) -> None:
    handle = next(_handles)
    _links[handle] = []
    put(out, "CUlinkState *", handle)


def link_add(link: int, kind: int, data: int, size: int, name: bytes, *_) -> None:
    if kind != PTX_INPUT:
        raise Unsupported(f"cuLinkAddData of input type {kind} on the emulated device, which links PTX ({PTX_INPUT})")
    _links[link].append(ctypes.create_string_buffer(ctypes.string_at(data, size)))


def link_complete(link: int, out: int, size: int) -> None:
    if len(_links[link]) != 1:
        raise Unsupported(f"a link of {len(_links[link])} PTX texts on the emulated device, which takes one")
    put(out, "void **", ctypes.addressof(_links[link][0]))
    put(size, "size_t *", len(_links[link][0]))


OWN = {  # what takes or returns something else than the function of Python does
    "cuLaunchKernelEx": launch_ex, "cuDeviceGetName": device_name, "cuDeviceGetUuid": device_uuid,
    "cuLinkCreate": link_create, "cuLinkAddData": link_add, "cuLinkComplete": link_complete,
    "cuLinkDestroy": None,
    "cuPointerGetAttributes": pointer_attributes, "cuTensorMapEncodeTiled": cute_dsl.encode_tensormap,
}  # fmt: skip


def refusal(name: str):
    def refuse():
        raise Unsupported(f"{name}() of compiled code on the emulated device")

    return refuse


def signature(capsule) -> str:
    return _name(capsule).decode()


def replace(capsule, function, types: list[str]) -> None:
    """Make a capsule lead to a function of C that calls `function`, whose parameters have these types in C."""
    _kept.append(ctypes.CFUNCTYPE(ctypes.c_int, *map(kind_of, types))(function))
    _set_pointer(capsule, ctypes.cast(_kept[-1], ctypes.c_void_p))


def replace_driver(cydriver, driver) -> None:
    """Answer the driver's functions in the capsules of the module `cydriver`."""
    calls = cuda_bindings.driver_calls(driver)
    for name, capsule in cydriver.__pyx_capi__.items():
        types = split(signature(capsule))
        if re.search("Destroy|Unload|PrimaryCtxRelease", name) and name in calls.keys() | OWN.keys():
            _set_pointer(capsule, WITHOUT_EFFECT)
        elif name in OWN:
            replace(capsule, launches.guarded(OWN[name]), types)
        elif name in calls:
            replace(capsule, launches.guarded(adapted(calls[name], types, driver)), types)
        else:
            replace(capsule, launches.guarded(refusal(name)), [])


def replace_nvrtc(cynvrtc) -> None:
    """Let NVRTC's own compiler say of which PTX a cubin was made, as `cuda_modules.install_nvrtc` does."""
    types = ["nvrtcProgram *", "void *"]

    def original(name):
        capsule = cynvrtc.__pyx_capi__[name]
        address = _pointer(capsule, _name(capsule))
        return ctypes.CFUNCTYPE(ctypes.c_int, *map(kind_of, types))(address)

    get_cubin, get_size, get_ptx = map(original, ("nvrtcGetCUBIN", "nvrtcGetPTXSize", "nvrtcGetPTX"))

    def get_cubin_and_note(program, cubin):
        status, size = get_cubin(program, cubin), ctypes.c_size_t()
        if status == 0 and get_size(program, ctypes.addressof(size)) == 0 and size.value > 1:
            text = ctypes.create_string_buffer(size.value)
            if get_ptx(program, ctypes.addressof(text)) == 0:
                code = ctypes.string_at(cubin, elf.size(ctypes.string_at(cubin, elf.HEADER)))
                modules.note(code, text.value.decode())
        return status

    replace(cynvrtc.__pyx_capi__["nvrtcGetCUBIN"], get_cubin_and_note, types)


def serve() -> None:
    from cuda.bindings import cydriver, cynvrtc, driver

    replace_driver(cydriver, driver)
    replace_nvrtc(cynvrtc)


def install() -> None:
    """Serve cuda.core, once it begins to be imported: before its compiled modules comes `_version`."""
    after_import("cuda.core._version", serve)
