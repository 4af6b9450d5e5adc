"""Scratch memory of calls: an arena for each order of launches, which run one after the other and so can share it.

An arena has one buffer, from which every call takes what it needs from the start on, and which grows when a call needs
more; and what one launch leaves as the next one must find it, as flags that are 0, at places of their own.

Calls on one stream share an arena for good, and threads that launch there take turns, by its lock. What is captured
into a CUDA graph has an arena of that capture, allocated and filled inside of it: from the graph's own memory pool, as
any temporary of torch's. The next capture on the stream gives it back to that pool, where graphs that were captured
with the same pool find it, and those, says torch, do not run at once. So may run at once: calls on different streams,
and graphs of different pools. Inductor's CUDA graph trees refuse what stays in their pool: there a call has an arena.
"""

import math
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch

from ragged_moe.runtime.device import Device, device_of

ALIGNMENT = 256  # bytes, of each part in a buffer


class Part(NamedTuple):
    """A tensor in scratch memory. fill: what its int32 are before the first launch; every launch leaves it so."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    fill: int | None = None
    kept: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in a buffer."""
        return -(-math.prod(self.shape) * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT


def offsets(parts: Sequence[Part]) -> list[int]:
    """Where in a buffer each part begins, and where the last one ends."""
    found = [0]
    for part in parts:
        found.append(found[-1] + part.nbytes)
    return found


class Taken(NamedTuple):
    """Parts of an arena."""

    tensors: tuple[torch.Tensor, ...]
    addresses: tuple[int, ...]


class Arena:
    """Scratch memory of the launches of one order.

    lock: whoever takes parts holds it until the last launch that uses them, so that no other thread's launch comes
    between, and no other call makes the buffer a new one. stream, capture: what Device.order says of the launches.
    """

    def __init__(self, device: torch.device, stream: int = 0, capture: int = 0):
        self.torch_device, self.device, self.stream, self.capture = device, device_of(device), stream, capture
        self.lock = threading.RLock()
        self.buffer: torch.Tensor | None = None
        self.kept: dict[str, torch.Tensor] = {}
        self.taken: dict[Hashable, Taken] = {}
        self.tapes: dict[Hashable, object] = {}  # launches with these places, by kinds of calls (repeated_calls.py)

    def forget(self) -> None:
        """Forget what is where."""
        self.taken.clear()
        self.tapes.clear()

    def take(self, key: Hashable, parts: Callable[[], Sequence[Part]]) -> Taken:
        """Parts, at the same places for the same key until the arena grows. parts: which, asked once for a key."""
        found = self.taken.get(key)
        if found is None:
            tensors = self.make(parts())
            found = self.taken[key] = Taken(tensors, tuple(tensor.data_ptr() for tensor in tensors))
        return found

    def make(self, parts: Sequence[Part]) -> tuple[torch.Tensor, ...]:
        """Their tensors."""
        if self.device.apart:
            return self.device.tensors(*(self.allocate(part) for part in parts))
        shared = [part for part in parts if not part.kept]
        starts = offsets(shared)
        if starts[-1] and (self.buffer is None or self.buffer.numel() < starts[-1]):
            self.forget()
            self.buffer = None  # what has been launched comes first on the stream: its memory may be had again at once
            self.buffer = torch.empty(starts[-1], dtype=torch.uint8, device=self.torch_device)
        start = dict(zip(shared, starts))
        return tuple(self.kept_part(part) if part.kept else self.view(part, start[part]) for part in parts)

    def view(self, part: Part, start: int) -> torch.Tensor:
        """The part's tensor in the buffer."""
        size = math.prod(part.shape) * part.dtype.itemsize
        return self.buffer[start : start + size].view(part.dtype).view(part.shape)

    def kept_part(self, part: Part) -> torch.Tensor:
        """The tensor of a part of this name that has a place of its own, as large as any call has needed."""
        if part.name not in self.kept or self.kept[part.name].numel() < math.prod(part.shape):
            self.forget()
            self.kept.pop(part.name, None)
            self.kept[part.name] = self.allocate(part)
        return self.kept[part.name]

    def allocate(self, part: Part) -> torch.Tensor:
        """A tensor of the part's own, filled."""
        tensor = torch.empty(part.shape, dtype=part.dtype, device=self.torch_device)
        return tensor if part.fill is None else tensor.fill_(part.fill)


arenas: dict[Hashable, Arena] = {}
making = threading.Lock()


def arena_of(torch_device: torch.device, device: Device) -> Arena:
    """The arena of the next launch on this GPU: of torch's current stream there, or of what is captured on it."""
    stream, capture = device.order()
    key = device, stream, capture != 0
    found = arenas.get(key)
    if found is None or found.capture != capture:
        if device.is_of_trees(stream):
            return Arena(torch_device, stream, capture)  # whose memory the call gives back, as torch's temporary is
        with making:
            found = arenas.get(key)
            if found is None or found.capture != capture:
                arenas.pop(key, None)
                found = None  # the one of an earlier capture: its memory goes back to its pool before more is taken
                found = arenas[key] = Arena(torch_device, stream, capture)
    return found
