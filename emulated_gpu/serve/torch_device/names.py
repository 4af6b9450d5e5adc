"""The names of torch that a build without CUDA lacks, or answers for a GPU: what `torch._C` and `torch.cuda` have.

Python of torch's own stays where it is, and calls these. What is not here is refused by its name.
"""

from __future__ import annotations

import types

import torch

from ...device import DEVICE
from ...errors import Unsupported
from ..driver import c_calls, launches
from ..driver.cuda_bindings import refusal
from . import allocations, other_processes, parallel
from .library import load
from .memory import index_of, is_capturing, synchronize
from .streams import CUDAGraph, Event, ExternalStream, Stream

VERSION = "13.0"
CUDA = 1  # c10::DeviceType


class Missing(Unsupported, AttributeError):
    """A name of torch's CUDA that is not served: for `hasattr`, as if it were not there."""


def missing(name: str):
    """Answer for names that `torch._C` does not have."""
    if name.startswith(("_cuda", "_Cuda", "_CUDA", "_nccl", "_cudnn")):
        raise Missing(f"torch._C.{name} on the emulated device")
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


class Properties(types.SimpleNamespace):
    """torch._C._CudaDeviceProperties."""

    __hash__ = object.__hash__


def properties(device: int) -> Properties:
    chip = DEVICE.chip
    return Properties(
        name=chip.name, major=chip.capability[0], minor=chip.capability[1], multi_processor_count=chip.sms,
        warp_size=32, total_memory=chip.memory, L2_cache_size=chip.l2, regs_per_multiprocessor=chip.registers_per_sm,
        max_threads_per_multi_processor=chip.threads_per_sm, max_threads_per_block=chip.threads_per_cta,
        shared_memory_per_block=chip.shared_by_default, shared_memory_per_block_optin=chip.shared_per_cta,
        shared_memory_per_multiprocessor=chip.shared_per_sm, is_integrated=chip.integrated, is_multi_gpu_board=False,
        clock_rate=chip.clock_khz, memory_clock_rate=chip.memory_clock_khz, memory_bus_width=chip.memory_bus_bits,
        gcnArchName="", uuid=f"GPU-{device:08x}-0000-0000-0000-000000000000", pci_bus_id=device, pci_device_id=0,
        pci_domain_id=0,
    )  # fmt: skip


def memory_info(device=None) -> tuple[int, int]:
    used = allocations.counts(device, False).now
    return DEVICE.chip.memory - used, DEVICE.chip.memory


def choose(device: int) -> None:
    DEVICE.index = device


def exchange(device: int) -> int:
    was = DEVICE.index
    if device >= 0:
        DEVICE.index = device
    return was


def current_stream(device: int) -> tuple[int, int, int]:
    """Return (id, device, type of device) of a device's current stream."""
    stream = torch._C._accelerator_getStream(index_of(device))
    return stream.stream_id, stream.device_index, CUDA


def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    choose(device_index)
    torch.accelerator.set_stream(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


CONSTANT = {  # functions of `torch._C` without operands, by what they return
    "_cuda_isInBadFork": False, "_cuda_isHistoryEnabled": False, "_cuda_tunableop_is_enabled": False,
    "_cuda_cudaCachingAllocator_is_enabled": True, "_accelerator_isAllocatorInitialized": True,
    "_cuda_getCompiledVersion": 13000, "_cuda_getAllocatorBackend": "native",
} | dict.fromkeys((
    "_cuda_init", "_cuda_ipc_collect", "_cuda_lock_mutex", "_cuda_unlock_mutex", "_cuda_emptyCache", "_host_emptyCache",
    "_accelerator_emptyCache", "_accelerator_emptyHostCache",
))  # fmt: skip


def constant(value):
    """Return a function of its own that returns a value."""
    return lambda: value


def bindings() -> dict:
    """Return names of `torch._C`. Each is a function of Python of its own: compilers keep handlers for each."""
    return {name: constant(value) for name, value in CONSTANT.items()} | {
        "_cuda_getDevice": lambda: DEVICE.index,
        "_cuda_setDevice": choose,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": lambda device: exchange(device),
        "_cuda_getDeviceCount": lambda: len(DEVICE.memories),
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_getCurrentStream": current_stream,
        "_cuda_getDefaultStream": lambda device: (0, index_of(device), CUDA),
        "_cuda_getStreamFromExternal": lambda pointer, device: (pointer, index_of(device), CUDA),
        "_cuda_setStream": set_stream,
        "_cuda_getCurrentRawStream": lambda device: load().emulated_current_queue(device),
        "_cuda_isCurrentStreamCapturing": is_capturing,
        "_cuda_synchronize": lambda: synchronize(DEVICE.index),
        "_cuda_getArchFlags": lambda: DEVICE.chip.arch.rstrip("a"),
        "_cuda_hasPrimaryContext": lambda device: True,
        "_cuda_set_sync_debug_mode": lambda mode: setattr(DEVICE.tensors, "speaks_of_waits", int(mode)),
        "_cuda_get_sync_debug_mode": lambda: DEVICE.tensors.speaks_of_waits,
        "_cuda_sleep": lambda cycles: None,
        "_CudaDeviceProperties": Properties,
        "_cuda_CUDAAllocator_AllocatorState": type("AllocatorState", (), {}),  # which Inductor imports in any case
        "_accelerator_getDeviceStats": allocations.memory_stats,
        "_accelerator_resetPeakStats": allocations.reset_peak,
        "_accelerator_resetAccumulatedStats": allocations.reset_accumulated,
        "_accelerator_getMemoryInfo": memory_info,
        "_has_cuda": True,
        "_has_cudnn": False,
        "_has_magma": False,
        **allocations.names(),
        **parallel.names(),
    }


def error_of(function, *arguments) -> int:
    """Call a function of the driver; return its error, 0 for none."""
    try:
        function(*arguments)
    except launches.WrongCall as error:
        return error.status
    return 0


class Runtime:
    """torch.cuda.cudart()."""

    cudaMemGetInfo = staticmethod(memory_info)  # noqa: N815
    cudaProfilerStart = cudaProfilerStop = staticmethod(lambda: 0)  # noqa: N815
    cudaError = types.SimpleNamespace(success=0)  # noqa: N815

    @staticmethod
    def cudaHostRegister(address: int, size: int, flags: int = 0) -> int:  # noqa: N802
        return error_of(c_calls.register, address, size, flags)

    @staticmethod
    def cudaHostUnregister(address: int) -> int:  # noqa: N802
        return error_of(c_calls.unregister, address)

    def __getattr__(self, name: str):
        raise Missing(f"torch.cuda.cudart().{name} on the emulated device")


class OfOldName(type):
    """The kind of torch.cuda.FloatTensor and such names."""

    dtype: torch.dtype

    def __instancecheck__(cls, x) -> bool:
        return isinstance(x, torch.Tensor) and x.is_cuda and x.dtype == cls.dtype

    def __call__(cls, *given, device="cuda"):
        if len(given) == 1 and not isinstance(given[0], int):
            return torch.tensor(given[0], dtype=cls.dtype, device=device)
        return torch.empty(given, dtype=cls.dtype, device=device)


def old_names() -> dict:
    """Return torch.cuda.FloatTensor and its like."""
    of = {
        "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
        "Bool": torch.bool,
    }  # fmt: skip
    kinds = {f"{name}Tensor": dtype for name, dtype in of.items()}  # Tensor.type looks for their whole names
    return {name: OfOldName(f"torch.cuda.{name}", (), {"dtype": dtype}) for name, dtype in kinds.items()}


class Ranges:
    """NVTX: nobody looks at ranges, which are counted as they nest."""

    def __init__(self):
        self.depth = 0

    def rangePushA(self, message) -> int:  # noqa: N802
        self.depth += 1
        return self.depth - 1

    def rangePop(self) -> int:  # noqa: N802
        self.depth -= 1
        return self.depth

    rangeStartA = rangeEnd = markA = staticmethod(lambda _: 0)  # noqa: N815


def of_cuda() -> dict:
    """Return names of `torch.cuda`."""
    devices = range(len(DEVICE.memories))
    return {
        "_initialized": True,
        "_get_device_properties": properties,
        "_CudaDeviceProperties": Properties,
        "_exchange_device": torch._C._cuda_exchangeDevice,
        "_maybe_exchange_device": torch._C._cuda_maybeExchangeDevice,
        "is_available": lambda: True,
        "device_count": lambda: len(DEVICE.memories),
        "cudart": Runtime,
        "default_generators": tuple(torch.ops.emulated_gpu.default_generator(index) for index in devices),
        "is_current_stream_capturing": is_capturing,
        "MemPool": allocations.MemPool, "_cudart": Runtime(), "_graph_pool_handle": torch._C._graph_pool_handle,
        **old_names(),
        "Stream": Stream, "ExternalStream": ExternalStream, "Event": Event, "CUDAGraph": CUDAGraph,
    }  # fmt: skip


def storage_of(new):
    """Return torch.UntypedStorage.__new__ for storages on the device, too, which torch.load makes."""

    def make(cls, *args, **kwargs):
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda" or not args or not isinstance(args[0], int):
            return new(cls, *args, **kwargs)
        return torch.empty(args[0], dtype=torch.uint8, device=device).untyped_storage()

    return make


def resized(resize):
    """Return torch.UntypedStorage.resize_ for storages on the device, too, whose memory FSDP gives back."""

    def change(storage, size: int):
        if storage.device.type != "cuda":
            return resize(storage, size)
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        torch.ops.emulated_gpu.resize_storage(whole, size)
        return storage

    return change


def with_default_kind(choose_kind):
    """Return torch.set_default_tensor_type for the device's kinds, too, of what has no dtype and no device."""

    def choose(kind) -> None:
        on_device = isinstance(kind, OfOldName) or str(kind).startswith("torch.cuda.")
        there = getattr(torch.cuda, str(kind).rpartition(".")[2], kind)
        torch.set_default_device("cuda" if on_device else None)
        torch.set_default_dtype(there.dtype) if on_device else choose_kind(kind)

    return choose


def install() -> None:
    """Put the names in place. A build with CUDA has all of them: what is not served is refused there, too."""
    served = bindings()
    for name, value in [*vars(torch._C).items()]:
        if name.startswith("_cuda_") and callable(value) and not isinstance(value, type) and name not in served:
            setattr(torch._C, name, refusal(f"torch._C.{name}"))
    for name, value in served.items():
        setattr(torch._C, name, value)
    torch._C.__dict__["__getattr__"] = missing
    given = of_cuda()
    for module in (torch.cuda, torch.cuda.streams, torch.cuda.graphs, torch.cuda.memory):
        for name, value in given.items():
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, value)
    for name in allocations.names():  # which torch.cuda.memory has by name
        if name in vars(torch.cuda.memory):
            setattr(torch.cuda.memory, name, served[name])
    other_processes.install()
    torch.cuda.nvtx._nvtx = Ranges()
    torch.set_default_tensor_type = with_default_kind(torch.set_default_tensor_type)
    torch.UntypedStorage.__new__ = storage_of(torch.UntypedStorage.__new__)
    setattr(torch.UntypedStorage, "resize_", resized(torch.UntypedStorage.resize_))  # noqa: B010
    torch.version.cuda = VERSION
