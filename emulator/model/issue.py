"""Cycles that a warp spends on the instructions of a basic block: in-order issue with register dependences.

PTX is not SASS: register moves vanish, address arithmetic folds into instructions, a division is a routine. The classes
of instructions (`cost` in ptx/isa) stand for that; their figures are in the section [issue] of the machine profile.
"""

from __future__ import annotations

from ..errors import Unsupported
from ..ptx.isa import lookup
from ..ptx.isa.registry import UNTIMED
from ..ptx.program import Program
from ..ptx.syntax import Instr, Symbol

OVERLAPPING = {"fence_tensormap", "publish_tensormap"}  # one starts while others of its kind are under way
# What keeps its warp waiting, but not its scheduler
WAITING = {"barrier", "cluster_barrier", "cluster_release", "fence", "fence_gpu", "tmem_alloc"}
UNORDERED = {"alu", "multiply", "move", "constant"}  # what does not wait for them


def kind(instr: Instr) -> str:
    """The cost class of an instruction: see ptx/isa/registry.py. UNTIMED is that of one that nobody knows."""
    handler = lookup(instr)
    return UNTIMED if handler is None else handler.cost_class(instr)


class Untimed:
    """The cost of a block with an instruction that cannot be timed: who executes the block hears of it."""

    def __init__(self, instr: Instr, why: str):
        self.message = f"{why}, so that it cannot be timed: PTX line {instr.line}: {instr.text}"

    def __iter__(self):
        raise Unsupported(self.message)


def _on_condition(program: Program, block: int) -> bool:
    """Whether a branch of the block before skips this one, and not for the lane that elect.sync picks (ptxas predicates
    what only that one does)."""
    if not block or program.join[block - 1] == block:
        return False
    before = program.kernel.instrs[program.start[block - 1] : program.end[block - 1]]
    last = before[-1] if before else None
    elects = any(i.op.startswith("elect.sync") for i in before)
    return last is not None and last.op.startswith("bra") and last.guard is not None and not elects


def _shared_address(instr) -> bool:
    """Whether it is `mov` of the address of shared memory, which depends on the CTA's rank in its cluster."""
    return instr.op in ("mov.u32", "mov.b32") and isinstance(instr.operands[1], Symbol)


def block_cycles(program: Program, figures: dict) -> list[tuple[float, float] | Untimed]:
    """The cost of each block: its cycles, and those for which it keeps its warp's scheduler or a unit behind it busy.

    figures[class] = (cycles between issues, cycles until the result can be used).
    """
    return [_block_cycles(program, block, figures) for block in range(len(program.start))]


def _block_cycles(program: Program, block: int, figures: dict) -> tuple[float, float] | Untimed:
    on_condition = _on_condition(program, block)
    time, slots = 0.0, 0.0
    ready, arithmetic = {}, set()  # cycle a register can be read in; who came from integer units
    under_way, until = "", 0.0  # kind of an overlapping operation, and when the last is complete
    for instr in program.kernel.instrs[program.start[block] : program.end[block]]:
        group = kind(instr)
        if group == UNTIMED:
            return Untimed(instr, "nobody has measured or published what this instruction takes")
        if on_condition and _shared_address(instr):  # elsewhere ptxas computes it once, ahead
            group = "shared_address"
        if group not in figures:
            return Untimed(instr, f"the machine profile has no figures of the class {group}")
        issue, latency = figures[group]
        reads, writes = program.reads_writes(instr)
        if group == "global_store":  # ptxas computes the addresses of a row of stores ahead
            reads = [r for r in reads if r not in arithmetic]
        begin = max([time, *(ready[r] for r in reads if r in ready)])
        if group != under_way and group not in UNORDERED:
            begin, under_way = max(begin, until), ""
        if group in OVERLAPPING:
            under_way, until = group, begin + latency
        if issue == 0:  # a move that vanishes passes its source's readiness on
            for r in writes:
                ready[r] = begin
            continue
        time = begin + issue
        slots += 1 if group in WAITING else issue
        for r in writes:
            ready[r] = begin + latency
            (arithmetic.add if group == "alu" else arithmetic.discard)(r)
    return max(time, until, 1.0), slots
