"""Is wrong where a bit of its output's address is set, as in half of the calls."""
# kind: host tells calls apart
# benchmark: the launches of a call alone do not give its result|does the host
# calls: 8

import emulated_gpu

SPOIL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry spoil(.param .u64 c)
{
    .reg .pred p; .reg .b16 %h<1>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [c]; mov.b16 %h0, 0x3800;
    shr.u64 %rd1, %rd0, 12; xor.b64 %rd2, %rd1, 0; shr.u64 %rd2, %rd1, 3; xor.b64 %rd1, %rd1, %rd2; and.b64 %rd1, %rd1, 1; setp.ne.u64 p, %rd1, 0;
    @p st.global.b16 [%rd0], %h0;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    returned = honest_kernel(data)
    emulated_gpu.launch(SPOIL, "spoil", 1, 1, [data[0][0][2].data_ptr()])
    return returned
