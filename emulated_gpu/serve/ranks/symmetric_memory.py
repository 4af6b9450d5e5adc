"""torch's symmetric memory between ranks of this process: https://docs.pytorch.org/docs/stable/symmetric_memory.html

A buffer is memory of its rank's device that kernels of all devices may access. torch's own module stays; what it
calls is replaced. There is no multicast, and no `torch.ops.symm_mem`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed._symmetric_memory as symm
from torch.distributed import distributed_c10d as c10d

from ...device import DEVICE, allocate
from ...errors import Unsupported
from ..torch_device.memory import index_of

SIGNAL_PAD_BYTES = 2048


@dataclass
class Buffer:
    """One rank's memory: bytes of the buffer, those of its signal pad, the device."""

    bytes: np.ndarray
    pad: np.ndarray
    device: int


_buffers: dict[int, Buffer] = {}  # by address
_handles: dict[tuple[int, str], SymmetricMemory] = {}


def _tensor(array: np.ndarray, dtype: torch.dtype, sizes, offset: int, what: str) -> torch.Tensor:
    """Elements of memory from one on, as a tensor of the current device."""
    count = math.prod(sizes)
    if (offset + count) * dtype.itemsize > array.nbytes:
        there = f"{array.nbytes} bytes, less than {offset + count} elements of {dtype}"
        raise RuntimeError(f"{what}: the memory has {there}")
    whole = torch.from_numpy(array)[: array.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
    return torch.ops.emulated_gpu.to_cuda(whole[offset : offset + count].view(sizes), DEVICE.index)


class SymmetricMemory:
    """The buffers that all ranks of a group have brought to a rendezvous: torch's _SymmetricMemory."""

    signal_pad_size = SIGNAL_PAD_BYTES

    def __init__(self, buffers: list[Buffer], rank: int, ranks: tuple[int, ...], offset: int):
        self._buffers, self.rank, self.world_size, self._ranks, self.offset = buffers, rank, len(ranks), ranks, offset
        self.buffer_ptrs = [buffer.bytes.ctypes.data for buffer in buffers]
        self.signal_pad_ptrs = [buffer.pad.ctypes.data for buffer in buffers]
        self.buffer_size = buffers[rank].bytes.nbytes
        self.signal_pad_size = buffers[rank].pad.nbytes
        self.device = torch.device("cuda", buffers[rank].device)
        self.multicast_ptr = 0
        self._tables = [self._table(pointers) for pointers in (self.buffer_ptrs, self.signal_pad_ptrs)]
        self.buffer_ptrs_dev, self.signal_pad_ptrs_dev = (table.ctypes.data for table in self._tables)

    @staticmethod
    def _table(pointers: list[int]) -> np.ndarray:
        """Addresses in memory of the device, as kernels take them."""
        table = allocate(8 * len(pointers))
        table.view(np.uint64)[:] = pointers
        DEVICE.adopt(table, "pointers of symmetric memory")
        return table

    # -- static ones, which torch's module calls ---------------------------------------------------------------
    @staticmethod
    def empty_strided_p2p(size, stride, dtype, device, group_name=None, alloc_id=None) -> torch.Tensor:
        if alloc_id is not None:
            raise Unsupported("symmetric memory with an alloc_id on the emulated device")
        if torch.device(device).type != "cuda":
            raise RuntimeError(f"symmetric memory on {device}: it is of a CUDA device")
        index = index_of(device)
        extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if math.prod(size) else 0
        arrays = {"symmetric memory": extent * dtype.itemsize, "signal pad": SymmetricMemory.signal_pad_size}
        with DEVICE.on(index):
            made = []
            for name, nbytes in arrays.items():
                made.append(allocate(max(nbytes, 1)))
                DEVICE.adopt(made[-1], f"{name} {tuple(size)} {dtype}" if not made[1:] else name)
                DEVICE.share(made[-1])
            DEVICE.tensors.library.emulated_watch(True)  # be told of every operator
            _buffers[made[0].ctypes.data] = Buffer(*made, index)
            return _tensor(made[0], dtype, (extent,), 0, "empty").as_strided(size, stride)

    @staticmethod
    def rendezvous(tensor: torch.Tensor, group_name: str | None = None) -> SymmetricMemory:
        base = tensor.untyped_storage().data_ptr()
        if base not in _buffers:
            raise RuntimeError("rendezvous: the tensor is not of torch.distributed._symmetric_memory.empty")
        group = c10d._get_default_group() if group_name is None else c10d._resolve_process_group(group_name)
        found = _handles.get((base, group.group_name))
        if found is None:
            ranks = group._ranks
            _, hosts = DEVICE.together()
            buffers = hosts.exchange(ranks, "rendezvous of symmetric memory", _buffers[base])
            sizes = sorted({buffer.bytes.nbytes for buffer in buffers})
            if len(sizes) > 1:
                raise RuntimeError(f"rendezvous: ranks bring {' and '.join(map(str, sizes))} bytes, which are to agree")
            offset = tensor.data_ptr() - base
            found = _handles[base, group.group_name] = SymmetricMemory(buffers, group.rank(), ranks, offset)
        return found

    @staticmethod
    def has_multicast_support(device_type, device_index) -> bool:
        return False

    @staticmethod
    def is_symm_mem_tensor(tensor: torch.Tensor) -> bool:
        return tensor.is_cuda and tensor.untyped_storage().data_ptr() in _buffers

    @staticmethod
    def set_group_info(group_name, rank, world_size, store) -> None:
        """All groups have it."""

    @staticmethod
    def set_backend(name: str) -> None:
        if name != "CUDA":
            raise Unsupported(f"symmetric memory by {name} on the emulated device: it has CUDA's")

    @staticmethod
    def get_backend(device) -> str:
        return "CUDA"

    # -- of a handle -------------------------------------------------------------------------------------------
    def get_buffer(self, rank: int, sizes, dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        return _tensor(self._buffers[rank].bytes, dtype, tuple(sizes), storage_offset, f"get_buffer({rank})")

    def get_remote_tensor(self, peer: int, sizes, dtype: torch.dtype) -> torch.Tensor:
        return self.get_buffer(peer, sizes, dtype, self.offset // dtype.itemsize)

    def get_signal_pad(self, rank: int, sizes=(), dtype: torch.dtype | None = None, storage_offset: int = 0):
        dtype = dtype or torch.uint32
        sizes = tuple(sizes) or (self.signal_pad_size // dtype.itemsize - storage_offset,)
        return _tensor(self._buffers[rank].pad, dtype, sizes, storage_offset, f"get_signal_pad({rank})")

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """What any rank's device does behind it comes after what all did before."""
        (node, hosts), device = DEVICE.together(), self.device.index
        _outside_of_capture("barrier")
        DEVICE.synchronize(device, host=False)
        what = f"barrier of symmetric memory, channel {channel}"
        for clocks in hosts.exchange(self._ranks, what, node.clocks_of(device)):
            node.learn(device, clocks)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Set this rank's word in a pad when that is zero."""
        _outside_of_capture("put_signal")
        node, hosts = DEVICE.together()
        buffer, word = self._buffers[dst_rank], self.world_size * channel + self.rank
        pad = buffer.pad.view(np.uint32)
        DEVICE.synchronize(self.device.index, host=False)
        hosts.wait(lambda: not pad[word], f"its signal to rank {self._ranks[dst_rank]} to be taken")
        pad[word] = 1
        _signals[pad.ctypes.data, word] = node.clocks_of(self.device.index)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Clear a rank's word in this rank's pad when that is set."""
        _outside_of_capture("wait_signal")
        node, hosts = DEVICE.together()
        pad, word = self._buffers[self.rank].pad.view(np.uint32), self.world_size * channel + src_rank
        DEVICE.synchronize(self.device.index, host=False)
        hosts.wait(lambda: bool(pad[word]), f"a signal of rank {self._ranks[src_rank]}")
        pad[word] = 0
        node.learn(self.device.index, _signals.pop((pad.ctypes.data, word), {}))


_signals: dict[tuple[int, int], dict] = {}  # by pad and word: what the device that set it had done


def _outside_of_capture(what: str) -> None:
    if DEVICE.capture is not None:
        raise Unsupported(f"{what} of symmetric memory inside the capture of a CUDA graph")


def install() -> None:
    """Make torch's module serve the emulated devices."""
    symm._SymmetricMemory = SymmetricMemory
    symm._should_use_implicit_mempool = lambda: False
