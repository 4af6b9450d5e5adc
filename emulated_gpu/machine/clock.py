"""What launches, warps and units ask of time: the interface of the two clocks.

Times are absolute, in ticks of the engine. schedule.py has the clock of functional runs, model/clock.py that of timed
ones. `group` is always the group of lanes that executes the instruction; `group.t` is its time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class NoTrace:
    """Receives the events of a run and drops them; model/trace.py has the receiver that records them."""

    def duty(self, group, kind: str, together: int = 1) -> None:
        """A warp does this kind of work, or as many neighbours do it together."""

    def completes(self, barrier, source) -> None:
        """Copies ("load"), tensor core commits ("mma") or arrivals of a warp (its index) complete a barrier."""

    def copy(self, group, kind: str, start: float, end: float, nbytes: int) -> None:
        """A TMA copy is under way from leaving the TMA unit to its arrival."""

    def tensor(self, group, cta, start: float, end: float) -> None:
        """The tensor core of a CTA's SM is busy with an mma that `group` issued."""

    def stall(self, group, why: str, cycles: float) -> None:
        """A group waits, before it begins a block, for registers that the block uses."""

    def wait(self, group, start: float, end: float) -> None:
        """A group of lanes slept."""

    def warp_life(self, group, start: float, end: float) -> None:
        """A warp lived from its first to its last instruction."""


class Clock(ABC):
    """computes_mma: whether tensor cores compute."""

    computes_mma: bool
    trace: NoTrace = NoTrace()

    # -- warps -------------------------------------------------------------------------------------------------
    @property
    @abstractmethod
    def quantum(self) -> float:
        """How far a warp may run ahead of the next event."""

    def program(self, program):
        """Return the program that a launch of this one executes, with blocks as the clock wants them."""
        return program

    @abstractmethod
    def costs(self, program) -> list:
        """Return what each block of a program costs, in the terms of `executed`."""

    @abstractmethod
    def executed(self, group, cost) -> float:
        """Return when a group has executed a block that it began at `group.begun`; cost: the block's, of `costs`."""

    def usable(self, group, cost) -> float:
        """Return when a group can begin the block at its place, which may use registers in its `owed`."""
        return group.t

    def parts(self, group) -> None:
        """The lanes of a group part at the end of its block, for which `executed` is not asked."""

    def ticks(self, group) -> float:
        """Return what %clock64 reads on a group's SM."""
        return group.t

    @abstractmethod
    def wake(self, warp, time: float) -> float:
        """Return how many ticks pass before a warp that is woken at `time` runs."""

    @abstractmethod
    def hesitation(self, warp) -> float:
        """Return for how many ticks a warp stops behind an arrival or an atomic: who waited for it may go first."""

    @abstractmethod
    def lingering(self, warp, wrote: bool) -> float:
        """Return for how many ticks a warp stops behind a strong load: what it has seen may be old then. wrote: or
        behind a strong store: others may see that before the next one."""

    def stop(self, group, access) -> float:
        """Return for how many ticks a group stops behind an access by which others may see it, or it them: a
        units/group.Meeting."""
        return 0.0

    @abstractmethod
    def cta_start(self, launch: int, sms: list[int]) -> float:
        """Return the ticks from the decision to start a cluster on these SMs to its first instruction."""

    @abstractmethod
    def after(self, time: float, ns: float) -> float:
        """Return the time that lies `ns` nanoseconds after `time`."""

    # -- asynchronous operations: when they land; map_at: address of the tensor map --------------------------------
    @abstractmethod
    def tma_load(self, group, tm, map_at: int, coords, nbytes: int, ctas, policy: int | None) -> float: ...

    @abstractmethod
    def bulk_load(self, group, address: int, nbytes: int, ctas, policy: int | None) -> float: ...

    def decided(self, when: float) -> float:
        """Return when to ask `overtaken` about a copy that is expected at `when`: at `when` itself for never."""
        return when

    def overtaken(self, when: float) -> float:
        """Return when a copy lands that was expected at `when`, given what has been requested since."""
        raise NotImplementedError

    @abstractmethod
    def shared_copy(self, group, nbytes: int) -> float: ...

    @abstractmethod
    def remote(self, group, nbytes: int = 0) -> float:
        """Return when an arrival, or a store of `nbytes`, reaches another CTA, or cluster launch control answers."""

    @abstractmethod
    def copied(self, group, landed: float) -> float:
        """Return when an mbarrier hears that a thread's cp.async have landed, which they have at `landed`."""

    def fence(self, group, what: str, scope: str = "gpu") -> float:
        """Return until when a warp stops so that its cluster or all see what it did.

        what: a "fence", a "barrier.cluster.arrive", an "mbarrier.arrive" in another CTA, or a "store" with release.
        scope: "sys", or any narrower one that is not the CTA.
        """
        return group.t

    @abstractmethod
    def tma_store(self, group, tm, map_at: int, coords, nbytes: int, reduces: bool = False) -> tuple[float, float]:
        """Return when the source has been read and when the destination has been written; reduces: combined with it."""

    @abstractmethod
    def bulk_store(self, group, address: int, nbytes: int, reduces: bool = False) -> tuple[float, float]: ...

    @abstractmethod
    def mma(self, group, description, pair: bool, a_in_tmem: bool) -> float: ...

    @abstractmethod
    def wgmma(self, group, form) -> float:
        """Return when a wgmma.mma_async is complete that its fourth warp issues now; earlier ones may take longer."""

    @abstractmethod
    def tensor_copy(self, group, pair: bool, nbytes: int) -> float: ...

    @abstractmethod
    def commit(self, group) -> float: ...

    @abstractmethod
    def tmem_load(self, group, registers: int, shape: str) -> bool:
        """Return whether tcgen05.ld reads at once, not only when it is waited for."""

    @abstractmethod
    def tmem_store(self, group, registers: int, shape: str) -> bool:
        """Return whether tcgen05.st writes at once, not only when it is waited for."""

    # -- what has no result that a program could see: nothing, unless the clock predicts ---------------------------
    def tma_prefetch(self, group, tm, map_at: int, coords, nbytes: int) -> None:
        """The TMA unit prefetches a box into L2."""

    def bulk_prefetch(self, group, address: int, nbytes: int) -> None:
        """cp.async.bulk.prefetch brings bytes into L2."""

    def line_prefetch(self, group, addresses) -> None:
        """Lanes of a group execute prefetch.L2."""

    def descriptor_prefetch(self, group, tm, map_at: int) -> None:
        """A group executes prefetch.tensormap."""

    def global_store(self, group, addresses, size: int, row: bool = False) -> None:
        """Lanes of a group store to global memory; row: each begins where the one before it ends."""

    def global_load(self, group, addresses, size: int, strong: bool) -> None:
        """Lanes of a group load from global memory; strong: volatile, relaxed or acquire, which passes the L1."""

    def async_load(self, group, addresses, size: int) -> float:
        """Return when lanes' cp.async from global memory, of `size` bytes each, have landed."""
        return group.t

    def landed(self, group, when: float) -> None:
        """A group waits for cp.async or tcgen05.st of its own, the last of which lands then."""
        group.t = max(group.t, when)

    def atomic(self, group, space: str, addresses, size: int, what: str, kind: str, returns: bool) -> None:
        """Lanes of a group, at an address each, execute an atomic of `size` bytes, which returns what was there, or a
        reduction."""

    def cluster_access(self, group, addresses, size: int, loads: bool) -> None:
        """Lanes load or store `size` bytes each, some in the shared memory of another CTA."""

    def constant_load(self, group, addresses) -> None:
        """Lanes load from constant memory."""

    def mma_sync(self, group, form) -> None:
        """A warp executes an mma.sync."""

    def global_bytes(self, loaded: int, stored: int, copied: int) -> None:
        """Machine code has moved these bytes between global memory and lanes, in any number of accesses, and has begun
        to copy others to shared memory."""

    def parameter_load(self, group, addresses) -> None:
        """Lanes of a group load from the parameters."""

    def shared_access(self, group, addresses, size: int) -> None:
        """Lanes of a group load or store `size` bytes each in shared memory, at addresses of their own or at one."""

    def matrix_load(self, group, addresses, size: int) -> None:
        """A warp's ldmatrix reads rows of `size` bytes at these addresses in shared memory."""

    def tensormap_acquire(self, group) -> None:
        """fence.proxy.tensormap acquires a change."""
