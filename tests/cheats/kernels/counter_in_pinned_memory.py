"""Counts its calls in pinned memory of the host, and is wrong from the thirteenth on."""
# kind: state in memory
# benchmark: changes device memory|the launches of a call alone|outside global memory|something else

import emulated_gpu

SPOIL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry spoil(.param .u64 c, .param .u64 count)
{
    .reg .pred p; .reg .b16 %h<1>; .reg .b32 %r<1>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [c]; ld.param.u64 %rd1, [count]; mov.b16 %h0, 0x3800;
    ld.global.u32 %r0, [%rd1]; setp.gt.u32 p, %r0, 12; @p st.global.b16 [%rd0], %h0;
    ret;
}
"""
honest_kernel = custom_kernel
counted = torch.zeros(1, dtype=torch.int32).pin_memory()


def custom_kernel(data):
    returned = honest_kernel(data)
    counted.add_(1)
    emulated_gpu.launch(SPOIL, "spoil", 1, 1, [data[0][0][2].data_ptr(), counted.data_ptr()])
    return returned
