"""The parameters of a launch, and which of their bytes its kernel has looked at."""

from __future__ import annotations

from ..errors import Fault


class Parameters:
    """Holds the bytes of a launch's parameters. `read` has the (offset, bytes) of whatever was read of them."""

    def __init__(self, data: bytes):
        self.data = data
        self.read: set[tuple[int, int]] = set()

    def load(self, offset: int, size: int) -> int:
        """Reads a little-endian number. Raises Fault where there is none."""
        if offset % size or offset + size > len(self.data):
            raise Fault("out-of-bounds", f"ld.param of {size} bytes at {offset} of {len(self.data)}")
        return int.from_bytes(self.take(offset, size), "little")

    def take(self, offset: int, size: int) -> bytes:
        """Reads bytes, as many as there are."""
        self.read.add((offset, size))
        return self.data[offset : offset + size]
