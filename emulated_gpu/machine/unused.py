"""Races of loads whose value comes to nothing: a note, as no order changes what the launch does.

Triton lets every warp of a block load; of those that have the same elements one stores, and the others' stores are kept
back by a guard. What a loaded value may come to is read off the code: it is computed with, and goes into certain
stores to global memory. Whether the warp executes one of these behind the load, its events say. What decides anything
else (a branch, an address, a guard, an atomic, a barrier), or goes to other memory, counts as used.

Of a warp's loads of a word a shadow keeps the last alone. So others that may have read it, by pointers that come from
the same parameter, are asked as well, unless they have happened before the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import Fault
from ..ptx.control_flow import ControlFlow
from ..ptx.effects import computes, is_load
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
            who = order.origin(number)
            self.last[id(who.instruction())] = number


class Unused:
    """Holds back the races of a launch of which it is open whether a value is used. order: the launch's events."""

    def __init__(self, order: Order):
        self.order = order
        self._stores: dict[int, Stores | None] = {}  # of loads, by their ids
        self._steps: dict[int, Step | None] = {}  # of instructions, by their ids
        self._done: dict[Actor, Done] = {}
        self._pointers: dict[int, dict[int, set[str]]] = {}  # of programs, by their ids
        self._others: dict[int, list[Instr]] = {}  # of loads, by their ids: other loads that may be of the same memory
        # By the lines of a race: it, and the first load of each warp and instruction that takes part
        self._held: dict[tuple[str, ...], tuple[Fault, dict[tuple[Actor, int], tuple[int, Stores]]]] = {}

    def holds(self, race: Fault, by: Actor | None) -> bool:
        """Hold back a race of loads of which nothing has come, nor of earlier ones like them; returns whether.

        by: who does the later access.
        """
        loads: dict[tuple[Actor, int], tuple[int, Stores]] = {}
        for number in race.loads:
            who = self.order.origin(number)
            instr = who.instruction()
            stores = self._stores_of(who.program, instr)
            if stores is None or self._executed(who.actor, number, stores):
                return False
            if by is not None and by is not who.actor and self._hides(who, instr, by):
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

    def _stores_of(self, program: ControlFlow, load: Instr | None) -> Stores | None:
        if id(load) not in self._stores:
            self._stores[id(load)] = stores_of(program, load, self._steps)
        return self._stores[id(load)]

    def _hides(self, who: Any, load: Instr, by: Actor) -> bool:
        """Whether a warp has used what it has loaded otherwise than by `load`, perhaps the same, and `by` does not know
        that it has loaded it."""
        actor, program = who.actor, who.program
        if id(load) not in self._others:
            if id(program) not in self._pointers:
                self._pointers[id(program)] = pointers(program)
            of = self._pointers[id(program)]
            self._others[id(load)] = [
                one for one in program.kernel.instrs
                if one is not load and not of[id(load)].isdisjoint(of.get(id(one), ()))
            ]  # fmt: skip
        known = by.knowledge.known((actor.space, actor.uid))
        last = self._last(actor)
        for other in self._others[id(load)]:
            if last.get(id(other), 0) > known:
                stores = self._stores_of(program, other)
                if stores is None or any(last.get(store, 0) > known for store in stores):
                    return True
        return False

    def _last(self, actor: Actor) -> dict[int, int]:
        """The last events of what a warp has executed until now, by instructions' ids."""
        done = self._done.setdefault(actor, Done())
        done.read(self.order, actor)
        return done.last

    def _executed(self, actor: Actor, load: int, stores: Stores) -> bool:
        """Whether a warp has executed any of these stores behind a load."""
        last = self._last(actor)
        return any(last.get(store, 0) > load for store in stores)


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
    if load is None or not is_load(load):
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


def pointers(program: ControlFlow) -> dict[int, set[str]]:
    """By loads' ids, the parameters of 64 bits that their addresses are made of. What is loaded counts as an index."""
    instrs, writers = program.kernel.instrs, dict[int, list[int]]()
    for number, (_, writes) in enumerate(program.effects):
        for register in writes:
            writers.setdefault(register, []).append(number)

    def made_of(load: Instr) -> set[str]:
        found, seen, work = set[str](), set[int](), address_of(load)
        while work:
            register = work.pop()
            seen.add(register)
            for number in writers.get(register, ()):
                instr = instrs[number]
                if instr.parts[:2] == ["ld", "param"] and instr.parts[-1].endswith("64"):
                    found.add(repr(instr.operands[1]))
                elif not is_load(instr):
                    work |= program.effects[number][0] - seen
        return found

    return {id(instr): made_of(instr) for instr in instrs if is_load(instr)}


def stores_global(instr: Instr) -> bool:
    """Whether an instruction is a store of registers to global memory, each of which is an event."""
    return instr.parts[0] == "st" and "global" in instr.parts and {"async", "bulk"}.isdisjoint(instr.parts)
