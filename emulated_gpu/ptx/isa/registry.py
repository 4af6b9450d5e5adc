"""The table of instructions: one handler for each opcode, found by the longest dotted prefix that is registered.

A handler writes Python for instruction `i` through the BlockWriter `w`; it takes the modifiers that it knows from `m`.
The writer refuses what is left over, so that no unknown variant is executed as a known one.

Every opcode says what it costs a warp that issues it; each file has the reasons:
  * "measured (chain/lop3)" names points of the timing programs that were run on an H200;
  * "the guide" is the table of arithmetic throughput in the CUDA C++ programming guide, in results per cycle and SM for
    compute capability 9.0. A warp's scheduler gets a quarter of them: 16 are 8 cycles for 32 lanes, as class `special`;
  * "no measurement" means that its class is a guess, that of instructions which are alike.
What asynchronous units and memory take comes on top, from the clock (machine/clock.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable

from ...errors import Unsupported
from ..syntax import TYPE_BITS, Instr, Pair, Vec

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


UNTIMED = "untimed"  # the cost of what a timed run refuses


@dataclass(frozen=True)
class Handler:
    """Tells how an opcode is emitted, what it costs, and what it writes.

    emit(w, i, m) writes instruction i; it returns True if it left the block. cost: the class that a timed run charges
    it as, with figures in the section [issue] of a machine profile, or UNTIMED; dst: how many leading operands are
    written. Either, and blocking, may be a function of the instruction.
    """

    name: str
    emit: Callable[..., bool | None]
    cost: str | Callable[[Instr], str]
    dst: int | Callable[[Instr], int] = 1
    blocking: bool | Callable[[Instr], bool] = False
    """It may have to wait, and so starts a block."""
    waits_untimed: bool = False
    """It may have to wait, but not in a timed run, where it starts no block."""
    limited: bool = False
    """It waits no longer than a time limit says."""
    collective: bool = False
    """All lanes that are together execute it, or none."""
    in_place: bool = False
    """Alone in its block, it uses the registers of its vectors in g.R, by their numbers."""
    starts_block: bool = False
    """It starts a block for another reason than waiting: it looks at registers, which must be back in their places."""
    ends_block: bool = False
    """What follows starts a block: it leaves the block, or delivers registers that what follows must load."""
    owes: bool = False
    """It begins to load registers. They come when one of them is read, or at what `settles`."""
    settles: bool = False
    """It waits for all that is owed."""
    tensor_results: bool = False
    """The registers that it writes hold what a tensor core has computed, which in a timed run does not compute."""
    leaves_out: bool = False
    """Its code leaves out, in a timed run, what it would do with such results: see BlockWriter.are_results, made_of."""

    def destinations(self, instr: Instr) -> int:
        return self.dst(instr) if callable(self.dst) else self.dst

    def waits(self, instr: Instr) -> bool:
        return self.blocking(instr) if callable(self.blocking) else self.blocking

    def cost_class(self, instr: Instr) -> str:
        return self.cost(instr) if callable(self.cost) else self.cost


def op(*names: str, cost: str | Callable[[Instr], str], **properties):
    """Register a function as the emitter of the opcodes that begin with `names`; the rest as in Handler."""

    def register(function):
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = Handler(name, function, cost, **properties)
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
        """Remove one of the names; returns whether one was present."""
        for name in names:
            if name in self.left:
                self.left.remove(name)
                return True
        return False

    def one_of(self, *names: str, default=_REQUIRED):
        """Remove and return the name that is present, else the default. Raises Unsupported where there is none."""
        for name in names:
            if name in self.left:
                self.left.remove(name)
                return name
        if default is _REQUIRED:
            raise Unsupported("no modifier out of ." + ", .".join(names))
        return default

    def type(self) -> str:
        """Remove and return the last type suffix. Raises Unsupported where there is none."""
        for name in reversed(self.left):
            if name in TYPE_BITS:
                self.left.reverse()
                self.left.remove(name)
                self.left.reverse()
                return name
        raise Unsupported("no type suffix")

    def drop(self, *names: str) -> None:
        """Remove all of the names that are present: modifiers that change nothing here."""
        self.left = [name for name in self.left if name not in names]

    def done(self) -> None:
        """Raise Unsupported unless all modifiers have been taken."""
        if self.left:
            raise Unsupported("modifier ." + ".".join(self.left))


def width(kind: str) -> int:
    return TYPE_BITS[kind]


def is_signed(kind: str) -> bool:
    return kind[0] == "s"


def is_float(kind: str) -> bool:
    return kind[0] == "f" or kind.startswith("bf")


def plain(module: str, text: str, name: str, cost: str | Callable[[Instr], str]) -> None:
    """Register an opcode of a module whose result is an expression of its operands {0}, {1}, .., all of the type of
    its suffix, {2:32}: of 32 bits; {bits}, {sign}: of that type; {ones}: with all bits set."""
    own = [not bits for bits in dict(re.findall(r"{(\d):?(\d*)}", text)).values()]
    text = text.replace(":32}", "}")

    def emit(w, i, m):
        kind = m.type()
        bits, (destination, *sources) = width(kind), i.operands
        if len(sources) != len(own):
            raise ValueError(f"{len(sources)} operands")
        named = {"bits": bits, "sign": is_signed(kind), "ones": True if bits == 1 else (1 << bits) - 1}
        values = [w.read(o, bits if as_said else 32) for o, as_said in zip(sources, own)]
        w.write(destination, text.format(*values, **named))

    emit.__module__ = module
    op(name, cost=cost)(emit)


def flat(operand) -> tuple:
    """The items of a vector operand, or the operand alone."""
    return operand.items if isinstance(operand, Vec) else (operand,)


def pair(operand) -> tuple:
    """(d, p) of `d|p`; (d, None) of `d`."""
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)
