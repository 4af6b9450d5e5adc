"""Which blocks become machine code, and when: as soon as they have cost more in Python than LLVM will.

What they cost is estimated from their instructions, not measured, so that a run can be repeated exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np

from ..ptx.control_flow import ControlFlow
from ..ptx.isa.registry import is_float, lookup
from ..ptx.syntax import TYPE_BITS, Instr
from .region import Region

# Microseconds, about: of an instruction in Python, by what it works with; of LLVM, and of the blocks that follow one;
# of going in and out of machine code
NUMBERS, INTEGERS, FLOATS, EXCHANGE, ACCESS = 0.1, 1.0, 12.0, 10.0, 50.0
COMPILED, START = 250.0, 2500.0
CROSSING = 4.0
LARGEST = 800  # instructions of a region, without those of blocks that have cost half of what compiling them would
MEMORY, BETWEEN_LANES = ("ld", "st", "ldmatrix", "stmatrix", "cp", "tex"), ("shfl", "redux", "vote", "match")


def price(instr: Instr, varies: bool = True) -> float:
    """Return what an instruction costs in Python, in the unit of the constants above."""
    base, *parts = instr.parts
    if base in MEMORY:
        return INTEGERS if "param" in parts else ACCESS
    if base in BETWEEN_LANES:
        return EXCHANGE
    if base not in ("mov", "selp") and any(p in TYPE_BITS and is_float(p) for p in parts):
        return FLOATS
    return INTEGERS if varies else NUMBERS


def block(program: ControlFlow, index: int, units: Mapping[str, ModuleType]):
    """The function of a block for several lanes, on its way to machine code if that may ever pay."""
    python = program.block(index, units)
    instrs = program.kernel.instrs[program.start[index] : program.end[index]]
    worth = instrs and not (_waits(instrs[0]) and sum(map(price, instrs[1:])) <= CROSSING)
    program.blocks[index] = Cold(program, index, units, python) if worth else python
    return program.blocks[index]


def _waits(instr: Instr) -> bool:
    """Whether an instruction may have to, by which a block begins and which is Python."""
    handler = lookup(instr)
    return handler is not None and (handler.waits(instr) or handler.waits_untimed)


class Cold:
    """A block that runs as Python until it has cost as much as compiling would."""

    __slots__ = ("program", "index", "units", "python", "price", "left", "warm")

    def __init__(self, program: ControlFlow, index: int, units, python):
        self.program, self.index, self.units, self.python = program, index, units, python
        instrs = program.kernel.instrs[program.start[index] : program.end[index]]
        self.price = sum(map(price, instrs))
        self.left = START + COMPILED * len(instrs)
        self.warm = self.left / 2

    def __call__(self, g) -> int:
        self.left -= self.price
        if self.left > 0:
            return self.python(g)
        self.program.blocks[self.index] = self.python
        heat(self, g)
        return self.program.blocks[self.index](g)


class Native:
    """A block that runs as machine code, with others of its region."""

    __slots__ = ("region", "index")

    def __init__(self, region: Region, index: int):
        self.region, self.index = region, index

    def __call__(self, g) -> int:
        return self.region.run(g, self.index)


def heat(cold: Cold, g) -> None:
    """Make a region of a hot block and of those that follow it, if that pays."""
    program, index = cold.program, cold.index
    varying = {r for r in program.live_registers(index) if type(g.R[r]) is np.ndarray}
    blocks = _reachable(program, index)
    for _ in range(3):
        region = Region(program, sorted(blocks), g.launch.costs, cold.units)
        region.varying = varying
        region.translate()
        gains = {b: gain(region, b) for b in blocks}
        poor = {b for b, won in gains.items() if won < 0}
        if index in poor:
            return
        if not poor:
            break
        blocks = _reachable(program, index, poor)
    else:
        return
    turning = _cycles(region)
    worth = {b for b in blocks if gains[b] > CROSSING or b in turning}
    if index not in worth:
        return
    region.compile()
    for b in worth:
        program.blocks[b] = Native(region, b)


def _reachable(program: ControlFlow, first: int, without: set[int] = frozenset()) -> set[int]:
    """Blocks that follow `first`, near ones first, until there are enough; none for lanes that part if none have, none
    of another region, unless lanes have parted only since that was made."""
    together = {program.block_of[n] for n in program.together.values()}
    again = first in together
    if not again and all(program.blocks[b] is None for b in together):
        without = without | together
    found, work, room = {first}, [first], LARGEST
    for b in work:
        for s in program.successors[b]:
            size = program.end[s] - program.start[s]
            block = program.blocks[s]
            if s in found or s in without or not size or isinstance(block, Native) and not again:
                continue
            if not (isinstance(block, Native) or isinstance(block, Cold) and block.left < block.warm):
                if size > room:
                    continue
                room -= size
            found.add(s)
            work.append(s)
    return found


def gain(region: Region, b: int) -> float:
    """Microseconds that a pass of a block gains as machine code, without the way in."""
    program = region.program
    won, python = 0.0, False
    for i in range(program.start[b], program.end[b]):
        step = region.steps[i]
        if step.text is not None:
            won += price(program.kernel.instrs[i], bool((step.reads | step.writes) & region.varies))
        elif not python:
            won -= CROSSING
        python = step.text is None
    return won


def _cycles(region: Region) -> set[int]:
    """The blocks of machine code alone that lie on a way back to themselves through such blocks."""
    pure = {*region.blocks} - {step.block for step in region.steps.values() if step.text is None}

    def reached(first: int) -> list[int]:
        work = [first]
        for b in work:  # which grows
            work += [s for s in dict.fromkeys(region.program.successors[b]) if s in pure and s not in work[1:]]
        return work[1:]

    return {b for b in pure if b in reached(b)}
