"""Exchange between the lanes of a warp: shuffles, votes, matches, reductions (PTX ISA 9.7.9.6, 9.7.13.9-9.7.13.14).

`lanes` are the numbers of the lanes that take part, int64 [n], ascending. Values are registers as in alu: one int, the
same in every lane, or an array [n]; so are results, of one lane as an int.
"""

from __future__ import annotations

import functools

import numpy as np

from ..errors import Fault
from . import alu


def ranges(numbers) -> str:
    """Ascending integers as text, neighbours together: `0-3, 8`."""
    parts: list[list[int]] = []
    for n in map(int, numbers):
        if parts and parts[-1][-1] == n - 1:
            parts[-1][1:] = [n]
        else:
            parts.append([n])
    return ", ".join("-".join(map(str, part)) for part in parts)


@functools.cache
def lane_mask(lanes: bytes) -> int:
    """Bit mask of lane numbers (int64)."""
    return sum(1 << lane for lane in np.frombuffer(lanes, np.int64).tolist())


def as_array(value, n: int, bits: int = 32) -> np.ndarray:
    """A register as an array [n]."""
    return value if alu.is_array(value) else np.full(n, value, alu.U[bits])


def shuffle(lanes: np.ndarray, mode: str, a, b, c):
    """shfl.sync (9.7.9.6): (values, in range)."""
    n = len(lanes)
    if not any(map(alu.is_array, (b, c))) and mode == "idx" and c >> 8 == 0 and c & 31 == 31:
        if not alu.is_array(a):
            return a, True
        at = np.flatnonzero(lanes == b & 31)
        if len(at):
            return int(a[at[0]]), True
    b, c = as_array(b, n).astype(np.int64) & 31, as_array(c, n).astype(np.int64)
    clamp, segment = c & 31, c >> 8 & 31
    top = (lanes & segment) | (clamp & ~segment)
    if mode == "up":
        source = lanes - b
        ok = source >= top
    else:
        source = {"down": lanes + b, "bfly": lanes ^ b, "idx": (lanes & segment) | (b & ~segment)}[mode]
        ok = source <= top
    source = np.where(ok, source, lanes)
    position = np.full(32, -1)
    position[lanes] = np.arange(n)
    at = position[source & 31]
    if (at < 0).any():
        raise Fault("divergence", f"{mode} shuffle reads lanes that do not take part")
    values = as_array(a, n)[at]
    return (int(values[0]), bool(ok[0])) if n == 1 else (values, ok)


def _each_mask(operation):
    """Let lanes whose member masks differ carry an operation out apart. members: one mask, or an array [n]."""

    @functools.wraps(operation)
    def apart(lanes: np.ndarray, *values, members=0):
        if not alu.is_array(members) or (members == members[0]).all():
            return operation(lanes, *values)
        parts = []
        for mask in np.unique(members).tolist():
            at = np.flatnonzero(members == mask)
            found = operation(lanes[at], *(v[at] if alu.is_array(v) else v for v in values))
            parts.append((at, found if isinstance(found, tuple) else (found,)))
        results = []
        for k, first in enumerate(parts[0][1]):
            whole = np.zeros(len(lanes), bool if isinstance(first, bool) else np.uint32)
            for at, found in parts:
                whole[at] = found[k]
            results.append(whole)
        return tuple(results) if len(results) > 1 else results[0]

    return apart


@_each_mask
def vote(lanes: np.ndarray, mode: str, p):
    """vote.sync (9.7.13.9) of a predicate."""
    if mode == "ballot":
        return lane_mask(lanes[p].tobytes()) if alu.is_array(p) else lane_mask(lanes.tobytes()) if p else 0
    if not alu.is_array(p):
        return True if mode == "uni" else bool(p)
    if mode == "uni":
        return bool(p.all() or not p.any())
    return bool(p.all() if mode == "all" else p.any())


@_each_mask
def match_any(lanes: np.ndarray, a):
    """match.any.sync (9.7.13.10): for each lane the mask of those that have its value."""
    values = as_array(a, len(lanes), 64).tolist()
    masks: dict[int, int] = {}
    for lane, v in zip(lanes.tolist(), values, strict=True):
        masks[v] = masks.get(v, 0) | 1 << lane
    out = np.array([masks[v] for v in values], np.uint32)
    return int(out[0]) if len(lanes) == 1 else out


@_each_mask
def match_all(lanes: np.ndarray, a):
    """match.all.sync (9.7.13.10): (mask of all lanes if they have one value, else 0; whether they have)."""
    same = len(set(as_array(a, len(lanes), 64).tolist())) == 1
    return (lane_mask(lanes.tobytes()) if same else 0), same


REDUCTIONS = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@_each_mask
def reduce(lanes: np.ndarray, mode: str, a, sign: bool) -> int:
    """redux.sync (9.7.13.12) of 32-bit integers."""
    values = as_array(a, len(lanes))
    return int(REDUCTIONS[mode].reduce(alu.signed(values, 32) if sign else values)) & alu.MASK[32]


@_each_mask
def reduce_float(lanes: np.ndarray, mode: str, a, absolute: bool, nan: bool) -> int:
    """redux.sync of f32: min and max. -0 is less than +0; NaNs count with .NaN, or where there is nothing else."""
    values = as_array(a, len(lanes)) & np.uint32(0x7FFFFFFF if absolute else alu.MASK[32])
    numbers = values[(values & np.uint32(0x7FFFFFFF)) <= np.uint32(alu.INFINITY["f32"])]
    if not len(numbers) or nan and len(numbers) < len(values):
        return alu.NAN["f32"]
    sign = np.uint32(1 << 31)
    keys = np.where(numbers & sign, ~numbers, numbers | sign)  # in the order of the numbers
    key = int(REDUCTIONS[mode].reduce(keys))
    return key ^ (int(sign) if key & int(sign) else alu.MASK[32])


def elect(lanes: np.ndarray, leader: int, members: int):
    """elect.sync (9.7.13.14): (elected lane, this lane is it). It is `leader`, or the first if that is not here."""
    here = lane_mask(lanes.tobytes()) & members
    if not here:
        raise Fault("divergence", "elect.sync without an active member lane")
    elected = leader if here >> leader & 1 else (here & -here).bit_length() - 1
    return elected, True if len(lanes) == 1 else lanes == elected
