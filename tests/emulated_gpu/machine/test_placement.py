"""How many CTAs an SM runs at once: by what each takes of it, registers as ptxas says them among that."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import B200, CHIPS
from emulated_gpu.errors import EmulatorError
from emulated_gpu.formats import cubin
from emulated_gpu.machine.placement import Needs, Placement

# A CTA says when it begins, and works for a thousand cycles.
PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .b64 out) {
.reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<4>;
mov.u64 %d0, %clock64; mov.u32 %r0, 0;
LOOP: add.u32 %r0, %r0, 1; setp.lt.u32 %p, %r0, 60; @%p bra LOOP;
mov.u32 %r1, %ctaid.x; ld.param.b64 %d1, [out]; mul.wide.u32 %d2, %r1, 8; add.u64 %d1, %d1, %d2;
st.global.b64 [%d1], %d0; ret; }
"""


@pytest.mark.parametrize("registers, waves", [(168, 1), (176, 2)])
def test_ctas_wait_for_registers(registers, waves, monkeypatch):
    """Three CTAs of 128 threads for each SM. registers: of a thread, as its machine code says."""
    monkeypatch.setattr(cubin, "of_kernel", lambda code, name: {"registers": registers})
    out = np.zeros(3 * B200.sms, np.uint64)
    with emulated_gpu.timing():
        emulated_gpu.launch(PTX, "k", len(out), 128, [out])
    assert 1 + sum(np.diff(np.sort(out)) > 500) == waves


def test_all_places_are_given_back():
    placement = Placement(B200)
    needs = Needs(1024, 128, 40_000)
    placed = [placement.place(1, needs) for _ in range(B200.sms)]
    assert sorted(sm for (sm,) in placed) == list(range(B200.sms)) and placement.place(1, needs) is None
    assert placement.place(1, needs._replace(registers=20_000)) == [0]  # beside it
    for (sm,) in placed:
        placement.release(sm, needs)
    assert placement.place(2, needs) == [2, 3]


def test_a_cta_that_no_sm_has_registers_for_is_refused(monkeypatch):
    monkeypatch.setattr(cubin, "of_kernel", lambda code, name: {"registers": 168})
    with pytest.raises(EmulatorError, match="16 warps of 168 registers a thread do not fit the quarters of an SM"):
        emulated_gpu.launch(PTX, "k", 1, 512, [np.zeros(1, np.uint64)])


# machine, bytes of shared memory, threads, registers of a thread: CTAs of an SM, as cuda_occupancy.h of CUDA 13.5 says
OCCUPANCY = """
a100 0 32 8 32; a100 82944 64 8 2; a100 82945 64 8 1; rtx3090 0 32 8 16; rtx3090 0 93 191 2; rtx3090 58656 267 170 0
rtx4090 0 32 8 24; rtx4090 0 96 209 2; l40s 13576 71 191 2; l40s 98816 800 76 0; rtx5090 0 32 8 24
rtx5090 50026 265 218 0; dgx-spark 10265 128 8 8; dgx-spark 5457 134 35 9; h100 0 12 133 12; b200 18895 288 104 1
b300 0 88 111 5; b300 41164 64 191 4; rubin 0 32 8 16; rubin 0 1024 64 1; rubin 4504 64 98 8; rubin 116230 444 136 0
h200 0 96 216 2
"""


def test_an_sm_has_room_for_as_many_ctas_as_cudas_own_table_says():
    rows = [row.split() for row in OCCUPANCY.replace("\n", ";").split(";") if row.strip()]
    assert {machine for machine, *_ in rows} == set(CHIPS)
    for machine, *numbers in rows:
        *sizes, ctas = map(int, numbers)
        assert min(CHIPS[machine].rooms(*sizes).values()) == ctas, (machine, sizes)


def test_as_many_registers_are_left_as_ptxas_leaves_kernels_with_setmaxnreg():
    """Threads, CTAs of an SM: registers that ptxas 13.4 says for sm_90a, in portions of 8."""
    said = {(160, 2): 168, (224, 2): 128, (288, 1): 168, (288, 2): 96, (352, 2): 80, (384, 1): 168, (416, 1): 128}
    assert {of: CHIPS["h200"].registers_left(*of) for of in said} == said
