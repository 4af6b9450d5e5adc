"""What a timed run did, as spans of time: the hooks that the clock, the warps and the launches call.

Times are in cycles of the profile's clock. timeline.py turns a Trace into a picture, a Perfetto file and a breakdown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..machine.clock import NoTrace
from ..ptx.control_flow import ControlFlow
from ..state.barrier import MBarrier

PLACE = re.compile(r"( at shared 0x[0-9a-f]+| \d+)$")  # ends the name of a barrier


class Arrival(NamedTuple):
    """What ended a wait at an mbarrier: the instruction at a line of a block's Python, and the warp that issued it."""

    label: str
    sm: int
    warp: int
    program: ControlFlow
    block: int
    lineno: int


class Span(NamedTuple):
    """kind: load, store (copies under way), tensor (core busy), wait (a warp sleeps), warp (its life).

    launch, sm, cta and warp place it (warp -1: the unit works for another CTA of the pair); `what` says what a wait was
    for, at which program and block it was, and what ended it; nbytes counts copies.
    """

    kind: str
    launch: int
    sm: int
    cta: int
    warp: int
    start: float
    end: float
    what: str = ""
    nbytes: int = 0
    at: tuple | None = None
    by: Arrival | None = None


@dataclass
class Spread:
    """Accesses that took more than they had to: how many, of wavefronts or sectors those they took and needed, and by
    how many times the worst took more."""

    count: int = 0
    took: int = 0
    least: int = 0
    most: float = 1.0

    def add(self, took: int, least: int) -> None:
        self.count, self.took, self.least = self.count + 1, self.took + took, self.least + least
        self.most = max(self.most, took / least)


@dataclass
class Trace(NoTrace):
    """spans, in the order in which they ended or became known; duties: what each warp index of a
    program's blocks did."""

    spans: list[Span] = field(default_factory=list)
    duties: dict[tuple, set[str]] = field(default_factory=dict)  # (program, warp) -> load, store, mma, tmem
    # (program, block, line of its Python or 0 for all of it, reason) -> cycles of warps: "issue", "wait WHAT", accesses
    spent: dict[tuple, float] = field(default_factory=dict)
    # (program, block, line, way) -> what accesses there took that could have taken less
    spread: dict[tuple, Spread] = field(default_factory=dict)
    sources: dict = field(default_factory=dict)  # barrier -> what completes its phases: load, mma, or warps

    def of_launch(self, number: int) -> Trace:
        """Return this with the spans of a launch alone; what is not told by launch is shared."""
        return replace(self, spans=[span for span in self.spans if span.launch == number])

    def spend(self, group, reason: str, cycles: float, line: int = 0):
        key = group.program, group.pc, line, reason
        self.spent[key] = self.spent.get(key, 0.0) + cycles

    def scattered(self, group, line: int, way: str, took: int, least: int):
        """An access to memory took this many wavefronts or sectors, where `least` would have done."""
        self.spread.setdefault((group.program, group.pc, line, way), Spread()).add(took, least)

    def duty(self, group, kind: str, together: int = 1):
        first = group.warp.index // together * together
        for warp in range(first, first + together):
            self.duties.setdefault((group.program, warp), set()).add(kind)

    def stall(self, group, why: str, cycles: float):
        self.spend(group, why, cycles)

    def completes(self, barrier, source):
        self.sources.setdefault(barrier, set()).add(source)

    def copy(self, group, kind: str, start: float, end: float, nbytes: int):
        cta = group.cta
        self.duty(group, kind)
        self.spans.append(Span(kind, group.launch.number, cta.sm, cta.index, group.warp.index, start, end, "", nbytes))

    def tensor(self, group, cta, start: float, end: float):
        self.duty(group, "mma")
        warp = group.warp.index if cta is group.cta else -1
        self.spans.append(Span("tensor", cta.launch.number, cta.sm, cta.index, warp, start, end))

    def wait(self, group, start: float, end: float):
        cta = group.cta
        what = self.describe(group.waiting_for)
        self.spend(group, f"wait {what}", end - start)
        last, by = group.waiting_for.last if isinstance(group.waiting_for, MBarrier) else None, None
        if last is not None:
            by = Arrival(last.label, last.actor.sm, last.actor.index, last.program, last.block, last.lineno)
        place = group.program, group.pc
        warp = group.warp.index
        self.spans.append(Span("wait", group.launch.number, cta.sm, cta.index, warp, start, end, what, 0, place, by))

    def describe(self, awaited) -> str:
        """The awaited object by what completes it: loads, mma, warp 1+2, or its own name without number or address."""
        sources = self.sources.get(awaited)
        if sources is None:
            return PLACE.sub("", str(getattr(awaited, "name", awaited)).partition(" of ")[0])
        if "load" in sources:
            return "loads"
        if "mma" in sources:
            return "mma"
        return "warp " + "+".join(map(str, sorted(sources)))

    def warp_life(self, group, start: float, end: float):
        cta = group.cta
        self.spans.append(Span("warp", group.launch.number, cta.sm, cta.index, group.warp.index, start, end))
