"""Races of loads that a dependency alone orders: who stores over what they have read has waited for what came of it.

A selection in place has it so. A CTA tells by a relaxed store how many elements of its tile it keeps; the next one
reads that, and stores over the tile. No fence orders the loads before that. But the number is made of what they have
brought, or that decides whether it is told, and whether there is a store at all depends on the number. A store that
came first would make itself true out of thin air (PTX ISA 8.9), and a GPU computes with nothing that has not come.

What comes of a value is read off the code: registers that are made of it, shared and local memory as a whole, and all
that follows a branch which it decides. Every strong write behind a load has to be among that, and every strong read
before the store to decide about it: which of them made the order, nobody knows.
"""

from __future__ import annotations

import numpy as np

from ..ptx.control_flow import ControlFlow
from ..ptx.effects import ATOMICS, hands_on, is_load
from ..ptx.syntax import Instr
from ..state.order import HEARD, Actor, Order
from .garbage import address_of

MEMORY = -1  # stands for shared and local memory among registers


class ByValue:
    """Tells of the races of a launch whether a dependency orders them. order: the launch's events."""

    def __init__(self, order: Order):
        self.order = order
        self._answers: dict[tuple[int, bool], bool] = {}  # of loads and of stores, by their ids

    def orders(self, loads: tuple[int, ...], by: Actor, program: ControlFlow, store: Instr | None) -> bool:
        """Whether a store by a warp comes behind loads of others, by their events, whose values have let it go."""
        if not self.order.listens or by.unknown(np.array(loads), HEARD).any():
            return False
        parties: list[tuple[ControlFlow, Instr | None, bool]] = [(program, store, False)]
        for number in loads:
            who = self.order.origin(number)
            parties.append((who.program, who.instruction(), True))
        return all(self._depends(*party) for party in parties)

    def _depends(self, program: ControlFlow, instr: Instr | None, loads: bool) -> bool:
        key = id(instr), loads
        if key not in self._answers:
            number = next((n for n, other in enumerate(program.kernel.instrs) if other is instr), None)
            self._answers[key] = number is not None and (tells if loads else awaits)(program, number)
        return self._answers[key]


def tells(program: ControlFlow, load: int) -> bool:
    """Whether every strong write to global memory behind a load is made of it or decided by it; there is one."""
    if not is_load(program.kernel.instrs[load]):
        return False
    strong = {n for n in behind(program, load) if writes_strongly(program.kernel.instrs[n])}
    made, decided = comes_of(program, load)
    return bool(strong) and all(n in decided or made & program.effects[n][0] for n in strong)


def awaits(program: ControlFlow, store: int) -> bool:
    """Whether every strong read of global memory before a store decides whether or where it is; there is one."""
    instr = program.kernel.instrs[store]
    where = address_of(instr) | ({instr.guard.index} if instr.guard is not None else set())
    reads = (n for n, other in enumerate(program.kernel.instrs) if reads_strongly(other))
    outcomes = [comes_of(program, read) for read in reads if store in behind(program, read)]
    return bool(outcomes) and all(store in decided or made & where for made, decided in outcomes)


def comes_of(program: ControlFlow, number: int) -> tuple[set[int], set[int]]:
    """The registers that are made of the results of an instruction on any way, and the instructions behind branches
    that these decide."""
    instrs, seen, decided = program.kernel.instrs, set[int](), set[int]()
    made = set(program.effects[number][1])
    work = [*made]
    while work:
        register = work.pop()
        keepers = (n for n, instr in enumerate(instrs) if keeps(instr))
        for reader in {*(keepers if register == MEMORY else program.readers[register])} - seen:
            seen.add(reader)
            if instrs[reader].parts[0] in ("bra", "brx"):
                decided |= behind(program, reader)
            new = program.effects[reader][1] | ({MEMORY} if keeps(instrs[reader]) else set())
            work += new - made
            made |= new
    return made, decided


def behind(program: ControlFlow, number: int) -> set[int]:
    """The instructions that may be executed after one."""
    block = next(b for b, end in enumerate(program.end) if program.start[b] <= number < end)
    work, seen = [*program.successors[block]], set[int]()
    while work:
        block_behind = work.pop()
        if block_behind not in seen:
            seen.add(block_behind)
            work += program.successors[block_behind]
    found = set(range(number + 1, program.end[block]))
    return found.union(*(range(program.start[b], program.end[b]) for b in seen))


def reads_strongly(instr: Instr) -> bool:
    """Whether an instruction gets what others have told in global memory."""
    return hands_on(instr) and instr.parts[0] in ("ld", "atom")


def writes_strongly(instr: Instr) -> bool:
    """Whether an instruction tells others something in global memory."""
    return hands_on(instr) and instr.parts[0] != "ld"


def polls(program: ControlFlow) -> bool:
    """Whether a kernel may look for what others do, again and again."""
    return any(reads_strongly(i) and n in behind(program, n) for n, i in enumerate(program.kernel.instrs))


def resets(program: ControlFlow) -> bool:
    """Whether a kernel polls, counts by atomics, and stores strongly, as who sets a counter back does."""
    strong = {i.parts[0] for i in program.kernel.instrs if hands_on(i)}
    return "st" in strong and not strong.isdisjoint(ATOMICS) and polls(program)


def keeps(instr: Instr) -> bool:
    """Whether an instruction may put something into shared or local memory, or get it from there."""
    return instr.parts[0] in ("ld", "st", *ATOMICS) and {"global", "param", "const"}.isdisjoint(instr.parts)
