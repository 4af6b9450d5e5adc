"""The link between modelled GPUs: how accesses of one device reach memory of another (timing only, no data).

Measured on two H100s that NVLink joins (silicon/probes/link.py). What one device stores in the memory of another, or
loads from it, passes the port of either; both directions are alike and do not disturb each other. Lines of another
device are kept in that device's L2 and in no other one. A store is seen when it has come, which a release at the scope
of the system does not wait for: such a fence takes as long whatever it follows.
"""

from __future__ import annotations

from .memory import Lines, MemoryModel


class Port:
    """One device's end of the link, in one direction: bytes pass one after the other."""

    def __init__(self, bytes_per_cycle: float):
        self.bytes_per_cycle, self.free = bytes_per_cycle, 0.0

    def carry(self, now: float, time: float, nbytes: float) -> float:
        """Return when bytes have passed that come at `time`, known `now`; till then they keep nobody waiting."""
        busy = nbytes / self.bytes_per_cycle
        self.free = max(self.free, now) + busy
        return max(self.free, time + busy)


class Ends:
    """Both ports of a device."""

    def __init__(self, figures: dict):
        self.out, self.into = Port(figures["bytes_per_cycle"]), Port(figures["bytes_per_cycle"])


class Peer:
    """The memory of another device, as the SMs of one reach it. figures: [link] of the profile."""

    def __init__(self, figures: dict, mine: Ends, theirs: Ends, memory: MemoryModel):
        self.figures, self.mine, self.theirs, self.memory = figures, mine, theirs, memory

    def read(self, time: float, lines: Lines, nbytes: float) -> tuple[float, float]:
        """Lines are requested at `time`: when the first and the last have come to this device."""
        way = self.figures["read_cycles"] / 2
        first, done = self.memory.read(time + way, lines, nbytes, None)
        passed = self._carry(self.theirs.out, self.mine.into, done, nbytes) + way
        return min(first + way, passed), passed

    def write(self, time: float, lines: Lines, nbytes: float) -> tuple[float, float]:
        """A store leaves an SM at `time`: when the link has taken it, and when it is acknowledged."""
        taken = self._carry(self.mine.out, self.theirs.into, time, nbytes)
        come = taken + self.figures["write_cycles"]
        self.memory.write(come, lines, nbytes, posted=True)
        return taken, come + self.figures["read_cycles"] / 2

    def _carry(self, out: Port, into: Port, time: float, nbytes: float) -> float:
        now = self.memory.engine.now
        return max(out.carry(now, time, nbytes), into.carry(now, time, nbytes))


def connect(figures: dict, memories: list[MemoryModel]) -> None:
    """Let each device reach the memory of all others."""
    ends = [Ends(figures) for _ in memories]
    for i, memory in enumerate(memories):
        memory.peers = {
            k: Peer(figures, ends[i], ends[k], other) for k, other in enumerate(memories) if other is not memory
        }
