"""One kernel launch: geometry, parameters, placement of CTAs, the run to its end (PTX ISA 2.2; CUDA launch rules)."""

from __future__ import annotations

import contextlib
import math
import random
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import numpy as np
from threadpoolctl import ThreadpoolController

from ..chip import B200, QUARTERS, SHARED_PORTION, Chip, registers_of_cta, rounded
from ..errors import EmulatorError, Fault, Hang, LaunchRefused, ResultsDecide
from ..formats import cubin
from ..formats.lanes import ranges
from ..ptx.control_flow import ControlFlow
from ..ptx.isa import lookup
from ..ptx.syntax import Instr, Special, Symbol, Variable, leaves
from ..state.barrier import Waitable
from ..state.definedness import Definedness
from ..state.global_memory import WORKSPACE, GlobalMemory
from ..state.global_shadow import GlobalShadow
from ..state.order import EVER, Location, Order, Space
from ..state.parameters import Parameters
from ..state.pdl_dependency import Dependencies
from ..state.shadow import Room
from ..state.shared_memory import BASE, RANK_SHIFT
from .by_value import ByValue
from .clock import Clock
from .cta import Cluster
from .engine import Engine
from .placement import Needs, Placement
from .schedule import FunctionalClock, Schedule, Watched
from .special import TIMERS, Origins
from .unused import Unused
from .warp import actor_of, follows, guesses, instruction_of, place_of, selects_alone

_BLAS = ThreadpoolController()
_rooms: weakref.WeakKeyDictionary[ControlFlow, Room] = weakref.WeakKeyDictionary()  # of shadows of shared memory


PATIENCE = 5_000  # turns of other warps in which somebody may write what has been read too early
INVALID_CLUSTER = 912  # cudaErrorInvalidClusterSize


@contextlib.contextmanager
def calm():
    """NumPy without warnings, and without BLAS threads, of which small matrix products have only cost."""
    with _BLAS.limit(limits=1, user_api="blas"), np.errstate(all="ignore"):
        yield


class Enough(Exception):
    """Raised when whoever collects the faults of a launch has enough of them."""


class Owner:
    """Receives a launch's milestones and answers its questions about others; here there are none."""

    def no_room(self, launch: Launch) -> None:
        """The next cluster fits on no SM now, and none of this launch runs."""
        size = math.prod(launch.cluster)
        raise LaunchRefused(f"a cluster of {size} CTAs with {launch.shared_bytes} bytes each fits no SM")

    def cluster_done(self, launch: Launch, cluster: Cluster) -> None:
        launch.start_clusters()

    def dependency_wait(self, group) -> bool:
        """Return whether the launch before has completed; if not, the group sleeps (griddepcontrol.wait)."""
        return True

    def launch_dependents(self, cta) -> None:
        """A CTA has executed griddepcontrol.launch_dependents."""

    def landed(self, launch: Launch) -> None:
        """Learn that all asynchronous work of the launch has completed."""

    def waiting(self, launch: Launch) -> list[str]:
        """List who waits for what, where nobody can go on."""
        return launch.waiting()


@dataclass
class Shared:
    """Holds what a launch shares with those on other devices: order of events, shadows, flags; and where it starts.

    device: which one it runs on. known: what its threads know when they start, clocks by space.
    """

    order: Order
    shadow: GlobalShadow
    locations: dict[int, Location]
    device: int
    known: dict[Space, np.ndarray]


@dataclass(frozen=True)
class Code:
    """A kernel to launch, as its module is loaded.

    symbols: addresses of the module's variables in global and constant memory, by name; shared: those in shared memory.
    """

    program: ControlFlow
    symbols: dict[str, int]
    shared: dict[str, Variable]


@dataclass(frozen=True)
class Geometry:
    """How many threads a launch has, and how they are grouped.

    grid: CTAs; block: threads of a CTA; cluster: CTAs of a cluster, None for what the kernel says. dynamic_shared:
    bytes of shared memory beside what the kernel declares.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None = None
    dynamic_shared: int = 0


@dataclass(frozen=True)
class LaunchOptions:
    """What host code asks for with a launch, and how it is executed and checked.

    pdl: it may start before the launch ahead has ended. cooperative: all CTAs run at once, or it is a Fault; the grid
    gets a barrier of its own in global memory (CUDA C++ Programming Guide, Grid Synchronization). number: which launch
    of its session it is; grid_id: what %gridid is, if not that: the same in all replays of a graph. predecessor: the
    accesses of the launch ahead. notes_reads: whether `dependencies` is to have what it reads, too. watched: gets
    what its clock decides, if it is tried in several orders; again: it has been run before, and what it prints printed.

    collect: whether to go on after these faults, after which a kernel can; without it, none goes on. strict: whether
    what has a note (errors.NOTES) is a fault; else it is kept in `notes`. crowded: how many clusters there is room for
    at a time, as grids of other streams have the rest of the GPU, unless cooperative; 0: as fit. computes_mma: given a
    cluster's first CTA, return whether to emulate its MMAs (timed runs only); None: emulate all. Results of others are
    not computed, and where they would be in global memory is noted (GlobalMemory.mark_not_computed); ResultsDecide is
    raised where anything but results may depend on them. tracked: what of global memory is undefined, and is followed.
    """

    pdl: bool = False
    cooperative: bool = False
    schedule: Schedule = Schedule()
    watched: Watched | None = None
    checks: bool = True
    strict: bool = False
    crowded: int = 0
    number: int = 0
    grid_id: int | None = None
    predecessor: Dependencies | None = None
    chip: Chip = B200
    notes_reads: bool = False
    collect: Callable[[list[Fault]], bool] | None = None
    computes_mma: Callable[[tuple[int, int, int]], bool] | None = None
    tracked: Definedness | None = None
    again: bool = False


@dataclass(frozen=True)
class Environment:
    """What a launch runs in, where others share it: engine, clock, placement, and its owner; by default its own.

    shared: what launches on other devices share with it.
    """

    engine: Engine | None = None
    clock: Clock | None = None
    placement: Placement | None = None
    owner: Owner = Owner()
    shared: Shared | None = None


class Launch:
    """A grid on the device.

    `run` executes it alone, under a functional schedule. A timed run (model/run.py) passes the engine, clock and
    placement that its launches share, and calls `start_clusters` when they may start; `owner` is told of the rest.
    """

    origins = Origins()

    def __init__(
        self,
        code: Code,
        geometry: Geometry,
        params: bytes,
        memory: GlobalMemory,
        options: LaunchOptions = LaunchOptions(),
        environment: Environment = Environment(),
    ):
        """params: the block of the kernel's parameters. Raises Fault or Unsupported for what cannot be launched."""
        program, shared, number = code.program, environment.shared, options.number
        self.collect: Callable[[list[Fault]], bool] | None = options.collect
        self.faults: list[Fault] = []
        self.awaiting = False  # a writer: what the other warps do wrong meanwhile is nobody's question
        self.reported: list[tuple[int, int]] = []  # of what is kept: the last event until then, the other party's
        self.strict, self.tracked, self.again = options.strict, options.tracked, options.again
        self.notes: list[Fault] = []
        self.computes_mma, self.sampled_clusters = options.computes_mma, options.computes_mma is not None
        if self.sampled_clusters and (instr := program.results.decides):
            raise ResultsDecide(f"PTX line {instr.line} ({instr.op})")
        self.room = 0 if options.cooperative else options.crowded
        kernel = program.kernel
        self.memory, self.checks, self.number, self.chip = memory, options.checks, number, options.chip
        self.grid_id = number if options.grid_id is None else options.grid_id
        self.grid, self.block, cluster = geometry.grid, geometry.block, geometry.cluster
        required = kernel.directives.get("reqnctapercluster")
        self.explicit_cluster = bool(cluster or required)
        self.cluster = cluster or (tuple((*required, 1, 1)[:3]) if required else (1, 1, 1))
        self.params = Parameters(params.ljust(kernel.param_bytes, b"\0"))
        self.dynamic_shared, self.pdl, self.cooperative = geometry.dynamic_shared, options.pdl, options.cooperative
        self.workspace = memory.grid_workspace() if self.cooperative else 0
        before = options.predecessor if self.pdl else None
        self.dependencies = Dependencies(
            f"launch {number} ({kernel.title})", memory, before, program.triggers, self.checks, options.notes_reads
        )
        self.depends = bool(self.dependencies.before)
        self.order = shared.order if shared else Order(listens=program.listens)
        apart = shared is None and not program.hands_on
        self.shadow = GlobalShadow(self.order, memory, self.found, shared and shared.shadow, apart)
        # Where others look on from other devices, a load is used
        alone = environment.engine is None if shared is None else shared.order.devices == 1
        self.unused = Unused(self.order) if self.checks and alone else None
        self.by_value = ByValue(self.order)
        self.windows: object = None  # by which machine code reaches global memory, see native/memory.py
        self.shared_room = _rooms.setdefault(program, Room())
        # Where strong stores and atomics to global memory went
        self.locations: dict[int, Location] = shared.locations if shared else {}
        self.device, self.known = (shared.device, shared.known) if shared else (0, {})
        self.place = f", launch {number}" if shared else ""  # behind the names of its CTAs
        if shared and shared.order.devices > 1:
            self.place += f" of device {shared.device}"
        # Address of a tensor map -> (the instruction that changed it, CTAs that have acquired the change)
        self.changed_maps: dict[int, tuple[object, set[int]]] = {}
        self.schedule, self.owner = options.schedule, environment.owner
        self.engine = environment.engine or Engine()
        self.clock = environment.clock or FunctionalClock(self.schedule, self.engine, number, options.watched)
        self.placement = environment.placement or Placement(self.chip)
        self.sms = len(self.placement.sms)
        self.program = self.clock.program(program)
        self.costs = self.clock.costs(self.program)
        self._validate()
        self._place_variables(kernel, code)
        self._clusters_left = self._clusters()
        self._next = next(self._clusters_left, None)
        self.running: set[Cluster] = set()
        self.started = 0  # clusters
        operands = (o for i in kernel.instrs for o in i.operands)
        self.reads_time = any(isinstance(o, Special) and o.name in TIMERS for o in operands)
        self.under_way = 0  # asynchronous operations
        self.last_store = 0.0  # when the last store is acknowledged (timing)
        self._stall_mark = -1
        self.registers = self._registers()
        shared_bytes, threads = rounded(self.shared_bytes, SHARED_PORTION), rounded(math.prod(self.block), 32)
        self.needs = Needs(shared_bytes, threads, self._registers_of_cta())
        self.thread_index: dict[tuple, object] = {}  # axis, warp of a CTA, its lanes -> what they read from %tid
        self.tmem_columns = 0  # the most that a CTA had at once

    def _validate(self):
        kernel = self.program.kernel
        limits = (2**31 - 1, 65535, 65535)
        if any(not 1 <= g <= m for g, m in zip(self.grid, limits, strict=True)):
            raise LaunchRefused(f"grid {self.grid}: every dimension must be at least 1 and at most {limits}")
        threads = math.prod(self.block)
        if not 1 <= threads <= self.chip.threads_per_cta or self.block[2] > 64:
            raise LaunchRefused(f"block {self.block}: 1 to 1024 threads")
        required = kernel.directives.get("reqntid")
        if required and tuple((*required, 1, 1)[:3]) != self.block:
            raise LaunchRefused(f"block {self.block}, but the kernel requires {required}")
        most = kernel.directives.get("maxntid")
        if most and threads > math.prod(most):
            raise LaunchRefused(f"block {self.block}, but the kernel has .maxntid {most}")
        for g, c in zip(self.grid, self.cluster, strict=True):
            if g % c:
                why = f"grid {self.grid} is not a multiple of the cluster {self.cluster}"
                raise LaunchRefused(why, INVALID_CLUSTER)
        size = math.prod(self.cluster)
        if size > self.chip.cluster:
            most = f"at most {self.chip.cluster} on an {self.chip.name}"
            raise LaunchRefused(f"cluster of {size} CTAs: {most}", INVALID_CLUSTER)

    def _registers(self) -> int | None:
        """Return how many registers a thread starts with: what ptxas says, or its rule for a kernel with setmaxnreg: as
        many as the CTAs that have to fit leave it. None where ptxas ignores setmaxnreg, as nothing says how many."""
        kernel, code = self.program.kernel, self.program.machine_code
        said = kernel.directives
        threads = said.get("maxntid") or said.get("reqntid")
        bounded = "maxnreg" in said or threads is not None and "minnctapersm" in said
        if not bounded or not any(i.parts[0] == "setmaxnreg" for i in kernel.instrs):
            return None
        if used := cubin.of_kernel(code, kernel.name):
            return -(-used["registers"] // 8) * 8
        if most := said.get("maxnreg"):
            return most[0]
        assert threads is not None
        return self.chip.registers_left(math.prod(threads), said["minnctapersm"][0])

    def _registers_of_cta(self) -> int:
        """Return how many registers a CTA takes: those that ptxas says; without machine code those that threads start
        with, where the PTX says how many (`_registers`), else 0."""
        program, threads = self.program, math.prod(self.block)
        of_thread = cubin.of_kernel(program.machine_code, program.kernel.name).get("registers") or self.registers or 0
        if not self.chip.rooms(0, threads, of_thread).get("registers", 1):
            raise LaunchRefused(
                f"{-(-threads // 32)} warps of {of_thread} registers a thread do not fit the quarters of an SM, of "
                f"{self.chip.registers_per_sm // QUARTERS} each: cudaErrorLaunchOutOfResources",
                701,
            )
        return registers_of_cta(threads, of_thread)

    def _place_variables(self, kernel, code: Code):
        self.symbols = dict(code.symbols)
        self._symbols_of: dict[int, dict[str, int]] = {}  # by rank of a CTA
        for p in kernel.params:
            self.symbols[p.name] = p.offset
        shared = [v for v in (*code.shared.values(), *kernel.variables.values()) if v.space == "shared"]
        offset = BASE
        self.shared_symbols = {}
        used = {x.name for i in kernel.instrs for o in i.operands for x in leaves(o) if isinstance(x, Symbol)}
        for v in shared:
            if v.size and v.name in used:
                offset = -(-offset // v.align) * v.align
                self.shared_symbols[v.name] = offset
                offset += v.size
        static = offset - BASE
        for v in shared:
            if not v.size:
                offset = -(-offset // v.align) * v.align if static else offset
                self.shared_symbols[v.name] = offset
        if offset - BASE + self.dynamic_shared > self.chip.shared_per_cta:
            raise LaunchRefused(
                f"{offset - BASE} static + {self.dynamic_shared} dynamic bytes of shared memory; "
                f"a block has {self.chip.shared_per_cta}",
                1,  # cudaErrorInvalidValue
            )
        self.shared_bytes = offset + self.dynamic_shared
        local = 0
        for v in kernel.variables.values():
            if v.space == "local":
                local = -(-local // v.align) * v.align
                self.symbols[v.name] = local
                local += v.size
        self.local_bytes = -(-max(local, 8) // 16) * 16

    def symbols_of(self, rank: int) -> dict[str, int]:
        found = self._symbols_of.get(rank)
        if found is None:
            shared = {n: rank << RANK_SHIFT | o for n, o in self.shared_symbols.items()}
            found = self._symbols_of[rank] = self.symbols | shared
        return found

    def _clusters(self):
        (gx, gy, gz), (cx, cy, cz) = self.grid, self.cluster
        return ((x, y, z) for z in range(0, gz, cz) for y in range(0, gy, cy) for x in range(0, gx, cx))

    def take_pending_cluster(self):
        """Take the next cluster off the grid, to start or cancel it; returns its first CTA, or None."""
        first, self._next = self._next, next(self._clusters_left, None)
        return first

    # -- placement ---------------------------------------------------------------------------------------------
    def seed_of(self, index: int) -> int:
        return 0 if self.schedule.seed == 0 else self.schedule.seed * 1_000_003 + index

    def elected(self, warp) -> int:
        """Return the lane that elect.sync picks in this warp: 0, or any by seed (the ISA leaves it open)."""
        if self.schedule.seed == 0:
            return 0
        threads = warp.live_mask.bit_length()
        return random.Random(f"{self.schedule.seed}/{warp.cta.index}/{warp.index}").randrange(threads)

    def start_clusters(self):
        """Start as many clusters as there is room for."""
        size = math.prod(self.cluster)
        while self._next is not None and not (self.room and len(self.running) >= self.room):
            sms = self.placement.place(size, self.needs)
            if sms is None:
                if not self.running:
                    self.owner.no_room(self)
                if self.cooperative:
                    self.check_resident()
                return
            cluster = Cluster(self, self.take_pending_cluster(), sms)
            self.running.add(cluster)
            self.started += 1
            cluster.start(self.engine.now + self.clock.cta_start(self.number, sms))

    def check_resident(self):
        """Raise LaunchRefused: not all CTAs of a cooperative launch fit at once."""
        ctas, most = math.prod(self.grid), self.started * math.prod(self.cluster)
        raise LaunchRefused(
            f"a cooperative launch of {ctas} CTAs, of which {most} run at once ({math.prod(self.block)} threads and "
            f"{self.shared_bytes} bytes of shared memory each): cudaErrorCooperativeLaunchTooLarge",
            720,
        )

    def check_barrier(self):
        """Report a Fault: the grid's barrier, which the next launch has too, is not as a grid that is done with it
        leaves it. A phase that is complete has turned the highest bit of its second word, and nothing else."""
        words = self.memory.view(self.workspace, WORKSPACE).view(np.uint32)
        if words[1] & 0x7FFFFFFF or words[0] or words[2:].any():
            message = "the grid's barrier (%envreg1, %envreg2) is left with arrivals in it, or with something else"
            self.found(Fault("barrier", f"{message}: {words[:3].tolist()}.. in place of zeros and a phase"))

    def cluster_done(self, cluster: Cluster):
        self.running.discard(cluster)
        self.engine.progress += 1
        for cta in cluster.ctas:
            self.placement.release(cta.sm, self.needs)
        self.owner.cluster_done(self, cluster)
        if not self.engine.under_way:  # who still comes may look for its CTAs
            cluster.part()

    @property
    def clusters(self) -> int:
        """How many clusters the grid has."""
        return math.prod(self.grid) // math.prod(self.cluster)

    @property
    def finished(self) -> bool:
        return self._next is None and not self.running

    # -- dependent launches ------------------------------------------------------------------------------------
    def dependency_wait(self, group) -> bool:
        self.dependencies.note_wait(group.cta.index, group.cta.triggered)
        return self.owner.dependency_wait(group)

    @property
    def holds_dependents(self) -> bool:
        """Whether a CTA has neither let the launch behind it begin nor exited."""
        return self._next is not None or any(not cta.triggered for cluster in self.running for cta in cluster.ctas)

    def takes(self, ctas: int) -> bool:
        """Take the room of this many of its CTAs, in whole clusters; return whether there is any for all of them."""
        size = math.prod(self.cluster)
        return all(self.placement.place(size, self.needs) for _ in range(0, ctas, size))

    def launch_dependents(self, group):
        group.cta.triggered = True
        self.owner.launch_dependents(group.cta)

    # -- findings ----------------------------------------------------------------------------------------------
    def found(self, fault: Fault):
        """Report a fault after which the kernel could go on; raises it where nobody collects faults."""
        if self.awaiting and not (fault.written_by or fault.note):
            return
        fault.event = self.order.now
        if fault.other:
            that, this = getattr(self.order.origin(fault.other), "actor", None), actor_of(sys._getframe(1))
            parties = ("that", that, fault.other), ("this", this, EVER)
            fault.before = tuple(f"last wait before {of}: {by.before(n)}" for of, by, n in parties if by is not None)
        if fault.kind == "uninitialized-read" and not fault.note and selects_alone(sys._getframe(1)):
            fault.note = "selected-away"
        if fault.kind == "race" and not fault.note and guesses(sys._getframe(1), self.order.origin(fault.other)):
            fault.note = "cas-guess"
        if fault.elements is not None and not fault.note:
            fault.where = place_of(sys._getframe(1))
            if follows(sys._getframe(1), fault):
                fault.elements = None  # it is one where it is used
                return
        if fault.loads and not fault.note and self.unused is not None:
            fault.where, by = place_of(sys._getframe(1)), actor_of(sys._getframe(1))
            if by is not None and self.by_value.orders(fault.loads, by, *instruction_of(sys._getframe(1))):
                fault.note = "dependency-alone"
            elif self.unused.holds(fault, by):
                return
        self._tell(fault, sys._getframe(1))

    def _tell(self, fault: Fault, frame: FrameType | None = None) -> None:
        """Keep a finding or a note, or raise it. frame: works for the instruction that does what is wrong."""
        if fault.note and not self.strict:
            at_end = f"kernel {self.program.kernel.title}, at its end"
            fault.where = fault.where or place_of(frame) or at_end
            if all(fault.lines != other.lines for other in self.notes):
                self.notes.append(fault)
                self.reported.append((fault.event, fault.other))
            return
        if self.collect is None:
            self.reported.append((fault.event, fault.other))
            raise fault
        fault.where = fault.where or place_of(frame)
        if any(fault.lines == other.lines for other in self.faults):
            return
        self.faults.append(fault)
        self.reported.append((fault.event, fault.other))
        if not self.collect(self.faults):
            raise Enough

    def await_writer(self, fault: Fault):
        """Something was read that nothing had written: let the other warps go on, to see whether one of them does."""
        heap, self.engine.nested = self.engine.heap, False
        found, self.faults, self.awaiting = self.faults, [], True
        self.collect = lambda faults: not faults[-1].written_by  # a race with the read stops no writer
        for _ in range(PATIENCE):
            if not heap or fault.written_by():
                break
            with contextlib.suppress(EmulatorError, Enough):
                self.engine.step()
        self.faults = found

    def explain(self, fault: Fault):
        """Say who has written meanwhile what nothing had written."""
        if writer := fault.written_by():
            fault.message += f" yet: {writer} writes it later"
        elif not self.engine.heap:
            fault.message += ", and that nobody writes later, as far as others get without this warp"

    # -- running -----------------------------------------------------------------------------------------------
    def run(self):
        with calm():
            try:
                self._run()
                if self.running:
                    raise Hang("\n".join(self.waiting()))
                if self.cooperative and self.checks:
                    self.check_barrier()
            except Enough:
                self.collect = None
                if self.faults[-1].written_by:
                    self.await_writer(self.faults[-1])
                return
            except Fault as fault:
                if not fault.event:
                    fault.event = self.order.now
                    self.reported.append((fault.event, fault.other))
                if fault.written_by:
                    self.await_writer(fault)
                    self.explain(fault)
                raise
            except Hang as hang:
                hang.before = self.last_waits()
                raise
            finally:
                for found in self.faults:
                    if found.written_by:
                        self.explain(found)

    def _run(self) -> None:
        """Run it to its end, or to what stops it; then tell of the races that have been held back until it was known
        whether something comes of a load: they were first."""
        stopped: Fault | Hang | None = None
        try:
            self.start_clusters()
            self.engine.run(self.stalled)
        except (Fault, Hang) as error:
            stopped = error
        for race in self.unused.settled() if self.unused is not None else ():
            if stopped is None or not race.note:  # else something might still have come of it
                self._tell(race)
        if stopped is not None:
            raise stopped

    def last_waits(self, most: int = 4) -> tuple[str, ...]:
        """Say of warps that stand at this many different instructions what each had waited for last."""
        first = {g.pc: g for g in reversed([*self.groups()])}
        waiting = [g for g in self.groups() if first[g.pc] is g][:most] if self.checks else []
        return tuple(f"last wait before this: {g.warp.actor.before()}" for g in waiting)

    def groups(self):
        for cluster in sorted(self.running, key=lambda c: c.ctas[0].index):
            for cta in cluster.ctas:
                for warp in cta.warps:
                    yield from warp.groups

    def stalled(self) -> bool:
        """Where nothing is scheduled, let waits with a time limit time out, once; raise Hang the next time."""
        if not self.running:
            return False
        if self.engine.progress == self._stall_mark:
            raise Hang("\n".join(self.waiting()))
        timed = self.limited()
        if not timed:
            raise Hang("\n".join(self.waiting()))
        self._stall_mark = self.engine.progress
        for g in timed:
            g.time_out()
        return True

    def limited(self) -> list:
        """Return the groups of lanes that wait no longer than a time limit."""
        return [g for g in self.groups() if self._waits_with_limit(g)]

    def instruction(self, group) -> Instr:
        """Return the instruction at which a group waits: one that blocks starts its block."""
        return self.program.kernel.instrs[self.program.start[group.pc]]

    def _waits_with_limit(self, group) -> bool:
        return isinstance(group.waiting_for, Waitable) and lookup(self.instruction(group)).limited

    def livelock(self) -> EmulatorError:
        """Every group that could go on looks for something, again and again, that nobody comes to write."""
        if self.room and self._next is not None:
            ctas = math.prod(self.grid)
            left = ctas - self.started * math.prod(self.cluster)
            return Fault("residency", f"spins for ever, while {left} of {ctas} CTAs have not started: beside grids of "
                         "other streams there need be no room for them; a cooperative launch has it")  # fmt: skip
        lines = [f"{self.program.kernel.title} spins for ever: memory does not change, and everybody has looked before"]
        left = math.prod(self.grid) - self.started * math.prod(self.cluster)
        if left > 0:
            ctas = math.prod(self.grid)
            lines.append(f"  {left} of {ctas} CTAs of the grid have not started, for which no SM has room")
        hang = Hang("\n".join([*lines, *self.owner.waiting(self)[1:]]))
        hang.polls = True
        return hang

    def waiting(self) -> list[str]:
        """List who waits where for what: one line for all warps that wait alike, each perhaps in its own CTA."""
        alike: dict[str, list] = {}
        for g in self.groups():
            instr = self.instruction(g)
            lanes = "" if g.n == g.warp.threads else f" lanes {ranges(g.lanes)}"
            looks = f", having looked {g.warp.actor.looks}" if g.warp.actor.looks else ""
            waits = f"spins{looks}" if g.waiting_for is None else f"waits for {g.waiting_for}"
            text = f"{lanes} at PTX line {instr.line} ({instr.op}) {waits}"
            if lookup(instr).limited:
                text += f" to complete the phase of parity {g.awaited & 1 if g.awaited < 2 else g.awaited >> 63}"
            if instr.loc:
                text += f" ({instr.loc})"
            alike.setdefault(text.replace(f"CTA {g.cta.ctaid}", "its CTA"), []).append((g.warp, text))
        lines = [f"no warp of {self.program.kernel.title} can go on:"]
        for warps in alike.values():
            first, text = warps[0]
            more = ""
            if len(warps) > 1:
                ctas = len({warp.cta for warp, _ in warps})
                more = f"; and so do {len(warps) - 1} more: warps {ranges(sorted({w.index for w, _ in warps}))}"
                more += f" of {ctas} CTAs" if ctas > 1 else " of this CTA"
            lines.append(f"  {first}{text}{more}")
        return lines if len(lines) <= 40 else [*lines[:40], f"  and {len(lines) - 40} more kinds of waiting warps"]
