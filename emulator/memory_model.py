"""Time of global memory traffic: HBM channels, the L2 and the paths into the SMs (timing only, no data).

Little's law is not put in: it comes out. A copy's lines spread over the HBM channels by an address hash; a channel
serves one line after the other; a copy is done when its slowest line is. Uneven luck between channels gives the soft
knee that real memory systems show below their peak rate.
"""

from __future__ import annotations

import numpy as np

LINE = 128
Lines = np.ndarray | range  # numbers (address // LINE) of distinct lines of one region


class L2Region:
    """One region's lines: the HBM channel of each, when it is (or was) in L2, and how many bytes had been inserted by then.

    `base` is a line number of our own: host addresses differ from run to run, and modelled times must not.
    """

    __slots__ = ("first", "channel", "ready", "stamp")

    def __init__(self, start: int, size: int, base: int, channels: int):
        self.first = start // LINE
        lines = (start + size - 1) // LINE - self.first + 1
        mixed = np.arange(base, base + lines, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self.channel = (mixed >> np.uint64(40)).astype(np.int64) % channels
        self.ready = np.full(lines, np.inf)
        self.stamp = np.full(lines, -np.inf)


class MemoryModel:
    """Shared by all SMs. Times are in SM cycles; addresses are lines (address // 128)."""

    def __init__(self, profile, memory):
        p = profile
        self.memory = memory
        self.channels = p["hbm"]["channels"]
        self.line_cycles = LINE * self.channels / p.bytes_per_cycle(p["hbm"]["read_tb_s"])
        self.write_cycles = LINE * self.channels / p.bytes_per_cycle(p["hbm"]["write_tb_s"])
        self.free = [0.0] * int(self.channels)  # cycle at which each channel has served what it was given
        self.capacity = p["l2"]["bytes"]
        self.l2_bytes_per_cycle = p.bytes_per_cycle(p["l2"]["tb_s"])
        self.l2_free = 0.0
        self.hit_cycles = p["l2"]["hit_cycles"]
        self.miss_cycles = p["hbm"]["latency_cycles"]
        self.inserted = 0.0
        self.dirty = p["l2"]["dirty_at_start"] * self.capacity  # what the flush before the measurement left behind
        self.regions: dict[int, L2Region] = {}
        self.read_bytes = self.written_bytes = 0
        self.log: list[tuple[float, int, int, int]] | None = None  # (time, bytes read, written, from L2) when traced

    def region(self, line: int) -> L2Region:
        """The region that a line belongs to; its first byte may lie inside the line."""
        r = self.memory.at_or_before(line * LINE + LINE - 1)
        found = self.regions.get(r.start)
        if found is None:
            base = sum(len(known.ready) for known in self.regions.values())
            found = self.regions[r.start] = L2Region(r.start, r.size, base, self.channels)
        return found

    def _locate(self, lines: Lines) -> tuple[L2Region, slice | np.ndarray]:
        """The region of some lines, and which of its lines they are."""
        region = self.region(int(lines[0]))
        low, size = lines[0] - region.first, len(region.ready)
        if type(lines) is range and low >= 0 and lines[-1] - region.first < size:
            return region, slice(low, lines[-1] - region.first + 1, lines.step)
        index = np.asarray(lines) - region.first
        return region, index[(index >= 0) & (index < size)]

    def read(self, time: float, lines: Lines, nbytes: int) -> tuple[float, float]:
        """Lines of one region are requested at `time`: when the first and the last leave the L2."""
        region, index = self._locate(lines)
        ready = region.ready[index]
        evicted = self.inserted - self.capacity
        first = done = time + self.hit_cycles
        missing = index
        if ready.min() < np.inf or evicted >= 0:
            there = (ready < np.inf) & (region.stamp[index] > evicted)
            hits = ready[there]
            if len(hits):
                done = max(done, float(hits.max()))
            missing = (np.arange(len(region.ready))[index] if type(index) is slice else index)[~there]
        channels = region.channel[missing].tolist()
        if channels:
            arrival = self._fetch(channels, time) + self.miss_cycles
            region.ready[missing] = arrival
            self._insert(missing, len(channels), region, time)
            self.read_bytes += len(channels) * LINE
            done = max(done, arrival)
            if 2 * len(channels) > len(ready):
                first = time + self.miss_cycles
        self.l2_free = max(self.l2_free, time) + nbytes / self.l2_bytes_per_cycle
        if self.log is not None:
            self.log.append((done, len(channels) * LINE, 0, nbytes))
        return first, max(done, self.l2_free)

    def _fetch(self, channels: list[int], time: float) -> float:
        """Each channel serves its lines one after the other; when the last is done."""
        free, last = self.free, time
        for c in channels:
            end = free[c]
            free[c] = end = (end if end > time else time) + self.line_cycles
            if end > last:
                last = end
        return last

    def _insert(self, missing: slice | np.ndarray, count: int, region: L2Region, time: float):
        """New lines push out old ones; dirty ones have to be written back first."""
        n = count * LINE
        self.inserted += n
        region.stamp[missing] = self.inserted
        if self.dirty > 0:
            n = min(n, self.dirty)
            self.dirty -= n
            self._write_back(n, time)

    def _write_back(self, n: float, time: float):
        self.written_bytes += n
        if self.log is not None:
            self.log.append((time, 0, n, 0))
        busy = n / LINE / self.channels * self.write_cycles
        self.free = [(end if end > time else time) + busy for end in self.free]

    def write(self, time: float, lines: Lines, nbytes: int) -> float:
        """A store arrives at the L2, which takes it in; returns when it is acknowledged."""
        region, index = self._locate(lines)
        new = region.ready[index] == np.inf
        if new.any():
            missing = (np.arange(len(region.ready))[index] if type(index) is slice else index)[new]
            region.ready[missing] = time + self.hit_cycles
            self._insert(missing, len(missing), region, time)
        self.l2_free = max(self.l2_free, time) + nbytes / self.l2_bytes_per_cycle
        if self.log is not None:
            self.log.append((time, 0, 0, nbytes))
        return max(time, self.l2_free) + self.hit_cycles

    def prefetch(self, time: float, lines: Lines):
        self.read(time, lines, 0)
