"""Barriers and waits of a group of lanes (PTX ISA 9.7.13): what makes threads rely on each other.

Named barriers of a CTA and the barrier of a cluster (9.7.13.1-3), mbarriers (9.7.13.15), and
griddepcontrol (9.7.13.13), which makes a launch rely on the one before. Fences are in fences.py.
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault
from ..formats import alu
from ..state.barrier import MBarrier

LONG = 1_000_000  # ns; longer limits of mbarrier.try_wait (CUTLASS has 10 ms) outlast what is emulated


class Barriers:
    """Mixin of Group. A `mask` is True or a bool array [n] that is not all False."""

    # -- named and cluster barriers ----------------------------------------------------------------------------
    def thread_count(self) -> int:
        """Threads this group counts for at a barrier: a warp that is together counts whole (9.7.13.1)."""
        return 32 if self.lane_mask == self.warp.live_mask else self.n

    def bar_sync(self, number, count, aligned: bool, vote=None) -> bool:
        if self.token is None:
            barrier = self.cta.named_barrier(number)
            self._check_aligned(barrier, aligned)
            if vote is not None:
                self.cta.vote(barrier, *vote, self)
            barrier_phase = barrier.phase
            self.engine.progress += 1
            self.token = (barrier, barrier_phase)
            self._check_count(number, count)
            self.publish()
            self.pass_dependency(barrier)
            barrier.everyone = count is None
            barrier.arrive(*((self.n, self.cta.live_threads) if count is None else (self.thread_count(), count)))
        barrier, phase = self.token
        if barrier.phase == phase:
            return self.wait_on(barrier)
        self.token = None
        self.last_barrier = barrier
        self.waited()
        self.take_dependency(barrier)
        return True

    def _check_aligned(self, barrier, aligned: bool):
        """Lanes of a warp that come to a barrier come to it in one place (.aligned); those that will exit need not."""
        phase, place = self.warp.barrier_places.get(barrier, (-1, -1))
        self.warp.barrier_places[barrier] = barrier.phase, self.pc
        if aligned and phase == barrier.phase and place != self.pc:
            raise Fault("divergence", f"lanes of a warp are at different barrier instructions for {barrier}")

    def _check_count(self, number, count):
        if count is not None and (count % 32 or count <= 0):
            raise Fault(
                "barrier", f"named barrier {number} with {count} threads: must be a positive multiple of the warp size"
            )

    def bar_arrive(self, number, count, aligned: bool):
        barrier = self.cta.named_barrier(number)
        self._check_aligned(barrier, aligned)
        self.engine.progress += 1
        self._check_count(number, count)
        self.publish()
        self.pass_dependency(barrier)
        barrier.arrive(self.thread_count(), count)
        self.hesitate()

    def bar_result(self):
        result = self.last_barrier.result
        kind = result[0][0]
        total = sum(n for _, n, _ in result)
        threads = sum(n for _, _, n in result)
        return {"popc": total, "or": total > 0, "and": total == threads}[kind]

    def cluster_arrive(self, release: bool, aligned: bool):
        if aligned:
            self.need_whole_warp("barrier.cluster.arrive.aligned")
        barrier = self.cta.cluster.barrier
        if release:
            self.release()
            self.publish()
        self.pass_dependency(barrier)
        self.warp.arrived_at_cluster_barrier(barrier.phase, self.lane_mask)
        self.engine.progress += 1
        barrier.arrive(self.n, self.cta.cluster.live_threads)
        self.hesitate()

    def cluster_wait(self) -> bool:
        barrier = self.cta.cluster.barrier
        if barrier.phase == self.warp.cluster_phase:
            return self.wait_on(barrier)
        self.waited()
        self.take_dependency(barrier)
        return True

    # -- mbarriers ---------------------------------------------------------------------------------------------
    def barrier_at(self, address: int, asynchronous: bool = False) -> MBarrier:
        cta, offset = self.shared_cta(address & 0xFFFFFFFF)
        return cta.barrier(offset, self.warp, asynchronous)

    def mbarrier_init(self, address, count, mask):
        """Lanes that name one object with one count make it once: CuTe DSL's kernels do that with a whole warp."""
        made = {}
        for p in self.active(mask):
            cta, offset = self.shared_cta(self.pick(address, p))
            arrivals = self.pick(count, p)
            if made.get((cta.rank, offset)) == arrivals:
                continue
            if offset % 8:
                raise Fault("misaligned", f"mbarrier at {offset:#x}")
            if offset in cta.smem.barriers:
                if self.launch.checks:
                    raise Fault("mbarrier", f"init of a live object: {cta.smem.barriers[offset]}")
                del cta.smem.barriers[offset]
            cta.smem.check_write(offset, offset + 8, "mbarrier.init")
            name = f"mbarrier at shared {offset:#x} of CTA {cta.ctaid}"
            cta.smem.add_barrier(offset, MBarrier(arrivals, name, self.warp.actor, self.origin("mbarrier.init")))
            made[cta.rank, offset] = arrivals

    def mbarrier_inval(self, address, mask):
        for p in self.active(mask):
            cta, offset = self.shared_cta(self.pick(address, p))
            cta.barrier(offset, self.warp).check_idle()
            del cta.smem.barriers[offset]

    def mbarrier_arrive(self, address, count, expect, drop: bool, no_complete: bool, scope: str, mask):
        """scope: of its release; empty if it is relaxed."""
        self.engine.progress += 1
        if scope:
            self.publish(mask)
        states, released, origin = np.zeros(self.n, np.uint64), False, self.origin("mbarrier.arrive")
        for p in self.active(mask):
            a = self.pick(address, p)
            tx = None if expect is None else self.pick(expect, p)
            cta, offset = self.shared_cta(a)
            barrier = cta.barrier(offset, self.warp)
            self.clock.trace.completes(barrier, self.warp.index)
            self.pass_dependency(barrier)
            if cta is not self.cta and expect is None and not drop and not no_complete:
                if scope == "cluster" and not released:  # it leaves when all that the warp did is performed there
                    self.t = self.clock.fence(self, "mbarrier.arrive")
                    released = True
                self.remote_arrive(cta, barrier, self.pick(count, p), origin)
            else:
                states[p] = barrier.arrive(self.pick(count, p), tx, drop, no_complete, origin)
        self.hesitate()
        return int(states[0]) if self.n == 1 else states

    def remote_arrive(self, cta, barrier: MBarrier, count: int, origin):
        """An arrive at another CTA's barrier travels, but no longer than to the warp's next release."""
        travelling = self.warp.remote_arrivals
        cta.travelling.append(origin)

        def land():
            if land in travelling:
                travelling.remove(land)
                cta.travelling.remove(origin)
                barrier.arrive(count, who=origin)

        travelling.append(land)
        self.later(self.clock.remote(self), origin, land)

    def mbarrier_tx(self, address, count, mask):
        self.engine.progress += 1
        for p in self.active(mask):
            n, origin = self.pick(count, p), self.origin("mbarrier.expect_tx")
            self.barrier_at(self.pick(address, p)).transaction(n, origin)

    def mbarrier_try_wait(self, address, phase, parity: bool, limit: int | None) -> bool:
        """Suspends until the phase completes or the time limit strikes: after `limit` ns, or when nothing moves."""
        if self.timed_out:
            self.timed_out = False
            return True
        if alu.is_array(address) or alu.is_array(phase):
            pairs = set(zip(self.lane_array(address).tolist(), self.lane_array(phase, 64).tolist(), strict=True))
            if len(pairs) > 1:
                return True  # lanes look at different things: let them poll
            address, phase = pairs.pop()
        barrier = self.barrier_at(address)
        done = barrier.test_parity(phase) if parity else barrier.test_state(phase)
        if done:
            return True
        self.awaited = phase
        self.wait_on(barrier)
        ns = LONG if limit is None else limit.max() if alu.is_array(limit) else limit
        self.limit = self.clock.after(self.t, ns) if ns < LONG else 0.0
        if self.limit:
            since = self.blocked_at

            def strike():
                if self in barrier.waiters and self.blocked_at == since:
                    self.time_out()

            self.engine.at_limit(self.limit, strike)
        return False

    def mbarrier_test(self, address, phase, parity: bool, relaxed: bool):
        def one(a, ph):
            barrier = self.barrier_at(a)
            done = barrier.test_parity(ph) if parity else barrier.test_state(ph)
            if done and relaxed:
                self.warp.relaxed_wait = self.warp.actor.order.now
            elif done:
                self.waited()
                self.take_dependency(barrier)
            return done

        if not alu.is_array(address) and not alu.is_array(phase):
            return one(address, phase)
        pairs = zip(self.lane_array(address).tolist(), self.lane_array(phase, 64).tolist(), strict=True)
        return np.array([one(a, ph) for a, ph in pairs])

    @staticmethod
    def mbarrier_pending_count(state):
        return (state >> 1) & 0xFFFFF if not alu.is_array(state) else ((state >> 1) & 0xFFFFF).astype(np.uint32)

    # -- dependent launches ------------------------------------------------------------------------------------
    def grid_dependency_wait(self) -> bool:
        done = self.launch.dependency_wait(self)
        if done:
            self.warp.depends = False
        return done

    def pass_dependency(self, barrier):
        """Who waits for this warp at a barrier relies on the griddepcontrol.wait that it has passed."""
        if self.launch.depends and not self.warp.depends:
            barrier.after_dependency = True

    def take_dependency(self, barrier):
        if barrier.after_dependency:
            self.warp.depends = False

    def grid_launch_dependents(self):
        self.launch.launch_dependents(self)
