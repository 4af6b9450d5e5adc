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
import functools
import itertools
import math
import pickle
import re
import struct
import textwrap
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import EmulatorError
from ..formats.alu import U
from ..jit.llvm import LANES, Untranslated, compiler, type_of
from ..ptx.control_flow import EXIT, ControlFlow, bits_of, mask_of
from . import access, memory
from .translate import CONTEXT, ENTRY, LIMIT, MEETING, ROOM, TIME, Input, Translator

ROW = 8 * LANES  # in the buffer of what varies, behind all numbers of one value
# What a register that does not fit its place raises, and a symbol without an address: Python comes to it, or does not
ACCESS = re.compile(r"(?:access|async_copy|textures)\.(\w+)\(")
# Of a Translator, what goes with the text that it has written
WRITTEN = "registers", "inputs", "outputs", "scratch", "forms", "declarations", "helpers", "heads", "count"
AMISS = (TypeError, ValueError, OverflowError, struct.error, EmulatorError)


@dataclass
class Step:
    """An instruction of a block: what it reads and writes, and LLVM's text for it, None for none.

    Then, as masks of registers, what is read from here on, what machine code has changed since Python last ran, and
    what it needs to begin here.
    """

    block: int
    reads: int
    writes: int
    text: list[str] | None = None
    bails: bool = False
    ways: dict[int, None] = field(default_factory=dict)  # blocks that may follow, in the order of the text
    inputs: int = 0  # that its text reads, a bit each, behind those of registers
    live: int = 0
    changed: int = 0
    needed: int = 0

    def leave(self) -> None:
        """Leave it to Python."""
        self.text, self.bails, self.ways = None, False, {}


@dataclass
class Exit:
    """Where machine code ends: before a step of a block, for Python to go on up to `end`, or behind it, to the block
    `following`."""

    block: int
    saved: int
    step: int = 0
    end: int = 0
    following: int | None = None
    save: Callable | None = None  # takes back; made when it is first taken, as few are
    then: Callable | None = None  # the Python up to `end`, likewise


class Region:
    """blocks: their numbers; varying: registers that are known to have a value for each lane. Steps go by the numbers
    of their instructions."""

    def __init__(self, program: ControlFlow, blocks: list[int], costs: list[float], units: Mapping[str, ModuleType]):
        self.program, self.blocks, self.costs, self.units = program, blocks, costs, units
        self.steps = {i: Step(b, *program.masks[i]) for b in blocks for i in self.instructions(b)}
        self.bits = {r.index: r.bits for r in program.kernel.registers}
        self.varying: set[int] = set()
        self.left: set[int] = set()  # blocks that stay Python
        self.python = functools.cache(self._python)
        self.buffer_lock = threading.Lock()
        self.place_in_python = functools.cache(self._place_in_python)
        self.namer = self.origin  # one for all turns, which the log keeps

    # -- translation -------------------------------------------------------------------------------------------
    def translate(self) -> None:
        """Write LLVM's text of all steps, or take what a process has written of the same."""
        program, texts = self.program, [self.program.written(b)[1] for b in self.blocks]
        at = [(b, program.start[b], self.costs[b]) for b in self.blocks]
        masks = [f"{mask:x}" for step in self.steps.values() for mask in (step.reads, step.writes)]
        what = len(program.start), at, sorted(self.varying), masks, bytes(self.bits.values()), *texts
        self.varying, steps, written = pickle.loads(compiler().kept(repr(what), self._translated))
        for step, found in zip(self.steps.values(), steps, strict=True):
            step.text, step.bails, step.ways, step.inputs = found
        self.code = Translator(self.bits, self.varying)
        vars(self.code).update(written)
        self.varies = mask_of(self.varying)

    def _translated(self) -> bytes:
        self.code = code = Translator(self.bits, set(self.varying))
        bodies: dict[int, list[ast.stmt]] = {}
        for b in self.blocks:
            parsed = (ast.parse(textwrap.dedent(text)).body for text in self.program.written(b)[1])
            bodies |= zip(self.instructions(b), parsed, strict=True)
        alike: dict[int, set[int]] = {}  # by block, registers that it takes for one value
        while some := [b for b in self.blocks if b not in alike or alike[b] & code.varying]:
            for b in some:
                code.alike = alike[b] = set()
                for i in self.instructions(b):
                    self._translate(i, self.steps[i], bodies[i])
        steps = [(step.text, step.bails, step.ways, step.inputs) for step in self.steps.values()]
        return pickle.dumps((code.varying, steps, {name: getattr(code, name) for name in WRITTEN}))

    def instructions(self, b: int) -> range:
        """Those of a block, by number."""
        return range(self.program.start[b], self.program.end[b])

    def _translate(self, i: int, step: Step, body: list[ast.stmt]) -> None:
        b, code, used = step.block, self.code, set(self.code.registers)
        step.leave()

        def bail() -> str:
            step.bails = True
            return f"python.{i}"

        def leave(following: int) -> None:
            step.ways[following] = None
            self._go(b, following)

        code.index = i
        try:
            ended = code.instruction(body, bail, leave)
            if i + 1 == self.program.end[b] and not ended:
                leave(b + 1 if b + 1 < len(self.program.start) else EXIT)
            step.text, step.inputs = code.lines, mask_of(code.asked)
        except Untranslated:
            step.leave()
            code.registers = used
            code.leave(body, set(bits_of(step.writes)))

    def _go(self, b: int, following: int) -> None:
        """Write the way from the end of block b to another, if the turn lasts."""
        code, out, on = self.code, f"leave.{b}.{following}", self.code.name("on")
        if following not in self.blocks:
            code.jump(out)
            return
        later = code.given(TIME) + float(self.costs[b])
        code.branch((later > code.given(LIMIT)) | (code.given(MEETING) == following), out, on)
        code.label(on)
        code.give(TIME, later)
        code.jump(f"block.{self.program.start[following]}")

    # -- analysis ----------------------------------------------------------------------------------------------
    def divide(self) -> None:
        """Find the parts of blocks, all machine code or all Python; where machine code ends, each time to take back
        what has changed and is read again; and what it needs where it begins."""
        program, steps, self.exits = self.program, self.steps, dict[str, Exit]()  # by label
        self.parts: dict[int, int] = {}  # where each begins, and where it ends
        outputs = mask_of(self.code.outputs)
        for step in steps.values():
            if step.block in self.left:
                step.leave()

        def change(i: int, now: int) -> int:
            steps[i].changed = now
            return now | steps[i].writes if steps[i].text is not None else 0

        def need(b: int, now: int) -> int:
            for i in reversed(self.instructions(b)):
                step, way = steps[i], self.exits.get(f"python.{i}")
                for s in step.ways:
                    now |= self.exits[f"leave.{b}.{s}"].saved
                now = step.reads | step.inputs | now & ~step.writes if step.text is not None else 0
                step.needed = now = now | (way.saved if way else 0)
            return now

        program.forward(change, self.blocks)
        for b in self.blocks:
            for _, part in itertools.groupby(self.instructions(b), lambda i: steps[i].text is None):
                first, *more = part
                self.parts[first] = first + 1 + len(more)
            live = program.live_out[b]
            for i in reversed(self.instructions(b)):
                steps[i].live = live = steps[i].reads | live & ~steps[i].writes
        for i, step in steps.items():
            b = step.block
            if step.bails or step.text is None and i in self.parts:
                end = program.end[b] if step.text is not None else self.parts[i]
                self.exits[f"python.{i}"] = Exit(b, step.changed & step.live | outputs, i, end)
            for s in step.ways:
                live = program.live[s] if s >= 0 else 0
                self.exits[f"leave.{b}.{s}"] = Exit(b, (step.changed | step.writes) & live | outputs, following=s)
        program.backward(need, self.blocks)

    # -- machine code ------------------------------------------------------------------------------------------
    def compile(self) -> None:
        """Divide what is translated, compile; write the Python around it."""
        self.divide()
        used = mask_of(self.code.registers)
        for found in (*(self.steps[i].needed for i in self.parts), *(e.saved for e in self.exits.values())):
            used |= found
        self.code.number_of(ENTRY)
        inputs = {len(self.bits) + k: what for k, what in enumerate(self.code.inputs.values())}
        registers = {r: Input(f"R[{r}]", self.bits[r], r in self.varying) for r in bits_of(used) if r not in inputs}
        self.variables = registers | inputs
        self.always = mask_of(r for r, what in inputs.items() if what in (ENTRY, CONTEXT))  # needed by all entries
        self.at: dict[Input, int] = {}  # bytes, in the buffer: numbers of one value, then rows
        size = 0
        for what in sorted(self.variables.values(), key=lambda what: what.vary):
            self.at[what] = size = -(-size // 64) * 64 if what.vary else size
            size += ROW if what.vary else 8
        raw = np.zeros(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self.buffer = raw[start : start + size]
        self.memory = memory.Memory(self.code.forms, self.units["access"].local_memory)
        for form in self.code.forms:
            access.export(form)
        self.call = functools.partial(compiler().function(self._text()), self.buffer.ctypes.data)
        rows = {what: self.buffer[at : at + ROW] for what, at in self.at.items() if what.vary}
        self.rows = {what: row[: LANES * max(1, what.bits // 8)].view(U[what.bits]) for what, row in rows.items()}
        self.by_number = list(self.exits.values())
        self.enterer = functools.cache(self._enterer)

    def _text(self) -> str:
        code, code.lines = self.code, []
        for r, what in self.variables.items():
            code.emit(f"%r{r} = alloca {type_of(*what.shape)}, align 64")
        for name in sorted(code.scratch):
            code.emit(f"%{name} = alloca [{ROOM} x i8], align 64")
        for r, what in self.variables.items():
            code.emit(f"%p.r{r} = getelementptr i8, ptr %base, i64 {self.at[what]}")
            self._move(r, load=True)
        native = [i for i in self.parts if self.steps[i].text is not None]
        targets = " ".join(f"i64 {i}, label %block.{i}" for i in native)
        code.emit(f"switch {code.given(ENTRY)}, label %nowhere [{targets}]")
        code.label("nowhere")
        code.emit("unreachable")
        for first, end in self.parts.items():
            if first in native or first == self.program.start[self.steps[first].block]:
                code.label(f"block.{first}")
            for i in range(first, end):
                code.lines += self.steps[i].text or []
            if first not in native:  # behind machine code, or from other blocks
                code.jump(f"python.{first}")
        for n, (label, e) in enumerate(self.exits.items()):
            code.label(label)
            for r in bits_of(e.saved):
                self._move(r, load=False)
            code.emit(f"ret i64 {n}")
        code.lines.insert(0, "entry:")
        code.close("define i64 @block(ptr noalias %base)")
        return code.module()

    def _move(self, r: int, load: bool) -> None:
        """Load a variable from its place in the buffer, where it has whole bytes, or store it there."""
        code, (bits, vary, real) = self.code, self.variables[r].shape
        here, there, wide = f"%r{r}", f"%p.r{r}, align {64 if vary else 8}", max(bits, 8) if vary else 64
        (first, source), (then, to) = ((wide, there), (bits, here)) if load else ((bits, here), (wide, there))
        found = code.value(f"load {type_of(first, vary, real)}, ptr {source}", first, vary, real)
        code.emit(f"store {code.cast(found, then)}, ptr {to}")

    # -- the Python around it ----------------------------------------------------------------------------------
    def _enterer(self, position: int):
        """A function of a group that fills the buffer for an entry and runs the machine code; returns its exit."""
        read = [self.variables[r] for r in bits_of(self.steps[position].needed | self.always)]
        rows = {f"i{self.at[what]}": what for what in read if what.vary}
        scope = {**self.units, "buffer": self.buffer, "call": self.call, "inf": math.inf, "fill": _fill}
        scope |= {"entry": position, "begin": self.memory.begin}
        scope |= {row: self.rows[what] for row, what in rows.items()}
        lines = ["def enter(g):", "    R, n, heap, join = g.R, g.n, g.engine.heap, g.join"]
        lines += [f"    if {what.text} is None: raise TypeError" for what in rows.values() if what.bits == 1]
        if rows:
            lines += [f"    if n == {LANES}:", *(f"        {row}[...] = {what.text}" for row, what in rows.items())]
            lines += ["    else:", *(f"        fill({row}, {what.text}, n)" for row, what in rows.items())]
        layout, numbers = self._layout(read, "B7x")
        scope["pack"] = layout.pack_into
        lines.append(f"    pack(buffer, 0, {numbers})")
        lines.append("    return call()")
        exec("\n".join(lines), scope)
        return scope["enter"]

    def _layout(self, those: list[Input], predicate: str) -> tuple[struct.Struct, str]:
        """How the numbers among registers and inputs lie in the buffer, and their texts in this order."""
        found = {self.at[what] // 8: what for what in those if not what.vary}
        kinds = ["8x"] * (max(found, default=-1) + 1)
        for k, what in found.items():
            kinds[k] = predicate if what.bits == 1 else "d" if what.real else "Q"
        return struct.Struct("<" + "".join(kinds)), ", ".join(found[k].text for k in sorted(found))

    def _saver(self, e: Exit):
        """A function of a group that takes back what an exit says."""
        saved = [self.variables[r] for r in bits_of(e.saved)]
        rows = {f"o{self.at[what]}": what for what in saved if what.vary}
        layout, numbers = self._layout(saved, "?7x")
        scope: dict[str, Any] = {"buffer": self.buffer, "unpack": layout.unpack_from}
        scope |= {row: self.rows[what] for row, what in rows.items()}
        lines = ["def save(g):", "    R, n = g.R, g.n", f"    g.pc = {e.block}"]
        if numbers:
            lines.append(f"    {numbers}, = unpack(buffer)")
        if rows:
            lines += [f"    if n == {LANES}:", *(f"        {what.text} = {row}.copy()" for row, what in rows.items())]
            lines += ["    else:", *(f"        {what.text} = {row}[:n].copy()" for row, what in rows.items())]
        exec("\n".join(lines), scope)
        e.save, e.then = scope["save"], None if e.following is not None else self.python(e.step, e.end)
        return e.save

    def _python(self, first: int, end: int):
        """The Python function of some steps of a block."""
        program, b = self.program, self.steps[first].block
        reads = writes = 0
        for i in range(first, end):
            reads |= self.steps[i].reads & ~writes
            writes |= self.steps[i].writes
        last = end == program.end[b]
        reads |= program.define[b] & program.live_out[b] & ~writes if last else 0
        saved = 0 if last else writes & self.steps[end].live
        used, kept = (bits_of(some & ~program.in_place[b]) for some in (reads, saved))
        writer, before = program.written(b)[0], program.start[b]
        return program.load(b, writer.part(first - before, end - before, used, kept), writer, self.units)

    # -- running -----------------------------------------------------------------------------------------------
    def run(self, g, block: int) -> int:
        """Execute blocks from `block` on; returns what a block's function returns, of the last one: g.pc."""
        position = self.program.start[block]
        if self.steps[position].text is None:
            end = self.parts[position]
            following = self.python(position, end)(g)
            if following is not None:
                return following
            position = end
        while True:
            enter = self.enterer(position)
            try:
                with self.buffer_lock:  # another thread of the script may launch the same kernel
                    e = self.by_number[enter(g)]
                    (e.save or self._saver(e))(g)
                    copies = self.memory.finish(g, self.namer) if self.code.forms else None
                    if copies is not None:
                        self.units["async_copy"].begun(g, copies, self.namer)
            except AMISS:
                self.widen(g, position)
                g.pc = self.steps[position].block
                return self.python(position, self.program.end[g.pc])(g)
            following = e.then(g) if e.then is not None else e.following
            if following is not None:
                return following
            position = e.end

    def origin(self, by, index: int):
        """Return the origin of a warp's access by the instruction of this number, as its Python form would name it."""
        return by.origin(self.program, *self.place_in_python(index))

    def _place_in_python(self, index: int) -> tuple[str, int, int]:
        """The label of an access, its block, and the line of that one's Python that calls for it."""
        b = self.steps[index].block
        n = index - self.program.start[b]
        writer = self.program.written(b)[0]
        texts = [text for text, _ in writer.lines[writer.marks[n] : writer.marks[n + 1]]]
        called, k = next((m[1], k) for k, text in enumerate(texts) if (m := ACCESS.search(text)))
        label = {"cp_async": "cp.async", "fetch": "texture fetch"}.get(called, called)
        return label, b, len(writer.opening([])) + writer.marks[n] + k + 1

    def widen(self, g, position: int) -> None:
        """Compile again if a register that had one value for all lanes has not."""
        needed = set(bits_of(self.steps[position].needed)) & self.bits.keys() - self.varying
        if more := {r for r in needed if type(g.R[r]) is np.ndarray}:
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
