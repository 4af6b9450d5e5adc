"""Fences, and the releases and acquires of other instructions (PTX ISA 8.8, 8.10, 9.7.13.4): who sees what."""

from __future__ import annotations


class Fences:
    """Mixin of Group. A `mask` is True or a bool array [n] that is not all False."""

    def fenced(self, what: str) -> bool:
        """Before a release beyond the CTA: False until what this warp did is performed. what: see Clock.fence."""
        if self.token is None:
            until = self.clock.fence(self, what)
            if until <= self.t:
                return True
            self.token, self.waiting_for, self.blocked_at = until, "fence", self.t
            self.engine.at(until, self.run)
            return False
        self.token = None
        return True

    def fence(self):
        """fence and membar (9.7.13.4): releases and acquires."""
        self.release()
        self.publish()
        self.waited()

    def fence_proxy_async(self, mask, ctas=None):
        """The async proxy sees what these lanes have written to shared memory, mbarriers they initialised included.

        ctas: of which CTAs, where not of all in the cluster.
        """
        lanes = self.lanes_of(mask)
        for cta in ctas or self.cta.cluster.ctas:
            if cta.smem.unfenced:
                cta.smem.fence(self.warp.actor.uid, lanes)
        self.fence_mbarrier_init(ctas)

    def fence_mbarrier_init(self, ctas=None):
        for cta in ctas or self.cta.cluster.ctas:
            for barrier in cta.smem.barriers.values():
                barrier.fence(self.warp.actor)

    def fence_proxy_release(self, mask):
        """fence.proxy.async::generic.release: of what is in this CTA's memory, before an arrival, a relaxed one too."""
        self.fence_proxy_async(mask, [self.cta])
        self.release()

    def fence_proxy_acquire(self, mask):
        """fence.proxy.async::generic.acquire: of what is in the cluster's memory, behind a wait, a relaxed one too."""
        self.waited()
        self.fence_proxy_async(mask)

    def publish(self, mask=True):
        """What lanes of this warp wrote to shared memory is visible to whoever waits for them."""
        if not self.launch.checks:
            return
        lanes = self.lanes_of(mask)
        for cta in self.cta.cluster.ctas:
            if cta.smem.unfenced:
                cta.smem.publish(self.warp.actor.uid, lanes)

    def release(self):
        """What this warp did is performed for those who acquire (8.8)."""
        for land in list(self.warp.remote_arrivals):
            land()

    def waited(self):
        """This warp may rely on all that has happened in its cluster so far."""
        self.warp.actor.waited()

    def tcgen05_fence(self, before: bool):
        if not before:  # composes with a relaxed wait (9.7.16.6.3)
            self.warp.actor.seen = max(self.warp.actor.seen, self.warp.relaxed_wait)
