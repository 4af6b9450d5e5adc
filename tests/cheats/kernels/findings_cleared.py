"""Reads beyond its input, catches the error and clears what its session has kept of it."""
# kind: replaces what judges
# caught: out-of-bounds
# benchmark: out-of-bounds

import emulated_gpu

BEYOND = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry beyond(.param .u64 a)
{
    .reg .b32 %r<2>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [a];
    ld.global.u32 %r0, [%rd0+65536];
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    session = emulated_gpu.DEVICE.session
    try:
        emulated_gpu.launch(BEYOND, "beyond", 1, 1, [data[0][0][0].data_ptr()])
    except emulated_gpu.EmulatorError:
        session.findings.clear()
        session.failure = None
    return honest_kernel(data)
