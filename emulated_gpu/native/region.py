"""Blocks of a program as one function of machine code, and the Python that enters it and comes back.

A region is some blocks and what LLVM made of them. Inside, a register is a vector of the 32 lanes or one number, in all
of it. Registers are in `R` whenever Python runs: on entry those that machine code will use go into its buffer,
on leaving those that it has changed and somebody still reads come back. What is left to Python (an instruction without
a translation, lanes that part, a fault to be explained) is a part of its block's Python function.

The order of events is that of the Python: machine code adds up the time of each block, and gives up its turn when
Group.run would.
"""

from __future__ import annotations

import ast
import ctypes
import math
import re
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import EmulatorError
from ..formats.alu import U
from ..jit.llvm import LANES, Untranslated, Value, compiler, type_of
from ..jit.rules import int64
from ..ptx.control_flow import EXIT, ControlFlow, bits_of
from . import access, memory
from . import context_fields as layout
from .translate import Input, Translator

# The buffer: what machine code is told, numbers of one value, then a row for each that varies
HEADER = "<qddqIIqq"  # entry, time, limit, block where the lanes meet others, lanes here, alive, context, epoch
TIME, EPOCH, NUMBERS, ROW = 8, 48, 64, 8 * LANES
HEADER_PLACES = {
    "time": (TIME, "double"), "limit": (16, "double"), "meet": (24, "i64"), "lane_mask": (32, "i32"),
    "live_mask": (36, "i32"), "context.at": (40, "i64"), "epoch": (EPOCH, "i64"),
}  # fmt: skip
# What a register that does not fit its place raises, and a symbol without an address: Python comes to it, or does not
ACCESS = re.compile(r"(?:access|async_copy|textures)\.(\w+)\(")
AMISS = (TypeError, ValueError, OverflowError, struct.error, EmulatorError)


@dataclass
class Step:
    """An instruction in its block: its Python, what it reads and writes, and LLVM's text for it, None for none."""

    body: list[ast.stmt]
    reads: int
    writes: int
    text: list[str] | None = None
    bails: bool = False


@dataclass
class Part:
    """Steps `first` to `end` of a block, all machine code or all Python."""

    block: int
    first: int
    end: int
    native: bool
    # by analysis, registers a bit each: those changed since Python last ran when the part begins, those needed then
    changed: int = 0
    needed: int = 0


@dataclass
class Exit:
    """Where machine code ends: before step `step` of a block, for Python to go on, or behind it, to `following`."""

    block: int
    step: int | None
    following: int = 0
    saved: int = 0
    # Made when it is first taken, as few are: the Python that goes on, where machine code follows, what takes back
    code: Callable | None = None
    resume: tuple[int, int] | None = None
    save: Callable | None = None


def mask_of(registers) -> int:
    return sum(1 << r for r in registers)


def steps_of(program: ControlFlow, block: int) -> list[Step]:
    """The instructions of a block, with their Python."""
    effects = program.effects[program.start[block] : program.end[block]]
    bodies = program.written(block)[1]
    return [Step(body, mask_of(reads), mask_of(writes)) for body, (reads, writes) in zip(bodies, effects, strict=True)]


class Region:
    """blocks: their numbers; varying: registers that are known to have a value for each lane."""

    def __init__(self, program: ControlFlow, blocks: list[int], costs: list[float], units: Mapping[str, ModuleType]):
        self.program, self.blocks, self.costs, self.units = program, blocks, costs, units
        self.steps = {b: steps_of(program, b) for b in blocks}
        self.bits = {r.index: r.bits for r in program.kernel.registers}
        self.varying: set[int] = set()
        self.tails: dict[tuple[int, int, int], Callable] = {}
        self.buffer_lock = threading.Lock()
        self.memory = memory.Memory()
        self.places: dict[int, tuple[str, int, int]] = {}

    # -- translation -------------------------------------------------------------------------------------------
    def translate(self) -> None:
        self.varying = set(self.varying)
        self.code = code = Translator(self.bits, self.varying)
        alike: dict[int, set[int]] = {}  # by block, registers that it takes for one value
        while some := [b for b in self.blocks if b not in alike or alike[b] & self.varying]:
            for b in some:
                code.alike = alike[b] = set()
                for n, step in enumerate(self.steps[b]):
                    self._translate(b, n, step)
        self.varies = mask_of(self.varying)

    def _translate(self, b: int, n: int, step: Step) -> None:
        code, bails = self.code, []

        def bail():
            bails.append(n)
            return f"bail.{b}.{n}"

        last = n == len(self.steps[b]) - 1
        body = [s for s in step.body if not (last and self._ends(s))]
        used = set(code.registers)
        code.index = self.program.start[b] + n
        try:
            step.text = code.instruction(body, bail)
            step.bails = bool(bails)
            if last:
                self._end(b, step, bail)
        except Untranslated:
            step.text, step.bails = None, False
            code.registers = used
            code.leave(step.body, set(bits_of(step.writes)))

    @staticmethod
    def _ends(statement: ast.stmt) -> bool:
        return isinstance(statement, ast.Return) or (
            isinstance(statement, ast.If)
            and isinstance(statement.body[0], ast.Return)
            and isinstance(statement.test, ast.Compare)
            and isinstance(statement.test.ops[0], ast.Is)
        )

    def _end(self, b: int, step: Step, bail) -> None:
        """Add what the last step of a block does in the end: ways[b] are the blocks that may follow."""
        code = self.code
        assert step.text is not None  # to which this adds
        code.lines, code.local, code.bail_to = step.text, dict(code.local), bail
        ends = [s for s in step.body if self._ends(s)]
        if not ends:
            self._go(b, b + 1 if b + 1 < len(self.program.start) else EXIT)
            return
        if len(ends) == 1 and isinstance(ends[0], ast.Return) and not isinstance(ends[0].value, ast.Call | None):
            self._go(b, ast.literal_eval(ends[0].value))
            return
        if len(ends) != 3:
            raise Untranslated("an end")
        there, here = (ast.literal_eval(s.body[0].value) for s in ends[:2])
        guard = code.expression(ends[0].test.left)
        if isinstance(guard, bool):
            raise Untranslated("a constant guard")
        every, some = code.name("every"), code.name("some")
        if guard.vary:
            lanes = code.lanes_true(guard)
            code.branch(lanes == -1, every, some)
            code.label(some)
            none, parts = code.name("none"), code.name("parts")
            code.branch(lanes == 0, none, parts)
            code.label(parts)
            parting = ends[2].value if isinstance(ends[2], ast.Return) else None
            together = ast.literal_eval(parting.args[-1]) if isinstance(parting, ast.Call) else None
            if together is not None:
                self._go(b, together)
            else:
                code.jump(bail())
                step.bails = True
            code.label(none)
        else:
            code.branch(guard, every, some)
            code.label(some)
        self._go(b, here)
        code.label(every)
        self._go(b, there)

    def _go(self, b: int, following: int) -> None:
        """Write the way from the end of block b to another, if the turn lasts."""
        code = self.code
        if following not in self.steps:
            code.jump(f"leave.{b}.{following}")
            return
        later = code.name()
        cost = struct.unpack("<Q", struct.pack("<d", float(self.costs[b])))[0]
        now = code.value("load double, ptr %time", 64, False, True)
        code.emit(f"%{later} = fadd double {now.text}, 0x{cost:016X}")
        on, stay = code.name("on"), code.name("stay")
        limit = code.value("load double, ptr %limit", 64, False, True)
        over = code.value(f"fcmp ogt double %{later}, {limit.text}", 1, False)
        meets = code.value("load i64, ptr %meet", 64, False)
        met = code.value(f"icmp eq i64 {meets.text}, {following}", 1, False)
        code.branch(over | met, f"leave.{b}.{following}", on)
        code.label(on)
        code.emit(f"store double %{later}, ptr %time")
        code.jump(stay)
        code.label(stay)
        code.jump(f"block.{following}.0")

    # -- analysis ----------------------------------------------------------------------------------------------
    def divide(self) -> None:
        """Find the parts, and what goes into machine code and comes back where."""
        self.parts: dict[tuple[int, int], Part] = {}
        self.entries: dict[tuple[int, int], int] = {}  # where machine code may begin
        for b in self.blocks:
            steps, first = self.steps[b], 0
            while first < len(steps):
                native, end = steps[first].text is not None, first
                while end < len(steps) and (steps[end].text is not None) == native:
                    end += 1
                self.parts[b, first] = Part(b, first, end, native)
                if native or first == 0:
                    self.entries[b, first] = len(self.entries)
                first = end
        self.live = {b: self._live(b) for b in self.blocks}
        self._find_changed()
        self._find_exits()
        self._find_needed()

    def _live(self, b: int) -> list[int]:
        """The registers that are read after the point before each step of a block, and after the last."""
        live = [self.program.live_out[b]]
        for step in reversed(self.steps[b]):
            live.append(step.reads | live[-1] & ~step.writes)
        return live[::-1]

    def _followers(self, part: Part) -> list[int]:
        if part.end < len(self.steps[part.block]):
            return []
        return [s for s in self.program.successors[part.block] if s in self.steps]

    def _changed_at(self, part: Part, step: int) -> int:
        changed = part.changed
        for s in self.steps[part.block][part.first : step]:
            changed |= s.writes
        return changed

    def _find_changed(self) -> None:
        work = [p for p in self.parts.values() if p.native]
        while work:
            part = work.pop()
            changed = self._changed_at(part, part.end)
            for s in self._followers(part):
                follower = self.parts[s, 0]
                if changed & ~follower.changed:
                    follower.changed |= changed
                    if follower.native:
                        work.append(follower)

    def _find_exits(self) -> None:
        self.exits: dict[str, Exit] = {}  # by label
        for part in self.parts.values():
            b, steps = part.block, self.steps[part.block]
            if not part.native:
                if part.first == 0:  # reached from other blocks
                    self.exits[f"python.{b}.0"] = Exit(b, 0, saved=part.changed & self.live[b][0])
                continue
            for n in range(part.first, part.end):
                if steps[n].bails:
                    self.exits[f"bail.{b}.{n}"] = Exit(b, n, saved=self._changed_at(part, n) & self.live[b][n])
            changed = self._changed_at(part, part.end)
            if part.end < len(steps):
                self.exits[f"python.{b}.{part.end}"] = Exit(b, part.end, saved=changed & self.live[b][part.end])
                continue
            for s in self._ways(steps[-1].text or [], b):
                live = self.program.live[s] if s >= 0 else 0
                self.exits[f"leave.{b}.{s}"] = Exit(b, None, s, saved=changed & live)

    @staticmethod
    def _ways(text: list[str], b: int) -> dict[int, None]:
        """The blocks that may follow, in the order of the text: each process has to write the same one."""
        mark = f"label %leave.{b}."
        return {int(line.split(mark)[1].split(",")[0]): None for line in text if mark in line}

    def _find_needed(self) -> None:
        again = True
        while again:
            again = False
            for part in reversed(self.parts.values()):
                if not part.native:
                    continue
                b, steps = part.block, self.steps[part.block]
                if part.end < len(steps):
                    needed = self.exits[f"python.{b}.{part.end}"].saved
                else:
                    needed = 0
                    for way in self.exits.values():
                        if way.step is None and way.block == b:
                            needed |= way.saved
                    for s in self._followers(part):
                        follower = self.parts[s, 0]
                        needed |= follower.needed if follower.native else self.exits[f"python.{s}.0"].saved
                for n in reversed(range(part.first, part.end)):
                    needed = steps[n].reads | needed & ~steps[n].writes
                    if steps[n].bails:
                        needed |= self.exits[f"bail.{b}.{n}"].saved
                if needed & ~part.needed:
                    part.needed |= needed
                    again = True

    # -- machine code ------------------------------------------------------------------------------------------
    def compile(self) -> None:
        """Divide what is translated, compile; write the Python around it."""
        self.divide()
        used = 0
        for part in self.parts.values():
            used |= part.needed | part.changed
        for e in self.exits.values():
            used |= e.saved
        self.used = list(bits_of(used | mask_of(self.code.registers)))
        inputs = list(self.code.inputs.values())
        self.numbers: dict[Input | int, int] = {}  # a register or an input of one value -> its place
        self.rows: dict[Input | int, int] = {}
        used_and_given: list[Input | int] = [*self.used, *inputs]
        for what in used_and_given:
            vary = what.vary if isinstance(what, Input) else what in self.varying
            table = self.rows if vary else self.numbers
            table[what] = len(table)
        self.rows_at = -(-(NUMBERS + 8 * len(self.numbers)) // 64) * 64
        size = self.rows_at + ROW * len(self.rows)
        raw = np.zeros(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self.buffer = raw[start : start + size]
        access.export(self.code.forms)
        address = compiler().function(self._text(inputs))
        function = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)
        self.call = lambda at=self.buffer.ctypes.data: function(at)
        self.views: dict[Input | int, np.ndarray] = {}
        for what, k in self.rows.items():
            bits = what.bits if isinstance(what, Input) else self.bits[what]
            at = self.rows_at + ROW * k
            self.views[what] = self.buffer[at : at + LANES * max(1, bits // 8)].view(U[bits])
        self.by_number = list(self.exits.values())
        self.enters: dict[tuple[int, int], Callable] = {}

    def _text(self, inputs: list[Input]) -> str:
        code, code.lines = self.code, []
        names = {what: f"%r{what}" for what in self.used} | {what: f"%input{k}" for k, what in enumerate(inputs)}
        shapes = {what: (self._bits(what), what in self.rows) for what in names}
        for what, name in names.items():
            code.emit(f"{name} = alloca {type_of(*shapes[what])}, align 64")
        for name, size in sorted(code.scratch.items()):
            code.emit(f"%{name} = alloca [{size} x i8], align 64")
        for name, (at, kind) in HEADER_PLACES.items():
            code.emit(f"%{name} = alloca {kind}")
            code.emit(f"%h.{name} = getelementptr i8, ptr %base, i64 {at}")
            code.emit(f"%l.{name} = load {kind}, ptr %h.{name}")
            code.emit(f"store {kind} %l.{name}, ptr %{name}")
        if code.forms:
            code.emit("%context = load i64, ptr %context.at")
            active = int64(Value("%context", 64, 0, False, code))[layout.ACTIVE]
            code.emit("%active = alloca i32")
            code.emit(f"store {code.cast(active, 32)}, ptr %active")
        for what, name in names.items():
            code.emit(f"%p.{name[1:]} = getelementptr i8, ptr %base, i64 {self._place(what)}")
            self._move(name, *shapes[what], load=True)
        code.emit("%entry.number = load i64, ptr %base")
        targets = [f"i64 {n}, label %block.{b}.{i}" for (b, i), n in self.entries.items() if self.parts[b, i].native]
        code.emit(f"switch i64 %entry.number, label %nowhere [{' '.join(targets)}]")
        code.label("nowhere")
        code.emit("unreachable")
        for part in self.parts.values():
            b, steps = part.block, self.steps[part.block]
            if part.native or part.first == 0:
                code.label(f"block.{b}.{part.first}")
            if not part.native:
                if part.first == 0:
                    code.jump(f"python.{b}.0")
                continue
            for step in steps[part.first : part.end]:
                code.lines += step.text or []
            if part.end < len(steps):
                code.jump(f"python.{b}.{part.end}")
        for n, (label, e) in enumerate(self.exits.items()):
            code.label(label)
            for name in ("time", *["epoch"] * code.meets):
                kind = HEADER_PLACES[name][1]
                code.emit(f"%x{n}.{name} = load {kind}, ptr %{name}")
                code.emit(f"store {kind} %x{n}.{name}, ptr %h.{name}")
            for r in bits_of(e.saved):
                self._move(names[r], *shapes[r], load=False)
            code.emit(f"ret i64 {n}")
        code.lines.insert(0, "entry:")
        code.close("define i64 @block(ptr noalias %base)")
        return code.module()

    def _place(self, what) -> int:
        return NUMBERS + 8 * self.numbers[what] if what in self.numbers else self.rows_at + ROW * self.rows[what]

    def _move(self, name: str, bits: int, vary: bool, load: bool) -> None:
        """Load a variable from its place in the buffer, where it has whole bytes, or store it there."""
        code, there, wide = self.code, f"%p.{name[1:]}, align {64 if vary else 8}", max(bits, 8) if vary else 64
        if load:
            found = code.value(f"load {type_of(wide, vary)}, ptr {there}", wide, vary)
            code.emit(f"store {code.cast(found, bits)}, ptr {name}")
        else:
            found = code.value(f"load {type_of(bits, vary)}, ptr {name}", bits, vary)
            code.emit(f"store {code.cast(found, wide)}, ptr {there}")

    # -- the Python around it ----------------------------------------------------------------------------------
    def _enterer(self, position: tuple[int, int]):
        """A function of a group that fills the buffer for an entry and runs the machine code; returns its exit."""
        read: list[Input | int] = [*bits_of(self.parts[position].needed), *self.code.inputs.values()]
        texts = {what: what.text if isinstance(what, Input) else f"R[{what}]" for what in read}
        rows = [what for what in read if what in self.rows]
        scope: dict[str, Any] = {"buffer": self.buffer, "call": self.call, "inf": math.inf, "fill": _fill}
        scope |= {f"i{self.rows[what]}": self.views[what] for what in rows}
        lines = ["def enter(g):", "    R, n, heap, join = g.R, g.n, g.engine.heap, g.join"]
        predicates = [what for what in rows if not isinstance(what, Input) and self.bits[what] == 1]
        lines += [f"    if R[{what}] is None: raise TypeError" for what in predicates]
        if rows:
            lines += [f"    if n == {LANES}:", *(f"        i{self.rows[what]}[:] = {texts[what]}" for what in rows)]
            lines += ["    else:", *(f"        fill(i{self.rows[what]}, {texts[what]}, n)" for what in rows)]
        layout, numbers = self._layout(read, "B7x")
        scope["pack"] = struct.Struct(f"{HEADER}{NUMBERS - struct.calcsize(HEADER)}x{layout}").pack_into
        scope.update(self.units)
        limit = "heap[0][0] + g.clock.quantum if heap else inf"
        scope["begin"] = self.memory.begin
        shared = any(form.shared for form in self.code.forms)
        copies = any(form.rule is access.begin_copy for form in self.code.forms)
        header = [f"{self.entries[position]}", "g.t", limit, "join.block if join else -9", "g.lane_mask"]
        local = any(form.rule is access.access_local for form in self.code.forms)
        memory = f"begin(g, {shared}, {copies}, {'access.local_memory(g, 1)' if local else None})"
        context = memory if self.code.forms else "0"
        header += ["g.warp.live_mask", context, "g.warp.actor.epoch"]
        lines.append(f"    pack(buffer, 0, {', '.join([*header, *(texts[what] for what in numbers)])})")
        lines.append("    return call()")
        exec("\n".join(lines), scope)
        self.enters[position] = scope["enter"]
        return scope["enter"]

    def _bits(self, what) -> int:
        return what.bits if isinstance(what, Input) else self.bits[what]

    def _layout(self, those: list, predicate: str) -> tuple[str, list]:
        """How the numbers among registers and inputs lie in the buffer, and which these are, in their order."""
        found = {self.numbers[what]: what for what in those if what in self.numbers}
        kinds = {k: predicate if self._bits(what) == 1 else "Q" for k, what in found.items()}
        places = range(max(found, default=-1) + 1)
        return "".join(kinds.get(k, "8x") for k in places), [found[k] for k in sorted(found)]

    def _saver(self, e: Exit):
        """A function of a group that takes back what an exit says."""
        scope: dict[str, Any] = {"buffer": self.buffer}
        saved = list(bits_of(e.saved))
        rows = [r for r in saved if r in self.rows]
        layout, numbers = self._layout(saved, "?7x")
        targets = ["g.t", "g.warp.actor.epoch", *(f"R[{r}]" for r in numbers)]
        layout = f"<{TIME}xd{EPOCH - TIME - 8}xq{NUMBERS - EPOCH - 8}x{layout}"
        scope["unpack"] = struct.Struct(layout).unpack_from
        lines = ["def save(g):", "    R, n = g.R, g.n", f"    {', '.join(targets)}, = unpack(buffer)"]
        lines.append(f"    g.pc = {e.block}")
        if rows:
            lines.append(f"    if n == {LANES}:")
            for r in rows:
                scope[f"o{r}"] = self.views[r]
                lines.append(f"        R[{r}] = o{r}.copy()")
            lines += ["    else:", *(f"        R[{r}] = o{r}[:n].copy()" for r in rows)]
        exec("\n".join(lines), scope)
        e.save = scope["save"]
        return e.save

    def _continue(self, e: Exit):
        """Give an exit the Python that goes on there: a part without translation, or the rest of the block."""
        assert e.step is not None  # before it, not behind the block
        b, steps = e.block, self.steps[e.block]
        part = self.parts.get((b, e.step))
        end = part.end if part is not None and not part.native else len(steps)
        e.code, e.resume = self.python(b, e.step, end), (b, end) if end < len(steps) else None
        return e.code

    def python(self, b: int, first: int, end: int):
        """The Python function of steps `first` to `end` of a block."""
        key = b, first, end
        if key not in self.tails:
            reads = writes = 0
            for step in self.steps[b][first:end]:
                reads |= step.reads & ~writes
                writes |= step.writes
            program = self.program
            last = end == len(self.steps[b])
            if last:
                reads |= program.define[b] & program.live_out[b] & ~writes
            reads &= ~program.in_place[b]
            saved = bits_of(writes & self.live[b][end] & ~program.in_place[b])
            writer = program.written(b)[0]
            if not program.line_maps[b]:
                program.line_maps[b] = writer.finish()[1]
            source = writer.part(first, end, bits_of(reads), saved)
            self.tails[key] = program.load(b, source, writer, self.units)
        return self.tails[key]

    # -- running -----------------------------------------------------------------------------------------------
    def run(self, g, block: int) -> int:
        """Execute blocks from `block` on; returns what a block's function returns, of the last one: g.pc."""
        position = block, 0
        part = self.parts[position]
        if not part.native:
            following = self.python(block, 0, part.end)(g)
            if following is not None:
                return following
            position = block, part.end
        while True:
            enter = self.enters.get(position) or self._enterer(position)
            try:
                with self.buffer_lock:  # another thread of the script may launch the same kernel
                    e = self.by_number[enter(g)]
                    (e.save or self._saver(e))(g)
                    copies = self.memory.finish(g, self.origin) if self.code.forms else None
                    if copies is not None:
                        self.units["async_copy"].begun(g, copies, self.origin)
            except AMISS:
                self.widen(g, position)
                b, first = position
                g.pc = b
                return self.python(b, first, len(self.steps[b]))(g)
            if e.step is None:
                return e.following
            following = (e.code or self._continue(e))(g)
            if following is not None or e.resume is None:
                return following
            position = e.resume

    def origin(self, g, index: int):
        """Return the origin of an access by an instruction of this number, as its Python form would name it."""
        place = self.places.get(index)
        if place is None:
            place = self.places[index] = self._place_in_python(index)
        return g.origin_at(*place)

    def _place_in_python(self, index: int) -> tuple[str, int, int]:
        """The label of an access, its block, and the line of that one's Python that calls for it."""
        b = bisect_right(self.program.start, index) - 1
        n = index - self.program.start[b]
        writer = self.program.written(b)[0]
        if not self.program.line_maps[b]:
            self.program.line_maps[b] = writer.finish()[1]
        texts = [text for text, _ in writer.lines[writer.marks[n] : writer.marks[n + 1]]]
        called, k = next((m[1], k) for k, text in enumerate(texts) if (m := ACCESS.search(text)))
        label = {"cp_async": "cp.async", "fetch": "texture fetch"}.get(called, called)
        return label, b, len(writer.opening([])) + writer.marks[n] + k + 1

    def widen(self, g, position: tuple[int, int]) -> None:
        """Compile again if a register that had one value for all lanes has not."""
        more = {r for r in bits_of(self.parts[position].needed) if r in self.numbers and type(g.R[r]) is np.ndarray}
        if more:
            self.varying |= more
            self.translate()
            self.compile()


def _fill(row: np.ndarray, value, n: int) -> None:
    """A register of n lanes: those that are not here do as the first one does."""
    if type(value) is np.ndarray:
        row[:n] = value
        row[n:] = value[0]
    else:
        row[:] = value
