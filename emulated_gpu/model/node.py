"""A timed run of several devices: what each launches back to back, all of them in one engine, joined by a link."""

from __future__ import annotations

from ..errors import Hang, Unsupported
from ..machine.engine import Engine
from ..machine.launch import calm
from .link import connect
from .profile import Profile
from .run import Recorded, TimedRun


class TimedNode:
    """Executes recorded launches on the devices that recorded them; `runs` then holds the TimedRun of each device.

    All devices begin at once, and each runs its launches one behind the other: what hosts would wait for in between
    takes no time. traces: one a device. See TimedRun for the rest.
    """

    def __init__(self, profile: Profile, memories: list, recorded: list[Recorded], traces=None, computes_mma=False):
        if "link" not in profile:
            raise Unsupported(f"times of several devices: profile {profile.name} has no figures of a link")
        self.engine = Engine()
        self.runs = []
        for device, memory in enumerate(memories):
            mine = [one for one in recorded if one.device == device]
            trace = None if traces is None else traces[device]
            self.runs.append(TimedRun(profile, memory, mine, trace, computes_mma=computes_mma, engine=self.engine))
        connect(profile["link"], [run.clock.memory for run in self.runs])

    def run(self) -> TimedNode:
        for run in self.runs:
            run.begin()
        with calm():
            self.engine.run(self._stalled)
        return self

    def _stalled(self) -> bool:
        active = [timed for run in self.runs for timed in run.active]
        if not active and all(run.ended for run in self.runs):
            return False
        if any([timed.launch.stalled() for timed in active if timed.launch.running]):
            return True
        raise Hang("\n".join(line for timed in active for line in timed.launch.waiting()))
