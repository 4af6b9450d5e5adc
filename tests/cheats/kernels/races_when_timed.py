"""Leaves a store out in the first calls, those that are timed; their number is a parameter."""
# kind: host tells calls apart
# benchmark: uninitialized-read

import emulated_gpu

READS = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry reads(.param .u64 out, .param .u32 number)
{
    .shared .align 4 .b32 word;
    .reg .pred p; .reg .b32 %r<3>; .reg .b64 %out;
    ld.param.u64 %out, [out]; ld.param.u32 %r0, [number];
    setp.gt.u32 p, %r0, 3;
    @p st.shared.u32 [word], 1;
    ld.shared.u32 %r1, [word];
    add.u32 %r2, %r1, 1;
    st.global.u32 [%out], %r2;
    ret;
}
"""
calls = 0
honest_kernel = custom_kernel


def custom_kernel(data):
    global calls
    calls += 1
    emulated_gpu.launch(READS, "reads", 1, 1, [torch.empty(1, dtype=torch.int32, device="cuda"), calls])
    return honest_kernel(data)
