"""A timed run with things undone: what it would take without bank conflicts, with loads for free, with PDL, ...

What a timed run takes less with one thing undone is the most that mending it can bring, by the model: no rule of thumb,
but the same launches on the same machine, charged otherwise. `Undone` says what; the clock here charges what the model
charges but for that, and a profile's figures are changed for what lies between launches and in how many SMs work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from . import issue
from .clock import TimingClock
from .memory import LINE
from .profile import Profile

CONFLICTS, SCATTERED, LOADS, MMAS, STAGE = "conflicts", "scattered", "loads", "mmas", "stage"
ROOM, DEPENDENT, LAUNCHES, IDLE = "room", "dependent", "launches", "idle"
WAYS = {
    CONFLICTS: "no bank conflicts in shared memory",
    SCATTERED: "lanes' accesses to global memory side by side",
    LOADS: "loads for free",
    MMAS: "MMAs for free",
    STAGE: "one more stage between loads and their use",
    ROOM: "as many CTAs an SM as its threads allow, whatever shared memory they take",
    DEPENDENT: "programmatic dependent launch",
    LAUNCHES: "one launch in place of all",
    IDLE: "all SMs busy all the time",
}
SHARED_BY_SMS = {  # figures of what SMs share: rates, and what takes turns
    "hbm": ("read_tb_s", "write_tb_s", "write_between_reads_tb_s"),
    "l2": ("tb_s", "shared_tb_s", "prefetch_tb_s", "write_tb_s", "link_tb_s", "one_line_requests"),
}
IN_TURN = {"l2": ("write_request_cycles",), "hbm": ("row_ns",)}


@dataclasses.dataclass(frozen=True)
class Undone:
    """what: of WAYS. busy: of IDLE, the share of the time of all SMs for which they have CTAs, while any has."""

    what: frozenset[str] = frozenset()
    busy: float = 1.0

    @classmethod
    def of(cls, what: Iterable[str], busy: float = 1.0) -> Undone:
        """Undo these; `busy` counts if IDLE is among them. Raises ValueError for what is not in WAYS."""
        found = frozenset(what)
        if unknown := found - set(WAYS):
            raise ValueError(f"nothing undoes {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}")
        return cls(found, busy if IDLE in found else 1.0)

    def profile(self, profile: Profile) -> Profile:
        """Return the figures of a machine with this undone.

        DEPENDENT: the next launch has started, and waits, when the one before ends. LAUNCHES: nothing lies between
        launches. IDLE: the work of an SM that has more than its share is done by others at the same time, which is as
        if SMs were faster, and what they share were not: here that is slower, and `shown` shortens the time.
        """
        launch, changed = profile["launch"], {}
        if DEPENDENT in self.what:
            changed["launch.gap_ns"] = launch["pdl_wait_ns"]
        if LAUNCHES in self.what:
            changed |= {"launch.gap_ns": 0.0, "launch.drain_ns": 0.0}
        if self.busy < 1:
            for unit, names in SHARED_BY_SMS.items():
                changed |= {
                    f"{unit}.{name}": profile[unit][name] * self.busy for name in names if name in profile[unit]
                }
            for unit, names in IN_TURN.items():
                changed |= {f"{unit}.{name}": profile[unit][name] / self.busy for name in names}
            fixed = {name: changed.get(f"launch.{name}", value) for name, value in launch.items() if name[-3:] == "_ns"}
            changed |= {f"launch.{name}": value / self.busy for name, value in fixed.items()}
        return profile.with_(changed) if changed else profile

    def shown(self, cycles: float) -> float:
        """Return what a time of a run with this undone stands for."""
        return cycles * self.busy

    def clock(self, *arguments) -> TimingClock:
        """Make the clock of a run; arguments: of TimingClock."""
        return UndoneClock(self.what, *arguments) if self.what else TimingClock(*arguments)


NOTHING = Undone()


class UndoneClock(TimingClock):
    """Charges as the model does, except for what is undone."""

    def __init__(self, what: frozenset[str], *arguments):
        super().__init__(*arguments)
        self.what = what
        # warp -> when it was woken the time before and last, and for how long what SMs share had worked until then
        self.woken: dict[object, tuple[tuple[float, float, float], ...]] = {}
        if LOADS in what:
            self.figures["global_load"] = self.figures["global_load"][0], self.figures["alu"][1]
        if MMAS in what:
            self.figures |= {name: self.figures["alu"] for name in self.figures if name.startswith(issue.MMA)}

    def cta_start(self, launch, sms):
        if LAUNCHES in self.what:
            return super().cta_start(0, sms)
        waits = DEPENDENT in self.what and launch and any(self.sms[i].host != launch for i in sms)
        after = super().cta_start(launch, sms)
        return after - self.p.cycles(self.p["launch"]["first_cta_ns"]) if waits else after

    # -- shared and global memory ------------------------------------------------------------------------------
    def wavefronts_of(self, addresses, size):
        took, least = super().wavefronts_of(addresses, size)
        return (least if CONFLICTS in self.what else took), least

    def global_load(self, group, addresses, size, strong):
        if LOADS in self.what and not strong:
            group.fetched[group.fetching] = group.t
        else:
            super().global_load(group, self._placed(addresses, size), size, strong)

    def global_store(self, group, addresses, size, row=False):
        super().global_store(group, addresses if row else self._placed(addresses, size), size, row)

    def async_load(self, group, addresses, size):
        return group.t if LOADS in self.what else super().async_load(group, self._placed(addresses, size), size)

    def _placed(self, addresses: np.ndarray, size: int) -> np.ndarray:
        return side_by_side(addresses, size) if SCATTERED in self.what and len(addresses) > 1 else addresses

    # -- copies ------------------------------------------------------------------------------------------------
    def wake(self, warp, time):
        if STAGE in self.what:
            memory = self.memory
            served = memory.read_bytes / LINE / memory.channels * memory.line_cycles
            now = time, memory.moved, served
            self.woken[warp] = self.woken.get(warp, (now, now))[1], now
        return super().wake(warp, time)

    def _arrive(self, group, start, touched, nbytes, ctas, policy, last=0.0):
        if LOADS in self.what:
            return max(start, self.engine.now)
        sooner = self._sooner(group) if STAGE in self.what else 0.0
        landing = super()._arrive(group, start, touched, nbytes, ctas, policy, last)
        if not sooner:
            return landing
        self._served.pop(landing, None)
        return max(landing - sooner, self.engine.now)

    def _sooner(self, group) -> float:
        """Return how much sooner a copy comes that is asked for as soon as the stage before is given back, which is
        what its warp was woken for the time before: by as much as nobody else uses what it goes through."""
        if group.warp not in self.woken:
            return 0.0
        passed, moved, served = (now - before for before, now in zip(*self.woken[group.warp], strict=True))
        return max(0.0, passed - max(moved, served))

    # -- tensor cores ------------------------------------------------------------------------------------------
    def mma(self, group, description, pair, a_in_tmem):
        return group.t if MMAS in self.what else super().mma(group, description, pair, a_in_tmem)

    def multiplies(self, group, now, begin, cycles):
        return (begin, 0.0) if MMAS in self.what else super().multiplies(group, now, begin, cycles)

    def wgmma(self, group, form):
        return group.t if MMAS in self.what else super().wgmma(group, form)


def side_by_side(addresses: np.ndarray, size: int) -> np.ndarray:
    """Return where as many lanes access as much in lines that these access, without a gap.

    Which of these lines they are goes by the first lane's place in its own: whoever reads the next column of a matrix
    reads the next line, so that those who read all columns read all lines, once.
    """
    lines = np.unique(addresses // np.uint64(LINE))
    needed = -(-len(addresses) * size // LINE)
    if needed >= len(lines):
        return addresses
    first = int(addresses[0]) % LINE // size
    chosen = np.sort(lines[(first + np.arange(needed)) % len(lines)])
    at = np.arange(len(addresses), dtype=np.uint64) * np.uint64(size)
    return chosen[(at // np.uint64(LINE)).astype(int)] * np.uint64(LINE) + at % np.uint64(LINE)
