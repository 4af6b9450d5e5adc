"""Barriers and waits of a group of lanes (PTX ISA 9.7.13): what makes threads rely on each other.

Named barriers of a CTA and the barrier of a cluster (9.7.13.1-3), mbarriers (9.7.13.15), and
griddepcontrol (9.7.13.13), which makes a launch rely on the one before. Fences are in fences.py.
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault
from ..formats import alu
from ..state.barrier import MBarrier
from ..state.order import KNOWN, Knowledge
from .addresses import active, pick, shared_cta
from .fences import handed_on, publish, release
from .group import LaneGroup, Meeting

LONG = 1_000_000  # ns; longer limits of mbarrier.try_wait (CUTLASS has 10 ms) outlast what is emulated


# -- named and cluster barriers ----------------------------------------------------------------------------
def thread_count(g: LaneGroup) -> int:
    """Threads this group counts for at a barrier: a warp that is together counts whole (9.7.13.1)."""
    return 32 if g.lane_mask == g.warp.live_mask else g.n


def bar_sync(g: LaneGroup, number, count, aligned: bool, vote=None) -> bool:
    if g.token is None:
        barrier, origin = g.cta.named_barrier(number), g.origin("bar.sync")
        if vote is not None:
            g.cta.vote(barrier, *vote, g)
        g.token = (barrier, barrier.phase, barrier.released, origin)
        _come(g, barrier, count, aligned, origin, waits=True)
        barrier.everyone = count is None
        if barrier.everyone and g.cta.gone.knowledge is not None:
            barrier.released.add_of(g.cta.gone)
        barrier.arrive(*((g.n, g.cta.live_threads) if count is None else (thread_count(g), count)))
    barrier, phase, released, origin = g.token
    if barrier.phase == phase:
        return g.wait_on(barrier)
    g.token = None
    g.last_barrier = barrier
    take_dependency(g, barrier)
    if g.launch.checks:
        released.teach(g.warp.actor)
        g.warp.actor.waited(origin, barrier, phase)
    return True


def _come(g: LaneGroup, barrier, count, aligned: bool, origin, waits: bool):
    """Lanes of a warp come to a barrier and hand on all that it did: in one place (.aligned), and to the phase that
    they mean."""
    warp, lanes = g.warp, g.lane_mask
    if lanes != warp.live_mask:
        aligned = aligned and not (g.launch.checks and barrier.has(warp.actor, lanes))
        phase, place = warp.barrier_places.get(barrier, (-1, -1))
        warp.barrier_places[barrier] = barrier.phase, g.pc
        if aligned and phase == barrier.phase and place != g.pc:
            raise Fault("divergence", f"lanes of a warp are at different barrier instructions for {barrier}")
    if count is not None and (count % 32 or count <= 0):
        raise Fault("barrier", f"{barrier.name} with {count} threads: must be a positive multiple of the warp size")
    g.engine.progress += 1
    pass_dependency(g, barrier)
    if g.launch.checks:
        actor = warp.actor
        fault = barrier.check_phase(actor, lanes, actor.order.next(actor.key, origin), origin, waits)
        if fault is not None:
            g.launch.found(fault)
        actor.publish(lanes)
        barrier.released.add_all_of(actor)


def bar_arrive(g: LaneGroup, number, count, aligned: bool):
    barrier = g.cta.named_barrier(number)
    _come(g, barrier, count, aligned, g.origin("bar.arrive"), waits=False)
    barrier.arrive(thread_count(g), count)
    g.hesitate(Meeting(barrier, 0, True, True))


def bar_result(g: LaneGroup):
    result = g.last_barrier.result
    kind = result[0][0]
    total = sum(n for _, n, _ in result)
    threads = sum(n for _, _, n in result)
    return {"popc": total, "or": total > 0, "and": total == threads}[kind]


def cluster_arrive(g: LaneGroup, releases: bool, aligned: bool):
    if aligned:
        g.need_whole_warp("barrier.cluster.arrive.aligned")
    barrier = g.cta.cluster.barrier
    if releases:
        release(g)
        publish(g)
    barrier.released.add(handed_on(g, "cluster" if releases else ""))
    barrier.released.add_of(g.cta.cluster.gone)
    pass_dependency(g, barrier)
    g.warp.arrived_at_cluster_barrier(barrier.phase, g.lane_mask)
    g.warp.cluster_released = barrier.released
    g.engine.progress += 1
    barrier.arrive(g.n, g.cta.cluster.live_threads)
    g.hesitate(Meeting(barrier, 0, True, True))


def cluster_wait(g: LaneGroup, acquires: bool) -> bool:
    barrier = g.cta.cluster.barrier
    if barrier.phase == g.warp.cluster_phase:
        return g.wait_on(barrier)
    if g.launch.checks:
        actor, released = g.warp.actor, g.warp.cluster_released
        (actor.learn if acquires else actor.hear)(released and released.knowledge)
        actor.waited(g.origin("barrier.cluster.wait"), barrier, g.warp.cluster_phase)
        g.warp.met_cluster = g.warp.cluster_phase + 1
    take_dependency(g, barrier)
    return True


# -- mbarriers ---------------------------------------------------------------------------------------------
def barrier_at(g: LaneGroup, address: int, asynchronous: bool = False) -> MBarrier:
    cta, offset = shared_cta(g, address & 0xFFFFFFFF)
    return cta.barrier(offset, g.warp, asynchronous)


def landed(op, hands_on: Knowledge | None) -> Knowledge | None:
    """Return what those learn who wait for a copy's mbarrier: the copy, and what its thread knew. op: an InFlight."""
    if hands_on is not None:
        hands_on = hands_on.copy()
        hands_on.clock[KNOWN, op.key[1]] = op.number
    return hands_on


def mbarrier_init(g: LaneGroup, address, count, mask):
    """Lanes that name one object with one count make it once: CuTe DSL's kernels do that with a whole warp."""
    made: dict[tuple[int, int], int] = {}
    for p in active(g, mask):
        cta, offset = shared_cta(g, pick(address, p))
        arrivals = pick(count, p)
        if made.get((cta.rank, offset)) == arrivals:
            continue
        if offset % 8:
            raise Fault("misaligned", f"mbarrier at {offset:#x}")
        if offset in cta.smem.barriers:
            if g.launch.checks:
                raise Fault("mbarrier", f"init of a live object: {cta.smem.barriers[offset]}")
            del cta.smem.barriers[offset]
        cta.smem.check_write(offset, offset + 8, "mbarrier.init")
        name = f"mbarrier at shared {offset:#x} of CTA {cta.ctaid}"
        key = g.warp.actor.space.key(("mbarrier", cta.rank, offset))
        shown = g.warp.next_at_cluster_barrier() + 1
        cta.smem.add_barrier(offset, MBarrier(arrivals, name, g.warp.actor, g.origin("mbarrier.init"), key, shown))
        made[cta.rank, offset] = arrivals


def mbarrier_inval(g: LaneGroup, address, mask):
    for p in active(g, mask):
        cta, offset = shared_cta(g, pick(address, p))
        cta.barrier(offset, g.warp).check_idle()
        del cta.smem.barriers[offset]


def mbarrier_arrive(g: LaneGroup, address, count, expect, drop: bool, no_complete: bool, scope: str, mask):
    """Arrive at mbarriers; returns their states. scope: that of the release, empty for a relaxed arrival, "default" if
    none is named: that of the CTA, by which CUTLASS's pipelines release to other CTAs, too."""
    g.engine.progress += 1
    if scope:
        publish(g, mask)
    states, released, origin = np.zeros(g.n, np.uint64), False, g.origin("mbarrier.arrive")
    if g.launch.checks:
        g.warp.actor.order.next(g.warp.actor.key, origin)
    hands_on, barrier = handed_on(g, scope), None
    for p in active(g, mask):
        a = pick(address, p)
        tx = None if expect is None else pick(expect, p)
        cta, offset = shared_cta(g, a, "exit-before-arrival")
        if cta.exited:  # a note has been made
            continue
        note_visit(g, cta, g.warp.actor.key, scope)
        barrier = cta.barrier(offset, g.warp)
        g.clock.trace.completes(barrier, g.warp.index)
        pass_dependency(g, barrier)
        if cta is not g.cta and expect is None and not drop and not no_complete:
            if scope == "cluster" and not released:  # it leaves when all that the warp did is performed there
                g.t = g.clock.fence(g, "mbarrier.arrive")
                released = True
            remote_arrive(g, cta, barrier, pick(count, p), origin, None if scope == "cta" else hands_on)
        else:
            states[p] = barrier.arrive(pick(count, p), tx, drop, no_complete, origin, hands_on)
    g.hesitate(Meeting(barrier, 0, True, True))
    return int(states[0]) if g.n == 1 else states


def note_visit(g: LaneGroup, cta, key, scope: str = "cluster"):
    """An arrival, the latest event of a component, goes to a CTA, which has to wait for it before it exits: one
    of a warp to another CTA, and any of the tensor core's."""
    if g.launch.checks and (cta is not g.cta or key is not g.warp.actor.key) and scope not in ("", "cta"):
        cta.smem.visitors["arrival", key] = g.warp.actor.order.now, "exit-before-arrival"


def remote_arrive(g: LaneGroup, cta, barrier: MBarrier, count: int, origin, hands_on):
    """An arrive at another CTA's barrier travels, but no longer than to the warp's next release."""
    travelling = g.warp.remote_arrivals
    cta.travelling.append(origin)

    def land():
        if land in travelling:
            travelling.remove(land)
            cta.travelling.remove(origin)
            barrier.arrive(count, who=origin, hands_on=hands_on)

    travelling.append(land)
    g.later(g.clock.remote(g), origin, land)


def mbarrier_tx(g: LaneGroup, address, count, mask):
    """expect_tx, or with negative counts complete_tx: relaxed, so that what a fence before it has released goes on."""
    g.engine.progress += 1
    origin, hands_on = g.origin("mbarrier.expect_tx"), handed_on(g, "")
    for p in active(g, mask):
        barrier_at(g, pick(address, p)).transaction(pick(count, p), origin, hands_on)


def mbarrier_try_wait(g: LaneGroup, address, phase, parity: bool, limit: int | None) -> bool:
    """Suspends until the phase completes or the time limit strikes: after `limit` ns, or when nothing moves."""
    if g.timed_out:
        g.timed_out = False
        return True
    if alu.is_array(address) or alu.is_array(phase):
        phases = g.lane_array(phase, 64) >> np.uint64(0 if parity else 63)  # a state counts arrivals, too
        if len(set(zip(g.lane_array(address).tolist(), (phases & np.uint64(1)).tolist(), strict=True))) > 1:
            return True  # lanes look at different things: let them poll
        address, phase = pick(address, 0), pick(phase, 0)
    barrier = barrier_at(g, address)
    done = barrier.test_parity(phase) if parity else barrier.test_state(phase)
    if done:
        return True
    ns = LONG if limit is None else limit.max() if alu.is_array(limit) else limit
    return g.wait_on_phase(barrier, phase, g.clock.after(g.t, ns) if ns < LONG else 0.0)


def mbarrier_test(g: LaneGroup, address, phase, parity: bool, relaxed: bool):
    origin = g.origin("mbarrier.wait") if g.launch.checks else None

    def one(a, ph):
        barrier = barrier_at(g, a)
        done = barrier.test_parity(ph) if parity else barrier.test_state(ph)
        if done and origin is not None:
            g.warp.actor.waited(origin, barrier, barrier.phase - 1)
        if done and relaxed:
            g.warp.actor.hear(barrier.completed.knowledge)
        elif done:
            if g.launch.checks:
                barrier.completed.teach(g.warp.actor)
            take_dependency(g, barrier)
        g.pass_by(Meeting(barrier))
        return done

    if not alu.is_array(address) and not alu.is_array(phase):
        return one(address, phase)
    phases = g.lane_array(phase, 64)
    asked = [*zip(g.lane_array(address).tolist(), (phases & 1 if parity else phases >> 63 << 63).tolist(), strict=True)]
    done = {what: one(*what) for what in dict.fromkeys(asked)}
    return np.array([done[what] for what in asked])


def mbarrier_pending_count(state):
    return (state >> 1) & 0xFFFFF if not alu.is_array(state) else ((state >> 1) & 0xFFFFF).astype(np.uint32)


# -- dependent launches ------------------------------------------------------------------------------------
def grid_dependency_wait(g: LaneGroup) -> bool:
    done = g.launch.dependency_wait(g)
    if done:
        g.warp.depends = False
    return done


def pass_dependency(g: LaneGroup, barrier):
    """Who waits for this warp at a barrier relies on the griddepcontrol.wait that it has passed."""
    if g.launch.depends and not g.warp.depends:
        barrier.after_dependency = True


def take_dependency(g: LaneGroup, barrier):
    if barrier.after_dependency:
        g.warp.depends = False


def grid_launch_dependents(g: LaneGroup):
    g.launch.launch_dependents(g)
