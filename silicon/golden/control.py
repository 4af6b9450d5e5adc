"""Cases of control flow, calls, special registers, register budgets and dependent launches.

PTX ISA 9.7.12, 10, 9.7.19.5, 9.7.13.13.
"""

from __future__ import annotations

import numpy as np

from .case import Case, entry, module, noise, of_body, output, per_thread, source, updated

N = 64
A = noise(4 * N, 120).view(np.uint32)

SPECIAL = [f"{r}.{d}" for r in ("%tid", "%ntid", "%ctaid", "%nctaid") for d in "xyz"] + [
    "%laneid",
    "%nwarpid",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
]
CLUSTER = [f"{r}.{d}" for r in ("%cluster_ctaid", "%cluster_nctaid", "%clusterid", "%nclusterid") for d in "xyz"]
CLUSTER += ["%cluster_ctarank", "%cluster_nctarank"]
# thread = its rank in the whole grid, x fastest
GRID_THREAD = """.reg .b32 cta, x, y;
    mov.u32 x, %ctaid.z; mov.u32 y, %nctaid.y; mov.u32 cta, %ctaid.y; mad.lo.u32 cta, x, y, cta;
    mov.u32 y, %nctaid.x; mov.u32 x, %ctaid.x; mad.lo.u32 cta, cta, y, x;
    .reg .b32 in; mov.u32 x, %tid.z; mov.u32 y, %ntid.y; mov.u32 in, %tid.y; mad.lo.u32 in, x, y, in;
    mov.u32 y, %ntid.x; mov.u32 x, %tid.x; mad.lo.u32 in, in, y, x;
    mov.u32 x, %ntid.y; mul.lo.u32 y, y, x; mov.u32 x, %ntid.z; mul.lo.u32 y, y, x; mad.lo.u32 thread, cta, y, in;"""


def registers(
    name: str, names: list[str], grid: tuple[int, int, int], block: tuple[int, int, int], cluster=None
) -> Case:
    ops = [f"mov.u32 d32, {r}" for r in names]
    if names is CLUSTER:
        ops.append("{ .reg .pred t; mov.pred t, %is_explicit_cluster; selp.b32 d32, 1, 0, t; }")
    return per_thread(name, ops, grid=grid, block=block, prelude=GRID_THREAD, cluster=cluster)


FUNCTIONS = """
.func (.reg .b32 result) mix(.reg .b32 x, .reg .b32 y)
{
    mad.lo.u32 result, x, 31, y;
    xor.b32 result, result, x;
    ret;
}
.func (.param .b32 result) bounded(.param .b32 n)
{
    .reg .b32 v, i; .reg .pred t;
    ld.param.b32 v, [n];
    mov.b32 i, 1;
AGAIN:
    setp.ge.u32 t, i, v;
    @t bra OUT;
    mad.lo.u32 i, i, 2, 1;
    bra AGAIN;
OUT:
    st.param.b32 [result], i;
    ret;
}
"""

SETMAXNREG = """
    .reg .pred low;
    .reg .b32 x;
    mad.wide.u32 %rd1, tid, 4, src;
    mad.wide.u32 %rd2, tid, 4, out;
    setp.lt.u32 low, tid, 128;
    @!low bra OTHER;
    setmaxnreg.dec.sync.aligned.u32 40;
    ld.global.b32 x, [%rd1];
    mad.lo.u32 x, x, 5, tid;
    st.global.b32 [%rd2], x;
    bra FINISH;
OTHER:
    setmaxnreg.inc.sync.aligned.u32 136;
    ld.global.b32 x, [%rd1];
    mad.lo.u32 x, x, 7, tid;
    st.global.b32 [%rd2], x;
FINISH:
"""

# the first kernel lets the second one start before it writes; only the wait makes its writes visible
PRIMARY = """
    griddepcontrol.launch_dependents;
    .reg .b32 x;
    mad.wide.u32 %rd1, thread, 4, data;
    ld.global.b32 x, [%rd1];
    .reg .b32 i; .reg .pred more; mov.b32 i, 0;
AGAIN:
    mad.lo.u32 x, x, 1664525, 1013904223;
    add.u32 i, i, 1; setp.lt.u32 more, i, 2000; @more bra AGAIN;
    st.global.b32 [%rd1], x;
"""
SECONDARY = """
    .reg .b32 x, y;
    griddepcontrol.wait;
    sub.u32 y, 255, thread;
    mad.wide.u32 %rd1, y, 4, data;
    mad.wide.u32 %rd2, thread, 4, out;
    ld.global.b32 x, [%rd1];
    st.global.b32 [%rd2], x;
    griddepcontrol.launch_dependents;
"""
PDL_ARGS = (output(1024), updated(noise(1024, 122)))
PDL_PTX = module(entry("ptr out, ptr data", PRIMARY, "primary"), entry("ptr out, ptr data", SECONDARY, "secondary"))

CASES: list[Case] = [
    registers("special_registers_3d", SPECIAL, (2, 1, 2), (5, 4, 2)),
    registers("special_registers_1d", SPECIAL, (3, 1, 1), (40, 1, 1)),
    registers("cluster_registers_211", CLUSTER, (4, 2, 1), (32, 1, 1), (2, 1, 1)),
    registers("cluster_registers_222", CLUSTER, (4, 2, 2), (8, 1, 1), (2, 2, 2)),
    registers("cluster_registers_141", CLUSTER, (1, 4, 2), (8, 1, 1), (1, 4, 1)),
    registers("cluster_registers_none", CLUSTER, (3, 1, 2), (8, 1, 1)),
    # Collatz steps: lanes leave the loop at different times and meet again for the shuffle
    per_thread(
        "divergent_loop",
        [
            """{ .reg .b32 x, odd, y; .reg .pred t, more; and.b32 x, a32, 0xfff; or.b32 x, x, 1; mov.b32 d32, 0;
    AGAIN: setp.gt.u32 more, x, 1; @!more bra OUT; add.u32 d32, d32, 1; and.b32 odd, x, 1; setp.eq.u32 t, odd, 0;
    @t bra EVEN;
      mad.lo.u32 x, x, 3, 1; bra AGAIN;
    EVEN: shr.u32 x, x, 1; bra AGAIN;
    OUT: bar.warp.sync 0xffffffff; shfl.sync.bfly.b32 y, d32, 1, 31, 0xffffffff; mad.lo.u32 d32, d32, 1000, y; }"""
        ],
        {"a32": A},
        N,
    ),
    per_thread(
        "divergent_nest",
        [
            """{ .reg .b32 k, y; .reg .pred t; mov.b32 d32, 1; and.b32 k, a32, 3; setp.lt.u32 t, k, 2; @t bra LOW;
      setp.eq.u32 t, k, 2; @t bra TWO; mul.lo.u32 d32, d32, 13; bra HIGH;
    TWO: mul.lo.u32 d32, d32, 11;
    HIGH: add.u32 d32, d32, 100; bra JOIN;
    LOW: setp.eq.u32 t, k, 0; @t bra JOIN; mul.lo.u32 d32, d32, 7; and.b32 y, tid, 4; setp.ne.u32 t, y, 0;
    @!t bra JOIN; add.u32 d32, d32, 1000;
    JOIN: bar.warp.sync 0xffffffff; vote.sync.ballot.b32 y, t, 0xffffffff; xor.b32 d32, d32, y; }"""
        ],
        {"a32": A},
        N,
    ),
    per_thread(
        "indirect_branch",
        [
            """{ .reg .b32 k; and.b32 k, a32, 3; mov.b32 d32, a32;
    TARGETS: .branchtargets ZERO, ONE, TWO, THREE;
      brx.idx k, TARGETS;
    ZERO: add.u32 d32, d32, 5; bra JOIN;
    ONE: mul.lo.u32 d32, d32, 9;
    TWO: xor.b32 d32, d32, 0xff; bra JOIN;
    THREE: not.b32 d32, d32;
    JOIN: bar.warp.sync 0xffffffff; }"""
        ],
        {"a32": A},
        N,
    ),
    per_thread(
        "calls",
        [
            "call.uni (d32), mix, (a32, tid)",
            "{ .reg .b32 n; and.b32 n, a32, 0xffff; { .param .b32 r0; .param .b32 p0; st.param.b32 [p0], n;"
            " call (r0), bounded, (p0);"
            " ld.param.b32 d32, [r0]; } }",
            "{ .reg .pred t; setp.lt.s32 t, a32, 0; mov.b32 d32, 3; @t call (d32), mix, (d32, a32); }",
        ],
        {"a32": A},
        N,
        globals=FUNCTIONS,
    ),
    # some lanes, then a whole warp, leave early; the others still meet in shuffles over the survivors and in bar.sync
    per_thread(
        "early_exit",
        [
            "mov.b32 d32, tid",
            """{ .reg .pred t; setp.ge.u32 t, tid, 96; @t exit; mov.u32 d32, %laneid; setp.lt.u32 t, d32, 8; @t exit;
      .reg .b32 mirror; sub.u32 mirror, 39, d32; shfl.sync.idx.b32 d32, a32, mirror, 31, 0xffffff00; bar.sync 0; }""",
        ],
        {"a32": noise(512, 121).view(np.uint32)},
        128,
    ),
    Case(
        "setmaxnreg",
        module(entry("ptr out, ptr src", SETMAXNREG, directives=".maxntid 256, 1, 1 .maxnreg 96")),
        (output(1024), source(noise(1024, 123))),
        block=(256, 1, 1),
    ),
    Case("pdl_wait", PDL_PTX, PDL_ARGS, grid=(4, 1, 1), block=(64, 1, 1), kernels=("primary", "secondary"), pdl=True),
    Case(
        "pdl_instructions_without_attribute",
        PDL_PTX,
        PDL_ARGS,
        grid=(4, 1, 1),
        block=(64, 1, 1),
        kernels=("primary", "secondary"),
    ),
    of_body(
        "scalar_parameters",
        "ptr out, b8 a, b16 b, b32 c, b64 d, s32 e, f32 f",
        """
    cvt.u32.u8 %r1, a; cvt.u32.u16 %r2, b; cvt.u64.u32 %rd1, c; add.u64 %rd1, %rd1, d; cvt.s64.s32 %rd2, e;
    mov.b32 %r3, f;
    mad.wide.u32 %rd3, tid, 64, out;
    st.global.b32 [%rd3], %r1; st.global.b32 [%rd3+4], %r2; st.global.b64 [%rd3+8], %rd1;
    st.global.b64 [%rd3+16], %rd2; st.global.b32 [%rd3+24], %r3;
""",
        (output(256), 0xA5, 0xBEEF, 0xFFFFFFFF, 0xFEDCBA9876543210, 0xFFFFFFFE, 0x40490FDB),
        4,
    ),
]
