"""Fences, and the releases and acquires of other instructions (PTX ISA 8.8, 8.10, 9.7.13.4): who sees what."""

from __future__ import annotations

from .group import LaneGroup


def fenced(g: LaneGroup, what: str) -> bool:
    """Before a release beyond the CTA: False until what this warp did is performed. what: see Clock.fence."""
    if g.token is None:
        until = g.clock.fence(g, what)
        if until <= g.t:
            return True
        g.token = until
        return g.wait_until(until, "fence")
    g.token = None
    return True


def fence(g: LaneGroup):
    """fence and membar (9.7.13.4): releases and acquires."""
    release(g)
    publish(g)
    waited(g)


def fence_proxy_async(g: LaneGroup, mask, ctas=None):
    """The async proxy sees what these lanes have written to shared memory, mbarriers they initialised included.

    ctas: of which CTAs, where not of all in the cluster.
    """
    lanes = g.lanes_of(mask)
    for cta in ctas or g.cta.cluster.ctas:
        if cta.smem.unfenced:
            cta.smem.fence(g.warp.actor.uid, lanes)
    fence_mbarrier_init(g, ctas)


def fence_mbarrier_init(g: LaneGroup, ctas=None):
    for cta in ctas or g.cta.cluster.ctas:
        for barrier in cta.smem.barriers.values():
            barrier.fence(g.warp.actor)


def fence_proxy_release(g: LaneGroup, mask):
    """fence.proxy.async::generic.release: of what is in this CTA's memory, before an arrival, a relaxed one too."""
    fence_proxy_async(g, mask, [g.cta])
    release(g)


def fence_proxy_acquire(g: LaneGroup, mask):
    """fence.proxy.async::generic.acquire: of what is in the cluster's memory, behind a wait, a relaxed one too."""
    waited(g)
    fence_proxy_async(g, mask)


def publish(g: LaneGroup, mask=True):
    """What lanes of this warp wrote to shared memory is visible to whoever waits for them."""
    if not g.launch.checks:
        return
    lanes = g.lanes_of(mask)
    for cta in g.cta.cluster.ctas:
        if cta.smem.unfenced:
            cta.smem.publish(g.warp.actor.uid, lanes)


def release(g: LaneGroup):
    """What this warp did is performed for those who acquire (8.8)."""
    for land in list(g.warp.remote_arrivals):
        land()


def waited(g: LaneGroup):
    """This warp may rely on all that has happened in its cluster so far."""
    g.warp.actor.waited()


def tcgen05_fence(g: LaneGroup, before: bool):
    if not before:  # composes with a relaxed wait (9.7.16.6.3)
        g.warp.actor.seen = max(g.warp.actor.seen, g.warp.relaxed_wait)
