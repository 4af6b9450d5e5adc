"""Lanes of one warp against each other: what one wrote to shared memory and another touches before they have met.

Lanes of a warp run on their own (PTX ISA 3.1), so a store of one and a load of another need `bar.warp.sync` between, or
something else in which the warp waits for its lanes. From one such meeting to the next is an epoch of the warp
(state/order.py). Of each half word this keeps which lane wrote it last and which one read it, and in which epoch.
What warps do to each other, shadow.py knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from ..errors import Fault
from ..jit.rules import int32, int64, pointer, rule, where

WORD, HALF = 4, 2  # bytes: a word is what memory and shadows tell apart; lanes keep no accesses of single bytes
LANE_BITS, LANE_MASK = 6, 63  # of a key, whose other bits are the epoch
SEVERAL = 32  # the lane of a key of more than one: who has read, or has written by one instruction
EPOCHS = 1 << 32 - LANE_BITS  # then they begin anew
KEYS = 32  # of words in the table that are looked at together: of who wrote either half, of who read it
BOTH = 2  # halves
ASK, ADD, ALONE = range(3)  # how accesses are asked about, or kept: ALONE where no two of them have one place
STRIDE = 64  # from epoch to epoch of a warp: no two warps of a CTA share one, and none is 0, which is nobody's


@rule
def among_lanes(table, n, words, key, keeps, write, half):
    """Whether n lanes, the first of this key, access what another one has written, or store where one has read. table:
    from the first one's first word on; half: that of a single word which they access, or BOTH.

    keeps: instead, keep what they do: their keys in the table, or that of several. What one instruction writes is kept
    as if each lane were ALONE before, so that what is found there of another one is of the same instruction.
    """
    together = min(KEYS, 4 * n * words)
    numbers = np.arange(together).astype(np.uint32)
    writes, own = numbers & 2 == 0, numbers // 4 // words + key
    here = (numbers & 1 == half) | (half == BOTH)
    # Below which distance a key is of another lane that is in the way: of who wrote, of who read
    of_read = where(key & LANE_MASK == SEVERAL, LANE_MASK, SEVERAL - 1)
    bounds = where(write, SEVERAL - 1 + numbers // 2 % 2 * (LANE_MASK - SEVERAL + 1), of_read)
    for k in range(4 * n * words // together):
        at, now = k * together, own + k * (together // 4 // words)
        before = table[at : at + together]
        unlike = (before ^ now) - 1
        if keeps != ASK:
            fresh = where((unlike < LANE_MASK) & (keeps != ALONE), key & ~LANE_MASK | SEVERAL, now)
            table[at : at + together] = where(here & (writes == write), fresh, before)
        elif ((unlike < bounds) & here & (writes | write)).any():
            return True
    return False


@rule
def each_lane(table, offsets, keys, count, size, write, keeps):
    """`among_lanes` of lanes that access `size` bytes at offsets, one after the other: a bit of each."""
    found = 0
    for lane in range(count):
        a = int64(offsets)[lane]
        half = where(size == HALF, a // HALF & 1, BOTH)
        for byte in range(0, size, WORD):
            words = int32(table).at((a + byte) // WORD * 4)
            if among_lanes(words, 1, 1, int64(keys)[lane], keeps, write != 0, half):
                found = found | 1 << lane
    return found


class Lanes:
    """table: uint32 [words, 4], the keys of who wrote either half of a word, then of who read it; 0 is nobody's."""

    __slots__ = ("table",)

    def __init__(self, size: int):
        self.table = np.zeros((-(-size // WORD), 4), np.uint32)

    def of(self, offsets: np.ndarray, size: int, lanes: np.ndarray | int, epoch: int) -> Callable[..., int]:
        """What tells of accesses of `size` bytes at each offset, by a lane each or by SEVERAL: called with whether they
        write, which are in another lane's way, a bit each; or how to keep them instead."""
        at, keys, rule = offsets.astype(np.int64), np.atleast_1d(lanes) + (epoch << LANE_BITS), each_lane.compiled

        def told(write: bool, keeps: int = ASK) -> int:
            return rule(pointer(self.table), pointer(at), pointer(keys), len(at), size, write, keeps)

        return told


class GlobalStores:
    """The last stores of a warp's lanes to global memory, since they have met: who else of them reads there.

    kept: of each the epoch, addresses and lanes, bytes, and what names it.
    """

    MOST = 8
    __slots__ = ("kept",)

    def __init__(self):
        self.kept: deque[tuple[int, np.ndarray, np.ndarray, int, object]] = deque(maxlen=self.MOST)

    def note(self, g, addresses: np.ndarray, size: int, lanes: np.ndarray, who: object, changed) -> None:
        """Lanes are about to store, at an address each. changed: says which get another value, bool [n]."""
        differ = changed()
        if differ.any():
            self.kept.append((g.warp.actor.epoch, addresses[differ], np.asarray(lanes)[differ], size, who))

    def go_on(self, before: int, epoch: int) -> None:
        """What was of one epoch is of another one."""
        for k, kept in enumerate(self.kept):
            if kept[0] == before:
                self.kept[k] = epoch, *kept[1:]

    def look(self, g, addresses: np.ndarray, size: int, lanes: np.ndarray | int) -> None:
        """Lanes, or SEVERAL of one address, have loaded: report what another one of them has stored."""
        epoch = g.warp.actor.epoch
        while self.kept and self.kept[0][0] != epoch:
            self.kept.popleft()
        for _, stored, by, width, who in self.kept:
            meet = (addresses[:, None] < stored + np.uint64(width)) & (stored < addresses[:, None] + np.uint64(size))
            if lanes is not SEVERAL:
                meet &= np.asarray(lanes)[:, None] != by
            if meet.any():
                self.kept.clear()
                region = g.launch.memory.find(int(addresses[meet.any(axis=1).argmax()]), size, False)
                at = int(addresses[meet.any(axis=1).argmax()]) - region.start
                message = f"read of {region.name} at byte {at}, written by another lane of the warp ({who})"
                message += ", with no bar.warp.sync or barrier since, by which lanes wait for each other"
                g.launch.found(Fault("race", message, note="lanes-apart"))
                return
