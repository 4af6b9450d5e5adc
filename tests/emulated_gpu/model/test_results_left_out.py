"""Timed runs in which some clusters compute: what the others leave out is noted, and nothing else may depend on it."""

import dataclasses

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.device import DEVICE
from emulated_gpu.errors import Fault, ResultsDecide
from emulated_gpu.formats.tensormap import TensorMap, encode
from emulated_gpu.machine.launch import Launch
from emulated_gpu.state.global_memory import GlobalMemory
from tests.emulated_gpu.model.test_timed_data import AWAIT, EXPECT, RESULT, STORED, TENSOR

STORE = "st.shared.b32 [at], r; bar.warp.sync -1;"
OUT = "fence.proxy.async; bar.warp.sync -1; {store} cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
BULK_STORE = "@lead cp.async.bulk.global.shared::cta.bulk_group [to], [tile], 128;"
STORES = {
    "by lanes": "st.global.b32 [mine], r;",
    "by a vector": "shl.b32 y, lane, 3; cvt.u64.u32 d, y; add.u64 d, d, to; setp.lt.u32 p, lane, 16; "
    "@p st.global.v2.b32 [d], {r, r};",
    "by one lane": "@!lead bra E; st.global.v4.b32 [to], {r, r, r, r}; st.global.v4.b32 [to+16], {r, r, r, r}; E: "
    "setp.gt.u32 p, lane, 7; @p st.global.b32 [mine], r;",
    "by a bulk copy": STORE + OUT.format(store=BULK_STORE),
    "by a tensor copy": STORE + OUT.format(store=STORED.replace("{32}", "{first}")),
    "by a tensor copy of matrices": "mad.lo.u32 y, lane, 12, at; stmatrix.sync.aligned.m8n8.x1.shared.b16 [y], {r};"
    + OUT.format(store=STORED.replace("{32}", "{first}")),
}
DECIDE = {
    "a guard": "setp.eq.u32 p, r, 0; @p nanosleep.u32 1000;",
    "a guard of a store": "setp.eq.u32 p, r, 0; @p st.global.b32 [mine], r;",
    "a branch": "setp.eq.u32 p, r, 0; @p bra E; nanosleep.u32 1000; E:",
    "a time": "add.u32 x, r, 1; nanosleep.u32 x;",
    "an address": "and.b32 x, r, 4; cvt.u64.u32 d, x; add.u64 d, d, from; ld.global.b32 x, [d];",
    "an address of a store": "and.b32 x, r, 4; cvt.u64.u32 d, x; add.u64 d, d, to; st.global.b32 [d], r;",
    "an address of shared memory": "and.b32 x, r, 4; add.u32 at, at, x; st.shared.b32 [at], lane;",
    "another lane": "shfl.sync.idx.b32 x, r, 0, 31, -1;",
    "a carry": "mad.lo.cc.u32 y, r, r, r; addc.u32 x, lane, lane; nanosleep.u32 x;",
    "a vote": "setp.eq.u32 p, r, 0; vote.sync.any.pred p, p, -1;",
    "an atomic": "red.global.add.u32 [to], r;",
    "a vector with another": "shl.b32 y, lane, 3; cvt.u64.u32 d, y; add.u64 d, d, from; st.global.v2.b32 [d], {y, r};",
    "tensor memory": RESULT.split("tcgen05.ld")[0] + "tcgen05.st.sync.aligned.32x32b.x1.b32 [x], {r};",
    "shared memory": f"{STORE} ld.shared.b32 x, [tile];",
    "shared memory by lanes": f"{STORE} ld.shared.b32 x, [at];",
    "shared memory of one lane": "@!lead bra E; st.shared.b32 [at], r; ld.shared.b32 x, [at]; E:",
    "matrices": f"{STORE} ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{x}}, [tile];",
    "global memory": "st.global.b32 [mine], r; ld.global.b32 x, [mine];",
    "global memory of one lane": "@!lead bra E; st.global.b32 [mine], r; ld.global.b32 x, [mine]; E:",
    "an atomic there": "st.global.b32 [mine], r; atom.global.add.u32 x, [mine], 1;",
    "a bulk copy there": STORE + OUT.format(store=BULK_STORE) + "ld.global.b32 x, [mine];",
    "a reduction by a bulk copy": STORE
    + OUT.format(store="@lead cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [to], [tile], 128;"),
    "local memory": "st.local.b32 [own], r; ld.local.b32 x, [own];",
    "a store with release": "st.release.gpu.global.b32 [mine], r;",
    "a tensor copy from there": STORE
    + OUT.format(store=STORED.replace("{32}", "{first}"))
    + f"{EXPECT} {TENSOR.replace('{0}', '{first}')} {AWAIT} ld.shared.b32 x, [tile];",
}
COMPUTES = (True, False, True)  # which CTAs do


def kernel(body: str) -> str:
    """PTX of a warp that gets a result of the tensor core in r; `mine` is where a lane may store."""
    return f""".version 8.8
        .target sm_100a
        .address_size 64
        .visible .entry kernel(.param .u64 data, .param .align 64 .b8 described[128]) {{
        .shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 done; .shared .b32 slot; .local .align 4 .b8 own[8];
        .reg .b32 x, y, r, lane, at, first; .reg .b64 from, to, d, map, mine; .reg .pred p, lead;
        ld.param.u64 from, [data]; mov.b64 map, described; cvta.param.u64 map, map;
        mov.u32 y, %ctaid.x; add.u32 y, y, 1; mul.wide.u32 d, y, 128; add.u64 to, from, d; shl.b32 first, y, 5;
        mov.u32 lane, %laneid; setp.eq.u32 lead, lane, 0; mov.u32 at, tile; mad.lo.u32 at, lane, 4, at;
        mul.wide.u32 d, lane, 4; add.u64 mine, to, d;
        @lead mbarrier.init.shared::cta.b64 [done], 1; fence.mbarrier_init.release.cluster; bar.warp.sync -1;
        {RESULT} {body} ret; }}"""


def run(body: str, computes=COMPUTES) -> tuple[np.ndarray, np.ndarray | None, float]:
    """Words 32 to 128 behind a run of three CTAs of a warp, to 32 of which each may store; which bytes were left out;
    and the microseconds. computes: which CTAs compute, or None: all do, as in other timed runs."""
    data = emulated_gpu.device.allocate(4 * 128).view(np.uint32)
    data[:] = 9
    described = TensorMap(data.ctypes.data, "u32", (128,), (), (32,), (1,))
    with emulated_gpu.timing("b200", compute=True) as timed:
        emulated_gpu.launch(kernel(body), "kernel", 3, 32, [data, encode(described)])
        one = DEVICE.session.recorded[0]
        one.options = dataclasses.replace(one.options, computes_mma=computes and (lambda cta: computes[cta[0]]))
        region = DEVICE.memory.find(data.ctypes.data, data.nbytes, False)
    return data[32:], region.not_computed, timed.ends_us[0]


@pytest.mark.parametrize("way", STORES)
def test_results_of_clusters_that_do_not_compute_are_left_out(way):
    stored, nothing, us = run(STORES[way], None)
    assert (stored == 0).all() and nothing is None
    stored, marks, less = run(STORES[way])
    assert (stored.reshape(3, 32) == [[0], [9], [0]]).all()
    assert (marks.reshape(4, 128) == [[False], [False], [True], [False]]).all()
    assert less == us


def test_lanes_may_store_to_several_tensors():
    memory, arrays = GlobalMemory(), [np.zeros(64, np.uint8) for _ in range(2)]
    for array in arrays:
        memory.register(array.ctypes.data, 64, "data", array)
    memory.mark_not_computed(np.array([array.ctypes.data + at for array in arrays for at in (0, 8)], np.uint64), 4)
    left_out = dict(memory.take_not_computed())
    for array in arrays:
        assert np.flatnonzero(left_out[array.ctypes.data]).tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert not memory.take_not_computed() and not any(array.any() for array in arrays)


@pytest.mark.parametrize("way", DECIDE)
def test_results_that_decide_are_not_left_out(way):
    run(DECIDE[way], None)
    with pytest.raises(ResultsDecide):
        run(DECIDE[way])


def test_results_that_are_left_out_can_be_computed_with():
    """They are zeros: by which a kernel divides, and of which it takes logarithms."""
    uses = (
        "div.u32 {}, y, {}; rem.u32 {}, y, {}; div.s32 {}, {}, {}; div.rn.f32 {}, y, {}; div.full.f32 {}, {}, {}; "
        "rcp.approx.f32 {}, {}; lg2.approx.f32 {}, {}; rsqrt.approx.f32 {}, {}; sqrt.rn.f32 {}, {}; "
        "cvt.rn.f16x2.f32 {}, {}, {}; tanh.approx.f32 {}, {}; shl.b32 {}, {}, {};"
    )
    _, left_out, _ = run(uses.replace("{}", "r") + "st.global.b32 [mine], r;")
    assert left_out.any()


def test_what_is_no_result_is_stored():
    """Beside results, by clusters that compute and by those that do not."""
    body = "mov.u32 r, 5; st.global.b32 [mine], r; st.shared.b32 [at], r; bar.warp.sync -1; ld.shared.b32 x, [tile];"
    stored, left_out, _ = run(body)
    assert (stored == 5).all() and left_out is None


@pytest.mark.parametrize("way", ["by lanes", "by one lane", "by a tensor copy"])
def test_a_store_that_is_left_out_may_not_come_before_the_wait(way, monkeypatch):
    """Of a launch that begins before the one ahead has ended, which writes there, too."""
    made = []

    def launch(code, geometry, params, memory, options, environment):
        none = (lambda first: False) if made else None
        options = dataclasses.replace(options, checks=not made, computes_mma=none)
        made.append(Launch(code, geometry, params, memory, options, environment))
        return made[-1]

    monkeypatch.setattr(emulated_gpu.device, "Launch", launch)
    data = emulated_gpu.device.allocate(4 * 128).view(np.uint32)
    arguments = [data, encode(TensorMap(data.ctypes.data, "u32", (128,), (), (32,), (1,)))]
    with pytest.raises(Fault, match="griddepcontrol.wait"), emulated_gpu.session():
        for body in ("griddepcontrol.launch_dependents; st.global.b32 [mine], y;", STORES[way]):
            emulated_gpu.launch(kernel(f"{body} griddepcontrol.wait;"), "kernel", 3, 32, arguments, pdl=True)
