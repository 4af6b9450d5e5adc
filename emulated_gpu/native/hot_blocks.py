"""Which blocks become machine code, and when: as soon as they have cost more in Python than LLVM will.

What they cost is estimated from their instructions, not measured, so that a run can be repeated exactly.
"""

from __future__ import annotations

import functools
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
    first = lookup(instrs[0]) if instrs else None
    waits = first is not None and (first.waits(instrs[0]) or first.waits_untimed)  # which Python does
    worth = instrs and (not waits or sum(map(price, instrs[1:])) > CROSSING)
    program.blocks[index] = Cold(program, index, units, python) if worth else python
    return program.blocks[index]


class Cold:
    """A block that runs as Python until it has cost as much as compiling would."""

    __slots__ = ("program", "index", "units", "python", "price", "left")

    def __init__(self, program: ControlFlow, index: int, units, python):
        self.program, self.index, self.units, self.python = program, index, units, python
        instrs = program.kernel.instrs[program.start[index] : program.end[index]]
        self.price = sum(map(price, instrs))
        self.left = START + COMPILED * len(instrs)

    def __call__(self, g) -> int:
        self.left -= self.price
        if self.left > 0:
            return self.python(g)
        self.program.blocks[self.index] = self.python
        heat(self, g)
        return self.program.blocks[self.index](g)


class Native(functools.partial):
    """A block that runs as machine code, with others: `run` of its region."""


def heat(cold: Cold, g) -> None:
    """Make a region of a hot block and of those that follow it, if that pays."""
    program, index = cold.program, cold.index
    region = Region(program, sorted(_reachable(program, index)), g.launch.costs, cold.units)
    region.varying = {r for r in program.live_registers(index) if type(g.R[r]) is np.ndarray}
    region.translate()
    gains = {b: gain(region, b) for b in region.blocks}
    region.left = {b for b, won in gains.items() if won < 0}
    # Where machine code begins: not in what it hardly gains by, unless that is the end of a loop of such blocks
    back = {b for b in region.blocks if min(program.successors[b], default=b + 1) <= b}
    back -= {step.block for step in region.steps.values() if step.text is None}
    worth = back | {b for b, won in gains.items() if won > CROSSING}
    if index in worth:
        region.compile()
        for b in worth:
            program.blocks[b] = Native(region.run, block=b)


def _reachable(program: ControlFlow, first: int) -> list[int]:
    """Blocks that follow `first`, near ones first, until there are enough; none for lanes that part if none have, none
    of another region, unless lanes have parted only since that was made."""
    together = {program.block_of[n] for n in program.together.values()}
    again = first in together
    without = set() if again or any(program.blocks[b] for b in together) else together
    found, room = [first], LARGEST
    for b in found:
        for s in program.successors[b]:
            size, block = program.end[s] - program.start[s], program.blocks[s]
            if s in found or s in without or not size or isinstance(block, Native) and not again:
                continue
            warm = isinstance(block, Cold) and block.left < (START + COMPILED * size) / 2
            counted = 0 if warm or isinstance(block, Native) else size
            if counted <= room:
                room -= counted
                found.append(s)
    return found


def gain(region: Region, b: int) -> float:
    """Microseconds that a pass of a block gains as machine code, without the way in."""
    won, python = 0.0, False
    for i in region.instructions(b):
        step = region.steps[i]
        if step.text is not None:
            won += price(region.program.kernel.instrs[i], bool((step.reads | step.writes) & region.varies))
        elif not python:
            won -= CROSSING
        python = step.text is None
    return won
