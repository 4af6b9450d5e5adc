"""Addresses and the memory behind them apart, by the driver's functions in C: cuMemAddressReserve, cuMemMap, ...

Memory is a file that has no name; what is mapped of it twice is one memory under two addresses.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from dataclasses import dataclass

from ...device import DEVICE
from ...state.global_memory import Region
from ...state.host_order import HOST_ALONE
from . import launches

GRANULARITY = 2 << 20  # large pages, which every machine has
FIXED, PRIVATE_ANONYMOUS, SHARED = 0x10, 0x22, 0x01  # of mmap(2)

_handles = itertools.count(1)
_reserved: dict[int, int] = {}  # beginning -> bytes
_memory: dict[int, Memory] = {}
_mapped: dict[int, Mapping] = {}  # by their beginning


@dataclass
class Memory:
    """What cuMemCreate makes: an unnamed file."""

    file: int
    size: int


@dataclass
class Mapping:
    """Memory under addresses. region: once they may be accessed."""

    memory: Memory
    size: int
    region: Region | None = None


def _mmap(address: int, size: int, access: int, flags: int, file: int = -1, offset: int = 0) -> int:
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    found = call(address or None, size, access, flags, file, offset)
    if found in (None, 2**64 - 1):
        raise launches.WrongCall(f"{size} bytes of addresses: {os.strerror(ctypes.get_errno())}", 2)
    return found


def check_size(what: str, *values: int) -> None:
    if any(value % GRANULARITY for value in values):
        raise launches.WrongCall(f"{what} that is no multiple of {GRANULARITY} bytes")


def reserve(size: int, alignment: int, wanted: int, flags: int) -> int:
    """cuMemAddressReserve. The wanted address is a hint, which is not taken."""
    check_size("cuMemAddressReserve of a size", size)
    align = max(alignment, GRANULARITY)
    found = -(-_mmap(0, size + align, 0, PRIVATE_ANONYMOUS) // align) * align
    _reserved[found] = size
    return found


def free(address: int, size: int) -> None:
    """cuMemAddressFree. The addresses are never given again."""
    if _reserved.get(address) != size:
        raise launches.WrongCall(f"cuMemAddressFree of {address:#x}, where {size} bytes were not reserved")
    if any(address <= one < address + size for one in _mapped):
        raise launches.WrongCall(f"cuMemAddressFree of {address:#x}, where memory is mapped")
    del _reserved[address]


def create(size: int, properties: int, flags: int) -> int:
    """cuMemCreate."""
    check_size("cuMemCreate of a size", size)
    file = os.memfd_create("emulated-gpu")
    os.ftruncate(file, size)
    handle = next(_handles)
    _memory[handle] = Memory(file, size)
    return handle


def release(handle: int) -> None:
    """cuMemRelease: what is mapped stays."""
    if _memory.pop(handle, None) is None:
        raise launches.WrongCall(f"cuMemRelease of memory {handle:#x}, which there is not")


def map_(address: int, size: int, offset: int, handle: int, flags: int) -> None:
    """cuMemMap."""
    check_size("cuMemMap of an address or a size", address, size, offset)
    if handle not in _memory or offset + size > _memory[handle].size:
        raise launches.WrongCall("cuMemMap of memory that there is not")
    if not any(one <= address and address + size <= one + length for one, length in _reserved.items()):
        raise launches.WrongCall(f"cuMemMap to {address:#x}, which is not reserved")
    if any(one < address + size and address < one + its.size for one, its in _mapped.items()):
        raise launches.WrongCall(f"cuMemMap to {address:#x}, where memory is mapped")
    _mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, SHARED | FIXED, _memory[handle].file, offset)
    _mapped[address] = Mapping(_memory[handle], size)


def within(address: int, size: int, what: str) -> list[int]:
    """Return where mappings begin that fill a range of addresses. Raises WrongCall if they do not."""
    found = sorted(one for one in _mapped if address <= one < address + size)
    if sum(_mapped[one].size for one in found) != size:
        raise launches.WrongCall(f"{what} of {address:#x}, where {size} bytes are not mapped")
    return found


def set_access(address: int, size: int, accesses: int, count: int) -> None:
    """cuMemSetAccess. Raises WrongCall for memory that is not mapped."""
    for one in within(address, size, "cuMemSetAccess"):
        if _mapped[one].region is None:
            _mapped[one].region = DEVICE.given(one, _mapped[one].size, f"mapped memory {one:#x}", DEVICE.index)


def unmap(address: int, size: int) -> None:
    """cuMemUnmap, which waits for nothing."""
    for one in within(address, size, "cuMemUnmap"):
        gone = _mapped.pop(one)
        if gone.region is not None:
            with DEVICE.working(HOST_ALONE, "cuMemUnmap", frees=True) as work:
                DEVICE.touched(work, one, gone.size, True)
            DEVICE.freed(gone.region, "cuMemUnmap")
        _mmap(one, gone.size, 0, PRIVATE_ANONYMOUS | FIXED)


def retain(address: int) -> int:
    """cuMemRetainAllocationHandle."""
    for one, its in _mapped.items():
        if one <= address < one + its.size:
            handle = next(_handles)
            _memory[handle] = its.memory
            return handle
    raise launches.WrongCall(f"cuMemRetainAllocationHandle of {address:#x}, where nothing is mapped")


def calls() -> dict:
    """Return the functions by their names, as `cuda_bindings.driver_calls` has them."""
    return {
        "cuMemAddressReserve": reserve, "cuMemAddressFree": free, "cuMemCreate": create, "cuMemRelease": release,
        "cuMemMap": map_, "cuMemSetAccess": set_access, "cuMemUnmap": unmap, "cuMemRetainAllocationHandle": retain,
        "cuMemGetAllocationGranularity": lambda properties, option: GRANULARITY,
    }  # fmt: skip
