"""A launch run again, in other orders, on the memory that it had: what `explore` asks, and whether results differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ..errors import EmulatorError, Fault
from ..ptx.effects import ATOMICS
from ..ptx.syntax import Special, leaves
from ..state.global_memory import WORD, GlobalMemory, Region
from ..state.pdl_dependency import Footprint
from .explore import Outcome, search, shrink
from .launch import Code, Geometry, Launch, LaunchOptions
from .schedule import Schedule, Watched

MOST_BYTES = 1 << 28  # of memory that is kept beside
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
PLACES = {"smid", "warpid"}  # special registers that say where something runs


def has_atomics(launch: Launch) -> bool:
    """Whether a kernel has any."""
    return any(instr.parts[0] in ATOMICS for instr in launch.program.kernel.instrs)


def may_differ(launch: Launch) -> bool:
    """Whether a right kernel's results may depend on the order: it adds floats or takes tickets by atomics, or looks at
    the time, or at where it runs."""
    for instr in launch.program.kernel.instrs:
        reduces = instr.parts[0] in ATOMICS or instr.op.startswith("cp.reduce")
        sink = instr.operands and getattr(instr.operands[0], "name", "") == "_"
        if reduces and ("add" in instr.parts and {*FLOATS} & {*instr.parts} or instr.parts[0] == "atom" and not sink):
            return True
        if any(isinstance(x, Special) and x.name in PLACES for o in instr.operands for x in leaves(o)):
            return True
    return launch.reads_time


class Reruns:
    """A launch that is about to run, with the memory that it finds."""

    def __init__(self, launched: tuple[Code, Geometry, bytes, GlobalMemory], options: LaunchOptions, watched: Callable):
        """watched: Session.watched."""
        self.launched, self.watched = launched, watched
        self.options = dataclasses.replace(options, collect=None, again=True)
        self.before = [(region, region.data.copy()) for region in launched[3].regions if not region.read_only]
        self.written: set[int] = set()  # regions that a run has written, by id
        self.right: tuple[Footprint, dict[int, np.ndarray]] | None = None  # what it leaves in the order to compare with

    @staticmethod
    def possible(launched: tuple[Code, Geometry, bytes, GlobalMemory]) -> bool:
        """Whether a launch can be run again: its memory can be kept, and it takes none of the device's heap."""
        calls = (i.shown() for i in launched[0].program.kernel.instrs if i.parts[0] == "call")
        size = sum(region.size for region in launched[3].regions)
        return size <= MOST_BYTES and not any("malloc" in call or "free" in call for call in calls)

    def _note(self, launch: Launch) -> None:
        """Know what it has written."""
        self.written |= {id(region) for region, used in launch.dependencies.own.regions.values() if used[1].any()}

    def _kept(self, own: Footprint) -> list[Region]:
        """The regions that a launch has written, and nobody else may have."""
        return [r for r, used in own.regions.values() if used[1].any() and not r.peers and not r.freed]

    def _reset(self) -> None:
        """Let memory be what it was before."""
        for region, data in self.before:
            if id(region) in self.written:
                region.data[:] = data

    def _keep(self, launch: Launch) -> None:
        """What this one leaves is right."""
        own = launch.dependencies.own
        self.right = own, {id(region): region.data.copy() for region in self._kept(own)}

    def run(self, schedule: Schedule, keep: bool = False) -> Outcome:
        """Run it in an order; afterwards memory is as this leaves it. keep: to compare others with it."""
        self._reset()
        watched = Watched()
        launch = Launch(*self.launched, dataclasses.replace(self.options, schedule=schedule, watched=watched))
        found: EmulatorError | None = None
        try:
            with self.watched(lambda: [launch]):
                launch.run()
        except EmulatorError as error:
            error.__traceback__ = None
            found = error
        self._note(launch)
        if keep:
            self._keep(launch)
        return Outcome(found or self.difference(launch), watched)

    def difference(self, launch: Launch) -> Fault | None:
        """Return the finding that a launch leaves something else than the one to compare with, if nothing that a right
        kernel may do explains it. Flags and counters, which strong accesses have made, are not compared if there are
        atomics: who comes last may leave its own."""
        if self.right is None or may_differ(launch):
            return None
        own, (first, data) = launch.dependencies.own, self.right
        for region in self._kept(own):
            before = data.get(id(region))
            if before is None or before.shape != region.data.shape:
                continue
            bad = np.flatnonzero(before != region.data)
            if has_atomics(launch):
                strong = own.used(region)[2] | first.used(region)[2]
                bad = bad[~strong[(bad + region.start - region.origin) // WORD]]
            if len(bad):
                at = int(bad[0]) // WORD * WORD
                now, then = (x[at : at + WORD].tobytes()[::-1].hex() for x in (region.data, before))
                message = (
                    f"{region.name} at byte {at} is 0x{now} in this order and 0x{then} in schedule 0 "
                    f"({len(bad)} bytes differ): no sum of floats, ticket or time explains it"
                )
                return Fault("order-dependent", message, f"kernel {launch.program.kernel.title}, at its end")
        return None

    def explored(
        self, launch: Launch, watched: Watched, found: EmulatorError | None, most: int, compares: bool
    ) -> EmulatorError | None:
        """A launch has run under the schedule of the options, and found something or not. Return what an order of at
        most `most` others finds, or what it has found itself, with the order that causes it; memory stays.

        Under schedule 0 orders are searched for a finding; another schedule's finding is shrunk. compares: what an
        order leaves is one if it differs.
        """
        schedule, number = self.options.schedule, self.options.number
        after = [(region, region.data.copy()) for region in self._kept(launch.dependencies.own)]
        self._note(launch)
        try:
            if schedule == Schedule():
                if found is not None:
                    return found
                if compares:
                    self._keep(launch)
                cause = search(self.run, number, watched, most)
                found = None if cause is None else cause.outcome.found
            else:
                right = self.run(Schedule(), keep=True)
                if right.found is not None:
                    return found
                self._put(after)
                found = found or self.difference(launch)
                if found is None or schedule.late is not None or not most:
                    return found
                kind = found.kind

                def alike(tried: Schedule) -> Outcome:
                    outcome = self.run(tried)
                    same = outcome.found is not None and outcome.found.kind == kind
                    return outcome if same else Outcome(None, outcome.watched)

                cause = shrink(alike, number, schedule, (watched, right.watched), most)
            if found is not None and cause is not None:
                found.order = cause.told()
            return found
        finally:
            self._put(after)

    def _put(self, after: list[tuple[Region, np.ndarray]]) -> None:
        """Let memory be what a run has left."""
        self._reset()
        for region, data in after:
            region.data[:] = data
