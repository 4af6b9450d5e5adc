"""What units may ask of the machine around a group of lanes: its warp, CTA, cluster and launch, and the events to come.

The classes of machine/ have these members and more (tests/emulated_gpu/units/test_units.py holds units to these).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..chip import Chip
from ..errors import Fault
from ..state.barrier import Collective, CountedBarrier, MBarrier, Waitable
from ..state.definedness import Definedness
from ..state.global_memory import GlobalMemory
from ..state.global_shadow import GlobalShadow
from ..state.lanes import GlobalStores
from ..state.order import Actor, Location, Released, Space
from ..state.parameters import Parameters
from ..state.pdl_dependency import Dependencies
from ..state.shared_memory import SharedMemory
from ..state.tensor_memory import TensorMemory
from .pipe import Pipe


class Copies(list):
    """Keeps the copies of a cp.async group; the last of them lands at `land`, in a timed run."""

    land = 0.0


class Engine(Protocol):
    """The events to come: machine/engine.Engine."""

    changes: int
    """A count of stores and of atomics that have changed anything; where it does not grow, who polls, polls in vain."""
    progress: int
    """A count of what other warps could see; a stall during which it does not grow is a hang."""

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call something at a time, in ticks."""


class Launch(Protocol):
    """A grid that runs: machine/launch.Launch."""

    chip: Chip
    """What it runs on, by which tensor cores round."""
    again: bool
    """Whether it has been run before, so that what it prints has been printed."""
    checks: bool
    """Whether to look for faults that do not keep a kernel from going on."""
    memory: GlobalMemory
    """The device's global memory."""
    params: Parameters
    """The kernel's parameters."""
    sampled_clusters: bool
    """Whether only some clusters compute; nothing may look at what the results of the others would be."""
    local_bytes: int
    """The bytes of local memory that a thread has."""
    explicit_cluster: bool
    """Whether the launch or the kernel names a cluster, if only of one CTA."""
    depends: bool
    """Whether griddepcontrol.wait must be passed before memory of the launch before is touched."""
    dependencies: Dependencies
    tracked: Definedness | None
    """What of global memory nobody has written, if that is followed."""
    """The words of global memory that the launch reads and writes, for the checks of dependent launches."""
    shadow: GlobalShadow
    """Who has read and written global memory, for the checks of races."""
    locations: dict[int, Location]
    """By address in global memory: what strong stores and atomics have released there."""
    changed_maps: dict[int, tuple[Any, set[int]]]
    """By address of a tensor map: the instruction that changed it, and the CTAs that have acquired the change."""

    def seed_of(self, index: int) -> int:
        """Return the seed of what nothing has written in CTA `index`."""

    def found(self, fault: Fault) -> None:
        """Report a fault after which the kernel could go on; raises it where nobody collects faults."""

    def take_pending_cluster(self) -> tuple[int, int, int] | None:
        """Take the next cluster off the grid, to start or cancel it; returns its first CTA, or None."""

    def dependency_wait(self, group) -> bool:
        """Return whether the launch before has completed; if not, the group sleeps (griddepcontrol.wait)."""

    def launch_dependents(self, group) -> None:
        """A group has executed griddepcontrol.launch_dependents."""


class Cluster(Protocol):
    """CTAs that run together: machine/cta.Cluster."""

    ctas: list[Cta]
    """The CTAs by rank."""
    barrier: CountedBarrier
    """The barrier of barrier.cluster, counted in threads."""
    live_threads: int
    """How many threads have not exited."""
    space: Space
    """The components of the cluster, for the checks."""
    gone: Released
    """What its threads knew that have exited."""

    def pair(self, rank: int) -> list[Cta]:
        """Return the even and the odd CTA of the pair that this rank is of. Raises Fault("cluster") without a pair."""

    def collective(self, name: str, columns: int, ctas: list[Cta], cta: Cta) -> Collective:
        """Join what these CTAs do together, on behalf of a warp of `cta`."""


class Cta(Protocol):
    """A cooperative thread array: machine/cta.Cta."""

    cluster: Cluster
    """The cluster that the CTA is of."""
    rank: int
    """Its rank in the cluster."""
    ctaid: tuple[int, int, int]
    """Its place in the grid."""
    index: int
    """Its number in the grid, x fastest."""
    warps: list[Warp]
    """Its warps by index."""
    live_threads: int
    """How many threads have not exited."""
    exited: bool
    """Whether all threads have."""
    computes_mma: bool
    """Whether its tensor core computes, in a timed run, and results are stored."""
    symbols: dict[str, int]
    """The addresses of the kernel's variables and parameters."""
    smem: SharedMemory
    """Its shared memory."""
    tmem: TensorMemory
    """Its tensor memory."""
    resources: Waitable
    """What the CTAs of its SM use; it wakes those that wait for columns of tensor memory."""
    pipe: Pipe
    """The queue of tcgen05 operations."""
    accumulating: list
    """The origins of tcgen05 operations in flight that write its tensor memory."""
    travelling: list
    """The origins of arrivals that are under way to its mbarriers."""
    gone: Released
    """What its threads knew that have exited."""
    warpgroups: dict
    """The warpgroups that have issued a wgmma, by number (units/wgmma.Warpgroup)."""

    def barrier(self, offset: int, warp: Warp, asynchronous: bool = False) -> MBarrier:
        """Return the mbarrier at an offset for a warp; asynchronous: for an async proxy operation that it issues."""

    def named_barrier(self, number) -> CountedBarrier:
        """Return barrier 0 to 15 of bar and barrier. Raises Fault("barrier") for another number."""

    def vote(self, barrier: CountedBarrier, mode: str, predicate, group) -> None:
        """Note what a group of lanes brings to a bar.red."""

    def tmem_room(self, columns: int, exclusive: bool = False) -> bool:
        """Return whether this many columns are free, given what all CTAs on this SM hold."""

    def tmem_alloc(self, columns: int, exclusive: bool = False) -> int:
        """Allocate columns, for which there must be room; returns the first."""

    def tmem_dealloc(self, address: int, columns: int) -> None:
        """Free columns that were allocated at an address."""


class Warp(Protocol):
    """The 32 lanes of a warp: machine/warp.Warp."""

    index: int
    """Its number in the CTA."""
    actor: Actor
    """What it has done and waited for, for the checks of shared and tensor memory."""
    live_mask: int
    """The lanes that have not exited, a bit each."""
    groups: list
    """The groups into which its lanes have parted."""
    depends: bool
    """Whether it has still to pass griddepcontrol.wait."""
    cluster_released: Released | None
    """What those hand on who come to the phase of the cluster's barrier in which its lanes last arrived."""
    local: np.ndarray | None
    """Its local memory, uint8 [32, bytes], once it has used some."""
    local_written: np.ndarray  # [32, bytes], once it has local memory and its accesses are checked
    """Which of it has been written, bool [32, bytes]."""
    stores: GlobalStores
    """What its lanes have stored last to global memory."""
    barrier_places: dict[Any, tuple[int, int]]
    """By named barrier: the phase in which its lanes last came there, and the block."""
    cluster_phase: int
    """The phase of the cluster's barrier in which its lanes last arrived."""
    met_cluster: int
    """For how many phases of the cluster's barrier its lanes have waited."""
    remote_arrivals: list[Callable[[], None]]
    """What makes its arrivals at mbarriers of other CTAs, those that are under way, land."""
    bulk: dict
    """The bulk async-groups by lane (units/async_copy.BulkGroups)."""
    copies: list[Copies]
    """The cp.async groups; the last one is open."""
    wgmmas: Any
    """The wgmmas that it has issued and not waited for (units/wgmma.Issued)."""

    def next_at_cluster_barrier(self) -> int:
        """The phase of the cluster's barrier to which its lanes come next."""

    def arrived_at_cluster_barrier(self, phase: int, lanes: int) -> None:
        """Note that lanes, a bit each, have arrived in a phase of the cluster's barrier."""
