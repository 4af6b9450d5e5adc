"""How long fences and releases beyond the CTA take (timing only, no data; PTX ISA 8.8, 8.10, 9.7.13.4).

ptxas makes MEMBAR.ALL.GPU of each, of arrivals at another CTA's mbarrier or at the cluster's barrier, too. Measured on
an H200 (silicon/probes/release.py): it waits for what the whole SM has under way, whichever warp began it. Plain stores
must have left: 556 cycles later it is over. Loads and copies into shared memory must have come. What the TMA unit
stores it does not wait for. With nothing under way a fence takes 271 cycles, 436 if anything has been stored since the
one before, and a store with release 561. A release in the CTA costs next to nothing; an acquire no more than its load
(it empties the L1, which is not modelled).
"""

from __future__ import annotations

from .sm import Sm

IN_BLOCK = {"fence": "fence_gpu", "barrier.cluster.arrive": "cluster_release"}  # what issue.py adds, by its class


def passed(what: str, time: float, sm: Sm, sync: dict, figures: dict, least: float = 0.0) -> float:
    """Return until when a warp that comes to a fence at `time` stops, but for what its block costs anyway.

    what: see Clock.fence. sync, figures: of the profile; [sync], and the costs of issue.py's classes. least: cycles,
    where other devices are to see it.
    """
    in_block = figures[IN_BLOCK[what]][1] if what in IN_BLOCK else 0.0
    idle = {"store": sync["drain_cycles"], "mbarrier.arrive": sync["release_cycles"]}.get(what, in_block)
    if sm.stored_since_fence and what != "store":
        idle += sync["stored_cycles"]
    sm.stored_since_fence = False
    return max(time + max(idle, least), sm.drained + sync["drain_cycles"], sm.come) - in_block
