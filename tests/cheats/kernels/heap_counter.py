"""Counts its calls in memory that a kernel has allocated, and is wrong from the thirteenth on."""
# kind: state in memory
# benchmark: call|heap|malloc|has no time

import emulated_gpu

SPOIL = """
.version 8.8
.target sm_100a
.address_size 64
.extern .func (.param .b64 r) malloc(.param .b64 n);
.global .align 8 .u64 kept;
.visible .entry spoil(.param .u64 c)
{
    .reg .pred p; .reg .b16 %h<1>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [c]; mov.b16 %h0, 0x3800;
    mov.u64 %rd1, kept; ld.global.u64 %rd2, [%rd1]; setp.ne.u64 p, %rd2, 0; @p bra HAVE;
    { .param .b64 n; .param .b64 r; st.param.b64 [n], 16; call.uni (r), malloc, (n); ld.param.b64 %rd2, [r]; }
    st.global.u64 [%rd1], %rd2; st.global.u32 [%rd2], 0;
HAVE:
    ld.global.u32 %r0, [%rd2]; add.u32 %r1, %r0, 1; st.global.u32 [%rd2], %r1; setp.ge.u32 p, %r0, 12;
    @p st.global.b16 [%rd0], %h0;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    returned = honest_kernel(data)
    emulated_gpu.launch(SPOIL, "spoil", 1, 1, [data[0][0][2].data_ptr()])
    return returned
