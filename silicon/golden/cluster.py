"""Cases of distributed shared memory.

PTX ISA 9.7.9.23-24 (mapa, getctarank), 9.7.13.3 (barrier.cluster), 9.7.13.7 (red.async), 9.7.9.12 (st.async).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .case import Case, fill_shared, noise, of_body, output, per_thread, read_shared, source, wait

MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
RANK = "mov.u32 rank, %cluster_ctarank; mov.u32 size, %cluster_nctarank;"
# after the last remote access no CTA may leave before the others are done with its shared memory
NEXT = "add.u32 other, rank, 1; rem.u32 other, other, size;"


def clustered(
    name: str,
    size: int,
    threads: int,
    body: str,
    words: int,
    src: bytes | np.ndarray,
    shared: int,
    grid: int | None = None,
) -> Case:
    """A case in a cluster with `words` 32-bit results per CTA.

    `out` points to the CTA's part; `rank`, `size` and `other` (the next rank) are set.
    """
    head = f"""
    .reg .b32 rank, size, other, cta;
    {RANK} {NEXT}
    mov.u32 cta, %ctaid.x;
    mad.wide.u32 out, cta, {4 * words}, out;
"""
    grid = grid or size
    args, launch = (output(4 * words * grid), source(src)), {"grid": (grid, 1, 1), "cluster": (size, 1, 1)}
    return of_body(name, "ptr out, ptr src", head + body, args, threads, **launch, shared=shared)


def remote_atoms() -> str:
    """The first 32 threads of each CTA apply a commuting operation each to words of every CTA in the cluster."""
    ops = ["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"]
    lines = "\n".join(f"    atom.relaxed.cluster.shared::cluster.{op} x, [at+{16 * i}], v;" for i, op in enumerate(ops))
    return lines + "\n    red.release.cluster.shared::cluster.add.u32 [at+96], 7;"


def red_async(op: str, kind: str, value: str, i: int) -> tuple[str, int]:
    """A red.async instruction, and the bytes that it completes at the barrier."""
    form = f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{kind}"
    return f"{form} [at+{16 * i}], {value}, [bar];", int(kind[1:]) // 8


RED_ASYNC_OPERATIONS = [
    *(f"{op} v" for op in ("add u32", "add s32", "min u32", "max s32", "and b32", "or b32", "xor b32")),
    *("inc u32 100", "dec u32 100", "add u64 w"),
]
RED_ASYNC = [red_async(*operation.split(), i) for i, operation in enumerate(RED_ASYNC_OPERATIONS)]

BOOT = """
    setp.eq.u32 p, tid, 0;
    @p mbarrier.init.shared::cta.b64 [smem], 1;
    @p fence.mbarrier_init.release.cluster;
"""

RING = clustered(
    "cluster_ring",
    2,
    32,
    f"""
    .reg .b32 at, bar, x;
    {BOOT}
    mad.wide.u32 %rd1, thread, 4, src; ld.global.b32 x, [%rd1];
    @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 128;
    {MEET}
    mapa.shared::cluster.u32 bar, smem, other; mad.lo.u32 at, tid, 4, smem; mapa.shared::cluster.u32 %r1, at, other;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1+64], x, [bar];
    {wait("smem", 0)}
    ld.shared.b32 x, [at+64]; mad.lo.u32 x, x, 4, size; mad.lo.u32 x, x, 4, rank;
    mad.wide.u32 %rd1, tid, 4, out; st.global.b32 [%rd1], x;
    {MEET}
""",
    32,
    noise(256, 146),
    256,
)
CASES: list[Case] = [
    RING,
    # address arithmetic: mapa of every rank, both state-space forms, and back through getctarank
    per_thread(
        "mapa",
        [
            "mapa.shared::cluster.u32 d32, smem, 0",
            "mapa.shared::cluster.u32 d32, smem, 1",
            "mapa.shared::cluster.u32 d32, smem, 3",
            "{ .reg .b32 x; mapa.shared::cluster.u32 x, smem, 2; add.u32 x, x, 260;"
            " getctarank.shared::cluster.u32 d32, x; }",
            "{ .reg .b64 g, h; cvt.u64.u32 g, smem; cvta.shared.u64 g, g; mapa.u64 h, g, 3; getctarank.u64 d32, h; }",
            "{ .reg .b64 g, h; .reg .pred t; cvt.u64.u32 g, smem; cvta.shared.u64 g, g; mapa.u64 h, g, 3;"
            " isspacep.shared::cluster t, h; selp.b32 d32, 1, 0, t; }",
            "getctarank.shared::cluster.u32 d32, smem",
            "mov.u32 d32, dynamic",
        ],
        threads=2,
        grid=(4, 1, 1),
        cluster=(4, 1, 1),
        shared=1024,
    ),
    *[
        clustered(
            f"cluster_load_store_{n}",
            n,
            32,
            f"""
    .reg .b32 at, x, y; .reg .b64 g;
    mad.wide.u32 %rd1, thread, 4, src; ld.global.b32 x, [%rd1];
    mad.lo.u32 at, tid, 4, smem;
    st.shared.b32 [at], x;
    {MEET}
    mapa.shared::cluster.u32 %r1, at, other;
    ld.shared::cluster.b32 x, [%r1];
    mad.lo.u32 x, x, 3, rank;
    st.shared::cluster.b32 [%r1+128], x;
    cvt.u64.u32 g, at; cvta.shared.u64 g, g; mapa.u64 g, g, other;
    ld.b32 y, [g]; add.u32 y, y, 1; st.b32 [g+256], y;
    {MEET}
"""
            + read_shared(0, 384)
            + f"\n    {MEET}",
            96,
            noise(128 * n, 140),
            384,
        )
        for n in (2, 4)
    ],
    clustered(
        "cluster_vector_access",
        2,
        16,
        f"""
    .reg .b32 at; .reg .b16 h;
    mad.lo.u32 at, tid, 16, smem; mad.wide.u32 %rd1, thread, 16, src; ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd1];
    st.shared.v4.b32 [at], {{%r1, %r2, %r3, %r4}};
    {MEET}
    mapa.shared::cluster.u32 %r8, at, other;
    ld.shared::cluster.v4.b32 {{%r1, %r2, %r3, %r4}}, [%r8]; ld.shared::cluster.v2.b64 {{%rd2, %rd3}}, [%r8];
    ld.shared::cluster.s8 %r5, [%r8+3];
    ld.shared::cluster.u16 h, [%r8+6]; add.u32 %r2, %r2, %r5; cvt.u32.u16 %r6, h; xor.b32 %r4, %r4, %r6;
    st.shared::cluster.v2.b32 [%r8+256], {{%r4, %r3}}; st.shared::cluster.b16 [%r8+264], h;
    st.shared::cluster.b8 [%r8+266], %r5; st.shared::cluster.b8 [%r8+267], 1;
    st.shared::cluster.b32 [%r8+268], %r2;
    {MEET}
"""
        + read_shared(0, 512)
        + f"\n    {MEET}",
        128,
        noise(512, 141),
        512,
    ),
    clustered(
        "cluster_atomics",
        4,
        32,
        f"""
    .reg .b32 at, x, v, k;
    {fill_shared(0, 128, 0x0F0F1234)}
    mad.wide.u32 %rd1, thread, 4, src; ld.global.b32 v, [%rd1];
    {MEET}
    mov.b32 k, 0;
AGAIN:
    mapa.shared::cluster.u32 at, smem, k;
    {remote_atoms()}
    add.u32 k, k, 1; setp.lt.u32 p, k, size; @p bra AGAIN;
    {MEET}
"""
        + read_shared(0, 128)
        + f"\n    {MEET}",
        32,
        noise(512, 142),
        128,
    ),
    # ring of remote arrives: CTA r's barrier completes when its left neighbour's 32 threads have arrived, 3 phases
    *[
        clustered(
            f"cluster_remote_arrive_{n}",
            n,
            32,
            f"""
    .reg .b32 at, bar, x, k, ph;
    setp.eq.u32 p, tid, 0;
    @p mbarrier.init.shared::cta.b64 [smem], 32;
    @p fence.mbarrier_init.release.cluster;
    {MEET}
    mapa.shared::cluster.u32 bar, smem, other;
    mad.lo.u32 at, tid, 4, smem; mapa.shared::cluster.u32 at, at, other;
    mov.b32 k, 0; mad.lo.u32 x, rank, 1000, tid;
AGAIN:
    st.shared::cluster.b32 [at+64], x;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [bar];
    and.b32 ph, k, 1;
SPIN:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [smem], ph;
    @!q bra SPIN;
    mad.lo.u32 %r1, tid, 4, smem; ld.shared.b32 %r1, [%r1+64]; mad.lo.u32 x, x, 3, %r1;
    {MEET}
    add.u32 k, k, 1; setp.lt.u32 p, k, 3; @p bra AGAIN;
    mad.wide.u32 %rd1, tid, 4, out; st.global.b32 [%rd1], x;
""",
            32,
            np.zeros(4, np.uint8),
            256,
        )
        for n in (2, 4)
    ],
    # remote arrives with counts and remote expect_tx, completed by remote st.async data
    clustered(
        "cluster_arrive_forms",
        2,
        32,
        BOOT.replace("], 1;", "], 7;")
        + f"""
    .reg .b32 bar; .reg .pred t; .reg .b64 g;
    {MEET}
    mapa.shared::cluster.u32 bar, smem, other;
    setp.eq.u32 p, tid, 0;
    @p mbarrier.arrive.release.cluster.shared::cluster.b64 _, [bar], 4;
    @p mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [bar], 16;
    @p mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [bar], 8;
    {MEET}
    mbarrier.test_wait.parity.shared::cta.b64 t, [smem], 0; selp.b32 %r1, 1, 0, t;
    {MEET}
    @p mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [bar], 2;
    {MEET}
    mbarrier.test_wait.parity.shared::cta.b64 t, [smem], 0; selp.b32 %r2, 1, 0, t;
    {MEET}
    @p mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [bar], 24;
    {MEET}
    mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 t, [smem], 0; selp.b32 %r3, 1, 0, t;
    @p mbarrier.arrive.shared::cta.b64 %rd5, [smem], 4;
    @p mbarrier.pending_count.b64 %r4, %rd5;
    bar.sync 0;
    mbarrier.test_wait.parity.shared::cta.b64 t, [smem], 1; selp.b32 %r5, 1, 0, t;
    @!p mov.b32 %r4, 0;
    mad.wide.u32 %rd1, tid, 20, out;
    st.global.b32 [%rd1], %r1; st.global.b32 [%rd1+4], %r2; st.global.b32 [%rd1+8], %r3; st.global.b32 [%rd1+12], %r4;
    st.global.b32 [%rd1+16], %r5;
    {MEET}
""",
        160,
        np.zeros(4, np.uint8),
        64,
    ),
    clustered(
        "st_async",
        2,
        16,
        fill_shared(64, 1024)
        + BOOT
        + f"""
    .reg .b32 at, bar;
    @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {16 * (4 + 8 + 16 + 16 + 8)};
    {MEET}
    mapa.shared::cluster.u32 bar, smem, other;
    mad.lo.u32 at, tid, 16, smem; mapa.shared::cluster.u32 at, at, other;
    mad.wide.u32 %rd1, thread, 16, src; ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd1]; mov.b64 %rd2, {{%r4, %r3}};
    mov.b64 %rd3, {{%r2, %r1}};
    st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [at+64], %r1, [bar];
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [at+320], {{%r2, %r3}}, [bar];
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [at+576], {{%r4, %r3, %r2, %r1}}, [bar];
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [at+832], {{%rd2, %rd3}}, [bar];
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [at+328], %rd2, [bar];
    {wait("smem", 0)}
"""
        + read_shared(64, 1024)
        + f"\n    {MEET}",
        256,
        noise(512, 143),
        2048,
    ),
    clustered(
        "red_async",
        2,
        16,
        fill_shared(64, 192, 0x00000040)
        + BOOT
        + f"""
    .reg .b32 at, bar, v; .reg .b64 w;
    @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {16 * sum(n for _, n in RED_ASYNC)};
    {MEET}
    mapa.shared::cluster.u32 bar, smem, other; add.u32 at, smem, 64; mapa.shared::cluster.u32 at, at, other;
    mad.wide.u32 %rd1, thread, 8, src; ld.global.b64 w, [%rd1]; ld.global.b32 v, [%rd1];
"""
        + "\n".join("    " + t for t, _ in RED_ASYNC)
        + f"""
    {wait("smem", 0)}
"""
        + read_shared(64, 192)
        + f"\n    {MEET}",
        48,
        noise(256, 144),
        512,
    ),
    # every barrier.cluster form, split arrive and wait with work in between; values cross the cluster each time
    clustered(
        "cluster_barrier_forms",
        4,
        64,
        """
    .reg .b32 at, x, y, k;
    mad.lo.u32 at, tid, 4, smem; mapa.shared::cluster.u32 %r1, at, other; mad.lo.u32 x, rank, 64, tid; mov.b32 y, 1;
"""
        + "".join(
            f"""
    st.shared.b32 [at+{512 * i}], x;
    {a} mad.lo.u32 y, y, 5, tid; {w}
    ld.shared::cluster.b32 k, [%r1+{512 * i}]; mad.lo.u32 x, k, 3, y;
"""
            for i, (a, w) in enumerate(
                [
                    ("barrier.cluster.arrive;", "barrier.cluster.wait;"),
                    ("barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;"),
                    ("barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;"),
                    (
                        "fence.acq_rel.cluster; barrier.cluster.arrive.relaxed.aligned;",
                        "barrier.cluster.wait.acquire.aligned;",
                    ),
                ]
            )
        )
        + f"""
    mad.wide.u32 %rd1, tid, 4, out; st.global.b32 [%rd1], x;
    {MEET}
""",
        64,
        np.zeros(4, np.uint8),
        2048,
    ),
    # two clusters run the same ring without hearing each other
    clustered(
        "two_clusters",
        2,
        32,
        f"""
    .reg .b32 at, x, y;
    mad.wide.u32 %rd1, thread, 4, src; ld.global.b32 x, [%rd1]; mad.lo.u32 at, tid, 4, smem; st.shared.b32 [at], x;
    {MEET}
    mapa.shared::cluster.u32 %r1, at, other; ld.shared::cluster.b32 y, [%r1]; sub.u32 x, x, y;
    mad.wide.u32 %rd1, tid, 4, out; st.global.b32 [%rd1], x;
    {MEET}
""",
        32,
        noise(512, 145),
        128,
        grid=4,
    ),
    # the cluster shape is a directive of the kernel; the launch says nothing
    replace(
        RING, name="cluster_directive", cluster=None, ptx=RING.ptx.replace(") \n{", ") .reqnctapercluster 2, 1, 1\n{")
    ),
    # a launch without clusters: every CTA is a cluster of one, whose remote addresses are its own
    *[
        replace(
            clustered(
                f"cluster_of_one_{name}",
                2,
                32,
                f"""
    .reg .b32 at, bar, x, y;
    {BOOT}
    mad.wide.u32 %rd1, thread, 4, src; ld.global.b32 x, [%rd1]; mad.lo.u32 at, tid, 4, smem; st.shared.b32 [at+64], x;
    {MEET}
    mapa.shared::cluster.u32 %r1, at, other; mapa.shared::cluster.u32 bar, smem, other;
    {access}
    {MEET}
    ld.shared.b32 x, [at+64]; mad.lo.u32 x, x, 4, size; mad.lo.u32 x, x, 4, rank;
    mad.wide.u32 %rd1, tid, 4, out; st.global.b32 [%rd1], x;
""",
                32,
                noise(256, 147),
                256,
            ),
            cluster=None,
        )
        for name, access in (
            ("memory", "ld.shared::cluster.b32 y, [%r1+64]; add.u32 y, y, 5; st.shared::cluster.b32 [%r1+64], y;"),
            ("atom", "atom.relaxed.cluster.shared::cluster.add.u32 y, [%r1+64], 9;"),
            ("arrive", "@p mbarrier.arrive.release.cluster.shared::cluster.b64 _, [bar];" + wait("smem", 0)),
        )
    ],
]
