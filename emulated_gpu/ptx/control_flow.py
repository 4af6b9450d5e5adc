"""Turn a parsed kernel into Python functions, one for each basic block.

A block function takes the executing group of lanes, `g` (machine/warp.Group), reads its registers from `g.R`, does the
work and returns the number of the next block, or one of the codes below. Its code names whom it calls:
`barriers.bar_sync(g, ...)` is in units/barriers.py. An instruction that may have to wait starts a block: it waits by
returning BLOCKED, and the same block is run again later.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from types import ModuleType

from ..errors import Unsupported
from ..formats import alu, convert, lanes
from . import predication, undefined_bits
from .effects import hands_on, listens, may_stop, meets, shares, shares_global
from .isa import Mods, lookup
from .mma_result_taint import Results
from .syntax import SINK, Imm, Instr, Kernel, Mem, Pair, Reg, Special, Target, Vec, float_immediate, leaves

BLOCKED, EXIT, SPLIT = -1, -2, -3
FOLLOWED = 100_000  # after which line of its text the code of a block begins that is followed: plain ones are shorter


def _registers(operand) -> set[int]:
    return {o.index for o in leaves(operand) if isinstance(o, Reg)}


class ControlFlow:
    """Control flow of one kernel and its compiled blocks.

    blocks[i] is a function or None until first executed, python[i] one that is Python alone; start[i] the index of its
    first instruction; join[i] the block where lanes that part at the end of block i meet again (immediate
    post-dominator), or -1; live[i] the registers that block i or its successors read.
    """

    def __init__(
        self, kernel: Kernel, name: str = "ptx", machine_code: bytes | None = None,
        timed: bool = False, leaders: frozenset[int] = frozenset(), fetches: frozenset[int] = frozenset(),
        together: Mapping[int, int] = {},
    ):  # fmt: skip
        """machine_code: the cubin that ptxas made of the module, where there is one. timed: for a timed run. leaders:
        numbers of instructions that begin a block, too; fetches: of those that a group is told of (`g.fetching`) before
        it executes them. together: by the number of a branch, that of the first instruction for lanes that part there
        and go on together: see predication.py."""
        self.kernel, self.name, self.machine_code = kernel, name, machine_code
        self.timed, self.leaders, self.fetches, self.together = timed, leaders, fetches, together
        self.initial_registers = functools.lru_cache(maxsize=4)(self.initial_registers)
        self._compared: dict[int, bool] = {}  # by a load's id, see is_compared
        self.source_name = f"<{name}>"
        self.split_blocks()
        self.blocks = [None] * len(self.start)
        self.python = self.blocks.copy()
        self.line_maps: list[dict[int, Instr]] = [{} for _ in self.start]
        self.followed_lines: dict[int, dict[int, Instr]] = {}  # the same of blocks that are `followed`
        self.shares = any(map(shares, kernel.instrs)) or shares_global(kernel.instrs)  # so that lanes' meetings matter
        self.effects = [self.reads_writes(instr) for instr in kernel.instrs]
        self.masks = [(mask_of(reads), mask_of(writes)) for reads, writes in self.effects]
        self.analyse()
        self._live_lists: list[list[int] | None] = [None] * len(self.start)
        self._followed: dict[int, object] = {}  # by block
        self._written: dict[int, tuple[BlockWriter, list[str]]] = {}
        self.loaded: list = []  # all functions: an origin is found by the address of its code
        self.lines: dict[tuple[int, int], int] = {}  # of their code, by the address and a place in its bytecode
        self._between: dict[tuple[tuple[int, ...], int], tuple[list[int], list[int]]] = {}

    # -- control flow ------------------------------------------------------------------------------------------
    def split_blocks(self):
        instrs = self.kernel.instrs
        leaders = {0, *self.leaders, *self.together.values()}
        for i, instr in enumerate(instrs):
            for o in instr.operands:
                if isinstance(o, Target):
                    leaders.add(o.index)
                elif isinstance(o, Special) and o.name.startswith("clock"):
                    leaders.add(i)  # a clock is read when what comes before has been issued
            if (handler := lookup(instr)) is None:
                continue
            waits = handler.waits(instr) or handler.waits_untimed and not self.timed
            if waits or handler.starts_block or handler.in_place:
                leaders.add(i)
            if handler.ends_block or handler.in_place:
                leaders.add(i + 1)
            before = lookup(instrs[i - 1]) if i else None
            if handler.owes and not (before and before.owes):
                leaders.add(i)  # a load begins when what comes before has been issued
        for table in self.kernel.branch_tables.values():
            leaders.update(table)
        # A label behind the last instruction needs a block too: it falls off the end, which is an exit.
        self.start = sorted(leader for leader in leaders if leader <= len(instrs))
        self.block_of = {s: b for b, s in enumerate(self.start)}
        self.end = self.start[1:] + [len(instrs)]
        self.successors = []
        for b, (s, e) in enumerate(zip(self.start, self.end, strict=True)):
            last = instrs[e - 1] if e > s else None
            base = last.op.split(".", 1)[0] if last else ""
            out = []
            if base == "bra":
                assert last is not None
                out = [self.block_of[last.operands[0].index]] if isinstance(last.operands[0], Target) else []
                if last.guard:
                    out.append(b + 1)
                if e - 1 in self.together:
                    out.append(self.block_of[self.together[e - 1]])
            elif base == "brx":
                assert last is not None
                out = [self.block_of[i] for i in self.kernel.branch_tables[last.operands[1].name]]
            elif last is not None and base in ("ret", "exit", "trap"):
                out = [b + 1] if last.guard else []
            else:
                out = [b + 1]
            self.successors.append([o for o in out if o < len(self.start)])

    def only_exits(self, b: int) -> bool:
        """Return whether a block does nothing but end: lanes that come there do not wait for others, as a barrier
        waits for all lanes that have not exited."""
        start, end = self.start[b], self.end[b]
        instrs = self.kernel.instrs[start:end]
        return not instrs or len(instrs) == 1 and instrs[0].op in ("ret", "exit") and not instrs[0].guard

    def analyse(self):
        n = len(self.start)
        # Post-dominators as bit sets, exit = bit n.
        full = (1 << (n + 1)) - 1
        post = [full] * n
        exits = [not s for s in self.successors]
        changed = True
        while changed:
            changed = False
            for b in reversed(range(n)):
                new = full
                for s in self.successors[b]:
                    new &= post[s]
                if exits[b]:
                    new = 1 << n
                new |= 1 << b
                if new != post[b]:
                    post[b], changed = new, True
        self.join = []
        for b in range(n):
            strict = post[b] & ~(1 << b)
            candidates = [c for c in range(n) if strict >> c & 1]
            # the immediate one is post-dominated by all the others
            best = next((c for c in candidates if post[c] & ~(1 << n) == strict & ~(1 << n)), -1)
            self.join.append(-1 if best >= 0 and self.only_exits(best) else best)
        # Liveness
        self.use, self.define, self.in_place = [], [], []
        for b in range(n):
            used = defined = 0
            for reads, writes in self.masks[self.start[b] : self.end[b]]:
                used |= reads & ~defined
                defined |= writes
            self.use.append(used)
            self.define.append(defined)
            self.in_place.append(self.registers_in_place(b))
        self.live = self.backward(lambda b, now: self.use[b] | now & ~self.define[b], range(n))
        self.find_deliveries()
        self.results = Results(self)
        self.live_out = [functools.reduce(int.__or__, (self.live[s] for s in out), 0) for out in self.successors]

    def initial_registers(self, seed: int) -> tuple:
        """Return a warp's first registers: None, which faults when read; garbage where only some paths read them, or
        where nothing uses what comes of them.

        Compilers make such paths out of `if`s whose outcome does not matter there; the result must not depend on it.
        """
        written = functools.reduce(int.__or__, self.define, 0)
        garbage = self.live[0] & (written | self.undefined_parts(written))
        for r in self.kernel.registers if self.live[0] & ~garbage else ():
            if (self.live[0] & ~garbage) >> r.index & 1 and not undefined_bits.is_used(self.kernel.instrs, r):
                garbage |= 1 << r.index
        random = Random(seed)
        registers = [None] * len(self.kernel.registers)
        for r in self.kernel.registers:
            if garbage >> r.index & 1:
                registers[r.index] = bool(random.getrandbits(1)) if r.bits == 1 else random.getrandbits(r.bits)
        return tuple(registers)

    def undefined_parts(self, written: int) -> int:
        """Registers outside of `written` that are only read as parts: of a `mov` from a vector, of a `cvt` that packs
        two numbers, by `prmt`, by `shfl`. A bit each.

        LLVM writes an undefined part of a vector so. Of which no other part is written, that is undefined as a whole;
        but a `prmt` may be one of bytes that a later one leaves out, and a `shfl` of a struct's word that is padding.
        """
        parts, elsewhere = 0, 0
        for instr, (mask, _) in zip(self.kernel.instrs, self.masks, strict=True):
            items = ()
            if instr.parts[0] == "mov" and isinstance(instr.operands[1], Vec):
                items = leaves(instr.operands[1])
            elif instr.parts[0] == "cvt" and len(instr.operands) == 3:
                items = instr.operands[1:]
            known = any(not isinstance(o, Reg) or written >> o.index & 1 for o in items)
            known |= instr.parts[0] in ("prmt", "shfl")
            parts, elsewhere = (parts | mask, elsewhere) if known else (parts, elsewhere | mask)
        return parts & ~elsewhere & ~written

    def find_deliveries(self):
        """deliveries[i]: registers that a tcgen05.ld may still owe when instruction i reads one of them.

        The read waits for them, tcgen05.wait::ld or not (9.7.16.6: ordering through true register dependency).
        """
        self.deliveries: dict[int, int] = {}

        def step(i: int, now: int) -> int:
            handler = lookup(self.kernel.instrs[i])
            is_load = handler is not None and handler.owes
            if not now and not is_load:
                return 0
            reads, writes = self.masks[i]
            if now & reads:
                self.deliveries[i] = now
                now = 0
            now = now | writes if is_load else now & ~writes
            return 0 if handler is not None and handler.settles else now

        self.forward(step, range(len(self.start)))

    def forward(self, step: Callable[[int, int], int], blocks: Sequence[int]) -> list[int]:
        """Return what holds when each of some blocks begins, a bit each, on any way to it through these: step(i, now)
        is what holds behind instruction i, before which `now` does."""
        before = dict.fromkeys(blocks, 0)
        work = list(reversed(blocks))  # the first block first
        while work:
            b = work.pop()
            now = before[b]
            for i in range(self.start[b], self.end[b]):
                now = step(i, now)
            for s in self.successors[b]:
                if s in before and now & ~before[s]:
                    before[s] |= now
                    work.append(s)
        return [*before.values()]

    def backward(self, step: Callable[[int, int], int], blocks: Sequence[int]) -> list[int]:
        """Return what holds when each of some blocks begins, a bit each, on any way on through these: step(b, now) is
        what holds before block b, behind which `now` does."""
        before, again = dict.fromkeys(blocks, 0), True
        while again:
            again = False
            for b in reversed(blocks):
                new = step(b, functools.reduce(int.__or__, (before.get(s, 0) for s in self.successors[b]), 0))
                if new != before[b]:
                    before[b], again = new, True
        return [*before.values()]

    def registers_in_place(self, block: int) -> int:
        """Return the registers that a block's code neither loads nor saves, a bit each: see Handler.in_place."""
        instrs = self.kernel.instrs[self.start[block] : self.end[block]]
        if not instrs or (handler := lookup(instrs[0])) is None or not handler.in_place:
            return 0
        return mask_of(r for o in instrs[0].operands if isinstance(o, Vec) for r in _registers(o))

    def live_registers(self, block: int) -> list[int]:
        """Numbers of the registers that block `block` or a later one reads."""
        if self._live_lists[block] is None:
            self._live_lists[block] = bits_of(self.live[block])
        return self._live_lists[block]

    @functools.cached_property
    def stops(self) -> ControlFlow:
        """The same, with a block that ends behind each instruction by which warps meet: one can be stopped there."""
        instrs = self.kernel.instrs
        leaders = {i + 1 for i, instr in enumerate(instrs) if (found := lookup(instr)) and may_stop(instr, found)}
        return ControlFlow(self.kernel, self.name, self.machine_code, leaders=self.leaders | leaders)

    @functools.cached_property
    def predicated(self) -> ControlFlow:
        """The same, with blocks for lanes that part for a few instructions: see predication.py."""
        more, together = predication.joined_branches(self)
        if not together:
            return self
        kernel = dataclasses.replace(self.kernel, instrs=[*self.kernel.instrs, *more])
        return ControlFlow(kernel, self.name, self.machine_code, together=together)

    @functools.cached_property
    def hands_on(self) -> bool:
        """Whether any instruction does; see `hands_on`."""
        return any(map(hands_on, self.kernel.instrs))

    @functools.cached_property
    def listens(self) -> bool:
        """Whether it does; see effects.py."""
        return listens(self.kernel.instrs)

    @functools.cached_property
    def triggers(self) -> bool:
        """Whether CTAs say that the next launch may start."""
        return any(i.op == "griddepcontrol.launch_dependents" for i in self.kernel.instrs)

    @functools.cached_property
    def readers(self) -> list[list[int]]:
        """The instructions that read each register, by their numbers."""
        found: list[list[int]] = [[] for _ in self.kernel.registers]
        for number, (reads, _) in enumerate(self.effects):
            for r in reads:
                found[r].append(number)
        return found

    def between(self, targets: tuple[int, ...], join: int) -> tuple[list[int], list[int]]:
        """Numbers of the registers that blocks read or write on the ways from some blocks to `join`, and of those that
        they write and that are read from there on."""
        found = self._between.get((targets, join))
        if found is None:
            work, seen = [*targets], {join, *targets}
            touched = written = 0
            for b in work:
                touched |= self.use[b] | self.define[b]
                written |= self.define[b]
                new = [s for s in self.successors[b] if s not in seen]
                seen.update(new)
                work += new
            found = self._between[targets, join] = bits_of(touched), bits_of(written & self.live[join])
        return found

    def uses(self, operand) -> bool:
        """Whether any instruction computes with a register of an operand, which another one has as its result."""
        made = _registers(operand)
        return any(made & self.sources(instr) for instr in self.kernel.instrs)

    def sources(self, instr: Instr) -> set[int]:
        """Registers that an instruction computes with, whatever its guard."""
        handler = lookup(instr)
        return _registers(Vec(instr.operands[handler.destinations(instr) if handler else 0 :]))

    def reads_writes(self, instr: Instr) -> tuple[set[int], set[int]]:
        """Registers an instruction reads and writes. A guarded write keeps the old value in some lanes: a read too."""
        handler = lookup(instr)
        count = handler.destinations(instr) if handler else 0
        writes: set[int] = set()
        reads: set[int] = set()
        for i, o in enumerate(instr.operands):
            (writes if i < count else reads).update(_registers(o))
        if handler and handler.in_place:
            reads |= writes
        if instr.guard is not None:
            reads.add(instr.guard.index)
            reads |= writes
        return reads, writes

    def is_only_selected(self, load: Instr) -> bool:
        """Whether an instruction is a load of which a selp chooses or does not, and which nothing else reads."""
        _, written = self.reads_writes(load)
        selected = False
        for instr, (reads, _) in zip(self.kernel.instrs, self.effects):
            values = _registers(Vec(instr.operands[1:3])) if instr.parts[0] == "selp" and instr.guard is None else set()
            if written & (reads - values):
                return False
            selected |= bool(written & values)
        return selected and load.parts[0] == "ld"

    def is_compared(self, load: Instr) -> bool:
        """Whether an instruction is a load, and an atom.cas at the same address compares its value with what is there
        then: an old value costs another turn."""
        if id(load) not in self._compared:
            self._compared[id(load)] = load.parts[0] == "ld" and self._compares(load)
        return self._compared[id(load)]

    def _compares(self, load: Instr) -> bool:
        _, values = self.reads_writes(load)
        for instr, (reads, written) in zip(self.kernel.instrs, self.effects):
            if instr.parts[0] == "mov" and reads and reads <= values:
                values |= written
        swaps = [i.operands for i in self.kernel.instrs if i.parts[0] == "atom" and "cas" in i.parts]
        here = self.place(load.operands[1])
        return any(_registers(old) & values and self.place(at) == here for _, at, old, *_ in swaps)

    def place(self, address: Mem) -> tuple[object, int]:
        """Return the base and the offset of an address, behind constants that are added to a base of its own."""
        base, offset = address.base, address.offset
        while isinstance(base, Reg):
            made = [i for i, (_, written) in zip(self.kernel.instrs, self.effects) if base.index in written]
            if len(made) != 1 or made[0].parts[0] != "add" or not isinstance(made[0].operands[2], Imm):
                break
            base, offset = made[0].operands[1], offset + made[0].operands[2].value
        return base, offset

    # -- code --------------------------------------------------------------------------------------------------
    def block(self, index: int, units: Mapping[str, ModuleType]):
        """The Python function of a block, compiled on first use. units: modules whose functions its code calls, by
        name."""
        if self.python[index] is None:
            self.python[index] = self.compile(index, units)
        return self.python[index]

    def followed(self, index: int, units: Mapping[str, ModuleType]):
        """The function of a block that tells machine/garbage.Garbage of each instruction before it is executed."""
        if index not in self._followed:
            writer = self.write(index, follow=True)
            source, self.followed_lines[index] = writer.finish()
            self._followed[index] = self.load(index, "\n" * FOLLOWED + source, writer, units)
        return self._followed[index]

    def write(self, index: int, follow: bool = False, alone: bool = False) -> BlockWriter:
        """Write the Python of a block. follow: see `followed`; alone: none of it becomes machine code."""
        writer = BlockWriter(self, index, alone)
        ended = False
        for i in range(self.start[index], self.end[index]):
            writer.marks.append(len(writer.lines))
            writer.instr = self.kernel.instrs[i]  # what stands before it is for it
            if follow:
                writer.follow(i)
            if i in self.deliveries:
                writer.deliver(self.deliveries[i])
            writer.results = self.results.held.get(i, 0)
            if i in self.fetches:
                writer.fetch(i)
            ended = writer.instruction(self.kernel.instrs[i])
        writer.marks.append(len(writer.lines))
        if not ended:
            writer.leave(index + 1 if index + 1 < len(self.start) else EXIT)
        return writer

    def written(self, index: int) -> tuple[BlockWriter, list[str]]:
        """The writer of a block that may become machine code, and what it has of each instruction."""
        if index not in self._written:
            writer = self.write(index)
            self.line_maps[index] = writer.finish()[1]
            texts = ["\n".join(text for text, _ in writer.lines[a:b]) for a, b in itertools.pairwise(writer.marks)]
            self._written[index] = writer, texts
        return self._written[index]

    def compile(self, index: int, units: Mapping[str, ModuleType]):
        writer = self.write(index, alone=True)
        source, self.line_maps[index] = writer.finish()
        return self.load(index, source, writer, units)

    def load(self, index: int, source: str, writer: BlockWriter, units: Mapping[str, ModuleType]):
        """The function that a source text defines, of block `index` or of a part of it."""
        scope = {**units, **writer.constants}
        exec(compile(source, f"{self.source_name}:{index}", "exec"), scope)
        self.loaded.append(scope["block"])
        return scope["block"]

    def instruction_at(self, index: int, lineno: int) -> Instr | None:
        """The instruction that line `lineno` of a block's generated source came from."""
        of_followed = lineno > FOLLOWED
        lines = self.followed_lines[index] if of_followed else self.line_maps[index]
        lineno -= FOLLOWED * of_followed
        while lineno > 0 and lineno not in lines:
            lineno -= 1
        return lines.get(lineno)


def mask_of(registers: Iterable[int]) -> int:
    """A bit for each of some registers."""
    return sum(1 << r for r in registers)


def bits_of(mask: int) -> list[int]:
    """The numbers of the bits that are set. A kernel has thousands of registers, a block reads few."""
    found, text = [], f"{mask:b}"[::-1]
    at = text.find("1")
    while at >= 0:
        found.append(at)
        at = text.find("1", at + 1)
    return found


class BlockWriter:
    """Collects the Python source of one block. Handlers in `isa` use what is public here."""

    def __init__(self, program: ControlFlow, index: int, alone: bool = False):
        """alone: the function of the whole block is all that is made of it."""
        self.program, self.index, self.alone = program, index, alone
        self.lines: list[tuple[str, Instr | None]] = []
        self.marks: list[int] = []  # the line at which each instruction begins, and that behind the last one
        self.instr: Instr | None = None
        self.results = 0  # what the next instruction's registers may hold, see Results.held
        self.constants = {"alu": alu, "convert": convert, "lanes": lanes, "select": alu.select}
        self.temps = 0
        self.asks = False  # whether the code asks if the tensor core computes
        self.following: tuple[int, str] | None = None  # the instruction of which garbage is told, and its guard
        self.indent = "    "

    def emit(self, line: str):
        self.lines.append((self.indent + line, self.instr))

    def instruction(self, instr: Instr) -> bool:
        """Write one instruction; returns whether it left the block."""
        self.instr = instr
        handler = lookup(instr)
        if handler is None:
            self.unsupported("instruction")
            return False
        self.guard, self.masked = None, False
        if instr.guard is not None:
            self.guard = f"r{instr.guard.index}"
            if instr.negated:
                name = self.temp()
                self.emit(f"{name} = {self.guard} ^ True")
                self.guard = name
        if self.guard is not None and handler.collective:
            name = self.temp()
            self.emit(f"{name} = g.uniform({self.guard})")
            self.guard = name
        mark = len(self.lines)
        meeting = self.program.shares and meets(instr, handler)
        looks = meeting and instr.parts[0] == "ld"  # what it sees tells of others from here on
        if meeting and not looks:
            self.emit("fences.meet(g)")
        try:
            modifiers = Mods(handler, instr)
            left_block = bool(handler.emit(self, instr, modifiers))
            modifiers.done()
            if looks:
                self.emit("fences.look(g)")
            return left_block
        except Unsupported as e:
            why = e.message
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
            why = f"operands that no known form has ({e})"
        del self.lines[mark:]
        self.unsupported(why)
        return False

    def unsupported(self, why: str):
        assert self.instr is not None
        message = f"{why}: PTX line {self.instr.line}: {self.instr.text}"
        self.emit(f"g.unsupported({message!r})")

    def follow(self, number: int):
        """Tell who follows garbage of the next instruction: its guard, and what a selp selects by."""
        instr = self.program.kernel.instrs[number]
        guard = "True" if instr.guard is None else f"r{instr.guard.index}" + " ^ True" * instr.negated
        chosen = self.read(instr.operands[3], 1) if instr.parts[0] == "selp" else None
        self.emit(f"g.garbage.meets(g, {number}, {guard}, {chosen})")
        self.following = number, guard

    def follow_shuffle(self, how: str) -> str:
        """Tell who follows garbage of a shuffle, whose lanes have met; returns what more lanes.shuffle is told."""
        if self.following is None:
            return ""
        number, guard = self.following
        self.emit(f"g.garbage.shuffled(g, {number}, {guard}, lanes.sources(g.lanes, {how})[0])")
        return ", True"

    def fetch(self, number: int):
        """Tell the group that what it is going to fetch is for instruction `number`, the next one."""
        self.instr = self.program.kernel.instrs[number]
        self.emit(f"g.fetching = {number}")

    def temp(self) -> str:
        self.temps += 1
        return f"t{self.temps}"

    def constant(self, value) -> str:
        """A Python object that the generated code can name."""
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    # -- operands ----------------------------------------------------------------------------------------------
    def read(self, operand, bits: int, float_kind: bool = False) -> str:
        """Expression for the low `bits` of a source operand."""
        if isinstance(operand, Reg):
            name = f"r{operand.index}"
            if operand.bits > max(bits, 16) or (bits == 8 and operand.bits == 16):
                return f"alu.resize({name} & {alu.MASK[bits]}, {max(bits, 16)})"
            if operand.bits < bits and bits != 8:
                return f"alu.resize({name}, {bits})"
            return name
        if isinstance(operand, Imm):
            value = float_immediate(operand, bits) if (float_kind or operand.float_bits) else operand.value
            return repr(value & alu.MASK[bits]) if bits > 1 else repr(bool(value))
        if isinstance(operand, Special):
            return f"g.special({operand.name!r})"
        if isinstance(operand, Pair) and operand.first == "not":
            return f"({self.read(operand.second, 1)} ^ True)"
        if hasattr(operand, "name"):
            return f"addresses.symbol(g, {operand.name!r})"
        raise Unsupported(f"operand {operand!r}")

    def address(self, memory: Mem) -> str:
        """Expression for the address that a memory operand names, in whatever width its base has."""
        bits = getattr(memory.base, "bits", 64)
        text, full = self.read(memory.base, bits), (1 << bits) - 1
        return f"({text} + {memory.offset & full}) & {full}" if memory.offset else text

    def write(self, operand, expression: str, bits: int | None = None):
        """Assign to a destination register, lane by lane where the instruction is guarded."""
        if operand is SINK:
            self.call(expression)
            return
        if not isinstance(operand, Reg):
            raise Unsupported(f"destination {operand!r}")
        name = f"r{operand.index}"
        if bits is not None and operand.bits > max(bits, 16):
            expression = f"alu.resize({expression}, {operand.bits})"
        if self.guard is None:
            self.emit(f"{name} = {expression}")
        else:
            self.emit(
                f"if {self.guard} is not False: {name} = select({self.guard}, {expression}, {name}, {operand.bits})"
            )

    def write_all(self, operands, expression: str):
        """Assign a tuple-valued expression to several registers."""
        names = [self.temp() for _ in operands]
        if self.guard is None and all(isinstance(o, Reg) for o in operands):
            names = [f"r{o.index}" for o in operands]
        target = ", ".join(names) + ("," if len(names) == 1 else "")
        if self.guard is None:
            self.emit(f"{target} = {expression}")
        else:
            self.emit(f"if {self.guard} is not False:")
            self.emit(f"    {target} = {expression}")
        if names[0].startswith("t"):
            for o, name in zip(operands, names, strict=True):
                if o is SINK:
                    continue
                if self.guard is None:
                    self.emit(f"r{o.index} = {name}")
                else:
                    self.emit(f"    r{o.index} = select({self.guard}, {name}, r{o.index}, {o.bits})")

    def mask(self) -> str:
        """Return the guard, or "True": for calls that take the lanes they act for."""
        self.masked = True
        return self.guard or "True"

    def call(self, expression: str):
        """Write a call that a guard leaves out which holds in no lane; one that takes a mask acts for nobody then."""
        holds = f"{self.guard} is not False" if self.masked else f"alu.some({self.guard})"
        self.emit(expression if self.guard is None else f"if {holds}: {expression}")

    def deliver(self, owed: int):
        """Let the tcgen05.ld results arrive that the next instruction depends on. owed: a bit for each register."""
        self.emit("tcgen05.use_loads(g)")
        for i in bits_of(owed):
            self.emit(f"r{i} = R[{i}]")

    def are_results(self, operands) -> bool:
        """Whether all of these are registers that may come from the tensor core, which has no values in a timed run."""
        return all(isinstance(o, Reg) and self.results >> o.index & 1 for o in operands)

    def made_of(self, operands, value: str) -> str:
        """Expression for a value that is computed from operands: 0 in a timed run, if one may be the tensor core's."""
        if not any(self.are_results([o]) for o in operands):
            return value
        self.asks = True
        return f"{value} if computes_mma else 0"

    def goes_to_stmatrix(self, operand) -> bool:
        """Whether what the instruction writes to a register is read once, by an stmatrix of this block: which then may
        make it by itself."""
        if not self.alone or self.guard is not None:
            return False
        readers = self.program.readers[operand.index]
        reader = self.program.kernel.instrs[readers[0]] if len(readers) == 1 else None
        later = range(self.program.start[self.index] + len(self.marks), self.program.end[self.index])
        if reader is None or readers[0] not in later or reader.guard is not None:
            return False
        return reader.parts[0] == "stmatrix" and "b16" in reader.parts

    # -- leaving -----------------------------------------------------------------------------------------------
    def save(self):
        """Write back the registers that later blocks read."""
        live = self.program.live_out[self.index]
        bits = self.program.define[self.index] & live & ~self.program.in_place[self.index]
        for i in bits_of(bits):
            self.emit(f"R[{i}] = r{i}")

    def leave(self, code: int):
        self.instr = self.instr if code == EXIT else None
        self.save()
        self.emit(f"return {code}")

    def wait_unless(self, condition: str):
        """Write, as a block's first thing, that it gives up its turn until `condition` holds or the guard fails."""
        handler = self.instr and lookup(self.instr)
        assert handler and self.instr and (handler.waits_untimed or handler.waits(self.instr)), self.instr
        guard = "" if self.guard is None else f"{self.guard} is not False and "
        self.emit(f"if {guard}not ({condition}): return {BLOCKED}")

    def finish(self) -> tuple[str, dict[int, Instr]]:
        """The source of the block's function, and the instructions by the numbers of the lines where they begin."""
        used = self.program.use[self.index] & ~self.program.in_place[self.index]
        # a guarded write reads the old value, and a register saved on one path only must exist
        lines = self.opening(bits_of(used))
        line_map = {}
        for text, instr in self.lines:
            lines.append(text)
            if instr is not None:
                line_map[len(lines)] = instr
        return "\n".join(lines) + "\n", line_map

    def opening(self, registers: list[int]) -> list[str]:
        lines = ["def block(g):", "    R = g.R", *["    computes_mma = g.cta.computes_mma"] * self.asks]
        lines.append("    " + "; ".join([f"r{i} = R[{i}]" for i in registers] or ["pass"]))
        return lines

    def part(self, first: int, end: int, registers: list[int], saved: list[int]) -> str:
        """The source of some instructions of the block, by their numbers in it, on the lines where `finish` has them.

        registers: what they read. saved: what they write for later instructions. The last instructions of a block leave
        it, and save by themselves.
        """
        last = end == len(self.marks) - 1
        start, stop = self.marks[first], len(self.lines) if last else self.marks[end]
        lines = self.opening(registers) + [""] * start + [text for text, _ in self.lines[start:stop]]
        if not last:
            lines.append("    " + "; ".join([f"R[{i}] = r{i}" for i in saved] or ["pass"]))
        return "\n".join(lines) + "\n"
