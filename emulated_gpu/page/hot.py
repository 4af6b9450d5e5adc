"""Where in the source the time of warps goes: what a Trace has of accesses, and of blocks, shared among their
instructions."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from ..model.scoreboard import LONG, SHORT
from ..model.timeline import Timeline
from ..model.trace import Spread, Trace
from ..ptx.syntax import Instr

# Ways of accesses, which the model charges beyond their block's own cycles: reasons of model/blocks.py
ACCESSES = "global loads", "global stores", "parameters", "shared memory"
STALLS = LONG, SHORT  # as Nsight Compute names them; shown where the block begins that had to wait


@dataclass
class Line:
    """A place in the source: the lines that led there, (file, number), outermost first. us: of all warps, by reason.

    spread: by way (a key of ACCESSES) what accesses there took that could have taken less.
    """

    calls: tuple[tuple[str, int], ...]
    us: Counter = field(default_factory=Counter)
    ptx: set[int] = field(default_factory=set)
    spread: dict[str, Spread] = field(default_factory=dict)
    programs: set = field(default_factory=set)

    def __str__(self) -> str:
        names = [f"{Path(file).name}:{number}" for file, number in self.calls]
        for at, (before, here) in enumerate(zip(self.calls, self.calls[1:]), 1):
            names[at] = str(here[1]) if before[0] == here[0] else names[at]
        return " > ".join(names)


def reason_of(timeline: Timeline, program, reason: str) -> str:
    """Name what a warp of a program waited for as the timeline does."""
    return f"waits for {timeline.reason(program, reason[5:])}" if reason.startswith("wait ") else reason


def instructions(timeline: Timeline) -> dict[tuple, Counter]:
    """Time by reason, in us of warps, of each (program, number of an instruction)."""
    found: dict[tuple, Counter] = defaultdict(Counter)
    for (program, block, line, reason), cycles in timeline.trace.spent.items():
        begin, end = program.start[block], program.end[block]
        numbers = [*range(begin, max(end, begin + 1))]
        if reason.startswith("wait ") or reason in STALLS:
            numbers = numbers[:1]  # what blocks starts its block
        elif line:
            numbers = [number_at(program, block, line)]
        share = timeline.us(cycles) / len(numbers)
        for number in numbers:
            last = len(program.kernel.instrs) - 1  # what falls off the end has a block, but no instruction
            found[program, min(number, last)][reason_of(timeline, program, reason)] += share
    return found


def spreads(trace: Trace) -> dict[tuple, dict[str, Spread]]:
    """What accesses that could have taken less took, by way, of each (program, number of an instruction)."""
    found: dict[tuple, dict[str, Spread]] = {}
    for (program, block, line, way), spread in trace.spread.items():
        found.setdefault((program, number_at(program, block, line)), {})[way] = spread
    return found


def number_at(program, block: int, line: int) -> int:
    """The number of the instruction that a line of a block's Python came from."""
    instr = program.instruction_at(block, line)
    numbers = range(program.start[block], program.end[block])
    return next((n for n in numbers if program.kernel.instrs[n] is instr), numbers.start)


def lines_of(instr: Instr) -> tuple[tuple[str, int], ...]:
    """The calls that lead to an instruction; without line info its PTX line."""
    return calls(instr.loc) if instr.loc else (("PTX", instr.line),)


def calls(loc: str) -> tuple[tuple[str, int], ...]:
    """The (file, number) that a place in the source, `kernel.py:18 > helpers.py:14 > 8`, has."""
    found: list[tuple[str, int]] = []
    for step in loc.split(" > "):  # `file:line`, or `line` of the file before
        name, _, number = step.rpartition(":")
        found.append((name or found[-1][0], int(number)))
    return tuple(found)


def lines(found: dict[tuple, Counter], trace: Trace) -> list[Line]:
    """The places, by their time, the longest first."""
    rows: dict[tuple, Line] = {}
    for (program, number), us in found.items():
        instr = program.kernel.instrs[number]
        row = rows.setdefault(lines_of(instr), Line(lines_of(instr)))
        row.us.update(us)
        row.ptx.add(instr.line)
        row.programs.add(program)
    for (program, number), ways in spreads(trace).items():
        of = rows[at].spread if (at := lines_of(program.kernel.instrs[number])) in rows else {}
        for way, spread in ways.items():
            if way not in of or of[way].took < spread.took:
                of[way] = spread
    return sorted(rows.values(), key=lambda row: -row.us.total())
