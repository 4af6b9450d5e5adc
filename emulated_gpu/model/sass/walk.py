"""One warp's way through a piece of machine code: what it costs, by its control words.

A warp issues in order. After an instruction pass as many cycles as its control word says: ptxas knows all latencies
that are fixed. Of those that are not, it has the instruction set one of six barriers, and what uses the result wait for
that. How long such an instruction takes, and for how long a pipe is busy with a warp's instruction, are figures of the
profile: [latency] by opcode, [pipe] by pipe or by opcode.
"""

from __future__ import annotations

from typing import NamedTuple

from .disassembly import BARRIERS, Sass
from .pipes import pipe_of


class Figures(NamedTuple):
    """latency: cycles until the barrier of an opcode's result is down; read: until that of its sources is; pipe: those
    that a pipe, or an opcode by its own name, is busy."""

    latency: dict[str, float]
    read: dict[str, float]
    pipe: dict[str, float]


class Walk(NamedTuple):
    """Tells what a piece of machine code costs.

    cycles: until all is issued; slots: for which a scheduler or a pipe behind it is busy. needs: barriers that may be
    up before, and how many cycles after the beginning they must be down; sets: barriers that are up behind it, and for
    how many cycles after the beginning, with who sets them.
    """

    cycles: float
    slots: float
    needs: dict[int, float]
    sets: dict[int, tuple[float, Sass]]

def walk(code: list[Sass], figures: Figures, silent: set[int]) -> Walk:
    """Walk a piece of machine code that is executed in a row.

    silent: lines of PTX whose time is told elsewhere, so that their machine code does no more than to wait.
    """
    time = 0.0
    busy: dict[str, float] = {}
    free: dict[str, float] = {}
    up: dict[int, tuple[float, Sass]] = {}
    needs: dict[int, float] = {}
    for i in code:
        begin = time
        for barrier in range(BARRIERS) if i.waits else ():
            if i.waits >> barrier & 1:
                if barrier in up:
                    begin = max(begin, up.pop(barrier)[0])
                needs.setdefault(barrier, begin)
        if i.line in silent:
            time = begin
            continue
        pipe = pipe_of(i.opcode)
        begin = max(begin, free.get(pipe, 0.0))
        rate = figures.pipe.get(i.opcode) or figures.pipe.get(pipe, 1.0)
        free[pipe] = begin + rate
        busy[pipe] = busy.get(pipe, 0.0) + rate
        for barrier, until in ((i.sets, figures.latency), (i.read, figures.read)):
            if barrier < BARRIERS:
                down = begin + until.get(i.opcode, until["other"])
                up[barrier] = max(up.get(barrier, (down, i)), (down, i), key=lambda each: each[0])
        time = begin + max(1, i.stall)
    slots = max([sum(i.line not in silent for i in code), *busy.values()])
    return Walk(time, slots, needs, {b: found for b, found in up.items() if found[0] > time})
