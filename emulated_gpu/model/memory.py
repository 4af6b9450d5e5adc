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

from . import halves

LINE = 128
Lines = np.ndarray | range  # numbers (address // LINE) of distinct lines of one region


def _by_home(at: np.ndarray, home: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Part lines by the half of the L2 that is their home."""
    which = home.tobytes()  # faster to look through than an array
    if 1 not in which:
        return at, at[:0]
    if 0 not in which:
        return at[:0], at
    there = home != 0
    return at[~there], at[there]


class L2Region:
    """One region's lines: the HBM channel of each, how much longer than the fastest it takes (cycles), its home, when
    it is (or was) in each half of the L2, and how many bytes had been inserted there by then; of lines loaded as
    evict_first, how many of those. Of each block, how many had opened rows of the DRAM when it last did.

    `base` is a line number of our own: host addresses differ from run to run, and modelled times must not.
    """

    __slots__ = ("first", "lines", "channel", "late", "home", "ready", "stamp", "turn", "base", "opened")

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
        self.turn: np.ndarray | None = None  # [half, line], inf of the others
        self.opened = np.full((base + lines) // halves.BLOCK - base // halves.BLOCK + 1, -np.inf)


class MemoryModel:
    """Shared by all SMs. Times are in SM cycles; addresses are lines (address // 128). engine: tells the time."""

    def __init__(self, profile, memory, engine):
        p = profile
        hbm, l2 = p["hbm"], p["l2"]
        self.memory, self.engine = memory, engine
        self.channels = int(hbm["channels"])
        self.line_cycles = LINE * self.channels / p.bytes_per_cycle(hbm["read_tb_s"])
        self.write_cycles = LINE * self.channels / p.bytes_per_cycle(hbm["write_tb_s"])
        self.turn_cycles = LINE * self.channels / p.bytes_per_cycle(hbm["write_between_reads_tb_s"])
        self.free_until = 0.0  # when all channels are free
        self.served = 0.0  # when the HBM has served the latest read
        self.row_cycles, self.open_blocks = p.cycles(hbm["row_ns"]), hbm["open_blocks"]
        self.opened = 0  # blocks that have opened rows so far
        self.each = self.line_cycles  # what the latest line took, with what it pushed out
        self.window, self.overtaken_share = hbm["window_lines"], hbm["overtaking_share"]
        # 4096 quantiles of what a line takes longer than the fastest
        self.late = hbm["spread_cycles"] * ((np.arange(4096) + 0.5) / 4096) ** hbm["spread_power"]
        self.free = [0.0] * self.channels  # cycle at which each channel has served what it was given
        self.capacity = l2["bytes"] / 2  # of a half
        self.links = halves.Links(p.bytes_per_cycle(l2["link_tb_s"]))
        self.far_cycles = l2["far_cycles"]
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
        self.miss_cycles = hbm["latency_cycles"]
        self.inserted = [0.0, 0.0]  # bytes, by half
        self.room_first = l2["evict_first_share"] * self.capacity  # of a half, for lines loaded as evict_first
        self.inserted_first = [0.0, 0.0]
        # what the flush before the measurement left behind in each half, evenly
        self.flushed = [l2["dirty_at_start"] * self.capacity] * 2
        self.stored = [0.0, 0.0]  # bytes of lines stored since then
        self.pushed_out = 0.0  # bytes that stores have pushed out and that no channel has taken yet
        self.regions: dict[int, L2Region] = {}
        self.last: L2Region | None = None  # the one that was asked for last
        self.read_bytes = self.written_bytes = 0
        self.log: list[tuple[float, float, float, float]] | None = None  # time, bytes read, written, from L2; if traced
        self.peers: dict = {}  # device -> its memory, a link.Peer

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

    @staticmethod
    def _pick(index: slice | np.ndarray, those: np.ndarray) -> np.ndarray:
        """Select those of the lines at `index` for which `those` holds."""
        return (np.arange(index.start, index.stop, index.step) if type(index) is slice else index)[those]

    @property
    def dirty(self) -> float:
        """Bytes of the flush that are still in L2."""
        return self.flushed[0] + self.flushed[1]

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
        there, ready = self._found(region, index, half)
        first = done = time + self.hit_cycles
        missing, held, which = index, 0.0, there.tobytes()
        if 1 in which:
            hits = ready[there]
            done = max(done, float(hits.max()))
            if done > first and self.prefetched > time and nbytes:
                done = held = max(done, self.prefetched)
            elif len(hits) == len(there) and self.free_until > time:
                time = self.admitted(time)
                first = done = max(done, time + self.hit_cycles)
            missing = self._pick(index, ~there)
        fetched = 0
        if 0 in which:
            fetched, arrival = self._miss(region, missing, half, time, gone_first)
            done = max(done, arrival)
            if 2 * fetched > len(there):
                first = time + self.miss_cycles
        done = max(done, self._cross(time, held, lines, nbytes, sm, sharers, cluster) + self.hit_cycles)
        if self.log is not None:
            self.log.append((done, fetched * LINE, 0, nbytes))
        return first, done

    def _found(self, region: L2Region, index: slice | np.ndarray, half: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return whether a half of the L2, or else each line's home, has the lines at `index`, and from when on."""
        if half is not None:
            return self._kept(region, half, index), region.ready[half, index]
        at = self._pick(index, slice(None))
        home = region.home[at]
        kept = np.where(home == 0, self._kept(region, 0, at), self._kept(region, 1, at))
        return kept, region.ready[home, at]

    def _kept(self, region: L2Region, half: int, at: slice | np.ndarray) -> np.ndarray:
        """Return which lines a half still has."""
        kept = region.stamp[half, at] > self.inserted[half] - self.capacity
        if region.turn is not None:
            kept &= region.turn[half, at] > self.inserted_first[half] - self.room_first
        return kept

    def _miss(
        self, region: L2Region, missing: slice | np.ndarray, half: int | None, time: float, gone_first: bool
    ) -> tuple[int, float]:
        """Lines that a half does not have come from the other one, or from the HBM: how many from there, when the last.

        Those of the other half stay in both.
        """
        at, arrival = self._pick(missing, slice(None)), time
        far = np.zeros(0, int)
        if half is not None:
            away = region.home[at] != half
            far = at[away]
            kept = self._kept(region, 1 - half, far)
            if kept.any():
                at = np.concatenate((at[~away], far[~kept]))
                arrival = max(time + self.hit_cycles, float(region.ready[1 - half, far[kept]].max())) + self.far_cycles
        if len(at):
            home = region.home[at]
            first, second = _by_home(at, home)
            back = self._insert(region, first, 0, gone_first) if len(first) else 0.0
            back += self._insert(region, second, 1, gone_first) if len(second) else 0.0
            if len(far):
                back += self._insert(region, far, half, gone_first)
            more = back / LINE * self.turn_cycles + self._rows(region, at) * self.row_cycles
            self.each = each = self.line_cycles + more / len(at)
            self.served = self._fetch(region.channel[at].tolist(), region.late[at].tolist(), time, each)
            arrival = max(arrival, self.served + self.miss_cycles)
            region.ready[home, at] = self.served + self.miss_cycles
            self.read_bytes += len(at) * LINE
        elif len(far):
            self._write_back(self._insert(region, far, half, gone_first))
        if len(far):
            arrival = max(arrival, self.links.carry(half, self.engine.now, region.channel[far], LINE) + self.far_cycles)
            region.ready[half, far] = arrival
        return len(at), arrival

    def _rows(self, region: L2Region, at: np.ndarray) -> float:
        """How many rows of the DRAM lines open: one for each piece without a gap in a block, unless it is still open.

        A block's rows stay open the less likely, the more other blocks have opened theirs since then.
        """
        blocks = (at + region.base % halves.BLOCK) // halves.BLOCK
        changes = blocks[1:] != blocks[:-1]
        begins = np.ones(len(at), bool)
        np.logical_or(at[1:] - at[:-1] != 1, changes, out=begins[1:])
        blocks = blocks[begins]
        others = region.opened[blocks]
        others -= self.opened  # of each block how many opened their rows since it did, negative
        others /= self.open_blocks
        self.opened += 1 + np.count_nonzero(changes)
        region.opened[blocks] = self.opened
        return float(np.add.reduce(1 - np.exp(others)))

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

    def _fetch(self, channels: list[int], late: list[float], time: float, each: float) -> float:
        """Each channel serves its lines one after the other, `each` cycles a line; when the last has come.

        Requests are known some time before they leave their SM: they must not keep a channel from others until then.
        """
        free, last, now = self.free, time, self.engine.now
        for c, more in zip(channels, late):
            end = free[c]
            free[c] = end = (end if end > now else now) + each
            end = (end if end > time else time) + more
            if end > last:
                last = end
        self.free_until = max(self.free_until, last)
        return last

    def backlog(self, time: float) -> float:
        """Return for how long the HBM's channels are busy from then on, in the mean."""
        return sum([end - time for end in self.free if end > time]) / self.channels

    def overtaking(self) -> float:
        """Return how much longer a copy takes whose last line is served now, since others behind it overtake it."""
        return min(self.window * self.each, self.overtaken_share * self.backlog(self.engine.now))

    def admitted(self, time: float) -> float:
        """Return when the L2 admits a request: a window of lines may wait for the HBM, all others wait outside.

        On an H200 a tensor map that was edited while loads of 64 or 128 KiB into each SM were under way, and the load
        through it, whose lines are all in L2, come when the loads have; behind those of one SM alone nothing waits.
        """
        return time + max(0.0, self.backlog(time) - self.window * self.each)

    def _insert(self, region: L2Region, at: np.ndarray, half: int, gone_first: bool = False) -> float:
        """New lines push out old ones; returns how many bytes of those have been stored and must be written back."""
        n = len(at) * LINE
        self.inserted[half] += n
        region.stamp[half, at] = self.inserted[half]
        if gone_first and self.room_first < self.capacity:
            if region.turn is None:
                region.turn = np.full((2, region.lines), np.inf)
            self.inserted_first[half] += n
            region.turn[half, at] = self.inserted_first[half]
        elif region.turn is not None:
            region.turn[half, at] = np.inf
        back = 0.0
        if self.flushed[half] > 0:
            back = min(self.flushed[half], self.flushed[half] * n / max(self.capacity - self.inserted[half] + n, n, 1))
            self.flushed[half] -= back
        stored = self.stored[half] * min(n / self.capacity, 1.0)
        self.stored[half] -= stored
        back += stored
        self.written_bytes += back
        if self.log is not None and back:
            self.log.append((self.engine.now, 0, back, 0))
        return back

    def _write_back(self, nbytes: float):
        """Write lines back that stores have pushed out, on all channels at once."""
        self.pushed_out += nbytes
        if self.pushed_out >= LINE * self.channels:
            busy = self.pushed_out / LINE / self.channels * self.write_cycles
            self.pushed_out, now = 0.0, self.engine.now
            self.free = [(end if end > now else now) + busy for end in self.free]

    def write(
        self, time: float, lines: Lines, nbytes: int, half: int = 0, posted: bool = False, requests: int = 0
    ) -> tuple[float, float]:
        """A store arrives at the L2 from a half: when it has been taken in and when it is acknowledged.

        requests: in how many it comes, if there are more than lines.

        Lines are kept at home; what the other half had of them is old. posted: it comes from another device, and nobody
        sees it before.
        """
        if self.peers and (peer := self.peer(lines)) is not None:
            return peer.write(time, lines, nbytes)
        region, index = self._locate(lines)
        at = self._pick(index, slice(None))
        home = region.home[at]
        acknowledged = self.hit_cycles
        for there, mine in enumerate(_by_home(at, home)):
            if not len(mine):
                continue
            if there != half:
                self.links.carry(there, self.engine.now, region.channel[mine], nbytes / len(at))
            new = mine[~self._kept(region, there, mine)]
            region.stamp[1 - there, mine] = -np.inf
            if len(new):
                region.ready[there, new] = time + self.hit_cycles
                self._write_back(self._insert(region, new, there))
                self.stored[there] += len(new) * LINE
                acknowledged = self.write_miss_cycles
            if posted:
                region.ready[there, mine] = time
        busy = max(nbytes / self.write_rate, max(requests, len(lines)) * self.write_request_cycles)
        self.write_port = max(self.write_port, self.engine.now) + busy
        if self.log is not None:
            self.log.append((time, 0, 0, nbytes))
        taken = max(time, self.write_port)
        return taken, taken + acknowledged

    def combine(
        self, time: float, lines: Lines, nbytes: int, half: int = 0, turns: float = 0.0, requests: int = 0
    ) -> tuple[float, float]:
        """An atomic or a reduction comes to the L2: when it has been taken in, and when it is done and acknowledged.

        It is done at the lines' homes, which have to have them. turns: for how many cycles it keeps a word, if it is
        of one line. requests: as for `write`.
        """
        if self.peers and (peer := self.peer(lines)) is not None:
            return peer.write(time, lines, nbytes)
        fetched = self.read_bytes
        come = self.read(time, lines, 0, None)[1]
        if fetched < self.read_bytes:  # they will have to be written back
            self.stored = [each + (self.read_bytes - fetched) / 2 for each in self.stored]
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
        for half, inserted in enumerate(self.inserted):
            if inserted:
                replaced = min(inserted / self.capacity, 1.0)
                self.stored[half] *= (1 - math.exp(-1)) / (1 - math.exp(-replaced))
            self.inserted[half], self.flushed[half] = max(inserted, self.capacity), 0.0

    def prefetch(self, time: float, lines: Lines, nbytes: float) -> float:
        """Lines are requested at `time`, for nobody: when the L2 has taken the requests."""
        self.read(time, lines, 0, None)
        if time > self.prefetched:
            self.prefetching = time
        self.prefetched = max(self.prefetched, max(self.free) + self.miss_cycles)
        self.read_port = max(self.read_port, self.engine.now) + nbytes / self.prefetch_rate
        return max(self.read_port, time)
