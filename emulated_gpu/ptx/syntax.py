"""What PTX text is made of, once it is parsed: operands, instructions, kernels, modules (PTX ISA, sections 4 and 5)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from ..errors import Unsupported
from .function_names import readable

TYPE_BITS = {
    "pred": 1,
    **{f"{k}{n}": n for k in "bsu" for n in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "bf16": 16,
    "f16x2": 32,
    "bf16x2": 32,
    "u16x2": 32,
    "s16x2": 32,
    "f32": 32,
    "f64": 64,
}


@dataclass(frozen=True, slots=True)
class Reg:
    index: int
    name: str
    bits: int  # 1 for predicates, 16 for 8-bit ones


@dataclass(frozen=True, slots=True)
class Imm:
    """A literal. `value` is a Python int; floats are kept as their bits with `float_bits` 32 or 64."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A predefined register such as %tid.x, without its percent sign."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, parameter or function."""

    name: str


@dataclass(frozen=True, slots=True)
class Target:
    """A branch target: index of an instruction."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Vec:
    items: tuple


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`: two destinations."""

    first: object
    second: object


@dataclass(frozen=True, slots=True)
class Mem:
    """`[base + offset, extra...]`; base is a Reg, Symbol or Imm, extra holds tensor coordinates and the like."""

    base: object
    offset: int
    extra: tuple = ()


class Sink:
    """`_`: a result that nobody wants."""

    def __repr__(self):
        return "_"


SINK = Sink()


@dataclass(slots=True)
class Instr:
    op: str
    operands: tuple
    guard: Reg | None
    negated: bool
    line: int
    text: str
    loc: str = ""

    def shown(self) -> str:
        """The instruction's text for a report, with only the ends of long lists of registers."""
        return re.sub(r"\{([^{},]+),([^{}]{40,}),([^{},]+)\}", r"{\1, ..,\3}", self.text)

    @property
    def parts(self) -> list[str]:
        return self.op.split(".")


@dataclass(slots=True)
class Param:
    name: str
    size: int
    align: int
    offset: int


@dataclass(slots=True)
class Variable:
    name: str
    space: str  # shared, global, const, local
    size: int  # bytes; 0 for an extern array
    align: int
    init: bytes | None = None
    addresses: tuple[tuple[int, str, int], ...] = ()
    """What of it is to become an address: its byte there, whose, and how many bytes behind that one's first."""
    element: int = 1
    """Bytes of an array's element."""


@dataclass
class Kernel:
    """An entry, or a device function: then results and formals are the Regs and Symbols that a call passes through."""

    name: str
    params: list[Param]
    instrs: list[Instr] = field(default_factory=list)
    registers: list[Reg] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    branch_tables: dict[str, list[int]] = field(default_factory=dict)
    results: tuple = ()
    formals: tuple = ()
    function: str = ""  # what it is called in the source, if CuTe DSL has added the types of all arguments to that
    source: str = ""  # the text of its module

    @property
    def title(self) -> str:
        """The kernel's name for a report."""
        return self.function or readable(self.name)

    @property
    def param_bytes(self) -> int:
        return max((p.offset + p.size for p in self.params), default=0)


@dataclass
class Module:
    kernels: dict[str, Kernel]
    functions: dict[str, Kernel]
    variables: dict[str, Variable]
    target: str
    version: str
    pointers: dict[str, int] = field(default_factory=dict)
    """Addresses of functions."""


def leaves(operand):
    """Registers, literals, symbols and the like of an operand, in order: what vectors, pairs and addresses hold."""
    match operand:
        case Vec():
            inside = operand.items
        case Pair():
            inside = operand.first, operand.second
        case Mem():
            inside = operand.base, *operand.extra
        case _:
            yield operand
            return
    for o in inside:
        yield from leaves(o)


def rewritten(operand, leaf):
    """The operand with leaf(x) in place of each of its leaves x."""
    match operand:
        case Vec():
            return Vec(tuple(rewritten(o, leaf) for o in operand.items))
        case Pair():
            return Pair(rewritten(operand.first, leaf), rewritten(operand.second, leaf))
        case Mem():
            extra = tuple(rewritten(o, leaf) for o in operand.extra)
            return Mem(rewritten(operand.base, leaf), operand.offset, extra)
    return leaf(operand)


def float_immediate(imm: Imm, bits: int) -> int:
    """Bits of a literal used as a `bits`-wide float: 0f and 0d forms convert, as PTX 4.5.2 has it."""
    if imm.float_bits == bits or not imm.float_bits:
        return imm.value
    if bits not in (32, 64):
        raise Unsupported(f"floating-point literal as an operand of {bits} bits")
    if imm.float_bits == 64 and bits == 32:
        return struct.unpack("<I", struct.pack("<f", struct.unpack("<d", struct.pack("<Q", imm.value))[0]))[0]
    return struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", imm.value))[0]))[0]
