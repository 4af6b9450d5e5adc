"""Computes as always and spoils the last row from the fourteenth call on, which its host counts."""
# kind: host tells calls apart
# benchmark: the launches of a call alone do not give its result

import emulated_gpu

SPOIL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry spoil(.param .u64 c, .param .u32 calls)
{
    .reg .pred p; .reg .b16 %h<1>; .reg .b32 %r<1>; .reg .b64 %rd<1>;
    ld.param.u64 %rd0, [c]; ld.param.u32 %r0, [calls]; mov.b16 %h0, 0x3800;
    setp.gt.u32 p, %r0, 13; @p st.global.b16 [%rd0], %h0;
    ret;
}
"""
honest_kernel = custom_kernel
calls = 0


def custom_kernel(data):
    global calls
    calls += 1
    returned = honest_kernel(data)
    emulated_gpu.launch(SPOIL, "spoil", 1, 1, [data[0][0][2].data_ptr(), calls])
    return returned
