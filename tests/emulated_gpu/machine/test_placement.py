"""How many CTAs an SM runs at once: by what each takes of it, registers as ptxas says them among that."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import B200
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
    with pytest.raises(EmulatorError, match=r"512 threads of 168 registers each take 86016 of an SM's 65536"):
        emulated_gpu.launch(PTX, "k", 1, 512, [np.zeros(1, np.uint64)])
