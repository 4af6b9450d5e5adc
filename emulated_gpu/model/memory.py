"""Time of global memory traffic: HBM channels, the L2 and the paths into the SMs (timing only, no data).

Little's law is not put in: it comes out. A copy's lines spread over the HBM channels by an address hash; a channel
serves one line after the other, and each line takes a little longer than the fastest one, by another hash: few take
much longer. A copy is done when its slowest line is, so large copies take longer than small ones even when nothing else
runs, and uneven luck between channels gives the soft knee that real memory systems show below their peak rate.

What was stored leaves the L2 as new lines come, in proportion to its share of it. A line that is read waits until the
one that it pushes out has been written back: on an H200 that was filled before, a burst of 16 KiB into each SM takes
2740 cycles, and 1860 once the L2 is clean, though the HBM rests between bursts. A line whose neighbours are not asked
for with it has to open a row of the DRAM for itself, unless its block of 4 KiB has lately been read: an H100 brings
boxes of 128 rows of 128 bytes 2 to 8 % slower than what lies together, the slower the more memory its SMs go through
at a time (silicon/probes/boxes.py). Of the lines that wait for it, the HBM serves a window in any order, so that the
first of several copies ends late, and what lies in L2 waits while more than that window does. SMs of a cluster that ask
for a line that waits to go to them share one trip through the crossbar.
What prefetches have asked for comes in no order: a load that meets it on its way ends with the last of it.
Lines that are loaded as L2::evict_first push each other out when they take a share of the L2: of 26 MB that an H200 has
loaded so nothing is left (silicon/probes/policies.py). Other policies make no difference here.
The L2 has two halves (halves.py): lines of the other one cross a link on their first way to a half, unless only a
prefetch asked for them.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit.rules import pointer
from . import halves
from . import lines as of
from .lines import LINE

Lines = np.ndarray | range  # numbers (address // LINE) of distinct lines of one region


class L2Region:
    """One region's lines: the HBM channel of each, how much longer than the fastest it takes (cycles), its home, when
    it is (or was) in each half of the L2, and how many bytes had been inserted there by then, also when it was last
    stored; of lines loaded as evict_first, how many of those. Of each block, how many had opened rows of the DRAM when
    it last did.

    `base` is a line number of our own: host addresses differ from run to run, and modelled times must not.
    """

    def __init__(self, start: int, size: int, base: int, channels: int, late: np.ndarray):
        self.first, self.base = start // LINE, base
        self.lines = lines = (start + size - 1) // LINE - self.first + 1
        mixed = np.arange(base, base + lines, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self.channel = (mixed >> np.uint64(40)).astype(np.int64) % channels
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        self.late = late[mixed >> np.uint64(52)]
        self.home = halves.homes(base, lines)
        self.ready = np.full((2, lines), np.inf)  # [half, line]
        self.stamp = np.full((2, lines), -np.inf)
        self.wrote = np.full(lines, -np.inf)
        self.turn: np.ndarray | None = None  # [half, line], inf of the others
        self.opened = np.full((base + lines) // halves.BLOCK - base // halves.BLOCK + 1, -np.inf)
        arrays = self.channel, self.late, self.home, self.ready, self.stamp
        self.table = np.array([lines, base, *map(pointer, arrays), 0, pointer(self.opened)], np.int64)
        self.at = pointer(self.table)

    def keep_turns(self) -> None:
        """Tell from now on when lines were loaded as evict_first."""
        self.turn = np.full((2, self.lines), np.inf)
        self.table[of.AT_TURN] = pointer(self.turn)


class MemoryModel:
    """Shared by all SMs. Times are in SM cycles; addresses are lines (address // 128). engine: tells the time."""

    def __init__(self, profile, memory, engine):
        p = profile
        hbm, l2 = p["hbm"], p["l2"]
        self.memory, self.engine = memory, engine
        self.numbers, self.counts = np.zeros(of.NUMBERS), np.zeros(4, np.int64)
        rules = of.look, of.taken_in, of.fetched, of.waiting, of.carry, of.insert
        self.look, self.taken_in, self.fetched, self.queued, self.carry, self.insert = (rule.compiled for rule in rules)
        self.channels = int(hbm["channels"])
        self.line_cycles = LINE * self.channels / p.bytes_per_cycle(hbm["read_tb_s"])
        self.write_cycles = LINE * self.channels / p.bytes_per_cycle(hbm["write_tb_s"])
        self.turn_cycles = LINE * self.channels / p.bytes_per_cycle(hbm["write_between_reads_tb_s"])
        self.free_until = 0.0  # when all channels are free
        self.served = 0.0  # when the HBM has served the latest read
        self.row_cycles = p.cycles(hbm["row_ns"])
        self.numbers[of.OPEN_BLOCKS] = hbm["open_blocks"]  # OPENED: those that have opened rows so far
        self.each = self.line_cycles  # what the latest line took, with what it pushed out
        self.window, self.overtaken_share = hbm["window_lines"], hbm["overtaking_share"]
        # 4096 quantiles of what a line takes longer than the fastest
        self.late = hbm["spread_cycles"] * ((np.arange(4096) + 0.5) / 4096) ** hbm["spread_power"]
        self.free = np.zeros(self.channels)  # cycle at which each channel has served what it was given
        self.capacity = self.numbers[of.CAPACITY] = l2["bytes"] / 2  # of a half
        self.links = halves.Links(p.bytes_per_cycle(l2["link_tb_s"]))
        arrays = self.numbers, self.counts, self.counts, self.counts, self.counts, self.free, *self.links.free
        self.table = np.array([*map(pointer, arrays)], np.int64)
        self.at = pointer(self.table)
        self.scratch(1024)
        self.far_cycles = self.numbers[of.FAR_CYCLES] = l2["far_cycles"]
        self.read_rate = p.bytes_per_cycle(l2["tb_s"])
        self.shared_rate = p.bytes_per_cycle(l2["shared_tb_s"])
        self.prefetch_rate = p.bytes_per_cycle(l2["prefetch_tb_s"])
        self.write_rate = p.bytes_per_cycle(l2["write_tb_s"])
        self.write_request_cycles, self.request_bytes = l2["write_request_cycles"], l2["request_bytes"]
        self.read_port = self.write_port = 0.0  # when the crossbar has moved what it was given
        self.moved = 0.0  # cycles for which it has moved something to SMs
        # lines come in no order while the channels work at prefetches: since when, until when, and when those that were
        # asked for before they came have crossed
        self.prefetching = self.prefetched = self.late_port = 0.0
        self.merge_cycles = l2["merge_cycles"]
        # (cluster, first line, lines) -> when their turn at the crossbar comes, and for which SM
        self.waiting: dict[tuple, tuple[float, int]] = {}
        self.one_line_cycles = 1 / l2["one_line_requests"] if "one_line_requests" in l2 else 0.0
        self.one_line: dict[tuple[int, int], float] = {}  # (half, line) -> when it has given what it was asked for
        self.one_word: dict[int, float] = {}  # line -> when the atomics that it was asked for are done
        self.hit_cycles, self.loaded_cycles = l2["hit_cycles"], l2["loaded_cycles"]
        self.write_miss_cycles = l2["write_miss_cycles"]
        self.miss_cycles = self.numbers[of.MISS_CYCLES] = hbm["latency_cycles"]
        self.inserted = self.numbers[of.INSERTED : of.INSERTED + 2]  # bytes, by half; INSERTED_FIRST: as evict_first
        # of a half, for lines loaded as evict_first
        self.room_first = self.numbers[of.ROOM_FIRST] = l2["evict_first_share"] * self.capacity
        # what the flush before the measurement left behind in each half, evenly
        self.flushed = self.numbers[of.FLUSHED : of.FLUSHED + 2]
        self.flushed[:] = l2["dirty_at_start"] * self.capacity
        self.stored = self.numbers[of.STORED : of.STORED + 2]  # bytes of lines stored since then
        self.pushed_out = 0.0  # bytes that stores have pushed out and that no channel has taken yet
        self.regions: dict[int, L2Region] = {}
        self.last: L2Region | None = None  # the one that was asked for last
        self.read_bytes = 0
        self.log: list[tuple[float, float, float, float]] | None = None  # time, bytes read, written, from L2; if traced
        self.peers: dict = {}  # device -> its memory, a link.Peer

    def scratch(self, lines: int) -> None:
        """Make room for what rules find of this many lines."""
        self.missing, self.far = np.zeros((2, lines), np.int64)
        self.rows = np.zeros(lines)
        self.table[[of.AT_MISSING, of.AT_FAR, of.AT_ROWS]] = [*map(pointer, (self.missing, self.far, self.rows))]

    def region(self, line: int) -> L2Region:
        """The region that a line belongs to; its first byte may lie inside the line."""
        last = self.last
        if last is not None and 0 <= line - last.first < last.lines - 1:  # its last line may begin another
            return last
        r = self.memory.at_or_before(line * LINE + LINE - 1)
        found = self.regions.get(r.start)
        if found is None:
            base = sum(known.lines for known in self.regions.values())
            found = self.regions[r.start] = L2Region(r.start, r.size, base, self.channels, self.late)
        self.last = found
        return found

    def _locate(self, lines: Lines) -> tuple[L2Region, slice | np.ndarray]:
        """The region of some lines, and which of its lines they are."""
        region = self.region(int(lines[0]))
        low, size = lines[0] - region.first, region.lines
        if type(lines) is range and low >= 0 and lines[-1] - region.first < size:
            return region, slice(low, lines[-1] - region.first + 1, lines.step)
        index = np.asarray(lines) - region.first
        return region, index[(index >= 0) & (index < size)]

    def peer(self, lines: Lines):
        """Return the memory of another device that lines belong to, if they do."""
        return self.peers.get(self.memory.at_or_before(int(lines[0]) * LINE + LINE - 1).device)

    @property
    def dirty(self) -> float:
        """Bytes of the flush that are still in L2."""
        return float(self.flushed[0] + self.flushed[1])

    def read(
        self,
        time: float,
        lines: Lines,
        nbytes: float,
        half: int | None = 0,
        sm: int = 0,
        sharers: int = 1,
        cluster: int = 0,
        gone_first: bool = False,
    ) -> tuple[float, float]:
        """Lines are requested at `time` for `sharers` SMs: when the first and the last leave the L2.

        half: which they belong to; None: the lines go to their homes only. sm: who asks; cluster: the first SM of its
        cluster; gone_first: as L2::evict_first.
        """
        if self.peers and (peer := self.peer(lines)) is not None:
            return peer.read(time, lines, nbytes)
        region, index = self._locate(lines)
        if type(index) is not slice and len(index) < len(lines):  # a box may have rows of several regions
            lines = np.asarray(lines)
            beyond = lines >= region.first + region.lines
            if beyond.any() and self.region(int(lines[beyond][0])) is not region:
                share = nbytes * np.count_nonzero(beyond) / len(lines)
                who = half, sm, sharers, cluster, gone_first
                first, done = self.read(time, lines[~beyond], nbytes - share, *who)
                return first, max(done, self.read(time, lines[beyond], share, *who)[1])
        there = of.HOME if half is None else half
        count, missing = self._look(region, index, there)
        first = done = time + self.hit_cycles
        held, fetched = 0.0, 0
        if missing < count:
            done = max(done, self.numbers.item(of.COME))
            if done > first and self.prefetched > time and nbytes:
                done = held = max(done, self.prefetched)
            elif not missing and self.free_until > time:
                time = self.admitted(time)
                first = done = max(done, time + self.hit_cycles)
        if missing:
            fetched, arrival = self._miss(region, missing, there, time, gone_first)
            done = max(done, arrival)
            if 2 * fetched > count:
                first = time + self.miss_cycles
        done = max(done, self._cross(time, held, lines, nbytes, sm, sharers, cluster) + self.hit_cycles)
        if self.log is not None:
            self.log.append((done, fetched * LINE, 0, nbytes))
        return first, done

    def _look(self, region: L2Region, index: slice | np.ndarray, half: int) -> tuple[int, int]:
        """Return how many lines are at `index`, and how many of them a half does not have; `missing` has those then."""
        if type(index) is slice:
            count, where = len(range(index.start, index.stop, index.step)), (0, index.start, index.step)
        else:
            count, where = len(index), (pointer(index), 0, 0)
        if count > len(self.missing):
            self.scratch(2 * count)
        return count, self.look(region.at, self.at, *where, count, half)

    def _miss(self, region: L2Region, missing: int, half: int, time: float, gone_first: bool) -> tuple[int, float]:
        """Lines that a half does not have come from the other one, or from the HBM: how many from there, when the last.

        Those of the other half stay in both. missing: how many, of which `missing` has the numbers.
        """
        numbers, in_turn = self.numbers, gone_first and self.room_first < self.capacity
        if in_turn and region.turn is None:
            region.keep_turns()
        self.taken_in(region.at, self.at, missing, half, in_turn)
        fetched, far, elsewhere, rows = self.counts.tolist()
        arrival, back = time, numbers.item(of.BACK)
        self._log_back(back)
        if elsewhere:
            arrival = max(time + self.hit_cycles, numbers.item(of.COME)) + self.far_cycles
        if fetched:  # NumPy's exp: the C library's has other last bits
            opened = float(np.add.reduce(1 - np.exp(self.rows[:rows])))
            more = back / LINE * self.turn_cycles + opened * self.row_cycles
            self.each = self.line_cycles + more / fetched
        elif far:
            self._write_back(back)
        numbers[of.TIME], numbers[of.NOW], numbers[of.EACH] = time, self.engine.now, self.each
        numbers[of.PART], numbers[of.COME] = LINE * self.links.cycles, arrival
        self.fetched(region.at, self.at, fetched, far, half)
        if fetched:
            self.served = numbers.item(of.LAST)
            self.free_until = max(self.free_until, self.served)
            self.read_bytes += fetched * LINE
        return fetched, numbers.item(of.COME)

    def _log_back(self, back: float) -> None:
        if self.log is not None and back:
            self.log.append((self.engine.now, 0, back, 0))

    def carried(self, requests: int, nbytes: int) -> float:
        """Return for how many bytes the crossbar is busy with requests for this many: it takes no more small ones."""
        return max(nbytes, requests * self.request_bytes)

    def _cross(
        self, time: float, held: float, lines: Lines, nbytes: float, sm: int, sharers: int, cluster: int
    ) -> float:
        """The crossbar carries lines to a cluster, then to each of its SMs; returns when it has.

        Lines that another SM of the cluster has asked for and that still wait for their turn go there once for both.
        SMs do not ask at the same time: the longer the wait, the more lines meet, by its square as measured on an H200.
        What has had to wait also travels longer, up to a limit.
        held: until when prefetches hold back some of the lines, or 0. As many as have not come by now cross after that.
        """
        key = (cluster, int(lines[0]), len(lines))
        turn, who = self.waiting.get(key, (0.0, sm))
        met = min(1.0, max(0.0, turn - time) / self.merge_cycles) ** 2 if who != sm else 0.0
        unique, shared = 1 - met, sharers - 1 + met
        busy = nbytes * (unique / self.read_rate + shared / self.shared_rate)
        late = 0.0
        if held:
            come = max(0.0, time - self.prefetching) / (held - self.prefetching)
            late = self.late_port = max(self.late_port, held) + (1 - come) * busy
            busy *= come
        begin = max(self.read_port, self.engine.now)
        self.read_port = begin + busy
        self.moved += busy
        if begin > time:
            if len(self.waiting) > 8192:
                self.waiting = {k: w for k, w in self.waiting.items() if w[0] > time}
            self.waiting[key] = begin, sm
        passed = max(self.read_port, time + busy)
        return max(passed + min(self.loaded_cycles, passed - busy - time), late)

    def in_turn(self, time: float, line: int, half: int) -> float:
        """For how long a warp's request for a line, at `time`, waits behind those of others for the same one: each half
        answers one after the other. (All SMs' flags and counters, silicon/timing, mechanisms/ld.relaxed.gpu.)"""
        if not self.one_line_cycles:
            return 0.0
        if len(self.one_line) > 8192:
            self.one_line = {k: free for k, free in self.one_line.items() if free > self.engine.now}
        begin = max(time, self.one_line.get((half, line), 0.0))
        self.one_line[half, line] = begin + self.one_line_cycles
        return begin - time

    def backlog(self, time: float) -> float:
        """Return for how long the HBM's channels are busy from then on, in the mean."""
        self.numbers[of.TIME] = time
        self.queued(self.at, self.channels)
        return self.numbers.item(of.WAIT) / self.channels

    def overtaking(self) -> float:
        """Return how much longer a copy takes whose last line is served now, since others behind it overtake it."""
        return min(self.window * self.each, self.overtaken_share * self.backlog(self.engine.now))

    def admitted(self, time: float) -> float:
        """Return when the L2 admits a request: a window of lines may wait for the HBM, all others wait outside.

        On an H200 a tensor map that was edited while loads of 64 or 128 KiB into each SM were under way, and the load
        through it, whose lines are all in L2, come when the loads have; behind those of one SM alone nothing waits.
        """
        return time + max(0.0, self.backlog(time) - self.window * self.each)

    def _write_back(self, nbytes: float):
        """Write lines back that stores have pushed out, on all channels at once."""
        self.pushed_out += nbytes
        if self.pushed_out >= LINE * self.channels:
            busy = self.pushed_out / LINE / self.channels * self.write_cycles
            self.pushed_out = 0.0
            np.maximum(self.free, self.engine.now, out=self.free)
            self.free += busy

    def write(
        self, time: float, lines: Lines, nbytes: int, half: int = 0, posted: bool = False, requests: int = 0
    ) -> tuple[float, float]:
        """A store arrives at the L2 from a half: when it has been taken in and when it is acknowledged.

        requests: in how many it comes, if there are more than lines. Lines are kept at home, and written back some day;
        what the other half had of them is old. One that is on its way has to come first. posted: it comes from another
        device, and nobody sees it before.
        """
        if self.peers and (peer := self.peer(lines)) is not None:
            return peer.write(time, lines, nbytes)
        region, index = self._locate(lines)
        at = np.arange(index.start, index.stop, index.step) if type(index) is slice else index
        home = region.home[at]
        acknowledged, come = self.hit_cycles, 0.0
        for there in (0, 1):
            mine = at[home == there]
            if not len(mine):
                continue
            if there != half:
                self.numbers[of.NOW], self.numbers[of.PART] = self.engine.now, nbytes / len(at) * self.links.cycles
                self.carry(region.at, self.at, pointer(mine), len(mine), there)
            _, count = self._look(region, mine, there)
            come = max(come, self.numbers.item(of.COME))
            new = self.missing[:count]
            region.stamp[1 - there, mine] = -np.inf
            if count:
                region.ready[there, new] = time + self.hit_cycles
                self.numbers[of.BACK] = 0.0
                self.insert(region.at, self.at, pointer(self.missing), count, there, False, False)
                self._log_back(back := self.numbers.item(of.BACK))
                self._write_back(back)
                acknowledged = self.write_miss_cycles
            self.stored[there] += LINE * np.count_nonzero(region.wrote[mine] < region.stamp[there, mine])
            region.wrote[mine] = self.inserted[there]
            if posted:
                region.ready[there, mine] = time
        busy = max(nbytes / self.write_rate, max(requests, len(lines)) * self.write_request_cycles)
        self.write_port = max(self.write_port, self.engine.now) + busy
        if self.log is not None:
            self.log.append((time, 0, 0, nbytes))
        taken = max(time, self.write_port)
        return taken, max(taken + acknowledged, come)

    def combine(
        self, time: float, lines: Lines, nbytes: int, half: int = 0, turns: float = 0.0, requests: int = 0
    ) -> tuple[float, float]:
        """An atomic or a reduction comes to the L2: when it has been taken in, and when it is done and acknowledged.

        It is done at the lines' homes, which have to have them. turns: for how many cycles it keeps a word, if it is
        of one line. requests: as for `write`.
        """
        if self.peers and (peer := self.peer(lines)) is not None:
            return peer.write(time, lines, nbytes)
        come = self.read(time, lines, 0, None)[1]
        region, index = self._locate(lines)
        far = bool((region.home[index] != half).any())
        taken = self.write(time, lines, nbytes, half, requests=requests)[0]
        done = max(come, taken + self.hit_cycles)
        if len(lines) == 1 and turns:
            line = int(lines[0])
            if len(self.one_word) > 8192:
                self.one_word = {k: free for k, free in self.one_word.items() if free > self.engine.now}
            begin = max(time, self.one_word.get(line, 0.0))
            self.one_word[line] = begin + turns
            done += begin - time
        return taken, done + far * self.far_cycles

    def skip_flush(self):
        """Forget the flush: its dirty lines count as pushed out by reads and stores in their present shares."""
        for half, inserted in enumerate(self.inserted.tolist()):
            if inserted:
                replaced = min(inserted / self.capacity, 1.0)
                self.stored[half] *= (1 - math.exp(-1)) / (1 - math.exp(-replaced))
            self.inserted[half], self.flushed[half] = max(inserted, self.capacity), 0.0

    def prefetch(self, time: float, lines: Lines, nbytes: float) -> float:
        """Lines are requested at `time`, for nobody: when the L2 has taken the requests."""
        self.read(time, lines, 0, None)
        if time > self.prefetched:
            self.prefetching = time
        self.prefetched = max(self.prefetched, float(self.free.max()) + self.miss_cycles)
        self.read_port = max(self.read_port, self.engine.now) + nbytes / self.prefetch_rate
        return max(self.read_port, time)
