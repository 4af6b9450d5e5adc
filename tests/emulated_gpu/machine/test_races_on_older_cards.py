"""Code of sm_80 with a planted fault: an A100 and an RTX 4090 find what a B200 finds, in the same words."""

import re

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import CHIPS
from emulated_gpu.device import DEVICE
from emulated_gpu.errors import Fault

MACHINES = "b200", "a100", "rtx4090"
# two warps; `mine`: the thread's 16 bytes of `tile`, `other`: those of the other warp's thread; `at`: its word of `out`
KERNEL = """.version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 p_out, .param .u64 p_in) {{
.reg .b32 tid, mine, other, a, b, c, d, x; .reg .b64 out, in, at, from; .reg .pred p; .shared .align 16 .b8 tile[1024];
mov.u32 tid, %tid.x; ld.param.u64 out, [p_out]; ld.param.u64 in, [p_in]; mov.u32 x, %ctaid.x;
mov.b32 mine, tile; mad.lo.u32 mine, tid, 16, mine; xor.b32 a, tid, 32; mov.b32 other, tile;
mad.lo.u32 other, a, 16, other; mad.wide.u32 at, tid, 4, out; mad.wide.u32 from, tid, 16, in; {} ret; }}"""
COPY = "cp.async.cg.shared.global [mine], [from], 16; cp.async.commit_group;"
MATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, b, c, d}, [other]; st.global.b32 [at], a;"
READ = "ld.shared.b32 a, [other]; st.global.b32 [at], a;"
APART = "mul.lo.u32 b, x, 256; cvt.u64.u32 from, b; add.u64 at, at, from;"
UNWRITTEN = "race uninitialized-read"
# what is wrong: its kind; the body; what of it is replaced by what, and is right then
PLANTED = {
    "shared memory, no barrier": (UNWRITTEN, f"st.shared.b32 [mine], tid; {READ}", "tid; ld", "tid; bar.sync 0; ld"),
    "cp.async, no barrier": (UNWRITTEN, f"{COPY} cp.async.wait_group 0; {MATRIX}", "0; ld", "0; bar.sync 0; ld"),
    "cp.async, a group too few": ("race", f"{COPY} cp.async.wait_group 1; bar.sync 0; {MATRIX}", "p 1", "p 0"),
    "cp.async into what is read": (
        "race", f"st.shared.b32 [mine], tid; bar.sync 0; {READ} {COPY} cp.async.wait_all;", "cp.async.cg",
        "bar.sync 0; cp.async.cg",
    ),
    "never written": (UNWRITTEN, f"bar.sync 0; {READ}", "bar", "st.shared.b32 [mine], tid; bar"),
    "two CTAs": ("race", "st.global.b32 [at], x;", "st", f"{APART} st"),
    "a misaligned copy": ("misaligned", f"add.u32 mine, mine, 4; {COPY} cp.async.wait_all;", "mine, 4", "mine, 0"),
    "beyond the tensor": ("out-of-bounds", "add.u64 at, at, 8192; st.global.b32 [at], tid;", "8192", "0"),
}  # fmt: skip


def found(machine: str, body: str, ctas: int) -> list[str]:
    """The kind and the text of the finding, without places in global memory; nothing if there is none."""
    out, source = np.zeros(256, np.int32), np.arange(256, dtype=np.int32)
    try:
        with DEVICE.as_chip(CHIPS[machine]), emulated_gpu.session(strict=True):
            emulated_gpu.launch(KERNEL.format(body), "k", ctas, 64, [out, source])
    except Fault as fault:
        return [fault.kind, re.sub(r"0x[0-9a-f]{9,}|(?<=outside global memory: ).*", "", str(fault))]
    return []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_as_on_a_b200(name):
    kinds, body, old, new = PLANTED[name]
    ctas = 1 + (name == "two CTAs")
    assert body.count(old) == 1
    of_b200, *others = (found(machine, body, ctas) for machine in MACHINES)
    assert of_b200[0] in kinds.split() and others == [of_b200] * 2
    assert [found(machine, body.replace(old, new), ctas) for machine in MACHINES] == [[]] * 3
