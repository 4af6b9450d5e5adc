"""What launches run under, and what they have found."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from .errors import EmulatorError, Fault
from .machine.by_value import resets
from .machine.launch import Code, Geometry, Launch
from .machine.schedule import Schedule
from .model.run import Recorded
from .ptx.control_flow import ControlFlow
from .state.global_memory import GlobalMemory
from .state.pdl_dependency import Dependencies

SMALL = 64  # CTAs of a launch of which another order is tried unasked


@dataclass
class Session:
    """Holds schedule and checks of the launches inside a `with session(...)`, and collects their findings."""

    schedule: Schedule = field(default_factory=Schedule)
    checks: bool = True
    most: int = 1  # findings, before launches fail
    strict: bool = False  # what has a note is a finding, too
    crowded: bool = False  # grids of other streams have the rest of the GPU
    explores: int = 0  # as many other orders of each launch are tried, see machine/explore.py
    notes: list[Fault] = field(default_factory=list)  # see errors.NOTES
    launches: int = 0
    findings: list[str] = field(default_factory=list)
    errors: list[EmulatorError] = field(default_factory=list)  # the findings
    failure: BaseException | None = None  # with which launches fail from now on: a finding, or Ctrl-C
    predecessors: dict[int, Dependencies] = field(default_factory=dict)  # of the last launch on each device
    recorded: list | None = None  # launches to be timed instead of run
    most_recorded: float = math.inf  # later launches are left out
    timed: list[Recorded] | None = None  # launches that have run, to be timed if somebody asks
    followed: int = 0  # events of launches that have been run once more, see state/definedness.py
    tried: set[ControlFlow] = field(default_factory=set)  # kernels of which it is known whether another order is tried
    kept: list | None = None  # memory that launches to be timed may need when the script has freed it

    def after(self) -> Session:
        """Return the session of what comes after this one: with the memory that this one keeps, so that its launches
        can be modelled."""
        return Session(kept=self.kept)

    def report(self) -> list[str]:
        """One text for each fault, hang or refusal."""
        return list(self.findings)

    def orders(self, number: int, launched: tuple[Code, Geometry, bytes, GlobalMemory]) -> int | None:
        """Return how many other orders of a launch are tried, None if it is just run: as many as are asked for, also if
        one of it is replayed; one of the first small launch of a kernel that sets back what it polls."""
        if not self.checks:
            return None
        if self.explores or (self.schedule.late is not None and self.schedule.launch == number):
            return self.explores
        program, grid = launched[0].program, launched[1].grid
        if self.schedule != Schedule() or program in self.tried or math.prod(grid) > SMALL:
            return None
        self.tried.add(program)
        return 1 if resets(program) else None

    def records(self, launch: Recorded) -> bool:
        """Keep a launch to be timed. Returns whether it is not to be run."""
        if self.timed is not None:
            self.timed.append(launch)
        elif self.recorded is not None and self.launches <= self.most_recorded:
            self.recorded.append(launch)
        return self.timed is None

    def new(self, faults: list[EmulatorError]) -> list[EmulatorError]:
        """Return the errors that are not yet among the findings."""
        known = {error.lines for error in self.errors}
        return [fault for fault in faults if fault.lines not in known]

    def goes_on(self, faults: list[EmulatorError]) -> bool:
        """Return whether launches may go on after these faults: fewer findings than wanted."""
        return len(self.errors) + len(self.new(faults)) < self.most

    def note(self, note: Fault) -> None:
        """Keep a note, once."""
        if all(note.lines != other.lines for other in self.notes):
            self.notes.append(note)

    def watched(self, running: Callable[[], list[Launch]]):
        """Return a context manager in which launches run: for whoever wants to look at them meanwhile."""
        return contextlib.nullcontext()

    def ended(self, launch: Launch) -> None:
        """A launch has run, to its end or as far as it could."""

    def add(self, error: EmulatorError) -> None:
        """Record a finding. With the last one that is wanted, launches fail from here on."""
        if self.new([error]):
            self.errors.append(error)
            self.findings.append(str(error))
        if self.failure is None and len(self.errors) >= self.most:
            self.failure = error
