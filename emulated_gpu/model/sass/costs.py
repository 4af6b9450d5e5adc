"""What a warp spends on each block of a program, by its machine code."""

from __future__ import annotations

from ...ptx.control_flow import ControlFlow
from ...ptx.syntax import Instr
from ..issue import OVERLAPPING, Cost, Untimed, kind, untimed
from ..scoreboard import LATE, LONG, SHORT, Late, Results
from .disassembly import BARRIERS, MachineCode
from .segments import Placed, placed
from .walk import Figures, walk

# Classes of PTX whose time is not that of their machine code: what waits for others, and routines with several ways
WAITING = {"barrier", "cluster_barrier", "cluster_release", "fence", "fence_gpu", "tmem_alloc"}
ATOMIC = {"global_atomic", "shared_atomic"}
BY_MEMORY = {"LDG", "LD", "LDL", "ATOMG", "ATOM"}  # what waits for L1TEX or for the memory behind it


def block_costs(program: ControlFlow, made: MachineCode, figures: Figures, classes: dict) -> list[Cost | Untimed]:
    """The cost of each block. classes: of issue.py, figures of those whose time is not that of their machine code."""
    code, lines = made.kernels[program.kernel.name], made.lines[program.kernel.name]
    barriers: dict[int, set[int]] = {lines[n]: set() for n, i in enumerate(program.kernel.instrs) if kind(i) in LATE}
    for each in code:
        if each.line in barriers and each.sets < BARRIERS:
            barriers[each.line].add(each.sets)
    found = placed(program, code, lines)
    return [_cost(program, block, found[block], lines, barriers, figures, classes) for block in range(len(found))]


def _cost(
    program: ControlFlow, block: int, become: Placed, lines: list[int], barriers: dict[int, set[int]],
    figures: Figures, classes: dict,
) -> Cost | Untimed:  # fmt: skip
    """barriers: of the lines of what comes late, those that it sets."""
    numbers = range(program.start[block], program.end[block])
    instrs = [program.kernel.instrs[n] for n in numbers]
    for i in instrs:
        if why := untimed(i, classes):
            return Untimed(i, why)
    silent = {lines[n] for n, i in zip(numbers, instrs) if kind(i) in WAITING | OVERLAPPING | ATOMIC}
    code = [i for run in become.runs for i in run]
    walked = walk(code, figures, silent)
    cycles = walked.cycles / become.copies + _waits(instrs, figures, classes)
    if _jumps(program, block) and any(i.opcode == "BRA" for i in code):
        cycles += figures.latency["BRA"]
    cycles = max(cycles, 1.0)
    soon = tuple(
        (b, cycles + (down - walked.cycles), LONG if by.opcode in BY_MEMORY else SHORT)
        for b, (down, by) in walked.sets.items()
        if by.line not in barriers
    )
    late = tuple(
        Late(b, n, 0.0, classes[kind(i)][1], LATE[kind(i)])
        for n, i in zip(numbers, instrs)
        if kind(i) in LATE
        for b in barriers[lines[n]]
    )
    needs = tuple((b, min(at, cycles)) for b, at in walked.needs.items())
    slots = min(max(walked.slots / become.copies, 1.0), cycles)
    results = Results((), (), soon, late) if soon or late else None
    return Cost(cycles, slots, needs, results, None, len(code) / become.copies)


def _waits(instrs: list[Instr], figures: Figures, classes: dict) -> float:
    """Cycles of what is charged by its class, and of wgmma.wait_group."""
    waits, until = 0.0, 0.0  # when the last operation that overlaps is complete
    for i in instrs:
        group = kind(i)
        if i.op.startswith("wgmma.wait_group"):
            waits += figures.latency["WARPGROUP"]
        elif group in WAITING:
            waits += classes[group][1]
        elif group in ATOMIC:
            waits += classes[group][0]
        elif group in OVERLAPPING:
            waits, until = waits + classes[group][0], waits + classes[group][1]
    return max(waits, until)


def _jumps(program: ControlFlow, block: int) -> bool:
    """Whether a block is mostly not followed by the next one: it ends a loop, which is no wait's, or always jumps."""
    to = program.successors[block]
    return bool(to) and (min(to) < block or to != [block + 1] and len(to) == 1)
