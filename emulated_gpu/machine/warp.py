"""Warps and the groups of lanes they part into (PTX ISA 3.1; independent thread scheduling since sm_70).

A `Group` is the unit of execution: some lanes of a warp at the same place. A divergent branch splits it; the parts run
on their own and meet again at the branch's immediate post-dominator. A group of one lane has Python ints for registers,
which makes single-thread producer loops cheap.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np

from ..errors import EmulatorError, Fault, Unsupported
from ..formats import alu
from ..formats.lanes import Absent, as_array, elect, lane_mask, ranges
from ..native import hot_blocks
from ..ptx.control_flow import BLOCKED, EXIT, SPLIT, ControlFlow
from ..ptx.effects import ATOMICS
from ..ptx.isa.registry import flat
from ..ptx.syntax import Instr
from ..state.lanes import GlobalStores
from ..state.order import Actor, Released
from ..units import (
    access,
    addresses,
    async_copy,
    barriers,
    fences,
    mma_sync,
    surfaces,
    system_calls,
    tcgen05,
    tensor_maps,
    textures,
    wgmma,
    wmma,
)
from ..units.addresses import shared_cta
from ..units.group import LaneGroup, Meeting
from .around_warp import Cta, Launch
from .clock import Clock
from .engine import CALM, MANY, Engine
from .garbage import Follow, Garbage, of_rows
from .special import TIMERS, special_register

_UNITS = (
    access, addresses, async_copy, barriers, fences, mma_sync, surfaces, system_calls, tcgen05, tensor_maps,
    textures, wgmma, wmma,
)  # fmt: skip
ALL_LANES = 0xFFFFFFFF
# What the code of a block calls, by the names that it has there: `access.load(g, ...)`
UNITS = {unit.__name__.rpartition(".")[2]: unit for unit in _UNITS}


class Join:
    """Where the parts of a split group, `whole`, meet again. changes: registers that a part may write until then and
    that are read later; the others stay what they are in `whole`."""

    __slots__ = ("block", "parent", "expected", "parked", "whole", "changes")

    def __init__(self, block: int, parent: Join | None, expected: int, whole: Group, changes: list[int]):
        self.block, self.parent, self.expected, self.whole = block, parent, expected, whole
        self.parked: list[Group] = []
        self.changes = changes


class Origin:
    """The instruction that started something; turned into text only when it is needed."""

    __slots__ = ("label", "actor", "program", "block", "lineno")

    def __init__(self, actor: Actor, program: ControlFlow, label: str, block: int, lineno: int):
        self.label, self.actor, self.program = label, actor, program
        self.block, self.lineno = block, lineno

    def instruction(self):
        return self.program.instruction_at(self.block, self.lineno)

    def __str__(self):
        instr = self.instruction()
        loc = f", {instr.loc}" if instr is not None and instr.loc else ""
        return f"{self.label} of {self.actor} (PTX line {instr.line if instr else '?'}{loc})"

    def place(self) -> str:
        """Say where the instruction is, for EmulatorError.where."""
        return f"kernel {self.program.kernel.title}, {self.actor}" + at(self.instruction())


def at(instr) -> str:
    """Say which instruction it is, for EmulatorError.where; "" for None."""
    if instr is None:
        return ""
    return f", PTX line {instr.line}: {instr.shown()}" + (f" ({instr.loc})" if instr.loc else "")


def at_work(frame: FrameType | None) -> tuple[Group | Origin | None, int]:
    """For whom a Python frame works: the group with the line of its block's code, or the instruction that began what
    goes on by itself; None for nobody."""
    while frame is not None:
        local = frame.f_locals
        group, origin = local.get("g"), local.get("origin")
        if isinstance(group, Group) and frame.f_code.co_filename.startswith(group.program.source_name):
            return group, frame.f_lineno
        if isinstance(origin, Origin) and frame.f_code.co_name in ("run", "call"):  # of `later` and Group._push
            return origin, 0
        frame = frame.f_back
    return None, 0


def place_of(frame) -> str:
    """Say which instruction a Python frame works for, for EmulatorError.where; "" if for none."""
    who, line = at_work(frame)
    if who is None:
        return ""
    return who.place() if isinstance(who, Origin) else who.place(who.program.instruction_at(who.pc, line))


def instruction_of(frame: FrameType | None) -> tuple[ControlFlow, Instr | None]:
    """The instruction that a Python frame works for, and its program."""
    who, line = at_work(frame)
    assert who is not None
    return who.program, who.instruction() if isinstance(who, Origin) else who.program.instruction_at(who.pc, line)


def selects_alone(frame) -> bool:
    """Whether a Python frame works for a load of which every use is that of a selp, which may leave the value out."""
    who, line = at_work(frame)
    if not isinstance(who, Group):
        return False
    instr = who.program.instruction_at(who.pc, line)
    return instr is not None and who.program.is_only_selected(instr)


def guesses(frame, other) -> bool:
    """Whether of two accesses, of that for which a Python frame works and of `other`, one is an atomic and one a load
    whose value a compare-and-swap compares."""
    who, line = at_work(frame)
    if not isinstance(who, Group) or not isinstance(other, Origin):
        return False
    parties = who.program.instruction_at(who.pc, line), other.instruction()
    for load, atomic in (parties, parties[::-1]):
        if load is not None and atomic is not None and atomic.parts[0] in ("atom", "red"):
            program = who.program if load is parties[0] else other.program
            return program.is_compared(load)
    return False


def follows(frame: FrameType | None, fault: Fault) -> bool:
    """Whether the warp for which a Python frame works goes on with what nothing has written, until that is used."""
    who, line = at_work(frame)
    if not isinstance(who, Group):
        return False
    instr = who.program.instruction_at(who.pc, line)
    return who.follows(fault, instr, _executing(who, instr, frame))


def _executing(group: Group, instr, frame) -> np.ndarray:
    """The lanes of a group in which the guard of an instruction holds for which a Python frame works."""
    if instr is None or instr.guard is None:
        return group.lanes
    while not frame.f_code.co_filename.startswith(group.program.source_name):
        frame = frame.f_back
    guard = frame.f_locals[f"r{instr.guard.index}"] ^ instr.negated
    return group.lanes[guard] if alu.is_array(guard) else group.lanes


def actor_of(frame: FrameType | None) -> Actor | None:
    """The warp that a Python frame works for, as its events know it."""
    who, _ = at_work(frame)
    return who.warp.actor if isinstance(who, Group) else who.actor if who is not None else None


WARPS = 32  # the most that a CTA has
NOTHING_WRITTEN = np.zeros((32, 0), bool)  # of local memory, which is made when it is looked at
EARLY = {"uninitialized-read", "tmem-uninitialised"}  # faults of what came too early: the wait may have been wrong
LATE = 3000  # ticks that a group lets pass before it loads what nothing has written
PATIENCE = 257  # blocks that a group executes before it is looked at: a prime, so that it is in each block of a loop
AGAIN = 7  # such blocks of one that polls
LOOK = 37  # for how many blocks one counts that looks at what others store, in a launch of many events
PHASES = 32  # states in which a group may have been when it was looked at, for it to be one that polls
PAUSES = 250, 2_000  # ticks that a group which polls in vain lets pass, at first and at most: less than LAZY


def of_lanes(value, index: np.ndarray):
    """The values of some lanes in a register."""
    if type(value) is not np.ndarray:
        return value
    return value[index] if len(index) > 1 else value.item(index[0])


class WarpActor(Actor):
    """A warp as its events know it: all that the log of a launch keeps of a warp that has ended.

    bulk: lane -> its bulk async-groups.
    """

    __slots__ = ("index", "ctaid", "sm", "place", "bulk")

    def __init__(self, cta, index: int):
        super().__init__(WARPS * cta.rank + index + 1, cta.cluster.space, "", cta.rank)
        self.index, self.ctaid, self.sm, self.place = index, cta.ctaid, cta.sm, cta.launch.place
        self.bulk: dict[int, object] = {}

    def origin(self, *place) -> Origin:
        """A name for what an instruction of its does, see Origin."""
        return Origin(self, *place)

    def __str__(self):
        return f"warp {self.index} of CTA {self.ctaid}{self.place}"


class Warp:
    """32 lanes of a CTA. groups: those that have not exited."""

    def __init__(self, cta: Cta, index: int, threads: int):
        self.cta, self.index = cta, index
        actor = WarpActor(cta, index)
        self.actor: Actor = actor
        self.actor.knowledge.elsewhere = cta.launch.known
        self.barrier_places: dict[object, tuple[int, int]] = {}  # barrier -> phase and block where lanes came to it
        self.depends = cta.launch.depends  # griddepcontrol.wait has not been passed
        self.live_mask = (1 << threads) - 1
        self.groups: list[Group] = []
        self.origins: dict[tuple, Origin] = {}  # by label, and the code of a block and a place there
        self.leader = 0  # which lane elect.sync picks, if it is a member
        self.cluster_phase = 0  # of the cluster's barrier, when lanes last arrived there
        self.cluster_released: Released | None = None  # what those hand on who come to that phase
        self.at_cluster_barrier = 0  # the lanes that have arrived in that phase
        self.met_cluster = 0  # for how many of its phases lanes have waited
        self.bulk = actor.bulk
        self.copies: list = []  # cp.async groups
        self.remote_arrivals: list = []  # at mbarriers of other CTAs, under way
        self.wgmmas = wgmma.Issued()
        self.stores = GlobalStores()
        self.local: np.ndarray | None = None
        self.local_written = NOTHING_WRITTEN
        self.waiting_to_converge: dict[int, list] = {}
        self.threads = threads
        self.registers = cta.launch.registers  # that each thread may use; None if nobody says how many it starts with
        self.started = 0.0

    def __str__(self):
        return str(self.actor)

    def arrived_at_cluster_barrier(self, phase: int, lanes: int) -> None:
        """Note that lanes, a bit each, have arrived in a phase of the cluster's barrier."""
        if phase != self.cluster_phase:
            self.cluster_phase, self.at_cluster_barrier = phase, 0
        self.at_cluster_barrier |= lanes

    def next_at_cluster_barrier(self) -> int:
        """The phase of the cluster's barrier to which its lanes come next."""
        phase = self.cta.cluster.barrier.phase
        return phase + (phase == self.cluster_phase and self.at_cluster_barrier > 0)

    def forget_cluster_arrivals(self, lanes: int) -> int:
        """Forget arrivals of lanes in the phase that is still open; returns how many there were."""
        if self.cta.cluster.barrier.phase != self.cluster_phase:
            return 0
        here, self.at_cluster_barrier = self.at_cluster_barrier & lanes, self.at_cluster_barrier & ~lanes
        return here.bit_count()


class Group(LaneGroup):
    """Lanes of a warp that move together; see units/group.py for what units use of it."""

    warp: Warp
    cta: Cta
    launch: Launch
    engine: Engine
    clock: Clock
    __slots__ = (
        "warp", "cta", "launch", "engine", "clock", "program", "lanes", "n", "lane_mask", "R", "given", "passes",
        "pc", "join", "t", "begun", "token", "carry", "specials", "waiting_for", "blocked_at", "awaited", "limit",
        "timed_out", "last_barrier", "owed", "fetching", "fetched", "loads_ready", "stores_ready", "loads", "stores",
        "garbage", "left", "weight", "polled", "pause",
    )  # fmt: skip

    def __init__(self, warp: Warp, lanes: np.ndarray, registers: list, pc: int, join: Join | None, time: float):
        self.warp, self.cta = warp, warp.cta
        self.launch = self.cta.launch
        self.engine, self.clock = self.launch.engine, self.launch.clock
        self.program = self.launch.program
        self.lanes, self.n = lanes, len(lanes)
        self.lane_mask = lane_mask(lanes.tobytes())
        self.R = registers
        self.given: list | None = None  # of a part: what registers were at first that are live where it meets the rest
        self.passes: np.ndarray | None = None  # of a part with nothing to do: which lanes of the whole; it has no R
        self.pc, self.join, self.t = pc, join, time
        self.begun = time  # when it began the block that it executes
        self.token = None  # what a retried wait has already done
        self.carry = 0
        self.specials: dict[str, object] = {}
        self.waiting_for: Any = None  # a Waitable, or what it is in words
        self.blocked_at = 0.0  # when it began to wait
        self.awaited = 0  # parity or state of the phase that a try_wait waits for
        self.limit = 0.0  # when the try_wait's time limit is due; 0 if it outlasts what is emulated
        self.timed_out = False  # it has struck
        self.last_barrier = None  # the named one that it passed last
        self.owed: dict[int, tuple[float, str]] = {}  # register -> when it is usable, and why not sooner
        self.fetching = 0  # the number of the instruction that fetches
        self.fetched: dict[int, float] = {}  # by such numbers, in this block -> when what was loaded comes
        self.loads_ready = 0.0  # when the tensor core has delivered all tcgen05.ld
        self.stores_ready = 0.0  # and has taken all tcgen05.st
        self.loads: list = []  # tcgen05.ld results that wait for tcgen05.wait::ld
        self.stores: list = []
        self.garbage: Garbage | None = None  # while it holds what nothing has written
        self.left = PATIENCE  # blocks until it is looked at
        self.weight = 1  # for how many the one that it executes counts
        self.polled: set[int] = set()  # states in which it was then since it waited for anything
        self.pause = 0  # ticks that it lets pass when it comes back to one
        warp.groups.append(self)

    # -- running -----------------------------------------------------------------------------------------------
    def wake(self):
        self.engine.progress += 1
        woken = max(self.t, self.engine.now)
        self.t = woken + self.clock.wake(self.warp, woken)
        self.engine.at(self.t, self.run)

    def begin(self, parks: bool = False):
        """Execute blocks from when the first one's registers are usable. parks: there is nothing to do but to wait at
        its join for others, which take time to come there."""
        begin = self.t
        if self.owed:
            self.t = self.clock.usable(self, self.launch.costs[self.pc])
        if parks and self.t == begin and self.join is not None:
            self.join.parked.append(self)
            self.warp.groups.remove(self)
        else:
            self.engine.at(self.t, self.run)

    def run(self):
        """Execute blocks until the group waits, splits, exits or has had its turn."""
        engine, program = self.engine, self.program
        costs, heap, quantum = self.launch.costs, engine.heap, self.clock.quantum
        blocks = program.blocks if self.n > 1 and quantum and self.cta.computes_mma else program.python
        if self.garbage is not None or self.launch.tracked is not None:
            blocks = [None] * len(blocks)
        executed = self.clock.executed
        self.t = max(self.t, engine.now)
        if self.waiting_for is not None:
            self.clock.trace.wait(self, self.blocked_at, self.t)
            self.waiting_for, self.left = None, PATIENCE
            self.polled.clear()
        pc, left = self.pc, self.left if quantum else PATIENCE
        join = self.join.block if self.join else -9
        engine.turns += 1
        if engine.turns >= CALM and engine.spins(self):
            raise self.launch.livelock()
        try:
            while True:
                if pc == join:
                    return self.park()
                function = blocks[pc] or self.block(pc)
                self.begun = self.t
                try:
                    following = function(self)
                except (Follow, Absent):  # of loads or a shuffle that begin a block: who is only late goes first
                    if self.garbage is not None:  # it is a finding already
                        raise
                    self.garbage = Garbage(program)
                    return engine.at(self.t + LATE, self.run)
                if following < 0:
                    break
                if self.garbage is not None:  # its registers are to be followed from here on
                    blocks = [None] * len(blocks)
                self.t = executed(self, costs[self.pc])
                self.pc = pc = following
                if self.owed and costs[pc].needs:
                    self.t = self.clock.usable(self, costs[pc])
                left -= self.weight
                looked = left <= 0
                if looked:
                    self.weight = 1
                    left = self.put_off() if quantum else PATIENCE
                if heap and self.t > heap[0][0] + quantum:
                    self.left = left
                    engine.at(self.t, self.run)
                    return None
                if looked:  # nobody else may have a turn to be asked
                    engine.turns += 1
                    if engine.turns >= CALM and engine.spins(self):
                        raise self.launch.livelock()
                    if self.t > engine.until:
                        self.left = left
                        return engine.at(self.t, self.run)
        except EmulatorError as e:
            if not e.where:
                e.where = self.where(sys.exc_info()[2])
                if e.kind in EARLY and not e.before and self.launch.checks:
                    e.before = (f"last wait before this: {self.warp.actor.before()}",)
            raise
        except (TypeError, AttributeError, IndexError, KeyError, ValueError, OverflowError) as e:
            raise self.internal(e, sys.exc_info()[2]) from e
        if following == BLOCKED:
            if self.waiting_for is None:
                raise Fault("internal", "blocked without anything to wait for", str(self.warp))
        elif following == EXIT:
            self.t = executed(self, costs[self.pc])
            if self.t > engine.now + quantum:
                engine.at(self.t, self.leave)
            else:
                self.leave()
        else:
            assert following == SPLIT
        return None

    def put_off(self) -> int:
        """Let time pass, each time twice as much, if the lanes are in a state again in which they were: they poll.

        Else a launch in which many poll would give its turns to these instead of to those for whom they wait. Returns
        after how many blocks to ask again.
        """
        state = self.state()
        if state in self.polled:
            self.t += self.pause
            self.pause = min(2 * self.pause, PAUSES[1])
            return AGAIN
        if not self.polled or len(self.polled) == PHASES:
            self.polled.clear()
            self.pause = PAUSES[0]
        self.polled.add(state)
        return PATIENCE if self.pause == PAUSES[0] else AGAIN

    def block(self, pc: int):
        """The function of a block: as it is compiled so far, or that which follows the garbage in its registers."""
        if self.launch.tracked is not None:
            held = self.garbage and self.garbage.live(pc, self.lane_mask)
            self.garbage = held or Garbage(self.program, {})
            return self.program.followed(pc, UNITS)
        if self.garbage is not None:
            self.garbage = self.garbage.live(pc, self.lane_mask)
            if self.garbage is not None:
                return self.program.followed(pc, UNITS)
        # nothing to gain; a timed block has its own turn; machine code leaves nothing out
        if self.n == 1 or not self.clock.quantum or not self.cta.computes_mma:
            return self.program.block(pc, UNITS)
        return self.program.blocks[pc] or hot_blocks.block(self.program, pc, UNITS)

    def follow_load(self, addresses: np.ndarray, size: int, lanes: np.ndarray | int) -> None:
        if self.garbage is not None:
            here = self.lanes if isinstance(lanes, int) else lanes
            if len(addresses) == 1 < len(here):
                addresses = np.repeat(addresses, len(here))
            self.garbage.loaded(self.launch.tracked, addresses, size, here)

    def follow_store(self, space: str, addresses: np.ndarray, size: int, count: int, lanes: np.ndarray) -> None:
        garbage, tracked = self.garbage, self.launch.tracked
        if garbage is None or not (garbage.watches or garbage.ahead):
            return
        _, line = at_work(sys._getframe(1))
        instr = self.program.instruction_at(self.pc, line)
        number = self.number_of(instr)
        stored = garbage.stored if garbage.watches else garbage.ahead.get(-1 if number is None else number)
        if stored is None:
            return
        fault, by_value = stored
        for k, held in enumerate(by_value[:count]):
            undefined = np.array([held >> lane & 1 for lane in lanes.tolist()], bool)
            if space == "shared":
                for address in addresses[undefined].tolist():
                    cta, offset = shared_cta(self, address + k * size)
                    cta.smem.spoil(offset, offset + size)
            elif space == "local":
                elements = addresses[undefined].astype(np.int64) // size + k
                self.warp.local_written.reshape(32, -1, size)[lanes[undefined], elements] = False
            elif tracked is None and undefined.any():
                self.launch.found(garbage.used(fault, instr))
            elif tracked is not None and space == "global":
                tracked.write(addresses + np.uint64(k * size), size, undefined)

    def number_of(self, instr) -> int | None:
        """The number of an instruction of the block that is executed; None for another place than a block's code."""
        first, last = self.program.start[self.pc], self.program.end[self.pc]
        return next((i for i in range(first, last) if self.program.kernel.instrs[i] is instr), None)

    def hold_garbage(self, fault: Fault, registers: list[int]) -> None:
        if self.garbage is None:
            raise Follow
        self.garbage.hold(fault, registers, self.lane_mask)

    def follows(self, fault: Fault, instr, executing: np.ndarray) -> bool:
        """Follow what a load has found that nothing has written, instead of reporting the fault, if that can be.
        executing: the lanes that load."""
        number = self.number_of(instr)
        if number is None or instr.parts[0] not in ("ld", "ldmatrix", *ATOMICS):
            return False
        destinations, here, bad = flat(instr.operands[0]), lane_mask(executing.tobytes()), fault.elements
        lanes, parts = [here] * len(destinations), len(destinations) * (2 if "b128" in instr.parts else 1)
        if bad is not None and instr.parts[0] == "ldmatrix":
            lanes = of_rows(instr, bad)
        elif bad is not None and len(bad) in (parts, parts * len(executing)):  # of all lanes alike, or of each
            of_each = bad.reshape(parts // len(destinations), len(destinations), -1).any(axis=0)
            shape = len(destinations), len(executing)
            lanes = [lane_mask(executing[elements].tobytes()) for elements in np.broadcast_to(of_each, shape)]
        held = zip(destinations, lanes, strict=True)
        loaded = {o.index: (fault, mask & here) for o, mask in held if mask and hasattr(o, "index")}
        garbage = Garbage(self.program) if self.garbage is None else self.garbage
        if not garbage.watches and not garbage.held_behind(self, number, loaded):
            return False
        if not self.engine.nested:  # else others wait already, and a late writer races with this read
            self.engine.let_others_go_first(self.t + LATE)
            if fault.written_by is not None and fault.written_by():  # it was read too early, whatever becomes of it
                return False
        if garbage.watches:
            for r, (_, mask) in loaded.items():
                garbage.hold(fault, [r], mask)
        if instr.parts[0] in ATOMICS and "exch" not in instr.parts:
            garbage.stores(number, fault, lanes)
        self.garbage = garbage
        return True

    def state(self) -> int:
        """Where the lanes are, and what they may still look at of their registers."""
        seen: list = [self.pc, self.token is None]
        live = self.program.live_registers(self.pc)
        registers = self.R
        if self.passes is not None and self.join is not None:
            registers = self.join.whole.select_lanes(self.passes, live)
        for r in live:
            value = registers[r]
            if type(value) is int:
                seen.append(value)
            else:
                seen.append(value.tobytes() if type(value) is np.ndarray and value.dtype != object else repr(value))
        return hash(tuple(seen))

    def leave(self):
        try:
            self.exit()
        except EmulatorError as e:
            e.where = e.where or self.where()
            raise

    def internal(self, error: Exception, trace) -> EmulatorError:
        where = self.where(trace)
        instr = self.current(trace)
        if instr is not None:
            reads, _ = self.program.reads_writes(instr)
            names = {r.index: r.name for r in self.program.kernel.registers if r.index in reads}
            of_block = self.of_block(trace)
            for index, name in names.items():
                value = of_block.tb_frame.f_locals.get(f"r{index}", 0) if of_block is not None else 0
                if value is None:
                    return Fault("uninitialized-register", f"{name} is read before anything was written to it", where)
                if type(value) in wgmma.IN_USE:
                    return Fault(
                        "wgmma-race", f"{name} is read, or moved and read, before wgmma.wait_group: {value}", where
                    )
        return EmulatorError(f"internal error {type(error).__name__}: {error}", where)

    def of_block(self, trace):
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(self.program.source_name):
            trace = trace.tb_next
        return trace

    def current(self, trace):
        """The instruction that was executing, found through the traceback."""
        if (trace := self.of_block(trace)) is not None:
            return self.program.instruction_at(self.pc, trace.tb_lineno)
        start = self.program.start[self.pc]
        instrs = self.program.kernel.instrs
        return instrs[start] if start < len(instrs) else None

    def where(self, trace=None) -> str:
        return self.place(self.current(trace))

    def place(self, instr) -> str:
        """Say where this group is at an instruction, for EmulatorError.where."""
        lanes = "" if self.n == self.warp.threads else f", lanes {ranges(self.lanes)}"
        return f"kernel {self.program.kernel.title}, {self.warp}{lanes}" + at(instr)

    def origin(self, label: str) -> Origin:
        frame: Any = sys._getframe(2)
        while not frame.f_code.co_filename.startswith(self.program.source_name):  # a unit that works by another one
            frame = frame.f_back
        key = label, *(at := (id(frame.f_code), frame.f_lasti))  # its line takes longer to find than all the rest
        found = self.warp.origins.get(key)
        if found is None:
            line = self.program.lines.get(at) or self.program.lines.setdefault(at, frame.f_lineno)
            found = self.warp.origins[key] = Origin(self.warp.actor, self.program, label, self.pc, line)
        return found

    def later(self, when: float, origin: Origin, call):
        launch = self.launch
        launch.under_way += 1

        def run():
            try:
                call()
            except EmulatorError as e:
                e.where = e.where or origin.place()
                raise
            launch.under_way -= 1
            if not launch.under_way:
                launch.owner.landed(launch)

        self.engine.at(when, run)

    def need_whole_warp(self, what: str) -> None:
        self._need(self.warp.live_mask, what)

    def need_all_lanes(self, what: str) -> None:
        self._need(ALL_LANES, what)

    def _need(self, lanes: int, what: str) -> None:
        if self.lane_mask != lanes:
            raise Fault(
                "divergence",
                f"{what} needs all lanes of its warp together: {self.lane_mask:#x} of {lanes:#x} are here",
            )

    def uniform(self, guard) -> bool:
        """Return the guard of a collective instruction as one bool. Raises Unsupported where lanes differ."""
        if not alu.is_array(guard):
            return guard
        if guard.any() and not guard.all():
            raise Unsupported("a guard that holds in some lanes only, of an instruction that lanes execute together")
        return bool(guard[0])

    def lanes_at(self, positions: int) -> int:
        """The lanes at positions in the group, a bit each."""
        if self.n == 32:
            return positions
        return sum(1 << lane for k, lane in enumerate(self.lanes.tolist()) if positions >> k & 1)

    def lanes_of(self, mask) -> int:
        if mask is True:
            return self.lane_mask
        return sum(1 << lane for lane in self.lanes[np.broadcast_to(mask, self.n)].tolist())

    def linger(self, access: Meeting):
        if access.writes:
            self.t += self.clock.lingering(self.warp, True)  # a release is its block's first instruction
        else:
            self._let_pass(self.clock.lingering(self.warp, False))
            if self.engine.count > MANY and self.clock.quantum:
                self.weight = LOOK
        self.pass_by(access)

    def hesitate(self, access: Meeting):
        self._let_pass(self.clock.hesitation(self.warp))
        self.pass_by(access)

    def pass_by(self, access: Meeting):
        self.t += self.clock.stop(self, access)  # where this is not 0, a block ends here: ControlFlow.stops

    def _let_pass(self, ticks: float):
        if ticks:
            self.t += ticks
            self.engine.let_others_go_first(self.t)

    def unsupported(self, why: str):
        raise Unsupported(why)

    def wait_on(self, what) -> bool:
        what.waiters.append(self)
        self.waiting_for, self.blocked_at = what, self.t
        return False

    def wait_until(self, time: float, what) -> bool:
        self.waiting_for, self.blocked_at = what, self.t
        self.engine.at(time, self.run)
        return False

    def wait_on_phase(self, barrier, phase: int, limit: float) -> bool:
        self.awaited, self.limit = phase, limit
        self.wait_on(barrier)
        if limit:
            since = self.blocked_at

            def strike():
                if self in barrier.waiters and self.blocked_at == since:
                    self.time_out()

            self.engine.at_limit(limit, strike)
        return False

    def time_out(self) -> None:
        """The time limit of mbarrier.try_wait strikes: now, or when it is due if nothing happens until then."""
        self.waiting_for.waiters.remove(self)
        self.timed_out = True
        self.engine.at(max(self.engine.now, self.limit), self.run)

    # -- control flow ------------------------------------------------------------------------------------------
    def branch(self, taken: np.ndarray, there: int, here: int, join: int, together: int | None = None) -> int:
        lanes = taken.tobytes()  # faster to look through than an array
        if 0 not in lanes:
            return there
        if 1 not in lanes:
            return here
        if together is not None:
            return together
        self.split([(taken, there), (~taken, here)], join)
        return SPLIT

    def branch_table(self, index, table: list[int], join: int) -> int:
        if not alu.is_array(index):
            return table[index]
        values = sorted(set(index.tolist()))
        if len(values) == 1:
            return table[values[0]]
        self.split([(index == v, table[v]) for v in values], join)
        return SPLIT

    def split(self, parts: list[tuple[np.ndarray, int]], join: int):
        tcgen05.deliver_loads(self)
        self.clock.parts(self)
        self.warp.groups.remove(self)
        dying = [lanes for lanes, target in parts if target == EXIT]
        if dying:
            parts = [(lanes, target) for lanes, target in parts if target != EXIT]
        meeting, program, touched, quantum = self.join, self.program, None, self.clock.quantum
        away = tuple([target for _, target in parts if target != join])
        parks = bool(away) and not quantum  # else nobody would come for the others
        if join >= 0:
            touched, changes = program.between(away, join)
            meeting = Join(join, self.join, len(parts), self, changes)
        elif self.join is not None:
            self.join.expected += len(parts) - 1
        for lanes, target in parts:
            (index,) = lanes.nonzero()
            passes = target == join
            if passes:
                registers = []
            elif touched is None or quantum and len(index) > 1:  # machine code takes along what is live behind `join`
                registers = self.select_lanes(index, program.live_registers(target))
            else:
                registers = self.select_lanes(index, touched)
            child = Group(self.warp, self.lanes[index], registers, target, meeting, self.t)
            if passes:
                child.passes = index
            elif join >= 0:
                child.given = [registers[r] for r in changes]
            child.carry, child.loads = self.carry, list(self.loads)
            child.garbage = self.garbage and self.garbage.live(target, child.lane_mask)
            child.owed = self.owed.copy()
            child.stores, self.stores = self.stores, []  # wait::st needs the whole warp again
            child.begin(parks=parks and passes)
        for lanes in dying:
            self.cta.lanes_exited(self.warp, self.lanes[lanes])

    def select_lanes(self, index: np.ndarray, numbers: list[int]) -> list:
        """The registers of some lanes: those of these numbers; of the others, nothing."""
        whole = self.R
        registers: list = [None] * len(whole)
        for r in numbers:
            value = whole[r]
            registers[r] = of_lanes(value, index) if type(value) is np.ndarray else value
        return registers

    def park(self):
        join = self.join
        assert join is not None
        join.parked.append(self)
        self.warp.groups.remove(self)
        self.merge_if_complete(join)

    def merge_if_complete(self, join: Join | None):
        if join is None or len(join.parked) < join.expected:
            return
        if not join.parked:  # everybody exited on the way
            if join.parent is not None:
                join.parent.expected -= 1
                self.merge_if_complete(join.parent)
            return
        parts, join.parked = join.parked, []
        time = max(p.t for p in parts)
        if len(parts) == 1:
            merged, live = parts[0], self.program.live_registers(join.block)
            if merged.passes is not None:
                merged.R, merged.passes = join.whole.select_lanes(merged.passes, live), None
            else:
                index = np.searchsorted(join.whole.lanes, merged.lanes)
                known = join.whole.select_lanes(index, live)
                for r in join.changes:
                    known[r] = merged.R[r]
                merged.R = known
            merged.join, merged.given, merged.t = join.parent, None, time
            merged.warp.groups.append(merged)
        else:
            merged = self.merge(parts, join.block, join.parent, time, join)
        merged.begin()

    def merge(
        self, parts: list[Group], block: int, parent: Join | None, time: float, join: Join | None = None
    ) -> Group:
        """Make one group of all the parts' lanes. join: where all meet that have parted there and are left, None for
        some that have met elsewhere. Registers that none changed since are those of the group that parted."""
        kinds, whole = self.program.kernel.registers, join.whole if join is not None else None
        left = whole.n if whole is not None else -1  # lanes that are not here, with what they have in common
        for p in parts:
            left -= p.n if p.given is not None or p.passes is not None else 0
        changed: list[int]
        if join is not None and not left:  # nobody else needs its registers any more
            busy = [(p.R, p.given) for p in parts if p.passes is None and p.given is not None]
            complete, registers = join.whole, join.whole.R
            changed = [*{r: None for R, given in busy for r, was in zip(join.changes, given) if R[r] is not was}]
        else:
            complete, registers, changed = None, [None] * len(kinds), self.program.live_registers(block)
        if changed or complete is None:
            lanes = np.concatenate([p.lanes for p in parts])
            order = np.argsort(lanes)
        if join is not None and complete is None:
            registers = join.whole.select_lanes(np.searchsorted(join.whole.lanes, lanes[order]), changed)
            changed = join.changes
        before = whole.R if whole is not None else []
        for r in changed:
            values = [p.R[r] if p.passes is None else of_lanes(before[r], p.passes) for p in parts]
            first = values[0]
            if all(type(v) is not np.ndarray and v is not None and v == first for v in values):
                registers[r] = first
            elif all(v is None for v in values):
                registers[r] = None
            else:
                bits = kinds[r].bits
                dtype = object if bits == 128 else alu.U[bits]
                filled = [
                    np.full(p.n, 0 if v is None else v, dtype) if type(v) is not np.ndarray else v
                    for p, v in zip(parts, values, strict=True)
                ]
                registers[r] = np.concatenate(filled)[order]
        here = complete.lanes if complete is not None else lanes[order]
        merged = Group(self.warp, here, registers, block, parent, time)
        if complete is not None:
            merged.given, merged.specials = complete.given, complete.specials
        held: list[Garbage] = []
        loads: dict[object, None] = {}  # each part had all of before
        for p in parts:
            if p.garbage is not None:
                held.append(p.garbage)
            if p.owed:
                for r, found in p.owed.items():
                    merged.owed[r] = max(found, merged.owed.get(r, found))
            if p.loads:
                loads |= dict.fromkeys(p.loads)
            merged.stores += p.stores
        merged.loads = [*loads]
        if held:
            merged.garbage = Garbage.of_all(held)
        return merged

    def exit(self):
        self.warp.groups.remove(self)
        if self.join is not None:
            self.join.expected -= 1
            self.merge_if_complete(self.join)
        if not self.warp.groups:
            self.clock.trace.warp_life(self, self.warp.started, self.t)
        self.cta.lanes_exited(self.warp, self.lanes)

    def trap(self):
        raise Fault("trap", "the kernel executed trap")

    def sleep(self, ns) -> bool:
        """nanosleep (9.7.19): for about so long, here exactly."""
        if self.token is None:
            self.token = self.clock.after(self.t, int(np.max(ns)))
            return self.wait_until(self.token, "nanosleep")
        self.token = None
        return True

    def set_max_registers(self, what: str, count: int) -> bool:
        """setmaxnreg (9.7.19.5): dec gives registers to the CTA's pool, inc waits until that has enough."""
        if count % 8 or not 24 <= count <= 256:
            raise Fault("setmaxnreg", f"register count {count}: must be a multiple of 8 from 24 to 256")
        pool, more = self.cta.register_pool, count - (self.warp.registers or count)
        if not self.launch.checks:
            return True
        if more * (1 if what == "dec" else -1) > 0:
            message = f"setmaxnreg.{what} to {count} by a warp that has {self.warp.registers}"
            raise Fault("setmaxnreg", message)
        if 32 * more > pool.free:
            pool.wanted = 32 * more
            return self.wait_on(pool)
        pool.take(32 * more)
        self.warp.registers = self.warp.registers and count
        return True

    # -- values ------------------------------------------------------------------------------------------------
    def special(self, name: str):
        value = self.specials.get(name)
        if value is None:
            value = special_register(self, name)
            if name not in TIMERS:
                self.specials[name] = value
        return value

    # -- across lanes ------------------------------------------------------------------------------------------
    def converged(self, members) -> bool:
        """All live member lanes are in this group; else wait for those that are still under way.

        Lanes may have masks of their own, as tiles of a warp have.
        """
        if alu.is_array(members):
            left_out = (members >> self.lanes.astype(np.uint32)) & np.uint32(1) == 0
            out, mask = lane_mask(self.lanes[left_out].tobytes()), int(members[left_out.argmax()])
            members = int(np.bitwise_or.reduce(members))
        else:
            out, mask = self.lane_mask & ~members, members
        if out:
            message = f"lanes {out:#x} execute a .sync instruction whose member mask {mask:#x} leaves them out"
            raise Fault("divergence", message)
        missing = members & self.warp.live_mask & ~self.lane_mask
        if not missing:
            return True
        waiting = self.warp.waiting_to_converge.setdefault(self.pc, [])
        if self not in waiting:
            waiting.append(self)
        have = 0
        for g in waiting:
            have |= g.lane_mask
        self.waiting_for = (
            f"the other lanes of its warp at a .sync instruction (mask {members:#x}, missing {missing:#x})"
        )
        if members & self.warp.live_mask & ~have:
            return False
        if any(g.join is not self.join for g in waiting):
            raise Unsupported("reconvergence at a .sync instruction of lanes from different branches")
        del self.warp.waiting_to_converge[self.pc]
        for g in waiting:
            self.warp.groups.remove(g)
        if self.join is not None:
            self.join.expected -= len(waiting) - 1
        time = max(g.t for g in waiting)
        self.merge(waiting, self.pc, self.join, time).begin()
        return False

    def lane_array(self, value, bits: int = 32) -> np.ndarray:
        return as_array(value, self.n, bits)

    def elect(self, members):
        """(elected lane, this lane is it). Which lane it is is not specified: the schedule decides."""
        if alu.is_array(members):
            if (members != members[0]).any():
                raise Unsupported("elect.sync with member masks that differ")
            members = int(members[0])
        return elect(self.lanes, self.warp.leader, members)
