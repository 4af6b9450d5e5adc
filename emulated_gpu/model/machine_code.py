"""What ptxas makes of a kernel where PTX does not show what it costs a warp; read in CUTLASS's kernels for sm_90a.

An address of shared memory needs the CTA's rank in its cluster, a special register that takes long to read (S2UR of
SR_CgaCtaId). The descriptors of a wgmma have to be in uniform registers: ptxas makes them right before it, and it comes
this many cycles after the one before as a uniform register takes to be usable, whatever else is done meanwhile.
What makes the operands of tcgen05.mma and tcgen05.cp is uniform, too, and in their class: so it costs nothing beside.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ptx.control_flow import ControlFlow
from ..ptx.isa import lookup
from ..ptx.syntax import Instr, Reg, Symbol, Target

# Classes of cost, figures of which are in the section [issue] of a machine profile
SHARED_ADDRESS, SAME_B, OTHER_B, NOTHING = "shared_address", "wgmma_same_b", "wgmma_other_b", "move"
ARITHMETIC = {"alu", "move"}
TENSOR = "tcgen05.mma.", "tcgen05.cp."


def classes(program: ControlFlow) -> dict[int, str]:
    """Return by number the classes of the instructions that cost something else in machine code than in PTX."""
    return dict.fromkeys(_addresses(program), SHARED_ADDRESS) | _descriptors(program)


def _addresses(program: ControlFlow) -> Iterator[int]:
    """Yield the numbers of `mov` that read the rank for an address of shared memory, as no other before them has it.

    What a block has computed, those have that it dominates, unless a loop begins between them that issues wgmmas or
    lies in one that does: there ptxas computes it anew. What only the lane does that elect.sync picks is predicated,
    and so a part of the block around it.
    """
    blocks = [program.kernel.instrs[s:e] for s, e in zip(program.start, program.end, strict=True)]
    takes = [next((n for n, i in enumerate(block) if _is_address(i)), None) for block in blocks]
    if all(n is None for n in takes):
        return
    edges: list[list[tuple[int, int]]] = [[] for _ in blocks]  # from a block, and blocks up to one that belong to it
    for b, successors in enumerate(program.successors):
        elects = any(i.op.startswith("elect.sync") for i in blocks[b])
        for s in successors:
            edges[s].append((b, s if elects and s > b else b + 1))
    heads = _heads(program, [any(map(_is_wgmma, block)) for block in blocks])
    has = [b > 0 and b not in heads for b in range(len(blocks))]
    changed = True
    while changed:
        changed = False
        for b in range(len(blocks)):
            if has[b] and not all(has[p] or any(n is not None for n in takes[p:end]) for p, end in edges[b]):
                has[b], changed = False, True
    ahead = 0  # blocks before the first branch, where reading it is hidden behind what else a kernel begins with
    while ahead < len(blocks) and program.successors[ahead] == [ahead + 1] and len(edges[ahead + 1]) == 1:
        ahead += 1
    yield from (program.start[b] + n for b, n in enumerate(takes) if b > ahead and n is not None and not has[b])


def _is_address(instr: Instr) -> bool:
    return instr.op in ("mov.u32", "mov.b32") and isinstance(instr.operands[1], Symbol)


def _is_wgmma(instr: Instr) -> bool:
    return instr.op.startswith("wgmma.mma_async.sync")


def _heads(program: ControlFlow, issues: list[bool]) -> set[int]:
    """The blocks that begin a loop which issues wgmmas, or lies in one that does."""
    loops = [(s, b) for b, successors in enumerate(program.successors) for s in successors if s <= b]
    around = [(first, last) for first, last in loops if any(issues[first : last + 1])]
    return {head for head, _ in loops if any(first <= head <= last for first, last in around)}


def _descriptors(program: ControlFlow) -> dict[int, str]:
    """The classes of wgmmas behind others, and of what is computed for nothing but their descriptors and predicate, or
    for the operands of tcgen05.mma and tcgen05.cp."""
    instrs, found = program.kernel.instrs, {}
    behind = {n for n, instr in enumerate(instrs) if instr.op.startswith(TENSOR)}
    work = [register for n in behind for register in program.effects[n][0]]
    for before, n in _pairs(instrs):
        _, a, b, scale_d, *_ = instrs[n].operands
        found[n] = SAME_B if b == instrs[before].operands[2] else OTHER_B
        behind.add(n)
        work += [r.index for r in (a, b, scale_d) if isinstance(r, Reg)]
    if not behind:
        return found
    readers: dict[int, set[int]] = {}
    writers: dict[int, list[int]] = {}
    for n, (reads, writes) in enumerate(program.effects):
        for r in reads:
            readers.setdefault(r, set()).add(n)
        for r in writes:
            writers.setdefault(r, []).append(n)
    while work:
        for n in writers.get(work.pop(), ()):
            reads, writes = program.effects[n]
            if n not in behind and _is_arithmetic(instrs[n]) and all(readers.get(r, behind) <= behind for r in writes):
                behind.add(n)
                found[n] = NOTHING
                work += reads
    return found


def _is_arithmetic(instr: Instr) -> bool:
    handler = lookup(instr)
    return handler is not None and handler.cost_class(instr) in ARITHMETIC and not _is_wgmma(instr)


def _pairs(instrs: list[Instr]) -> Iterator[tuple[int, int]]:
    """Yield numbers of wgmmas that follow one another in one straight line with nothing but arithmetic between them."""
    targets = {o.index for i in instrs for o in i.operands if isinstance(o, Target)}
    last = None
    for n, instr in enumerate(instrs):
        if n in targets:
            last = None
        if _is_wgmma(instr):
            if last is not None:
                yield last, n
            last = n
        elif not _is_arithmetic(instr):
            last = None
