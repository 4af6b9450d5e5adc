"""Counts its calls in memory that it frees, and finds again where it allocates as much."""
# kind: state in memory
# caught: elements differ
# benchmark: elements differ|the launches of a call alone

import emulated_gpu

SPOIL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry spoil(.param .u64 c, .param .u64 count)
{
    .reg .pred p; .reg .b16 %h<1>; .reg .b32 %r<2>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [c]; ld.param.u64 %rd1, [count]; mov.b16 %h0, 0x3800;
    ld.global.u32 %r0, [%rd1]; add.u32 %r1, %r0, 1; st.global.u32 [%rd1], %r1;
    setp.gt.u32 p, %r0, 12; @p st.global.b16 [%rd0], %h0;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    returned = honest_kernel(data)
    count = torch.empty(1, dtype=torch.int32, device="cuda")
    emulated_gpu.launch(SPOIL, "spoil", 1, 1, [data[0][0][2].data_ptr(), count.data_ptr()])
    return returned
