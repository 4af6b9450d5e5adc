"""A cooperative thread array and its cluster: what the warps of one block share (PTX ISA 2.2, 2.3)."""

from __future__ import annotations

import functools
import math

import numpy as np

from ..errors import Fault
from ..formats.lanes import lane_mask
from ..state.barrier import Collective, CountedBarrier, MBarrier
from ..state.order import Released, Space
from ..state.shared_memory import SharedMemory
from ..state.tensor_memory import COLUMNS, TensorMemory
from ..units.pipe import Pipe
from .warp import WARPS, Group, Warp


@functools.cache
def first_lanes(count: int) -> np.ndarray:
    """The numbers of this many lanes, int64, which nobody changes."""
    lanes = np.arange(count)
    lanes.flags.writeable = False
    return lanes


class Cluster:
    """CTAs that run together. barrier: barrier.cluster, counted in threads."""

    def __init__(self, launch, first: tuple[int, int, int], sms: list[int]):
        self.launch = launch
        shape = launch.cluster
        self.first = first
        self.computes_mma = launch.clock.computes_mma and (launch.computes_mma is None or launch.computes_mma(first))
        self.space = Space(launch.order, WARPS * math.prod(shape), math.prod(shape), launch.device)
        self.gone = Released()  # what threads knew that have exited: the barrier does not wait for them
        self.barrier = CountedBarrier(f"cluster barrier of the cluster at CTA {first}")
        self.ctas: list[Cta] = []
        for z in range(shape[2]):
            for y in range(shape[1]):
                for x in range(shape[0]):
                    rank = len(self.ctas)
                    self.ctas.append(Cta(self, rank, (first[0] + x, first[1] + y, first[2] + z), sms[rank]))
        self.collectives: list[Collective] = []  # those that somebody has come to and not everybody has left
        self.live_threads = sum(c.threads for c in self.ctas)

    def pair(self, rank: int) -> list[Cta]:
        """The even and the odd CTA of a CTA pair (PTX ISA 9.7.16.5.1)."""
        even = rank & ~1
        if even + 1 >= len(self.ctas):
            raise Fault("cluster", ".cta_group::2 needs a cluster of an even number of CTAs")
        return self.ctas[even : even + 2]

    def collective(self, name: str, columns: int, ctas: list[Cta], cta: Cta) -> Collective:
        """A warp of `cta` joins what these CTAs do together: the first that no warp of its own CTA has joined."""
        for found in self.collectives:
            if found.name == name and found.ctas == ctas and cta not in found.come:
                break
        else:
            found = Collective(name, columns, ctas)
            self.collectives.append(found)
        found.join(cta, columns)
        if found.complete:
            self.collectives.remove(found)
        return found

    def start(self, time: float):
        for cta in self.ctas:
            cta.start(time)

    def part(self) -> None:
        """It has ended: what refers to each other in it forgets so, and is freed without a search for garbage."""
        for cta in self.ctas:
            cta.warps.clear()
        self.ctas.clear()
        self.space.actors.clear()

    def threads_exited(self, warp: Warp, lanes: np.ndarray):
        """The barrier awaits the threads that have not exited (9.7.13.3): these no more, arrived or not."""
        self.live_threads -= len(lanes)
        self.barrier.arrived -= warp.forget_cluster_arrivals(lane_mask(lanes.tobytes()))
        if self.live_threads:
            self.barrier.check(self.live_threads if self.barrier.arrived else None)
        else:
            self.launch.cluster_done(self)


class RegisterPool:
    """Registers of a CTA that setmaxnreg.dec has given back. wanted: by the warp that came last to wait for some."""

    __slots__ = ("free", "wanted", "waiters")

    def __init__(self):
        self.free = self.wanted = 0
        self.waiters: list = []

    def take(self, registers: int) -> None:
        """Take some; with a negative number, give some back, and wake who waits for them."""
        self.free -= registers
        if registers < 0:
            waiters, self.waiters = self.waiters, []
            for group in waiters:
                group.wake()

    def __str__(self):
        return f"{self.wanted} registers of its CTA's pool, which has {self.free}"


class Cta:
    """sm: the multiprocessor it runs on. symbols: addresses of the kernel's variables and parameters."""

    def __init__(self, cluster: Cluster, rank: int, ctaid: tuple[int, int, int], sm: int):
        launch = cluster.launch
        self.cluster, self.launch, self.rank, self.ctaid = cluster, launch, rank, ctaid
        self.device, self.computes_mma = launch.device, cluster.computes_mma
        self.sm, self.resources = sm, launch.placement.sms[sm]
        grid = launch.grid
        self.index = ctaid[0] + grid[0] * (ctaid[1] + grid[1] * ctaid[2])
        self.pipe = Pipe(launch.engine)
        self.accumulating: list = []
        self.warpgroups: dict = {}  # those that have issued a wgmma
        self.exited = False
        # What threads knew that have exited: barriers of all do not wait for them
        self.gone = Released() if math.prod(launch.cluster) > 1 else cluster.gone
        self.travelling: list = []  # arrivals under way to mbarriers here: their origins
        self.triggered = False  # griddepcontrol.launch_dependents
        self.symbols = launch.symbols_of(rank)
        self.register_pool = RegisterPool()
        self.named: dict[int, CountedBarrier] = {}
        self.threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.live_threads = self.threads
        self.warps = [Warp(self, w, min(32, self.threads - 32 * w)) for w in range(-(-self.threads // 32))]

    def start(self, time: float):
        launch = self.launch
        registers = launch.program.initial_registers(launch.schedule.seed)
        for warp in self.warps:
            warp.leader = launch.elected(warp)
            warp.started = time
            group = Group(warp, first_lanes(warp.live_mask.bit_length()), list(registers), 0, None, time)
            launch.engine.at(time + launch.clock.wake(warp, time), group.run)

    @functools.cached_property
    def smem(self) -> SharedMemory:
        """Its shared memory, made when it is first looked at."""
        launch = self.launch
        seed, space = launch.seed_of(self.index), self.cluster.space
        size, room = launch.shared_bytes, launch.shared_room
        return SharedMemory(size, launch.checks, seed, space, launch.found, self.rank, room)

    # -- barriers ----------------------------------------------------------------------------------------------
    def barrier(self, offset: int, warp: Warp, asynchronous: bool = False) -> MBarrier:
        """Return the mbarrier at an offset for a warp; asynchronous: for an async proxy operation that it issues."""
        found = self.smem.barriers.get(offset)
        if found is None:
            raise Fault("mbarrier", f"no initialised mbarrier at shared {offset:#x} of CTA {self.ctaid}")
        if self.launch.checks and (fault := found.check_visible(warp.actor, asynchronous, warp.met_cluster)):
            self.launch.found(fault)
        return found

    def named_barrier(self, number) -> CountedBarrier:
        number = int(number) if not isinstance(number, np.ndarray) else int(number[0])
        if not 0 <= number < 16:
            raise Fault("barrier", f"named barrier {number}: there are 16")
        if number not in self.named:
            self.named[number] = CountedBarrier(f"named barrier {number} of CTA {self.ctaid}")
        return self.named[number]

    def vote(self, barrier: CountedBarrier, mode: str, predicate, group):
        true = int(np.count_nonzero(predicate)) if isinstance(predicate, np.ndarray) else group.n * bool(predicate)
        barrier.votes.append((mode, true, group.n))

    # -- tensor memory -----------------------------------------------------------------------------------------
    @functools.cached_property
    def tmem(self) -> TensorMemory:
        """Its tensor memory, made when it is first looked at: most kernels do not."""
        seed = self.launch.seed_of(self.index) if self.launch.checks else 0
        return TensorMemory(self._found, seed, self.cluster.space, self.launch.chip.exclusive_columns)

    def tmem_room(self, columns: int, exclusive: bool = False) -> bool:
        """Return whether this many columns are free, given what all CTAs on this SM hold. exclusive: by .exclusive, as
        which a CTA has the SM's tensor memory alone [inferred]."""
        held = self.resources.columns
        free = not held if exclusive else held + columns <= COLUMNS
        return free and self.tmem.room(columns, exclusive) is not None

    def tmem_alloc(self, columns: int, exclusive: bool = False) -> int:
        """Allocate columns, for which there must be room; returns the first."""
        base = self.tmem.alloc(columns, exclusive)
        self.resources.columns += COLUMNS if exclusive else columns
        self.launch.tmem_columns = max(self.launch.tmem_columns, sum(self.tmem.allocations.values()))
        return base

    def tmem_dealloc(self, address: int, columns: int):
        self.resources.columns -= COLUMNS if address in self.tmem.exclusive else columns
        self.tmem.dealloc(address, columns)
        self.resources.wake()

    def _found(self, fault: Fault):
        """A tile may be larger than the data: an mma reads stale scale factors for rows that nobody will store."""
        if self.launch.checks and "scale factors" not in fault.message:
            self.launch.found(fault)

    # -- the end -----------------------------------------------------------------------------------------------
    def lanes_exited(self, warp: Warp, lanes: np.ndarray):
        warp.live_mask &= ~lane_mask(lanes.tobytes())
        # who may still learn of what these lanes have done: others here, who asks of its memory, other devices
        others = self.cluster.live_threads > len(lanes) or "smem" in vars(self) or self.launch.order.histories
        if others and self.launch.checks and not warp.live_mask:
            knowledge = warp.actor.released()
            for of in (self, self.cluster):
                of.gone.add(knowledge)
            for barrier in (self.cluster.barrier, *(b for b in self.named.values() if b.everyone and b.arrived)):
                barrier.released.add(knowledge)
        self.live_threads -= len(lanes)
        if not self.live_threads:
            self.exit()
        for barrier in self.named.values():
            if barrier.everyone and barrier.arrived:
                barrier.check(self.live_threads)
        self.cluster.threads_exited(warp, lanes)

    def exit(self):
        """All threads have exited: nothing may be left that needs this CTA's memory."""
        self.exited = True
        if not self.launch.checks:
            return
        smem = vars(self).get("smem")
        for op in (one for entry in smem.in_flight for one in entry.each) if smem else ():
            message = f"CTA {self.ctaid} exits while {op.what} is still under way in its shared memory"
            self.launch.found(Fault("unfinished", message, note=op.note))
        for op in (groups.forgotten() for warp in self.warps for groups in warp.bulk.values()):
            if op is not None:
                message = f"CTA {self.ctaid} exits and no cp.async.bulk.wait_group has waited for {op.what}"
                message += ", which may still read its shared memory"
                self.launch.found(Fault("unfinished", message, note="exit-before-store"))
        for origin in self.travelling:
            message = f"CTA {self.ctaid} exits while the arrival of {origin} at its mbarrier is under way"
            self.launch.found(Fault("unfinished", message, note="exit-before-arrival"))
        knowledge = self.gone.knowledge
        uses = {"arrival": "arrive at its mbarrier", "access": "use its shared memory", "copy": "write there"}
        for (kind, key), (number, note) in smem.visitors.items() if smem else ():
            if knowledge.known(key) < number:
                who, what = self.launch.order.who(number), uses[kind]
                message = f"CTA {self.ctaid} exits while {who} may still {what}: nothing that its warps have waited for"
                self.launch.found(Fault("unfinished", f"{message} comes after that", note=note))
        for origin in self.accumulating:
            message = f"CTA {self.ctaid} exits while {origin} is under way in its tensor memory"
            self.launch.found(Fault("unfinished", message))
        if "tmem" in vars(self):
            self.tmem.check_exit()
