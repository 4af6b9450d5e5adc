"""wmma: a warp loads, multiplies and stores matrices in fragments that are its own business (PTX ISA 9.7.14.4).

The arithmetic is taken to be that of mma.sync of the same types (mma_sync.py), which an H100 was asked about; about
wmma none was.
"""

from __future__ import annotations

import numpy as np

from ..formats.wmma_form import Fragment, WmmaForm
from . import access, mma_sync
from .addresses import pick
from .group import LaneGroup


def load(g: LaneGroup, fragment: Fragment, space: str, address, stride) -> tuple:
    """The registers of a fragment; stride: the leading dimension in elements."""
    g.need_all_lanes("wmma.load")
    size, parts = _pieces(fragment)
    first, registers = np.uint64(pick(address, 0)), []
    for number in range(len(fragment.first)):
        value = 0
        for part in range(parts):
            offsets = fragment.offsets(part, pick(stride, 0))[number] * fragment.type.bits // 8
            (loaded,) = access.load(g, space, first + offsets.astype(np.uint64), size, 1, True)
            wide = g.lane_array(loaded, 32).astype(f"u{fragment.register_bits // 8}")
            value = value | wide << wide.dtype.type(part * fragment.type.bits)
        registers.append(value)
    repeats = fragment.registers // len(registers)
    return tuple(registers * repeats)


def store(g: LaneGroup, fragment: Fragment, space: str, address, values: tuple, stride) -> None:
    """Store the registers of D."""
    g.need_all_lanes("wmma.store")
    size, parts = _pieces(fragment)
    first = np.uint64(pick(address, 0))
    for number, value in enumerate(values):
        wide = g.lane_array(value, fragment.register_bits)
        for part in range(parts):
            offsets = fragment.offsets(part, pick(stride, 0))[number] * fragment.type.bits // 8
            piece = wide >> wide.dtype.type(part * fragment.type.bits)
            access.store(g, space, first + offsets.astype(np.uint64), size, (piece.astype(f"u{max(2, size)}"),), True)


def multiply(g: LaneGroup, form: WmmaForm, a: tuple, b: tuple, c: tuple) -> tuple:
    """The registers of D = A B + C."""
    g.need_all_lanes("wmma.mma")
    bits = form.a.register_bits
    a, b, c = (np.stack([g.lane_array(v, bits) for v in part]) for part in (a, b, c))
    words = form.d.matrix(c)
    dtype = mma_sync.DTYPES.get(form.d.type, np.int32)
    d = mma_sync.product(form.arithmetic, form.a.matrix(a), form.b.matrix(b), words.view(dtype), g.launch.chip.compute)
    return tuple(form.d.fragment(np.ascontiguousarray(d).view(words.dtype)))


def _pieces(fragment: Fragment) -> tuple[int, int]:
    """How many bytes an access of a lane has, and how many make a register."""
    if fragment.together or fragment.per_register == 1:
        return fragment.register_bits // 8, 1
    return fragment.type.bits // 8, fragment.per_register
