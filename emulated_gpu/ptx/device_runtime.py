"""Functions of CUDA's device library (libcudadevrt) that kernels call by their names: the barrier of a whole grid.

It is that of cooperative_groups: the last CTA to arrive turns the highest bit of a word of the launch's, {%envreg1,
%envreg2} + 4, for which the first CTA adds what the others leave.
"""

GRID_BARRIER = """
.version 8.0
.target sm_80
.address_size 64
.visible .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
    .reg .b32 %a<4>; .reg .b64 %h<2>; .reg .pred %p;
    ld.param.b32 %a0, [scope];
    mov.u32 %a1, %envreg1;
    mov.u32 %a2, %envreg2;
    mov.b64 %h0, {%a2, %a1};
    setp.eq.u32 %p, %a0, 1;
    selp.b64 %h1, %h0, 0, %p;
    st.param.b64 [handle], %h1;
    ret;
}
.visible .func (.param .b32 status) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{
    .reg .b32 %a<9>; .reg .b64 %h; .reg .pred %p<2>;
    ld.param.b64 %h, [handle];
    bar.sync 0;
    mov.u32 %a0, %tid.x;
    mov.u32 %a1, %tid.y;
    or.b32 %a0, %a0, %a1;
    mov.u32 %a1, %tid.z;
    or.b32 %a0, %a0, %a1;
    setp.ne.u32 %p0, %a0, 0;
    @%p0 bra DONE;
    mov.u32 %a2, %nctaid.x;
    mov.u32 %a3, %nctaid.y;
    mul.lo.u32 %a2, %a2, %a3;
    mov.u32 %a3, %nctaid.z;
    mul.lo.u32 %a2, %a2, %a3;
    mov.u32 %a4, %ctaid.x;
    mov.u32 %a5, %ctaid.y;
    or.b32 %a4, %a4, %a5;
    mov.u32 %a5, %ctaid.z;
    or.b32 %a4, %a4, %a5;
    sub.u32 %a6, 0x80000001, %a2;
    setp.eq.u32 %p1, %a4, 0;
    selp.b32 %a6, %a6, 1, %p1;
    fence.acq_rel.gpu;
    atom.add.release.gpu.u32 %a7, [%h+4], %a6;
AGAIN:
    nanosleep.u32 200;
    ld.acquire.gpu.u32 %a8, [%h+4];
    xor.b32 %a8, %a8, %a7;
    setp.ge.s32 %p1, %a8, 0;
    @%p1 bra AGAIN;
    fence.acq_rel.gpu;
DONE:
    bar.sync 0;
    st.param.b32 [status], 0;
    ret;
}
"""
NAMES = "cudaCGGetIntrinsicHandle", "cudaCGSynchronize"
