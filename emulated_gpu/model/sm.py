"""One multiprocessor of a timed run: when each of its units is free again.

Warp schedulers, the way out of shared memory and the constant cache are here; the TMA unit and the tensor core are in
clock.py. Times are SM cycles.
"""

from __future__ import annotations

SCHEDULERS = 4
QUARTERS = 4  # of the lanes of tensor memory, each for the warps of one scheduler
# How many times as long as their bytes would forms of tcgen05.ld and .st take the path of a quarter (SD of
# the profile b200: 32x32b.xN N/2 cycles, 16x64b N, 16x128b 2 N, 16x256b 8 N)
TMEM_TURNS = {"16x64b": 2, "16x128b": 2, "16x256b": 4}


class SharedPort:
    """Shared memory's way out: a wavefront of 128 bytes a cycle, for a warp's access or what the TMA unit stores.

    The operand reads of the tensor core go first; warps come next. What the TMA unit writes has a way of its own.
    Measured on an H200 (silicon/probes/operands.py), beside wgmmas that read 128, 107, 80 bytes a cycle: warps' stores
    get 7, 25, 49 bytes of the 125 that they have alone, an ld.shared takes 268 (until a group of wgmmas ends), 48, 43
    cycles for 29, and a bulk store of 8 KiB 2330, 1560, 705 for 286: it reads 32 bytes in a turn. The wgmmas lose 3 %
    or less; they and copies into shared memory lose nothing to each other. mbarriers do not wait here.
    """

    __slots__ = ("free", "operands")

    def __init__(self):
        self.free = 0.0  # when the warps' accesses have passed
        self.operands: list[tuple[float, float, float]] = []  # from, until, share left to others; in order

    def read_operands(self, now: float, start: float, end: float, share: float):
        """The tensor core uses a share of the port from start to end, later than all before."""
        while self.operands and self.operands[0][1] < now:
            del self.operands[0]
        left = max(1 - share, 0.0)
        if self.operands and self.operands[-1][1] >= start and self.operands[-1][2] == left:
            self.operands[-1] = self.operands[-1][0], end, left
        else:
            self.operands.append((start, end, left))

    def turns(self, now: float, wavefronts: float) -> float:
        """Return when this many turns are over of those that the tensor core leaves from `now` on."""
        for start, end, left in self.operands:
            if end <= now:
                continue
            if wavefronts <= start - now:
                break
            wavefronts -= max(0.0, start - now)
            now = max(now, start)
            room = (end - now) * left
            if wavefronts <= room:
                return now + wavefronts / left
            wavefronts -= room
            now = end
        return now + wavefronts

    def access(self, time: float, wavefronts: float) -> float:
        """Return when the last wavefront has passed of a warp's access in a block that it began at `time`."""
        self.free = self.turns(max(time, self.free), wavefronts)
        return self.free


class Sm:
    """Keeps the times at which each unit of one multiprocessor is free again, and the contents of its caches."""

    __slots__ = (
        "decode", "tma", "ingest", "egress", "tensor", "copy", "quarters", "prefetches", "asked", "copied",
        "far", "seen", "forgotten", "launch", "host", "schedulers", "shared", "constants", "constant_memory",
        "constant_since", "half", "code", "drained", "come", "stored_since_fence",
    )  # fmt: skip

    def __init__(self):
        self.decode = self.tma = self.ingest = self.egress = self.tensor = self.copy = self.prefetches = 0.0
        self.asked = self.copied = 0.0  # when what cp.async asks for has been asked for, and has come
        self.far = 0.0  # when what goes to other CTAs of the cluster has left
        self.quarters = [0.0] * QUARTERS  # of tensor memory's lanes: when each has moved what warps load and store
        self.seen: dict = {}  # tensormap -> when its descriptor cache has it, least recent first
        self.forgotten: set = set()  # tensor maps that have left the nearest cache
        self.launch = -1  # which one last used tensor maps here
        self.host = -1  # which one last started a CTA here
        self.half = 0  # of the L2, that serves it
        self.drained = self.come = 0.0  # when all that threads have stored has left, and all that was loaded has come
        self.stored_since_fence = False
        self.schedulers = [0.0] * SCHEDULERS  # when each has issued what it was given
        self.shared = SharedPort()
        self.constants: set[int] = set()  # lines of the launch's parameters
        self.constant_memory: set[int] = set()  # lines of .const
        self.constant_since: tuple = ()  # which group, in the block that it began when, asked for the latest one
        self.code: set = set()  # blocks of programs that have been executed here

    def new_launch(self):
        """The first CTA of a launch starts here."""
        self.constants.clear()
        self.constant_memory.clear()
        self.stored_since_fence = False

    def remember(self, key, ready: float, room: float):
        self.seen[key] = ready
        self.forgotten.discard(key)
        if len(self.seen) > room:
            oldest = next(iter(self.seen))
            del self.seen[oldest]
            self.forgotten.add(oldest)
