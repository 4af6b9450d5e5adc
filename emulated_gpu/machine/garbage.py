"""Registers that hold what nothing has written, followed until a value that comes of it decides something.

Compilers load tensor memory ahead of a loop that then runs no time, and throw away what they have made of it: such a
load is no mistake. From an instruction that loads cells which nothing has written on, a group executes the code of
ptx/control_flow.ControlFlow.followed, which comes here before each instruction, as long as it holds such registers.
What a shuffle takes of a lane that does not take part is such a value, too (PTX ISA 9.7.9.6).
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault
from ..formats import alu
from ..formats.lanes import Absent
from ..ptx.control_flow import ControlFlow
from ..ptx.effects import ACROSS, computes, is_load
from ..ptx.isa.registry import flat, pair
from ..ptx.syntax import Mem

Held = dict[int, tuple[Fault, int]]  # by register: the fault of using it, and the lanes in which, a bit each


class Follow(Exception):
    """A group that does not follow garbage begins to load some: its block is to be executed by code that does."""


class Garbage:
    """registers: of each that holds garbage, by its number, the fault of using that, and in which lanes of the warp it
    does, a bit each. fresh: the load that makes the first of it is still to be executed. watches: the block that is
    executed comes here before each instruction; else `ahead` has been reckoned where the garbage was loaded. stored:
    the fault of using what the instruction stores of it, and in which lanes that is garbage, by value.
    """

    __slots__ = ("program", "registers", "fresh", "number", "stored", "watches", "ahead")

    def __init__(self, program: ControlFlow, registers: Held | None = None):
        self.program, self.registers, self.fresh = program, registers or {}, registers is None
        self.number = 0  # of the instruction that is executed
        self.stored: tuple[Fault, list[int]] | None = None
        self.watches = False
        self.ahead: dict[int, tuple[Fault, list[int]]] = {}  # the same of the block's later stores, by their numbers

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
        held: Held = {}
        for part in parts:
            for r, (fault, lanes) in part.registers.items():
                held[r] = (held[r][0], held[r][1] | lanes) if r in held else (fault, lanes)
        return cls(parts[0].program, held)

    def stores(self, number: int, fault: Fault, lanes: list[int]) -> None:
        """Instruction `number`, which is being executed, makes of garbage what it stores: by value, in which lanes."""
        if self.watches:
            self.stored = fault, lanes
        else:
            self.ahead[number] = fault, lanes

    def hold(self, fault: Fault, registers, lanes: int) -> None:
        """Lanes are about to have garbage in registers."""
        for r in registers:
            self.registers[r] = fault, lanes | (self.registers[r][1] if r in self.registers else 0)

    def meets(self, g, number: int, guard, chosen) -> None:
        """A group comes to an instruction. guard: the lanes that execute it; chosen: those in which a selp takes its
        first operand. Reports the fault if a register decides something here: if it is branched on or an address, or
        goes to the tensor core, or to global memory; shared and local memory it makes garbage."""
        self.fresh, self.number, self.stored, self.watches = False, number, None, True
        program, instr, held = self.program, self.program.kernel.instrs[number], self.registers
        doubtful = held.get(instr.guard.index) if instr.guard is not None else None
        if not held or not (doubtful or alu.some(guard)):
            return
        if instr.parts[0] == "shfl" and doubtful is None:
            return None  # told of in `shuffled`, once its lanes have met
        at_work, sources = g.lanes_of(guard), program.sources(instr)
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
            carried = g.launch.tracked is not None or hands_on(instr)
            if carried and not self.decides(instr, doubtful):
                return None
            return g.launch.found(self.used(found[0][0], instr))
        self.computed(g, number, held, found, at_work, ~at_work)
        return None

    def used(self, fault: Fault, instr) -> Fault:
        """The fault of using what nothing has written, whose words say where that is used; it is one once."""
        self.registers = {r: held for r, held in self.registers.items() if held[0] is not fault}
        at = f"PTX line {instr.line}" + (f", {instr.loc}" if instr.loc else "")
        if " reads " in fault.message:
            fault.message = fault.message.replace(" reads ", f" reads, and {instr.op} ({at}) uses, ", 1)
        else:
            fault.message += f"; {instr.op} ({at}) uses it"
        return fault

    def computed(self, g, number: int, held: Held, found: list, at_work: int, kept: int) -> None:
        """An instruction makes registers of registers. held: what these hold, and then those. found: what of it goes
        in; at_work: the lanes that execute it; kept: those whose results stay as they are."""
        instr, bad = self.program.kernel.instrs[number], 0
        for _, lanes in found:
            bad |= lanes
        product = self.product(instr, held, at_work) if bad and instr.parts[0] == "mma" else {}
        if bad and instr.parts[0] in ACROSS:  # of memory that is followed: if it is of all lanes alike
            bad = g.lane_mask if g.launch.tracked is None or bad == at_work else 0
        for r in self.program.effects[number][1]:
            here = product.get(r, bad)
            lanes = here | (held[r][1] & kept if r in held else 0)
            if lanes:
                held[r] = (found[0][0] if here else held[r][0]), lanes
            else:
                held.pop(r, None)

    def shuffled(self, g, number: int, guard, source: np.ndarray | int) -> None:
        """The lanes that execute a shfl take the values of other lanes, `source`: garbage of those that hold it, and of
        those that do not take part."""
        instr, held = self.program.kernel.instrs[number], self.registers
        if instr.guard is not None and instr.guard.index in held:
            return  # which lanes execute it is not known: `meets` has held all of it
        value, by = instr.operands[1], [getattr(o, "index", -1) for o in instr.operands[2:4]]
        here, at_work = g.lane_mask, g.lanes_of(guard)
        fault, bad = held.get(getattr(value, "index", -1), (None, 0))
        doubtful = next((held[r] for r in by if r in held), None)
        numbers = np.broadcast_to(source, len(g.lanes)).tolist()
        taken = {lane: 1 << of for lane, of in zip(g.lanes.tolist(), numbers, strict=True) if at_work >> lane & 1}
        if fault is None and any(not here & of for of in taken.values()):
            fault = Absent(instr.parts[2])
            fault.where = g.place(instr)
        lanes = sum(1 << lane for lane, of in taken.items() if bad & of or not here & of)
        if doubtful is not None:
            fault, lanes = doubtful[0], at_work
        for r in self.program.effects[number][1]:
            new = lanes if doubtful is not None or r == getattr(pair(instr.operands[0])[0], "index", -1) else 0
            now = new | (held[r][1] & ~at_work if r in held else 0)
            if now:
                held[r] = (fault if new and fault is not None else held[r][0]), now
            else:
                held.pop(r, None)

    def product(self, instr, held: Held, at_work: int) -> dict[int, int]:
        """By register of the result of an mma.sync of 16 x 8, the lanes that hold rows and columns which are made of
        garbage. Of other forms nothing is said: there, all of it is."""
        d, a, b, c, *more = (tuple(getattr(o, "index", -1) for o in flat(operand)) for operand in instr.operands)
        dense = "sp" not in instr.parts and any(part.startswith("m16n8k") for part in instr.parts)
        if not dense or held.keys() & {*sum(more, ())}:
            return {}
        bad = {r: held[r][1] & at_work if r in held else 0 for r in (*a, *b, *c)}
        rows = [0, 0]  # the first eight and the second eight: even and odd registers of A
        for k, r in enumerate(a):
            rows[k % 2] |= quads(bad[r])
        columns = 0
        for r in b:  # four lanes have a column, of which two lie in each lane of a row of the result
            columns |= sum(EACH_ROW << n // 2 for n in range(8) if bad[r] >> 4 * n & 15) if bad[r] else 0
        of_c = [bad[r] for r in c] if len(c) == len(d) else [max(bad[r] for r in c)] * len(d)
        return {r: rows[2 * k // len(d)] | columns | of_c[k] for k, r in enumerate(d)}

    def decides(self, instr, doubtful) -> bool:
        """Whether garbage decides something in an instruction that does more than to compute: whether it is executed,
        or where. What it stores is carried on."""
        held = self.registers
        memory = next((o for o in instr.operands if isinstance(o, Mem)), None)
        if doubtful is not None or instr.parts[0] in ("bra", "brx"):
            return True
        if memory is not None and getattr(memory.base, "index", None) in held:
            return True
        if instr.parts[0] == "st":
            values = [getattr(o, "index", None) for o in flat(instr.operands[1])]
            if faults := [held[r][0] for r in values if r in held]:
                self.stored = faults[0], [held[r][1] if r in held else 0 for r in values]
        return False

    def loaded(self, tracked, addresses: np.ndarray, size: int, lanes: np.ndarray) -> None:
        """The instruction has loaded `size` bytes at an address a lane: hold what of it nobody has written."""
        instr = self.program.kernel.instrs[self.number]
        if not is_load(instr):
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

    def held_behind(self, g, number: int, loaded: Held) -> bool:
        """Hold what instruction `number` of a group's block loads, behind that block, if something else may come of it
        than that it decides something: as far as control flow goes one way, it is only computed with, or stored to
        shared or local memory. Returns whether."""
        program, block, first, seen = self.program, g.pc, number + 1, set[int]()
        held: Held = self.registers | loaded
        ahead: dict[int, tuple[Fault, list[int]]] = {}
        behind: Held | None = None
        while block not in seen and block < len(program.end):
            seen.add(block)
            for i in range(first, program.end[block]):
                instr, sources = program.kernel.instrs[i], program.sources(program.kernel.instrs[i])
                guard = {instr.guard.index} if instr.guard is not None else set()
                found = [held[r] for r in sorted(sources) if r in held]
                if found or held.keys() & guard:
                    if hands_on(instr) and not held.keys() & (guard | address_of(instr)):
                        values = [getattr(o, "index", None) for o in flat(instr.operands[1])]
                        ahead[i] = found[0][0], [held[r][1] if r in held else 0 for r in values]
                        continue
                    if not computes(instr) or held.keys() & guard:
                        return False
                self.computed(g, i, held, found, g.lane_mask, -1 if guard else 0)
            behind = dict(held) if behind is None else behind
            if len(program.successors[block]) != 1:
                break
            block = program.successors[block][0]
            first = program.start[block] if block < len(program.start) else 0
            if any(i.parts[0] == "shfl" for i in program.kernel.instrs[first : first + 1]):  # for `shuffled`
                break
        self.fresh, self.registers = False, behind or {}
        self.ahead |= ahead
        return True


EACH_ROW = 0x11111111  # the first lane of each row of a product


def quads(lanes: int) -> int:
    """All lanes of the rows of a product, four each, of which any is among these."""
    return ((lanes | lanes >> 1 | lanes >> 2 | lanes >> 3) & EACH_ROW) * 15


def of_rows(instr, bad: np.ndarray) -> list[int]:
    """The lanes to which an ldmatrix gives, by register, any of the parts of rows that are bad, bool [parts]: halves
    of 8 bytes but of elements of 6 and 4 bits."""
    registers = len(flat(instr.operands[0]))
    of_each = registers // int(next(p for p in ("x1", "x2", "x4") if p in instr.parts)[1:])
    matrices = bad.reshape(registers // of_each, -1)
    if of_each == 2 or "trans" in instr.parts:
        return [-1 if matrix.any() else 0 for matrix in matrices for _ in range(of_each)]
    rows = np.any(matrices.reshape(len(matrices), 8, -1), axis=2).tolist()
    return [sum(15 << 4 * k for k, is_bad in enumerate(matrix) if is_bad) for matrix in rows]


def hands_on(instr) -> bool:
    """Whether an instruction is a plain store to shared memory of the CTA or to local memory, which hands garbage on
    and uses none; or to a generic address, which may be there."""
    return instr.parts[0] == "st" and {"global", "param", "shared::cluster"}.isdisjoint(instr.parts)


def address_of(instr) -> set[int]:
    """The register that an instruction's address is made of."""
    return {o.base.index for o in instr.operands if isinstance(o, Mem) and hasattr(o.base, "index")}
