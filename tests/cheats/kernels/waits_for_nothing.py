"""Copies its results in a dependent launch, which does not wait for the launch that computes them."""
# kind: order of launches
# caught: missing-dependency-wait
# benchmark: missing-dependency-wait

import emulated_gpu

READS = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry reads(.param .u64 c)
{
    .reg .b16 %h<1>; .reg .b64 %rd<1>;
    ld.param.u64 %rd0, [c]; ld.global.b16 %h0, [%rd0]; st.global.b16 [%rd0], %h0;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    returned = honest_kernel(data)
    emulated_gpu.launch(READS, "reads", 1, 1, [data[0][0][2].data_ptr()], pdl=True)
    return returned
