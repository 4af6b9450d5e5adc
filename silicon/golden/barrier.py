"""Cases of mbarriers: phases, counts and transactions (PTX ISA 9.7.13.15).

One thread runs each sequence and records what it observes.
"""

from __future__ import annotations

import numpy as np

from .case import Case, noise, of_body, output, per_thread, read_shared, source, wait

BAR = "[smem]"


def init(count: int, at: str = BAR) -> str:
    return f"mbarrier.init.shared::cta.b64 {at}, {count};"


def parity(p: int, at: str = BAR) -> str:
    """PTX that sets d32 to what test_wait.parity says of parity p."""
    return f"{{ .reg .pred t; mbarrier.test_wait.parity.shared::cta.b64 t, {at}, {p}; selp.b32 d32, 1, 0, t; }}"


def tested(state: str, kind: str = "test_wait") -> str:
    return f"{{ .reg .pred t; mbarrier.{kind}.shared::cta.b64 t, {BAR}, {state}; selp.b32 d32, 1, 0, t; }}"


def arrive(state: str, form: str = "arrive", count: str = "") -> str:
    """PTX that sets d32 to the pending count of the returned state; the state itself is opaque and kept in `state`."""
    return f"{{ mbarrier.{form}.shared::cta.b64 {state}, {BAR}{count}; mbarrier.pending_count.b64 d32, {state}; }}"


def expect(nbytes: int) -> str:
    return f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 {BAR}, {nbytes};"


def complete(nbytes: int) -> str:
    return f"mbarrier.complete_tx.relaxed.cta.shared::cta.b64 {BAR}, {nbytes};"


def sequence(name: str, steps: list[str]) -> Case:
    """A case of these steps in a row; those without a result (no d32) join the next one that has one."""
    ops, pending = [], ""
    for step in steps:
        pending += step + " "
        if "d32" in step:
            ops.append(f"{{ {pending} }}")
            pending = ""
    assert not pending
    return per_thread(name, ops, threads=1, prelude=".reg .b64 s0, s1, s2, s3, s4, s5;", shared=64)


BOTH = [parity(0), parity(1)]

CASES: list[Case] = [
    sequence(
        "mbarrier_fresh",
        [
            init(1),
            *BOTH,
            init(7, "[smem+8]"),
            parity(0, "[smem+8]"),
            parity(1, "[smem+8]"),
            init(1048575, "[smem+16]"),
            "mbarrier.arrive.shared::cta.b64 s0, [smem+16]; mbarrier.pending_count.b64 d32, s0;",
        ],
    ),
    sequence("mbarrier_phases", [init(1)] + [x for i in range(5) for x in (arrive(f"s{i}"), *BOTH, tested(f"s{i}"))]),
    sequence("mbarrier_counts", [init(3)] + [x for i in range(6) for x in (arrive(f"s{i % 3}"), *BOTH)]),
    sequence(
        "mbarrier_arrive_count",
        [
            init(10),
            arrive("s0", count=", 4"),
            *BOTH,
            arrive("s1", count=", 5"),
            *BOTH,
            arrive("s2"),
            *BOTH,
            tested("s0"),
            tested("s2", "try_wait"),
            arrive("s3", count=", 10"),
            *BOTH,
            tested("s3"),
        ],
    ),
    sequence(
        "mbarrier_no_complete",
        [
            init(4),
            arrive("s0", "arrive.noComplete", ", 2"),
            *BOTH,
            arrive("s1", "arrive.noComplete", ", 1"),
            *BOTH,
            arrive("s2"),
            *BOTH,
            tested("s0"),
            tested("s2"),
        ],
    ),
    sequence(
        "mbarrier_drop",
        [
            init(3),
            arrive("s0", "arrive_drop"),
            *BOTH,
            arrive("s1"),
            arrive("s2"),
            *BOTH,
            arrive("s3"),
            *BOTH,
            arrive("s4"),
            *BOTH,
            arrive("s5", "arrive_drop.noComplete", ", 1"),
            arrive("s0"),
            *BOTH,
            arrive("s1"),
            *BOTH,
        ],
    ),
    sequence(
        "mbarrier_drop_count",
        [
            init(6),
            arrive("s0", "arrive_drop", ", 4"),
            *BOTH,
            arrive("s1", count=", 2"),
            *BOTH,
            arrive("s2"),
            *BOTH,
            arrive("s3"),
            *BOTH,
        ],
    ),
    sequence(
        "mbarrier_tx_after_expect",
        [
            init(1),
            expect(64),
            *BOTH,
            arrive("s0"),
            *BOTH,
            complete(16),
            *BOTH,
            complete(48),
            *BOTH,
            arrive("s1"),
            *BOTH,
        ],
    ),
    sequence(
        "mbarrier_tx_before_arrive", [init(2), expect(32), arrive("s0"), complete(32), *BOTH, arrive("s1"), *BOTH]
    ),
    # data may land before it is announced: the transaction count goes below zero and the phase must not complete early
    sequence(
        "mbarrier_tx_underflow",
        [init(2), complete(48), *BOTH, arrive("s0"), *BOTH, expect(48), *BOTH, arrive("s1"), *BOTH],
    ),
    sequence(
        "mbarrier_arrive_expect",
        [
            init(2),
            "mbarrier.arrive.expect_tx.shared::cta.b64 s0, [smem], 256; mbarrier.pending_count.b64 d32, s0;",
            *BOTH,
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 16;",
            *BOTH,
            complete(256),
            *BOTH,
            complete(16),
            *BOTH,
        ],
    ),
    sequence(
        "mbarrier_drop_expect",
        [
            init(2),
            "mbarrier.arrive_drop.expect_tx.shared::cta.b64 s0, [smem], 8; mbarrier.pending_count.b64 d32, s0;",
            arrive("s1"),
            *BOTH,
            complete(8),
            *BOTH,
            arrive("s2"),
            *BOTH,
        ],
    ),
    sequence(
        "mbarrier_tx_limits",
        [
            init(1),
            expect(1048575),
            arrive("s0"),
            *BOTH,
            complete(1048575),
            *BOTH,
            expect(1048575),
            complete(1048574),
            arrive("s1"),
            *BOTH,
            complete(1),
            *BOTH,
        ],
    ),
    sequence(
        "mbarrier_expect_zero",
        [
            init(1),
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 0;",
            *BOTH,
            expect(0),
            *BOTH,
            complete(0),
            *BOTH,
        ],
    ),
    sequence(
        "mbarrier_reinit",
        [
            init(1),
            arrive("s0"),
            *BOTH,
            "mbarrier.inval.shared::cta.b64 [smem]; st.shared.b64 [smem], 0;",
            init(2),
            *BOTH,
            arrive("s1"),
            *BOTH,
            arrive("s2"),
            *BOTH,
            "mbarrier.inval.shared::cta.b64 [smem]; st.shared.b32 [smem], 77; ld.shared.b32 d32, [smem];",
            init(1),
            *BOTH,
        ],
    ),
    sequence(
        "mbarrier_forms",
        [
            init(4),
            "mbarrier.arrive.release.cta.shared::cta.b64 _, [smem];",
            *BOTH,
            "mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [smem];",
            "mbarrier.arrive.release.cluster.shared::cta.b64 s0, [smem]; mbarrier.pending_count.b64 d32, s0;",
            "mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 s1, [smem], 0; mbarrier.pending_count.b64 d32, s1;",
            *BOTH,
            "{ .reg .pred t; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 t, [smem], 0;"
            " selp.b32 d32, 1, 0, t; }",
            "{ .reg .pred t; mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 t, [smem], 0, 1000;"
            " selp.b32 d32, 1, 0, t; }",
            "{ .reg .pred t; mbarrier.test_wait.acquire.cluster.shared::cta.b64 t, [smem], s1;"
            " selp.b32 d32, 1, 0, t; }",
            "{ .reg .pred t; mbarrier.try_wait.parity.shared::cta.b64 t, [smem], 1, 100; selp.b32 d32, 1, 0, t; }",
        ],
    ),
    sequence(
        "mbarrier_generic_address",
        [
            "{ .reg .b64 g; cvt.u64.u32 g, smem; cvta.shared.u64 g, g; mbarrier.init.b64 [g], 2;"
            " mbarrier.arrive.b64 s0, [g];"
            " mbarrier.pending_count.b64 d32, s0; }",
            "{ .reg .b64 g; .reg .pred t; cvt.u64.u32 g, smem; cvta.shared.u64 g, g;"
            " mbarrier.arrive.b64 s1, [g]; mbarrier.test_wait.parity.b64 t, [g], 0; selp.b32 d32, 1, 0, t; }",
            *BOTH,
        ],
    ),
    # every thread arrives, every thread waits: 4 phases, values cross the CTA through shared memory
    per_thread(
        "mbarrier_cta",
        [
            """{ .reg .b32 i, at, x, ph; .reg .pred t, more; setp.eq.u32 t, tid, 0;
            @t mbarrier.init.shared::cta.b64 [smem], 96; bar.sync 0;
      mov.b32 i, 0; mov.b32 d32, a32; mad.lo.u32 at, tid, 4, smem;
    ROUND: st.shared.b32 [at+64], d32; mbarrier.arrive.shared::cta.b64 s0, [smem];
    FULL: mbarrier.try_wait.shared::cta.b64 t, [smem], s0; @!t bra FULL;
      sub.u32 x, 95, tid; mad.lo.u32 x, x, 4, smem; ld.shared.b32 x, [x+64]; mad.lo.u32 d32, d32, 5, x;
      mbarrier.arrive.shared::cta.b64 s0, [smem];
    EMPTY: mbarrier.try_wait.shared::cta.b64 t, [smem], s0; @!t bra EMPTY;
      add.u32 i, i, 1; setp.lt.u32 more, i, 4; @more bra ROUND; }"""
        ],
        {"a32": noise(384, 130).view(np.uint32)},
        96,
        prelude=".reg .b64 s0;",
        shared=1024,
    ),
    # non-bulk copies signal the barrier: .noinc takes one of its 32 arrivals per thread
    of_body(
        "cp_async_mbarrier",
        "ptr out, ptr src",
        f"""
    setp.eq.u32 p, tid, 0;
    @p mbarrier.init.shared::cta.b64 [smem], 32;
    @p mbarrier.init.shared::cta.b64 [smem+8], 32;
    bar.sync 0;
    mad.wide.u32 %rd1, tid, 16, src; mad.lo.u32 %r1, tid, 16, smem;
    cp.async.cg.shared.global [%r1+64], [%rd1], 16;
    cp.async.mbarrier.arrive.noinc.shared::cta.b64 [smem];
    {wait("smem", 0)}
    cp.async.ca.shared.global [%r1+576], [%rd1+512], 16;
    cp.async.mbarrier.arrive.shared::cta.b64 [smem+8];
    mbarrier.arrive.shared::cta.b64 _, [smem+8];
    {wait("smem+8", 0)}
"""
        + read_shared(64, 1024),
        (output(1024), source(noise(1024, 131))),
        32,
        shared=2048,
    ),
]
