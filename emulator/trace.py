"""What a timed run did, as spans of time: the hooks that the clock, the warps and the launches call.

Times are in cycles of the profile's clock. timeline.py turns a Trace into a picture, a Perfetto file and a breakdown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Span(NamedTuple):
    """kind: load, store, tensor, wait, epilogue...; launch, sm and cta place it; what says more, nbytes counts copies."""

    kind: str
    launch: int
    sm: int
    cta: int
    warp: int
    start: float
    end: float
    what: str = ""
    nbytes: int = 0


@dataclass
class Trace:
    spans: list[Span] = field(default_factory=list)

    def copy(self, group, kind: str, start: float, end: float, nbytes: int):
        """A TMA copy from leaving the TMA unit to its arrival."""
        cta = group.cta
        self.spans.append(Span(kind, group.launch.number, cta.sm, cta.index, group.warp.index, start, end, "", nbytes))

    def tensor(self, cta, start: float, end: float):
        """The tensor core of a CTA's SM is busy."""
        self.spans.append(Span("tensor", cta.launch.number, cta.sm, cta.index, -1, start, end))

    def wait(self, group, start: float, end: float):
        """A group of lanes slept; `what` is the object it waited for, as the hang report prints it."""
        cta = group.cta
        what = getattr(group.waiting_for, "name", None) or str(group.waiting_for)
        self.spans.append(Span("wait", group.launch.number, cta.sm, cta.index, group.warp.index, start, end, what))

    def warp_life(self, group, start: float, end: float):
        """A warp from its first to its last instruction."""
        cta = group.cta
        self.spans.append(Span("warp", group.launch.number, cta.sm, cta.index, group.warp.index, start, end))
