"""Ways of a few instructions that some lanes of a warp take, written once more, guarded, so that all go them together.

Lanes that part are groups of their own until they meet again (machine/warp.py), which takes far more time than what
they do between in `if (x & 1) y ^= table[i];`. Such a branch has a third way, for lanes that disagree: the instructions
of either side, each guarded by what was branched on. They do what they did: computing, plain loads, and plain stores if
the other side is empty, so that nobody can see in which order the sides go.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .effects import STRONG_FORMS, computes_alone, may_stop
from .isa import lookup
from .syntax import Imm, Instr, Reg, Special, Target, Vec, leaves

LONGEST = 40  # instructions of both sides
BITS = (16, 32, 64)  # of registers that a `mov` can clear


def joined_branches(program: Any) -> tuple[list[Instr], dict[int, int]]:
    """Return instructions to be put behind those of a ControlFlow, and for each branch that has such a way its number
    and that of the first instruction of the way."""
    instrs = program.kernel.instrs
    targets = [o.index for i in instrs for o in i.operands if isinstance(o, Target)]
    targets += [t for table in program.kernel.branch_tables.values() for t in table]
    more: list[Instr] = []
    together: dict[int, int] = {}
    for number, branch in enumerate(instrs):
        if branch.parts[0] != "bra" or branch.guard is None or not isinstance(branch.operands[0], Target):
            continue
        sides = _sides(instrs, targets, number)
        if sides is None or not all(_may_be_guarded(i, branch.guard) for side in sides[:2] for i in side):
            continue
        passed, taken, end = sides
        if any(i.parts[0] == "st" for i in passed) and taken or any(i.parts[0] == "st" for i in taken):
            continue
        if not more:
            more.append(Instr("ret", (), None, False, branch.line, "ret;"))  # where the last one falls through
        together[number] = len(instrs) + len(more)
        behind = program.live[program.block_of[end]] if end < len(instrs) else 0
        here = program.live[program.block_of[branch.operands[0].index]] if taken else 0
        for side, kept, negated in ((passed, behind | here, not branch.negated), (taken, behind, branch.negated)):
            for instr in side:
                more += _guarded(instr, branch.guard, negated, kept)
        more.append(dataclasses.replace(branch, op="bra", operands=(Target(end, ""),), guard=None, negated=False))
    return more, together


def _sides(instrs: list[Instr], targets: list[int], number: int) -> tuple[list[Instr], list[Instr], int] | None:
    """The instructions of those who pass a branch, of those who take it, and the number of that where they meet; None
    where they go further ways, or where others come in between."""
    there = instrs[number].operands[0].index
    if not number + 1 < there <= number + 2 + LONGEST or there > len(instrs):
        return None
    passed, taken, end = instrs[number + 1 : there], [], there
    last = passed[-1]
    if last.parts[0] == "bra" and last.guard is None and isinstance(last.operands[0], Target):
        end = last.operands[0].index
        passed.pop()
        taken = instrs[there:end]
        if end <= there or targets.count(there) > 1:
            return None
    if not 0 < len(passed) + len(taken) <= LONGEST or any(number < t < end and t != there for t in targets):
        return None
    return passed, taken, end


def _may_be_guarded(instr: Instr, guard: Reg) -> bool:
    """Whether an instruction does in some lanes, beside others, what it would do in them alone."""
    handler = lookup(instr)
    if handler is None or instr.guard is not None or may_stop(instr, handler):
        return False
    if handler.starts_block or handler.ends_block or handler.in_place or handler.owes or handler.tensor_results:
        return False
    written = _written(instr)
    if guard in written or any(isinstance(o, Special) and o.name.startswith(("clock", "global")) for o in _read(instr)):
        return False
    if instr.parts[0] in ("ld", "st"):
        return STRONG_FORMS.isdisjoint(instr.parts) and all(o.bits in BITS for o in written if isinstance(o, Reg))
    return computes_alone(instr) and not handler.settles


def _guarded(instr: Instr, guard: Reg, negated: bool, kept: int) -> list[Instr]:
    """An instruction with a guard. kept: registers, a bit each, whose values in other lanes are still needed: where
    none is written, computing needs no guard, and what is loaded replaces nothing."""
    written = [o for o in _written(instr) if isinstance(o, Reg)]
    lost = [o for o in written if not kept >> o.index & 1]
    if computes_alone(instr) and len(lost) == len(written):
        return [instr]
    lost = [o for o in lost if o.bits in BITS and o not in _read(instr)]
    inits = [dataclasses.replace(instr, op=f"mov.b{o.bits}", operands=(o, Imm(0))) for o in lost]
    return [*inits, dataclasses.replace(instr, guard=guard, negated=negated)]


def _destinations(instr: Instr) -> int:
    handler = lookup(instr)
    return handler.destinations(instr) if handler else 0


def _written(instr: Instr) -> list:
    return [*leaves(Vec(instr.operands[: _destinations(instr)]))]


def _read(instr: Instr) -> list:
    return [*leaves(Vec(instr.operands[_destinations(instr) :]))]
