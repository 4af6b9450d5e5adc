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
from ..ptx.syntax import Mem


class Follow(Exception):
    """A group that does not follow garbage begins to load some: its block is to be executed by code that does."""


class Garbage:
    """registers: of each that holds garbage, by its number, the fault of using that. fresh: the load that makes the
    first of it is still to be executed."""

    __slots__ = ("program", "registers", "fresh")

    def __init__(self, program: ControlFlow, registers: dict[int, Fault] | None = None):
        self.program, self.registers, self.fresh = program, registers or {}, registers is None

    def live(self, block: int) -> Garbage | None:
        """What of it a group holds that comes to a block, None for nothing."""
        if self.fresh:
            return self
        live = self.program.live[block] if block < len(self.program.live) else 0
        held = {r: fault for r, fault in self.registers.items() if live >> r & 1}
        return Garbage(self.program, held) if held else None

    @classmethod
    def of_all(cls, parts: list[Garbage]) -> Garbage:
        """What parts of a warp hold that meet."""
        return cls(parts[0].program, {r: fault for part in parts for r, fault in part.registers.items()})

    def meets(self, g, number: int, guard, chosen) -> None:
        """A group comes to an instruction. guard: the lanes that execute it; chosen: those in which a selp takes its
        first operand. Reports the fault if a register decides something here: if it is stored, branched on or an
        address, or goes to the tensor core."""
        self.fresh = False
        program, instr = self.program, self.program.kernel.instrs[number]
        doubtful = instr.guard is not None and instr.guard.index in self.registers
        if not self.registers or not (doubtful or alu.some(guard)):
            return
        sources, written = program.sources(instr), program.effects[number][1]
        if doubtful:
            sources.add(instr.guard.index)
        elif not np.all(guard):
            sources |= written  # which other lanes keep
        if chosen is not None:
            first, second, by = (getattr(o, "index", -1) for o in instr.operands[1:])
            sources -= {first, second}
            sources |= {by} | ({first} if np.any(chosen) else set()) | (set() if np.all(chosen) else {second})
        found = next((self.registers[r] for r in sorted(sources) if r in self.registers), None)
        if found is not None and not _computes(instr):
            self.registers = {r: fault for r, fault in self.registers.items() if fault is not found}
            at = f"PTX line {instr.line}" + (f", {instr.loc}" if instr.loc else "")
            found.message = found.message.replace(" reads ", f" reads, and {instr.op} ({at}) uses, ", 1)
            return g.launch.found(found)
        for r in written:
            if found is None:
                self.registers.pop(r, None)
            else:
                self.registers[r] = found


def _computes(instr) -> bool:
    """Whether an instruction makes registers of registers, and nothing else."""
    handler = lookup(instr)
    elsewhere = handler.tensor_results or instr.parts[0] in ("bar", "barrier")
    return handler.destinations(instr) > 0 and not elsewhere and not any(isinstance(o, Mem) for o in instr.operands)
