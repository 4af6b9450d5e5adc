"""Memory of torch's tensors, as the emulated device knows it; and what an operator may have to wait for.

C++ allocates (memory.cpp) and never calls Python for it: what has come and gone is fetched before somebody looks.
"""

from __future__ import annotations

import ctypes

import torch

from ...device import DEVICE
from ...errors import Unsupported
from ...state.global_memory import HOST, Region
from .library import BEFORE, Count, Event, load


class TorchMemory:
    """The device's Allocator: memory of torch's tensors."""

    def __init__(self):
        self.library = load()
        self.regions: dict[int, Region] = {}
        self.keeping = False
        self.dtypes: dict[int, torch.dtype] = {}

    def current(self) -> int:
        return self.library.emulated_current()

    def choose(self, device: int) -> None:
        self.library.emulated_set(device)

    def count(self, devices: int) -> None:
        self.library.emulated_devices(devices)
        self.watch(devices)

    def watch(self, devices: int | None = None) -> None:
        """Let every operator ask what it has to wait for, where it may have to: of several devices, or in a capture."""
        several = (devices or len(DEVICE.memories)) > 1
        self.library.emulated_attentive(several or DEVICE.capture is not None)

    def lie_in(self, begin: int, end: int) -> None:
        """Allocate in [begin, end) from now on, which other processes map, too."""
        self.library.emulated_arena(begin, end)

    def tell(self, keep: bool) -> None:
        if keep is not self.keeping:
            self.keeping = keep
            self.library.emulated_keep(keep)
        number = self.library.emulated_waiting()
        if not number:
            return
        events = (Event * number)()
        new: dict[int, Event] = {}  # what has come and is gone already was never seen by a launch
        for event in events[: self.library.emulated_fetch(events, number)]:
            if event.bytes >= 0:
                new[event.at] = event
            elif new.pop(event.at, None) is None and (region := self.regions.pop(event.at, None)) is not None:
                DEVICE.freed(region, "torch, since its last tensor was gone,")
        for at, event in new.items():
            self.regions[at] = DEVICE.given(at, event.bytes, self.name(event), event.device)

    def name(self, event: Event) -> str:
        """Say what an allocation was made for."""
        if event.device == HOST:
            return "pinned memory of the host"
        if event.dtype < 0:
            return f"memory of {event.bytes} bytes"
        if not self.dtypes:
            all_ = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
            self.dtypes.update((torch.ops.emulated_gpu.number_of(dtype), dtype) for dtype in all_)
        return f"tensor {tuple(event.sizes[: event.dimensions])} {self.dtypes[event.dtype]}"

    def counts(self, device: int, blocks: bool) -> Count:
        """Return how many bytes, or allocations, a device has, has had at most, and has had in all."""
        return self.library.emulated_counts(device, blocks).contents


_why = ctypes.create_string_buffer(b"")


@BEFORE
def before(devices: int, reads: int, name: bytes) -> int:
    """Wait for the launches on devices (a bit each) before an operator works on them. reads: the host gets data.

    Returns where a sentence is that says why the operator cannot be carried out; 0 where it can.
    """
    global _why
    try:
        await_(devices, bool(reads), name.decode())
        return 0
    except BaseException as error:  # of another rank, too; an exception must not cross into C++
        _why = ctypes.create_string_buffer(str(error).encode() or type(error).__name__.encode())
        return ctypes.addressof(_why)


def await_(devices: int, reads: bool, name: str) -> None:
    if DEVICE.capture is not None:
        raise Unsupported(f"{name.removeprefix('aten::')} inside the capture of a CUDA graph on the emulated device")
    if reads:  # the host's memory can be read after a failure
        DEVICE.check()
    if DEVICE.node is not None:
        there = [device for device in range(len(DEVICE.memories)) if devices >> device & 1]
        for device in there:
            DEVICE.synchronize(device, host=reads)
        if len(there) > 1:
            DEVICE.node.meet(there)
