"""Functions of the CUDA runtime that kernels call and that have no PTX: vprintf, __assertfail, malloc and free.

Their parameters are those of the CUDA C++ programming guide ("Formatted output", "Assertion") as nvcc and LLVM pass
them: vprintf gets a format and the address of its arguments, each aligned to its own size; floats come as doubles.
"""

from __future__ import annotations

import re
import struct
import sys

import numpy as np

from ..errors import AssertionFailed, Unsupported
from . import access
from .addresses import active, pick, symbol
from .group import LaneGroup

_LONGEST = 4096  # bytes of a text that somebody forgot to end
_CONVERSION = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?(hh|h|ll|l|z|j|t)?([diuoxXcspfFeEgGaA%])|(%)")


def _words(g: LaneGroup, name: str, size: int):
    """A parameter of the call: a variable of each lane."""
    return access.load(g, "local", symbol(g, name), size, 1, True)[0]


def _number(g: LaneGroup, address: int, size: int, lane: int) -> int:
    """Load the number at a generic address for the lane at a position."""
    return pick(access.load(g, "generic", address, size, 1, True)[0], lane)


def _text(g: LaneGroup, address: int, lane: int) -> str:
    found = bytearray()
    while len(found) < _LONGEST and (byte := _number(g, address + len(found), 1, lane)):
        found.append(byte)
    return found.decode(errors="replace")


def vprintf(g: LaneGroup, result: str | None, names: tuple[str, str], mask) -> None:
    """Print to stdout what each lane has to say, in their order, and return the number of arguments to each."""
    formats, arguments = (_words(g, name, 8) for name in names)
    counts = 0
    for lane in active(g, mask):
        text, counts = _formatted(g, _text(g, pick(formats, lane), lane), pick(arguments, lane), lane)
        if not g.launch.again:
            sys.stdout.write(text)
    sys.stdout.flush()
    if result is not None:
        access.store(g, "local", symbol(g, result), 4, (counts,), mask)


def _formatted(g: LaneGroup, text: str, at: int, lane: int) -> tuple[str, int]:
    """The text with its arguments, which begin at address `at`, and how many there were."""
    out, end, start, count = [], 0, at, 0
    for m in _CONVERSION.finditer(text):
        out.append(text[end : m.start()])
        end = m.end()
        length, kind = m[1], m[2]
        if kind is None:
            raise Unsupported(f"printf of {text[m.start() : m.start() + 8]!r}")
        if kind == "%":
            out.append("%")
            continue
        size = 8 if kind in "spfFeEgGaA" or length in ("l", "ll", "z", "j", "t") else 4
        at = start + -(-(at - start) // size) * size
        bits = _number(g, at, size, lane)
        at, count = at + size, count + 1
        how = m[0].replace(length, "") if length else m[0]
        if kind in "fFeEgGaA":
            value = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
            out.append(value.hex() if kind in "aA" else how % value)
        elif kind == "s":
            out.append(how % _text(g, bits, lane))
        elif kind == "p":
            out.append(f"{bits:#x}")
        elif kind == "c":
            out.append(how % chr(bits & 0xFF))
        else:
            width = {"hh": 8, "h": 16}.get(length, 8 * size)
            bits &= (1 << width) - 1
            out.append(how % (bits - (bits >> (width - 1) << width) if kind in "di" else bits))
    return "".join([*out, text[end:]]), count


def assertion_failed(g: LaneGroup, names: tuple[str, ...], mask) -> None:
    """End the launch with what the assertion says. names: message, file, line, function, size of a character."""
    if not (lanes := active(g, mask)):
        return
    lane = lanes[0]
    message, file, function = (
        _text(g, pick(_words(g, name, 8), lane), lane) for name in (names[0], names[1], names[3])
    )  # fmt: skip
    line = pick(_words(g, names[2], 4), lane)
    raise AssertionFailed("trap", f"assertion failed: {message}: {file}:{line}, {function}")


def malloc(g: LaneGroup, result: str, names: tuple[str, ...], mask) -> None:
    """Give each lane memory of its own from the heap, until it is freed; 0 where there is no room."""
    sizes, found = _words(g, names[0], 8), np.zeros(g.n, np.uint64)
    for lane in active(g, mask):
        found[lane] = g.launch.memory.malloc(pick(sizes, lane))
    access.store(g, "local", symbol(g, result), 8, (found if g.n > 1 else int(found[0]),), mask)


def free(g: LaneGroup, names: tuple[str, ...], mask) -> None:
    """Free the memory of each lane; address 0 frees nothing."""
    addresses = _words(g, names[0], 8)
    for lane in active(g, mask):
        if address := pick(addresses, lane):
            g.launch.memory.free(address)
