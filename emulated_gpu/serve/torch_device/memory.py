"""Memory of torch's tensors, as the emulated device knows it; and what an operator may have to wait for.

C++ allocates (memory.cpp) and never calls Python for it: what has come and gone is fetched before somebody looks.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
import warnings
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import torch

from ...device import DEVICE
from ...errors import HostOrderFault, Unsupported, WrongCall
from ...state.global_memory import HOST, WORD, Region
from ...state.host_order import Access, Stream, calling_place, named
from ..driver import cuda_bindings, graphs
from ..host import guarded_pages
from .library import BEFORE, SPOILT, TOLD, UNDEFINED, Event, Operand, Work, load


def repeat(number: int, stream: int) -> None:
    """Carry out an operator of a CUDA graph again; that its memory is gone is a finding."""
    try:
        torch.ops.emulated_gpu.replay(number, stream)
    except RuntimeError as error:
        kind, _, message = str(error).partition(": ")
        if kind != "use-after-free":
            raise
        DEVICE.fail(HostOrderFault(kind, message.splitlines()[0], named(calling_place()), (message,)))
    DEVICE.tensors.works()


class TorchMemory:
    """The device's Allocator: memory of torch's tensors."""

    def __init__(self):
        self.library = load()
        self.regions: dict[int, Region] = {}
        self.keeping = False
        self.recorded: list[int] = []  # operators of the capture under way, by C++'s numbers
        self.captures = self.captured_on = 0  # number and device of the last capture
        self.speaks_of_waits = 0  # torch.cuda.set_sync_debug_mode: 1 warns, 2 is an error
        self.dtypes: dict[int, torch.dtype] = {}
        self.born: dict[int, int] = {}  # by address of a region, how many operators had run when it was allocated

    def current(self) -> int:
        return self.library.emulated_current()

    def choose(self, device: int) -> None:
        self.library.emulated_set(device)

    def capture(self, on: bool) -> None:
        if on:
            self.works()
            self.recorded.clear()
            self.captured_on = DEVICE.index
        self.captures = self.library.emulated_capture(self.captured_on, on)  # memory is a replay's, too

    def count(self, devices: int) -> None:
        self.library.emulated_devices(devices)
        self.watch(devices)

    def watch(self, devices: int | None = None) -> None:
        """Let every operator ask what it has to wait for, where it may have to: of several devices. Memory ends where
        the machine's does."""
        devices = devices or len(DEVICE.memories)
        self.library.emulated_attentive(devices > 1)
        for device in range(devices):
            self.library.emulated_limit(device, DEVICE.chip.memory)
        self.library.emulated_room(DEVICE.chip.sms, DEVICE.chip.threads_per_sm)

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
            elif event.bytes == GRAPH_KEEPS:
                if DEVICE.capture is not None and (region := self.regions.get(event.at)) is not None:
                    self.reuses(DEVICE.order.given_back, region, event)
            elif new.pop(event.at, None) is None and (region := self.regions.pop(event.at, None)) is not None:
                if not event.recorded:
                    self.reuses(DEVICE.order.given_back, region, event)
                DEVICE.freed(region, "torch, since its last tensor was gone,")
        for at, event in new.items():
            self.regions[at] = region = DEVICE.given(at, event.bytes, self.name(event), event.device)
            self.born[at] = event.born
            region.fresh = event.device >= 0 and DEVICE.node is None
            if event.device == HOST:
                guarded_pages.install()
            else:
                self.reuses(DEVICE.order.taken, region, event)

    def reuses(self, step: Callable[[Region, Stream], None], region: Region, event: Event) -> None:
        """Let the order know that memory is given back or taken, for a stream: now, or in every replay."""
        capture, device, stream = DEVICE.capture, max(event.device, 0), DEVICE.order.stream
        if capture is not None and capture.streams and event.queue in capture.streams:
            if len(capture.streams) > 1:
                capture.note("memory", lambda queue: step(region, stream(device, queue)), event.queue)
        elif DEVICE.order.several:
            step(region, stream(device, event.queue))

    def works(self, told: bool = False) -> None:
        """Learn what operators have read and written since the last time, each in its stream. told: one of them, of
        this thread, has not returned."""
        DEVICE.refresh()
        number = self.library.emulated_works_waiting()
        if not number:
            return
        works = (Work * number)()
        for work in works[: self.library.emulated_works(works, number)]:
            self.work(work, told)
        DEVICE.cover()

    def work(self, work: Work, told: bool) -> None:
        if work.partly:
            for operand in work.operands[: work.count]:
                if operand.writes:
                    self.wrote(operand, work.number)
        if not DEVICE.orders and DEVICE.node is None:
            return
        name, accesses = work.name.decode(), list[Access]()
        for operand in work.operands[: work.count]:
            first, end, runs = extent(operand)
            region = DEVICE.region_at(first, end - first)
            if region is not None:
                touched = [(first, end)] if runs is None else runs
                DEVICE.peers_touch(region, work.device, touched, bool(operand.writes), name)
                if self.born.get(region.start, 0) < work.number:
                    accesses.append(Access(first, end, bool(operand.writes), region, runs, region.device == HOST))
        if not DEVICE.orders:
            return
        order = DEVICE.order
        stream = order.stream(work.device, work.queue)
        of_now = told and work.thread == threading.get_ident()
        done = order.begin(stream, name, of_now=of_now)
        done.accesses += accesses
        found = order.end(done)
        if work.waits:
            order.synchronize(stream)
        if of_now:
            order.threads.returns(done)
        if found is not None:
            DEVICE.fail(found)

    def wrote(self, operand: Operand, number: int) -> None:
        """An operator, the number-th, has written some of a region."""
        first, end, runs = extent(operand)
        region = DEVICE.region_at(first, end - first)
        if region is not None and region.fresh and self.born.get(region.start, 0) < number:
            for low, high in [(first, end)] if runs is None else runs.tolist():
                region.note_written(low, high)

    def forget_works(self) -> None:
        """Nobody need know what operators did until now, the host has waited for all; but for what they have written of
        regions that are written in part."""
        self.library.emulated_works(None, 1 << 20)

    def has_written(self, region: Region) -> bool:
        self.works()
        return region.start in self.regions and bool(self.library.emulated_written(region.start))

    def spoil(self, region: Region) -> None:
        if region.start in self.regions:
            self.library.emulated_spoil(region.start)

    def register(self, address: int, size: int) -> None:
        self.library.emulated_register(address, size)

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


def words_unwritten(at: int, size: int) -> tuple[Region, np.ndarray] | None:
    """Return the region that holds bytes from `at` on, and which of its words nobody has written, bool; None if all
    are written, or nobody looks."""
    region = DEVICE.region_at(at, size) if DEVICE.orders and DEVICE.unwritten.known else None
    if region is None or not DEVICE.unwritten.never_written(region):
        return None
    words = region.missing()
    return (region, words) if words.any() else None


@UNDEFINED
def undefined(at: int, size: int, copy: int) -> int:
    """`Undefined` of undefined.cpp."""
    try:
        found = words_unwritten(at, size)
        if found is None:
            return -1
        region, words = found
        marks = np.repeat(words, WORD)[at - region.origin :][:size]
        if copy:
            view = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(copy))
            view[marks] ^= 0xFF
        return int(marks.sum()) // WORD or int(marks.any())
    except BaseException as error:  # must not cross into C++
        DEVICE.caught(error, "what is before an operator")
        return -1


@SPOILT
def spoilt(at: int, size: int, marks: int, name: bytes) -> None:
    """`Spoilt` of undefined.cpp."""
    try:
        DEVICE.tensors.works()
        region = DEVICE.region_at(at, size)
        if region is None:
            return
        by_byte = np.zeros(region.words * WORD, np.uint8)
        first = at - region.origin
        by_byte[first : first + size] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(marks))
        by_word = by_byte.reshape(-1, WORD).max(axis=1)
        if region.fresh:
            region.note_written(region.start, region.end, by_word == DEFINED)
        region.spoil(by_word == UNDEFINED_MARK, f"{name.decode()} has made of what nothing had written")
        DEVICE.tensors.spoil(region)
    except BaseException as error:  # must not cross into C++
        DEVICE.caught(error, "what is behind an operator")


DEFINED, UNDEFINED_MARK = 1, 2  # `Mark` of undefined.cpp
MANY = 1 << 12  # rows that are told apart


def extent(operand: Operand) -> tuple[int, int, np.ndarray | None]:
    """Return where an operand's elements lie: [first, end), and which of those bytes; None: all."""
    sizes, strides = operand.sizes[: operand.dimensions], operand.strides[: operand.dimensions]
    dims = sorted((stride, size) for size, stride in zip(sizes, strides) if size > 1)
    width, item = 1, operand.item  # elements side by side
    while dims and 0 <= dims[0][0] <= width:
        stride, size = dims.pop(0)
        width = max(width, stride * (size - 1) + width)
    last = width + sum(stride * (size - 1) for stride, size in dims)
    first, end = operand.at, operand.at + last * item
    rows = math.prod(size for _, size in dims)
    if rows == 1 or rows > MANY or any(stride < 0 for stride, _ in dims):
        return first, end, None
    starts = np.zeros(1, np.int64)
    for stride, size in dims:
        starts = (starts[:, None] + np.arange(size) * stride).ravel()
    starts = np.sort(starts)
    return first, end, operand.at + np.stack([starts, starts + width], 1) * item


@TOLD
def told(what: int, a: int, b: int) -> int:
    """An operator begins, with memory of the host that devices may access, or is done; C++ uses an event, one of the
    driver's. Returns, if it is asked, whether a stream is captured, whether a wait is refused, or a time's bits."""
    try:
        if what == BEGINS:
            if DEVICE.guard is not None:
                DEVICE.guard.lift()
            return 0
        capture = DEVICE.capture
        if what == IS_CAPTURED:
            return capture is not None and capture.takes(b)
        if what == CAPTURED:
            if capture is None:
                raise Unsupported("operators of another thread than the one that captures a CUDA graph")
            DEVICE.refresh()
            DEVICE.tensors.recorded.append(a)
            capture.note("do", functools.partial(repeat, a), graphs.KERNEL, b)
            return 0
        if what == ELAPSED:
            return int(np.float32(cuda_bindings.between(a, b)).view(np.int32))
        DEVICE.tensors.works(told=what == DONE)
        if what == RECORDS:
            cuda_bindings.record(a, b)
        elif what == AWAITS:
            cuda_bindings.wait(b, a)
        elif what == HOST_AWAITS:
            cuda_bindings.synchronize_event(a)
    except WrongCall:
        return NO_TIME
    except BaseException as error:  # must not cross into C++
        DEVICE.caught(error, "what is behind an operator")
    return 0


BEGINS, DONE, RECORDS, AWAITS, HOST_AWAITS, CAPTURED, IS_CAPTURED, ELAPSED = range(8)
NO_TIME = 0x7FC00000  # nan in float32
GRAPH_KEEPS = -2  # bytes of an Event

_why = ctypes.create_string_buffer(b"")


@BEFORE
def before(devices: int, reads: int, name: bytes, gets) -> int:
    """Wait for the launches on devices (a bit each) before an operator works on them. reads: the host gets data; gets:
    a pointer to the elements, if they are known.

    Returns where a sentence is that says why the operator cannot be carried out; 0 where it can.
    """
    global _why
    try:
        await_(devices, bool(reads), name.decode())
        if gets:
            first, end, runs = extent(gets[0])
            DEVICE.host_reads(first, end - first, name == b"aten::_local_scalar_dense", runs=runs)
        return 0
    except BaseException as error:  # of another rank, too; an exception must not cross into C++
        if not isinstance(error, Exception):
            DEVICE.caught(error, "an operator")
        _why = ctypes.create_string_buffer(str(error).encode() or type(error).__name__.encode())
        return ctypes.addressof(_why)


def is_capturing() -> bool:
    """Return whether what the current stream is given is noted for a CUDA graph."""
    return DEVICE.capture is not None and DEVICE.capture.has(torch.cuda.current_stream().stream_id)


def refuse_in_a_capture(name: str) -> NoReturn:
    """Refuse to let the host wait, by which a capture fails."""
    if DEVICE.capture is not None:
        DEVICE.capture.failed = True
    raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {name}")


def index_of(device) -> int:
    """Return the number of a device that a script names by a number, a string or a torch.device; None: the current."""
    if device is None:
        return DEVICE.index
    if not isinstance(device, int):
        device = torch.device(device)
        if device.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        device = -1 if device.index is None else device.index
    if device >= (devices := len(DEVICE.memories)):
        raise RuntimeError(f"CUDA error: invalid device ordinal: device {device} of {devices}")
    return device if device >= 0 else DEVICE.index


def synchronize(device: int) -> None:
    """The host waits for a device."""
    if DEVICE.capture is not None:
        refuse_in_a_capture("synchronize")
    if DEVICE.order.watches:
        DEVICE.tensors.works()
        DEVICE.order.synchronize_device(device)
        DEVICE.cover()
    else:
        DEVICE.tensors.forget_works()
        DEVICE.order.synchronize_device(device)
    DEVICE.synchronize(device)
    DEVICE.settle(device)


def await_(devices: int, reads: bool, name: str) -> None:
    if reads and is_capturing():
        refuse_in_a_capture(name.removeprefix("aten::"))
    if reads and DEVICE.tensors.speaks_of_waits and name != "synchronize":
        if DEVICE.tensors.speaks_of_waits > 1:
            raise RuntimeError("called a synchronizing CUDA operation")
        warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
    if reads:  # the host's memory can be read after a failure
        if name == "synchronize":
            synchronize(devices.bit_length() - 1)
        DEVICE.check()
    if DEVICE.node is not None:
        there = [device for device in range(len(DEVICE.memories)) if devices >> device & 1]
        for device in there:
            DEVICE.synchronize(device, host=reads)
        if len(there) > 1:
            DEVICE.node.meet(there)
