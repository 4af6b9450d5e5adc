"""Cases of bulk copies without a tensor map: PTX ISA 9.7.9.25.4 (cp.async.bulk, cp.reduce.async.bulk, prefetch)."""

from __future__ import annotations

import numpy as np

from .case import (
    SMALL,
    SMALL2,
    Case,
    fill_shared,
    halves,
    noise,
    of_body,
    output,
    read_shared,
    singles,
    source,
    updated,
    wait,
    write_shared,
)
from .cluster import MEET

FENCE = "fence.proxy.async.shared::cta;\n    bar.sync 0;"
START = """
    setp.eq.u32 p, tid, 0;
    @p mbarrier.init.shared::cta.b64 [smem], 1;
    @p fence.mbarrier_init.release.cluster;
"""


def load(
    name: str,
    sizes: list[int],
    source_offset: int = 0,
    destination: int = 128,
    modifier: str = "",
    operand: str = "",
    before: str = "",
    space: str = "cluster",
) -> Case:
    """A case that loads `sizes` bytes, one after the other from shared offset `destination` on, all on one barrier."""
    total = -(-(sum(sizes) + destination) // 128) * 128 + 128
    copies, at = "", 0
    for size in sizes:
        copies += (
            f"    @p cp.async.bulk.shared::{space}.global.mbarrier::complete_tx::bytes{modifier}"
            f" [smem+{destination + at}],"
            f" [src+{source_offset + at}], {size}, [smem]{operand};\n"
        )
        at += size
    body = (
        fill_shared(128, total - 128)
        + START
        + f"    {FENCE}\n    {before}\n"
        + f"""
    @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {sum(sizes)};
{copies}
    {wait("smem", 0)}
"""
        + read_shared(128, total - 128)
    )
    args = output(total - 128), source(noise(source_offset + sum(sizes) + 64, 160))
    return of_body(name, "ptr out, ptr src", body, args, shared=total)


def store(
    name: str,
    op: str,
    nbytes: int,
    src: np.ndarray,
    dst: np.ndarray,
    offset: int = 0,
    finish: str = "cp.async.bulk.wait_group 0;",
) -> Case:
    body = (
        write_shared(0, nbytes)
        + f"""
    {FENCE}
    setp.eq.u32 p, tid, 0;
    @!p bra REST;
    {op} [dst+{offset}], [smem], {nbytes};
    cp.async.bulk.commit_group;
    {finish}
REST:
"""
    )
    return of_body(name, "ptr dst, ptr src", body, (updated(dst), source(src)), shared=nbytes)


def reduce_case(op: str, kind: str) -> Case:
    count = 256 // (int(kind.lstrip("usbf")) // 8)
    if kind in ("f16", "bf16"):
        src, dst = halves(161, kind, count), halves(162, kind, count)
    elif kind == "f32":
        src, dst = singles(163, count), singles(164, count)
    elif kind == "f64":
        src, dst = singles(165, count).astype(np.float64) / 3, singles(166, count).astype(np.float64) / 7
    else:
        src, dst = noise(256, 167), noise(256, 168)
        if op in ("inc", "dec"):
            src, dst = (x.view(np.uint32) % np.uint32(40) for x in (src, dst))
    noftz = ".noftz" if kind in ("f16", "bf16") and op == "add" else ""
    return store(
        f"bulk_reduce_{op}_{kind}",
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}{noftz}.{kind}",
        256,
        src,
        dst,
    )


REDUCTIONS = [
    ("add", "u32"),
    ("add", "s32"),
    ("add", "u64"),
    ("inc", "u32"),
    ("dec", "u32"),
    ("min", "s32"),
    ("max", "u32"),
    ("min", "u64"),
    ("max", "s64"),
    ("and", "b32"),
    ("or", "b64"),
    ("xor", "b32"),
    ("add", "f16"),
    ("add", "bf16"),
    ("add", "f32"),
    ("add", "f64"),
    ("min", "f16"),
    ("max", "bf16"),
]


def between_ctas(name: str, size: int, op: str, moved: int, fill: int) -> Case:
    """Each CTA of the cluster sends its block to the next CTA and waits on its own barrier for the one it receives."""
    body = f"""
    .reg .b32 rank, other, bar, at, cta;
    mov.u32 rank, %cluster_ctarank; add.u32 other, rank, 1; rem.u32 other, other, {size};
    mov.u32 cta, %ctaid.x; mad.wide.u32 src, cta, {moved}, src; mad.wide.u32 out, cta, {moved + 128}, out;
    {write_shared(1024, moved)}
    {fill_shared(128, moved + 128, fill)}
    {START}
    fence.proxy.async.shared::cta;
    @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {moved};
    {MEET}
    mapa.shared::cluster.u32 bar, smem, other; add.u32 at, smem, 128; mapa.shared::cluster.u32 at, at, other;
    @p {op} [at], [smem+1024], {moved}, [bar];
    {wait("smem", 0)}
    {read_shared(128, moved + 128)}
    {MEET}
"""
    args, ctas = (output((moved + 128) * size), source(noise(moved * size, 170))), (size, 1, 1)
    return of_body(name, "ptr out, ptr src", body, args, grid=ctas, cluster=ctas, shared=1024 + moved)


def multicast(size: int, mask: int, sender: int) -> Case:
    """CTA `sender` loads once into every CTA of `mask`, each of which waits on its own barrier.

    The memory of the other CTAs must stay as it was.
    """
    body = f"""
    .reg .b32 rank, cta, in; .reg .pred got;
    mov.u32 rank, %cluster_ctarank; mov.u32 cta, %ctaid.x; mad.wide.u32 out, cta, 512, out;
    {fill_shared(128, 512)}
    {START}
    fence.proxy.async.shared::cta;
    shr.u32 in, {mask}, rank; and.b32 in, in, 1; setp.ne.u32 got, in, 0;
    and.pred q, p, got;
    @q mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 384;
    {MEET}
    setp.eq.u32 q, rank, {sender}; and.pred q, q, p;
    @q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [smem+192], [src], 384,
      [smem], {mask};
    @!got bra QUIET;
    {wait("smem", 0)}
QUIET:
    {MEET}
    {read_shared(128, 512)}
"""
    args, ctas = (output(512 * size), source(noise(384, 171))), (size, 1, 1)
    name = f"bulk_multicast_{size}_mask_{mask:x}"
    return of_body(name, "ptr out, ptr src", body, args, grid=ctas, cluster=ctas, shared=1024)


PIPELINE = f"""
    .reg .b32 k, stage, bar, ph, x, at; .reg .b64 from; .reg .pred more;
    setp.eq.u32 p, tid, 0;
    @p mbarrier.init.shared::cta.b64 [smem], 1;
    @p mbarrier.init.shared::cta.b64 [smem+8], 1;
    @p mbarrier.init.shared::cta.b64 [smem+16], 64;
    @p mbarrier.init.shared::cta.b64 [smem+24], 64;
    {FENCE}
    mov.b32 k, 0; mov.b32 x, 0;
AGAIN:
    and.b32 stage, k, 1; shr.u32 ph, k, 1; and.b32 ph, ph, 1; mad.lo.u32 bar, stage, 8, smem;
    mad.lo.u32 at, stage, 256, smem;
    @!p bra CONSUME;
    xor.b32 %r1, ph, 1;
    {{ .reg .pred free;
    SPIN: mbarrier.try_wait.parity.shared::cta.b64 free, [bar+16], %r1; @!free bra SPIN; }}
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 256;
    mad.wide.u32 from, k, 256, src;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [at+128], [from], 256, [bar];
CONSUME:
    {{ .reg .pred full;
    SPIN: mbarrier.try_wait.parity.shared::cta.b64 full, [bar], ph; @!full bra SPIN; }}
    mad.lo.u32 at, tid, 4, at; ld.shared.b32 %r2, [at+128]; mad.lo.u32 x, x, 3, %r2;
    mbarrier.arrive.shared::cta.b64 _, [bar+16];
    add.u32 k, k, 1; setp.lt.u32 more, k, 7; @more bra AGAIN;
    mad.wide.u32 %rd1, tid, 4, out; st.global.b32 [%rd1], x;
"""

POLICY = ".reg .b64 pol; createpolicy.fractional.L2::evict_first.b64 pol, 0.5;"

CASES: list[Case] = [
    load("bulk_load_16", [16]),
    load("bulk_load_1008", [1008], source_offset=16, destination=144),
    load("bulk_load_many", [16, 32, 48, 512, 128, 272]),
    load("bulk_load_cache_hint", [256], modifier=".L2::cache_hint", operand=", pol", before=POLICY),
    load("bulk_load_to_own_cta", [80, 64], space="cta"),
    load("bulk_load_after_prefetch", [512], before="@p cp.async.bulk.prefetch.L2.global [src], 512;"),
    store(
        "bulk_store", "cp.async.bulk.global.shared::cta.bulk_group", 512, noise(512, 172), noise(1024, 173), offset=144
    ),
    store(
        "bulk_store_read_wait",
        "cp.async.bulk.global.shared::cta.bulk_group",
        256,
        noise(256, 174),
        noise(256, 175),
        finish="cp.async.bulk.wait_group.read 0;",
    ),
    # three groups; the source is overwritten only when the first two have been read
    of_body(
        "bulk_store_groups",
        "ptr dst, ptr src",
        write_shared(0, 512)
        + f"""
    {FENCE}
    setp.eq.u32 p, tid, 0;
    @!p bra REST;
    cp.async.bulk.global.shared::cta.bulk_group [dst], [smem], 128; cp.async.bulk.commit_group;
    cp.async.bulk.global.shared::cta.bulk_group [dst+256], [smem+128], 128;
    cp.async.bulk.global.shared::cta.bulk_group [dst+128], [smem+256], 128;
    cp.async.bulk.commit_group;
    cp.async.bulk.global.shared::cta.bulk_group [dst+384], [smem+384], 128; cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 1;
    st.shared.b32 [smem], 1; st.shared.b32 [smem+128], 2; fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [dst+512], [smem], 256; cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
REST:
""",
        (updated(noise(1024, 176)), source(noise(512, 177))),
        shared=512,
    ),
    of_body(
        "bulk_pipeline", "ptr out, ptr src", PIPELINE, (output(256), source(noise(7 * 256, 178))), shared=1024
    ),
    *[reduce_case(op, kind) for op, kind in REDUCTIONS],
    # subnormal sums: what the copy unit's adder flushes
    *[
        store(
            f"bulk_reduce_add_{kind[-3:]}_subnormal",
            f"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{kind}",
            256,
            SMALL,
            SMALL2,
        )
        for kind in ("f32", "noftz.f16")
    ],
    *[
        between_ctas(
            f"bulk_cluster_copy_{n}",
            n,
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
            384,
            0xCDCDCDCD,
        )
        for n in (2, 4)
    ],
    *[
        between_ctas(
            f"bulk_cluster_reduce_{op}_{kind}",
            2,
            f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}.{kind}",
            128,
            0x80001234,
        )
        for op, kind in (
            ("add", "u32"),
            ("add", "s32"),
            ("add", "u64"),
            ("min", "s32"),
            ("max", "u32"),
            ("inc", "u32"),
            ("dec", "u32"),
            ("and", "b32"),
            ("or", "b32"),
            ("xor", "b32"),
        )
    ],
    multicast(2, 0b11, 0),
    multicast(2, 0b10, 0),
    multicast(4, 0b1111, 2),
    multicast(4, 0b0101, 1),
]
