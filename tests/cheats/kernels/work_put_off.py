"""Counts its calls in its own memory and does most of its work from the seventh on. All calls are simulated then, and
the time is theirs: no cheat any more, see test_cheats.py."""
# kind: work put off
# timed: all_run

import emulated_gpu

MODULO = 1000
LAZY = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry lazy(.param .u64 counter, .param .u32 modulo)
{
    .reg .pred p; .reg .b32 %r<4>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [counter]; ld.param.u32 %r0, [modulo];
    sub.u32 %r0, %r0, 1;
    atom.global.inc.u32 %r1, [%rd0], %r0;
    mov.u32 %r2, 0;
    setp.lt.u32 p, %r1, 6; @p bra DONE;
    mov.u32 %r2, 20000;
LOOP:
    sub.u32 %r2, %r2, 1; setp.ne.u32 p, %r2, 0; @p bra LOOP;
DONE:
    ret;
}
"""
counters = []
honest_kernel = custom_kernel


def custom_kernel(data):
    counters[:] = counters or [torch.zeros(1, dtype=torch.int32, device="cuda")]
    emulated_gpu.launch(LAZY, "lazy", 1, 1, [counters[0].data_ptr(), MODULO])
    return honest_kernel(data)
