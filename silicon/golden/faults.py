"""Cases that the GPU refuses to finish: misaligned and out-of-range accesses, ill-formed copies."""

from __future__ import annotations

from dataclasses import replace

from . import bulk, tma
from .case import Case, noise, of_body, output, source
from .cluster import MEET, RING, clustered
from .tma import WIDE, tight


def fault(name: str, body: str, shared: int = 1024) -> Case:
    """A case of one warp that runs `body`, which must fault."""
    body, args = f"{body}\n    st.global.b32 [out], %r1;", (output(64), source(noise(1024, 220)))
    return of_body(f"fault_{name}", "ptr out, ptr src", body, args, 32, shared=shared, faults=True)


def named(name: str, case: Case) -> Case:
    """A case of another file, ill-formed, as one that must fault."""
    return replace(case, name=f"fault_{name}", faults=True)


F16 = tight("f16", *WIDE)
LOAD = tma.load("", F16, (8, 2))
CASES: list[Case] = [
    fault("ld_global_misaligned", "ld.global.b32 %r1, [src+2];"),
    fault(
        "ld_global_vector_misaligned",
        "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [src+8]; xor.b32 %r1, %r1, %r2; add.u32 %r3, %r3, %r4;"
        " xor.b32 %r1, %r1, %r3;",
    ),
    fault("ld_global_null", "mov.b64 %rd1, 0; ld.global.b32 %r1, [%rd1];"),
    fault("ld_shared_misaligned", "ld.shared.b32 %r1, [smem+1];"),
    fault(
        "ld_shared_vector_misaligned",
        "ld.shared.v2.b64 {%rd1, %rd2}, [smem+8]; mul.hi.u64 %rd1, %rd1, %rd2; cvt.u32.u64 %r1, %rd1;",
    ),
    fault("ld_shared_out_of_range", "ld.shared.b32 %r1, [smem+230000];"),
    fault("st_shared_out_of_range", "mov.b32 %r1, 1; st.shared.b32 [smem+230000], %r1;"),
    fault("atom_misaligned", "atom.global.add.u32 %r1, [out+2], 1;"),
    fault("ldmatrix_misaligned", "add.u32 %r2, smem, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2];"),
    fault("mbarrier_misaligned", "mbarrier.init.shared::cta.b64 [smem+4], 1; mov.b32 %r1, 0;"),
    fault("trap", "mov.b32 %r1, 0; setp.eq.u32 p, tid, 7; @p trap;"),
    named("bulk_source_misaligned", bulk.load("", [32], source_offset=8)),
    named("bulk_destination_misaligned", bulk.load("", [32], destination=136)),
    named(
        "bulk_store_misaligned",
        bulk.store("", "cp.async.bulk.global.shared::cta.bulk_group", 64, noise(64, 221), noise(256, 222), offset=8),
    ),
    named("tma_load_coordinate", tma.load("", F16, (3, 2))),
    named("tma_load_coordinate_negative", tma.load("", F16, (-1, 0))),
    named("tma_store_coordinate", tma.store("", F16, (4, 2))),
    named("tma_store_negative_column", tma.store("", F16, (-8, 2))),
    named("tma_store_negative_row", tma.store("", F16, (8, -1))),
    named("tma_store_outside_negative", tma.store("", F16, (-40, -40))),
    named("tma_reduce_negative", tma.store("", tight("u32", (24, 10), (8, 4)), (4, -2), op="xor")),
    named("tma_load_destination", tma.load("", F16, (8, 2), offset=64)),
    named("tma_store_source", tma.store("", F16, (8, 2), offset=16)),
    named("tma_load_past_shared", replace(LOAD, ptx=LOAD.ptx.replace(f"[smem+{tma.TILE}], [tm", "[smem+230400], [tm"))),
    named("tma_rank", replace(tma.load("", tight("f16", (40, 13, 1), (16, 8, 1)), (8, 2, 0)), args=(*LOAD.args, 0))),
    named("st_async_without_cluster", replace(RING, cluster=None)),
    named(
        "remote_rank",
        clustered(
            "",
            2,
            32,
            f"""
    {MEET}
    mapa.shared::cluster.u32 %r1, smem, 9; ld.shared::cluster.b32 %r1, [%r1]; st.global.b32 [out], %r1;
    {MEET}
""",
            32,
            noise(128, 223),
            128,
        ),
    ),
]
