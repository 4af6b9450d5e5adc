"""Who may rely on what: a cheap happened-before for the warps of a cluster (PTX ISA 8.9.5, causality order).

Everything that other threads could observe gets a number, in the order in which the emulator carries it out. A warp
that waits - passes a phase of an mbarrier, a barrier, a wait_group, or executes an acquiring fence - may rely on all
that has happened so far. What it has not waited for since, it may not touch, even if by luck it is already there.

This is generous: a wait for anything counts as a wait for everything. So a correct program is never accused, and a
missing wait shows in every schedule in which nothing else was waited for in between.
"""

from __future__ import annotations


class Order:
    """The events of one cluster, counted; and who they were, for reports."""

    __slots__ = ("now", "log")

    def __init__(self):
        self.now = 0
        self.log: list[object] = []

    def next(self, who: object = None) -> int:
        """The number of a new event. who: what str() of which names the instruction."""
        self.now += 1
        self.log.append(who)
        return self.now

    def who(self, number: int) -> str:
        """The instruction whose event this is; 0 is none's."""
        who = self.log[number - 1] if number else None
        return "another warp" if who is None else str(who)


class Actor:
    """What the shadows of memory need to know of a warp. `uid` is unique in the cluster and positive."""

    __slots__ = ("uid", "seen", "order")

    def __init__(self, uid: int, order: Order):
        self.uid, self.order = uid, order
        self.seen = 0  # events up to this one have been waited for

    def waited(self) -> None:
        self.seen = self.order.now
