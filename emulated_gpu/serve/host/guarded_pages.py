"""Pinned and managed memory while work is under way in it: pages that the host's own code cannot touch unseen.

What works of streams write, nobody may read or write; what they read, nobody may write. Who does so all the same gets a
signal, which is answered here: it is noted, and the pages are given free.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import platform
import signal
import threading

import numpy as np

from ...device import DEVICE
from ...state.global_memory import Region
from ...state.host_order import Access, Work, calling_place, runs_of

PAGE = mmap.PAGESIZE
NONE, READ, ALL = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
INFO, AGAIN = 4, 0x40000000  # SA_SIGINFO, SA_NODEFER
MANY = 64  # ranges of one access that are guarded apart
FAULT_ADDRESS = 16  # offset in siginfo_t
# Offset in ucontext_t of the error's number, of which a bit says that it was a write
ERROR, WRITE = (192, 2) if platform.machine() == "x86_64" else (None, 0)
INSTRUCTION = 168  # offset there of its address, on the same machine

HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Action(ctypes.Structure):
    """struct sigaction of glibc."""

    _fields_ = [
        ("handler", ctypes.c_void_p), ("mask", ctypes.c_uint64 * 16), ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]  # fmt: skip


def pages_of(region: Region, first: int, end: int) -> tuple[int, int]:
    """Return where the pages of some bytes of a region begin and end, without those in which others' memory lies."""
    begin, end = first // PAGE * PAGE, -(-end // PAGE) * PAGE
    if not region.pages:
        begin, end = max(begin, -(-region.start // PAGE) * PAGE), min(end, region.end // PAGE * PAGE)
    return begin, end


class Pages:
    """The device's Guard. ranges: [begin, end) of whole pages, and how they are protected now."""

    def __init__(self):
        self.ranges: list[tuple[int, int, int]] = []
        self.recorded: Work | None = None  # of a function of the host that is running
        self.thread = 0  # in which it runs
        self.seen: dict[int, bytes | None] = {}  # pages that it has touched, and what was there before it wrote
        self.libc = ctypes.CDLL(None)
        self.libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self.before = Action()
        self.handler = HANDLER(self.touched)
        action = Action(ctypes.cast(self.handler, ctypes.c_void_p).value)
        action.flags = INFO | AGAIN
        self.libc.sigaction(signal.SIGSEGV, ctypes.byref(action), ctypes.byref(self.before))

    def lift(self) -> None:
        for begin, end, _ in self.ranges:
            self.libc.mprotect(begin, end - begin, ALL)
        self.ranges = []

    def cover(self, accesses: list[Access]) -> None:
        wanted = []
        for access in accesses:
            runs = [(access.first, access.end)] if access.runs is None else access.runs.tolist()
            for first, end in runs if len(runs) <= MANY else [(access.first, access.end)]:
                begin, end = pages_of(access.region, first, end)
                if begin < end:
                    wanted.append((begin, end, NONE if access.writes else READ))
        wanted.sort(key=lambda one: -one[2])  # where both lie, nobody may touch anything
        if wanted != self.ranges:
            self.lift()
            for begin, end, how in wanted:
                self.libc.mprotect(begin, end - begin, how)
            self.ranges = wanted

    @contextlib.contextmanager
    def recording(self, work: Work):
        """In the block, add to a work what a function of the host touches: the first byte that it reads of a page, and
        all that it changes."""
        self.lift()
        self.recorded, self.seen, self.thread = work, {}, threading.get_native_id()
        shared = [region for region in DEVICE.memory.regions if region.of_host]
        for region in shared:
            begin, end = pages_of(region, region.start, region.end)
            if begin < end:
                self.libc.mprotect(begin, end - begin, NONE)
                self.ranges.append((begin, end, NONE))
        try:
            yield
        finally:
            self.recorded = None
            self.lift()
            for begin, before in self.seen.items():
                for region in shared:
                    first, end = max(begin, region.start), min(begin + PAGE, region.end)
                    if before is not None and first < end:
                        now = np.frombuffer(ctypes.string_at(first, end - first), np.uint8)
                        changed = now != np.frombuffer(before, np.uint8)[first - begin : end - begin]
                        runs = runs_of(changed, first, 1, first, end)
                        if runs is not None:
                            ends = int(runs[0, 0]), int(runs[-1, 1])
                            work.accesses.append(Access(*ends, True, region, runs, True))

    def record(self, work: Work, address: int, writes: bool) -> None:
        """A function of the host touches a byte of a page that it might not touch so until now."""
        begin = address // PAGE * PAGE
        region = DEVICE.memory.region_of(address)
        if region is not None:
            work.accesses.append(Access(address, address + 1, writes, region, None, True))
        self.libc.mprotect(begin, PAGE, ALL if writes else READ)
        if writes or begin not in self.seen:
            self.seen[begin] = ctypes.string_at(begin, PAGE) if writes else None

    def touched(self, number: int, info: int, context: int) -> None:
        """A signal: somebody has touched a page that is protected, by us or by others."""
        address = ctypes.c_uint64.from_address(info + FAULT_ADDRESS).value
        if self.recorded is not None and any(begin <= address < end for begin, end, _ in self.ranges):
            if threading.get_native_id() != self.thread:  # which need not be the function's doing
                self.libc.mprotect(address // PAGE * PAGE, PAGE, ALL)
                return
            writes = address // PAGE * PAGE in self.seen  # it may be read already
            if ERROR is not None:
                writes = bool(ctypes.c_uint64.from_address(context + ERROR).value & WRITE)
            self.record(self.recorded, address, writes)
            return
        how = min((how for begin, end, how in self.ranges if begin <= address < end), default=None)
        if how is None:
            region = DEVICE.memory.region_of(address)
            if region is not None and region.of_host:
                return  # another thread has lifted what was protected a moment ago
            # it is another one's, who gets the signal again
            self.libc.sigaction(signal.SIGSEGV, ctypes.byref(self.before), None)
            return
        writes = how == READ
        if not writes and ERROR is not None:
            writes = bool(ctypes.c_uint64.from_address(context + ERROR).value & WRITE)
        where = calling_place()
        if not isinstance(where, str) and ERROR is not None:  # there the call is under way, in others it has been made
            where = tuple(one + (one == ctypes.c_uint64.from_address(context + INSTRUCTION).value) for one in where)
        before = len(DEVICE.session.errors)
        DEVICE.host_touches(address, writes, where)
        if len(DEVICE.session.errors) > before:
            self.lift()
            return
        begin = address // PAGE * PAGE
        self.libc.mprotect(begin, PAGE, ALL)


@functools.cache
def install() -> None:
    """Guard memory that the host shares with devices, from now on. It cannot be undone."""
    DEVICE.guard = Pages()
