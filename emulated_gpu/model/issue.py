"""Cycles that a warp spends on the instructions of a basic block: in-order issue with register dependences.

PTX is not SASS: register moves vanish, address arithmetic folds into instructions, a division is a routine. The classes
of instructions (`cost` in ptx/isa) stand for that; their figures are in the section [issue] of the machine profile.
What an instruction costs by what stands around it is in machine_code.py.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import Unsupported
from ..ptx.control_flow import ControlFlow
from ..ptx.isa import lookup
from ..ptx.isa.registry import UNTIMED
from ..ptx.syntax import Instr
from . import machine_code
from .scoreboard import LATE, SOON, Late, Results, pending

MMA = "mma_"  # how the classes of mma.sync begin
OVERLAPPING = {"fence_tensormap", "publish_tensormap"}  # one starts while others of its kind are under way
QUEUED = {"matrix_load"}  # the warp goes on; a unit takes what is used first before the rest, as ptxas orders it
UNORDERED = {"alu", "multiply", "move", "constant"}  # what does not wait for them


def kind(instr: Instr) -> str:
    """The cost class of an instruction: see ptx/isa/registry.py. UNTIMED is that of one that nobody knows."""
    handler = lookup(instr)
    return UNTIMED if handler is None else handler.cost_class(instr)


class Cost(NamedTuple):
    """What a block costs: its cycles, and those for which it keeps its warp's scheduler or a unit behind it busy.

    needs: registers that something before the block may owe, and how many cycles after its beginning it uses them;
    results: what it leaves under way itself; parting: its slots where its lanes part at the end; size: its
    instructions; tensor: its slots of mma.sync, for which the scheduler's tensor core multiplies.
    """

    cycles: float
    slots: float
    needs: tuple[tuple[int, float], ...] = ()
    results: Results | None = None
    parting: float = 0.0
    size: float = 0.0
    tensor: float = 0.0


class Untimed:
    """The cost of a block with an instruction that cannot be timed: who executes the block hears of it."""

    needs, results, parting, size, tensor = (), None, 0.0, 0.0, 0.0

    def __init__(self, instr: Instr, why: str):
        self.message = f"{why}, so that it cannot be timed: PTX line {instr.line}: {instr.text}"

    def __iter__(self):
        raise Unsupported(self.message)


def untimed(instr: Instr, figures: dict) -> str:
    """Say why an instruction cannot be timed; "" if it can."""
    group = kind(instr)
    if group == UNTIMED:
        return "nobody has measured or published what this instruction takes"
    return "" if group in figures else f"the machine profile has no figures of the class {group}"


def block_cycles(program: ControlFlow, figures: dict) -> list[Cost | Untimed]:
    """The cost of each block of a program.

    figures[class] = (cycles between issues of a warp, cycles until the result can be used); third, where the first is
    not that, for how many cycles the warp's scheduler is busy.
    """
    compiled = {n: group for n, group in machine_code.classes(program).items() if group in figures}
    return [_block_cycles(program, block, figures, owed, compiled) for block, owed in enumerate(pending(program))]


def _block_cycles(
    program: ControlFlow, block: int, figures: dict, owed: int, compiled: dict[int, str]
) -> Cost | Untimed:
    """owed: registers, a bit each, that something before the block may owe; compiled: instructions, by number, that
    have another class than their PTX says."""
    time, slots, tensor, queue = 0.0, 0.0, 0.0, 0.0
    ready: dict[int, float] = {}  # cycle a register can be read in
    arithmetic: set[int] = set()  # registers that came from integer units
    under_way, until = "", 0.0  # kind of an overlapping operation, and when the last is complete
    board = Board(owed)
    queued: dict[int, tuple] = {}  # register -> what is to write it, as `deliver` has it

    def deliver(number: int, group: str, writes: set[int], begin: float) -> None:
        usable = begin + figures[group][1]
        ready.update(dict.fromkeys(writes, usable))
        board.write(number, group, writes, begin, usable)

    def take(number: int, group: str, writes: set[int], begin: float) -> None:
        nonlocal queue
        begin = max(begin, queue)
        queue = begin + figures[group][0]
        deliver(number, group, writes, begin)
        for r in writes:
            del queued[r]

    decides, parting = _decides(program, block), 0.0
    for number in range(program.start[block], program.end[block]):
        if number == decides:
            parting = slots
        instr = program.kernel.instrs[number]
        if why := untimed(instr, figures):
            return Untimed(instr, why)
        group = compiled.get(number) or kind(instr)
        issue, latency, *busy = figures[group]
        reads, writes = program.effects[number]
        if group == "global_store":  # ptxas computes the addresses of a row of stores ahead
            reads = [r for r in reads if r not in arithmetic]
        for r in (*reads, *writes) if queued else ():
            if r in queued:
                take(*queued[r])
        begin = max([time, *(ready[r] for r in reads if r in ready)])
        if group != under_way and group not in UNORDERED:
            begin, under_way = max(begin, until), ""
        if group in OVERLAPPING:
            under_way, until = group, begin + latency
        if issue == 0:  # a move that vanishes passes its source's readiness on
            for r in writes:
                ready[r] = begin
            board.move(reads, writes)
            continue
        board.use(reads, begin)
        took = busy[0] if busy else issue
        time = begin + (took if group in QUEUED else issue)
        slots += took
        tensor += took if group.startswith(MMA) else 0.0
        for r in writes:
            (arithmetic.add if group == "alu" else arithmetic.discard)(r)
        if group in QUEUED:
            queued |= dict.fromkeys(writes, (number, group, writes, begin))
        else:
            deliver(number, group, writes, begin)
    while queued:
        take(*next(iter(queued.values())))
    cycles = max(time, until, queue, 1.0)
    results, size = board.results(cycles, program.live_out[block]), program.end[block] - program.start[block]
    return Cost(cycles, slots, tuple(board.needs.items()), results, parting, size, tensor)


def _decides(program: ControlFlow, block: int) -> int:
    """Return the number of the first of the instructions at a block's end that only decide where its lanes go on.

    Where lanes part it is mostly one that is elected for a few instructions, which ptxas predicates: it leaves out the
    branch, and an H200 takes no time for the election (silicon/whole_kernels/hopper.py has three in each iteration).
    """
    number = program.end[block] - 1
    while number > program.start[block] and _is_decision(program.kernel.instrs[number - 1]):
        number -= 1
    return number


def _is_decision(instr: Instr) -> bool:
    return instr.op.startswith(("elect.sync", "setp.")) or instr.op.endswith(".pred")


class Board:
    """Follows through a block where what is under way ends up. owed: registers that something before it may owe."""

    def __init__(self, owed: int):
        self.needs: dict[int, float] = {}
        # What each register waits for: an older one (its number), or what this block begins
        self.sources: dict[int, set] = {r: {r} for r in range(owed.bit_length()) if owed >> r & 1}
        self.owed = set(self.sources)

    def use(self, reads, begin: float) -> None:
        """An instruction that is issued at `begin` reads these registers."""
        for r in reads:
            for source in self.sources.get(r, ()):
                if isinstance(source, int):
                    self.needs.setdefault(source, begin)

    def move(self, reads, writes) -> None:
        """Copies have what their sources wait for."""
        found = set().union(*(self.sources.get(r, ()) for r in reads))
        for r in writes:
            self.sources[r] = found

    def write(self, number: int, group: str, writes, begin: float, usable: float) -> None:
        """Instruction `number`, of a class, is issued at `begin` and writes these registers, usable later."""
        for r in writes:
            if group in LATE:
                self.sources[r] = {Late(r, number, begin, usable, LATE[group])}
            elif group in SOON:
                self.sources[r] = {(usable, SOON[group])}
            else:
                self.sources[r] = set()

    def results(self, cycles: float, live: int) -> Results | None:
        """What the block, which takes this many cycles, leaves under way in registers that are live behind it."""
        copies, soon, late = [], [], []
        for r, sources in self.sources.items():
            for source in sources if live >> r & 1 else ():
                if isinstance(source, Late):
                    late.append(source._replace(register=r))
                elif isinstance(source, tuple):
                    soon += [(r, *source)] if source[0] > cycles else []
                elif source != r and source not in self.needs:
                    copies.append((r, source))
        overwritten = tuple(r for r in self.owed if self.sources[r] != {r})
        found = Results(overwritten, tuple(copies), tuple(soon), tuple(late))
        return found if any(found) else None
