"""The instruction set: one handler for each opcode, found by the longest dotted prefix that is registered.

A handler's `emit(w, i)` writes Python for instruction `i` through the BlockWriter `w`. It must account for every
modifier: `Mods.done()` refuses what is left over, so that an unknown variant is never executed as a known one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from ..errors import Unsupported
from ..ptx import TYPE_BITS, Instr, Pair, Vec

ENDS_BLOCK = {"bra", "brx", "ret", "exit", "trap"}
_HANDLERS: dict[str, Handler] = {}


@dataclass(frozen=True)
class Handler:
    """dst: how many leading operands are written; reads_destination: the destination's old value matters."""

    name: str
    emit: Callable
    dst: int | Callable[[Instr], int]
    blocking: bool
    reads_destination: bool

    def destinations(self, instr: Instr) -> int:
        return self.dst(instr) if callable(self.dst) else self.dst


def op(*names: str, dst: int | Callable[[Instr], int] = 1, blocking: bool = False, reads_destination: bool = False):
    """Register a function as the emitter of the opcodes that begin with `names`."""

    def register(function):
        for name in names:
            assert name not in _HANDLERS, name
            _HANDLERS[name] = Handler(name, function, dst, blocking, reads_destination)
        return function

    return register


_CACHE: dict[str, Handler | None] = {}


def lookup(instr: Instr) -> Handler | None:
    found = _CACHE.get(instr.op, False)
    if found is False:
        parts = instr.op.split(".")
        found = None
        for n in range(len(parts), 0, -1):
            found = _HANDLERS.get(".".join(parts[:n]))
            if found:
                break
        _CACHE[instr.op] = found
    return found


class Mods:
    """The modifiers of an opcode behind its registered name, taken one by one."""

    def __init__(self, instr: Instr):
        self.instr = instr
        handler = lookup(instr)
        self.left = instr.op.split(".")[len(handler.name.split(".")) :]

    def take(self, *names: str) -> bool:
        """True if one of the names is present; removes it."""
        for name in names:
            if name in self.left:
                self.left.remove(name)
                return True
        return False

    def one_of(self, *names: str, default: str | None = None) -> str | None:
        """The one of the names that is present, else the default; None is returned only if that is the default."""
        for name in names:
            if name in self.left:
                self.left.remove(name)
                return name
        return default

    def type(self) -> str:
        """The last type suffix."""
        for name in reversed(self.left):
            if name in TYPE_BITS:
                self.left.reverse()
                self.left.remove(name)
                self.left.reverse()
                return name
        raise Unsupported("no type suffix")

    def done(self):
        if self.left:
            raise Unsupported("modifier ." + ".".join(self.left))


def width(kind: str) -> int:
    return TYPE_BITS[kind]


def is_signed(kind: str) -> bool:
    return kind[0] == "s"


def is_float(kind: str) -> bool:
    return kind[0] == "f" or kind.startswith("bf")


def flat(operand) -> tuple:
    """The items of a vector operand, or the operand alone."""
    return operand.items if isinstance(operand, Vec) else (operand,)


def pair(operand) -> tuple:
    """(d, p) of `d|p`; (d, None) of `d`."""
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)


from . import arithmetic, barrier, control, convert, copy, logic, memory, tensor, warp  # noqa: E402, F401

BLOCKING = tuple(h.name for h in _HANDLERS.values() if h.blocking)
