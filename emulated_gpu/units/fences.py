"""Fences, and the releases and acquires of other instructions (PTX ISA 8.8, 8.10, 9.7.13.4): who sees what."""

from __future__ import annotations

from ..state.order import ASYNC_GLOBAL, ASYNC_SHARED, SCOPES, Knowledge
from .group import LaneGroup


def fenced(g: LaneGroup, what: str, scope: str = "gpu") -> bool:
    """Before a release beyond the CTA: False until what this warp did is performed. what, scope: see Clock.fence."""
    if g.token is None:
        until = g.clock.fence(g, what, scope)
        if until <= g.t:
            return True
        g.token = until
        return g.wait_until(until, "fence")
    g.token = None
    return True


def meet(g: LaneGroup):
    """The warp waits for its lanes: what one of them did before, the others may rely on."""
    g.warp.actor.meet()


def look(g: LaneGroup):
    """Lanes have made a strong load, which may have shown what others of their warp did before: in shared memory all
    of it, in global memory if it was of what one has released."""
    held = g.warp.actor.epoch
    g.warp.actor.meet()
    g.warp.stores.go_on(held, g.warp.actor.epoch)


def fence(g: LaneGroup, scope: str):
    """fence and membar (9.7.13.4): releases and acquires."""
    release(g)
    publish(g)
    if g.launch.checks:
        g.launch.dependencies.own.signals |= scope == "sys"
        actor = g.warp.actor
        actor.take_heard(scope)
        actor.passes(slice(SCOPES["cta"], SCOPES[scope] + 1))


def fence_proxy_async(g: LaneGroup, mask, space: str = ""):
    """The async proxy sees what these lanes have written, mbarriers they initialised included.

    space: "global", "shared", or "" for both.
    """
    if g.launch.checks:
        end = g.cta.cluster.space.rows if space != "global" else ASYNC_SHARED
        g.warp.actor.fence_async(g.lanes_of(mask), slice(ASYNC_SHARED if space == "shared" else ASYNC_GLOBAL, end))
    if space != "global":
        fence_mbarrier_init(g)


def fence_mbarrier_init(g: LaneGroup, ctas=None):
    if not g.launch.checks:  # nobody asks who sees the object
        return
    for cta in ctas or g.cta.cluster.ctas:
        for barrier in cta.smem.barriers.values():
            barrier.fence(g.warp.actor)


def fence_proxy_release(g: LaneGroup, mask):
    """fence.proxy.async::generic.release: of what is in this CTA's memory, before an arrival, a relaxed one too."""
    if g.launch.checks:
        g.warp.actor.fence_async(g.lanes_of(mask), slice(g.cta.smem.row, g.cta.smem.row + 1))
        g.warp.actor.passes(slice(SCOPES["cluster"], SCOPES["cluster"] + 1))
    fence_mbarrier_init(g, [g.cta])
    release(g)


def fence_proxy_acquire(g: LaneGroup, mask):
    """fence.proxy.async::generic.acquire: of what is in the cluster's memory, behind a wait, a relaxed one too."""
    if g.launch.checks:
        g.warp.actor.take_heard()
    fence_proxy_async(g, mask, "shared")


def publish(g: LaneGroup, mask=True):
    """Make what lanes of this warp wrote visible to whoever waits for them."""
    if g.launch.checks:
        g.warp.actor.publish(g.lanes_of(mask))


def handed_on(g: LaneGroup, scope: str = "cta") -> Knowledge | None:
    """Return what an arrival of this warp releases. scope: "" for a relaxed one: only what a fence has covered."""
    if not g.launch.checks:
        return None
    return g.warp.actor.released() if scope else g.warp.actor.released(SCOPES["cluster"])


def release(g: LaneGroup):
    """Perform what this warp did for those who acquire (8.8)."""
    for land in list(g.warp.remote_arrivals):
        land()


def tcgen05_fence(g: LaneGroup, before: bool):
    if not before and g.launch.checks:  # composes with a relaxed wait (9.7.16.6.3)
        g.warp.actor.take_heard()
