"""A timed run: launches one behind the other on a modelled GPU, with launch gaps and programmatic dependent launch.

The launches run the same PTX as functional ones, under the TimingClock. Rules (CUDA programming guide, "Programmatic
dependent launch"; PTX ISA griddepcontrol): a plain launch starts when the one before has completed and its writes have
drained; with the PDL attribute it starts when every CTA of the one before has issued launch_dependents or exited, as
far as there is room beside its CTAs, and griddepcontrol.wait returns when that one has completed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ..chip import chip_of
from ..errors import Hang
from ..machine.engine import Engine
from ..machine.launch import Code, Environment, Geometry, Launch, LaunchOptions, Owner, calm
from ..machine.placement import Placement
from ..state.barrier import Waitable
from ..state.global_memory import GlobalMemory
from .profile import Profile
from .undone import LAUNCHES, NOTHING, ROOM, Undone


@dataclass
class Recorded:
    """A launch to be timed: the arguments of Launch. before: called when it starts. device: of several, whose it is.

    held: regions of memory to be forgotten when it has run. alive: what must not be freed until then.
    """

    code: Code
    geometry: Geometry
    params: bytes
    memory: GlobalMemory
    options: LaunchOptions
    held: list = field(default_factory=list)
    before: Callable[[], None] | None = None
    device: int = 0
    alive: tuple = ()


class Completion(Waitable):
    """The end of a grid, for griddepcontrol.wait."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number

    def __str__(self):
        return f"the completion of launch {self.number}"


class TimedLaunch(Owner):
    """One launch of a run. Times in cycles; None until known."""

    def __init__(self, run: TimedRun, number: int, recorded: Recorded):
        self.run, self.number, self.before_start = run, number, recorded.before
        options = dataclasses.replace(recorded.options, checks=False, number=number)
        around = Environment(run.engine, run.clock, run.placement, owner=self)
        self.launch = Launch(recorded.code, recorded.geometry, recorded.params, recorded.memory, options, around)
        self.triggered: set = set()
        self.completion = Completion(number)
        self.start: float | None = None
        self.trigger: float | None = None  # when every CTA has triggered or exited
        self.end: float | None = None
        self.dirty = 0.0  # bytes of the flush that were still in L2 at the end
        self.read_bytes = 0  # from HBM until the end, by this launch and those before
        self.tensor_busy = 0.0  # cycles for which tensor cores have multiplied until then, all together

    @property
    def interval(self) -> tuple[float, float]:
        """Its start and its end. Raises ValueError while these are not known."""
        if self.start is None or self.end is None:
            raise ValueError(f"launch {self.number} has not ended")
        return self.start, self.end

    @property
    def before(self) -> TimedLaunch | None:
        return self.run.launches[self.number - 1] if self.number else None

    def begin(self):
        if self.before_start is not None:
            self.before_start()
        self.start = self.run.engine.now
        self.run.active.append(self)
        self.run.dispatch()
        following = self.run.following(self)
        if following is not None and self.run.one_launch:
            following.begin()

    def launch_dependents(self, cta):
        if cta not in self.triggered:  # the unit that starts and retires CTAs is told by each
            self.triggered.add(cta)
            self._check_trigger(self.run.clock.schedule_cta(self.run.engine.now))

    def no_room(self, launch):
        """Other launches may still hold the SMs."""

    def cluster_done(self, launch, cluster):
        for cta in cluster.ctas:
            self.triggered.add(cta)
            retired = self.run.clock.schedule_cta(self.run.engine.now)
        self._check_trigger(self.run.engine.now)
        self.run.dispatch()
        if launch.finished:
            profile = self.run.profile
            end = max(retired, self.launch.last_store) + profile.cycles(profile["launch"]["drain_ns"])
            self.run.engine.at(end, self._complete)

    def _check_trigger(self, time: float):
        if self.trigger is None and len(self.triggered) == math.prod(self.launch.grid):
            self.trigger = time
            following = self.run.following(self)
            if following is not None and following.launch.pdl and following.start is None:
                interval = self.run.profile.cycles(self.run.profile["launch"]["interval_ns"])
                self.run.engine.at(time + interval, following.begin)

    def _complete(self):
        run = self.run
        self.end, self.dirty, self.read_bytes = run.engine.now, run.clock.memory.dirty, run.clock.memory.read_bytes
        self.tensor_busy = run.clock.tensor_busy
        run.active.remove(self)
        run.told(run)
        if run.enough is not None and run.enough(run):
            return run.stop()
        self.completion.wake()
        following = run.following(self)
        if following is not None and not following.launch.pdl and following.start is None:
            run.engine.at(self.end + run.profile.cycles(run.profile["launch"]["gap_ns"]), following.begin)

    def dependency_wait(self, group) -> bool:
        if not self.launch.pdl or self.before is None or self.run.one_launch:
            return True
        if self.before.end is None:
            return group.wait_on(self.before.completion)
        profile = self.run.profile
        group.t = max(group.t, self.before.end + profile.cycles(profile["launch"]["pdl_wait_ns"]))
        return True


class TimedRun:
    """Executes recorded launches back to back; `launches` then holds the times of each.

    `enough(run)` is asked at the end of each launch; where it says so, the run stops there and `end` of the later ones
    stays None. computes_mma: whether the tensor cores compute, so that results are right; times are the same. engine:
    one that runs of other devices have, too (node.py). undone: what the model does not charge (undone.py).
    """

    def __init__(
        self, profile: Profile, memory, recorded: list[Recorded], trace=None, enough=None, computes_mma: bool = False,
        engine: Engine | None = None, undone: Undone = NOTHING,
    ):  # fmt: skip
        self.recorded, self.computes_mma = recorded, computes_mma
        self.told: Callable[[TimedRun], None] = lambda run: None  # at the end of each launch
        self.was_cut = False
        self.cut_off: dict[int, float | None] = {}  # launch -> the share of its CTAs that ran until `cut`
        self.profile, self.enough, self.stopped = undone.profile(profile), enough, False
        self.engine = engine or Engine()
        self.clock = undone.clock(self.profile, memory, self.engine, trace, computes_mma)
        self.one_launch = LAUNCHES in undone.what  # all begin at once, the oldest first where there is room
        self.placement = Placement(chip_of(profile.name))
        if ROOM in undone.what:
            self.placement.any_shared()
        self.launches = [TimedLaunch(self, n, r) for n, r in enumerate(recorded)]
        self.active: list[TimedLaunch] = []

    def following(self, launch: TimedLaunch) -> TimedLaunch | None:
        n = launch.number + 1
        return self.launches[n] if n < len(self.launches) else None

    def dispatch(self):
        """Fill free SMs, the oldest launch first."""
        for timed in self.active:
            timed.launch.start_clusters()
            if timed.launch._next is not None:
                return

    def begin(self) -> None:
        """Let the first launch start at time 0."""
        if self.launches:
            self.engine.at(0.0, self.launches[0].begin)

    @property
    def ended(self) -> bool:
        """Whether all launches have."""
        return all(timed.end is not None for timed in self.launches)

    def run(self) -> TimedRun:
        if self.launches:
            self.begin()
            with calm():
                self.engine.run(self._stalled)
        return self

    def stop(self):
        self.engine.clear()
        self.stopped = True

    def cut(self) -> None:
        """Stop now. If no launch has ended, the first one counts as ended, with a share of its CTAs: of those that run
        a half is taken to be done, and None if none has ended."""
        first = self.launches[0]
        if first.end is None and first in self.active:
            launch = first.launch
            done, running = launch.started - len(launch.running), len(launch.running)
            waves = launch.clusters / running
            if running < launch.clusters - done:  # the last one takes as long as the others, however few its CTAs are
                waves = math.ceil(waves)
            self.cut_off[0] = min(1.0, (done / running + 0.5) / waves) if done else None
            first.end, first.read_bytes = self.engine.now, self.clock.memory.read_bytes
            first.tensor_busy = self.clock.tensor_busy
            for group in launch.groups():
                if group.waiting_for is not None:
                    self.clock.trace.wait(group, group.blocked_at, self.engine.now)
                self.clock.trace.warp_life(group, group.warp.started, self.engine.now)
        self.was_cut = True
        self.stop()

    def _stalled(self) -> bool:
        if self.stopped or self.ended:
            return False
        return any([t.launch.stalled() for t in self.active if t.launch.running]) or self._hang()

    def _hang(self):
        raise Hang("\n".join(line for t in self.active for line in t.launch.waiting()))

    def read_mb(self, last: int, count: int = 1) -> float:
        """Says how many 10^6 bytes came from HBM from the end of the launch `count` before `last` to its own."""
        before = self.launches[last - count].read_bytes if last >= count else 0
        return (self.launches[last].read_bytes - before) / 1e6

    def ends_us(self) -> list[float]:
        """Microseconds from the start of the first launch to the end of each that has ended."""
        return [self.profile.us(t.end) for t in self.launches if t.end is not None]
