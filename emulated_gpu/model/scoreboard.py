"""The scoreboard of a warp: which registers wait for what is under way, beyond the block that began it.

A warp issues in order. An instruction of variable latency lets its warp go on, and the first one that uses what it
delivers waits: for L1TEX or for the memory behind it, which Nsight Compute calls "long scoreboard", or for another unit
of the SM, "short scoreboard". A `mov` is no use: register moves vanish in machine code, and who reads the copy waits.

What comes late begins another block at its first use (`waiting`), so that its warp waits exactly there and what others
ask of memory meanwhile comes first. What comes within tens of cycles delays the beginning of the block that uses it.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from ..ptx.control_flow import ControlFlow
from ..ptx.isa import lookup

LONG, SHORT = "long scoreboard", "short scoreboard"
# Classes of instructions (ptx/isa): what delivers so late that its use begins a block, and what delivers soon
LATE = {"global_load": LONG, "global_atomic": LONG, "shared_atomic": SHORT, "cluster_load": SHORT}
SOON = {
    "local": LONG, "shared": SHORT, "matrix_load": SHORT, "shuffle": SHORT, "special": SHORT, "divide": SHORT,
    "indexed_constant": SHORT,
}  # fmt: skip
VANISHING = "move"
_waiting: WeakKeyDictionary[ControlFlow, ControlFlow] = WeakKeyDictionary()


def classes_of(program: ControlFlow) -> list[str | None]:
    """The cost class of each instruction of a program; None where there is no handler."""
    handlers = map(lookup, program.kernel.instrs)
    return [h and h.cost_class(i) for h, i in zip(handlers, program.kernel.instrs, strict=True)]


def waiting(program: ControlFlow) -> ControlFlow:
    """Return the same kernel for a timed run: a block begins at each first use of what comes late, and a group hears
    which of a block's instructions fetch."""
    found = _waiting.get(program)
    if found is None:
        of = program.kernel, program.name, program.machine_code, True
        handlers = map(lookup, program.kernel.instrs)
        found = ControlFlow(*of) if any(h and h.waits_untimed for h in handlers) else program
        uses = _follow(found, LATE)[1]
        if uses:
            fetches = {n for n, kind in enumerate(classes_of(program)) if kind in LATE}
            found = ControlFlow(*of, frozenset(uses.difference(found.start)), frozenset(fetches))
        _waiting[program] = found
    return found


def pending(program: ControlFlow) -> list[int]:
    """The registers, a bit each, that something of variable latency may still owe when each block begins."""
    return _follow(program, LATE | SOON)[0]


def _follow(program: ControlFlow, kinds: dict[str, str]) -> tuple[list[int], set[int]]:
    """Return what instructions of these classes may owe at each block's beginning, and those that use it first."""
    classes = classes_of(program)
    together: dict[int, int] = {}  # register -> those, a bit each, that whatever delivers it delivers with it
    for kind, (_, writes), (_, mask) in zip(classes, program.effects, program.masks, strict=True):
        for r in writes if kind in kinds else ():
            together[r] = together.get(r, -1) & mask
    uses: set[int] = set()

    def step(i: int, now: int) -> int:
        reads, writes = program.masks[i]
        if classes[i] == VANISHING:
            return now | writes if now & reads else now & ~writes
        if now & reads:
            uses.add(i)
            for r in program.effects[i][0]:
                now &= ~together.get(r, 1 << r)
        return now | writes if classes[i] in kinds else now & ~writes

    return program.forward(step, range(len(program.start))) if together else [0] * len(program.start), uses


class Late(NamedTuple):
    """A register that holds, behind a block, what its instruction `fetch` loads: issued `issued` cycles after the block
    began, and usable `usable` cycles after that beginning if the memory answers at once."""

    register: int
    fetch: int
    issued: float
    usable: float
    why: str


class Results(NamedTuple):
    """What a block changes of a scoreboard. overwritten: registers that wait for nothing older any more; copies: a
    register and one that it is a copy of; soon: a register, the cycles after the block's beginning from which on it is
    usable, and why not sooner; late: see Late."""

    overwritten: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]
    soon: tuple[tuple[int, float, str], ...]
    late: tuple[Late, ...]


def usable(owed: dict[int, tuple[float, str]], needs: tuple, begin: float) -> tuple[float, str]:
    """Return when a block can begin that wants to at `begin`, and why not sooner; it then waits for these no more.

    owed: when each register is usable, and why not sooner; needs: (register, cycles from the beginning to its use).
    """
    why = ""
    for register, offset in needs:
        found = owed.pop(register, None)
        if found is not None and found[0] - offset > begin:
            begin, why = found[0] - offset, found[1]
    return begin, why


def settle(owed: dict, results: Results, fetched: dict[int, float], begin: float, slower: float) -> None:
    """Note what a block that began at `begin` leaves under way. fetched: when what its instructions loaded comes, had
    they been issued at once; slower: ticks of an SM's cycle."""
    new = [(to, owed[source]) for to, source in results.copies if source in owed]
    for register, after, why in results.soon:
        new.append((register, (begin + after * slower, why)))
    for register, fetch, issued, after, why in results.late if fetched else ():
        if fetch in fetched:
            new.append((register, (max(begin + after * slower, fetched[fetch] + issued * slower), why)))
    for register in results.overwritten:
        owed.pop(register, None)
    for register, found in new:
        owed[register] = max(found, owed.get(register, found))
