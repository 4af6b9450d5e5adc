"""Is wrong where %clock64 is large, as on a GPU that has run for a while."""
# kind: tells the emulator
# caught: elements differ

import emulated_gpu

SPOIL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry spoil(.param .u64 c)
{
    .reg .pred p; .reg .b16 %h<1>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [c]; mov.b16 %h0, 0x3800;
    mov.u64 %rd1, %clock64; setp.gt.u64 p, %rd1, 0x100000000;
    @p st.global.b16 [%rd0], %h0;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    returned = honest_kernel(data)
    emulated_gpu.launch(SPOIL, "spoil", 1, 1, [data[0][0][2].data_ptr()])
    return returned
