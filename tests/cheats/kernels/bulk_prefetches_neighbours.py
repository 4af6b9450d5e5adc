"""Prefetches by bulk copies what lies behind its inputs."""
# kind: other calls' data
# caught: out-of-bounds
# benchmark: out-of-bounds

import emulated_gpu

PREFETCH = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry around(.param .u64 a)
{
    .reg .b64 %rd<1>;
    ld.param.u64 %rd0, [a]; cp.async.bulk.prefetch.L2.global [%rd0], 1048576;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    emulated_gpu.launch(PREFETCH, "around", 1, 1, [data[0][0][0].data_ptr()])
    return honest_kernel(data)
