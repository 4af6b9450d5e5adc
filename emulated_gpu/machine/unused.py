"""Races of loads whose value comes to nothing: a note, as no order changes what the launch does.

Triton lets every warp of a block load; of those that have the same elements one stores, and the others' stores are kept
back by a guard. What a loaded value may come to is read off the code: it is computed with, and goes into certain
stores to global memory. Whether the warp executes one of these behind the load, its events say. What decides anything
else (a branch, an address, a guard, an atomic, a barrier), or goes to other memory, counts as used.
"""

from __future__ import annotations

from typing import Any

from ..errors import Fault
from ..ptx.control_flow import ControlFlow
from ..ptx.effects import computes
from ..ptx.isa import lookup
from ..ptx.syntax import Instr
from ..state.order import Actor, Order
from .garbage import address_of

Stores = frozenset[int]  # by id of the instruction


class Unused:
    """Holds back the races of a launch of which it is open whether a value is used. order: the launch's events."""

    def __init__(self, order: Order):
        self.order = order
        self._stores: dict[int, Stores | None] = {}  # of loads, by their ids
        # By the lines of a race: it, and the first load of each warp and instruction that takes part
        self._held: dict[tuple[str, ...], tuple[Fault, dict[tuple[Actor, int], tuple[int, Stores]]]] = {}

    def holds(self, race: Fault) -> bool:
        """Hold back a race of loads of which nothing has come, nor of earlier ones like them; returns whether."""
        loads: dict[tuple[Actor, int], tuple[int, Stores]] = {}
        for number in race.loads:
            who: Any = self.order.log[number]
            instr = who.instruction()
            if id(instr) not in self._stores:
                self._stores[id(instr)] = stores_of(who.program, instr)
            stores = self._stores[id(instr)]
            if stores is None or self._executed(who.actor, number, stores):
                return False
            loads.setdefault((who.actor, id(instr)), (number, stores))
        _, known = self._held.setdefault(race.lines, (race, {}))
        return not any(self._executed(key[0], *known.setdefault(key, load)) for key, load in loads.items())

    def settled(self) -> list[Fault]:
        """The races that have been held back: with a note, unless something has come of a load by now."""
        races = []
        for race, loads in self._held.values():
            if not any(self._executed(actor, *load) for (actor, _), load in loads.items()):
                race.note = "unused-load"
                race.message += "; nothing comes of the value that is loaded"
            races.append(race)
        self._held.clear()
        return races

    def _executed(self, actor: Actor, load: int, stores: Stores) -> bool:
        """Whether a warp has executed any of these stores behind a load."""
        order, first = self.order, load + 1
        own = (order.component[first : order.now + 1] == actor.uid) & (
            order.space[first : order.now + 1] == actor.space.index
        )
        behind: set[Any] = {order.log[first + k] for k in own.nonzero()[0].tolist()}
        return any(id(who.instruction()) in stores for who in behind)


def stores_of(program: ControlFlow, load: Instr | None) -> Stores | None:
    """The plain stores to global memory into which what a load brings may go, on any way through the program; None if
    it may come to anything else."""
    if load is None or load.parts[0] not in ("ld", "ldu"):
        return None
    number = next(i for i, instr in enumerate(program.kernel.instrs) if instr is load)
    block = next(b for b, end in enumerate(program.end) if program.start[b] <= number < end)
    stores, brought = set[int](), dict[int, set[int]]()  # by block, the registers made of it that come there
    work = [(block, number + 1, set(program.effects[number][1]))]
    while work:
        block, first, made = work.pop()
        for i in range(first, program.end[block]):
            instr, (_, writes) = program.kernel.instrs[i], program.effects[i]
            guard, handler = set() if instr.guard is None else {instr.guard.index}, lookup(instr)
            if handler is None:
                return None
            inputs = program.sources(instr) | guard | (writes if handler.in_place else set())
            if made.isdisjoint(inputs):
                made -= set() if guard else writes
            elif computes(instr):
                made |= writes
            elif stores_global(instr) and made.isdisjoint(address_of(instr) | guard):
                stores.add(id(instr))
            else:
                return None
        for after in program.successors[block]:
            if after < len(program.end) and made - brought.setdefault(after, set()):
                brought[after] |= made
                work.append((after, program.start[after], set(brought[after])))
    return frozenset(stores)


def stores_global(instr: Instr) -> bool:
    """Whether an instruction is a store of registers to global memory, each of which is an event."""
    return instr.parts[0] == "st" and "global" in instr.parts and {"async", "bulk"}.isdisjoint(instr.parts)
