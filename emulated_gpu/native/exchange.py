"""LLVM for what generated code calls of formats/lanes.py: the same names, arguments and bits.

A warp whose lanes are not all here leaves it to Python, but for votes, which every lane may repeat the first one in.
Member masks are the same in all lanes, and are those: Translator.waits has seen to it.
"""

from __future__ import annotations

import numpy as np

from ..jit.llvm import LANES, Value
from .arithmetic import Int
from .warp_code import WarpCode


def shuffle(c: WarpCode, lanes, mode: str, a: Int, b: Int, clamp: Int) -> tuple[Int, Value | bool]:
    if whole_warp_from_one(mode, b, clamp):
        if isinstance(a, int) or not a.vary:
            return a, True
        c.need_whole_warp()
        return c.value(f"extractelement {a}, i32 {b & 31}", a.bits, False), True
    c.need_whole_warp()
    a = c.spread(c.cast(a, 32))
    if isinstance(b, int) and isinstance(clamp, int):
        return _fixed(c, mode, a, b & 31, clamp & 31, clamp >> 8 & 31)
    own = c.lane_numbers()
    b, clamp = c.binary("and", c.cast(b, 32), 31), c.cast(clamp, 32)
    last = c.binary("and", clamp, 31)
    segment = c.binary("and", c.shift("lshr", clamp, 8), 31)
    within, outside = c.binary("and", own, segment), c.binary("xor", segment, -1)
    top = c.binary("or", within, c.binary("and", last, outside))
    if mode == "up":
        source = c.binary("sub", own, b)
        inside = c.compare("sge", source, top)
    else:
        source = {
            "down": lambda: c.binary("add", own, b),
            "bfly": lambda: c.binary("xor", own, b),
            "idx": lambda: c.binary("or", within, c.binary("and", b, outside)),
        }[mode]()
        inside = c.compare("sle", source, top)
    return c.permute(a, c.binary("and", c.choose(inside, source, own), 31)), inside


def whole_warp_from_one(mode: str, b, clamp) -> bool:
    """Whether all lanes read one known lane: the result is one for all."""
    return mode == "idx" and isinstance(b, int) and isinstance(clamp, int) and clamp >> 8 == 0 and clamp & 31 == 31


def _fixed(c: WarpCode, mode: str, a: Value, b: int, clamp: int, segment: int) -> tuple[Value, Value]:
    sources, inside = [], []
    for lane in range(LANES):
        top = lane & segment | clamp & ~segment
        source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": lane & segment | b & ~segment}[mode]
        ok = source >= top if mode == "up" else source <= top
        inside.append(ok)
        sources.append((source if ok else lane) & 31)
    picks = ", ".join(f"i32 {s}" for s in sources)
    moved = c.value(f"shufflevector {a}, {a.type} poison, <{LANES} x i32> <{picks}>", a.bits, True)
    return moved, c.constants(np.array(inside))


def vote(c: WarpCode, lanes, mode: str, p, members=None) -> Value:
    if isinstance(p, bool):
        p = c.constant(p, 1)
    if mode == "ballot":
        c.need_whole_warp()
        return c.lanes_true(p)
    if not p.vary:
        return c.constant(1, 1) if mode == "uni" else p
    bits = c.lanes_true(p)
    none, every = c.compare("eq", bits, 0), c.compare("eq", bits, -1)
    if mode == "uni":
        return c.binary("or", none, every)
    return every if mode == "all" else c.invert(none)


def reduce(c: WarpCode, lanes, mode: str, a: Int, sign: bool, members=None) -> Value:
    c.need_whole_warp()
    a = c.spread(c.cast(a, 32))
    what = ("s" if sign else "u") + mode if mode in ("min", "max") else mode
    return c.across(what, a)
