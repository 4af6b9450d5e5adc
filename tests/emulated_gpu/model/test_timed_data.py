"""Timed runs compute nothing in the tensor core, and do not store what comes of it; all else is what it is.

Kernels hand tile numbers and pointers from warp to warp; what they do next, and for how long, depends on them.
"""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.device import DEVICE
from emulated_gpu.formats.tensormap import TensorMap, encode

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
RESULT = """tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32; ld.shared.b32 x, [slot];
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {r}, [x]; tcgen05.wait::ld.sync.aligned;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 x, 32;"""
READ = "bar.warp.sync -1; ld.shared.b32 x, [tile];"
EXPECT = "@lead mbarrier.arrive.expect_tx.shared::cta.b64 _, [done], 128;"
BYTES = "mbarrier::complete_tx::bytes [tile]"
BULK = f"@lead cp.async.bulk.shared::cluster.global.{BYTES}, [from], 128, [done];"
TENSOR = f"@lead cp.async.bulk.tensor.1d.shared::cluster.global.tile.{BYTES}, [map, {{0}}], [done];"
AWAIT = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [done], 0; @!p bra WAIT;"
COPIED = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; bar.warp.sync -1; ld.global.b32 x, [to];"
STORED = "@lead cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [map, {32}], [tile];"
GET = "ld.global.b32 y, [from];"

# How a whole warp hands on the number at `from` until it is in x. at: where a lane has a word in shared memory.
WAYS = {
    "a number": f"{GET} st.shared.b32 [at], y; {READ}",
    "in a register that had a result": f"ld.global.b32 r, [from]; st.shared.b32 [at], r; {READ}",
    "that register, in a loop": f"""{GET} mov.b32 r, 0; L: st.shared.b32 [at], r; add.u32 r, r, y; setp.le.u32 p, r, y;
        @p bra L; {READ}""",
    "a vector with a result": f"{GET} mad.lo.u32 at, lane, 4, at; st.shared.v2.b32 [at], {{y, r}}; {READ}",
    "a pointer": """mad.lo.u32 at, lane, 4, at; st.shared.b64 [at], from; bar.warp.sync -1;
        ld.shared.b64 from, [tile]; ld.global.b32 x, [from];""",
    "in global memory": f"""{GET} mul.wide.u32 d, lane, 4; add.u64 d, d, to; st.global.b32 [d], y; bar.warp.sync -1;
        ld.global.b32 x, [to];""",
    "stmatrix": f"""{GET} mad.lo.u32 at, lane, 12, at;
        stmatrix.sync.aligned.m8n8.x1.shared.b16 [at], {{y}}; {READ}""",
    "a bulk copy": f"{EXPECT} {BULK} {AWAIT} {READ}",
    "a tensor copy": f"{EXPECT} {TENSOR} {AWAIT} {READ}",
    "a tensor copy, then one word": f"{EXPECT} {TENSOR} {AWAIT} @lead st.shared.b32 [tile+64], 1; {READ}",
    "a tensor copy, then words": f"""{EXPECT} {TENSOR} {AWAIT} setp.gt.u32 p, lane, 15; @p st.shared.b32 [at], lane;
        {READ}""",
    "a bulk store": f"""{GET} st.shared.b32 [at], y; fence.proxy.async; bar.warp.sync -1;
        @lead cp.async.bulk.global.shared::cta.bulk_group [to], [tile], 128; {COPIED}""",
    "a tensor copy, stored": f"{EXPECT} {TENSOR} {AWAIT} fence.proxy.async; {STORED} {COPIED}",
}


def run(body: str, data: np.ndarray, **options) -> float:
    """Microseconds of one warp; options: of emulated_gpu.timing.

    data: 64 words; the kernel gets `from`, `to`, 32 words further, and `map`.
    """
    described = TensorMap(data.ctypes.data, "u32", (64,), (), (32,), (1,))
    ptx = f"""{HEADER}.visible .entry kernel(.param .u64 data, .param .align 64 .b8 described[128]) {{
        .shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 done; .shared .b32 slot;
        .reg .b32 x, y, r, lane, at; .reg .b64 from, to, d, map; .reg .pred p, lead;
        ld.param.u64 from, [data]; add.u64 to, from, 128; mov.b64 map, described; cvta.param.u64 map, map;
        mov.u32 lane, %laneid; setp.eq.u32 lead, lane, 0; mov.u32 at, tile; mad.lo.u32 at, lane, 4, at;
        @lead mbarrier.init.shared::cta.b64 [done], 1; fence.mbarrier_init.release.cluster; bar.warp.sync -1;
        {RESULT} {body} ret; }}"""
    DEVICE.adopt(data, "data")
    with emulated_gpu.timing("b200", **options) as timed:
        emulated_gpu.launch(ptx, "kernel", 1, 32, [data, encode(described)])
    return timed.ends_us[0]


def test_who_awaits_a_result_asks_that_it_be_computed():
    """Without it such a kernel spins for ever; times are the same."""
    took = []
    for compute in (False, True):
        data = np.full(64, 7, np.uint32)
        took.append(run("st.global.b32 [to], r;", data, compute=compute))
        assert (data[32] == 7) is not compute
    assert took[0] == took[1]


@pytest.mark.parametrize("way", WAYS)
def test_what_control_depends_on_is_exact(way):
    took = []
    for number in (2_000, 8_000):
        data = emulated_gpu.device.allocate(256).view(np.uint32)
        data[:32], data[32:] = number, 0
        took.append(run(f"{WAYS[way]} nanosleep.u32 x;", data))
    assert took[1] - took[0] == pytest.approx(6.0, rel=1e-6)


@pytest.mark.parametrize("value", ["r", "y"])
def test_what_comes_of_the_tensor_core_is_not_stored(value):
    data = emulated_gpu.device.allocate(256).view(np.uint32)
    data[:] = 9
    run(f"add.u32 y, r, 1; mul.wide.u32 d, lane, 4; add.u64 d, d, to; st.global.b32 [d], {value};", data)
    assert (data == 9).all()


def test_a_tensor_copy_that_is_overwritten_is_not_brought_in():
    """Two copies to one place and then a read of it: the second one's."""
    data = emulated_gpu.device.allocate(256).view(np.uint32)
    data[:32], data[32:] = 2_000, 8_000
    second = TENSOR.replace("{0}", "{32}")
    again = AWAIT.replace("WAIT", "AGAIN").replace("[done], 0", "[done], 1")
    read = f"{EXPECT} {TENSOR} {AWAIT} {EXPECT} {second} {again} {READ} nanosleep.u32 x;"
    assert run(read, data) - run(read.replace("{32}", "{0}"), data) == pytest.approx(6.0, abs=0.3)
