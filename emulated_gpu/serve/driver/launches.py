"""What host code hands to CUDA with a launch: attributes, parameters, tensor maps; laid out as CUDA's headers say."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import NamedTuple

from ...device import DEVICE
from ...errors import AssertionFailed, LaunchRefused, Unsupported, WrongCall
from ...formats.tensormap import DRIVER_SWIZZLES, DRIVER_TYPES, L2_PROMOTIONS, Im2colMap, TensorMap, encode
from ...state.global_memory import HOST
from .modules import Kernel

# cudaLaunchAttributeID, which is CUlaunchAttributeID
CLUSTER, COOPERATIVE, PROGRAMMATIC, PREFERRED_CLUSTER = 4, 2, 6, 11
NOT_SUPPORTED, LAUNCH_FAILURE, ASSERT = 801, 719, 710  # cudaError_t, which are CUresult
OF_KINDS = {"out-of-bounds": 700, "misaligned": 716, "address-space": 717}  # cudaErrorIllegalAddress and its like
IGNORED = {  # what changes no result, and no time that is modelled
    0: "ignore", 1: "access policy window", 5: "cluster scheduling policy", 8: "priority", 9: "memory sync domain map",
    10: "memory sync domain", 14: "shared memory carve-out",
}  # fmt: skip


def status_of(error: BaseException) -> int:
    """Return the cudaError_t that host code gets."""
    if isinstance(error, Unsupported):
        return NOT_SUPPORTED
    return ASSERT if isinstance(error, AssertionFailed) else OF_KINDS.get(getattr(error, "kind", ""), LAUNCH_FAILURE)


def check_flags(of: str, flags, known: int) -> None:
    """Raise WrongCall for other flags than those that are known."""
    if int(flags) & ~known:
        raise WrongCall(f"the flags {int(flags):#x} of {of}")


def check_memory(what: str, address: int, size: int, device: bool | None) -> None:
    """Raise WrongCall for memory that goes past an allocation, or is not whose it must be.

    device: whether it must be the device's or the host's; None: either. Pinned and managed memory is both.
    """
    region = DEVICE.region_at(address, 1)
    if region is None:
        if device:
            raise WrongCall(f"{what} {address:#x} is no memory of the device")
        if not address:
            raise WrongCall(f"{what} a null pointer")
    elif address + size > region.start + region.size:
        left = region.start + region.size - address
        raise WrongCall(f"{what} {address:#x}: {size} bytes, of which {region.name} has {left}")
    elif device is False and region.device != HOST and not region.managed:
        raise WrongCall(f"{what} {address:#x}, {region.name} of the device, as if it were the host's")


def guarded(function, going_on: bool = False, answers: bool = False):
    """A callback that keeps what `function` raises as the session's failure and returns a CUDA error.

    A wrong call is said on stderr alone. going_on: whether a launch that the driver refuses is a finding behind which
    others run, and has CUDA's own error. answers: whether what `function` returns is the status.
    """

    @functools.wraps(function)
    def guarded(*args):
        try:
            status = function(*args)
            return status if answers else 0
        except WrongCall as why:
            print(f"emulated-gpu: {why}: cudaError {why.status}", file=sys.stderr, flush=True)
            return why.status
        except BaseException as error:  # must not cross into native code
            if going_on and isinstance(error, LaunchRefused):
                DEVICE.refuse(error)
                return error.status
            DEVICE.caught(error, function.__name__)
            return status_of(error)

    return guarded


def handle_of(queue) -> int:
    """Return the number of a stream that a call names by a number, by a handle of Python's or C's, or by nothing."""
    return int(getattr(queue, "value", queue) or 0)


class Attribute(ctypes.Structure):
    """cudaLaunchAttribute, and CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int32), ("pad", ctypes.c_int32), ("value", ctypes.c_int32 * 16)]


def options(attributes: int | None, count: int) -> dict:
    """Return what an array of this many `Attribute` at an address asks for, as options of `Device.launch`."""
    cluster, preferred, pdl, cooperative = None, None, False, False
    for a in (Attribute * count).from_address(attributes) if count else ():
        if a.id == CLUSTER:
            cluster = tuple(a.value[:3])
        elif a.id == PREFERRED_CLUSTER:
            preferred = tuple(a.value[:3])
        elif a.id == PROGRAMMATIC:
            pdl = bool(a.value[0])
        elif a.id == COOPERATIVE:
            cooperative = bool(a.value[0])
        elif a.id not in IGNORED:
            raise Unsupported(f"launch attribute {a.id}")
    if preferred and all(preferred) and DEVICE.session.schedule.seed % 2 == 0:
        cluster = preferred  # a GPU takes either, cluster by cluster; here it is one of them for the whole launch
    return {"cluster": cluster, "pdl": pdl, "cooperative": cooperative}


def parameters(kernel, arguments: int) -> bytes:
    """Return the block of a kernel's parameters, whose addresses are an array at `arguments`."""
    params = bytearray(kernel.param_bytes)
    pointers = (ctypes.c_uint64 * len(kernel.params)).from_address(arguments) if kernel.params else ()
    for p, address in zip(kernel.params, pointers, strict=True):
        params[p.offset : p.offset + p.size] = ctypes.string_at(address, p.size)
    return bytes(params)


def packed(kernel, values: Sequence[bytes]) -> bytes:
    """Return the block of a kernel's parameters, made of these values.

    Raises Unsupported for another number of them than the kernel takes, or a value of another size.
    """
    if len(values) != len(kernel.params):
        raise Unsupported(f"{kernel.name} takes {len(kernel.params)} parameters, {len(values)} are given")
    params = bytearray(kernel.param_bytes)
    for p, value in zip(kernel.params, values):
        if len(value) != p.size:
            raise Unsupported(f"{kernel.name}: {len(value)} bytes for parameter {p.name} of {p.size}")
        params[p.offset : p.offset + p.size] = value
    return bytes(params)


def launch(kernel: Kernel, grid, block, params: bytes, dynamic_shared: int, **options) -> None:
    """Launch a kernel. grid, block: three ints; options: of `Device.launch`."""
    module = kernel.loaded()
    DEVICE.launch(module, kernel.name, tuple(grid), tuple(block), params, dynamic_shared=dynamic_shared, **options)


class MapEnums(NamedTuple):
    """The last arguments of cuTensorMapEncode*: how a tensor lies in memory, and what is copied beside it."""

    interleave: int
    swizzle: int
    promotion: int  # of L2
    fill: int  # what is outside


def tensor_map(kind: int, address: int, dims, strides, box, steps, enums: MapEnums) -> bytes:
    """Return what cuTensorMapEncodeTiled makes of its arguments. strides: of all dimensions but the innermost.

    Raises Unsupported if it is not implemented, a Fault for an invalid value, as the driver does.
    """
    common = _of_map("Tiled", kind, address, dims, strides, box, steps, enums)
    return encode(TensorMap(*common))


def im2col_map(kind: int, address: int, dims, strides, corners: tuple, box, steps, enums: MapEnums) -> bytes:
    """Return what cuTensorMapEncodeIm2col makes of its arguments, as `tensor_map` does.

    corners: the lower and the upper one of the pixels' box. box: how many channels and pixels a copy has.
    """
    lower, upper = corners
    common = _of_map("Im2col", kind, address, dims, strides, box, steps, enums)
    return encode(Im2colMap(*common, tuple(lower), tuple(upper)))


def _of_map(mode: str, kind, address, dims, strides, box, steps, enums: MapEnums) -> tuple:
    """The fields of a tensor map that a driver's function makes."""
    interleave, swizzle, promotion, fill = enums
    if interleave or kind >= len(DRIVER_TYPES) or swizzle >= len(DRIVER_SWIZZLES):
        given = f"data type {kind}, interleave {interleave}, swizzle {swizzle}"
        raise Unsupported(f"cuTensorMapEncode{mode} with {given}")
    span, atom = DRIVER_SWIZZLES[swizzle]
    return (
        address, DRIVER_TYPES[kind], tuple(dims), tuple(strides), tuple(box), tuple(steps), span, atom, bool(fill),
        L2_PROMOTIONS[promotion],
    )  # fmt: skip


def encode_tensor_map(out, kind, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill):
    """Do cuTensorMapEncodeTiled for host code that hands over addresses: write the words to `out`."""
    higher = (ctypes.c_uint64 * (rank - 1)).from_address(strides) if rank > 1 else ()
    sizes = (ctypes.c_uint64 * rank).from_address(dims)
    part, step = ((ctypes.c_uint32 * rank).from_address(at) for at in (box, steps))
    enums = MapEnums(interleave, swizzle, promotion, fill)
    words = tensor_map(kind, address or 0, sizes, higher, part, step, enums)
    ctypes.memmove(out, words, len(words))
