"""The clock that predicts: SM units, tensor cores and memory of a machine profile. Memory is in memory.py.

It answers from figures that were published or measured (profiles/*.toml).
Unless it is told to move data, the tensor core computes nothing: what a tcgen05.ld returns is a uniform zero, so that
arithmetic on it costs next to nothing here, and is not stored. Times are the same to the bit.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np

from ..errors import Unsupported
from ..formats.cache_policy import EVICT_FIRST
from ..formats.tensormap import Im2colMap, TensorMap
from ..machine.clock import Clock
from ..state.global_memory import PARAM_WINDOW
from ..units.tcgen05 import tensor_ctas
from . import accesses, blocks, fences, issue, scoreboard, wgmma
from .halves import half_of
from .memory import LINE, Lines, MemoryModel
from .profile import Profile
from .sm import QUARTERS, SCHEDULERS, TMEM_TURNS, Sm
from .sm_clock import SmClocks


def interpolate(n: int, ns: list[float], values: list[float]) -> float:
    """Interpolate linearly in a table; below its first point by the first slope, but never below half of it."""
    if n <= ns[0]:
        return (
            values[0]
            if n == ns[0]
            else max(values[0] / 2, values[0] - (ns[0] - n) * (values[1] - values[0]) / (ns[1] - ns[0]))
        )
    at = min(bisect.bisect_left(ns, n), len(ns) - 1)
    a, b = ns[at - 1], ns[at]
    return values[at - 1] + (n - a) * (values[at] - values[at - 1]) / (b - a)


def _evenly_spaced(lines: np.ndarray) -> Lines:
    """Return ascending line numbers as a range if they are evenly spaced, else as they are."""
    steps = np.unique(np.diff(lines)).tolist() or [1]
    return range(int(lines[0]), int(lines[-1]) + 1, steps[0]) if len(steps) == 1 else lines


PARAMETER_LINE = 64  # bytes, measured: silicon/timing, mechanisms/ld.param
OPERAND_ROW = 32  # bytes of a row of A or B that an mma of any kind reads


class Touched(NamedTuple):
    """What an access touches of global memory: distinct lines, a range where they are evenly spaced.

    requests: how often a TMA unit asks for some of a line: for each row of a box, and each line of a row. Rows of 16
    bytes more than sectors, of 32 each, ask for these 16 on their own. parts: requests of 16 bytes. Measured on an H200
    in boxes of two to five dimensions, with swizzles and without, dense or not (silicon/probes/rows_of_boxes.py).
    """

    lines: Lines
    requests: int
    parts: int = 0


class TimingClock(Clock):
    """The clock of all launches of a timed run, which share the machine."""

    quantum = 0

    def __init__(self, profile: Profile, memory, engine, trace=None, computes_mma: bool = False):
        self.p, self.engine, self.computes_mma = profile, engine, computes_mma
        self.memory = MemoryModel(profile, memory, engine)
        if trace is not None:
            self.trace, self.memory.log = trace, []
            blocks.tell(self, trace)
        self.sms = [Sm() for _ in range(int(profile["sm"]["count"]))]
        self.clocks = SmClocks(profile, len(self.sms))
        self.figures = {k: tuple(v) for k, v in profile["issue"].items()}
        self._costs: dict[int, list[issue.Cost | issue.Untimed]] = {}
        self._wavefronts: dict[tuple, tuple[int, int]] = {}  # of an access to shared memory, by where its lanes lie
        self.tensor_busy = 0.0  # cycles for which tensor cores multiply, all together
        self._boxes: dict = {}  # lines of a box from its first one on, by its shape and place in that line
        self._maps: dict = {}  # id -> (tensormap, what its properties say)
        self._known: dict = {}  # tensormap by value -> the first launch that had it
        self._served: dict[float, float] = {}  # when a copy lands -> when the HBM has served its last line
        self.code_cycles = profile["sm"]["code_cycles"]
        self.scheduler = 0.0  # when the unit that starts and retires CTAs is free

    def program(self, program):
        return scoreboard.waiting(program)

    def costs(self, program) -> list[issue.Cost | issue.Untimed]:
        if id(program) not in self._costs:
            self._costs[id(program)] = issue.block_cycles(program, self.figures)
        return self._costs[id(program)]

    def usable(self, group, cost: issue.Cost) -> float:
        begin, why = scoreboard.usable(group.owed, cost.needs, group.t)
        if why:
            self.trace.stall(group, why, begin - group.t)
        return begin

    def parts(self, group) -> None:
        """ptxas predicates what few lanes do, and mixes it with what stands around it: so the block keeps its scheduler
        busy and its warp goes on, which waits for its slots with what it does next."""
        cost = group.launch.costs[group.pc]
        slower = self.clocks.slower(group.cta.sm, group.begun)
        schedulers, which = self.sms[group.cta.sm].schedulers, group.warp.index % SCHEDULERS
        schedulers[which] = max(schedulers[which], group.begun) + cost.parting * slower
        self._settle(group, cost, group.t, slower)

    @staticmethod
    def _settle(group, cost: issue.Cost, begin: float, slower: float) -> None:
        if cost.results is not None:
            scoreboard.settle(group.owed, cost.results, group.fetched, begin, slower)
            group.fetched.clear()

    def executed(self, group, cost: issue.Cost) -> float:
        """A block takes as long as its dependences say, or until its warp's scheduler has had the slots for it."""
        cycles, slots, _, results, _, size, tensor = cost
        sm, begun = self.sms[group.cta.sm], group.begun
        slower = self.clocks.slower(group.cta.sm, begun)
        code = group.program, group.pc
        if code not in sm.code:  # this SM has not executed it since the flush before the measurement
            sm.code.add(code)
            cycles += self.code_cycles * size
        free, which, done = sm.schedulers, group.warp.index % SCHEDULERS, group.t + cycles * slower
        end = free[which]
        end = free[which] = (end if end > begun else begun) + slots * slower
        if done > end:
            end = done
        if tensor:  # of mma.sync: each scheduler has one of an SM's tensor cores
            self.multiplies(group, begun, begun, tensor / SCHEDULERS)
        if results is not None:
            self._settle(group, cost, end - cost.cycles * slower, slower)
        return end

    def multiplies(self, group, now: float, begin: float, cycles: float) -> tuple[float, float]:
        """The tensor cores of a group's SM work for these cycles, from `begin` or when they are free. Returns when
        they start, and how many of the fastest clock that takes."""
        sm = self.sms[group.cta.sm]
        start = max(sm.tensor, begin)
        took = self.clocks.works(group.cta.sm, now, start, cycles)
        sm.tensor = start + took
        self.tensor_busy += took
        self.trace.tensor(group, group.cta, start, sm.tensor)
        return start, took

    def ticks(self, group) -> float:
        return self.clocks.ticks(group.cta.sm, group.t)

    def wake(self, warp, time: float) -> float:
        return self.p["sync"]["wake_cycles"] * self.clocks.slower(warp.cta.sm, time)

    def hesitation(self, warp) -> float:
        return 0.0

    def lingering(self, warp, wrote: bool) -> float:
        return 0.0

    def after(self, time: float, ns: float) -> float:
        return time + self.p.cycles(ns)

    def schedule_cta(self, now: float) -> float:
        """Return when the chip, which does one at a time, has started or retired another CTA."""
        self.scheduler = max(self.scheduler, now) + self.p.cycles(self.p["launch"]["cta_interval_ns"])
        return self.scheduler

    def cta_start(self, launch: int, sms: list[int]) -> float:
        """Cycles until a cluster runs on these SMs: longer where one of them has not had a CTA of its launch before."""
        now = self.engine.now
        first = any(self.sms[i].host != launch for i in sms)
        half = half_of(sms[0], len(sms), len(self.sms))
        for i in sms:
            if self.sms[i].host != launch:
                self.sms[i].new_launch()
            self.sms[i].host, self.sms[i].half = launch, half
        begin = self.p["launch"]["first_cta_ns" if first else "cta_start_ns"]
        return self.schedule_cta(now) - now + self.p.cycles(begin)

    # -- copies ------------------------------------------------------------------------------------------------
    def _issue(self, group, busy: float, key=None) -> float:
        """The TMA unit takes an instruction, whose requests keep it busy for some cycles: returns when they begin to
        leave. Later maps are fetched meanwhile."""
        tma = self.p["tma"]
        sm = self.sms[group.cta.sm]
        taken = max(sm.decode, group.t)
        slower = self.clocks.slower(group.cta.sm, group.t)
        issue = tma["issue_cycles"] * slower
        sm.decode = taken + issue
        start = max(sm.tma, taken if key is None else self._descriptor_ready(group, key, taken))
        sm.tma = start + max(issue, busy * slower)
        return start + issue

    def _asking(self, touched: Touched, nbytes: int) -> float:
        """Return for how many cycles the TMA unit asks for these lines: for a row or 128 bytes of it at a time."""
        tma = self.p["tma"]
        return max(nbytes / tma["bytes_per_cycle"], touched.requests * tma["request_cycles"])

    def _load(
        self, group, touched: Touched, nbytes: int, ctas, policy: int | None, key=None, last: float = 0.0
    ) -> float:
        start = self._issue(group, self._asking(touched, nbytes), key)
        landing = self._arrive(group, start, touched, nbytes, ctas, policy, last)
        self.trace.copy(group, "load", start, landing, nbytes)
        return landing

    def _arrive(
        self, group, start: float, touched: Touched, nbytes: int, ctas, policy: int | None, last: float = 0.0
    ) -> float:
        """Return when all of a copy has landed. last: cycles at its end beyond what every copy takes."""
        tma, unit = self.p["tma"], self.p["sm"]
        sm = group.cta.sm
        # SMs whose requests for one line can meet: those of a cluster, or every eighth of them
        leader, among = sm - group.cta.rank, int(self.p["l2"]["meeting"])
        cluster = leader // len(group.cta.cluster.ctas) % among if among else leader
        fetched = self.memory.read_bytes
        first = done = start
        if len(touched.lines):
            gone_first, half = policy == EVICT_FIRST, self.sms[sm].half
            carried = self.memory.carried(touched.requests, nbytes)
            first, done = self.memory.read(start, touched.lines, carried, half, sm, len(ctas), cluster, gone_first)
        slower = self.clocks.slower(sm, group.t)
        landing = done + self._asking(touched, nbytes) * slower  # the last request leaves that much after the first
        for cta in ctas:
            sm = self.sms[cta.sm]
            slower = self.clocks.slower(cta.sm, group.t)
            sm.ingest = max(sm.ingest, first) + nbytes / unit["ingest_bytes_per_cycle"] * slower
            landing = max(landing, sm.ingest)
        if len(ctas) > 1:
            landing += tma["multicast_cycles"]
        landing += tma["latency_cycles"] + last
        mine = self.sms[group.cta.sm]
        mine.come = max(mine.come, landing)
        if self.memory.read_bytes > fetched:
            self._served[landing] = self.memory.served
        return landing

    def decided(self, when: float) -> float:
        return max(self._served.pop(when, when), self.engine.now)

    def overtaken(self, when: float) -> float:
        """The HBM does not serve requests in their order: those that wait behind take their share of the time."""
        return when + self.memory.overtaking()

    def tma_load(self, group, tm: TensorMap, map_at: int, coords, nbytes: int, ctas, policy: int | None) -> float:
        key, last = self._descriptor(group, tm, map_at), self.p["tma"]["tensor_cycles"]
        return self._load(group, self.touched(tm, coords), nbytes, ctas, policy, key, last)

    def bulk_load(self, group, address: int, nbytes: int, ctas, policy: int | None) -> float:
        return self._load(group, self._span(address, nbytes), nbytes, ctas, policy)

    def shared_copy(self, group, nbytes: int) -> float:
        return (
            self._issue(group, nbytes / self.p["tma"]["bytes_per_cycle"])
            + self.p["sync"]["remote_cycles"]
            + nbytes / self.p["sm"]["ingest_bytes_per_cycle"]
        )

    def remote(self, group, nbytes: int = 0) -> float:
        sync, begin = self.p["sync"], group.t
        if nbytes:  # of st.async or red.async
            sm = self.sms[group.cta.sm]
            busy = max(nbytes, sync["cluster_least_bytes"]) / sync["cluster_bytes_per_cycle"]
            sm.far = max(sm.far, group.t) + busy
            begin = sm.far + sync["cluster_async_cycles"]
            group.t = max(group.t, sm.far - self.p["sm"]["store_queue_cycles"])
        return begin + sync["remote_cycles"]

    def fence(self, group, what: str, scope: str = "gpu") -> float:
        least = self.p["link"]["fence_cycles"] if scope == "sys" and self.memory.peers else 0.0
        sm, sync = self.sms[group.cta.sm], self.p["sync"]
        return max(group.t, fences.passed(what, group.t, sm, sync, self.figures, least))

    def tma_store(
        self, group, tm: TensorMap, map_at: int, coords, nbytes: int, reduces: bool = False
    ) -> tuple[float, float]:
        return self._store(group, self.touched(tm, coords), nbytes, reduces, self._descriptor(group, tm, map_at))

    def bulk_store(self, group, address: int, nbytes: int, reduces: bool = False) -> tuple[float, float]:
        return self._store(group, self._span(address, nbytes), nbytes, reduces)

    def _store(self, group, touched: Touched, nbytes: int, reduces: bool, key=None) -> tuple[float, float]:
        start, tma = self._issue(group, self._asking(touched, nbytes), key), self.p["tma"]
        sm = self.sms[group.cta.sm]
        rate = self.p["atomic"]["bulk_bytes_per_cycle"] if reduces else tma["store_bytes_per_cycle"]
        parts = touched.requests if reduces else touched.parts  # a part of a sector takes longer than a sector
        asked = (touched.requests - parts) * tma["request_cycles"] + parts * tma["part_cycles"]
        turns = max(nbytes / rate, asked)
        sm.egress = sm.shared.turns(max(sm.egress, start), turns)
        read = sm.egress + tma["store_latency_cycles"]
        written = max(read, self._write(sm, touched, nbytes, reduces)[1]) if len(touched.lines) else read
        group.launch.last_store = max(group.launch.last_store, written)
        self.trace.copy(group, "store", start, written, nbytes)
        # On an H200 wait_group returns a cycle after wait_group.read; only the grid's end waits for the L2.
        return read, read

    def tma_prefetch(self, group, tm: TensorMap, map_at: int, coords, nbytes: int) -> None:
        self._prefetch(group, self.touched(tm, coords), nbytes, self._descriptor(group, tm, map_at))

    def bulk_prefetch(self, group, address: int, nbytes: int) -> None:
        self._prefetch(group, self._span(address, nbytes), nbytes)

    def _prefetch(self, group, touched: Touched, nbytes: int, key=None) -> None:
        lines = touched.lines
        group.launch.memory.hint(np.asarray(lines, np.uint64) * np.uint64(LINE))
        start = self._issue(group, self._asking(touched, nbytes), key)
        if len(lines):  # what the unit is told next waits until the L2 has taken all requests
            sm = self.sms[group.cta.sm]
            carried = self.memory.carried(touched.requests, nbytes)
            sm.tma = max(sm.tma, self.memory.prefetch(start, lines, carried))

    def line_prefetch(self, group, addresses: np.ndarray) -> None:
        """An SM asks for a line a cycle, as the TMA unit does: on an H200 one prefetches as fast either way."""
        lines = self.lines_at(addresses)
        group.launch.memory.hint(addresses)
        sm = self.sms[group.cta.sm]
        sm.prefetches = max(sm.prefetches, group.t) + len(lines)
        self.memory.prefetch(sm.prefetches, lines, len(lines) * LINE)

    def _write(self, sm: Sm, touched: Touched, nbytes: int, reduces: bool = False) -> tuple[float, float]:
        """Return when the L2 has taken what leaves an SM, and when it acknowledges it; the SM waits for a slow L2."""
        enters = self.memory.combine if reduces else self.memory.write
        taken, acknowledged = enters(sm.egress, touched.lines, nbytes, sm.half, requests=touched.requests)
        sm.egress = max(sm.egress, taken - self.p["sm"]["store_queue_cycles"])
        return taken, acknowledged

    @staticmethod
    def _descriptor(group, tm: TensorMap, map_at: int):
        """Return what tells descriptors apart, the launch among it: no cache keeps them from launch to launch."""
        return group.launch.number, map_at >= PARAM_WINDOW, map_at, tm.address, tm.dims, tm.box

    def _descriptor_ready(self, group, key, start: float) -> float:
        """Return when the TMA unit has a tensor map. Its nearest cache forgets the least recently used ones."""
        tma, sm = self.p["tma"], self.sms[group.cta.sm]
        if sm.launch != group.launch.number:
            sm.launch = group.launch.number
            start += tma["first_tensor_cycles"]
        ready = sm.seen.pop(key, None)
        if ready is None and key in sm.forgotten:
            ready = start + tma["first_use_cycles"]
        elif ready is None:
            ready = self._descriptor_fetch(sm, key, start)
        sm.remember(key, ready, tma["descriptors"])
        return max(ready, start)

    def _descriptor_fetch(self, sm: Sm, key, start: float) -> float:
        tma = self.p["tma"]
        launch, by_value, address = key[:3]
        if not by_value:
            line = address // LINE
            fetched = self.memory.read_bytes
            come = self.memory.read(start, range(line, line + 1), LINE, sm.half)[1]
            cold = self.memory.read_bytes > fetched
            start = come + tma["latency_cycles"]
        else:
            cold = self._known.setdefault(key[3:], launch) == launch
        return start + tma["first_use_cold_cycles" if cold else "first_use_cycles"]

    def descriptor_prefetch(self, group, tm, map_at: int) -> None:
        key = self._descriptor(group, tm, map_at)
        sm = self.sms[group.cta.sm]
        if key not in sm.seen and key not in sm.forgotten:
            sm.remember(key, self._descriptor_fetch(sm, key, group.t), self.p["tma"]["descriptors"])

    def tensormap_acquire(self, group) -> None:
        """The fence makes a round trip to the L2; what that takes where nobody is in the way is in the block's cost."""
        group.t = self.memory.admitted(group.t)

    def global_store(self, group, addresses: np.ndarray, size: int, row: bool = False) -> None:
        """Stores go out through the SM: a wavefront per line, but whole sectors as fast as if they lay in a row."""
        nbytes = len(addresses) * size
        if row:
            lines, sectors = self._span(int(addresses[0]), nbytes).lines, 0
        else:
            lines, sectors = self.lines_at(addresses), len(np.unique(addresses // np.uint64(accesses.SECTOR)))
        sm = self.sms[group.cta.sm]
        unit = self.p["sm"]
        far = self.memory.peers and self.memory.peer(lines) is not None
        rate = self.p["link"]["store_bytes_per_cycle"] if far else unit["store_bytes_per_cycle"]
        wavefronts = len(lines) if sectors * accesses.SECTOR > nbytes else 1
        busy = max(wavefronts * unit["store_instruction_cycles"], nbytes / rate)
        sm.egress = max(sm.egress, group.t) + busy
        taken, done = self._write(sm, Touched(lines, len(lines)), nbytes)
        sm.stored_since_fence, sm.drained = True, max(sm.drained, taken)
        group.t = max(group.t, sm.egress - unit["store_queue_cycles"])  # the store queue is finite
        group.launch.last_store = max(group.launch.last_store, done)

    def global_load(self, group, addresses: np.ndarray, size: int, strong: bool) -> None:
        """The registers are owed until the memory has answered, and no sooner than the latency of an L2 hit.

        Loads of one block are taken to be under way together.
        """
        lines = self.lines_at(addresses)
        sm = group.cta.sm
        half = self.sms[sm].half
        come = self.memory.read(group.t, lines, len(lines) * LINE, half, sm)[1] + self.p["sm"]["load_cycles"]
        if strong and len(lines) == 1:  # of others the L1 makes one of all that the SM's warps ask for
            come += self.memory.in_turn(group.t, int(lines[0]), half)
        self.sms[sm].come = max(self.sms[sm].come, come)
        group.fetched[group.fetching] = come

    async_load, atomic = accesses.copy, accesses.atomic
    cluster_access, constant_load = accesses.cluster_access, accesses.constant

    def copied(self, group, landed: float) -> float:
        return max(group.t, landed)

    def parameter_load(self, group, addresses) -> None:
        """A line that no CTA of the launch has read here yet comes from farther away."""
        sm = self.sms[group.cta.sm]
        one = isinstance(addresses, int)
        for line in [addresses // PARAMETER_LINE] if one else np.unique(addresses // PARAMETER_LINE).tolist():
            if line not in sm.constants:
                sm.constants.add(line)
                group.t += self.p["sm"]["constant_miss_cycles"]

    def shared_access(self, group, addresses, size: int) -> None:
        """ld, st and matrices of shared memory: `size` bytes at the address of each lane, or all at one."""
        sm = self.sms[group.cta.sm]
        wavefronts = self.wavefronts_of(addresses, size)[0] if isinstance(addresses, np.ndarray) else 1
        unit, issued = self.p["sm"], self.figures["shared"][0]
        slower = self.clocks.slower(group.cta.sm, group.begun)
        passed = sm.shared.access(group.begun, wavefronts * slower) - unit["shared_queue_cycles"]
        group.t = max(group.t + (wavefronts * unit["wavefront_cycles"] - issued) * slower, group.t, passed)

    def matrix_load(self, group, addresses: np.ndarray, size: int) -> None:
        """The warp goes on meanwhile; a conflict of banks makes its block longer, or all that the SM's warps read."""
        sm, slower = self.sms[group.cta.sm], self.clocks.slower(group.cta.sm, group.begun)
        wavefronts, least = self.wavefronts_of(addresses, size)
        passed = sm.shared.access(group.begun, wavefronts * slower) - group.launch.costs[group.pc].cycles * slower
        group.t = max(group.t + (wavefronts - least) * self.p["sm"]["wavefront_cycles"] * slower, passed)

    def wavefronts_of(self, addresses: np.ndarray, size: int) -> tuple[int, int]:
        """Cycles of an access, and what it would take without bank conflicts: 128 bytes of lanes at a time, and of
        those one word a bank (PTX ISA has no word on it; CUDA programming guide, "Shared Memory": 32 banks of 4
        bytes)."""
        key = (addresses - addresses[0]).tobytes(), int(addresses[0]) & 127, size
        known = self._wavefronts.get(key)
        if known is None:
            low = int(np.minimum.reduce(addresses)) & -128
            words = ((addresses - np.uint64(low))[:, None] + np.arange(0, size, 4, dtype=np.uint64)).astype(int) // 4
            together = max(1, 128 // max(size, 4))
            parts = [np.unique(words[i : i + together]) for i in range(0, len(words), together)]
            known = sum(int(np.bincount(each % 32).max()) for each in parts), len(parts)
            self._wavefronts[key] = known
        return known

    # -- lines of a box ----------------------------------------------------------------------------------------
    @staticmethod
    def lines_at(addresses: np.ndarray) -> np.ndarray:
        lines = (addresses // np.uint64(LINE)).astype(np.int64)
        return lines if 0 not in (lines[1:] > lines[:-1]).tobytes() else np.unique(lines)

    @staticmethod
    def _span(address: int, nbytes: int) -> Touched:
        lines = range(address // LINE, (address + nbytes - 1) // LINE + 1)
        return Touched(lines, len(lines))

    def touched(self, tm: TensorMap, coords: tuple[int, ...]) -> Touched:
        """What the in-bounds part of a box touches, or four rows if that is how many there are coordinates for."""
        if isinstance(tm, Im2colMap):
            raise Unsupported("the time of a copy in im2col mode, which nobody has measured")
        if len(coords) > len(tm.dims):  # gather4, scatter4
            rows = [self.touched(tm, (coords[0], row)) for row in coords[1:]]
            distinct = np.unique(np.concatenate([np.asarray(row.lines, np.int64) for row in rows]))
            return Touched(distinct, sum(row.requests for row in rows), sum(row.parts for row in rows))
        _, bits, strides = self._maps.get(id(tm)) or self._maps.setdefault(id(tm), (tm, tm.bits, tm.strides_bytes))
        low, extent = coords, tm.box
        for c, b, d in zip(coords, extent, tm.dims):
            if c < 0 or c + b > d:
                low = tuple(max(c, 0) for c in coords)
                extent = tuple(min(c + b, d) - lo for c, b, d, lo in zip(coords, tm.box, tm.dims, low))
                if min(extent) <= 0:
                    return Touched(range(0), 0)
                break
        first = tm.address + low[0] * bits // 8
        for lo, s in zip(low[1:], strides):
            first += lo * s
        key = (extent, bits, strides, first % LINE)
        known = self._boxes.get(key)
        if known is None:
            row = extent[0] * bits // 8
            at = np.zeros(1, np.int64)
            for n, s in zip(extent[1:], strides, strict=True):
                at = (at[:, None] + np.arange(n)[None, :] * s).ravel()
            at += first % LINE
            each = np.arange((row + LINE - 1) // LINE + 1) * LINE
            points = np.minimum(at[:, None] + each[None, :], at[:, None] + row - 1)
            parts = len(at) if row % accesses.SECTOR else 0
            requests = int(((at + row - 1) // LINE - at // LINE + 1).sum()) + (parts if row > accesses.SECTOR else 0)
            known = self._boxes[key] = Touched(_evenly_spaced(np.unique(points // LINE)), requests, parts)
        (lines, requests, parts), start = known, first // LINE  # _replace takes twice as long
        lines = range(lines.start + start, lines.stop + start, lines.step) if type(lines) is range else lines + start
        return Touched(lines, requests, parts)

    # -- tensor core -------------------------------------------------------------------------------------------
    def _shape(self, description, pair: bool) -> str:
        if pair:
            return "pair_m128" if description.m == 128 else "pair_m256"
        return "m64" if description.m == 64 else "m128"

    def mma(self, group, description, pair: bool, a_in_tmem: bool) -> float:
        t = self.p["tensor"]
        shape = self._shape(description, pair)
        ctas = tensor_ctas(group, pair)
        sms = [self.sms[c.sm] for c in ctas]
        start = max(group.t, *(s.tensor for s in sms), *(s.copy + t["copy_latency"] if s.copy else 0.0 for s in sms))
        interval = interpolate(description.n, t["n"], t[shape])
        slope, base = t[f"latency_{shape}"]
        done = start + slope * description.n + base - t["commit_cycles"] - t["harness_cycles"]
        self.tensor_busy += interval * len(sms)
        rows = (0 if a_in_tmem else description.m // len(sms)) + description.n // len(sms)  # that each SM reads
        for s in sms:
            s.tensor = start + interval
            s.shared.read_operands(self.engine.now, start, start + interval, rows * OPERAND_ROW / (interval * LINE))
        for c in ctas:
            self.trace.tensor(group, c, start, start + interval)
        return done

    wgmma = wgmma.issue

    def tensor_copy(self, group, pair: bool, nbytes: int) -> float:
        t = self.p["tensor"]
        sms = [self.sms[c.sm] for c in tensor_ctas(group, pair)]
        end = max(group.t, *(s.copy for s in sms)) + nbytes / t["copy_bytes_per_cycle"]
        for s in sms:
            s.copy = end
        return end + t["copy_latency"]

    def commit(self, group) -> float:
        """Return when a commit arrives after the last operation of the pipe; Pipe.push keeps the order."""
        return max(group.t, group.cta.pipe.last) + self.p["tensor"]["commit_cycles"]

    def tmem_load(self, group, registers: int, shape: str) -> bool:
        moved = self._tmem(group, registers, shape)
        group.loads_ready = max(group.loads_ready, moved + self.p["tensor"]["load_latency"])
        return True

    def tmem_store(self, group, registers: int, shape: str) -> bool:
        moved = self._tmem(group, registers, shape)
        group.stores_ready = max(group.stores_ready, moved + self.p["tensor"]["store_latency"])
        return True

    def _tmem(self, group, registers: int, shape: str) -> float:
        """A warp reaches its own quarter of the lanes only (PTX ISA 9.7.16.8, access restrictions), whose path loads
        and stores share; returns when it has moved so much."""
        quarters, which = self.sms[group.cta.sm].quarters, group.warp.index % QUARTERS
        cycles = registers * 128 / self.p["tensor"]["quarter_bytes_per_cycle"] * TMEM_TURNS.get(shape, 1)
        quarters[which] = max(quarters[which], group.t) + cycles
        self.trace.duty(group, "tmem")
        return quarters[which]
