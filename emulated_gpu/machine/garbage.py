"""Registers that hold what nothing has written, followed until a value that comes of it decides something.

Compilers load tensor memory ahead of a loop that then runs no time, and throw away what they have made of it: such a
load is no mistake. From an instruction that loads cells which nothing has written on, a group executes the code of
ptx/control_flow.ControlFlow.followed, which comes here before each instruction, as long as it holds such registers.
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault
from ..formats import alu
from ..ptx.control_flow import ControlFlow
from ..ptx.isa import lookup
from ..ptx.isa.registry import flat
from ..ptx.syntax import Mem


class Follow(Exception):
    """A group that does not follow garbage begins to load some: its block is to be executed by code that does."""


class Garbage:
    """registers: of each that holds garbage, by its number, the fault of using that, and in which lanes of the warp it
    does, a bit each. fresh: the load that makes the first of it is still to be executed."""

    __slots__ = ("program", "registers", "fresh", "number", "stored")

    def __init__(self, program: ControlFlow, registers: dict[int, tuple[Fault, int]] | None = None):
        self.program, self.registers, self.fresh = program, registers or {}, registers is None
        self.number = 0  # of the instruction that is executed
        self.stored: list[int] | None = None  # by value that it stores, the lanes in which that is garbage

    def live(self, block: int, lanes: int) -> Garbage | None:
        """What of it lanes hold that come to a block, None for nothing."""
        if self.fresh:
            return self
        live = self.program.live[block] if block < len(self.program.live) else 0
        held = {r: (fault, m & lanes) for r, (fault, m) in self.registers.items() if live >> r & 1 and m & lanes}
        return Garbage(self.program, held) if held else None

    @classmethod
    def of_all(cls, parts: list[Garbage]) -> Garbage:
        """What parts of a warp hold that meet."""
        held: dict[int, tuple[Fault, int]] = {}
        for part in parts:
            for r, (fault, lanes) in part.registers.items():
                held[r] = (held[r][0], held[r][1] | lanes) if r in held else (fault, lanes)
        return cls(parts[0].program, held)

    def hold(self, fault: Fault, registers, lanes: int) -> None:
        """Lanes are about to have garbage in registers."""
        for r in registers:
            self.registers[r] = fault, lanes | (self.registers[r][1] if r in self.registers else 0)

    def meets(self, g, number: int, guard, chosen) -> None:
        """A group comes to an instruction. guard: the lanes that execute it; chosen: those in which a selp takes its
        first operand. Reports the fault if a register decides something here: if it is stored, branched on or an
        address, or goes to the tensor core."""
        self.fresh, self.number, self.stored = False, number, None
        program, instr, held = self.program, self.program.kernel.instrs[number], self.registers
        doubtful = held.get(instr.guard.index) if instr.guard is not None else None
        if not held or not (doubtful or alu.some(guard)):
            return
        at_work, written = g.lanes_of(guard), program.effects[number][1]
        sources = program.sources(instr)
        if chosen is not None:
            first, second, by = (getattr(o, "index", -1) for o in instr.operands[1:])
            of_first = g.lanes_of(chosen if type(chosen) is np.ndarray else bool(chosen))
            found = [
                (held[r][0], held[r][1] & at_work & lanes)
                for r, lanes in ((first, of_first), (second, ~of_first), (by, -1)) if r in held
            ]  # fmt: skip
        else:
            found = [(held[r][0], held[r][1] & at_work) for r in sorted(sources) if r in held]
        if doubtful is not None:
            found.append((doubtful[0], doubtful[1] & g.lane_mask))
        found = [(fault, lanes) for fault, lanes in found if lanes]
        if found and not computes(instr):
            if g.launch.tracked is not None and not self.decides(instr, doubtful):
                return None
            fault = found[0][0]
            self.registers = {r: (other, lanes) for r, (other, lanes) in held.items() if other is not fault}
            at = f"PTX line {instr.line}" + (f", {instr.loc}" if instr.loc else "")
            if " reads " in fault.message:
                fault.message = fault.message.replace(" reads ", f" reads, and {instr.op} ({at}) uses, ", 1)
            else:
                fault.message += f"; {instr.op} ({at}) uses it"
            return g.launch.found(fault)
        bad = 0
        for _, lanes in found:
            bad |= lanes
        if bad and instr.parts[0] in ACROSS:  # of memory that is followed: if it is of all lanes alike
            bad = g.lane_mask if g.launch.tracked is None or bad == at_work else 0
        for r in written:
            lanes = bad | (held[r][1] & ~at_work if r in held else 0)
            if lanes:
                held[r] = (found[0][0] if bad else held[r][0]), lanes
            else:
                held.pop(r, None)

    def decides(self, instr, doubtful) -> bool:
        """Whether garbage of global memory decides something in an instruction that does more than to compute: whether
        it is executed, or where. What it stores is carried on."""
        held = self.registers
        memory = next((o for o in instr.operands if isinstance(o, Mem)), None)
        if doubtful is not None or instr.parts[0] in ("bra", "brx"):
            return True
        if memory is not None and getattr(memory.base, "index", None) in held:
            return True
        if instr.parts[0] == "st":
            values = [getattr(o, "index", None) for o in flat(instr.operands[1])]
            self.stored = [held[r][1] if r in held else 0 for r in values]
        return False

    def loaded(self, tracked, addresses: np.ndarray, size: int, lanes: np.ndarray) -> None:
        """The instruction has loaded `size` bytes at an address a lane: hold what of it nobody has written."""
        instr = self.program.kernel.instrs[self.number]
        if instr.parts[0] not in ("ld", "ldu"):
            return
        items = flat(instr.operands[0])
        width = size // len(items)
        for k, item in enumerate(items):
            found = tracked.read(addresses + np.uint64(k * width), width)
            if found is not None and getattr(item, "index", None) is not None:
                undefined, fault = found
                fault.elements = None
                mask = sum(1 << lane for lane in lanes[undefined].tolist())
                self.hold(fault, [item.index], mask)

    def held_behind(self, number: int, block: int, registers, fault: Fault, lanes: int) -> bool:
        """Hold what instruction `number` of a block loads, behind that block, if something else may come of it than
        that it decides something: as far as control flow goes one way, it is only computed with. Returns whether."""
        program, held, first, seen = self.program, set(registers), number + 1, set()
        behind: set[int] | None = None
        while block not in seen and block < len(program.end):
            seen.add(block)
            for i in range(first, program.end[block]):
                instr, written = program.kernel.instrs[i], program.effects[i][1]
                guard = {instr.guard.index} if instr.guard is not None else set()
                if held & (program.sources(instr) | guard):
                    if not computes(instr):
                        return False
                    held |= written
                elif not guard:
                    held -= written
            behind = set(held) if behind is None else behind
            if len(program.successors[block]) != 1:
                break
            block = program.successors[block][0]
            first = program.start[block] if block < len(program.start) else 0
        self.fresh = False
        self.hold(fault, behind or (), lanes)
        return True


# What lanes get of other lanes
ACROSS = {"shfl", "vote", "redux", "match", "activemask", "elect", "mma", "wmma", "movmatrix"}


def computes(instr) -> bool:
    """Whether an instruction makes registers of registers, and nothing else."""
    handler = lookup(instr)
    elsewhere = handler.tensor_results or instr.parts[0] in ("bar", "barrier")
    return handler.destinations(instr) > 0 and not elsewhere and not any(isinstance(o, Mem) for o in instr.operands)
