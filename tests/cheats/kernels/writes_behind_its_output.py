"""Writes behind its output, where another call's may lie."""
# kind: other calls' data
# caught: out-of-bounds
# benchmark: out-of-bounds

import emulated_gpu

WRITES = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry beyond(.param .u64 c, .param .u64 bytes)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [c]; ld.param.u64 %rd1, [bytes]; add.u64 %rd0, %rd0, %rd1; st.global.b16 [%rd0], 0;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    returned = honest_kernel(data)
    c = data[0][0][2]
    emulated_gpu.launch(WRITES, "beyond", 1, 1, [c.data_ptr(), c.numel() * 2])
    return returned
