"""Time of global memory traffic: HBM channels, the L2 and the paths into the SMs (timing only, no data).

Little's law is not put in: it comes out. A copy's lines spread over the HBM channels by an address hash; a channel
serves one line after the other; a copy is done when its slowest line is. Uneven luck between channels gives the soft
knee that real memory systems show below their peak rate.
"""

from __future__ import annotations

import numpy as np

LINE = 128


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
        self.free = np.zeros(self.channels)
        self.capacity = p["l2"]["bytes"]
        self.l2_bytes_per_cycle = p.bytes_per_cycle(p["l2"]["tb_s"])
        self.l2_free = 0.0
        self.hit_cycles = p["l2"]["hit_cycles"]
        self.miss_cycles = p["hbm"]["latency_cycles"]
        self.inserted = 0.0
        self.dirty = p["l2"]["dirty_at_start"] * self.capacity  # what the flush before the measurement left behind
        self.regions: dict[int, L2Region] = {}
        self.read_bytes = self.written_bytes = 0
        self.log: list[tuple[float, int, int]] | None = None  # (time, HBM bytes, L2 bytes) when traced

    def region(self, line: int) -> L2Region:
        """The region that a line belongs to; its first byte may lie inside the line."""
        r = self.memory.at_or_before(line * LINE + LINE - 1)
        found = self.regions.get(r.start)
        if found is None:
            base = sum(len(known.ready) for known in self.regions.values())
            found = self.regions[r.start] = L2Region(r.start, r.size, base, self.channels)
        return found

    def read(self, time: float, lines: np.ndarray, nbytes: int) -> tuple[float, float]:
        """Lines of one region (absolute line numbers) are requested at `time`: when the first and last leave the L2."""
        region = self.region(int(lines[0]))
        index = lines - region.first
        index = index[(index >= 0) & (index < len(region.ready))]
        ready = region.ready[index]
        there = (ready < np.inf) & (self.inserted - region.stamp[index] < self.capacity)
        first = done = time + self.hit_cycles
        hits = ready[there]
        if len(hits):
            done = max(done, float(hits.max()))
        missing = index[~there]
        if len(missing):
            count = np.bincount(region.channel[missing], minlength=self.channels)
            used = count > 0
            start = np.maximum(self.free[used], time)
            end = start + count[used] * self.line_cycles
            self.free[used] = end
            arrival = float(end.max()) + self.miss_cycles
            region.ready[missing] = arrival
            self._insert(missing, region, time)
            self.read_bytes += len(missing) * LINE
            done = max(done, arrival)
            if len(missing) > len(hits):
                first = time + self.miss_cycles
        self.l2_free = max(self.l2_free, time) + nbytes / self.l2_bytes_per_cycle
        if self.log is not None:
            self.log.append((done, len(missing) * LINE, nbytes))
        return first, max(done, self.l2_free)

    def _insert(self, missing: np.ndarray, region: L2Region, time: float):
        """New lines push out old ones; dirty ones have to be written back first."""
        n = len(missing) * LINE
        self.inserted += n
        region.stamp[missing] = self.inserted
        if self.dirty > 0:
            n = min(n, self.dirty)
            self.dirty -= n
            self._write_back(n, time)

    def _write_back(self, n: float, time: float):
        self.written_bytes += n
        np.maximum(self.free, time, out=self.free, where=self.free < time)
        self.free += n / LINE / self.channels * self.write_cycles

    def write(self, time: float, lines: np.ndarray, nbytes: int) -> float:
        """A store arrives at the L2, which takes it in; returns when it is acknowledged."""
        region = self.region(int(lines[0]))
        index = lines - region.first
        index = index[(index >= 0) & (index < len(region.ready))]
        new = index[region.ready[index] == np.inf]
        if len(new):
            region.ready[new] = time + self.hit_cycles
            self._insert(new, region, time)
        self.l2_free = max(self.l2_free, time) + nbytes / self.l2_bytes_per_cycle
        if self.log is not None:
            self.log.append((time, 0, nbytes))
        return max(time, self.l2_free) + self.hit_cycles

    def prefetch(self, time: float, lines: np.ndarray):
        self.read(time, lines, 0)
