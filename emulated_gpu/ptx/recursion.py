"""Functions that call themselves, as loops over frames in local memory (PTX ISA 7.1): what a stack is on a GPU.

A function of that kind becomes one whose variables lie in a frame, at an offset of a frame pointer. A call of itself
stores the registers there, moves on to the next frame and branches to the beginning; a return moves back, loads the
registers and branches to behind the call, which the frame knows by its number.
"""

from __future__ import annotations

from dataclasses import replace

from .syntax import Imm, Instr, Kernel, Mem, Reg, Symbol, Target, Variable, Vec, leaves, rewritten

DEPTH = 64  # calls; a thread's stack of 1 KiB, CUDA's default, holds no more frames of 16 bytes
DEEPER = "deeper than the stack: "  # callee of the call that is refused
STACK, TABLE = "recursion/stack", "recursion/returns"


def calls_of(function: Kernel) -> list[Instr]:
    """Return the calls of itself that a function has."""
    return [i for i in function.instrs if _calls(i, function.name)]


def _calls(instr: Instr, name: str) -> bool:
    return instr.op.split(".")[0] == "call" and any(isinstance(o, Symbol) and o.name == name for o in instr.operands)


def with_frames(function: Kernel) -> None:
    """Rewrite a function that calls itself, in place, so that it does so no more.

    One with a register of more than 64 bits stays as it is.
    """
    if calls_of(function) and all(r.bits <= 64 for r in function.registers):
        _Frames(function).rewrite()


class _Frames:
    """Rewrites one function. slots: name of a variable or index of a register -> its offset in a frame."""

    def __init__(self, function: Kernel):
        self.function = function
        self.out: list = []
        self.at = function.instrs[0]  # whose line an instruction gets
        formals = (*function.formals, *function.results)
        written = (leaf for i in function.instrs for o in i.operands[:1] for leaf in leaves(o))
        kept = (leaf for leaf in (*written, *formals) if isinstance(leaf, Reg))
        self.kept = list({r.index: r for r in kept}.values())
        self.slots: dict[object, int] = {}
        self.size = 16  # the first word is the number of the call
        for r in self.kept:
            self._slot(r.index, max(r.bits // 8, 4), 8)
        for v in function.variables.values():
            if v.space == "local":
                self._slot(v.name, v.size, v.align)
        self.size = -(-self.size // 16) * 16
        self.frame, self.word, self.half = (self._register(n, bits) for n, bits in (("fp", 64), ("w", 64), ("h", 32)))
        self.test, self.call = self._register("deep", 1), self._register("call", 32)

    def _slot(self, key, size: int, align: int) -> None:
        start = -(-self.size // max(align, 1)) * max(align, 1)
        self.slots[key], self.size = start, start + size

    def _register(self, name: str, bits: int) -> Reg:
        registers = self.function.registers
        registers.append(Reg(len(registers), f"recursion/{name}", bits))
        return registers[-1]

    def emit(self, op: str, *operands, guard: Reg | None = None, negated: bool = False) -> int:
        """Append an instruction; returns its index."""
        self.out.append(replace(self.at, op=op, operands=operands, guard=guard, negated=negated))
        return len(self.out) - 1

    def place(self, key, frames: int = 0) -> Mem:
        """Where a variable or register lies: in this frame, or in the next."""
        return Mem(self.frame, self.slots[key] + frames * self.size)

    def store(self, place: Mem, value) -> None:
        """Store a register or literal as in a frame's slot; predicates are words."""
        bits = getattr(value, "bits", 32)
        if bits == 1:
            self.emit("selp.b32", self.half, Imm(1), Imm(0), value)
            value, bits = self.half, 32
        self.emit(f"st.local.b{bits}", place, value)

    def load(self, register: Reg, place: Mem) -> None:
        if register.bits == 1:
            self.emit("ld.local.b32", self.half, place)
            self.emit("setp.ne.u32", register, self.half, Imm(0))
        else:
            self.emit(f"ld.local.b{register.bits}", register, place)

    def copy(self, to: Mem, source: Mem, size: int) -> None:
        """Copy a variable's bytes, in pieces as its places are aligned."""
        done = 0
        while done < size:
            piece = next(p for p in (8, 4, 2, 1) if done + p <= size and (done | to.offset | source.offset) % p == 0)
            through = self.word if piece == 8 else self.half
            self.emit(f"ld.local.b{8 * piece}", through, Mem(source.base, source.offset + done))
            self.emit(f"st.local.b{8 * piece}", Mem(to.base, to.offset + done), through)
            done += piece

    def rewrite(self) -> None:
        function = self.function
        outside = [(f, function.variables[f.name].size) for f in (*function.formals, *function.results)
                   if isinstance(f, Symbol)]  # fmt: skip
        self.emit("mov.b64", self.frame, Symbol(STACK))
        for formal, size in outside[: sum(isinstance(f, Symbol) for f in function.formals)]:
            self.copy(self.place(formal.name), Mem(formal, 0), size)
        self.emit("mov.b32", self.call, Imm(0))
        self.emit("st.local.b32", Mem(self.frame, 0), self.call)
        begin, moved, own = len(self.out), [], []
        returns: list[int] = []
        saves, ends = [], []  # branches to what comes behind the body
        for instr in function.instrs:
            self.at = instr
            moved.append(len(self.out))
            if _calls(instr, function.name):
                around = self.emit("bra", guard=instr.guard, negated=not instr.negated) if instr.guard else None
                results, arguments = self.passed(instr)
                for formal, argument in zip(function.formals, arguments, strict=True):
                    self.give(formal, argument)
                self.emit("mov.b32", self.call, Imm(len(returns) + 1))
                saves.append(self.emit("bra"))
                returns.append(len(self.out))
                for result, to in zip(function.results, results, strict=True):
                    self.take(result, to)
                if around is not None:
                    self.out[around].operands = (Target(len(self.out), "after the call"),)
            elif instr.op.split(".")[0] == "ret":
                ends.append(self.emit("bra", guard=instr.guard, negated=instr.negated))
            else:
                operands = tuple(self.own(o) for o in instr.operands)
                own.append(len(self.out))
                self.out.append(replace(instr, operands=operands))
        moved.append(len(self.out))
        ends.append(self.emit("bra"))
        for at in own:
            operands = (Target(moved[o.index], o.name) if isinstance(o, Target) else o for o in self.out[at].operands)
            self.out[at].operands = tuple(operands)
        function.branch_tables = {name: [moved[i] for i in at] for name, at in function.branch_tables.items()}
        self.to(saves, "the next frame")
        self.descend(begin)
        self.to(ends, "the frame before")
        self.ascend([0, *returns], outside[sum(isinstance(f, Symbol) for f in function.formals) :])
        frames = DEPTH + 1  # arguments are stored before it is seen that there is no room
        function.variables[STACK] = Variable(STACK, "local", frames * self.size, 16)
        function.instrs = self.out

    def to(self, branches: list[int], name: str) -> None:
        """Let these branches go to the next instruction."""
        for at in branches:
            self.out[at].operands = (Target(len(self.out), name),)

    def passed(self, call: Instr) -> tuple[tuple, tuple]:
        """Results and arguments of a call."""
        at = next(k for k, o in enumerate(call.operands) if not isinstance(o, Vec))
        around = call.operands[:at], call.operands[at + 1 :]
        return tuple(next((o.items for o in part if isinstance(o, Vec)), ()) for part in around)

    def give(self, formal, argument) -> None:
        """Store an argument in the next frame."""
        key = formal.name if isinstance(formal, Symbol) else formal.index
        if isinstance(argument, Symbol):
            self.copy(self.place(key, 1), self.place(argument.name), self.function.variables[argument.name].size)
        else:
            self.store(self.place(key, 1), argument)

    def take(self, result, to) -> None:
        """Load a result from the next frame."""
        key = result.name if isinstance(result, Symbol) else result.index
        if isinstance(to, Symbol):
            self.copy(self.place(to.name), self.place(key, 1), self.function.variables[to.name].size)
        elif isinstance(to, Reg):
            self.load(to, self.place(key, 1))

    def own(self, operand):
        """An operand whose variables lie in the frame: addresses become sums, made before the instruction."""
        if isinstance(operand, Mem) and isinstance(operand.base, Symbol) and operand.base.name in self.slots:
            return Mem(self.frame, self.slots[operand.base.name] + operand.offset, operand.extra)

        def leaf(x):
            if not (isinstance(x, Symbol) and x.name in self.slots):
                return x
            address = self._register(x.name, 64)
            self.emit("add.s64", address, self.frame, Imm(self.slots[x.name]))
            return address

        return rewritten(operand, leaf)

    def descend(self, begin: int) -> None:
        """Keep the registers, and begin again with the next frame."""
        self.emit("mov.b64", self.word, Symbol(STACK))
        self.emit("add.s64", self.word, self.word, Imm((DEPTH - 2) * self.size))
        self.emit("setp.gt.u64", self.test, self.frame, self.word)
        deep_enough = self.emit("bra", guard=self.test, negated=True)
        self.emit("call", Symbol(DEEPER + self.function.name))
        self.to([deep_enough], "room for a frame")
        for r in self.kept:
            self.store(self.place(r.index), r)
        self.emit("add.s64", self.frame, self.frame, Imm(self.size))
        self.emit("st.local.b32", Mem(self.frame, 0), self.call)
        for formal in self.function.formals:
            if isinstance(formal, Reg):
                self.load(formal, self.place(formal.index))
        self.emit("bra", Target(begin, "the function"))

    def ascend(self, returns: list[int], results: list[tuple[Symbol, int]]) -> None:
        """Go back to the frame before, behind its call; from the first one to the caller, with the results."""
        for result in self.function.results:
            if isinstance(result, Reg):
                self.store(self.place(result.index), result)
        self.emit("ld.local.b32", self.call, Mem(self.frame, 0))
        self.emit("setp.eq.u32", self.test, self.call, Imm(0))
        leave = self.emit("bra", guard=self.test)
        self.emit("sub.s64", self.frame, self.frame, Imm(self.size))
        for r in self.kept:
            self.load(r, self.place(r.index))
        self.emit("brx.idx", self.call, Symbol(TABLE))
        self.to([leave], "the caller")
        self.function.branch_tables[TABLE] = [len(self.out), *returns[1:]]
        for result, size in results:
            self.copy(Mem(result, 0), self.place(result.name), size)
        self.emit("ret")
