"""What launches touch of global memory, so that programmatic dependent launches can be checked (PTX ISA 9.7.13.13).

A launch with that attribute may begin before its predecessor has ended. Until a thread of it has passed
griddepcontrol.wait, or has synchronised with one that has, what the predecessor writes is unsettled, and what the
predecessor reads must stay. The wait is for the predecessor alone: if that one never waited for its own, the launch
before it may still run too. Prefetches into the L2 change nothing that a program can see and are always allowed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import Fault
from .global_memory import WORD, GlobalMemory, Region


class Rows(NamedTuple):
    """Words in rows that lie evenly, as those of most boxes of a tensor map: looked at in place, not one by one."""

    first: int
    count: int
    pitch: int
    width: int

    @classmethod
    def of(cls, at: np.ndarray, size: int) -> Rows | None:
        """The words of `size` bytes at each offset, if they are whole ones in ascending rows; else None."""
        pitch = int(at[1] - at[0]) if len(at) > 1 else size
        if pitch < size or (pitch | size | int(at[0])) % WORD or not (at[1:] - at[:-1] == pitch).all():
            return None
        return cls(int(at[0]) // WORD, len(at), pitch // WORD, size // WORD)

    def of_region(self, used: np.ndarray) -> np.ndarray:
        """These of a region's words, bool [count, width], live."""
        return np.ndarray((self.count, self.width), bool, used, self.first, (self.pitch, 1))

    def numbers(self) -> np.ndarray:
        return (self.first + np.arange(self.count)[:, None] * self.pitch + np.arange(self.width)).ravel()


class Footprint:
    """Words of memory that a launch reads, writes and accesses by strong operations: bool [3, words] for each region.

    Regions are found by their addresses, since the arrays that `emulated_gpu.launch` takes are registered for each
    launch anew; each is kept with what it belongs to, so that nothing else comes to lie there, unless it has been
    freed. reads_matter: whether a launch that starts early must not write what this one reads.
    """

    def __init__(self, name: str, reads_matter: bool):
        self.name, self.reads_matter = name, reads_matter
        self.regions: dict[tuple[int, int], tuple[Region, np.ndarray]] = {}
        self.events = 0  # that it had
        self.undefined: dict[int, tuple[Region, np.ndarray]] = {}  # changed by atomics before a write
        self.asked: dict[int, tuple[Region, int, Any]] = {}  # of those, a word that one uses, and which does
        self.signals = False  # it fences for, or tells, the whole system: whoever looks for a flag of it

    def mark(self, region: Region, words, write: bool, strong: bool = False) -> None:
        """words: numbers of words, a slice of them, or Rows, from the one that holds the region's first byte."""
        for row in (int(write), 2)[: 1 + strong]:
            used = self.used(region)[row]
            if type(words) is Rows:
                words.of_region(used)[...] = True
            else:
                used[words] = True

    def used(self, region: Region) -> np.ndarray:
        """What the launch has used of a region so far, to be changed by who notes more."""
        found = self.regions.get((region.start, region.size))
        if found is None:
            used = np.zeros((3, region.words), bool)
            found = self.regions[region.start, region.size] = region, used
        return found[1]

    def conflicts(self, region: Region, words: np.ndarray | Rows, write: bool) -> str | None:
        """How this launch uses words that another one wants to read or write, if the two do not go together."""
        for other, used in self.regions.values():
            if other.freed or other.end <= region.start or region.end <= other.start:
                continue
            there = words
            if other.start != region.start or other.size != region.size:
                there = words.numbers() if type(words) is Rows else words
                there = there + (region.start // WORD - other.start // WORD)
                there = there[(there >= 0) & (there < used.shape[1])]
            for use, number in (("writes", 1), ("reads", 0)) if write and self.reads_matter else (("writes", 1),):
                mine = there.of_region(used[number]) if type(there) is Rows else used[number, there]
                if mine.any():
                    return use
        return None


class Dependencies:
    """One launch's view of its predecessors. `before`: those that may run until it waits, `after`: even then."""

    def __init__(
        self, name: str, memory: GlobalMemory, predecessor: Dependencies | None, keeps_reads: bool, checks: bool,
        notes_reads: bool = False,
    ):  # fmt: skip
        self.own, self.checks = Footprint(name, keeps_reads), checks
        self.memory = memory
        self.keeps_reads = keeps_reads  # it lets dependents start early, so that they might overwrite what it reads
        self.notes_reads = keeps_reads or notes_reads  # or somebody else asks what it has read
        self.before = predecessor.at_start() if predecessor else []
        self.after = predecessor.at_end() if predecessor else []
        self.waiting: set[int] = set()  # CTAs that have waited, by their numbers in the grid
        self.waited_first = False

    @classmethod
    def of_writes(cls, name: str, memory: GlobalMemory, regions: list[Region]) -> Dependencies:
        """A launch that writes whole regions and reads nothing."""
        launch = cls(name, memory, None, False, True)
        for region in regions:
            launch.own.mark(region, slice(None), True)
        return launch

    def at_start(self) -> list[Footprint]:
        """The launches that may still run when a dependent of this one starts."""
        return [self.own, *(self.after if self.waited_first else self.before)]

    def at_end(self) -> list[Footprint]:
        """The launches that may still run when this one has ended."""
        return self.after if self.waiting else self.before

    def note_wait(self, cta: int, triggered: bool) -> None:
        """A CTA waits, which has or has not let the dependents start before."""
        self.waiting.add(cta)
        self.waited_first |= not triggered

    def wants(self, group, write: bool) -> bool:
        return self.checks and (write or self.notes_reads) or bool(self.before if group.warp.depends else self.after)

    def note_atomic(self, address: int, size: int, who: Any) -> None:
        """An atomic is about to change `size` bytes: keep which words nobody has written until then. who: the
        Origin of one that returns what it finds there; else None."""
        region = self.memory.find(address, size, True)
        if not region.fresh:
            return
        among = region.words_of(address, address + size)
        words = np.arange(among.start, among.stop)
        written = self.own.used(region)[1]
        words = words[~written[words]]
        if region.written is not None:
            words = words[~region.written[words]]
        if len(words):
            self.own.undefined.setdefault(id(region), (region, np.zeros(len(written), bool)))[1][words] = True
            if who is not None:
                self.own.asked.setdefault(id(region), (region, int(words[0]), who))

    def note(self, group, addresses: np.ndarray, size: int, write: bool, strong: bool = False) -> None:
        """An access of `size` bytes at each address; a fault if one leaves its region. strong: volatile or atomic."""
        region = self.memory.find(int(addresses[0]), size, write)
        at = addresses.astype(np.int64) - region.start
        if np.minimum.reduce(at) < 0 or np.maximum.reduce(at) + size > region.size:  # lanes in several regions
            for address in addresses:
                self.note(group, np.array([address]), size, write, strong)
            return
        at += region.start - region.origin
        words = Rows.of(at, size)
        if words is None:
            words, last = at // WORD, (at + (size - 1)) // WORD
            if steps := int(np.maximum.reduce(last - words)):
                words = np.minimum(words[:, None] + np.arange(steps + 1), last[:, None]).ravel()
        if write or self.notes_reads:
            self.own.mark(region, words, write, strong)
        for other in self.before if group.warp.depends else self.after:
            use = other.conflicts(region, words, write)
            if use:
                when = "before griddepcontrol.wait" if group.warp.depends else "which has not waited for it"
                access = "write" if write else "read"
                message = f"{access} of {region.name}, which {other.name} {use} and may still run, {when}"
                group.launch.found(Fault("missing-dependency-wait", message))
