"""Is wrong where %globaltimer is what it is on a GPU, some 10^18 ns."""
# kind: tells the emulator
# caught: elements differ

import emulated_gpu

SPOIL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry spoil(.param .u64 c)
{
    .reg .pred p; .reg .b16 %h<1>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [c]; mov.u64 %rd1, %globaltimer;
    setp.gt.u64 p, %rd1, 0x10000000000; mov.b16 %h0, 0x3800; @p st.global.b16 [%rd0], %h0;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    returned = honest_kernel(data)
    emulated_gpu.launch(SPOIL, "spoil", 1, 1, [data[0][0][2].data_ptr()])
    return returned
