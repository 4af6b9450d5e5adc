"""`cuda.bindings` without a driver: the calls that scripts and CuTe DSL make are answered for the emulated device.

A call that is not in the tables below raises `Unsupported` with its name. Launches run to their end inside the call
that makes them, so waits return at once, and an event has no time (see `elapsed`); what had to be waited for is known
all the same (state/host_order.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import mmap
import re
import sys
from collections import deque
from collections.abc import Callable

import numpy as np

from ...chip import SYSTEM_SHARED
from ...device import ALIGNMENT, DEVICE, allocate
from ...errors import HostOrderFault, Unsupported
from ...state.global_memory import HOST, Region
from ...state.host_order import COMPILED, HOST_ALONE, calling_place, named
from ..host import guarded_pages
from ..host.after_import import after_import
from . import contexts, cuda_modules, graph_calls, launches, timed
from .graphs import ALLOCATE, COPY, FILL, FREE, HOST_CALL, put_off, refuse_wait, refuse_wait_for_event

VERSION = 13000
# cudaDeviceAttr numbers that host code asks for; numbers of no `Chip` as an H100 says. All others are 0: a limit of a
# kernel's time, the PCI bus, boards of several GPUs, native atomics on the host's memory; cudaHostRegister, and memory
# pools, without which cuda.core allocates by cuMemAlloc
ATTRIBUTES = {
    1: lambda chip: chip.threads_per_cta,
    2: lambda chip: 1024, 3: lambda chip: 1024, 4: lambda chip: 64,  # of a block's dimensions
    5: lambda chip: 2**31 - 1, 6: lambda chip: 65535, 7: lambda chip: 65535,  # of a grid's
    8: lambda chip: chip.shared_by_default,
    9: lambda chip: 65536,  # constant memory
    10: lambda chip: 32,  # warp size
    11: lambda chip: 2**31 - 1,  # longest pitch
    12: lambda chip: chip.registers_per_sm,  # and per block
    13: lambda chip: chip.clock_khz,
    14: lambda chip: 512,  # alignment of textures
    15: lambda chip: 1,  # copies beside kernels
    16: lambda chip: chip.sms,
    18: lambda chip: int(chip.integrated),
    19: lambda chip: 1,  # maps the host's memory
    21: lambda chip: 131072,  # largest textures: of one dimension,
    22: lambda chip: 131072, 23: lambda chip: 65536,  # two,
    24: lambda chip: 16384, 25: lambda chip: 16384, 26: lambda chip: 16384,  # three;
    27: lambda chip: 32768, 28: lambda chip: 32768, 29: lambda chip: 2048,  # layers of two
    30: lambda chip: 512,  # alignment of surfaces
    31: lambda chip: 1,  # concurrent kernels
    32: lambda chip: int(chip.ecc),
    36: lambda chip: chip.memory_clock_khz,
    37: lambda chip: chip.memory_bus_bits,
    38: lambda chip: chip.l2,
    39: lambda chip: chip.threads_per_sm,
    40: lambda chip: 3,  # engines that copy
    41: lambda chip: 1,  # unified addresses
    42: lambda chip: 32768, 43: lambda chip: 2048,  # layers of one dimension
    51: lambda chip: 32,  # alignment of a texture's rows
    44: lambda chip: 1, 45: lambda chip: 32768, 46: lambda chip: 32768,  # gathers of two dimensions
    47: lambda chip: 8192, 48: lambda chip: 8192, 49: lambda chip: 32768,  # another shape of three
    52: lambda chip: 32768, 53: lambda chip: 32768, 54: lambda chip: 2046,  # cubes, and layers of them
    55: lambda chip: 32768, 56: lambda chip: 131072, 57: lambda chip: 65536,  # surfaces, in the same order
    58: lambda chip: 16384, 59: lambda chip: 16384, 60: lambda chip: 16384,
    61: lambda chip: 32768, 62: lambda chip: 2048,
    63: lambda chip: 32768, 64: lambda chip: 32768, 65: lambda chip: 2048,
    66: lambda chip: 32768, 67: lambda chip: 32768, 68: lambda chip: 2046,
    69: lambda chip: 1 << 28,  # widest texture of linear memory
    70: lambda chip: 131072, 71: lambda chip: 65000, 72: lambda chip: 2097120,  # and of its rows
    75: lambda chip: chip.capability[0],
    76: lambda chip: chip.capability[1],
    78: lambda chip: 1,  # queues with priorities
    79: lambda chip: 1, 80: lambda chip: 1,  # L1 caches global and local memory
    81: lambda chip: chip.shared_per_sm,
    82: lambda chip: chip.registers_per_sm,
    83: lambda chip: 1,  # managed memory
    87: lambda chip: chip.double_ratio,
    89: lambda chip: 1,  # managed memory beside the host
    90: lambda chip: 1,  # preemption of kernels
    95: lambda chip: 1,  # cooperative launches
    97: lambda chip: chip.shared_per_cta,
    106: lambda chip: chip.ctas_per_sm,
    111: lambda chip: SYSTEM_SHARED,
    120: lambda chip: int(chip.cluster > 1),  # launches in clusters
}  # fmt: skip
ATTRIBUTES_END = 256  # CUDA 13.0 has numbers up to 147

NON_BLOCKING = 1  # cudaStreamNonBlocking, CU_STREAM_NON_BLOCKING
CONTEXT_FLAGS = 0xFF  # CU_CTX_FLAGS_MASK
UNTIMED, EVENT_FLAGS = 2, 7  # cudaEventDisableTiming, and all of its kind
EXTERNAL = 1  # cudaEventRecordExternal, cudaEventWaitExternal
INVALID_DEVICE, INVALID_HANDLE = 101, 400  # cudaErrorInvalidDevice, cudaErrorInvalidResourceHandle
NO_MEMORY = 2  # cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY
SCALAR = 16  # bytes: of one number, which somebody wants to know
QUARANTINE = 64 << 20  # bytes of freed memory that nobody gets meanwhile

_handles = itertools.count(16)  # the first ones stand for default streams
_quarantine: deque[np.ndarray] = deque()
_allocations: dict[int, np.ndarray] = {}  # cuMemAlloc address -> its memory
_ordered: set[int] = set()  # addresses of those that streams have allocated
_of_graphs: dict[int, np.ndarray] = {}  # address -> memory that nodes of graphs have
_pinned: dict[int, np.ndarray] = {}  # cuMemAllocHost address -> its memory, which is the host's
_warned: set[str] = set()
_events: dict[int, int | None] = {}  # what they have recorded
_untimed: set[int] = set()


def attribute(number) -> int:
    """Return a device's attribute. One that says that a device has something that this one has not is 0."""
    if not 0 < int(number) < ATTRIBUTES_END:
        raise launches.WrongCall(f"device attribute {int(number)}, which there is not")
    return ATTRIBUTES.get(int(number), lambda chip: 0)(DEVICE.chip)


def elapsed(start: int | None, end: int | None) -> float:
    """Milliseconds between what two events recorded: under `run --timed` of the model, else not a number.

    Which is said once on stderr: a result must not look like a measurement.
    """
    if timed.on():
        return timed.elapsed(start, end)
    if "elapsed" not in _warned:
        _warned.add("elapsed")
        text = "there is no GPU to time here; times between events are nan, or modelled ones with `run --timed`"
        print(f"emulated-gpu: {text}", file=sys.stderr)
    return float("nan")


# -- streams and events ------------------------------------------------------------------------------------------------


def create_stream(flags=0) -> int:
    """Return the handle of a new stream. flags: of cudaStreamCreateWithFlags."""
    launches.check_flags("a stream", flags, NON_BLOCKING)
    handle = next(_handles)
    DEVICE.order.create(DEVICE.index, handle, not int(flags) & NON_BLOCKING)
    return handle


def stream_of(handle):
    """Return what a handle of the current device's stands for; 0 is the default stream."""
    return DEVICE.order.stream(DEVICE.index, launches.handle_of(handle))


def record(event, stream=0, flags=0) -> None:
    """An event of the driver or the runtime."""
    launches.check_flags("a record of an event", flags, EXTERNAL)
    if DEVICE.capture is not None and DEVICE.capture.records(int(event), launches.handle_of(stream)):
        return
    _events[int(event)] = timed.now()
    DEVICE.order.record(DEVICE.order.event(int(event)), stream_of(stream))


def create_event(flags=0) -> int:
    """Return the handle of a new event. flags: of cudaEventCreateWithFlags."""
    launches.check_flags("an event", flags, EVENT_FLAGS)
    handle = next(_handles)
    if int(flags) & UNTIMED:
        _untimed.add(handle)
    return handle


def wait(stream, event, flags=0) -> None:
    """A stream waits for an event."""
    launches.check_flags("a wait for an event", flags, EXTERNAL)
    if DEVICE.capture is not None and DEVICE.capture.waits(int(event), launches.handle_of(stream)):
        return
    DEVICE.order.wait(stream_of(stream), DEVICE.order.event(int(event)))


def between(start, end) -> float:
    """Milliseconds between two events of the driver or the runtime. Raises WrongCall for one without a time."""
    if not {int(start), int(end)} <= _events.keys() - _untimed:
        what = "cudaEventElapsedTime of an event that was never recorded, or that has no time"
        raise launches.WrongCall(what, INVALID_HANDLE)
    return elapsed(*(_events.get(int(event)) for event in (start, end)))


def synchronize() -> None:
    """Wait for the current device. A launch that failed is reported where CUDA would: here, and at every later call."""
    refuse_wait("a wait for the device")
    DEVICE.order.synchronize_device(DEVICE.index)
    DEVICE.cover()
    DEVICE.synchronize()
    DEVICE.settle(DEVICE.index)


def synchronize_stream(stream) -> None:
    """Wait for a stream, or see that it is done. Raises WrongCall for one that is captured."""
    refuse_wait("a wait for it", launches.handle_of(stream))
    DEVICE.order.synchronize(stream_of(stream))
    DEVICE.cover()
    DEVICE.synchronize()
    DEVICE.settle(DEVICE.index, stream=True)


def synchronize_event(event) -> None:
    """Wait for an event, or see that it is done. Raises WrongCall for one that is captured."""
    refuse_wait_for_event(int(event), int(event) in _events)
    DEVICE.order.synchronize_event(DEVICE.order.event(int(event)))
    DEVICE.cover()
    DEVICE.synchronize()


def select(device) -> None:
    """Make a device the current one."""
    DEVICE.index = int(device)


# -- memory ------------------------------------------------------------------------------------------------------------


def allocate_bytes(size: int, stream: int | None = None, managed: bool = False) -> int:
    """Return where memory of the device begins. stream: in whose order it is there; managed: the host's, too."""
    if stream is not None and put_off(stream, nothing, ALLOCATE):
        return allocate_for_graph(size)
    if int(size) > DEVICE.chip.memory // 64 and int(size) > (left := memory_info()[0]):
        raise launches.WrongCall(f"an allocation of {int(size)} bytes, of which {left} are left", NO_MEMORY)
    array = own_memory(int(size), mmap.PAGESIZE if managed else ALIGNMENT)
    region = DEVICE.adopt(array, f"allocation {len(_allocations)}")
    _allocations[array.ctypes.data] = array
    region.fresh = not managed and DEVICE.node is None
    if managed:
        region.managed = DEVICE.order.shares = True
        guarded_pages.install()
    if stream is not None:
        with DEVICE.working(stream, "cudaMallocAsync") as work:
            DEVICE.touched(work, array.ctypes.data, array.nbytes, True)
            region.fresh, region.written = True, None  # it is there, and has nothing in it
        _ordered.add(array.ctypes.data)
    else:
        DEVICE.order.allocated(DEVICE.index)
    return array.ctypes.data


def own_memory(size: int, align: int) -> np.ndarray:
    """Return memory of this process. Raises WrongCall where it can have no more."""
    try:
        return allocate(size, align)
    except (OSError, MemoryError) as why:
        raise launches.WrongCall(f"an allocation of {size} bytes, which this machine does not have", NO_MEMORY) from why


def allocate_some(size: int) -> int:
    """cuMemAlloc, which makes no empty allocation."""
    if not int(size):
        raise launches.WrongCall("an allocation of 0 bytes")
    return allocate_bytes(size)


def allocate_for_graph(size: int) -> int:
    """Return where memory begins that nodes of a graph have: it stays, and who frees it frees nothing."""
    array = own_memory(int(size), ALIGNMENT)
    DEVICE.adopt(array, f"memory {len(_of_graphs)} of graphs")
    _of_graphs[array.ctypes.data] = array
    return array.ctypes.data


def free_bytes(address, stream: int | None = None, by: str = "cudaFree") -> None:
    """Give memory of the device back. stream: in whose order it goes; None: all that is under way ends first, unless a
    stream has allocated it (runtime API, cudaFree: no implicit synchronization then). by: the call that does."""
    if int(address) in _of_graphs:
        put_off(stream or 0, nothing, FREE)
        return
    if int(address) not in _allocations:
        raise launches.WrongCall(f"{by} of {int(address):#x}, which is no memory of cudaMalloc, or not any more")
    array = _allocations.pop(int(address))
    by += "Async" * (stream is not None)
    if int(address) in _ordered:
        _ordered.remove(int(address))
        stream = HOST_ALONE if stream is None else stream
    if stream is None:
        DEVICE.order.synchronize_device(DEVICE.index)
        DEVICE.cover()
    else:
        with DEVICE.working(stream, by, frees=True) as work:
            DEVICE.touched(work, array.ctypes.data, array.nbytes, True)
    if not DEVICE.keeps and DEVICE.heap is None:
        region = DEVICE.region_at(array.ctypes.data, 1)
        if region is not None:
            here = named(calling_place())
            DEVICE.freed(region, by + f" ({here})" * bool(here))
        _quarantine.append(array)
        while sum(one.nbytes for one in _quarantine) > QUARANTINE:
            _quarantine.popleft()


def allocate_pinned(size: int) -> int:
    array = own_memory(int(size), mmap.PAGESIZE)
    DEVICE.pin(array)
    guarded_pages.install()
    _pinned[array.ctypes.data] = array
    DEVICE.order.allocated(DEVICE.index)
    return array.ctypes.data


def free_pinned(address) -> None:
    if int(address) and int(address) not in _pinned:
        what = f"cudaFreeHost of {int(address):#x}, which is no memory of cudaMallocHost, or not any more"
        raise launches.WrongCall(what)
    DEVICE.order.synchronize_device(DEVICE.index)
    DEVICE.cover()
    _pinned.pop(int(address), None)


def memory_info() -> tuple[int, int]:
    """Return (free, all) bytes of the current device's memory."""
    return DEVICE.chip.memory - sum(region.size for region in DEVICE.memory.regions), DEVICE.chip.memory


def memory_at(address: int) -> tuple[str | None, int]:
    """Return whose memory an address is in, "host" (pinned), "device" or, if nobody allocated it, None; and which."""
    region = DEVICE.region_at(address, 1)
    if region is None:
        return None, 0
    if region.device == HOST:
        return "host", 0
    return "device", region.device


def copy(target, source, size, stream=0, waits: bool = True, what: str = "cudaMemcpy", of=(None, None)) -> None:
    """Copy bytes between any two of device memory and the host's. waits: the call is none of those that end in Async.

    of: whether the target and the source must be the device's, or the host's; None: either. Raises WrongCall if one is
    not, or goes past an allocation.

    The host waits as CUDA's page "API synchronization behavior" has it: for what it gets, or gives from pinned memory;
    what it gives from other memory has only left that when the call returns.
    """
    DEVICE.synchronize_all()
    to, at, size, stream = _address(target), _address(source), int(size), launches.handle_of(stream)
    if size:
        launches.check_memory("copy to", to, size, of[0])
        launches.check_memory("copy from", at, size, of[1])
    there, here = (DEVICE.region_at(address, 1) for address in (to, at))
    lives: list[Callable[[], str]] = []

    def again(handle: int) -> None:
        for gone in filter(None, (life() for life in lives)):
            message, where = f"{what} of a CUDA graph uses {gone}", named(DEVICE.order.noted or calling_place())
            DEVICE.fail(HostOrderFault("use-after-free", message, where, (where,)))
            return DEVICE.check()
        copy(to, at, size, handle, False, what)

    if put_off(stream, again, COPY, waits):
        lives += [_life(to, size, there), _life(at, size, here)]
        return
    if here is None and waits:
        synchronize_stream(stream)
    with DEVICE.working(stream, what) as work:
        ctypes.memmove(to, at, size)
        if there is None or there.device == HOST:
            decides = size <= SCALAR and DEVICE.session.launches > 0  # what copies alone move is no result
            DEVICE.host_reads(at, size, decides, work)
        DEVICE.touched(work, at, size, False)
        DEVICE.touched(work, to, size, True)
    shared = any(region is not None and region.of_host for region in (there, here))
    if there is None or waits and shared:
        synchronize_stream(stream)


def _life(address: int, size: int, region: Region | None) -> Callable[[], str]:
    """Return what says that memory is gone which a CUDA graph uses, and how; "" if it is not."""
    if region is not None:
        return lambda: f"{region.name}, which has been freed" * region.freed
    gone = COMPILED.watch(address, size)
    return lambda: "memory of the host that has been freed, or was of a function that has returned" * gone()


def _address(pointer) -> int:
    if hasattr(pointer, "ctypes"):
        return pointer.ctypes.data
    if isinstance(pointer, (bytes, bytearray, memoryview)):
        return np.frombuffer(pointer, np.uint8).ctypes.data
    return int(pointer)


def fill(target, dtype, value, count, stream=0, waits: bool = True, what: str = "cudaMemset") -> None:
    """Set this many elements of a NumPy type, from an address on, to a value. waits: as of `copy`."""
    DEVICE.synchronize_all()
    size = int(count) * np.dtype(dtype).itemsize
    if int(target) % np.dtype(dtype).itemsize:
        raise launches.WrongCall(f"{what} at {int(target):#x}, which is no multiple of its elements' size")
    if size:
        launches.check_memory(f"{what} of", int(target), size, True)
    work = lambda handle: fill(target, dtype, value, count, handle, False, what)  # noqa: E731
    if put_off(launches.handle_of(stream), work, FILL, waits):
        return
    raw = (ctypes.c_uint8 * size).from_address(int(target))
    with DEVICE.working(launches.handle_of(stream), what) as work:
        np.frombuffer(raw, dtype)[:] = value
        DEVICE.touched(work, int(target), size, True)
    region = DEVICE.region_at(int(target), 1)
    if waits and region is not None and region.of_host:
        synchronize_stream(stream)


def call_host(function: Callable[[], None], stream=0) -> None:
    """Let a function of the host run in a stream, when all before it has ended: what it touches is touched there.

    Whom it tells of that, by a flag, a condition variable or a thread that it starts, nobody sees: the host knows.
    """
    if put_off(launches.handle_of(stream), lambda handle: call_host(function, handle), HOST_CALL):
        return
    DEVICE.synchronize()
    with DEVICE.working(launches.handle_of(stream), "a function of the host") as work:
        with DEVICE.guard.recording(work) if DEVICE.guard is not None else contextlib.nullcontext():
            DEVICE.order.tell_host(work)
            function()


def max_active_clusters(config) -> int:
    """Return how many clusters run at once, a CTA an SM: on an H200 as Hopper drivers answer, on a B200 by its SMs."""
    size = 1
    for a in config.attrs:
        if a.id == type(a.id).CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            size = a.value.clusterDim.x * a.value.clusterDim.y * a.value.clusterDim.z
    return DEVICE.chip.active_clusters(size)


def _serve(module, ok, calls: dict, pattern: str) -> None:
    """Put `calls` into the module, `ok` in front of what they return; refuse all other functions by name."""
    for name in dir(module):
        if not re.fullmatch(pattern, name) or isinstance(getattr(module, name), type):
            continue
        if name in calls:
            setattr(module, name, _answer(ok, calls[name]))
        else:
            setattr(module, name, refusal(f"{module.__name__}.{name}"))


def _answer(ok, call):
    def answer(*args, **kwargs):
        value = call(*args, **kwargs)
        return (ok,) if value is None else (ok, *value) if isinstance(value, tuple) else (ok, value)

    return answer


def refusal(name: str):
    """Return a function that refuses what it is called with, by a name."""

    def refuse(*args, **kwargs):
        raise Unsupported(f"{name} on the emulated device")

    return refuse


def initialise(flags) -> None:
    """cuInit."""
    launches.check_flags("cuInit", flags, 0)
    contexts.initialised.append(True)


def device_of(number) -> int:
    """Return a device's number. Raises WrongCall if there is none of it."""
    if not 0 <= int(number) < len(DEVICE.memories):
        raise launches.WrongCall(f"device {int(number)} of {len(DEVICE.memories)}", INVALID_DEVICE)
    return int(number)


def context_of(*given) -> int:
    """cuCtxCreate, whose flags and device come last."""
    flags, device = given[-2:]
    launches.check_flags("a context", flags, CONTEXT_FLAGS)
    device_of(device)
    contexts.push()
    return contexts.CONTEXT


def nothing(*_) -> None:
    """What has no effect on the emulated device, such as a context."""


def common(prefix: str) -> dict:
    """Return what the driver ("cu") and the runtime ("cuda") have alike, by name."""
    return {prefix + name: call for name, call in {
        "DriverGetVersion": lambda: VERSION, "StreamDestroy": nothing, "StreamWaitEvent": wait,
        "StreamSynchronize": synchronize_stream, "StreamQuery": synchronize_stream,
        "EventRecord": record, "EventDestroy": nothing, "EventElapsedTime": between,
        "EventSynchronize": synchronize_event, "EventQuery": synchronize_event,
        "GetErrorName": lambda e: e.name.encode(), "GetErrorString": lambda e: e.name.encode(),
    }.items()}  # fmt: skip


def driver_calls(d) -> dict:
    """Return the functions of `cuda.bindings.driver` that are served, by name, without the CUresult."""
    memory: dict[str, Callable] = {}
    ends = {"MemcpyHtoD": (True, None), "MemcpyDtoH": (None, True), "MemcpyDtoD": (True, True), "Memcpy": (None, None)}
    for name, of in ends.items():
        memory[name] = functools.partial(copy, what=f"cu{name}", of=of)
        memory[f"{name}Async"] = functools.partial(copy, waits=False, what=f"cu{name}Async", of=of)
    for bits in (8, 16, 32):
        name, kind = f"MemsetD{bits}", f"u{bits // 8}"
        memory[name] = lambda p, v, n, kind=kind, name=name: fill(p, kind, v, n, what=f"cu{name}")
        memory[f"{name}Async"] = lambda p, v, n, s=0, kind=kind, name=name: (
            fill(p, kind, v, n, s, False, f"cu{name}Async")
        )
    return {
        "cuInit": initialise,
        "cuDeviceGetCount": lambda: len(DEVICE.memories),
        "cuDeviceGet": lambda n: d.CUdevice(device_of(n)),
        "cuDeviceGetName": lambda size, device: DEVICE.chip.name.encode()[:size],
        "cuDeviceGetAttribute": lambda a, device: attribute(a),
        "cuDeviceTotalMem": lambda device: DEVICE.chip.memory,
        "cuCtxGetCurrent": lambda: d.CUcontext(1),
        "cuCtxGetDevice": lambda: d.CUdevice(DEVICE.index),
        "cuDeviceCanAccessPeer": lambda device, peer: int(int(device) != int(peer)),
        "cuCtxCreate": lambda *given: d.CUcontext(context_of(*given)),
        "cuCtxSetCurrent": contexts.set_current, "cuCtxPushCurrent": contexts.push, "cuCtxDestroy": nothing,
        "cuCtxPopCurrent": lambda: d.CUcontext(1),
        "cuCtxSynchronize": synchronize,
        "cuDevicePrimaryCtxRetain": lambda device: d.CUcontext(1),
        "cuDevicePrimaryCtxRelease": nothing,
        "cuStreamCreate": lambda flags: d.CUstream(create_stream(flags)),
        "cuStreamCreateWithPriority": lambda flags, priority: d.CUstream(create_stream(flags)),
        "cuCtxGetStreamPriorityRange": lambda: (0, -5),  # as on every card since Ampere
        "cuEventCreate": lambda flags: d.CUevent(create_event(flags)),
        "cuMemAlloc": lambda n: d.CUdeviceptr(allocate_some(n)),
        "cuMemAllocAsync": lambda n, s: d.CUdeviceptr(allocate_bytes(n, launches.handle_of(s))),
        "cuMemGetInfo": memory_info,
        "cuMemAllocHost": allocate_pinned, "cuMemHostAlloc": lambda n, flags: allocate_pinned(n),
        "cuMemFreeHost": free_pinned,
        "cuMemFree": free_bytes, "cuMemFreeAsync": lambda p, s: free_bytes(p, launches.handle_of(s)),
        "cuOccupancyAvailableDynamicSMemPerBlock": cuda_modules.available_shared,
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": cuda_modules.resident,
        "cuOccupancyMaxActiveClusters": lambda f, config: max_active_clusters(config),
    } | {f"cu{name}": f for name, f in memory.items()} | {
        **common("cu"), **cuda_modules.driver_calls(d), **graph_calls.python_calls(d, "cu")
    }  # fmt: skip


def install() -> None:
    """Replace the functions of `cuda.bindings.driver` and `.runtime`, for this process."""
    from cuda.bindings import driver, runtime

    _serve(driver, driver.CUresult.CUDA_SUCCESS, driver_calls(driver), "cu[A-Z].*")

    r = runtime
    _serve(r, r.cudaError_t.cudaSuccess, {
        "cudaGetDeviceCount": lambda: len(DEVICE.memories),
        "cudaGetDevice": lambda: DEVICE.index,
        "cudaSetDevice": select,
        "cudaDeviceCanAccessPeer": lambda device, peer: int(device != peer),
        "cudaDeviceEnablePeerAccess": lambda peer, flags: DEVICE.enable_peer_access(peer),
        "cudaDeviceGetAttribute": lambda a, device: attribute(a),
        "cudaDeviceSynchronize": synchronize,
        "cudaRuntimeGetVersion": lambda: VERSION,
        "cudaStreamCreate": lambda: r.cudaStream_t(create_stream()),
        "cudaStreamCreateWithFlags": lambda flags: r.cudaStream_t(create_stream(flags)),
        "cudaEventCreate": lambda: r.cudaEvent_t(create_event()),
        "cudaEventCreateWithFlags": lambda flags: r.cudaEvent_t(create_event(flags)),
        "cudaMalloc": allocate_bytes, "cudaFree": free_bytes,
        "cudaMemcpy": lambda p, q, n, kind: copy(p, q, n),
        "cudaMemcpyAsync": lambda p, q, n, kind, s: copy(p, q, n, s, False, "cudaMemcpyAsync"),
        "cudaMemset": lambda p, v, n: fill(p, "u1", v, n),
        "cudaMemsetAsync": lambda p, v, n, s: fill(p, "u1", v, n, s, False, "cudaMemsetAsync"),
        "cudaGetLastError": nothing, "cudaPeekAtLastError": nothing, **common("cuda"),
    } | cuda_modules.runtime_calls(r) | graph_calls.python_calls(r, "cuda"), "cuda[A-Z].*")  # fmt: skip
    after_import("cuda.bindings.nvrtc", lambda: cuda_modules.install_nvrtc(sys.modules["cuda.bindings.nvrtc"]))
