"""Device memory that two processes share at the same addresses: a judge's, which runs launches, and a submission's.

As on a GPU, the process that launches kernels is not where they run: `device.DEVICE.elsewhere` takes its launches, and
its tensors lie in an arena that whoever runs them has mapped, too.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterator

import numpy as np

# Far from where Linux puts libraries, stacks and heaps; and no word like `stages | bytes << 32`, whose upper half is a
# multiple of 16, is an address in the first 60 GiB: one that lies in a tensor is taken to point there
BASE = 0x2A51_0000_0000
PAGE = mmap.PAGESIZE
CHUNK = 2**24  # bytes that are copied at once
# linux/mman.h, linux/fcntl.h, linux/falloc.h
MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE = 0x10, 0x100000, 0x4000
F_ADD_SEALS, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 1, 2, 4
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def map_at(address: int, size: int, fd: int, of: int, how: int = MAP_FIXED) -> None:
    """Let `size` bytes at an address be those of a file from `of` on, for all processes that map them."""
    flags = mmap.MAP_SHARED | MAP_NORESERVE | how
    if _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, of) != address:
        raise MemoryError(f"{size} bytes at {address:#x}: {os.strerror(ctypes.get_errno())}")


class Arena:
    """`size` bytes at BASE. Pages that nobody touches cost nothing; what is never written is zero."""

    def __init__(self, fd: int, size: int):
        self.fd, self.size, self.end = fd, size, BASE + size
        map_at(BASE, size, fd, 0, MAP_FIXED_NOREPLACE)

    @classmethod
    def create(cls, size: int) -> Arena:
        return cls(_memory(size), size)

    def renew(self) -> None:
        """Move what it holds into memory that no other process has mapped, or can map."""
        old, parts = self.fd, list(self.data(BASE, self.size))
        self.fd = _memory(self.size)
        for first, end in parts:
            for at in range(first - BASE, end - BASE, CHUNK):
                os.pwrite(self.fd, os.pread(old, min(CHUNK, end - BASE - at), at), at)
        map_at(BASE, self.size, self.fd, 0)
        os.close(old)

    def view(self, address: int, size: int) -> np.ndarray:
        """uint8 [size], live. Raises ValueError for what does not lie inside."""
        if not (BASE <= address and 0 <= size and address + size <= self.end):
            raise ValueError(f"{size} bytes at {address:#x} are not device memory")
        return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)

    def data(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield (first address, the one after the last) of what holds data in a range: reading the rest would fill
        it."""
        at, end = address - BASE, address - BASE + size
        while at < end:
            try:
                at = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError:  # only holes up to the end of the file
                return
            stop = min(end, os.lseek(self.fd, at, os.SEEK_HOLE))
            if at < stop:
                yield BASE + at, BASE + stop
            at = stop

    def clear(self, address: int, size: int) -> None:
        """Make a range zeros again, which cost no memory. Both numbers are multiples of PAGE."""
        if size and _libc.fallocate(self.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, address - BASE, size) < 0:
            raise OSError(ctypes.get_errno(), "fallocate")


def _memory(size: int) -> int:
    """Return a file descriptor of so much memory, whose size nobody can change."""
    fd = os.memfd_create("device memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW)
    return fd


class Heap:
    """Allocations in a part of an arena: whole pages with one that stays free behind each."""

    def __init__(self, arena: Arena, start: int, end: int):
        self.arena, self.next, self.end = arena, start, end
        self.free: dict[int, list[int]] = {}  # pages -> addresses
        self.reuse = True  # else what is given back stays as it is: launches that have not run yet may read it

    def take(self, size: int) -> np.ndarray:
        """uint8 [size] of zeros at the start of a page. Raises MemoryError."""
        length = (size + 2 * PAGE - 1) // PAGE * PAGE
        if self.free.get(length):
            return self.arena.view(self.free[length].pop(), size)
        if self.next + length > self.end:
            raise MemoryError(f"out of device memory: no {size} bytes left")
        address, self.next = self.next, self.next + length
        return self.arena.view(address, size)

    def give(self, address: int, size: int) -> None:
        """Free what `take` returned."""
        if self.reuse:
            length = (size + 2 * PAGE - 1) // PAGE * PAGE
            self.arena.clear(address, length)
            self.free.setdefault(length, []).append(address)
