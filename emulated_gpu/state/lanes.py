"""Lanes of one warp against each other: what one wrote to shared memory and another touches before they have met.

Lanes of a warp run on their own (PTX ISA 3.1), so a store of one and a load of another need `bar.warp.sync` between, or
something else in which the warp waits for its lanes. From one such meeting to the next is an epoch of the warp
(state/order.py). Of each half word this keeps which lane wrote it last and which one read it, and in which epoch.
What warps do to each other, shadow.py knows.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..errors import Fault

WORD, HALF = 4, 2  # bytes: a word is what memory and shadows tell apart; lanes keep no accesses of single bytes
LANE_BITS, LANE_MASK = 6, 63  # of a key, whose other bits are the epoch
SEVERAL = 32  # the lane of a key of more than one: who has read, or has written by one instruction
EPOCHS = 1 << 32 - LANE_BITS  # then they begin anew
STRIDE = 64  # from epoch to epoch of a warp: no two warps of a CTA share one, and none is 0, which is nobody's


class Lanes:
    """table: uint32 [words, 4], the keys of who wrote either half of a word, then of who read it; 0 is nobody's."""

    __slots__ = ("table", "words", "halves")

    def __init__(self, size: int):
        self.table = np.zeros((-(-size // WORD), 4), np.uint32)
        self.words = self.table[:, :2], self.table[:, 2:]  # writes and reads, by word and by half
        self.halves = self.table.reshape(-1, 1), self.table.reshape(-1, 1)[2:]

    def read(self, offsets: np.ndarray, size: int, lanes: np.ndarray | int, epoch: int) -> np.ndarray | None:
        """Note reads of `size` bytes at each offset, by a lane each, or by SEVERAL.

        Returns which of them read what another lane has written, bool [n], or None if none does.
        """
        (writes, reads), index, keys = self._places(offsets, size, lanes, epoch)
        of_writes, of_reads = _unlike(writes[index], keys), _unlike(reads[index], keys)
        found = None
        if 1 in ((of_writes < LANE_MASK) | (of_reads < LANE_MASK)).tobytes():
            found = _any(of_writes < (LANE_MASK if lanes is SEVERAL else SEVERAL - 1), len(offsets))
            keys = np.where(of_reads < LANE_MASK, np.uint32(epoch << LANE_BITS | SEVERAL), keys)
        self._keep(reads, index, keys, epoch)
        return found

    def write(self, offsets: np.ndarray, size: int, lanes: np.ndarray, epoch: int):
        """Note writes; return which go over what another lane has written, and which over what it has read, or None."""
        (writes, reads), index, keys = self._places(offsets, size, lanes, epoch)
        of_writes, of_reads = _unlike(writes[index], keys), _unlike(reads[index], keys)
        self._keep(writes, index, keys, epoch)
        if 1 not in ((of_writes < LANE_MASK) | (of_reads < LANE_MASK)).tobytes():
            return None
        return _any(of_writes < SEVERAL - 1, len(offsets)), _any(of_reads < LANE_MASK, len(offsets))

    def _places(self, offsets: np.ndarray, size: int, lanes: np.ndarray | int, epoch: int):
        """The arrays of writes and reads, where accesses are kept in them, and their keys, uint32 [places, 1]."""
        at = offsets.astype(np.int64)
        keys = (np.atleast_1d(lanes).astype(np.uint32) + np.uint32(epoch << LANE_BITS))[:, None]
        if size == HALF:
            return self.halves, at >> 2 << 2 | at >> 1 & 1, keys
        if size == WORD:
            return self.words, at >> 2, keys
        count = size // WORD
        return self.words, ((at >> 2)[:, None] + np.arange(count)).ravel(), np.repeat(keys, count, axis=0)

    @staticmethod
    def _keep(table: np.ndarray, index: np.ndarray, keys: np.ndarray, epoch: int) -> None:
        table[index] = keys
        if len(index) > 1:
            others = table[index] != keys  # two of them have one place, where NumPy keeps the last
            if 1 in others.tobytes():
                table[index[others.any(axis=1)]] = epoch << LANE_BITS | SEVERAL


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


def _unlike(kept: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """By how much what is kept differs, less 1: less than LANE_MASK if it is of this epoch and not of this lane."""
    return (kept ^ keys) - np.uint32(1)


def _any(found: np.ndarray, count: int) -> np.ndarray:
    return found.reshape(count, -1).any(axis=1)
