"""Exchange between the lanes of a warp: shuffles, votes, matches, reductions (PTX ISA 9.7.9.6, 9.7.13.9-9.7.13.14).

`lanes` are the numbers of the lanes that take part, int64 [n], ascending. Values are registers as in alu: one int, the
same in every lane, or an array [n]; so are results, of one lane as an int.
"""

from __future__ import annotations

import functools
import itertools
import operator

import numpy as np

from ..errors import Fault
from ..jit.llvm import Value, writer_of
from ..jit.rules import where
from . import alu
from .alu import resize, select


def ranges(numbers) -> str:
    """Ascending integers as text, neighbours together: `0-3, 8`."""
    runs = itertools.groupby(enumerate(map(int, numbers)), lambda pair: pair[1] - pair[0])
    ends = ([n for _, n in run] for _, run in runs)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ends)


@functools.cache
def lane_mask(lanes: bytes) -> int:
    """Bit mask of lane numbers (int64)."""
    return sum(1 << lane for lane in np.frombuffer(lanes, np.int64).tolist())


def as_array(value, n: int, bits: int = 32) -> np.ndarray:
    """A register as an array [n]."""
    return value if alu.is_array(value) else np.full(n, value, alu.U[bits])


def varies(x) -> bool:
    return bool(x.vary) if isinstance(x, Value) else alu.is_array(x)


def truth(p):
    return p if isinstance(p, Value) else bool(p)


def each_lane(lanes: np.ndarray, value):
    """A register as one that each lane has. Machine code goes on with all lanes here; else Python does."""
    if isinstance(value, Value):
        value.code.need_whole_warp()
        return value.code.spread(value)
    return as_array(value, len(lanes), 64)


class Absent(Fault):
    """A shuffle reads lanes that take no part: the values are unpredictable, which is no mistake unless one is used."""

    def __init__(self, mode: str):
        super().__init__("divergence", f"{mode} shuffle takes the value of a lane that does not take part")


def gather(lanes: np.ndarray, mode: str, a, source, followed: bool = False):
    """The values of a that other lanes, by their numbers, have; of lanes that take no part raises Absent, or has any
    where garbage is followed."""
    if (code := writer_of(a, source)) is not None:
        if not isinstance(a, Value):
            return a
        a = each_lane(lanes, a)
        return a[source] if isinstance(source, int) else code.permute(code.cast(a, 32), source)
    position = np.full(32, -1)
    position[lanes] = np.arange(len(lanes))
    at = position[source]
    if (at < 0).any() and not followed:
        raise Absent(mode)
    return as_array(a, len(lanes))[at]


def sources(lanes: np.ndarray, mode: str, b, c):
    """The lanes that shfl.sync reads, and whether these are in range; else a lane reads its own value."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    top = (lanes & segment) | (clamp & (segment ^ 31))
    of = {"up": lanes - b, "down": lanes + b, "bfly": lanes ^ b, "idx": (lanes & segment) | (b & (segment ^ 31))}
    source = of[mode]
    inside = lanes >= top + b if mode == "up" else source <= top
    return where(inside, source, lanes) & 31, inside


def shuffle(lanes: np.ndarray, mode: str, a, b, c, followed: bool = False):
    """shfl.sync (9.7.9.6): (values, in range). followed: see gather."""
    if mode == "idx" and type(b) is int and type(c) is int and c >> 8 == 0 and c & 31 == 31:  # one lane for all
        a = gather(lanes, mode, a, b & 31, followed) if varies(a) else a
        return (resize(a, 32) if isinstance(a, Value) else int(a)), True
    source, inside = sources(lanes, mode, b, c)
    values = gather(lanes, mode, a, source, followed)
    return (int(values[0]), bool(inside[0])) if len(lanes) == 1 else (values, inside)


def _each_mask(operation):
    """Let lanes whose member masks differ carry an operation out apart. members: one mask, or an array [n]."""

    @functools.wraps(operation)
    def apart(lanes: np.ndarray, *values, members=0):
        if not alu.is_array(members) or (members == members[0]).all():
            return operation(lanes, *values)
        whole: list[np.ndarray] = []
        for mask in np.unique(members).tolist():
            at = members == mask
            found = operation(lanes[at], *(v[at] if alu.is_array(v) else v for v in values))
            found = found if isinstance(found, tuple) else (found,)
            whole = whole or [np.zeros(len(lanes), bool if isinstance(v, bool) else np.uint32) for v in found]
            for each, part in zip(whole, found, strict=True):
                each[at] = part
        return tuple(whole) if len(whole) > 1 else whole[0]

    return apart


def ballot(lanes: np.ndarray, p):
    """The lanes in which a predicate holds, a bit each."""
    if isinstance(p, Value):
        return p.code.lanes_true(each_lane(lanes, p))
    return lane_mask(lanes[p].tobytes()) if alu.is_array(p) else lane_mask(lanes.tobytes()) if p else 0


REDUCTIONS = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@_each_mask
def vote(lanes: np.ndarray, mode: str, p):
    """vote.sync (9.7.13.9) of a predicate. Lanes that are not here do as the first one does."""
    if mode == "ballot":
        return ballot(lanes, p)
    if not varies(p):
        return True if mode == "uni" else p
    every, some = truth(p.all()), truth(p.any())
    return {"all": every, "any": some, "uni": every | (some ^ True)}[mode]


@_each_mask
def match_any(lanes: np.ndarray, a):
    """match.any.sync (9.7.13.10): for each lane the mask of those that have its value."""
    values = each_lane(lanes, a)
    if not varies(a):
        return ballot(lanes, values == values)
    each = [select(values == values[k], 1 << lane, 0, 32) for k, lane in enumerate(lanes.tolist())]
    masks = functools.reduce(operator.or_, each)
    return int(masks[0]) if len(lanes) == 1 else masks


@_each_mask
def match_all(lanes: np.ndarray, a):
    """match.all.sync (9.7.13.10): (mask of all lanes if they have one value, else 0; whether they have)."""
    values = each_lane(lanes, a)
    same = truth((values == values[0]).all())
    return select(same, ballot(lanes, values == values), 0, 32), same


@_each_mask
def reduce(lanes: np.ndarray, mode: str, a, sign: bool):
    """redux.sync (9.7.13.12) of 32-bit integers."""
    ordered = mode in ("min", "max")
    flip = ordered and sign << 31  # the order of signed numbers is that of others, then
    a = resize(a, 32) ^ flip
    if isinstance(a, Value):
        return a.code.across("u" * ordered + mode, each_lane(lanes, a)) ^ flip
    return int(REDUCTIONS[mode].reduce(as_array(a, len(lanes)))) & alu.MASK[32] ^ flip


@_each_mask
def reduce_float(lanes: np.ndarray, mode: str, a, absolute: bool, nan: bool):
    """redux.sync of f32: min and max. -0 is less than +0; NaNs count with .NaN, or where there is nothing else."""
    ones = alu.MASK[32]

    def in_order(bits):  # as two's complement integers; and those as bits
        return bits ^ (bits >> 31) * (ones >> 1)

    size = a & ones >> 1
    beyond = ones if (mode == "max") != nan else ones >> 1  # a NaN that is below all or above them
    keys = in_order(select(size > alu.INFINITY["f32"], beyond, size if absolute else a, 32))
    return alu.canonical(in_order(reduce(lanes, mode, keys, True)), "f32")


def elect(lanes: np.ndarray, leader: int, members: int):
    """elect.sync (9.7.13.14): (elected lane, this lane is it). It is `leader`, or the first if that is not here."""
    here = lane_mask(lanes.tobytes()) & members
    if not here:
        raise Fault("divergence", "elect.sync without an active member lane")
    elected = leader if here >> leader & 1 else (here & -here).bit_length() - 1
    return elected, True if len(lanes) == 1 else lanes == elected
