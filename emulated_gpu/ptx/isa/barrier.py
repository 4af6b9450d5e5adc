"""Barriers of CTAs and clusters, mbarriers and fences (PTX ISA 9.7.13)."""

from __future__ import annotations

from ...errors import Unsupported
from ..syntax import SINK, Mem
from .registry import FENCED, SCOPES, Mods, op

# Costs: measured (latency/bar.sync, barrier.cluster, fence, mbarrier). No measurement: arrivals at bar as the wait,
# fence.mbarrier_init, fence.proxy.async::generic and fence.proxy.alias as fence.proxy.async; mbarrier's init, inval,
# expect_tx and complete_tx as an access to shared memory; pending_count, which is shifts of a register, as alu. What
# fences take beyond that, because of what is under way, model/fences.py adds.


@op(
    "bar.sync", "barrier.sync", "bar.cta.sync", "barrier.cta.sync",
    cost="barrier", dst=0, blocking=True, collective=True,
)  # fmt: skip
def _bar_sync(w, i, m):
    aligned = m.take("aligned") or i.op.startswith("bar.")
    number = w.read(i.operands[0], 32)
    count = w.read(i.operands[1], 32) if len(i.operands) > 1 else "None"
    w.wait_unless(f"barriers.bar_sync(g, {number}, {count}, {aligned})")


@op("bar.arrive", "barrier.arrive", "bar.cta.arrive", "barrier.cta.arrive", cost="barrier", dst=0, collective=True)
def _bar_arrive(w, i, m):
    aligned = m.take("aligned") or i.op.startswith("bar.")
    w.call(f"barriers.bar_arrive(g, {w.read(i.operands[0], 32)}, {w.read(i.operands[1], 32)}, {aligned})")


@op("bar.red", "barrier.red", "bar.cta.red", "barrier.cta.red", cost="barrier", dst=1, blocking=True, collective=True)
def _bar_red(w, i, m):
    aligned = m.take("aligned") or i.op.startswith("bar.")
    mode = m.one_of("popc", "and", "or")
    m.type()
    number = w.read(i.operands[1], 32)
    count = w.read(i.operands[2], 32) if len(i.operands) > 3 else "None"
    source = i.operands[-1]
    w.wait_unless(f"barriers.bar_sync(g, {number}, {count}, {aligned}, ({mode!r}, {w.read(source, 1)}))")
    w.write(i.operands[0], "barriers.bar_result(g)")


@op("barrier.cluster.arrive.relaxed", cost="arrive", dst=0, collective=True)
def _cluster_arrive_relaxed(w, i, m):
    w.call(f"barriers.cluster_arrive(g, False, {m.take('aligned')})")


@op("barrier.cluster.arrive", cost="cluster_release", dst=0, blocking=True, collective=True)
def _cluster_arrive(w, i, m):
    m.take("release")
    w.wait_unless("fences.fenced(g, 'barrier.cluster.arrive')")
    w.call(f"barriers.cluster_arrive(g, True, {m.take('aligned')})")


@op("barrier.cluster.wait", cost="cluster_barrier", dst=0, blocking=True, collective=True)
def _cluster_wait(w, i, m):
    acquires = m.one_of("acquire", "relaxed", default="acquire") == "acquire"
    m.take("aligned")
    w.wait_unless(f"barriers.cluster_wait(g, {acquires})")


def _fence_cost(i) -> str:
    return "fence" if "cta" in i.parts else "fence_gpu"


@op("fence", "membar", cost=_fence_cost, dst=0, blocking=True)
def _fence(w, i, m):
    m.take("sc", "acq_rel", "acquire", "release")
    m.take("sync_restrict::shared::cta", "sync_restrict::shared::cluster")
    scope = m.one_of(*SCOPES, "gl", default="")
    if scope not in ("", "cta"):
        w.wait_unless(f"fences.fenced(g, 'fence', {scope!r})")
    w.call(f"fences.fence(g, {scope if scope in SCOPES else 'gpu'!r})")


@op("fence.mbarrier_init.release.cluster", cost="fence", dst=0)
def _fence_mbarrier_init(w, i, m):
    w.call("fences.fence_mbarrier_init(g)")


@op("fence.proxy.async", cost="fence", dst=0)
def _fence_proxy_async(w, i, m):
    space = m.one_of("global", "shared::cta", "shared::cluster", default="").split("::")[0]
    w.call(f"fences.fence_proxy_async(g, {w.mask()}, {space!r})")


@op("fence.proxy.async::generic", cost="fence", dst=0)
def _fence_proxy_async_generic(w, i, m):
    """One direction, the one that checks ask for: the generic proxy's accesses, before those of the async proxy."""
    kind = m.one_of("acquire", "release")
    if not m.take("sync_restrict::shared::cluster" if kind == "acquire" else "sync_restrict::shared::cta"):
        raise Unsupported(f"this space of a fence.proxy.async::generic.{kind}")
    if not m.take("cluster"):
        raise Unsupported("this scope of a fence.proxy.async::generic")
    fence = "fences.fence_proxy_acquire" if kind == "acquire" else "fences.fence_proxy_release"
    w.call(f"{fence}(g, {w.mask()})")


@op("fence.proxy.alias", cost="fence", dst=0)
def _fence_proxy_alias(w, i, m):
    """Write nothing: the emulator has no two addresses of one place."""


@op("fence.proxy.tensormap::generic", cost="fence_tensormap", dst=0)
def _fence_tensormap(w, i, m):
    kind = m.one_of("acquire", "release")
    m.take("cta", *FENCED)
    if kind == "acquire":  # a release is that of the arrive or store behind it
        w.call(f"tensor_maps.acquire(g, {w.address(i.operands[0])})")


# -- mbarrier ----------------------------------------------------------------------------------------------------------
def _shared(w, m: Mods, mem) -> str:
    """Shared-window address of an mbarrier; a generic address where no space is given."""
    named = m.take("shared", "shared::cta", "shared::cluster")
    return w.address(mem) if named else f"addresses.from_generic({w.address(mem)}, 'shared')"


def _scope(m: Mods) -> str:
    """Take type, semantics and scope; returns the scope, "default" if none is named, or "" if .relaxed is."""
    m.take("b64")
    relaxed = m.one_of("release", "relaxed", "acquire", default=None) == "relaxed"
    scope = m.one_of("cta", "cluster", default="default")
    return "" if relaxed else scope


@op("mbarrier.init", "mbarrier.inval", cost="shared", dst=0)
def _init(w, i, m):
    address = _shared(w, m, i.operands[0])
    _scope(m)
    if i.op.startswith("mbarrier.init"):
        w.call(f"barriers.mbarrier_init(g, {address}, {w.read(i.operands[1], 32)}, {w.mask()})")
    else:
        w.call(f"barriers.mbarrier_inval(g, {address}, {w.mask()})")


def _dst_of_arrive(i) -> int:
    return 0 if isinstance(i.operands[0], Mem) else 1


@op("mbarrier.arrive", "mbarrier.arrive_drop", cost="arrive", dst=_dst_of_arrive)
def _arrive(w, i, m):
    expect, no_complete = m.take("expect_tx"), m.take("noComplete")
    operands = list(i.operands)
    state = operands.pop(0) if _dst_of_arrive(i) else SINK
    address = _shared(w, m, operands.pop(0))
    scope = _scope(m)
    value = w.read(operands[0], 32) if operands else "1"
    count, tx = ("1", value) if expect else (value, "None")
    drop = i.op.startswith("mbarrier.arrive_drop")
    text = f"barriers.mbarrier_arrive(g, {address}, {count}, {tx}, {drop}, {no_complete}, {scope!r}, {w.mask()})"
    w.write(state, text)


@op("mbarrier.expect_tx", "mbarrier.complete_tx", cost="shared", dst=0)
def _tx(w, i, m):
    address = _shared(w, m, i.operands[0])
    _scope(m)
    sign = "" if i.op.startswith("mbarrier.expect") else "-"
    w.call(f"barriers.mbarrier_tx(g, {address}, {sign}{w.read(i.operands[1], 32)}, {w.mask()})")


@op("mbarrier.test_wait", cost="wait", dst=1, blocking=True)
@op("mbarrier.try_wait", cost="wait", dst=1, blocking=True, limited=True)
def _wait(w, i, m):
    parity = m.take("parity")
    address = _shared(w, m, i.operands[1])
    relaxed = not _scope(m)
    phase = w.read(i.operands[2], 32 if parity else 64)
    if i.op.startswith("mbarrier.try_wait"):
        limit = w.read(i.operands[3], 32) if len(i.operands) > 3 else None
        w.wait_unless(f"barriers.mbarrier_try_wait(g, {address}, {phase}, {parity}, {limit})")
    w.write(i.operands[0], f"barriers.mbarrier_test(g, {address}, {phase}, {parity}, {relaxed})")


@op("mbarrier.pending_count", cost="alu", dst=1)
def _pending_count(w, i, m):
    m.type()
    w.write(i.operands[0], f"barriers.mbarrier_pending_count({w.read(i.operands[1], 64)})")
