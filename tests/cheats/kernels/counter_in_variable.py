"""Counts its calls in a variable of its module, and is wrong from the thirteenth on."""
# kind: state in memory
# benchmark: the launches of a call alone do not give its result

import emulated_gpu

SPOIL = """
.version 8.8
.target sm_100a
.address_size 64
.global .align 4 .u32 calls;
.visible .entry spoil(.param .u64 c)
{
    .reg .pred p; .reg .b16 %h<1>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [c]; mov.b16 %h0, 0x3800;
    mov.u64 %rd1, calls; ld.global.u32 %r0, [%rd1]; add.u32 %r1, %r0, 1; st.global.u32 [%rd1], %r1;
    setp.ge.u32 p, %r0, 12;
    @p st.global.b16 [%rd0], %h0;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    returned = honest_kernel(data)
    emulated_gpu.launch(SPOIL, "spoil", 1, 1, [data[0][0][2].data_ptr()])
    return returned
