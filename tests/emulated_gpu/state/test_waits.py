"""Who waits for what: named barriers and exited threads, bulk groups out of order, arrivals that travel."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_recordings import test_replay as replay

import emulated_gpu
from emulated_gpu.errors import Fault
from emulated_gpu.state.barrier import MAX_COUNT, MBarrier
from emulated_gpu.state.global_memory import GlobalMemory, Region
from emulated_gpu.state.order import Actor, Order, Space
from emulated_gpu.state.pdl_dependency import Dependencies
from emulated_gpu.units.async_copy import BulkGroups, StoreOp
from silicon.golden import barrier, bulk, cluster

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"


def run(body: str, threads: int) -> list[int]:
    """Values of register `d` of every thread; 99 for those that did not get to the end."""
    text = f"""{HEADER}.visible .entry kernel(.param .u64 out) {{
        .reg .b32 d, tid, x; .reg .b64 at; .reg .pred p;
        mov.u32 tid, %tid.x; mov.b32 d, 0;
        {body}
        ld.param.u64 at, [out]; mad.wide.u32 at, tid, 4, at; st.global.b32 [at], d; ret; }}"""
    out = np.full(threads, 99, np.uint32)
    emulated_gpu.launch(text, "kernel", 1, threads, [out])
    return out.tolist()


# -- named barriers ----------------------------------------------------------------------------------------------------
SPIN = "mov.b32 x, 500; SPIN: sub.u32 x, x, 1; setp.ne.u32 p, x, 0; @p bra SPIN;"


@pytest.mark.parametrize("first, last", [(64, 96), (32, 33), (5, 70)])
@pytest.mark.parametrize("late", [False, True])
def test_a_barrier_does_not_wait_for_threads_that_exit(first, last, late):
    """Before the others come to the barrier, or while they wait there; whole warps and parts of them."""
    leave = f"""setp.lt.u32 p, tid, {first}; @p bra STAY; setp.ge.u32 p, tid, {last}; @p bra STAY;
        {SPIN if late else ""} exit;
        STAY: bar.sync 0; bar.sync 0; mov.b32 d, 1;"""
    assert run(leave, 112) == [99 if first <= t < last else 1 for t in range(112)]


def test_a_barrier_waits_for_threads_that_do_not_exit():
    """Stores of the slow half are there when the fast half has passed."""
    body = f""".shared .b32 slot; setp.ge.u32 p, tid, 96; @p exit; setp.lt.u32 p, tid, 64; @p bra FAST;
        {SPIN} st.shared.b32 [slot], 8;
        FAST: bar.sync 0; ld.shared.b32 d, [slot];"""
    assert run(body, 128) == [8] * 96 + [99] * 32


def test_a_barrier_with_a_count_waits_for_that_many():
    """An exit does not make up for an arrival that was counted on."""
    with pytest.raises(emulated_gpu.Hang):
        run("setp.ge.u32 p, tid, 32; @p exit; bar.sync 1, 64;", 64)


def test_an_arrival_at_the_cluster_barrier_is_not_counted_again_when_the_thread_exits():
    """Warp 1 of each CTA arrives and exits; CTA 0 waits for warp 0 of CTA 1, which stores and arrives late."""
    ptx = f"""{HEADER}.visible .entry kernel(.param .u64 out) {{
        .shared .align 4 .b32 slot; .reg .b32 x, tid, cta, a, d; .reg .b64 at; .reg .pred p, first;
        mov.u32 tid, %tid.x; mov.u32 cta, %cluster_ctarank; ld.param.u64 at, [out];
        setp.eq.u32 first, cta, 0; mov.u32 a, slot; mapa.shared::cluster.u32 a, a, 0;
        barrier.cluster.arrive; barrier.cluster.wait;
        setp.ge.u32 p, tid, 32; @p bra LEAVE; @first bra READ;
        {SPIN} st.shared::cluster.b32 [a], 8; barrier.cluster.arrive; barrier.cluster.wait; ret;
        READ: barrier.cluster.arrive; barrier.cluster.wait; ld.shared.b32 d, [slot]; st.global.b32 [at], d; ret;
        LEAVE: barrier.cluster.arrive; ret; }}"""
    out = np.zeros(1, np.uint32)
    emulated_gpu.launch(ptx, "kernel", 2, 64, [out], cluster=2)
    assert out.tolist() == [8]


# -- guards ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wait", ["bar.sync 1, 64", "barrier.cluster.wait", "bar.red.popc.u32 x, 2, 64, p"])
def test_a_wait_under_a_false_guard_is_not_executed(wait):
    assert run(f"setp.ne.u32 p, tid, tid; @p {wait}; mov.b32 d, 1;", 32) == [1] * 32


@pytest.mark.parametrize("what", ["bar.sync 0", "bar.warp.sync -1", "vote.sync.ballot.b32 d, p, -1"])
def test_what_lanes_do_together_is_refused_under_a_guard_that_parts_them(what):
    with pytest.raises(emulated_gpu.Unsupported, match="a guard that holds in some lanes only"):
        run(f"setp.lt.u32 p, tid, 16; @p {what};", 32)


def test_a_guarded_wait_for_the_kernel_before_is_none():
    out = emulated_gpu.device_tensors(torch.zeros(1, dtype=torch.int32), "out")
    ptx = f"""{HEADER}.visible .entry kernel(.param .u64 out) {{
        .reg .pred p; .reg .b64 at; ld.param.u64 at, [out]; setp.eq.u64 p, at, 0;
        @p griddepcontrol.wait; st.global.b32 [at], 1; ret; }}"""
    found = pytest.raises(Fault, match="missing-dependency-wait")
    with found, emulated_gpu.session():
        emulated_gpu.written(out)
        emulated_gpu.launch(ptx, "kernel", 1, 1, [out], pdl=True)


def test_a_box_that_leaves_its_tensor_is_out_of_bounds():
    """Rows wider than their stride: the last one ends behind the allocation. It was an IndexError of the emulator."""
    memory, array = GlobalMemory(), np.zeros(256, np.uint8)
    memory.register(array.ctypes.data, 256, "c")
    rows = array.ctypes.data + 32 * np.arange(8)
    group = SimpleNamespace(warp=SimpleNamespace(depends=False))
    with pytest.raises(Fault, match="out-of-bounds: write of 64 bytes .* 32 bytes past the end of c"):
        Dependencies("launch", memory, None, False, True).note(group, rows, 64, True)


# -- time limits on the model's clock ----------------------------------------------------------------------------------
@pytest.mark.parametrize("wait", ["mbarrier.try_wait.parity.shared::cta.b64 p, [slot], 0, {}", "nanosleep.u32 {}"])
def test_a_timed_wait_takes_its_time(wait):
    """A phase that nobody completes is waited for until the limit strikes."""
    took = []
    for ns in (2_000, 8_000):
        ptx = f"""{HEADER}.visible .entry kernel() {{ .shared .b64 slot; .reg .pred p;
            mbarrier.init.shared::cta.b64 [slot], 1; {wait.format(ns)}; ret; }}"""
        with emulated_gpu.timing("b200") as timed:
            emulated_gpu.launch(ptx, "kernel", 1, 1, [])
        took.append(timed.ends_us[0])
    assert took[1] - took[0] == pytest.approx(6.0, rel=1e-6)


# -- bulk groups -------------------------------------------------------------------------------------------------------
def test_a_recent_group_does_not_make_up_for_an_old_one():
    groups = BulkGroups()
    ops = []
    for _ in range(3):
        ops.append(StoreOp(groups, "store"))
        groups.commit()
    groups.commit()  # an empty group counts as one of the most recent
    ops[2].done = ops[2].read = ops[1].read = True
    assert [groups.unfinished(False, n) for n in range(5)] == [True, True, True, True, False]
    ops[0].done = ops[0].read = True
    assert [groups.unfinished(False, n) for n in range(5)] == [True, True, True, False, False]
    assert not groups.unfinished(True, 0)
    ops[1].done = True
    assert not groups.unfinished(False, 0)


def test_a_wait_awaits_old_groups_only():
    groups = BulkGroups()
    ops = []
    for _ in range(3):
        ops.append(StoreOp(groups, "store"))
        ops[-1].read = ops[-1].done = True
        groups.commit()
    groups.awaited(1)
    assert [op.awaited for op in ops] == [True, True, False] and groups.forgotten() is ops[2]
    groups.awaited(0)
    assert groups.forgotten() is None
    assert StoreOp(groups, "not committed") is groups.forgotten()


# -- mbarriers ---------------------------------------------------------------------------------------------------------
def test_an_announced_arrival_is_of_one_phase():
    warp = Actor(1, Space(Order(), 1))
    bar = MBarrier(2, "bar", warp)
    bar.announce()
    bar.arrive(2)
    assert bar.phase == 0
    bar.arrive()
    assert bar.phase == 1
    bar.arrive(2)
    assert bar.phase == 2
    full = MBarrier(MAX_COUNT, "full", warp)
    with pytest.raises(Fault, match="pending"):
        full.announce()


# -- any order of landing ----------------------------------------------------------------------------------------------
ASYNCHRONOUS = [c for c in (*barrier.CASES, *bulk.CASES, *cluster.CASES) if not c.faults]


@pytest.mark.parametrize("case", ASYNCHRONOUS, ids=lambda case: case.name)
def test_golden_cases_do_not_depend_on_the_schedule(case):
    """What silicon computed is computed when every asynchronous operation lands as late as it may (schedule 2)."""
    with emulated_gpu.session(schedule=2):
        replay(case)


# -- mbarrier.try_wait -------------------------------------------------------------------------------------------------
# Thread 0 asks again and again, for 100 ns each time; the arrival comes after a spin of the other warp.
POLL = f"""setp.lt.u32 p, tid, 32; @p bra FIRST;
    {SPIN.replace("500", "2000")} mbarrier.arrive.shared::cta.b64 _, [bar]; exit;
    FIRST: setp.ne.u32 p, tid, 0; @p exit;
    AGAIN: add.u32 d, d, 1; mbarrier.try_wait.parity.shared::cta.b64 p, [bar], 0, LIMIT; @!p bra AGAIN;"""
INIT = ".shared .b64 bar; setp.eq.u32 p, tid, 0; @p mbarrier.init.shared::cta.b64 [bar], COUNT; bar.sync 0;"


def test_try_wait_returns_when_its_time_limit_strikes():
    asked = [run((INIT + POLL).replace("COUNT", "32").replace("LIMIT", ns), 64)[0] for ns in ("100", "10000000")]
    assert asked[0] > 10 and asked[1] == 1


def test_asking_again_and_again_in_vain_is_a_hang():
    with pytest.raises(emulated_gpu.Hang, match="1 of 33 arrivals pending"):
        run((INIT + POLL).replace("COUNT", "33").replace("LIMIT", "100"), 64)


def test_a_spin_behind_what_has_landed_is_a_hang():
    ptx = """.version 8.8
    .target sm_100a
    .address_size 64
    .visible .entry k(.param .b64 data) {
    .reg .pred %p; .reg .b32 %r; .reg .b64 %d; .shared .align 16 .b8 tile[16]; .shared .align 8 .b64 bar;
    ld.param.b64 %d, [data]; mbarrier.init.shared.b64 [bar], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d], 16, [bar];
    WAIT: mbarrier.try_wait.parity.shared.b64 %p, [bar], 0; @!%p bra WAIT;
    SPIN: ld.volatile.global.b32 %r, [%d]; setp.eq.u32 %p, %r, 0; @%p bra SPIN; ret; }
    """
    with pytest.raises(emulated_gpu.Hang, match="spins for ever"):
        emulated_gpu.launch(ptx, "k", (1, 1, 1), 1, [np.zeros(4, np.uint32)])


@pytest.mark.parametrize("write", [False, True])
def test_a_box_uses_the_words_of_its_rows(write):
    """Of evenly spaced rows a launch notes the words, and meets those of the launch before, which may know the memory
    as another region."""
    memory, rng, data = GlobalMemory(), np.random.default_rng(5), np.zeros(1 << 14, np.uint8)
    whole = memory.register(data.ctypes.data, data.size, "whole")
    part = Region(whole.start + 1024, 4096, "part", data[1024:5120])
    for region in [whole, part] * 100:
        count, width, first, taken = (int(rng.integers(*of)) for of in ((1, 9), (1, 65), (0, 512), (0, 1024)))
        rows = first + np.arange(count) * (width + int(rng.choice((0, 1, 16, 128))))
        words = {word for row in rows.tolist() for word in range(row, row + width)}
        launch, before, faults = *(Dependencies(name, memory, None, True, True) for name in "ab"), []
        before.own.mark(region, np.array([taken]), True)
        launch.before = [before.own]
        group = SimpleNamespace(warp=SimpleNamespace(depends=True), launch=SimpleNamespace(found=faults.append))
        launch.note(group, whole.start + 4 * rows, 4 * width, write)
        assert {*launch.own.used(whole)[int(write)].nonzero()[0].tolist()} == words
        assert bool(faults) is (taken + (region.start - whole.start) // 4 in words)
