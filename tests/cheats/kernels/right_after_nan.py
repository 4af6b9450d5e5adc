"""Is wrong where its output holds something else than NaN before: right under a judge that always writes NaN there."""
# kind: tells the emulator
# caught: elements differ

import emulated_gpu

LOOK = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry look(.param .u64 c, .param .u64 kept)
{
    .reg .b16 %h<1>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [c]; ld.param.u64 %rd1, [kept];
    ld.global.b16 %h0, [%rd0]; st.global.b16 [%rd1], %h0;
    ret;
}
.visible .entry spoil(.param .u64 c, .param .u64 kept)
{
    .reg .pred p; .reg .b16 %h<2>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [c]; ld.param.u64 %rd1, [kept];
    ld.global.b16 %h0, [%rd1]; setp.eq.f16 p, %h0, %h0; mov.b16 %h1, 0x3800; @p st.global.b16 [%rd0], %h1;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    kept = torch.zeros(1, dtype=torch.float16, device="cuda")
    pointers = [data[0][0][2].data_ptr(), kept.data_ptr()]
    emulated_gpu.launch(LOOK, "look", 1, 1, pointers)
    returned = honest_kernel(data)
    emulated_gpu.launch(LOOK, "spoil", 1, 1, pointers)
    return returned
