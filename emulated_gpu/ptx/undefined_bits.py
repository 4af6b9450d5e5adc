"""Which bits come of a register that nothing writes, and whether any of them is used.

Triton's inline assembly takes a fixed number of elements. It is padded with undefined ones, whose results are thrown
away: a register that nobody writes, whose bits then lie in parts of words that nobody looks at.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from .effects import computes_alone
from .isa import lookup
from .isa.registry import Handler, flat, is_signed, width
from .syntax import Imm, Instr, Reg, leaves

BITWISE = {"mov", "and", "or", "xor", "not", "lop3"}
INTEGERS = {"u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"}
OF_HALVES = {"f16x2", "bf16x2", "u16x2", "s16x2"}


def is_used(instrs: Sequence[Instr], unwritten: Reg) -> bool:
    """Whether any bit that comes of a register that nothing writes is stored, decides something or leaves the lane.

    A bit of a result comes of all bits of the operands that may change it, as far as the instruction is known here;
    else all bits of results come of all bits of operands.
    """
    undefined = {unwritten.index: _ones(unwritten.bits)}
    grows = True
    while grows:
        grows = False
        for instr in instrs:
            sources = [o for operand in instr.operands for o in _registers(operand)]
            if instr.guard is not None and undefined.get(instr.guard.index):
                return True
            if not any(undefined.get(o.index) for o in sources):
                continue
            handler = lookup(instr)
            if handler is None or not computes_alone(instr) or "cc" in instr.parts:
                stored = instr.operands[handler.destinations(instr) if handler else 0 :]
                if any(undefined.get(o.index) for operand in stored for o in _registers(operand)):
                    return True
                continue
            for register, bits in _results(instr, handler, undefined):
                bits |= undefined.get(register.index, 0)
                if bits != undefined.get(register.index, 0):
                    undefined[register.index], grows = bits, True
    return False


def _registers(operand) -> list[Reg]:
    return [o for o in leaves(operand) if isinstance(o, Reg)]


def _results(instr: Instr, handler: Handler, undefined: dict[int, int]) -> list[tuple[Reg, int]]:
    """The registers that an instruction writes, and which of their bits are undefined."""
    count = handler.destinations(instr)
    written = [r for o in instr.operands[:count] for r in _registers(o)]
    items = [item for operand in instr.operands[count:] for item in flat(operand)]
    bits = [undefined.get(i.index, 0) if isinstance(i, Reg) else 0 for i in items]
    if instr.parts[0] == "mov" and len(written) + len(items) > 2:  # the parts of a word, or a word of parts
        size = width(instr.parts[-1]) // max(len(written), len(items))
        word = sum((b & _ones(size)) << size * k for k, b in enumerate(bits))
        word = word if len(items) > 1 else bits[0]
        return [(r, word >> size * k & _ones(r.bits)) for k, r in enumerate(written)]
    return [(r, _bits(instr, items, bits, r.bits) & _ones(r.bits)) for r in written]


def _bits(instr: Instr, items: list, bits: list[int], size: int) -> int:
    """Return the undefined bits of a result of `size` bits, given those of its items."""
    name, kinds, last = instr.parts[0], instr.parts[1:], items[-1]
    union = functools.reduce(int.__or__, bits)
    every = _ones(size) if union else 0
    if size == 1:
        return every
    if name in BITWISE:
        masks = [i.value for i in items if isinstance(i, Imm)]
        if masks and name in ("and", "or"):  # a zero or a one decides alone
            return union & (masks[0] if name == "and" else ~masks[0])
        return union
    if name == "shl" and isinstance(last, Imm):
        return bits[0] << min(last.value, size)
    if name == "shr" and isinstance(last, Imm) and kinds[-1][0] != "s":
        return bits[0] >> min(last.value, size)
    if name == "prmt" and isinstance(last, Imm) and kinds == ["b32"]:
        both = bits[0] & _ones(32) | (bits[1] & _ones(32)) << 32
        return sum(_byte(both, last.value >> 4 * k & 15) << 8 * k for k in range(4))
    if name == "cvt" and len(items) == 2:  # the first becomes the upper half
        half = {"f16x2": 16, "bf16x2": 16, "e2m1x2": 4}.get(kinds[-2], 8)
        return (bits[0] and _ones(half) << half) | (bits[1] and _ones(half))
    if name == "cvt" and len(kinds) == 2 and all(k in INTEGERS for k in kinds):
        to, of = map(width, kinds)
        above = every & ~_ones(of) if is_signed(kinds[1]) and bits[0] >> of - 1 & 1 else 0
        return bits[0] & _ones(min(to, of)) | above
    if name not in ("cvt", "mul", "mad") and {*kinds} & OF_HALVES or name in ("mul", "mad") and kinds[-1] in OF_HALVES:
        return sum(_ones(16) << k for k in (0, 16) if union >> k & _ones(16))
    if name in ("add", "sub", "mul", "mad") and kinds[-1] in INTEGERS and "hi" not in kinds:
        return every & -(union & -union)  # carries go up
    return every


def _ones(count: int) -> int:
    return (1 << count) - 1


def _byte(word: int, chosen: int) -> int:
    """The undefined bits of the byte of a word that prmt chooses: of its sign alone with bit 3."""
    byte = word >> 8 * (chosen & 7) & 255
    return byte if chosen < 8 else 255 * (byte >> 7)
