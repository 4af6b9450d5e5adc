"""Tensors that torch.multiprocessing hands to another process: both have the same memory, as by CUDA IPC.

Its pages become those of a file, which a reader maps, too. They stay its owner's until that process ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from multiprocessing.queues import JoinableQueue, Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from ...arena import PAGE, map_at
from ...device import DEVICE
from ...errors import Unsupported
from .streams import Event

_file: list[int] = []  # this process's, once there is one: a byte of it has the address of that of memory
_edges: set[int] = set()  # pages in it that may hold a next storage, too, whose readers may be writing
_given: dict[int, torch.Tensor] = {}  # by address: what keeps the memory


def share(storage: torch.UntypedStorage, *_) -> tuple:
    """Return what torch's readers get of a storage, UntypedStorage._share_cuda_."""
    if DEVICE.heap is not None:
        raise Unsupported("a tensor for another process where device memory is an arena")
    device, at, size = storage.device.index, storage.data_ptr(), storage.nbytes()
    torch.cuda.synchronize(device)
    if not size:
        return device, None, 0, 0, b"", 0, b"", False
    if not _file:
        _file.append(os.memfd_create("emulated-gpu-shared"))
        os.truncate(_file[0], 1 << 47)  # of pages that nobody has written
    if at not in _given:
        pages = range(at // PAGE * PAGE, at + size, PAGE)
        first, end = pages[0] + (pages[0] in _edges) * PAGE, pages[-1] + (pages[-1] not in _edges) * PAGE
        if first < end:
            os.pwrite(_file[0], ctypes.string_at(first, end - first), first)
            map_at(first, end - first, _file[0], first)
        _edges.update((pages[0], pages[-1]))
        _given[at] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        torch.ops.emulated_gpu.done([], _given[at], "another process")  # which may write all of it
    return device, f"{os.getpid()} {_file[0]}".encode(), size, at, b"", 0, b"", False


def shared(cls, device: int, handle: bytes, size: int, offset: int, *_) -> torch.UntypedStorage:
    """Return the storage of such memory, UntypedStorage._new_shared_cuda."""
    process, file = map(int, handle.split())
    try:
        with open(f"/proc/{process}/fd/{file}", "r+b") as pages:
            memory = mmap.mmap(pages.fileno(), offset % PAGE + size, offset=offset // PAGE * PAGE)
    except OSError:
        raise RuntimeError(f"CUDA error: invalid argument: the tensor's process, {process}, has ended") from None
    array = np.frombuffer(memory, np.uint8, size, offset % PAGE)
    with DEVICE.on(device):
        DEVICE.adopt(array, f"memory of process {process}")
    return torch.ops.emulated_gpu.to_cuda(torch.from_numpy(array), device).untyped_storage()


def refuse_event(event: Event):
    raise Unsupported("an event that torch.multiprocessing hands to another process, on the emulated device")


class Pickled:
    """What is put into a queue, pickled by who puts it: he is refused, and nobody writes memory while it is shared."""

    def __init__(self, x: Any):
        self.bytes = bytes(ForkingPickler.dumps(x))

    def __reduce__(self) -> tuple:
        return ForkingPickler.loads, (self.bytes,)


def pickled_at_once(put):
    """Return multiprocessing.Queue.put, whose own thread pickles later."""
    return lambda queue, x, *given, **options: put(queue, Pickled(x), *given, **options)


def install() -> None:
    storage = torch.UntypedStorage
    for name, function in (
        ("_share_cuda_", share), ("_new_shared_cuda", classmethod(shared)),
        ("_release_ipc_counter", classmethod(lambda *_, **__: None)),
    ):  # fmt: skip
        setattr(storage, name, function)
    ForkingPickler.register(Event, refuse_event)
    for queue in Queue, JoinableQueue:
        setattr(queue, "put", pickled_at_once(queue.put))  # noqa: B010
