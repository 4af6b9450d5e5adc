"""Switches the emulator's checks off, and launches a kernel that reads shared memory that nobody has written."""
# kind: replaces what judges
# caught: uninitialized-read
# benchmark: not timed|uninitialized-read

import emulated_gpu

UNWRITTEN = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry unwritten(.param .u64 out)
{
    .shared .align 4 .b32 word;
    .reg .b32 %r<3>; .reg .b64 %out;
    mov.u32 %r0, word; ld.param.u64 %out, [out];
    ld.shared.u32 %r1, [%r0];
    add.u32 %r2, %r1, 1;
    st.global.u32 [%out], %r2;
    ret;
}
"""
honest_kernel = custom_kernel


def custom_kernel(data):
    emulated_gpu.DEVICE.session.checks = False
    emulated_gpu.DEVICE.session.failure = None
    emulated_gpu.launch(UNWRITTEN, "unwritten", 1, 1, [torch.empty(1, dtype=torch.int32, device="cuda")])
    return honest_kernel(data)
