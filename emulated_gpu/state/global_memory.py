"""Global memory: the ranges of host memory that a kernel may touch, and nothing else.

Device addresses are host addresses, so the pointers that host code passes need no translation. Every access looks up
the registered `Region` it falls into; whatever lies outside is a fault that names the nearest region.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ..errors import Fault, ResultsDecide
from .lanes import WORD

# Windows of the generic address space (PTX ISA 5.1): far above any host address.
SHARED_WINDOW = 1 << 60
LOCAL_WINDOW = 2 << 60
PARAM_WINDOW = 3 << 60
WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "const": 0, "global": 0}
HOST = -1  # the device of memory of the host that kernels may access
WORKSPACE = 512  # bytes for the barrier of a grid
HEAP, HEAP_ALIGN = 8 << 20, 16  # bytes: cudaLimitMallocHeapSize by default, and what malloc's addresses are aligned to
KEPT = 1024  # regions that have been freed, for reports
FAR = 1 << 20  # bytes from every tensor of the device: an address that no arithmetic has gone wrong with


@dataclass
class Region:
    """A registered range: `data` is a live uint8 view of it. device: whose memory it is, of several; HOST.

    managed: whether the host may access it, too. pages: whether nothing else lies in its pages. peers: whether kernels
    of several devices may access it. freed: whether others
    may lie there now, as its memory has gone; freed_by: who has freed it. not_computed: bool [size], where results
    would be that a run has left out, or None for nowhere. fresh: whether there may be words of it that nobody has
    written since it was allocated; written: then, which have been written, bool by word; None: none. made_of: which
    launch has made some of them of others that nobody had written.
    """

    start: int
    size: int
    name: str
    data: np.ndarray
    read_only: bool = False
    owner: object = None
    device: int = 0
    peers: bool = False
    managed: bool = False
    pages: bool = True
    freed: bool = False
    freed_by: str = ""
    fresh: bool = False
    made_of: str = ""
    written: np.ndarray | None = None
    not_computed: np.ndarray | None = None
    views: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def of_host(self) -> bool:
        """Whether the host's own code may access it."""
        return self.device == HOST or self.managed

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def origin(self) -> int:
        """Address of the word that holds its first byte."""
        return self.start - self.start % WORD

    @property
    def words(self) -> int:
        """How many words it has, from that one on."""
        return -(-(self.end - self.origin) // WORD)

    def words_of(self, first: int, end: int) -> slice:
        """Which of its words hold bytes [first, end)."""
        return slice((first - self.origin) // WORD, -(-(end - self.origin) // WORD))

    def byte_of(self, word: int) -> int:
        """Return the number of the first of its bytes in a word."""
        return max(word * WORD + self.origin - self.start, 0)

    def missing(self) -> np.ndarray:
        """Which of its words nobody may have written, bool, of one that is fresh."""
        return np.ones(self.words, bool) if self.written is None else ~self.written

    def note_written(self, first: int, end: int, words: np.ndarray | None = None) -> None:
        """Bytes [first, end) of it have been written; words: or these, bool from the one that holds its first byte."""
        if first <= self.start and end >= self.end and (words is None or words.all()):
            self.fresh, self.written = False, None
            return
        if self.written is None:
            self.written = np.zeros(self.words, bool)
        if words is not None:
            self.written |= words
        else:
            self.written[self.words_of(first, end)] = True

    def spoil(self, words: np.ndarray, made_of: str) -> None:
        """These words, bool as of `note_written`, hold what comes of others that nobody has written."""
        if self.written is None:
            self.written = np.ones(len(words), bool) if not self.fresh else np.zeros(len(words), bool)
        self.written &= ~words
        self.fresh, self.made_of = True, made_of

    def unwritten(self, words: np.ndarray) -> int | None:
        """Return the first byte of the first of these words that nobody has written; None if somebody has them all.

        words: bool from the one that holds the region's first byte.
        """
        missing = words if self.written is None else words & ~self.written
        at = int(np.argmax(missing)) if len(missing) else 0
        return self.byte_of(at) if missing[at : at + 1].any() else None

    def any_written(self, words: np.ndarray) -> bool:
        """Return whether somebody has written any of these words, told as to `unwritten`."""
        return self.written is not None and bool((words & self.written).any())

    def typed(self, size: int) -> np.ndarray:
        """The whole elements of `size` bytes, aligned as addresses are; index with (address - base(size)) // size."""
        view = self.views.get(size)
        if view is None:
            skip = -self.start % size
            count = max(0, (self.size - skip) // size)
            view = self.data[skip : skip + count * size].view(f"u{size}")
            self.views[size] = view
        return view


class GlobalMemory:
    """The regions, sorted by address. Overlapping registrations of the same memory merge into the larger one.

    others: the memories of the other devices.
    """

    def __init__(self):
        self.others: list[GlobalMemory] = []
        self.gone: deque[Region] = deque(maxlen=KEPT)  # what has been freed last
        self.drops = 0  # how many regions have ceased to be accessible
        self.starts: list[int] = []
        self.regions: tuple[Region, ...] = ()  # another one when they change
        self.last: Region | None = None
        self.workspace: Region | None = None
        self.heap: dict[int, Region] = {}  # what kernels have allocated, by its address

    def register(self, address: int, size: int, name: str, owner: object = None, read_only: bool = False) -> Region:
        """Make [address, address + size) accessible. `owner` is kept alive with the region."""
        raw = (ctypes.c_uint8 * size).from_address(address) if size else (ctypes.c_uint8 * 0)()
        region = Region(address, size, name, np.frombuffer(raw, np.uint8), read_only, owner)
        at = bisect_right(self.starts, address)
        while at and self.regions[at - 1].end > address:
            old = self.regions[at - 1]
            if old.start <= address and old.end >= region.end:
                return old
            self.drop(old)
            at = bisect_right(self.starts, address)
        self._insert(at, region)
        return region

    def share(self, region: Region) -> None:
        """Make a region of another device's memory accessible, which keeps its name and its shadow."""
        if not self.has(region):
            self._insert(bisect_right(self.starts, region.start), region)
            region.peers = True

    def _insert(self, at: int, region: Region) -> None:
        self.starts.insert(at, region.start)
        self.regions, self.last = (*self.regions[:at], region, *self.regions[at:]), None

    def has(self, region: Region) -> bool:
        """Whether a region is one of these."""
        return self._position(region) >= 0

    def grid_workspace(self) -> int:
        """Return the address of zeros for the barrier of a grid: {u32 bytes; u32 arrived} of cooperative_groups."""
        if self.workspace is None:
            array = np.zeros(WORKSPACE, np.uint8)
            self.workspace = self.register(array.ctypes.data, WORKSPACE, "the grid's barrier", owner=array)
        self.workspace.data[:] = 0
        return self.workspace.start

    def malloc(self, size: int) -> int:
        """Return the address of `size` bytes of the heap of kernels; 0 if it has no room."""
        if size <= 0 or size + sum(region.size for region in self.heap.values()) > HEAP:
            return 0
        raw = np.zeros(size + 3 * HEAP_ALIGN, np.uint8)
        start = -raw.ctypes.data % HEAP_ALIGN + HEAP_ALIGN
        region = self.register(raw.ctypes.data + start, size, f"malloc of {size} bytes by a kernel", owner=raw)
        self.heap[region.start] = region
        return region.start

    def free_all(self) -> None:
        """Give back all that `malloc` has given."""
        for address in [*self.heap]:
            self.free(address)

    def free(self, address: int) -> None:
        """Give back what `malloc` has given. Raises a Fault for another address."""
        if address not in self.heap:
            raise Fault("out-of-bounds", f"free of {address:#x}, which malloc has not given, or which is free already")
        region = self.heap.pop(address)
        region.freed = True
        self.drop(region)

    def drop(self, region: Region) -> None:
        at = self._position(region)
        del self.starts[at]
        self.regions = self.regions[:at] + self.regions[at + 1 :]
        self.last, self.drops = None, self.drops + 1

    def _position(self, region: Region) -> int:
        """Return the index of a region, -1 if it is not one of these. Empty ones may start where others do."""
        at = bisect_right(self.starts, region.start) - 1
        while at >= 0 and self.regions[at] is not region:
            at = at - 1 if self.starts[at] == region.start else -1
        return at

    def starts_at(self, address: int) -> bool:
        """Whether a region begins there."""
        at = bisect_right(self.starts, address) - 1
        return at >= 0 and self.starts[at] == address

    def covers(self, address: int, size: int) -> bool:
        """Whether a region holds the range already."""
        at = bisect_right(self.starts, address) - 1
        return at >= 0 and address + size <= self.regions[at].end

    def region_of(self, address: int) -> Region | None:
        """The region that holds a byte, None if none does."""
        return self.find(address, 1, False) if self.covers(address, 1) else None

    def at_or_before(self, address: int) -> Region:
        """The last region that starts at or before an address."""
        return self.regions[bisect_right(self.starts, address) - 1]

    def find(self, address: int, size: int, write: bool) -> Region:
        """The region that holds [address, address + size)."""
        region = self.last
        if region is None or not (region.start <= address and address + size <= region.start + region.size):
            at = bisect_right(self.starts, address) - 1
            region = self.regions[at] if at >= 0 else None
            if region is None or address + size > region.end:
                region = self.elsewhere(address, size, write)
            self.last = region
        if write and region.read_only:
            raise Fault("write-to-input", f"write of {size} bytes to {region.name}, which the kernel may only read")
        if not write and region.not_computed is not None:
            at = address - region.start
            if region.not_computed[at : at + size].any():
                raise ResultsDecide(f"a read of {region.name}")
        return region

    def elsewhere(self, address: int, size: int, write: bool) -> Region:
        """Return what holds a range that no region of this memory does. Raises a Fault: nothing."""
        gone = next((r for r in reversed(self.gone) if r.start <= address and address + size <= r.end), None)
        if gone is not None:
            what = f"{'write' if write else 'read'} of {size} bytes at byte {address - gone.start}"
            raise Fault("use-after-free", f"{what} of {gone.name} ({gone.size} bytes), which {gone.freed_by} has freed")
        raise Fault("out-of-bounds", self.describe(address, size, write))

    def hint(self, addresses) -> None:
        """Learn that a prefetch or another hint, which may go anywhere, names these addresses."""

    def describe(self, address: int, size: int, write: bool) -> str:
        what = f"{'write' if write else 'read'} of {size} bytes at {address:#x}"
        at = bisect_right(self.starts, address) - 1
        near = []
        if at >= 0:
            r = self.regions[at]
            near.append(f"{address + size - r.end} bytes past the end of {r.name} ({r.size} bytes)")
        if at + 1 < len(self.regions):
            r = self.regions[at + 1]
            near.append(f"{r.start - address} bytes before {r.name}")
        text = f"{what} is outside global memory: " + (", ".join(near) or "none is registered")
        there = next((other for other in self.others if other.covers(address, size)), None)
        if there is not None:
            name = there.find(address, size, False).name
            return f"{what} is in {name}, to which this device has no peer access: symmetric memory gives it"
        if all(not -FAR < address - edge < FAR for r in self.regions for edge in (r.start, r.end)):
            text += "; a tensor of the host becomes one of the device by emulated_gpu.device_tensors"
        return text

    def view(self, address: int, size: int, write: bool = False) -> np.ndarray:
        """Live uint8 view of a range that lies in one region."""
        region = self.find(address, size, write)
        at = address - region.start
        return region.data[at : at + size]

    def not_computed_view(self, address: int, size: int, write: bool = True) -> np.ndarray:
        """Live uint8 view of what says where results are left out in a range of one region; otherwise as `view`."""
        region = self.find(address, size, write)
        if region.not_computed is None:
            region.not_computed = np.zeros(region.size, bool)
        at = address - region.start
        return region.not_computed.view(np.uint8)[at : at + size]

    def constant(self, address: int) -> bool:
        """Whether kernels may not write what holds an address."""
        return self.find(address, 0, False).read_only

    def mark_not_computed(self, addresses: np.ndarray, size: int) -> None:
        """Leave out results of `size` bytes at each address, uint64 [lanes]. To read there is an error from now on."""
        first = int(addresses.min())
        end = int(addresses.max()) + size
        if len(addresses) > 1 and not self.covers(first, end - first):  # several regions
            for address in addresses.tolist():
                self.not_computed_view(address, size)[:] = 1
            return
        view = self.not_computed_view(first, end - first)
        view[(addresses - np.uint64(first)).astype(np.int64)[:, None] + np.arange(size)] = 1

    def take_not_computed(self) -> list[tuple[int, np.ndarray]]:
        """Return (address, bool [bytes]) of where results have been left out, and forget it."""
        found = [(region.start, region.not_computed) for region in self.regions if region.not_computed is not None]
        for region in self.regions:
            region.not_computed = None
        return found

    def load(self, address: int, size: int) -> int:
        if address % size:
            raise Fault("misaligned", f"{size}-byte read at {address:#x}")
        region = self.find(address, size, False)
        at = address - region.start
        return int.from_bytes(region.data[at : at + size].tobytes(), "little")

    def store(self, address: int, size: int, value: int) -> None:
        if address % size:
            raise Fault("misaligned", f"{size}-byte write at {address:#x}")
        region = self.find(address, size, True)
        at = address - region.start
        region.data[at : at + size] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)

    def _locate(self, addresses: np.ndarray, size: int, write: bool):
        """Region and element indices for one access by many lanes; None where lanes hit several regions."""
        if int(np.bitwise_or.reduce(addresses)) % size:
            bad = int(addresses[addresses % np.uint64(size) != 0][0])
            raise Fault("misaligned", f"{size}-byte {'write' if write else 'read'} at {bad:#x}")
        low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
        at = bisect_right(self.starts, low) - 1
        if at < 0 or high + size > self.regions[at].end:
            return None
        region = self.find(low, high + size - low, write)
        base = region.start + (-region.start % size)
        return region, ((addresses - np.uint64(base)) // np.uint64(size)).astype(np.int64)

    def gather(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """addresses uint64 [lanes] -> unsigned elements of `size` bytes [lanes]."""
        found = self._locate(addresses, size, False)
        if found is None:
            return np.array([self.load(a, size) for a in addresses.tolist()], f"u{size}")
        region, index = found
        return region.typed(size)[index]

    def scatter(self, addresses: np.ndarray, size: int, values: np.ndarray) -> None:
        """Store one element a lane; where lanes collide, the last one wins."""
        found = self._locate(addresses, size, True)
        if found is None:
            for a, v in zip(addresses.tolist(), values.tolist(), strict=True):
                self.store(a, size, v)
            return
        region, index = found
        region.typed(size)[index] = values

    def store_row(self, address: int, size: int, values: tuple, lanes: int) -> bool:
        """Each lane stores values[0], values[1], ... side by side, and the lanes one behind the other. False if not in
        one region."""
        if address % size:
            raise Fault("misaligned", f"{size}-byte write at {address:#x}")
        n = lanes * len(values)
        if not self.covers(address, n * size):
            return False
        region = self.find(address, n * size, True)
        at = (address - region.start - (-region.start % size)) // size
        target = region.typed(size)[at : at + n]
        for k, v in enumerate(values):
            target[k :: len(values)] = v if type(v) is np.ndarray else v & (1 << 8 * size) - 1
        return True


class Part(GlobalMemory):
    """What one of several launches in a run may access: some regions of a whole, and the heap of kernels and the
    barrier of grids, which all launches of a device have. Whatever it does to another region, a hint too, is a fault.
    """

    def __init__(self, whole: GlobalMemory, regions: list[Region]):
        super().__init__()
        self.whole, self.gone = whole, whole.gone
        self.regions = (*sorted(regions, key=lambda region: region.start),)
        self.starts = [region.start for region in self.regions]

    def elsewhere(self, address: int, size: int, write: bool) -> Region:
        if (region := self._other(address, size)) is None:
            return super().elsewhere(address, size, write)
        if region is self.whole.workspace or region.start in self.whole.heap:
            return region
        what = f"{'write' if write else 'read'} of {size} bytes at {address:#x}"
        raise Fault("out-of-bounds", f"{what} is in {region.name} of another call")

    def hint(self, addresses) -> None:
        if not len(addresses):
            return
        first, last = int(addresses.min()), int(addresses.max())
        if self.covers(first, last + 1 - first):
            return
        for address in np.unique(addresses).tolist():
            region = None if self.covers(address, 1) else self._other(address, 1)
            if region is not None and region is not self.whole.workspace and region.start not in self.whole.heap:
                raise Fault("out-of-bounds", f"a hint names {address:#x}, which is in {region.name} of another call")

    def _other(self, address: int, size: int) -> Region | None:
        return self.whole.find(address, size, False) if self.whole.covers(address, size) else None

    def grid_workspace(self) -> int:
        return self.whole.grid_workspace()

    def malloc(self, size: int) -> int:
        return self.whole.malloc(size)

    def free(self, address: int) -> None:
        self.whole.free(address)
        self.last = None
