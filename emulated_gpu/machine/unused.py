"""Races of loads whose value comes to nothing: a note, as no order changes what the launch does.

Triton lets every warp of a block load; of those that have the same elements one stores, and the others' stores are kept
back by a guard. What a loaded value may come to is read off the code: it is computed with, and goes into certain
stores to global memory. Whether the warp executes one of these behind the load, its events say. What decides anything
else (a branch, an address, a guard, an atomic, a barrier), or goes to other memory, counts as used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import Fault
from ..ptx.control_flow import ControlFlow
from ..ptx.effects import computes
from ..ptx.isa import lookup
from ..ptx.syntax import Instr
from ..state.order import Actor, Order
from .garbage import address_of

Stores = frozenset[int]  # by id of the instruction


@dataclass
class Done:
    """What a warp has executed up to event `until`. last: of each instruction, by its id, the last event."""

    until: int = 0
    last: dict[int, int] = field(default_factory=dict)

    def read(self, order: Order, actor: Actor) -> None:
        """Go on to the newest event."""
        first, self.until = self.until + 1, order.now
        new = slice(first, order.now + 1)
        own = (order.component[new] == actor.uid) & (order.space[new] == actor.space.index)
        for number in (first + own.nonzero()[0]).tolist():
            who: Any = order.log[number]
            self.last[id(who.instruction())] = number


class Unused:
    """Holds back the races of a launch of which it is open whether a value is used. order: the launch's events."""

    def __init__(self, order: Order):
        self.order = order
        self._stores: dict[int, Stores | None] = {}  # of loads, by their ids
        self._steps: dict[int, Step | None] = {}  # of instructions, by their ids
        self._done: dict[Actor, Done] = {}
        # By the lines of a race: it, and the first load of each warp and instruction that takes part
        self._held: dict[tuple[str, ...], tuple[Fault, dict[tuple[Actor, int], tuple[int, Stores]]]] = {}

    def holds(self, race: Fault) -> bool:
        """Hold back a race of loads of which nothing has come, nor of earlier ones like them; returns whether."""
        loads: dict[tuple[Actor, int], tuple[int, Stores]] = {}
        for number in race.loads:
            who: Any = self.order.log[number]
            instr = who.instruction()
            if id(instr) not in self._stores:
                self._stores[id(instr)] = stores_of(who.program, instr, self._steps)
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
        done = self._done.setdefault(actor, Done())
        done.read(self.order, actor)
        return any(done.last.get(store, 0) > load for store in stores)


@dataclass(frozen=True)
class Step:
    """What an instruction does with registers. stored: by a plain store to global memory; None: something else."""

    reads: frozenset[int]
    writes: frozenset[int]
    guarded: bool
    computes: bool
    stored: frozenset[int] | None

    @classmethod
    def of(cls, program: ControlFlow, number: int) -> Step | None:
        """Of an instruction by its number in the kernel; None if nobody knows it."""
        instr, (_, writes) = program.kernel.instrs[number], program.effects[number]
        handler = lookup(instr)
        if handler is None:
            return None
        guard = set() if instr.guard is None else {instr.guard.index}
        reads = program.sources(instr) | guard | (writes if handler.in_place else set())
        stored = frozenset(reads - address_of(instr) - guard) if stores_global(instr) else None
        return cls(frozenset(reads), frozenset(writes), bool(guard), computes(instr), stored)


def stores_of(program: ControlFlow, load: Instr | None, steps: dict[int, Step | None]) -> Stores | None:
    """The plain stores to global memory into which what a load brings may go, on any way through the program; None if
    it may come to anything else. steps: what is known of instructions, by their ids; gets more."""
    if load is None or load.parts[0] not in ("ld", "ldu"):
        return None
    instrs = program.kernel.instrs
    number = next(i for i, instr in enumerate(instrs) if instr is load)
    block = next(b for b, end in enumerate(program.end) if program.start[b] <= number < end)
    stores, brought = set[int](), dict[int, set[int]]()  # by block, the registers made of it that come there
    work = [(block, number + 1, set(program.effects[number][1]))]
    while work:
        block, first, made = work.pop()
        for i in range(first, program.end[block]):
            instr = instrs[i]
            if id(instr) not in steps:
                steps[id(instr)] = Step.of(program, i)
            step = steps[id(instr)]
            if step is None:
                return None
            if made.isdisjoint(step.reads):
                made -= frozenset() if step.guarded else step.writes
            elif step.computes:
                made |= step.writes
            elif step.stored is not None and made.isdisjoint(step.reads - step.stored):
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
