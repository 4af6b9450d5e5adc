"""Discards an input when it is done with it, so that nothing has to be written back."""
# kind: inputs written
# caught: write-to-input

import emulated_gpu

DISCARD = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry gone(.param .u64 a)
{
    .reg .b64 %rd<1>;
    ld.param.u64 %rd0, [a]; discard.global.L2 [%rd0], 128;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    returned = honest_kernel(data)
    emulated_gpu.launch(DISCARD, "gone", 1, 1, [data[0][0][0].data_ptr()])
    return returned
