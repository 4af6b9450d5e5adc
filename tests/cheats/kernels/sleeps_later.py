"""Sleeps from the seventh call on, which its host counts: sleeping moves nothing and executes little."""
# kind: work put off
# timed: all_run

import emulated_gpu

SLEEP = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry sleeps(.param .u32 calls)
{
    .reg .pred p; .reg .b32 %r<1>;
    ld.param.u32 %r0, [calls]; setp.lt.u32 p, %r0, 7; @p ret;
    nanosleep.u32 50000;
    ret;
}
"""
honest_kernel = custom_kernel
calls = 0


def custom_kernel(data):
    global calls
    calls += 1
    emulated_gpu.launch(SLEEP, "sleeps", 1, 1, [calls])
    return honest_kernel(data)
