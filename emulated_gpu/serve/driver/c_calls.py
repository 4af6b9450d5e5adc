"""What programs of C ask the driver for beside what `cuda.bindings` answers: contexts, limits, pools, copies of boxes.

A function here gets the parameters of C but those that are addresses of its first results, and returns these.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from dataclasses import dataclass

import numpy as np

from ...device import DEVICE
from ..host import guarded_pages
from . import contexts, cuda_bindings, cuda_modules, images, launches
from .contexts import CONTEXT
from .graph_calls import put, put_int

POOL = 1  # the handle of the pool that a device has from the beginning
PINNED, DEVICE_MEMORY, ARRAY, EITHER = 1, 2, 3, 4  # CUmemorytype
BUS = "0000:%02x:00.0"  # where a device is on the PCI bus
LAZY = 2  # CUmoduleLoadingMode
READ_WRITE = 3  # CUmemAccess_flags
STACK, PRINTF, HEAP, DEPTH, PENDING, FETCH, PERSISTING = range(7)  # CUlimit, which is cudaLimit
# What CUDA has where nobody has set another; the rest is the machine's
LIMITS = {STACK: 1024, HEAP: 8 << 20, DEPTH: 2, PENDING: 2048, FETCH: 128, PERSISTING: 0}
UNSUPPORTED_LIMIT = 215
OF_PROGRAMS = {99: 1, 115: 1}  # attributes that are otherwise for Python: memory is registered, pools of memory

_handles = itertools.count(POOL + 1)
_pools = {POOL}  # those that there are
_limits: dict[int, int] = {}  # those that have been set
_of_pools: dict[tuple[int, int], int] = {}  # attributes of pools that have been set: (pool, CUmemPool_attribute)
_registered: dict[int, np.ndarray] = {}  # cuMemHostRegister address -> the host's memory


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        ("source_x", ctypes.c_size_t), ("source_y", ctypes.c_size_t), ("source_type", ctypes.c_uint),
        ("source_host", ctypes.c_uint64), ("source_device", ctypes.c_uint64), ("source_array", ctypes.c_uint64),
        ("source_pitch", ctypes.c_size_t), ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("type", ctypes.c_uint),
        ("host", ctypes.c_uint64), ("device", ctypes.c_uint64), ("array", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = [
        (f"{side}{name}", kind)
        for side in ("source_", "")
        for name, kind in (
            ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t), ("level", ctypes.c_size_t),
            ("type", ctypes.c_uint), ("host", ctypes.c_uint64), ("device", ctypes.c_uint64),
            ("array", ctypes.c_uint64), ("reserved", ctypes.c_uint64), ("pitch", ctypes.c_size_t),
            ("rows", ctypes.c_size_t),
        )
    ] + [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t)]  # fmt: skip


def limit(number: int) -> int:
    known = LIMITS | {PRINTF: DEVICE.chip.printf_buffer} | _limits
    if number not in known:
        raise launches.WrongCall(f"limit {number}, which there is not", UNSUPPORTED_LIMIT)
    return known[number]


def set_limit(number: int, value: int) -> None:
    """Remember a limit: there is as much as a kernel needs."""
    limit(number)
    _limits[number] = value


@dataclass(frozen=True)
class Side:
    """One side of a copy: where its rows begin. rows: from one slice to the next; of_device: None: anybody's."""

    base: int
    pitch: int
    rows: int
    of_device: bool | None

    def at(self, x: int, y: int, z: int) -> int:
        return self.base + (z * self.rows + y) * self.pitch + x


def side_of(c: Copy2D | Copy3D, prefix: str, what: str) -> Side:
    """Return the target or, with the prefix "source_", the source. Raises WrongCall where it goes past an array."""
    get = lambda name: getattr(c, prefix + name, 0)  # noqa: E731
    if get("type") != ARRAY:
        of_device = {PINNED: False, DEVICE_MEMORY: True}.get(get("type"))
        return Side(get("host") if get("type") == PINNED else get("device"), get("pitch"), get("rows"), of_device)
    image = images.array_of(get("array"))
    ends = get("x") + c.width, get("y") + c.height, get("z") + getattr(c, "depth", 1)
    if any(end > size for end, size in zip(ends, (image.pitch, image.rows, image.slices))):
        raise launches.WrongCall(f"{what} to {ends}, the first in bytes, of a CUDA array of {image.shape} texels")
    return Side(image.address, image.pitch, image.rows, True)


def copy_box(c: Copy2D | Copy3D, stream: int, waits: bool, what: str) -> None:
    """Copy rows, all of a slice at once where they lie one behind the other."""
    target, source = side_of(c, "", what), side_of(c, "source_", what)
    together = c.height if target.pitch == source.pitch == c.width else 1
    for z, y in itertools.product(range(getattr(c, "depth", 1)), range(0, c.height, together)):
        to = target.at(c.x, c.y + y, getattr(c, "z", 0) + z)
        at = source.at(c.source_x, c.source_y + y, getattr(c, "source_z", 0) + z)
        of = target.of_device, source.of_device
        cuda_bindings.copy(to, at, c.width * together, stream, waits, what, of)


def copy_2d(at: int, stream: int = 0, waits: bool = True) -> None:
    """cuMemcpy2D."""
    copy_box(Copy2D.from_address(at), stream, waits, "cuMemcpy2D")


def copy_3d(at: int, stream: int = 0, waits: bool = True) -> None:
    """cuMemcpy3D."""
    copy_box(Copy3D.from_address(at), stream, waits, "cuMemcpy3D")


def copy_array(what: str):
    """Return cuMemcpyHtoA or its like, whose name says of each side whether it is the host's, the device's or an array
    and a byte of it."""
    source_is, target_is = what.removeprefix("cuMemcpy").removesuffix("Async").split("to")
    of, waits = (target_is != "H", source_is != "H"), not what.endswith("Async")

    def copied(*given: int) -> None:
        values = iter(given)
        place = lambda kind: images.array_of(next(values)).address + next(values) if kind == "A" else next(values)  # noqa: E731
        to, source, size = place(target_is), place(source_is), next(values)
        cuda_bindings.copy(to, source, size, next(values, 0), waits, what, of)

    return copied


def fill_2d(kind: str):
    """Return cuMemsetD2D8 and its like for elements of a NumPy type."""

    def fill(target: int, pitch: int, value: int, width: int, height: int, stream: int | None = None) -> None:
        for row in range(height):
            cuda_bindings.fill(target + row * pitch, kind, value, width, stream or 0, stream is None, "cuMemsetD2D")

    return fill


def register(address: int, size: int, flags: int) -> None:
    """Pin memory that the host has allocated."""
    if address in _registered:
        raise launches.WrongCall(f"cuMemHostRegister of {address:#x}, which is registered", 712)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    DEVICE.pin(memory, pages=False)
    guarded_pages.install()
    _registered[address] = memory
    if DEVICE.allocator is not None:
        DEVICE.allocator.register(address, size)


def unregister(address: int) -> None:
    if _registered.pop(address, None) is None:
        raise launches.WrongCall(f"cuMemHostUnregister of {address:#x}, which is not registered", 713)
    DEVICE.order.synchronize_device(DEVICE.index)
    if DEVICE.allocator is not None:
        DEVICE.allocator.register(address, 0)


def device_pointer(address: int, flags: int) -> int:
    """cuMemHostGetDevicePointer: of memory that is pinned, the same address."""
    if flags or cuda_bindings.memory_at(address)[0] is None:
        raise launches.WrongCall(f"cuMemHostGetDevicePointer of {address:#x}, which is not pinned, or with flags")
    return address


def address_range(address: int) -> tuple[int, int]:
    """Return (beginning, bytes) of the allocation that an address is in."""
    region = DEVICE.region_at(address, 1)
    if region is None:
        raise launches.WrongCall(f"cuMemGetAddressRange of {address:#x}, which is in no allocation")
    return region.start, region.size


def pitched(width: int, height: int, element: int) -> tuple[int, int]:
    """Return (address, pitch) of rows of this many bytes."""
    pitch = -(-width // DEVICE.chip.pitch) * DEVICE.chip.pitch
    return cuda_bindings.allocate_bytes(pitch * height), pitch


def attribute(number: int) -> int:
    """cuDeviceGetAttribute, cudaDeviceGetAttribute."""
    return OF_PROGRAMS.get(number) or cuda_bindings.attribute(number)


def existing_pool(pool: int) -> int:
    """Return the handle of a pool. Raises WrongCall for one that there is not."""
    if pool not in _pools:
        raise launches.WrongCall(f"{pool:#x} is no pool of memory, or not any more")
    return pool


def create_pool(properties: int) -> int:
    """cuMemPoolCreate. properties: CUmemPoolProps: types of its memory and handles, type and number of its place."""
    place, number = (ctypes.c_int * 4).from_address(properties)[2:]
    if place == 1:  # CU_MEM_LOCATION_TYPE_DEVICE
        cuda_bindings.device_of(number)
    _pools.add(handle := next(_handles))
    return handle


def pool_attribute(pool: int, number: int, out: int) -> None:
    """cuMemPoolGetAttribute: the three about reuse are ints; the threshold of release and the others are bytes."""
    if existing_pool(pool) and not (0 < number <= 8 and out):
        raise launches.WrongCall(f"attribute {number} of a pool to {out:#x}")
    used = sum(region.size for region in DEVICE.memory.regions)
    value = _of_pools.get((pool, number), number <= 3) if number <= 4 else used
    (put_int if number <= 3 else put)(out, value)


def set_pool_attribute(pool: int, number: int, at: int) -> None:
    if existing_pool(pool) and not (number in (1, 2, 3, 4, 6, 8) and at):  # of the others two are read alone
        raise launches.WrongCall(f"attribute {number} of a pool, set from {at:#x}")
    _of_pools[pool, number] = (ctypes.c_int if number <= 3 else ctypes.c_uint64).from_address(at).value


def block_size(function: int, shared_of: int, shared: int, most: int) -> tuple[int, int]:
    """cuOccupancyMaxPotentialBlockSize: the largest block, and how many of them fill the device."""
    threads = min(most or DEVICE.chip.threads_per_cta, DEVICE.chip.threads_per_cta)
    if shared_of:
        shared = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(shared_of)(threads)
    return DEVICE.chip.sms * max(1, cuda_modules.resident(function, threads, shared)), threads


def device_at(bus: bytes) -> int:
    places = {(BUS % (number + 1)).encode(): number for number in range(len(DEVICE.memories))}
    if bus.lower() not in places:
        raise launches.WrongCall(f"no device at {bus.decode()}", 101)  # CUDA_ERROR_INVALID_DEVICE
    return places[bus.lower()]


def bus_of(out: int, size: int, device: int) -> None:
    text = (BUS % (device + 1)).encode()[: size - 1] + b"\0"
    ctypes.memmove(out, text, len(text))


def set_block(function: int, *block: int) -> None:
    """cuFuncSetBlockShape."""
    x, y, z = block
    cuda_modules.kernel_of(function).block = x, y, z


def set_shared(function: int, size: int) -> None:
    """cuFuncSetSharedSize."""
    cuda_modules.kernel_of(function).shared = size


def set_size(function: int, size: int) -> None:
    """cuParamSetSize."""
    params = cuda_modules.kernel_of(function).params
    params[:] = params[:size].ljust(size, b"\0")


def set_bytes(function: int, offset: int, value: bytes) -> None:
    cuda_modules.kernel_of(function).params[offset : offset + len(value)] = value


def set_parameter(kind: type[ctypes._SimpleCData]):
    """Return cuParamSeti, or cuParamSetf."""
    return lambda function, offset, value: set_bytes(function, offset, bytes(kind(value)))


def set_parameters(function: int, offset: int, at: int, size: int) -> None:
    """cuParamSetv."""
    set_bytes(function, offset, ctypes.string_at(at, size))


def launch_grid(function: int, x: int = 1, y: int = 1, queue: int = 0) -> None:
    """cuLaunch, cuLaunchGrid, cuLaunchGridAsync."""
    kernel = cuda_modules.kernel_of(function)
    cuda_modules.launch_with(kernel, (x, y, 1), kernel.block, kernel.shared, bytes(kernel.params), stream=queue)


def call_host(queue: int, function: int, data: int, *_) -> None:
    """cuLaunchHostFunc."""
    called = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(function)
    cuda_bindings.call_host(lambda: called(data), queue)


def call_back(queue: int, function: int, data: int, flags: int) -> None:
    """cuStreamAddCallback."""
    called = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)(function)
    cuda_bindings.call_host(lambda: called(queue, 0, data), queue)


def state_of_context(device: int, flags: int, active: int) -> None:
    """cuDevicePrimaryCtxGetState."""
    put_int(flags, 0)
    put_int(active, 1)


def stream_context(queue: int, *outs: int) -> None:
    """cuStreamGetCtx: the context, and of the second form none for a green one."""
    for out, value in zip(outs, (CONTEXT, 0)):
        put(out, value)


# What changes no result
WITHOUT_EFFECT = """
    cuCtxResetPersistingL2Cache cuCtxSetCacheConfig cuCtxSetSharedMemConfig cuCtxSetFlags cuCtxDetach
    cuDevicePrimaryCtxSetFlags cuDevicePrimaryCtxReset cuDeviceSetMemPool
    cuMemPoolTrimTo cuMemPoolSetAccess cuMemAdvise cuMemPrefetchAsync cuStreamAttachMemAsync cuStreamSetAttribute
    cuStreamCopyAttributes cuProfilerStart cuProfilerStop cuFuncSetSharedMemConfig cuKernelSetCacheConfig
    cuThreadExchangeStreamCaptureMode cuCtxDisablePeerAccess
""".split()

COPIES_OF_ARRAYS = """
    cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyDtoA cuMemcpyAtoD cuMemcpyAtoA
""".split()


def calls() -> dict:
    """Return the functions by their names, as `cuda_bindings.driver_calls` has them."""
    return dict.fromkeys(WITHOUT_EFFECT, cuda_bindings.nothing) | {
        "cuDeviceComputeCapability": lambda device: DEVICE.chip.capability,
        "cuDeviceGetPCIBusId": bus_of, "cuDeviceGetByPCIBusId": device_at,
        "cuDevicePrimaryCtxGetState": state_of_context,
        "cuCtxGetCurrent": contexts.current, "cuCtxPopCurrent": contexts.pop, "cuCtxDestroy": contexts.destroy,
        "cuCtxGetApiVersion": lambda context, out: put_int(out, cuda_bindings.VERSION),
        "cuCtxGetFlags": lambda: 0, "cuCtxGetId": lambda context, out: put(out, CONTEXT),
        "cuCtxGetLimit": limit, "cuCtxSetLimit": set_limit, "cuCtxGetCacheConfig": lambda: 0,
        "cuCtxEnablePeerAccess": lambda context, flags: DEVICE.enable_peer_access(context - CONTEXT),
        "cuStreamGetCtx": stream_context,
        "cuStreamGetPriority": lambda queue, out: put_int(out, 0),
        "cuStreamGetFlags": lambda queue, out: put_int(out, 0),
        "cuStreamGetId": lambda queue, out: put(out, queue),
        "cuStreamGetDevice": lambda queue, out: put_int(out, DEVICE.index),
        "cuStreamAddCallback": call_back, "cuLaunchHostFunc": call_host,
        "cuEventRecordWithFlags": cuda_bindings.record,
        "cuMemAllocManaged": lambda size, flags: cuda_bindings.allocate_bytes(size, managed=True),
        "cuMemAllocPitch": pitched,
        "cuMemAllocFromPoolAsync": lambda size, pool, queue: (
            cuda_bindings.allocate_bytes(size, existing_pool(pool) and queue)
        ),
        "cuMemGetAddressRange": address_range,
        "cuMemHostGetDevicePointer": device_pointer,
        "cuMemHostGetFlags": lambda address: 0,
        "cuMemHostRegister": register, "cuMemHostUnregister": unregister,
        "cuMemcpyPeer": lambda to, context, source, of, size: cuda_bindings.copy(to, source, size),
        "cuMemcpyPeerAsync": lambda to, context, source, of, size, queue: (
            cuda_bindings.copy(to, source, size, queue, False)
        ),
        "cuMemcpy2D": copy_2d, "cuMemcpy2DAsync": functools.partial(copy_2d, waits=False),
        "cuMemcpy2DUnaligned": copy_2d,
        **{name: copy_array(name) for name in COPIES_OF_ARRAYS},
        "cuMemcpy3D": copy_3d, "cuMemcpy3DAsync": functools.partial(copy_3d, waits=False),
        **{f"cuMemsetD2D{bits}{a}": fill_2d(f"u{bits // 8}") for bits in (8, 16, 32) for a in ("", "Async")},
        "cuDeviceGetDefaultMemPool": lambda device: POOL, "cuDeviceGetMemPool": lambda device: POOL,
        "cuDeviceGetAttribute": lambda number, device: attribute(number),
        "cuMemPoolCreate": create_pool, "cuMemPoolDestroy": lambda pool: _pools.remove(existing_pool(pool)),
        "cuMemPoolGetAttribute": pool_attribute, "cuMemPoolSetAttribute": set_pool_attribute,
        "cuMemPoolGetAccess": lambda pool, place: READ_WRITE,
        "cuModuleGetLoadingMode": lambda: LAZY,
        "cuFuncSetBlockShape": set_block, "cuFuncSetSharedSize": set_shared, "cuParamSetSize": set_size,
        "cuParamSeti": set_parameter(ctypes.c_uint), "cuParamSetf": set_parameter(ctypes.c_float),
        "cuParamSetv": set_parameters, **dict.fromkeys(("cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync"), launch_grid),
        "cuOccupancyMaxPotentialBlockSize": block_size,
        "cuOccupancyMaxPotentialBlockSizeWithFlags": lambda *given: block_size(*given[:4]),
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": lambda function, threads, shared, flags: (
            cuda_modules.resident(function, threads, shared)
        ),
    }  # fmt: skip
