"""Keeps a workspace for all calls, which the next call writes at once, while the last launch of this one may read it."""
# kind: order of launches
# benchmark: missing-dependency-wait

import emulated_gpu

HEADER = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .b64 where) {
.reg .b64 d<2>; .reg .b32 r<2>; ld.param.b64 d0, [where];
"""
WRITES = HEADER + "st.global.b32 [d0], 1; griddepcontrol.wait; ret; }"
READS = HEADER + "griddepcontrol.launch_dependents; griddepcontrol.wait; ld.global.b32 r0, [d0]; ret; }"
workspace = []
honest_kernel = custom_kernel


def custom_kernel(data):
    if not workspace:
        workspace.append(torch.zeros(2, dtype=torch.int32, device="cuda"))
    emulated_gpu.launch(WRITES, "k", 1, 1, workspace, pdl=True)
    returned = honest_kernel(data)
    emulated_gpu.launch(READS, "k", 1, 1, workspace, pdl=True)
    return returned
