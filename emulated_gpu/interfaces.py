"""What the device asks of others: of torch's allocator, and of whoever watches over memory of the host."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from .state.global_memory import Region
from .state.host_order import Access, Work


class Allocator(Protocol):
    """Gives memory of the devices to somebody else's tensors, and knows each thread's current device."""

    library: Any  # what does it, see serve/torch_device/library.py
    regions: dict[int, Region]  # by address
    recorded: list[int]  # operators that the capture under way has recorded, by their numbers
    captures: int  # the number of the last capture
    speaks_of_waits: int  # whether the host's waits warn (1), or are an error (2)

    def current(self) -> int: ...

    def choose(self, device: int) -> None: ...

    def tell(self, keep: bool) -> None:
        """Register what has been allocated since the last time, and forget what has been freed. keep: from now on,
        what is freed stays what it is."""

    def has_written(self, region: Region) -> bool:
        """Whether others than launches and copies may have written to a region."""

    def spoil(self, region: Region) -> None:
        """A launch has made some of a region of what nobody had written: ask anew who writes there from now on."""

    def register(self, address: int, size: int) -> None:
        """Memory that the host has allocated is pinned from now on; size 0: no more."""

    def capture(self, on: bool) -> None:
        """Record operators for a CUDA graph from now on, or no more."""

    def count(self, devices: int) -> None:
        """There are this many devices now."""

    def watch(self, devices: int | None = None) -> None:
        """Let every operator ask what it has to wait for, where it may have to."""

    def works(self, told: bool = False) -> None:
        """Learn what operators have read and written since the last time, each in its stream. told: one of them, of
        this thread, has not returned."""

    def forget_works(self) -> None:
        """Forget it."""


class Guard(Protocol):
    """Keeps watch over memory of the host that work under way may touch, while the host's own code runs."""

    def lift(self) -> None:
        """Let everybody touch all."""

    def cover(self, accesses: list[Access]) -> None:
        """Learn of it from now on when the host's code touches this."""

    def recording(self, work: Work) -> contextlib.AbstractContextManager[None]:
        """In the block, a function of the host runs in a stream, and adds what it touches to its work."""
