"""What launches touch of global memory, so that programmatic dependent launches can be checked (PTX ISA 9.7.13.13).

A launch with that attribute may begin before its predecessor has ended. Until a thread of it has passed
griddepcontrol.wait, or has synchronised with one that has, what the predecessor writes is unsettled, and what the
predecessor reads must stay. The wait is for the predecessor alone: if that one never waited for its own, the launch
before it may still run too. Prefetches into the L2 change nothing that a program can see and are always allowed.
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault
from .global_memory import GlobalMemory, Region

LINE = 128  # bytes


class Footprint:
    """Lines of memory that a launch reads and writes: bool [2, lines] for each region, reads first."""

    def __init__(self, name: str):
        self.name = name
        self.regions: dict[int, tuple[Region, np.ndarray]] = {}  # the region is kept, so that its id stays its own

    def mark(self, region: Region, lines, write: bool) -> None:
        found = self.regions.get(id(region))
        if found is None:
            found = self.regions[id(region)] = region, np.zeros((2, -(-region.size // LINE)), bool)
        found[1][int(write), lines] = True

    def conflicts(self, region: Region, lines, write: bool) -> str | None:
        """How this launch uses lines that another one wants to read or write, if the two do not go together."""
        found = self.regions.get(id(region))
        if found is None:
            return None
        if found[1][1, lines].any():
            return "writes"
        return "reads" if write and found[1][0, lines].any() else None


class Dependencies:
    """One launch's view of its predecessors. `before`: those that may run until it waits, `after`: even then."""

    def __init__(
        self, name: str, memory: GlobalMemory, predecessor: Dependencies | None, keeps_reads: bool, checks: bool
    ):
        self.own, self.checks = Footprint(name), checks
        self.memory = memory
        self.keeps_reads = keeps_reads  # it lets dependents start early, so that they might overwrite what it reads
        self.before = predecessor.at_start() if predecessor else []
        self.after = predecessor.at_end() if predecessor else []
        self.waited = self.waited_first = False

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
        return self.after if self.waited else self.before

    def note_wait(self, triggered: bool) -> None:
        """A CTA waits, which has or has not let the dependents start before."""
        self.waited = True
        self.waited_first |= not triggered

    def wants(self, group, write: bool) -> bool:
        return self.checks and (write or self.keeps_reads) or bool(self.before if group.warp.depends else self.after)

    def note(self, group, addresses: np.ndarray, size: int, write: bool) -> None:
        """An access of `size` bytes at each address; a fault if one leaves its region."""
        region = self.memory.find(int(addresses[0]), size, write)
        at = addresses.astype(np.int64) - region.start
        if at.min() < 0 or at.max() + size > region.size:  # lanes in several regions
            for address in addresses:
                self.note(group, np.array([address]), size, write)
            return
        lines = at // LINE
        if size > 1:
            last = (at + size - 1) // LINE
            steps = int((last - lines).max())
            if steps:
                lines = np.minimum(lines[:, None] + np.arange(steps + 1), last[:, None]).ravel()
        if write or self.keeps_reads:
            self.own.mark(region, lines, write)
        for other in self.before if group.warp.depends else self.after:
            use = other.conflicts(region, lines, write)
            if use:
                when = "before griddepcontrol.wait" if group.warp.depends else "which has not waited for it"
                access = "write" if write else "read"
                message = f"{access} of {region.name}, which {other.name} {use} and may still run, {when}"
                group.launch.found(Fault("missing-dependency-wait", message))
