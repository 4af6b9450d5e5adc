"""A guard that holds in no lane of a warp, though it is an array: the instruction does nothing."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import H200
from emulated_gpu.errors import Fault

# `nobody` holds in no lane; warp 1 has nothing else to do. `tile`: a word a thread
KERNEL = """.version 8.8\n.target sm_90a\n.address_size 64
    .visible .entry kernel(.param .u64 p_out) {{
    .shared .align 128 .b8 tile[256]; .shared .b64 full; .reg .b32 tid, mine, a; .reg .b64 out, at;
    .reg .pred nobody, lead, q; mov.u32 tid, %tid.x; ld.param.u64 out, [p_out];
    setp.gt.u32 nobody, tid, 99; setp.eq.u32 lead, tid, 0;
    mov.b32 mine, tile; mad.lo.u32 mine, tid, 4, mine; mul.wide.u32 at, tid, 4; add.u64 at, at, out;
    {} ret; }}"""


def run(body: str) -> np.ndarray:
    out = np.zeros(64, np.int32)
    with emulated_gpu.DEVICE.as_chip(H200), emulated_gpu.session(strict=True):
        emulated_gpu.launch(KERNEL.format(body), "kernel", 1, 64, [out])
    return out


@pytest.mark.parametrize("instruction", [
    "trap",
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [out], [tile], 128",
])  # fmt: skip
def test_nothing_is_done(instruction):
    assert (run(f"@nobody {instruction}; st.global.b32 [at], tid;") == np.arange(64)).all()


def test_copies_are_under_way_still():
    """An arrival that no lane makes hands on no copies: those are waited for as before."""
    body = """@lead mbarrier.init.shared.b64 [full], 1; bar.sync 0; cp.async.ca.shared.global [mine], [at], 4;
        @nobody cp.async.mbarrier.arrive.noinc.shared.b64 [full]; {} ld.shared.b32 a, [mine]; st.global.b32 [at], 7;"""
    assert (run(body.format("cp.async.wait_all;")) == 7).all()
    with pytest.raises(Fault, match="has not finished writing"):
        run(body.format(""))
