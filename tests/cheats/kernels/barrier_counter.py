"""Counts its calls in the barrier of a cooperative grid, whose memory is none of the submission's."""
# kind: state in memory
# caught: barrier: the grid's barrier .* is left with arrivals
# benchmark: barrier: the grid's barrier .* is left with arrivals

import emulated_gpu

COUNT = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry count()
{
    .reg .b32 %r<3>; .reg .b64 %rd<1>;
    mov.u32 %r0, %envreg1; mov.u32 %r1, %envreg2; mov.b64 %rd0, {%r1, %r0};
    atom.global.add.u32 %r2, [%rd0+4], 1;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    emulated_gpu.launch(COUNT, "count", 1, 1, [], cooperative=True)
    return honest_kernel(data)
