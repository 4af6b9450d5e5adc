"""Streams, events and CUDA graphs of torch: everything on a device runs in the order it is called, under any stream.

Who has waited for what is known all the same: see state/host_order.py.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref

import numpy as np
import torch

from ...device import DEVICE
from ...errors import Unsupported, WrongCall
from ...state import host_order
from ...state.global_memory import Region
from ...state.host_order import Access
from ..driver import cuda_bindings, graphs, timed
from . import allocations
from .memory import index_of


def _after(device: int, other: int) -> None:
    """What a device does next is to come after what another one has been given to do."""
    if device != other:
        DEVICE.synchronize(other, host=False)
        DEVICE.node.follow(device, other)


def _order():
    """Return the order of the host's work, which knows of all operators until now."""
    DEVICE.tensors.works()
    return DEVICE.order


def _of(stream) -> host_order.Stream:
    """Return what is known of a stream, by default of the current one."""
    stream = stream or torch.cuda.current_stream()
    return _order().stream(stream.device_index, stream.stream_id)


def _permitted(check, *arguments) -> None:
    """Let a check refuse what a capture does not bear, as torch does."""
    try:
        check(*arguments)
    except WrongCall as error:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {error}") from None


PRIORITIES = 0, -3  # from the least to the greatest that torch gives: c10/cuda/CUDAStream.h
_priorities: dict[int, int] = {}  # by number of a stream, where it is not 0


class Stream(torch.Stream):
    """torch.cuda.Stream, and ExternalStream. Its handle is its number."""

    def __new__(cls, device=None, priority=0, **known):
        if "stream_id" in known:
            return super().__new__(cls, **known)
        made = super().__new__(cls, device=torch.device("cuda", index_of(device)), priority=priority)
        if priority < 0:
            _priorities[made.stream_id] = max(priority, PRIORITIES[1])
        return made

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    @property
    def priority(self) -> int:
        return _priorities.get(self.stream_id, 0)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return PRIORITIES

    def synchronize(self) -> None:
        _permitted(graphs.refuse_wait, "a wait for it", self.stream_id)
        _order().synchronize(_of(self))
        DEVICE.cover()
        DEVICE.synchronize(self.device_index)
        DEVICE.settle(self.device_index, stream=True)

    def query(self) -> bool:
        self.synchronize()
        return True

    def wait_stream(self, stream) -> None:
        if DEVICE.capture is not None:
            return self.wait_event(stream.record_event())
        _order().follow(_of(self), _of(stream))
        _after(self.device_index, stream.device_index)

    def wait_event(self, event) -> None:
        event.wait(self)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def __cuda_stream__(self):
        return 0, self.stream_id

    def __repr__(self):
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"


class ExternalStream(Stream):
    """The stream of a handle that somebody else has made."""

    def __new__(cls, stream_ptr, device=None, **_):
        index = index_of(device)
        kind = torch._C._autograd.DeviceType.CUDA.value
        return torch.Stream.__new__(cls, stream_id=int(stream_ptr), device_index=index, device_type=kind)


class Event(torch.Event):
    """Recorded and complete at once; `elapsed_time` is modelled or nan, see cuda_bindings.elapsed."""

    cuda_event = 0
    event_id = 0
    launches: int | None = None  # this many there were
    device_index = 0
    recorded = timing = False
    known: host_order.Event | None = None  # once it has been used

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
        made = super().__new__(cls, device="cuda", enable_timing=enable_timing)
        made.timing = enable_timing
        return made

    def _known(self) -> host_order.Event:
        if self.known is None:
            self.known = DEVICE.order.new_event()
        return self.known

    def record(self, stream=None) -> None:
        self.launches, self.recorded = timed.now(), True
        self.device_index = DEVICE.index if stream is None else stream.device_index
        stream = stream or torch.cuda.current_stream()
        if DEVICE.capture is not None and DEVICE.capture.records(self, stream.stream_id):
            return
        _order().record(self._known(), _of(stream))

    def wait(self, stream=None) -> None:
        stream = stream or torch.cuda.current_stream()
        if DEVICE.capture is not None and DEVICE.capture.waits(self, stream.stream_id):
            return
        _order().wait(_of(stream), self._known())
        _after(stream.device_index, self.device_index)

    def query(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        _permitted(graphs.refuse_wait_for_event, self, self.recorded)
        _order().synchronize_event(self._known())
        DEVICE.cover()
        DEVICE.synchronize(self.device_index)

    def elapsed_time(self, end_event) -> float:
        if not (self.timing and end_event.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self.recorded and end_event.recorded):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return cuda_bindings.elapsed(self.launches, end_event.launches)

    def __repr__(self):
        return "<torch.cuda.Event>"


MODES = "global", "thread_local", "relaxed"  # CUstreamCaptureMode's numbers
_shared = itertools.count(1 << 60, 1 << 40)  # addresses of what nobody accesses
_graphs: dict[tuple[int, int], weakref.WeakSet[CUDAGraph]] = {}  # by their pools


class CUDAGraph:
    """Kernel launches and torch's operators to repeat, by what waits for what.

    Here each capture has memory of its own. Of two that have one pool, the later one may get what the other one has
    given back (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs): `shared` stands for that memory, so
    that replays at once are found.
    """

    work: graphs.Replays | None = None
    operators: tuple[int, ...] = ()  # their numbers, of what C++ has recorded

    def __init__(self, keep_graph=False):
        self.keeps = keep_graph
        self.number = torch._C._graph_pool_handle()
        self.shared: list[Region] = []

    def capture_begin(self, pool=None, capture_error_mode="global", check_input_liveness=False):
        """Note what the current stream is given, and those that wait for it. Replays always look whether their inputs
        live."""
        stream = torch.cuda.current_stream()
        if not stream.stream_id:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
                "on the default stream.)"
            )
        if self.work is not None:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph.")
        self.number = pool or self.number
        self.origin = stream.stream_id
        graphs.begin_capture(self.origin, MODES.index(capture_error_mode))
        allocations.enter(self.number, DEVICE.tensors.captures)

    def capture_end(self):
        self.operators = tuple(DEVICE.tensors.recorded)
        try:
            self.work = graphs.end(self.origin).captured
        except WrongCall as error:
            raise RuntimeError(f"CUDA error: {error}") from None
        if allocations.of_capture(DEVICE.tensors.captures, live=False):
            there = _graphs.setdefault(self.number, weakref.WeakSet())
            for other in there - {self}:
                both = Region(next(_shared), 1, "the pool of two CUDA graphs", np.zeros(0, np.uint8))
                self.shared.append(both)
                other.shared.append(both)
            there.add(self)

    def instantiate(self) -> None:
        """Make what replays, which is there already."""
        self._captured("instantiate")
        if not self.keeps:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")

    def register_generator_state(self, generator) -> None:
        """Let replays draw from a generator, as they do from each."""

    def raw_cuda_graph(self):
        raise Unsupported("raw_cuda_graph and debug_dump of torch.cuda.CUDAGraph on the emulated device")

    raw_cuda_graph_exec = enable_debug_mode = raw_cuda_graph

    def _captured(self, call: str) -> graphs.Replays:
        if self.work is None:
            raise RuntimeError(f"Called CUDAGraph::{call} without a preceding successful capture.")
        return self.work

    def pool(self) -> tuple[int, int]:
        self._captured("pool")
        return self.number

    def replay(self):
        """Do all again, on the current stream."""
        work = self._captured("replay")
        _order()
        if self.shared:
            with DEVICE.working(torch.cuda.current_stream().stream_id, "replay of a CUDA graph") as done:
                done.accesses += [Access(region.start, region.end, True, region) for region in self.shared]
        work.replay(torch.cuda.current_stream().stream_id)

    def reset(self):
        torch.ops.emulated_gpu.forget_recorded(self.operators)
        self.work, self.operators = None, ()

    def __del__(self):
        self.reset()
