"""Tells which recorded calls must do the same: those whose kernels can read the same, but for where tensors lie.

A modelled time is that of the first few of many calls. The others are like them by construction where what the host
gives each, its parameters and the memory that is new with it, is the same up to the addresses of its own tensors, no
kernel can tell time or the number of its launch, and none leaves anything behind for a later one. Where one of these
does not hold, all calls have to be simulated.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from emulated_gpu.arena import Arena

COUNTING = re.compile(r"%(gridid|clock|globaltimer)")  # what differs from one launch to the next
WORD = 8  # bytes of an address
IN_VAIN = 0.1  # share of its instructions by which one launch may differ from another: polling


def pieces(arena: Arena, start: int, size: int):
    """Yields (offset, uint8 copy) of what was ever written in a range; the rest is zero, and reading it would fill
    it."""
    for at, stop in arena.data(start, size):
        yield at - start, arena.view(at, stop - at).copy()


class Given:
    """Holds what the host gives a call: own, new: (address, bytes) of its inputs and of its new memory; addresses:
    those that it is given beside the parameters of its launches."""

    def __init__(
        self, arena: Arena, queue: list, own: list[tuple[int, int]], new: list[tuple[int, int]],
        addresses: Sequence[int] = (),
    ):  # fmt: skip
        self.ranges = [*own, *new]
        self.params = [np.frombuffer(q.params, np.uint8) for q in queue]
        self.symbols = [np.array([q.symbols[name] for name in sorted(q.symbols)], np.uint64) for q in queue]
        self.symbols.append(np.array(addresses, np.uint64))
        self.parts = []
        for number, (start, size) in enumerate(new):
            self.parts += [((number, size, offset, len(data)), data) for offset, data in pieces(arena, start, size)]

    def same(self, other: "Given", read: list[set[tuple[int, int]]]) -> bool:
        """Tells whether the other's is the same, with its tensors in place of these.

        read: of the parameters of each launch what its kernel reads; half of a tensor map is whatever was on the stack.
        """
        if [size for _, size in self.ranges] != [size for _, size in other.ranges]:
            return False
        if [where for where, _ in self.parts] != [where for where, _ in other.parts]:
            return False
        pairs = [*zip(self.ranges, other.ranges)]
        params = [(only(a, some), only(b, some)) for a, b, some in zip(self.params, other.params, read, strict=True)]
        params += [(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(self.symbols, other.symbols, strict=True)]
        parts = [(mine, theirs) for (_, mine), (_, theirs) in zip(self.parts, other.parts)]
        return all(_moved(mine, theirs, pairs) for mine, theirs in params + parts)


def only(params: np.ndarray, read: set[tuple[int, int]]) -> np.ndarray:
    """Copies parameters; bytes that are not read become zeros."""
    kept = np.zeros(len(params), bool)
    for offset, size in read:
        kept[offset : offset + size] = True
    return np.where(kept, params, np.uint8(0))


def _moved(mine: np.ndarray, theirs: np.ndarray, pairs: list) -> bool:
    """Tells whether bytes are the same up to addresses in ranges, of which `pairs` has mine and theirs."""
    end = len(mine) // WORD * WORD
    if len(mine) != len(theirs) or not np.array_equal(mine[end:], theirs[end:]):
        return False
    a, b = (x[:end].view(np.uint64) for x in (mine, theirs))
    alike = a == b
    for (my_start, size), (their_start, _) in pairs:
        offset, their_offset = a - np.uint64(my_start), b - np.uint64(their_start)
        inside, theirs_inside = (x < np.uint64(max(size, 1)) for x in (offset, their_offset))
        moved = inside & theirs_inside & (offset == their_offset)
        alike = np.where(inside | theirs_inside, moved, alike)  # an equal address may be in the other call's tensor
    return bool(alike.all())


def numbered(given: list[Given], queues: list[list]) -> list[int]:
    """Numbers the kinds of calls that must do the same: a call that is not like the one before begins a new kind.

    queues: the launches of each, of which some have run.
    """
    read = [set().union(*(queued.read for queued in launches)) for launches in zip(*queues, strict=True)]
    kinds = [0] * len(given)
    for i in range(1, len(given)):
        kinds[i] = kinds[i - 1] + (not given[i].same(given[i - 1], read))
    return kinds


def alike_instructions(one: Counter[str], other: Counter[str]) -> bool:
    """Tells whether two launches have executed the same instructions, counted by class, but for a few in vain."""
    return all(abs(one[kind] - other[kind]) <= IN_VAIN * max(one[kind], other[kind]) for kind in one | other)


def count_or_tell_time(queue: list) -> bool:
    """Tells whether a kernel of a call can read a timer or the number of its launch."""
    return any(COUNTING.search(text) for text in {queued.text for queued in queue})
