"""Makes its session forget the launch before, for which a dependent launch does not wait."""
# kind: replaces what judges
# caught: missing-dependency-wait
# benchmark: missing-dependency-wait

import emulated_gpu

EARLY = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry early(.param .u64 a)
{
    .reg .b32 %r<2>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [a];
    ld.global.u32 %r0, [%rd0];
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    emulated_gpu.DEVICE.session.predecessor = None
    emulated_gpu.launch(EARLY, "early", 1, 1, [data[0][0][0].data_ptr()], pdl=True)
    return honest_kernel(data)
