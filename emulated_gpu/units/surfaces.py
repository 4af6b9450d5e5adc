"""Accesses to surfaces: where in global memory the texels lie that coordinates name (PTX ISA 9.7.11).

The first coordinate counts bytes. What is done there is done as to global memory, by units/access.py.
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault
from ..formats import alu
from ..state.images import Surface, object_of
from .addresses import active
from .group import LaneGroup


def texel_addresses(g: LaneGroup, geometry: str, handle, coordinates: tuple, size: int, outside: str, mask) -> tuple:
    """Return the address of `size` bytes of each lane, and which lanes access them: True, or bool [n].

    coordinates: registers of signed integers. outside: what is done there: trap, clamp to the nearest texel, or zero:
    nothing. Raises a Fault for a place outside (trap), or one that is not aligned.
    """
    alike = mask is True and not any(map(alu.is_array, (handle, *coordinates)))
    positions = np.array([0] if alike else active(g, mask), np.int64)
    addresses, acts = np.zeros(g.n, np.uint64), np.zeros(g.n, bool)
    handles = g.lane_array(handle, 64)[positions]
    for number in np.unique(handles).tolist():
        these = positions[handles == np.uint64(number)]
        image = object_of(number, Surface, geometry).image
        where = [g.lane_array(x, 32).astype(np.uint32, copy=False)[these] for x in coordinates]
        index = [x.view(np.int32).astype(np.int64) for x in where]
        if geometry.startswith("a"):
            index = [*index[1:], *[np.zeros_like(index[0])] * (geometry == "a1d"), index[0]]
        if (index[0] % size).any():
            bad = int(index[0][index[0] % size != 0][0])
            raise Fault("misaligned", f"access of {size} bytes at byte {bad} of a row of a surface")
        ends = (image.form.size * image.width - size + 1, image.rows, image.slices)[: len(index)]
        inside = np.logical_and.reduce([(i >= 0) & (i < end) for i, end in zip(index, ends)])
        if outside == "trap" and not inside.all():
            which = int(np.argmin(inside))
            at = ", ".join(str(int(i[which])) for i in index)
            message = f"access of {size} bytes at ({at}), the first in bytes, is outside a surface of {image.shape} "
            raise Fault("out-of-bounds", message + f"texels of {image.form.size} bytes")
        x, *others = (np.clip(i, 0, end - 1) for i, end in zip(index, ends))
        for i, stride in zip(others, (image.pitch, image.pitch * image.rows)):
            x = x + i * stride
        addresses[these] = (image.address + x).astype(np.uint64)
        acts[these] = True if outside == "clamp" else inside
    if alike:
        return int(addresses[0]), True if acts[0] else np.zeros(g.n, bool)
    return addresses, True if acts.all() else acts
