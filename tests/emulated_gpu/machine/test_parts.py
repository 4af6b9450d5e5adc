"""Lanes that part at a branch and meet again: what each then has in registers that some have changed, or none."""

import numpy as np
import pytest

import emulated_gpu

# Lanes below `first` or from `end` on skip the middle; of those in it the ones leave whose number has a bit of `leave`,
# the others double %r2 and part again where they can; with 32 in `leave`, odd ones leave then.
PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .b64 out, .param .b32 first, .param .b32 end, .param .b32 leave) {
.reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %d<3>;
ld.param.b64 %d0, [out]; ld.param.b32 %r8, [first]; ld.param.b32 %r9, [end]; ld.param.b32 %r10, [leave];
mov.u32 %r0, %tid.x;
mad.lo.u32 %r1, %r0, 3, 5; mad.lo.u32 %r2, %r0, 7, 1; mov.u32 %r3, 11;
setp.lt.u32 %p0, %r0, 5; @%p0 bra NEXT;  // there is nothing to skip
NEXT: setp.lt.u32 %p0, %r0, %r8; @%p0 bra MEET; setp.ge.u32 %p1, %r0, %r9; @%p1 bra MEET;
and.b32 %r11, %r10, %r0; setp.ne.u32 %p3, %r11, 0; @%p3 ret;
shl.b32 %r2, %r2, 1; mov.u32 %r3, 12; and.b32 %r4, %r0, 1; setp.eq.u32 %p2, %r4, 0; @%p2 bra EVEN;
add.u32 %r2, %r2, 100; setp.ge.u32 %p3, %r10, 32; @%p3 ret; bra BOTH;
EVEN: add.u32 %r2, %r2, 10;
BOTH: add.u32 %r2, %r2, 1000;
MEET: mul.wide.u32 %d1, %r0, 12; add.u64 %d1, %d0, %d1;
st.global.b32 [%d1], %r1; st.global.b32 [%d1+4], %r2; st.global.b32 [%d1+8], %r3; ret; }
"""

LANES = [(32, 0, 1), (32, 9, 10), (32, 1, 32), (32, 3, 20), (2, 1, 2), (32, 0, 0)]  # how many, and who is inside


@pytest.mark.parametrize("leave", [0, 1, 6, 31, 32])
@pytest.mark.parametrize("schedule", [0, 1, None], ids=["0", "1", "timed"])
@pytest.mark.parametrize("threads, first, end", LANES)
def test_each_lane_keeps_what_it_had(threads, first, end, schedule, leave):
    out = np.zeros((threads, 3), np.uint32)
    with emulated_gpu.timing() if schedule is None else emulated_gpu.session(schedule=schedule):
        emulated_gpu.launch(PTX, "k", (1, 1, 1), threads, [out, first, end, leave])
    lane = np.arange(threads)
    inside = (first <= lane) & (lane < end)
    changed = 2 * (7 * lane + 1) + 1000 + np.where(lane % 2, 100, 10)
    gone = (lane & leave != 0) | (leave == 32) & (lane % 2 == 1)
    wanted = [3 * lane + 5, np.where(inside, changed, 7 * lane + 1), np.where(inside, 12, 11)]
    assert (out == np.where((inside & gone)[:, None], 0, np.stack(wanted, 1))).all()
