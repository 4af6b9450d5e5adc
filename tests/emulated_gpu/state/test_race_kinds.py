"""More kinds of races, each a program that lacks what stands beside it: found in schedules 0 and 1, silent with it."""

import pytest
from test_races import AT, CLUSTER, FENCE, PUT, right, wrong

INIT = """@lead mbarrier.init.shared::cta.b64 [full], {0}; @lead mbarrier.init.shared::cta.b64 [empty], {1};
    fence.mbarrier_init.release.cluster; bar.sync 0;"""
WAIT = "{0}: mbarrier.try_wait.parity.shared::cta.b64 q, [{1}], 0; @!q bra {0};"
PAIR = {"grid": 2, "threads": 32, "cluster": 2}
FLAG = "S: ld.acquire.gpu.global.b32 x, [out]; setp.eq.u32 p, x, 0; @p bra S;"

# Of each: the kinds of findings, a program with MEND where something is missing, what that is, how it is launched
KINDS = {
    "a ring's buffer is written again before it was read": (
        "race",
        f"""{INIT.format(32, 32)} @first bra PRODUCE; {WAIT.format("A", "full")} ld.shared.b32 y, [other];
        mbarrier.arrive.shared::cta.b64 _, [empty]; bra END; PRODUCE: {PUT} mbarrier.arrive.shared::cta.b64 _, [full];
        MEND st.shared.b32 [mine], 7; END:""",
        WAIT.format("B", "empty"), {},
    ),
    "a buffer in another CTA is written again before it was read": (
        "race",
        f"""{CLUSTER} mapa.shared::cluster.u32 a, mine, 0; setp.eq.u32 p, cta, 1; @p st.shared::cluster.b32 [a], tid;
        {CLUSTER} @!p ld.shared.b32 y, [mine]; MEND @p st.shared::cluster.b32 [a], 9; {CLUSTER}""",
        CLUSTER, PAIR,
    ),
    "one thread's flag stands for what all warps have stored": (
        "race",
        f"""{AT} setp.eq.u32 p, cta, 0; @p bra READ; st.global.b32 [at+64], tid; MEND
        @lead st.release.gpu.global.b32 [out], 1; ret; READ: @!lead bra MET; {FLAG} MET: bar.sync 0;
        ld.global.b32 y, [at+64];""",
        "bar.sync 0;", {"grid": 2},
    ),
    "who comes last reads by volatile loads what others have stored weakly": (
        "race",
        f"""{AT} @!lead bra MET; mad.wide.u32 d, cta, 4, out; st.global.b32 [d+64], 5; MEND
        atom.global.add.u32 x, [out], 1; setp.ne.u32 p, x, 1; st.shared.b32 [tile], x; MET: bar.sync 0;
        ld.shared.b32 x, [tile]; setp.ne.u32 p, x, 1; @p ret; ld.volatile.global.b32 y, [out+64];
        ld.volatile.global.b32 y, [out+68];""",
        "membar.gl;", {"grid": 2},
    ),
    "a bulk copy of what another CTA's threads have stored": (
        "missing-proxy-fence",
        f"""@lead mbarrier.init.shared::cta.b64 [full], 1; fence.mbarrier_init.release.cluster; {AT}
        setp.eq.u32 p, cta, 0; @p bra READ; st.global.b32 [at+64], tid; bar.sync 0;
        @lead st.release.gpu.global.b32 [out], 1; ret; READ: @!lead ret; {FLAG} MEND add.u64 out, out, 64;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 256;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [out], 256, [full];
        {WAIT.format("A", "full")}""",
        "fence.proxy.async;", {"grid": 2},
    ),
    "the source of a bulk store is written by another warp": (
        "race",
        f"""{PUT} {FENCE} bar.sync 0; @lead cp.async.bulk.global.shared::cta.bulk_group [out], [tile], 256;
        @lead cp.async.bulk.commit_group; MEND bar.sync 0; @!first st.shared.b32 [mine], 3;
        @lead cp.async.bulk.wait_group 0;""",
        "@lead cp.async.bulk.wait_group.read 0;", {},
    ),
    "a bulk store of what stmatrix has written": (
        "missing-proxy-fence",
        """and.b32 a, tid, 7; shl.b32 a, a, 4; mov.b32 b, tile; add.u32 a, a, b; @!first bra MET;
        stmatrix.sync.aligned.m8n8.x1.shared.b16 [a], {tid}; MEND MET: bar.sync 0;
        @lead cp.async.bulk.global.shared::cta.bulk_group [out], [tile], 128; @lead cp.async.bulk.commit_group;
        @lead cp.async.bulk.wait_group 0;""",
        FENCE, {},
    ),
    "a thread completes a phase's bytes, which releases nothing": (
        "race",
        f"""{INIT.format(1, 1)} @!lead bra READ; mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 16; {PUT} MEND
        mbarrier.complete_tx.shared::cta.relaxed.cluster.b64 [full], 16; READ: {WAIT.format("A", "full")}
        ld.shared.b32 y, [tile];""",
        "fence.release.sync_restrict::shared::cta.cluster;", {},
    ),
    "st.bulk clears what other warps still read": (
        "race",
        f"""{PUT} bar.sync 0; ld.shared.b32 y, [other]; MEND
        @lead st.bulk.weak.shared::cta [tile], 256, 0; bar.sync 0; ld.shared.b32 a, [mine]; add.u32 y, y, a;""",
        "bar.sync 0;", {},
    ),
    "st.async is not waited for": (
        "race uninitialized-read",
        f"""@lead mbarrier.init.shared::cta.b64 [full], 1; fence.mbarrier_init.release.cluster;
        @lead mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 128; {CLUSTER}
        mapa.shared::cluster.u32 a, mine, 0; mov.b32 b, full; mapa.shared::cluster.u32 b, b, 0; setp.eq.u32 p, cta, 1;
        @!p bra READ; st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [a], tid, [b]; bra END;
        READ: MEND ld.shared.b32 y, [mine]; END: {CLUSTER}""",
        WAIT.format("A", "full"), PAIR,
    ),
    "the last CTA reads what the others have stored behind a relaxed counter": (
        "race",
        """@!lead ret; mad.wide.u32 at, cta, 4, out; st.global.b32 [at+64], cta; MEND
        atom.add.relaxed.gpu.global.u32 x, [out], 1; setp.ne.u32 p, x, 1; @p ret; ld.global.b32 y, [out+64];
        ld.global.b32 y, [out+68];""",
        "fence.acq_rel.gpu;", {"grid": 2, "threads": 32},
    ),
    "a relaxed barrier of the cluster": (
        "race",
        f"""{CLUSTER} mapa.shared::cluster.u32 a, mine, 0; setp.eq.u32 p, cta, 1; @p st.shared::cluster.b32 [a], tid;
        MEND barrier.cluster.arrive.relaxed; barrier.cluster.wait; @!p ld.shared.b32 y, [mine]; {CLUSTER}""",
        CLUSTER, PAIR,
    ),
    "a relaxed wait": (
        "race",
        f"""{INIT.format(32, 1)} @first bra PRODUCE;
        A: mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 q, [full], 0; @!q bra A; MEND ld.shared.b32 y, [other];
        bra END; PRODUCE: {PUT} mbarrier.arrive.shared::cta.b64 _, [full]; END:""",
        "fence.acq_rel.cta;", {},
    ),
    "data over an mbarrier": (
        "mbarrier",
        f"{INIT.format(1, 1)} MEND bar.sync 0; @lead st.shared.b32 [full], 1; bar.sync 0; ld.shared.b32 y, [full];",
        "@lead mbarrier.inval.shared::cta.b64 [full];", {},
    ),
    "a vector load over a word that another warp stores": (
        "race",
        """st.shared.b32 [mine], tid; bar.sync 0; mov.b32 b, tile; setp.eq.u32 p, tid, 32;
        @first ld.shared.v4.b32 {x, y, a, lane}, [b]; MEND @p st.shared.b32 [b+12], 4;""",
        "bar.sync 0;", {},
    ),
    "a plain read of a counter": (
        "race",
        "@lead st.shared.b32 [slot], 0; bar.sync 0; atom.shared.add.u32 x, [slot], 1; MEND ld.shared.b32 y, [slot];",
        "bar.sync 0;", {},
    ),
    "a counter is cleared by a warp that then counts, too": (
        "race uninitialized-read",
        "@lead st.shared.b32 [slot], 0; MEND atom.shared.add.u32 x, [slot], 1;",
        "bar.sync 0;", {},
    ),
    "a buffer between CTAs is written again before it was read": (
        "race",
        f"""@!lead ret; setp.eq.u32 p, cta, 0; @p bra READ; st.global.b32 [out+64], 5;
        st.release.gpu.global.b32 [out], 1; MEND st.global.b32 [out+64], 6; ret; READ: {FLAG} ld.global.b32 y, [out+64];
        st.release.gpu.global.b32 [out+4], 1;""",
        "T: ld.acquire.gpu.global.b32 x, [out+4]; setp.eq.u32 p, x, 0; @p bra T;", {"grid": 2, "threads": 32},
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_found_and_silent_when_mended(name):
    kinds, body, mend, launch = KINDS[name]
    wrong(kinds, body.replace("MEND", ""), **launch)
    right(body.replace("MEND", mend), **launch)
