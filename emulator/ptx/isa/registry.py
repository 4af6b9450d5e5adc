"""The table of instructions: one handler for each opcode, found by the longest dotted prefix that is registered.

A handler writes Python for instruction `i` through the BlockWriter `w`; it takes the modifiers that it knows from `m`.
The writer refuses what is left over, so that no unknown variant is executed as a known one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from ...errors import Unsupported
from ..syntax import TYPE_BITS, Instr, Pair, Vec

ENDS_BLOCK = {"bra", "brx", "ret", "exit", "trap"}
SCOPES = ("cta", "cluster", "gpu", "sys")
FENCED = SCOPES[1:]  # those at which a release waits until all that the thread did is performed
# What changes speed and never values: operators of ld and st (9.7.9.1), priorities of eviction (9.7.9.2), sizes of
# prefetches and cache policies (9.7.9.8)
CACHE_HINTS = (
    "ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc", "L1::no_allocate", "L2::cache_hint",
    *(f"L{level}::evict_{when}" for level in (1, 2) for when in ("normal", "unchanged", "first", "last")),
    *(f"L2::{size}B" for size in (64, 128, 256)),
)  # fmt: skip
HANDLERS: dict[str, Handler] = {}


@dataclass(frozen=True)
class Handler:
    """emit(w, i, m) writes the instruction, see above; it returns True if it left the block.

    dst: how many leading operands are written; blocking: it may have to wait, and so starts a block; collective: all
    lanes that are together execute it, or none; in_place: alone in its block, it uses the registers of its vectors in
    g.R, by their numbers.
    """

    name: str
    emit: Callable
    dst: int | Callable[[Instr], int]
    blocking: bool
    collective: bool
    in_place: bool

    def destinations(self, instr: Instr) -> int:
        return self.dst(instr) if callable(self.dst) else self.dst


def op(
    *names: str,
    dst: int | Callable[[Instr], int] = 1,
    blocking: bool = False,
    collective: bool = False,
    in_place: bool = False,
):
    """Register a function as the emitter of the opcodes that begin with `names`; the rest as in Handler."""

    def register(function):
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = Handler(name, function, dst, blocking, collective, in_place)
        return function

    return register


_CACHE: dict[str, Handler | None] = {}


def lookup(instr: Instr) -> Handler | None:
    found = _CACHE.get(instr.op, False)
    if found is False:
        parts = instr.op.split(".")
        found = None
        for n in range(len(parts), 0, -1):
            found = HANDLERS.get(".".join(parts[:n]))
            if found:
                break
        _CACHE[instr.op] = found
    return found


_REQUIRED = object()


class Mods:
    """The modifiers of an opcode behind its registered name, taken one by one."""

    def __init__(self, handler: Handler, instr: Instr):
        self.left = instr.parts[len(handler.name.split(".")) :]

    def take(self, *names: str) -> bool:
        """True if one of the names is present; removes it."""
        for name in names:
            if name in self.left:
                self.left.remove(name)
                return True
        return False

    def one_of(self, *names: str, default=_REQUIRED):
        """The one of the names that is present, else the default. Raises Unsupported where there is no default."""
        for name in names:
            if name in self.left:
                self.left.remove(name)
                return name
        if default is _REQUIRED:
            raise Unsupported("no modifier out of ." + ", .".join(names))
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

    def drop(self, *names: str) -> None:
        """Take all of the names that are present: those that say nothing more."""
        self.left = [name for name in self.left if name not in names]

    def done(self) -> None:
        """Unsupported unless all have been taken."""
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
