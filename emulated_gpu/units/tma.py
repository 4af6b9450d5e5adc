"""The TMA unit's copies between global memory and dense box images, and its reductions, in tile mode.

PTX ISA 5.5.3 (tiled mode, gather4 and scatter4), 9.7.9.27.1 (cp.async.bulk.tensor, cp.reduce.async.bulk.tensor) and
9.7.9.25.4.2 (cp.reduce.async.bulk). A box image is what the copy puts into shared memory before swizzling: a flat uint8
array of `tm.box_bytes` bytes, dimension 0 innermost, rows without padding; `formats.swizzle` places it.

`view(addr, nbytes, write)` is the caller's access to global memory: it returns those bytes as a live flat uint8 array
or raises Fault. It is asked for the range from the first to the last byte that a box touches inside the tensor, and not
at all for a box that lies outside. Im2col mode is im2col.py's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import Fault, Unsupported
from ..formats import alu, convert
from ..formats.tensormap import PADDED, TensorMap

View = Callable[[int, int, bool], np.ndarray]

# The box inside the tensor: the range of bytes of dimension 0, of box indices of the others, and the first address
Clip = tuple[list[tuple[int, int]], int]

# What an H200 writes for an element outside the tensor when the map asks for NaN, in 16-bit units for every type
OOB_NAN = np.uint16(0x7FF7)

# redOp -> element types (ISA 9.7.9.27.1.3). An H200 stops with an illegal instruction on what the table leaves out
# (f32 min, s64 add and xor). A .b32 or .b64 is a u32, s32 or u64 in the tensor map; f32.ftz is the flushing f32.
REDUCE_TYPES = {
    "add": {"u32", "s32", "u64", "f32", "f32.ftz", "f16", "bf16"},
    "min": {"u32", "s32", "u64", "s64", "f16", "bf16"},
    "max": {"u32", "s32", "u64", "s64", "f16", "bf16"},
    "inc": {"u32"},
    "dec": {"u32"},
    "and": {"u32", "s32", "u64"},
    "or": {"u32", "s32", "u64"},
    "xor": {"u32", "s32", "u64"},
}
# the same for the form without a tensor map (ISA 9.7.9.25.4.2), towards global memory
BULK_REDUCE_TYPES = REDUCE_TYPES | dict.fromkeys(("and", "or", "xor"), {"b32", "b64"})
BULK_REDUCE_TYPES["add"] = {"u32", "s32", "u64", "f32", "f64", "f16", "bf16"}


def load_box(tm: TensorMap, coords: tuple[int, ...], view: View) -> np.ndarray:
    """The image [box_bytes] (uint8) of the box at `coords` (signed elements, innermost first).

    Elements outside the tensor are zero, or the OOB NaN where the tensor map asks for it.
    """
    clip = _clip(tm, coords)
    if clip is None:
        return nothing(tm)
    window = rounded(tm, _window(tm, clip, view, write=False))
    if window.size == tm.box_bytes:
        return window.copy().reshape(-1)
    image = nothing(tm)
    _inside(tm, clip, image)[...] = window
    return image


def rounded(tm: TensorMap, data: np.ndarray) -> np.ndarray:
    """What a load makes of elements, uint8 [.., bytes of dimension 0]: a tf32 map rounds them."""
    if tm.elem in ("tf32", "tf32.ftz"):
        return convert.to_tf32(np.ascontiguousarray(data).view(np.uint32), "rn").view(np.uint8)
    return data


def with_gaps(tm: TensorMap, image: np.ndarray) -> np.ndarray:
    """A box image as it is placed in shared memory: of a padded type, sixteen elements and a gap (zeros), and so on."""
    if tm.elem not in PADDED:
        return image
    data, whole = PADDED[tm.elem]
    placed = np.zeros((image.size // data, whole), np.uint8)
    placed[:, :data] = image.reshape(-1, data)
    return placed.reshape(-1)


def store_box(tm: TensorMap, coords: tuple[int, ...], image: np.ndarray, view: View) -> None:
    """Write the part of the box image that lies inside the tensor.

    Rows end on 16 bytes: an H200 writes a 16-byte chunk as a whole if one of its bytes lies inside the tensor.
    """
    clip = _clip(tm, coords, write=True)
    if clip is not None:
        _window(tm, clip, view, write=True)[...] = _inside(tm, clip, image)


def reduce_box(tm: TensorMap, coords: tuple[int, ...], image: np.ndarray, op: str, view: View) -> None:
    """Combine the part of the box image that lies inside the tensor with it: add, min, max, inc, dec, and, or, xor.

    Rows end on 16 bytes, as in `store_box`.
    """
    if tm.elem not in REDUCE_TYPES.get(op, ()):
        raise Unsupported(f"cp.reduce.async.bulk.tensor.{op} on .{tm.elem}")
    clip = _clip(tm, coords, write=True)
    if clip is not None:
        window = _window(tm, clip, view, write=True)
        window[...] = _combine(op, tm.elem, window, _inside(tm, clip, image))


def bulk_reduce(dst: np.ndarray, src: np.ndarray, op: str, elem: str) -> None:
    """`cp.reduce.async.bulk.<op>.<elem>`: combine `src` into `dst`, both flat uint8 of one size, in place."""
    if elem not in BULK_REDUCE_TYPES.get(op, ()):
        raise Unsupported(f"cp.reduce.async.bulk.{op}.{elem}")
    if dst.size != src.size or dst.size % 16:
        raise Fault("misaligned", f"cp.reduce.async.bulk: sizes {dst.size} and {src.size} must be one multiple of 16")
    # f32 keeps its subnormals: golden case bulk_reduce_add_f32_subnormal, against the ISA's text
    dst[...] = _combine(op, elem, dst, src)


def load_gather4(tm: TensorMap, coords: tuple[int, ...], view: View) -> np.ndarray:
    """`.tile::gather4`: the image [4 * box_bytes] of four rows of a 2-D tensor; coords = (column, row0 .. row3)."""
    return np.concatenate([load_box(tm, at, view) for at in _four_rows(tm, coords)])


def store_scatter4(tm: TensorMap, coords: tuple[int, ...], image: np.ndarray, view: View) -> None:
    """`.tile::scatter4`: write the image [4 * box_bytes] to four rows of a 2-D tensor; coords as in `load_gather4`."""
    for at, row in zip(_four_rows(tm, coords), image.reshape(4, -1)):
        store_box(tm, at, row, view)


def inside(tm: TensorMap, coords: tuple[int, ...]) -> bool:
    """Whether the whole box of a store lies inside the tensor."""
    clip = _clip(tm, coords, True)
    return clip is not None and clip[0] == [(0, tm.row_bytes), *((0, n) for n in tm.extent[1:])]


def row_addresses(tm: TensorMap, coords: tuple[int, ...], write: bool = False) -> tuple[np.ndarray, int]:
    """(addresses int64 [rows], bytes of each) of the rows of the box inside the tensor, in no particular order."""
    clip = _clip(tm, coords, write)
    if clip is None:
        return np.empty(0, np.int64), 0
    ((lo, hi), *outer), first = clip
    addresses = np.array([first], np.int64)
    for (start, stop), pitch in zip(outer, tm.pitches):
        addresses = (addresses[:, None] + np.arange(stop - start) * pitch).ravel()
    return addresses, hi - lo


# --- the box inside the tensor ----------------------------------------------------------------------------------------


def _clip(tm: TensorMap, coords: tuple[int, ...], write: bool = False) -> Clip | None:
    if len(coords) != tm.rank:
        raise Fault("tensormap", f"{len(coords)} coordinates for a tensor map of rank {tm.rank}")
    lo, hi = row_range(tm, coords[0], write)
    if write and min(coords) < 0:
        # ISA 9.7.9.27.1.1; an H200 stops with an illegal instruction
        raise Fault("tensormap", f"a tensor store at negative coordinates {coords}")
    if lo >= hi:
        return None
    ranges, address = [(lo, hi)], tm.address + coords[0] * tm.bits // 8 + lo
    for i in range(1, tm.rank):
        at, step = coords[i], tm.steps[i]
        lo = 0 if at >= 0 else -(at // step)  # ceil(-at / step), the first index inside
        hi = min(tm.extent[i], -((at - tm.dims[i]) // step))  # ceil((dim - at) / step), the first index beyond
        if lo >= hi:
            return None
        ranges.append((lo, hi))
        address += (at + lo * step) * tm.strides_bytes[i - 1]
    return ranges, address


def row_range(tm: TensorMap, at: int, write: bool = False) -> tuple[int, int]:
    """The bytes of a row of the box that lie in the tensor, which is empty if the first is not before the second."""
    start = at * tm.bits // 8
    if at * tm.bits % 128:
        # ISA 5.5.3.1; an H200 stops with an illegal instruction
        raise Fault("tensormap", f"a box of .{tm.elem} at coordinate {at} does not start on 16 bytes")
    end = tm.dims[0] * tm.bits // 8 - start
    if write:
        end = -(-end // 16) * 16
    return max(0, -start), min(tm.row_bytes, end)


def _span(tm: TensorMap, ranges: list[tuple[int, int]]) -> int:
    """Bytes from the first to the last byte touched."""
    (lo, hi), *outer = ranges
    return hi - lo + sum((hi - lo - 1) * pitch for (lo, hi), pitch in zip(outer, tm.pitches))


def _window(tm: TensorMap, clip: Clip, view: View, write: bool) -> np.ndarray:
    """The box inside the tensor as a strided uint8 array over global memory [.., dim 1, bytes of dim 0]."""
    ranges, first = clip
    shape = [hi - lo for lo, hi in reversed(ranges)]
    pitches = tm.pitches[::-1]
    if write:
        _require_disjoint(shape, pitches)
    try:
        return np.ndarray(shape, np.uint8, view(first, _span(tm, ranges), write), 0, (*pitches, 1))
    except Fault:
        parts = None if write else _parts(shape, pitches, first, view)
        if parts is None:
            raise
        return parts


def _parts(shape: list[int], pitches: tuple[int, ...], first: int, view: View) -> np.ndarray | None:
    """A window that no single range of global memory holds, from parts that one holds each; None if some is missing.

    A stride may lead from one allocation to another: addresses are all that the TMA unit knows. An H200 copies a box of
    rows of two allocations, mapped as one dimension of two with their distance as its stride.
    """
    *outer, row = shape
    axis = max(range(len(outer)), key=lambda i: (outer[i] > 1) * pitches[i], default=None)
    try:
        span = row + sum((n - 1) * pitch for n, pitch in zip(outer, pitches))
        return np.ndarray(shape, np.uint8, view(first, span, False), 0, (*pitches, 1))
    except Fault:
        if axis is None or outer[axis] == 1:
            return None
    rest = pitches[:axis] + pitches[axis + 1 :]
    parts = [
        _parts(shape[:axis] + shape[axis + 1 :], rest, first + i * pitches[axis], view) for i in range(outer[axis])
    ]
    return None if any(part is None for part in parts) else np.stack(parts, axis)


def _require_disjoint(shape: list[int], pitches: tuple[int, ...]) -> None:
    """Refuse to write a box whose elements share bytes: the order in which the TMA unit writes is not specified."""
    reach = shape[-1]
    for pitch, count in sorted((p, n) for p, n in zip(pitches, shape) if n > 1):
        if pitch < reach:
            raise Unsupported(f"writing a box whose elements overlap in memory: shape {shape}, pitches {pitches}")
        reach += (count - 1) * pitch


def _inside(tm: TensorMap, clip: Clip, image: np.ndarray) -> np.ndarray:
    """The part of a box image that `_window` corresponds to, same shape."""
    return image.reshape(*tm.extent[:0:-1], tm.row_bytes)[tuple(slice(*r) for r in reversed(clip[0]))]


def _four_rows(tm: TensorMap, coords: tuple[int, ...]) -> list[tuple[int, int]]:
    if tm.rank != 2 or tm.box[1] != 1 or len(coords) != 5:
        raise Fault("tensormap", f"gather4 and scatter4 need rank 2, a box of 1 row and 5 coordinates: {tm}, {coords}")
    return [(coords[0], row) for row in coords[1:]]


def nothing(tm: TensorMap) -> np.ndarray:
    """A box image of nothing but elements outside the tensor."""
    return np.full(tm.box_bytes // 2, OOB_NAN).view(np.uint8) if tm.oob_nan else np.zeros(tm.box_bytes, np.uint8)


def _combine(op: str, elem: str, dst: np.ndarray, src: np.ndarray) -> np.ndarray:
    """dst op src elementwise; both uint8 of one shape [.., bytes of dim 0], and so is the result."""
    kind = elem.removesuffix(".ftz")
    a, b = (np.ascontiguousarray(x).view(alu.U[alu.BITS[kind]]) for x in (dst, src))
    with np.errstate(all="ignore"):
        return alu.combine(op, kind, a, b, ftz=elem.endswith(".ftz")).view(np.uint8)
