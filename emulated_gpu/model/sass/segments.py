"""Which machine code belongs to which block of PTX.

ptxas moves instructions: it mixes what stands in neighbouring blocks where one of them is predicated, hoists out of
loops, copies. What a warp executes in a row between two branches is a run. The PTX blocks that it was made of are cut
out of it in their order, so that as few of its instructions as possible come to another block than that of their line.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from typing import NamedTuple

from ...ptx.control_flow import ControlFlow
from ...ptx.syntax import Instr
from .disassembly import Sass
from .pipes import MOVABLE, pipe_of

TRY, PRODUCTS = "SYNCS.PHASECHK", {"HGMMA", "IGMMA", "QGMMA"}
RECONVERGENCE = {"BSSY", "BSYNC"}
FIXED = 8  # the weight of what ptxas does not move, against 1


class Placed(NamedTuple):
    """What a block of PTX has become. runs: of machine code, each in one piece; copies: of all that the block does."""

    runs: list[list[Sass]]
    copies: float


def placed(program: ControlFlow, code: list[Sass], lines: list[int]) -> list[Placed]:
    """The machine code of each block of a program. lines: of its instructions, by their numbers."""
    block_of: dict[int, int] = {}
    for block, (start, end) in enumerate(zip(program.start, program.end, strict=True)):
        for line in lines[start:end]:
            block_of.setdefault(line, block)
    known = sorted(block_of)
    waits = _blocks_with(program, "mbarrier.try_wait", "mbarrier.test_wait")
    multiplies = _blocks_with(program, "wgmma.mma_async")
    products = [n for n, i in enumerate(code) if i.opcode in PRODUCTS]
    product = dict(zip(products, multiplies)) if len(products) == len(multiplies) else {}
    loops = _loops(program.successors)
    found: list[list[list[Sass]]] = [[] for _ in program.start]
    inside: set[int] = set()  # blocks that stand before the kernel's end
    starts = [n for n, i in enumerate(code) if i.begins]
    ends = [n for n, i in enumerate(code) if i.opcode == "EXIT" and not i.guarded]
    for start, end in zip(starts, [*starts[1:], len(code)]):
        run = code[start:end]
        homes = [block_of[known[max(bisect.bisect_right(known, i.line) - 1, 0)]] for i in run]
        for n, i in enumerate(run):
            # These have the line of what stands before them
            if i.op.startswith(TRY):
                homes[n] = next((b for b in waits if b >= homes[n]), homes[n])
            homes[n] = product.get(start + n, homes[n])
        if ends and start > ends[-1] and inside.issuperset(homes):
            continue  # another try of a wait, out of line
        inside.update(homes)
        weights = [_weight(i) for i in run]
        around = {loops[h] for h, w in zip(homes, weights) if w >= FIXED} or {loops[h] for h in homes}
        weights = [w if loops[h] in around else 0 for h, w in zip(homes, weights)]
        chosen = _in_order(homes, weights)
        for block, part in itertools.groupby(zip(chosen, run), key=lambda pair: pair[0]):
            found[block].append(_first_tries([i for _, i in part if i.opcode != "NOP" or i.waits]))
    own: list[set[int]] = [set() for _ in program.start]
    for line, block in block_of.items():
        own[block].add(line)
    return [Placed(runs, _copies(runs, of)) for runs, of in zip(found, own, strict=True)]


def _weight(i: Sass) -> int:
    if i.op.startswith(TRY) or i.opcode in PRODUCTS:
        return FIXED**2
    if i.opcode in RECONVERGENCE:
        return 0
    return 1 if pipe_of(i.opcode) in MOVABLE else FIXED


def _blocks_with(program: ControlFlow, *names: str) -> list[int]:
    """The block of each instruction whose opcode begins with one of these."""
    return [b for b in range(len(program.start)) for i in _instrs(program, b) if i.op.startswith(names)]


def _instrs(program: ControlFlow, block: int) -> list[Instr]:
    return program.kernel.instrs[program.start[block] : program.end[block]]


def _loops(successors: list[list[int]]) -> list[tuple[int, int] | None]:
    """For each block the innermost loop around it, by its first and last one; None for none."""
    found = {(s, b) for b, to in enumerate(successors) for s in to if s <= b}
    loops = sorted(found, key=lambda loop: loop[1] - loop[0])
    return [next((loop for loop in loops if loop[0] <= b <= loop[1]), None) for b in range(len(successors))]


def _in_order(homes: list[int], weights: list[int]) -> list[int]:
    """Blocks for the instructions of a run, which never fall, at the least weight of those that are not at home."""
    blocks = sorted({h for h, w in zip(homes, weights) if w} or set(homes))
    if len(blocks) == 1:
        return blocks * len(homes)
    best = [0] * len(blocks)  # weight of what has come so far, if the last one is in each block
    back: list[list[int]] = []
    for home, weight in zip(homes, weights):
        from_, least = 0, best[0]
        step, now = [], []
        for n, block in enumerate(blocks):
            if best[n] < least:
                from_, least = n, best[n]
            step.append(from_)
            now.append(least + (weight if block != home else 0))
        back.append(step)
        best = now
    at = min(range(len(blocks)), key=best.__getitem__)
    chosen = []
    for step in reversed(back):
        chosen.append(blocks[at])
        at = step[at]
    return chosen[::-1]


def _first_tries(run: list[Sass]) -> list[Sass]:
    """Leave out what is done only where the first try of a wait with a time limit has failed."""
    again = {n + k for n, i in enumerate(run) if i.op.startswith("NANOSLEEP.SYNCS") for k in (0, 1)}
    return [i for n, i in enumerate(run) if n not in again]


def _copies(runs: list[list[Sass]], own: set[int]) -> float:
    """How many times a block's machine code is there, as ptxas has unrolled a loop: by how often it has the opcodes of
    a line of its own, in the median of the lines. What ptxas does not move tells, where there is any."""
    mine = [i for i in itertools.chain.from_iterable(runs) if i.line in own and i.opcode not in RECONVERGENCE]
    counts: dict[int, dict[str, int]] = {}
    for i in [i for i in mine if pipe_of(i.opcode) not in MOVABLE | {"branch"}] or mine:
        of_line = counts.setdefault(i.line, {})
        of_line[i.op] = of_line.get(i.op, 0) + 1
    return statistics.median(min(of_line.values()) for of_line in counts.values()) if counts else 1
