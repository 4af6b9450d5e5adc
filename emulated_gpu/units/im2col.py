"""The TMA unit's copies in im2col mode: columns of pixels for a convolution (PTX ISA 5.5.4).

A copy starts at a pixel (W, H, D, N) and goes on along W by the element stride. Behind the upper corner of the map's
box it returns to the lower corner and takes the next H, then the next D, then the next N. The instruction's offsets,
the place in the filter, are added to each pixel then; what lies outside of the tensor is zero. Coordinates here are
(C, W, H, D, N, offsets in W, H, D), or fewer for a lower rank.
"""

from __future__ import annotations

import numpy as np

from ..formats.tensormap import Im2colMap
from . import tma


def _pixels(tm: Im2colMap, coords: tuple[int, ...]) -> np.ndarray:
    """Where the pixels of a copy lie, int64 [pixels, rank - 1]: W, H, D, N."""
    spatial = tm.rank - 2
    at, offsets = list(coords[1 : tm.rank]), coords[tm.rank :]
    last = [dim - 1 + corner for dim, corner in zip(tm.dims[1:], tm.upper)]
    found = []
    for _ in range(tm.box[1]):
        found.append(tuple(at))
        for i in range(spatial):
            at[i] += tm.steps[1 + i]
            if at[i] <= last[i]:
                break
            at[i] = tm.lower[i]
        else:
            at[spatial] += tm.steps[-1]
    return np.array(found, np.int64) + (*offsets, 0)


def _inside(tm: Im2colMap, coords: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, int, int]:
    """The pixels inside the tensor: their numbers, the addresses of their first bytes in it, and the range of bytes."""
    (lo, hi), pixels = tma.row_range(tm, coords[0]), _pixels(tm, coords)
    which = np.flatnonzero(((pixels >= 0) & (pixels < tm.dims[1:])).all(1))
    if lo >= hi:
        which = which[:0]
    start = tm.address + coords[0] * tm.bits // 8 + lo
    return which, start + pixels[which] @ np.array(tm.strides_bytes, np.int64), lo, hi


def load(tm: Im2colMap, coords: tuple[int, ...], view: tma.View) -> np.ndarray:
    """The image, uint8 [pixels * bytes of the channels], of the copy at `coords`; view: as of units/tma.py."""
    image = tma.nothing(tm).reshape(tm.box[1], tm.row_bytes)
    which, addresses, lo, hi = _inside(tm, coords)
    if len(which):
        first = int(addresses.min())
        window = view(first, int(addresses.max()) + hi - lo - first, False)
        rows = window[(addresses - first)[:, None] + np.arange(hi - lo)]
        image[which, lo:hi] = tma.rounded(tm, rows)
    return image.reshape(-1)


def row_addresses(tm: Im2colMap, coords: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """(addresses int64, bytes of each) of the pixels inside the tensor."""
    _, addresses, lo, hi = _inside(tm, coords)
    return np.unique(addresses), hi - lo
