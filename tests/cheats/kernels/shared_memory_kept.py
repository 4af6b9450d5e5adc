"""Reads in shared memory what the launch before has left there."""
# kind: state in memory
# caught: uninitialized-read
# benchmark: uninitialized-read

import emulated_gpu

SPOIL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry spoil(.param .u64 c)
{
    .reg .pred p; .reg .b16 %h<1>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [c]; mov.b16 %h0, 0x3800;
    .shared .align 4 .b8 word[4]; ld.shared.u32 %r0, [word]; add.u32 %r1, %r0, 1; st.shared.u32 [word], %r1; setp.gt.u32 p, %r0, 100;
    @p st.global.b16 [%rd0], %h0;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    returned = honest_kernel(data)
    emulated_gpu.launch(SPOIL, "spoil", 1, 1, [data[0][0][2].data_ptr()])
    return returned
