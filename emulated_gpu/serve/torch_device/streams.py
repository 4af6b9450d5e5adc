"""Streams, events and CUDA graphs of torch: everything on a device runs in the order it is called, under any stream."""

from __future__ import annotations

import torch

from ...device import DEVICE
from ..driver import cuda_bindings, timed


def index_of(device) -> int:
    """Return the number of a device that a script names by a number, a string or a torch.device; None: the current."""
    if device is None:
        return DEVICE.index
    if isinstance(device, int):
        return device if device >= 0 else DEVICE.index
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return DEVICE.index if device.index is None else device.index


def _after(device: int, other: int) -> None:
    """What a device does next is to come after what another one has been given to do."""
    if device != other:
        DEVICE.synchronize(other, host=False)
        DEVICE.node.follow(device, other)


class Stream(torch.Stream):
    """torch.cuda.Stream, and ExternalStream."""

    cuda_stream = 0
    priority = 0

    def __new__(cls, device=None, priority=0, **known):
        if "stream_id" in known:
            return super().__new__(cls, **known)
        return super().__new__(cls, device=torch.device("cuda", index_of(device)), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def synchronize(self) -> None:
        DEVICE.synchronize(self.device_index)

    def query(self) -> bool:
        if DEVICE.node is not None:
            DEVICE.synchronize(self.device_index)
        return True

    def wait_stream(self, stream) -> None:
        _after(self.device_index, stream.device_index)

    def wait_event(self, event) -> None:
        _after(self.device_index, event.device_index)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self):
        self.before = torch.cuda.current_stream()
        torch.cuda.set_stream(self)
        return self

    def __exit__(self, *_):
        torch.cuda.set_stream(self.before)

    def __cuda_stream__(self):
        return 0, 0

    def __repr__(self):
        return f"<torch.cuda.Stream device={self.device} cuda_stream=0x0>"


class ExternalStream(Stream):
    """The stream of a handle that somebody else has made."""

    def __new__(cls, stream_ptr, device=None, **_):
        index = index_of(device)
        kind = torch._C._autograd.DeviceType.CUDA.value
        return torch.Stream.__new__(cls, stream_id=0, device_index=index, device_type=kind)


class Event(torch.Event):
    """Recorded and complete at once; `elapsed_time` is modelled or nan, see cuda_bindings.elapsed."""

    cuda_event = 0
    event_id = 0
    launches: int | None = None  # so many there were
    device_index = 0

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
        return super().__new__(cls, device="cuda", enable_timing=enable_timing)

    def record(self, stream=None) -> None:
        self.launches = timed.now()
        self.device_index = DEVICE.index if stream is None else stream.device_index

    def wait(self, stream=None) -> None:
        _after(DEVICE.index if stream is None else stream.device_index, self.device_index)

    def query(self) -> bool:
        if DEVICE.node is not None:
            DEVICE.synchronize(self.device_index)
        return True

    def synchronize(self) -> None:
        DEVICE.synchronize(self.device_index)

    def elapsed_time(self, end_event) -> float:
        return cuda_bindings.elapsed(self.launches, end_event.launches)

    def __repr__(self):
        return "<torch.cuda.Event>"


class CUDAGraph:
    """Kernel launches to repeat. torch's own operations are not collected: inside a capture they are refused."""

    def __init__(self, keep_graph=False):
        self.launches: list[tuple[tuple, dict]] | None = None

    def capture_begin(self, pool=None, capture_error_mode="global"):
        if DEVICE.capture is not None:
            raise RuntimeError("a CUDA graph is being captured already")
        DEVICE.capture = []
        DEVICE.allocator.watch()

    def capture_end(self):
        self.launches, DEVICE.capture = DEVICE.capture, None
        DEVICE.allocator.watch()

    def replay(self):
        for args, options in self.launches:
            DEVICE.launch(*args, **options)

    def reset(self):
        self.launches = None


class graph:  # the name that torch gives it
    """with torch.cuda.graph(g): captures what is launched."""

    def __init__(self, cuda_graph: CUDAGraph, pool=None, stream=None, capture_error_mode="global"):
        self.cuda_graph = cuda_graph

    def __enter__(self):
        self.cuda_graph.capture_begin()

    def __exit__(self, *_):
        self.cuda_graph.capture_end()
