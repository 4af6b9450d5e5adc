"""What lies in global memory that nobody has written, and what is made of it: by the word, while a launch is followed.

A launch that has read such words is run once more, in Python alone, and each register that holds what comes of them is
followed (machine/garbage.py). Stores carry it on; where it decides a branch or an address, it is found. So nothing
else is slower, and what a register's value is worth need not be known to machine code.
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault
from .global_memory import WORD, GlobalMemory, Region

MOST_EVENTS = 10_000  # of a launch that is followed: some seconds
MOST_FOLLOWED, A_LAUNCH = 50_000, 100  # events of all that are followed in a session; for how many one counts at least
MOST_BYTES = 64 << 20  # that a launch has written which is followed


class Definedness:
    """undefined: of regions, by their ids, which words hold nothing that anybody has written, bool; of others none do.

    what: names the launch that is followed; faults: that of using such a word, by region.
    """

    def __init__(self, memory: GlobalMemory, what: str, nobody: str):
        self.memory, self.what, self.nobody = memory, what, nobody
        self.undefined: dict[int, tuple[Region, np.ndarray]] = {}
        self.faults: dict[int, Fault] = {}
        self.spoilt: set[int] = set()  # regions, by their ids, that got what is undefined
        for region in memory.regions:
            if region.fresh:
                self.undefined[id(region)] = region, region.missing()

    def read(self, addresses: np.ndarray, size: int) -> tuple[np.ndarray, Fault] | None:
        """Which elements of `size` bytes at addresses, uint64 [n], are undefined, bool [n], and the fault of using
        one; None for none."""
        found = np.zeros(len(addresses), bool)
        fault = None
        for region, here, words in self._located(addresses, size):
            known = self.undefined.get(id(region))
            if known is None:
                continue
            bad = known[1][words].any(axis=1)
            found[here] |= bad
            if bad.any() and fault is None:
                fault = self.faults.get(id(region))
                if fault is None:
                    at = int(addresses[here][bad][0]) - region.start
                    message = f"{self.what} reads {region.name} at byte {at}, which {region.made_of or self.nobody}"
                    fault = self.faults[id(region)] = Fault("uninitialized-read", message)
        return None if fault is None else (found, fault)

    def write(self, addresses: np.ndarray, size: int, undefined: np.ndarray | None = None) -> None:
        """Elements are written at addresses, uint64 [n]. undefined: which are, bool [n]; None: none."""
        for region, here, words in self._located(addresses, size):
            if id(region) not in self.undefined:
                if undefined is None or not undefined[here].any():
                    continue
                self.undefined[id(region)] = region, np.zeros(region.words, bool)
            marks = self.undefined[id(region)][1]
            marks[words[...]] = False
            if undefined is not None and undefined[here].any():
                marks[words[undefined[here]]] = True
                self.spoilt.add(id(region))

    def _located(self, addresses: np.ndarray, size: int):
        """Of each region: which addresses lie there, and numbers of their words, int64 [here, words of an element]."""
        left = np.ones(len(addresses), bool)
        while left.any():
            region = self.memory.find(int(addresses[left.argmax()]), size, False)
            here = left & (addresses >= np.uint64(region.start)) & (addresses < np.uint64(region.end))
            at = addresses[here].astype(np.int64) - region.origin
            count = int((at + size - 1).max() // WORD - at.min() // WORD + 1) if len(at) == 1 else -(-size // WORD)
            words = np.minimum((at // WORD)[:, None] + np.arange(count), region.words - 1)
            yield region, here, words
            left &= ~here

    def keep(self) -> list[Region]:
        """Let regions have what is known now. Returns those to which something undefined was written."""
        for region, words in self.undefined.values():
            region.fresh, region.written = bool(words.any()), ~words if words.any() else None
            if id(region) in self.spoilt:
                region.made_of = f"{self.what} has made of what nothing had written"
        return [region for region, _ in self.undefined.values() if id(region) in self.spoilt]
