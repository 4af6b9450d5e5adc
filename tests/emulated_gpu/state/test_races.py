"""Kinds of races, each as a small program that is wrong and one that is right, in schedule 0 and whoever comes first.

`late`: what the other party does first, so that the finding does not hang on who happened to be first.
"""

import re

import numpy as np
import pytest
import torch

import emulated_gpu
from emulated_gpu.chip import B200, H200
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.errors import Fault, Hang
from emulated_gpu.formats.tensormap import TensorMap, encode
from emulated_gpu.machine.launch import Launch
from emulated_gpu.serve.driver import cuda_bindings

SPIN = "mov.b32 x, 400; {0}: sub.u32 x, x, 1; setp.ne.u32 p, x, 0; @p bra {0};"
COPY = """@lead mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 256;
    @lead cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [out], 256, [full];
    W: mbarrier.try_wait.parity.shared::cta.b64 q, [full], 0; @!q bra W;"""
CLUSTER = "barrier.cluster.arrive; barrier.cluster.wait;"
FENCE = "fence.proxy.async.shared::cta;"


def kernel(body: str, name: str = "kernel", arch: str = "sm_100a", directives: str = "") -> str:
    """tid, warp, cta: the CTA's number; `mine`: the thread's word of `tile`, `other`: that of the other warp."""
    return f""".version 8.8\n.target {arch}\n.address_size 64
        .visible .entry {name}(.param .u64 p_out, .param .u64 p_in) {directives} {{
        .shared .align 1024 .b8 tile[2048]; .shared .align 8 .b64 full; .shared .align 8 .b64 empty; .shared .b32 slot;
        .reg .b32 tid, warp, cta, lane, mine, other, a, b, x, y; .reg .b64 out, in, at, d; .reg .pred p, q, lead, first;
        mov.u32 tid, %tid.x; shr.u32 warp, tid, 5; and.b32 lane, tid, 31; mov.u32 cta, %ctaid.x;
        ld.param.u64 out, [p_out]; ld.param.u64 in, [p_in]; setp.eq.u32 lead, tid, 0; setp.lt.u32 first, tid, 32;
        mov.b32 mine, tile; mad.lo.u32 mine, tid, 4, mine; xor.b32 x, tid, 32; mov.b32 other, tile;
        mad.lo.u32 other, x, 4, other; mov.b32 x, 0; mov.b32 y, 0;
        {body} ret; }}"""


def run(
    body, grid=1, threads=64, words=1024, schedule=0, directives="", chip=B200, launches=None, strict=True, **options
):
    """The output, int32 [words], where each thread's place is `at` once the body has computed it."""
    out, source = np.zeros(words, np.int32), np.arange(words, dtype=np.int32)
    text = kernel(body, arch=chip.arch, directives=directives)
    with emulated_gpu.DEVICE.as_chip(chip), emulated_gpu.session(schedule, strict=strict):
        emulated_gpu.launch(text, "kernel", grid, threads, [out, source], **options)
    return out


def wrong(kind: str, body: str, match: str = "", schedules=(0, 1), **options):
    for schedule in schedules:
        with pytest.raises((Fault, Hang)) as found:
            run(body, schedule=schedule, **options)
        assert found.value.kind in kind.split(), found.value
        assert re.search(match, str(found.value)), found.value


def right(body: str, schedules=(0, 1), **options):
    for schedule in schedules:
        run(body, schedule=schedule, **options)


PUT, GET = "st.shared.b32 [mine], tid;", "ld.shared.b32 y, [other];"
PARTIES = {"": "", "first warp late": f"@!first bra GO; {SPIN.format('L')} GO:"}
PARTIES["second late"] = PARTIES["first warp late"].replace("!", "")


# -- shared memory -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("late", PARTIES.values(), ids=list(PARTIES))
def test_a_second_barrier_is_missing(late):
    """Write after read: no barrier at the end of a loop."""
    again = f"{PUT} bar.sync 0; {late} {GET} {{}} {PUT} bar.sync 0; {GET.replace('other', 'mine')}"
    right(again.format("bar.sync 0;"))
    wrong("race", again.format("").replace("[mine], tid; bar", "[mine], x; bar"), "may still (read|write)")


def test_two_warps_write_one_word():
    one = "and.b32 a, tid, 31; mov.b32 b, tile; mad.lo.u32 a, a, 4, b; {} st.shared.b32 [a], tid;"
    wrong("race", one.format(""), "write of shared memory .* may still write")
    right(one.format("st.shared.b32 [a], 7; bar.sync 0; @first ret;"))  # the same value, and one of them


@pytest.mark.parametrize("size", [1, 2])
def test_neighbours_in_a_word_do_not_race(size):
    """Bytes of one word written and read by two warps; the same byte is a race."""
    at = f"mov.b32 a, tile; and.b32 b, tid, 31; mad.lo.u32 a, b, {2 * size}, a;"
    put = f"""{at} @!first add.u32 a, a, {size}; .reg .b16 h; cvt.u16.u32 h, warp;
        st.shared.b{8 * size} [a], h; ld.shared.b{8 * size} h, [a];"""
    right(put)
    wrong("race", put.replace("@!first add", "setp.ne.u32 q, tid, tid; @q add"))


@pytest.mark.parametrize("proxy", ["cta", "cluster"])
def test_the_scope_of_an_arrival(proxy):
    """Data for another CTA, published by an arrival of scope .cta: nothing orders it."""
    body = f"""@lead mbarrier.init.shared::cta.b64 [full], 32; fence.mbarrier_init.release.cluster; {CLUSTER}
        setp.eq.u32 p, cta, 0; @p bra READ;
        mapa.shared::cluster.u32 a, mine, 0; st.shared::cluster.b32 [a], tid; mov.b32 b, full;
        mapa.shared::cluster.u32 b, b, 0; mbarrier.arrive.release.{proxy}.shared::cluster.b64 _, [b]; bra END;
        READ: W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [full], 0; @!q bra W;
        ld.shared.b32 y, [mine]; END: {CLUSTER}"""
    if proxy == "cta":
        wrong("race", body, r"read of shared memory .* store of warp 0 of CTA \(1", grid=2, threads=32, cluster=2)
    else:
        right(body, grid=2, threads=32, cluster=2)


def test_what_another_cta_reads_must_be_read_before_the_exit():
    body = f"""{PUT} {CLUSTER} mov.b32 b, 1; sub.u32 b, b, cta; mapa.shared::cluster.u32 a, mine, b;
        ld.shared::cluster.b32 y, [a]; {{}}"""
    pair = {"grid": 2, "threads": 32, "cluster": 2}
    wrong("unfinished cluster", body.format(""), "may still use its shared memory|has exited", **pair)
    right(body.format(CLUSTER), **pair)


def test_a_copy_over_what_others_still_read():
    """The buffer is filled again with no word from its readers."""
    load = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [in], 256, [full];"
    body = f"""@lead mbarrier.init.shared::cta.b64 [full], 1; @lead mbarrier.init.shared::cta.b64 [empty], 64;
        fence.mbarrier_init.release.cluster; bar.sync 0;
        @lead mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 256; @lead {load}
        W: mbarrier.try_wait.parity.shared::cta.b64 q, [full], 0; @!q bra W; ld.shared.b32 y, [mine];
        {FENCE} mbarrier.arrive.shared::cta.b64 _, [empty]; {{}}
        @lead mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 256; @lead {load}
        V: mbarrier.try_wait.parity.shared::cta.b64 q, [full], 1; @!q bra V;"""
    wrong("race", body.format(""), "bulk copy .* load of warp 1 .* may still read|load of warp .* may still")
    right(body.format("E: mbarrier.try_wait.parity.shared::cta.b64 q, [empty], 0; @!q bra E;"))


@pytest.mark.parametrize("fence", [FENCE, ""])
@pytest.mark.parametrize("use", ["ld.shared.b32 y, [mine];", "st.shared.b32 [mine], 0;"])
def test_a_copy_over_what_threads_used_needs_a_proxy_fence(use, fence):
    """A note: rings without it are everywhere, and some have been seen to fail."""
    body = f"""@lead mbarrier.init.shared::cta.b64 [full], 1; fence.mbarrier_init.release.cluster;
        st.shared.b32 [mine], tid; {FENCE} bar.sync 0; {use} {fence} bar.sync 0; {COPY}"""
    with emulated_gpu.session() as session:
        emulated_gpu.launch(kernel(body), "kernel", 1, 64, [np.zeros(64, np.int32)] * 2)
    assert [note.note for note in session.notes] == ["unfenced-overwrite"] * (not fence)
    assert fence or re.search(r"bulk copy .* overwrites .* (load|store) of warp", str(session.notes[0]))


# -- tensor memory -----------------------------------------------------------------------------------------------------
ST, LD = "tcgen05.st.sync.aligned.32x32b.x1.b32 [a], {tid};", "tcgen05.ld.sync.aligned.32x32b.x1.b32 {y}, [a];"
WAIT_ST, WAIT_LD = "tcgen05.wait::st.sync.aligned;", "tcgen05.wait::ld.sync.aligned;"
MEET = "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"


def tensor(body: str) -> str:
    """256 threads; `a`: the thread's lanes of 32 columns; `first`: warps 0 to 3."""
    return f"""setp.lt.u32 first, tid, 128; setp.ge.u32 p, tid, 32; @p bra HAVE;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32; HAVE: bar.sync 0; ld.shared.b32 b, [slot];
        and.b32 a, warp, 3; shl.b32 a, a, 21; add.u32 a, a, b; {body}
        {MEET} setp.ge.u32 p, tid, 32; @p bra FREED; tcgen05.dealloc.cta_group::1.sync.aligned.b32 b, 32; FREED:"""


def parts(ours: str, theirs: str, between: str = MEET) -> str:
    return f"@!first bra THEIRS; {ours} THEIRS: {between} @first bra OURS; {theirs} OURS:"


@pytest.mark.parametrize("ours, wait, theirs", [(ST, WAIT_ST, LD + WAIT_LD), (ST, WAIT_ST, ST + WAIT_ST)])
def test_a_store_to_tensor_memory_is_waited_for_by_its_warp(ours, wait, theirs):
    match = "tcgen05.st of warp .* may still write.*tcgen05.wait::st"
    wrong("tmem-race", tensor(parts(ours, theirs)), match, threads=256)
    right(tensor(parts(ours + wait, theirs)), threads=256)


def test_a_load_of_tensor_memory_is_waited_for_before_others_store():
    """Though its registers have been used: that orders nothing for others."""
    filled = ST + WAIT_ST
    read = parts(f"{filled} {LD} add.u32 x, y, 1; WAIT", filled)
    match = "tcgen05.ld of warp .* may still read.*tcgen05.wait::ld"
    wrong("tmem-race", tensor(read.replace("WAIT", "")), match, threads=256, strict=False)
    right(tensor(read.replace("WAIT", WAIT_LD)), threads=256, strict=False)


def test_lanes_of_tensor_memory_that_share_columns_do_not_race():
    """Two warps store to 16 lanes each of one quadrant; to the same lanes it is a race."""
    half = "@first bra LOW; add.u32 a, a, 1048576; LOW: tcgen05.st.sync.aligned.16x64b.x1.b32 [a], {tid};" + WAIT_ST
    right(tensor(half), threads=256)
    wrong("tmem-race", tensor(half.replace("1048576", "0")), threads=256)


@pytest.mark.parametrize(
    ("use", "by"),
    [
        ("add.u32 x, y, 1; shfl.sync.bfly.b32 x, x, 1, 31, -1; @q st.global.b32 [out], x;", "st.global"),
        ("mov.b64 at, {y, x}; and.b64 at, at, 0; add.u64 at, at, out; @q ld.global.b32 x, [at];", "ld.global"),
        ("setp.gt.u32 p, y, 7; selp.u32 x, y, 7, q; st.global.b32 [out], x;", "st.global"),
        ("@q tcgen05.st.sync.aligned.32x32b.x1.b32 [a], {y}; tcgen05.wait::st.sync.aligned;", "tcgen05.st"),
        ("setp.gt.u32 p, y, 7; and.pred p, p, q; @q bra ON; bra END; ON: @p bra END; END:", "bra"),
        ("setp.lt.u32 p, lane, 16; @p bra ON; add.u32 x, y, 1; ON: @q st.global.b32 [out], y;", "st.global"),
    ],
)
def test_garbage_of_tensor_memory_matters_where_it_decides(use, by):
    """Triton makes a loop's first turn with its guards off if there is none, and throws away what that has loaded."""
    body = f"{LD} {WAIT_LD} setp.{{}}.u32 q, tid, 0; {use}"
    body = tensor(body.replace("{y}", "{{y}}").replace("{y, x}", "{{y, x}}"))
    match = rf"tcgen05.ld.32x32b.x1 reads, and {by}\S* \(PTX line \d+\) uses, lane .* which nothing"
    wrong("tmem-uninitialised", body.format("ge"), match, threads=256)
    right(body.format("lt"), threads=256)


def test_alloc_and_dealloc_are_of_one_cta_group():
    pair = "tcgen05.{}.cta_group::{}.sync.aligned"
    body = f"""{CLUSTER} {pair.format("alloc", 2)}.shared::cta.b32 [slot], 32;
        ld.shared.b32 b, [slot];
        {pair.format("dealloc", "{}")}.b32 b, 32; {CLUSTER}"""
    of_two = {"grid": 2, "threads": 32, "cluster": 2}
    wrong("tmem-alloc", body.format(1), "in one kernel: all its tcgen05 instructions", **of_two)
    right(body.format(2), **of_two)


# -- barriers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("late", PARTIES.values(), ids=list(PARTIES))
def test_a_named_barrier_is_arrived_at_twice(late):
    """The second arrival may count for the first phase, whoever is first."""
    late = late.replace("GO", "GONE")
    twice = f"""@!first bra SYNC; bar.arrive 1, 64; {{}} bar.arrive 1, 64; bra END;
        SYNC: {late} bar.sync 1, 64; {{}} bar.sync 1, 64; END:"""
    wrong("barrier", twice.replace("{}", ""), "bar.arrive of warp 0")
    right(twice.replace("{}", "bar.sync 2, 64;"))


def test_a_named_barrier_is_shared_by_two_groups():
    groups = "setp.lt.u32 q, tid, 64; @q bra A; {} bar.sync 1, 64; bra END; A: bar.sync 1, 64; {} END:"
    wrong("barrier", groups.replace("{}", ""), "may count for another phase of named barrier 1", threads=128)
    right(groups.format("bar.sync 2, 128;", "bar.sync 2, 128;"), threads=128)


def test_a_barrier_does_not_wait_for_lanes_that_have_returned():
    """As `if (i >= n) return;` leaves them, whose way out is that of all: a block with nothing but ret."""
    early = "setp.gt.u32 q, tid, 40; @q bra OUT; bar.sync 0; atom.add.global.u32 x, [out], 1; OUT: ret;"
    right(early, threads=64)


def test_setmaxnreg_asks_for_more_than_the_cta_has():
    """168 registers a thread at first; the ISA has inc wait until the pool has enough."""
    body = "setp.lt.u32 q, tid, 128; @q bra LESS; setmaxnreg.inc.sync.aligned.u32 240; bra END; LESS: {} END:"
    options = {"threads": 384, "directives": ".maxntid 384 .minnctapersm 1"}
    dec = "setmaxnreg.dec.sync.aligned.u32 {};"
    wrong("hang", body.format(dec.format(40)), r"2304 registers of its CTA's pool, which has 256", **options)
    right(body.format(dec.format(24)), **options)
    unbounded = options | {"directives": ".maxntid 384"}  # ptxas ignores all of them (C7508)
    right(body.format(dec.format(40)), (0,), **unbounded)
    wrong("setmaxnreg", body.format(dec.format(176)), "that has 168", **options)
    late = "atom.add.global.u32 x, [out], 1;"  # behind which others may go first, also those that await registers
    right(body.format(late + dec.format(24)), range(12), **options)


@pytest.mark.parametrize("sleep", ["", "nanosleep.u32 100;"])
def test_a_spin_on_ctas_that_have_no_room(sleep):
    """A barrier of the whole grid, whose CTAs do not all fit: those that run wait for those that cannot start."""
    body = f"""@!lead ret; atom.add.release.gpu.global.u32 x, [out], 1; mov.u32 y, %nctaid.x;
        S: {sleep} ld.acquire.gpu.global.u32 x, [out]; setp.lt.u32 p, x, y; @p bra S;"""
    wrong("hang", body, r"(?s)spins.*4 of 152 CTAs .* have not started", (0,), grid=152, threads=32, shared=200_000)
    right(body, (0,), grid=4, threads=32, shared=200_000)


# -- global memory -----------------------------------------------------------------------------------------------------
AT = "mad.wide.u32 at, tid, 4, out;"


@pytest.mark.parametrize("late", PARTIES.values(), ids=list(PARTIES))
def test_global_memory_is_ordered_by_barriers(late):
    swap = f"""{AT} st.global.b32 [at], tid; {{}} {late}
        xor.b32 x, tid, 32; mad.wide.u32 at, x, 4, out; ld.global.b32 y, [at];"""
    wrong("race", swap.format(""), "(read|write) of argument 0 at byte")
    right(swap.format("bar.sync 0;"))


@pytest.mark.parametrize(
    ("write", "read", "good"),
    [
        ("st.release.gpu.global.b32 [out], 1;", "ld.acquire.gpu.global.b32", True),
        ("fence.acq_rel.gpu; st.relaxed.gpu.global.b32 [out], 1;", "ld.relaxed.gpu.global.b32", True),
        ("membar.gl; red.global.add.u32 [out], 1;", "ld.volatile.global.b32", True),
        ("st.relaxed.gpu.global.b32 [out], 1;", "ld.acquire.gpu.global.b32", False),
        ("st.release.cta.global.b32 [out], 1;", "ld.acquire.gpu.global.b32", False),
        ("fence.acq_rel.cta; st.relaxed.gpu.global.b32 [out], 1;", "ld.acquire.gpu.global.b32", False),
        ("red.global.add.u32 [out], 1;", "ld.volatile.global.b32", False),
    ],
)
def test_a_flag_between_ctas_releases_at_its_scope(write, read, good):
    body = f"""@!lead ret; setp.eq.u32 p, cta, 0; @p bra READ; st.global.b32 [out+64], 5; {write} ret;
        READ: S: {read} x, [out]; setp.eq.u32 p, x, 0; @p bra S; ld.global.b32 y, [out+64];"""
    if good:
        right(body, grid=2, threads=32)
    else:
        wrong("race", body, r"read of argument 0 at byte 64, which store .* CTA \(1", grid=2, threads=32)



# CTA 0 loads its tile, adds it up and tells the sum; CTA 1 waits for that, and stores over the tile.
TILE = f"{AT} setp.ne.u32 p, cta, 0; @p bra AFTER; ld.global.b32 a, [at+64];"
SUM = "st.shared.b32 [mine], a; bar.sync 0; @!lead ret; ld.shared.b32 b, [tile+4]; add.u32 b, b, 1;"
ONE = "bar.sync 0; @!lead ret; mov.b32 b, 1;"
TELL, LOOK = "st.relaxed.gpu.global.b32 [out], b;", "ld.relaxed.gpu.global.b32 y, [out]; setp.eq.u32 q, y, 0;"
OVER = f"AFTER: S: {LOOK} @q bra S; st.global.b32 [at+64], tid;"
LATER = f"AFTER: {SPIN.format('W')}"


@pytest.mark.parametrize("body, kinds", [
    (f"{TILE} {SUM} {TELL} ret; {OVER}", ""),
    (f"{TILE} st.global.b32 [at+2048], a; {ONE} {TELL} ret; {OVER}", "race"),
    (f"{TILE} setp.eq.u32 q, a, 77; @q ret; {ONE} {TELL} ret; {OVER}", "race"),
    (f"{TILE} setp.eq.u32 q, a, 77; @q bra END; {ONE} {TELL} ret; {OVER} END:", ""),
    (f"{TILE} {SUM} ld.global.b32 x, [at+72]; {TELL} st.global.b32 [out+512], x; ret; {OVER}", "race"),
    (f"{TILE} {SUM} {TELL} ld.global.b32 x, [at+72]; st.global.b32 [out+512], x; ret; {OVER}", "race"),
    (f"{TILE} {SUM} red.global.add.u32 [out+512], 1; {TELL} ret; {OVER}", "race"),  # perhaps by this
    (f"{TILE} {SUM} {TELL} ret; {LATER} {LOOK} st.global.b32 [at+64], y;", "race"),  # waits for nothing
    (f"{TILE} {SUM} {TELL} ret; {LATER} {LOOK} @!q st.global.b32 [at+64], y;", ""),
    (f"{TILE} {SUM} {TELL} ret; {LATER} st.global.b32 [at+64], tid; {LOOK} @q ret;", "race"),
    (f"""{AT} mov.b32 b, 0; setp.ne.u32 p, cta, 0; @p bra AFTER; AGAIN: ld.global.b32 a, [at+64]; {SPIN.format("W")}
        add.u32 b, b, a; @lead {TELL} setp.lt.u32 p, b, 2; @p bra AGAIN; ret; {OVER}""", "race"),
])  # fmt: skip
def test_a_store_that_the_value_of_a_load_has_let_go_is_noted(body, kinds):
    """Of a loop the second load is a race: the first one has let the store go."""
    out = np.ones(1024, np.int32)
    out[0] = 0
    with emulated_gpu.session(most=9) as session:
        emulated_gpu.launch(kernel(body), "kernel", 2, 64, [out, np.zeros(64, np.int32)])
    assert {fault.kind for fault in session.errors} == {*kinds.split()}
    assert kinds or {note.note for note in session.notes} == {"dependency-alone"}


@pytest.mark.parametrize("fence", ["fence.proxy.async;", "fence.proxy.async.global;", "", FENCE])
def test_global_data_of_threads_is_copied_behind_a_proxy_fence(fence):
    body = f"""@lead mbarrier.init.shared::cta.b64 [full], 1; fence.mbarrier_init.release.cluster; {AT}
        st.global.b32 [at], tid; {fence} bar.sync 0; {COPY}"""
    if fence in ("", FENCE):
        wrong("missing-proxy-fence", body, "bulk copy .* reads argument 0, written by store")
    else:
        right(body)
        right(body.replace(f"{fence} bar.sync 0;", f"bar.sync 0; {fence}"))  # behind the barrier, by who copies


def test_a_store_by_the_bulk_engine_is_waited_for_before_it_is_read_back():
    body = f"""{PUT} {FENCE} bar.sync 0; @lead cp.async.bulk.global.shared::cta.bulk_group [out], [tile], 256;
        @lead cp.async.bulk.commit_group; @lead cp.async.bulk.wait_group{{}} 0; bar.sync 0;
        {AT} ld.global.b32 y, [at];"""
    wrong("race", body.format(".read"), "read of argument 0 .* bulk copy .* may still write")
    right(body.format(""))


@pytest.mark.parametrize("late", ["", SPIN.format("L")])
def test_a_tensor_map_is_not_changed_under_a_copy(late):
    """tensormap.replace by a thread while a copy that was issued by the map has not been waited for."""
    wait = "W: mbarrier.try_wait.parity.shared::cta.b64 q, [full], 0; @!q bra W;"
    body = f"""@lead mbarrier.init.shared::cta.b64 [full], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
        @!lead ret; mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 64;
        cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], [out, {{x}}], [full];
        {{}} {late} tensormap.replace.tile.global_address.global.b1024.b64 [out], in; {wait}"""
    for schedule in (0, 1):
        for good in (False, True):
            source = emulated_gpu.device_tensors(torch.arange(16, dtype=torch.int32))
            made = encode(TensorMap(source.data_ptr(), "s32", (16,), (), (16,), (1,)))
            out = emulated_gpu.device_tensors(torch.from_numpy(np.frombuffer(made, np.int32).copy()))
            text = kernel(body.replace("{}", wait.replace("W", "V") if good else "").replace("{{x}}", "{x}"))
            with emulated_gpu.session(schedule):
                if good:
                    emulated_gpu.launch(text, "kernel", 1, 32, [out, source])
                    continue
                with pytest.raises(Fault, match="race: write of .* TMA load .* may still read"):
                    emulated_gpu.launch(text, "kernel", 1, 32, [out, source])


# -- dependent launches ------------------------------------------------------------------------------------------------
FIRST = kernel(f"griddepcontrol.launch_dependents; {AT} st.global.b32 [at], tid;", "begin")


@pytest.mark.parametrize("numpy", [True, False])
@pytest.mark.parametrize(
    ("offset", "wait", "good"), [(0, "", False), (0, "griddepcontrol.wait;", True), (1, "", True)]
)
def test_dependent_launches_by_the_word(numpy, offset, wait, good):
    """The second one reads what the first one writes, or the words beside it. NumPy arrays are known by memory."""
    second = kernel(f"{AT.replace('tid, 4', 'tid, 8')} {wait} ld.global.b32 y, [at+{4 * offset}];", "second")
    first = FIRST.replace("tid, 4, out", "tid, 8, out")
    out, source = torch.zeros(256, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    arguments = [out.numpy(), source.numpy()] if numpy else [emulated_gpu.device_tensors(t) for t in (out, source)]

    def launch():
        with emulated_gpu.session():
            emulated_gpu.launch(first, "begin", 1, 64, arguments)
            emulated_gpu.launch(second, "second", 1, 64, arguments, pdl=True)

    if good:
        return launch()
    with pytest.raises(Fault, match="missing-dependency-wait: read of .*, which launch 1 .begin. writes"):
        launch()


@pytest.mark.parametrize("wait", [cuda_bindings.synchronize, lambda: cuda_bindings.synchronize_stream(0)])
def test_a_launch_that_the_host_has_waited_for_has_ended(wait):
    """A dependent launch behind that has nothing to wait for."""
    second = kernel(f"{AT} ld.global.b32 y, [at];", "second")
    operands = [emulated_gpu.device_tensors(torch.zeros(256, dtype=torch.int32)) for _ in range(2)]
    with emulated_gpu.session():
        emulated_gpu.launch(FIRST, "begin", 1, 64, operands)
        wait()
        emulated_gpu.launch(second, "second", 1, 64, operands, pdl=True)


@pytest.mark.parametrize("freed", [False, True])
def test_memory_that_was_freed_is_no_launches_any_more(freed):
    """What lies there now, which a dependent launch reads early, the one before has not written."""
    second = kernel(f"{AT.replace('out', 'in')} ld.global.b32 y, [at];", "second")
    room, source = allocate(1024), emulated_gpu.device_tensors(torch.zeros(256, dtype=torch.int32))

    def adopted():
        array = room[:]
        DEVICE.adopt(array, "array")
        return array

    with emulated_gpu.session():
        out = adopted()
        emulated_gpu.launch(FIRST, "begin", 1, 64, [out, source])
        if freed:
            del out
            out = adopted()
            return emulated_gpu.launch(second, "second", 1, 64, [source, out], pdl=True)
        with pytest.raises(Fault, match="missing-dependency-wait"):
            emulated_gpu.launch(second, "second", 1, 64, [source, out], pdl=True)


# -- the tensor core of sm_90 ------------------------------------------------------------------------------------------
def test_operands_that_another_warpgroup_still_multiplies():
    multiply = """wgmma.fence.sync.aligned; setp.eq.u32 q, tid, tid; .reg .f32 f<4>; mov.f32 f0, 0f00000000;
        mov.f32 f1, f0; mov.f32 f2, f0; mov.f32 f3, f0; wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, d, d, q, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"""
    fill = f"shl.b32 a, tid, 3; mov.b32 b, tile; add.u32 a, a, b; st.shared.v2.b32 [a], {{x, y}}; {FENCE}"
    body = f"""{fill} bar.sync 0; mov.b32 b, tile; shr.u32 b, b, 4; cvt.u64.u32 d, b;
        or.b64 d, d, {8 << 16 | 16 << 32};
        {multiply} LATER setp.lt.u32 p, tid, 128; @!p bra END; mov.b32 x, 7; {fill} END:"""
    match = "wgmma.mma_async of warp . .*(still reads|may still read)"
    wrong("race", body.replace("LATER", ""), match, threads=256, chip=H200)
    right(body.replace("LATER", "bar.sync 0;"), threads=256, chip=H200)


@pytest.mark.parametrize("lanes, found", [("", ""), ("@odd mov.b32 at, tile2;", "race")])
def test_a_warp_that_stores_one_box_stores_it_once(lanes, found):
    """CuTe DSL's kernels elect no lane for a TMA store: all write the same, unless some have another source."""
    data = allocate(256).view(np.uint32)
    described = TensorMap(data.ctypes.data, "u32", (64,), (), (32,), (1,))
    ptx = f""".version 8.8\n.target sm_100a\n.address_size 64
    .visible .entry kernel(.param .u64 data, .param .align 64 .b8 described[128]) {{
        .shared .align 128 .b8 tile[128]; .shared .align 128 .b8 tile2[128];
        .reg .b32 lane, at, to, zero; .reg .b64 map; .reg .pred odd;
        mov.b64 map, described; cvta.param.u64 map, map; mov.b32 zero, 0;
        mov.u32 lane, %laneid; and.b32 to, lane, 1; setp.eq.u32 odd, to, 1;
        mov.u32 to, tile; mad.lo.u32 to, lane, 4, to; st.shared.b32 [to], lane;
        mov.u32 to, tile2; mad.lo.u32 to, lane, 4, to; st.shared.b32 [to], zero;
        fence.proxy.async; bar.warp.sync -1; mov.u32 at, tile; {lanes}
        cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [map, {{32}}], [at];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }}"""
    try:
        emulated_gpu.launch(ptx, "kernel", 1, 32, [data, encode(described)])
    except Fault as e:
        assert found and e.kind == found
    else:
        assert not found and data[32:].tolist() == list(range(32))


BULK = "cp.async.bulk.global.shared::cta.bulk_group [{to}], [{at}], 128;"
BOX = "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [map, {{{x}}}], [{at}];"


@pytest.mark.parametrize("copy", [BULK, BOX], ids=["bulk", "tensor"])
@pytest.mark.parametrize("schedule", [0, 3, 9])
@pytest.mark.parametrize("change, note", [("", True), ("@!first add.u32 b, b, 128;", False), ("@!first HALF", False)])
def test_stores_of_equal_bytes_that_nothing_orders_are_a_note(copy, schedule, change, note):
    """Each warp stores one tile, as CUTLASS's tma_store has it, or the second one other bytes, or to half of it."""
    data, source = allocate(512).view(np.uint32), np.arange(1024, dtype=np.int32)
    described = encode(TensorMap(data.ctypes.data, "u32", (128,), (), (32,), (1,)))
    half = "add.u64 out, out, 64;" if copy is BULK else "mov.b32 x, 16;"
    body = f"""st.shared.b32 [mine], tid; {FENCE} bar.sync 0; setp.ne.u32 p, lane, 0; @p ret; mov.b32 b, tile;
        .reg .b64 map; mov.b64 map, described; cvta.param.u64 map, map; {change.replace("HALF", half)}
        {copy.format(to="out", at="b", x="x")} cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"""
    text = kernel(body).replace(".u64 p_in)", ".u64 p_in, .param .align 64 .b8 described[128])")
    with emulated_gpu.session(schedule) as session:
        if note:
            emulated_gpu.launch(text, "kernel", 1, 64, [data, source, described])
            assert [one.note for one in session.notes] == ["identical-stores"] and data[:32].tolist() == list(range(32))
            return
        with pytest.raises(Fault, match="race: write of argument 0 .* may still write") as found:
            emulated_gpu.launch(text, "kernel", 1, 64, [data, source, described])
        assert not found.value.note


ONE = 0x3F800000  # 1.0, whose bits + 1 are the next float


@pytest.mark.parametrize(
    "values, stores, found",
    [
        ((ONE, ONE), 1, None), ((ONE, ONE + 1), 1, "rounded-stores"), ((ONE + 8, ONE), 1, "rounded-stores"),
        ((ONE, ONE + 9), 1, ""), ((5, 6), 1, ""), ((ONE, -ONE & 0xFFFFFFFF), 1, ""), ((ONE, ONE + 1), 2, ""),
    ],
)  # fmt: skip
def test_warps_that_store_floats_which_differ_in_rounding_are_a_note(values, stores, found):
    """By one instruction, as Triton's replicas of a sum do. found: a note, or "" for a race; None: nothing."""
    store = "st.shared.b32 [tile], b;"
    body = f"selp.b32 b, {values[0]}, {values[1]}, first; {f'@first {store} @!first {store}' if stores == 2 else store}"
    with emulated_gpu.session() as session:
        out = [np.zeros(1024, np.int32), np.zeros(1024, np.int32)]
        if found == "":
            with pytest.raises(Fault, match="race: write of shared memory .* may still write"):
                emulated_gpu.launch(kernel(body), "kernel", 1, 64, out)
            return
        emulated_gpu.launch(kernel(body), "kernel", 1, 64, out)
    assert [one.note for one in session.notes] == [found] * (found is not None)


def test_a_warp_that_arrives_and_then_waits_counts_twice():
    """flash-attention's first warp group passes its own barrier so. A second arrival in one phase is none for that."""
    body = "@first bar.arrive 2, 64; @first bar.sync 2, 64; st.shared.b32 [mine], tid;"
    with emulated_gpu.DEVICE.as_chip(H200), emulated_gpu.session() as session:
        out = [np.zeros(1024, np.int32), np.zeros(1024, np.int32)]
        emulated_gpu.launch(kernel(body, arch="sm_90a"), "kernel", 1, 64, out)
    assert [note.note for note in session.notes] == ["arrives-twice"]
    wrong("barrier", "@first bar.arrive 2, 96; @first bar.arrive 2, 96; bar.sync 2, 96;", "comes again")


KEPT = "ld.shared.b32 b, [{}]; st.global.b32 [at], b;"
WHERE = f"""{AT} .reg .b32 wide; shl.b32 wide, tid, 2; add.u32 wide, wide, mine;
    add.u32 wide, wide, 1024; mov.b32 a, 0; setp.lt.u32 p, tid, 48;"""
GENERIC = "cvt.u64.u32 d, mine; cvta.shared.u64 d, d;"
OVER = "bar.sync 0; @!first st.shared.b32 [other+512], 7; bar.sync 0;"
HALF = """setp.eq.u32 q, tid, 99; @q bra M; M: setp.lt.u32 p, tid, 16; add.u32 b, y, 1; selp.b32 a, {}, p;
    st.global.b32 [at], a;"""
PAIR = "st.shared.b32 [{0}+4], 5; bar.sync 0; ld.shared.v2.b32 {{a, b}}, [{0}]; st.global.b32 [at], {1};"
WIDEST = """.reg .b128 both; .reg .b64 lo, hi; st.shared.b64 [tile+1024], 5; bar.sync 0;
    ld.shared.b128 both, [tile+1024]; mov.b128 {lo, hi}, both; st.global.b64 [out], lo;"""
STACK = """.local .align 8 .b8 own[8]; add.u32 b, y, 1; st.local.v2.b32 [own], {{tid, b}};
    ld.local.v2.b32 {{a, b}}, [own]; st.global.b32 [at], {};"""
SHUFFLED = "shfl.sync.idx.b32 a, y, {}, 31, -1; mad.wide.u32 at, tid, 4, out; st.global.b32 [at], a;"


@pytest.mark.parametrize("more, found", [
    ("add.u32 a, y, 1;", False), ("setp.ne.u32 p, y, 0; selp.b32 a, 1, 0, p;", False),
    ("@first bra L; st.global.b32 [at], y; L:", False),
    ("@!first bra L; st.global.b32 [at], y; L:", True),
    (HALF.format("b, 0"), False), (HALF.format("0, b"), True),
    (SHUFFLED.format(0), False), (SHUFFLED.format(20), True),
    ("@!first bra L; add.u32 a, y, 1; L: mov.b32 b, a; bar.sync 0; @first st.global.b32 [at], b;", True),
    ("st.shared.b32 [mine+512], y;", False),
    (f"st.shared.b32 [mine+512], y; {KEPT.format('mine+512')}", True),
    (f"st.shared.b32 [mine+512], y; {OVER} {KEPT.format('mine+512')}", False),
    (f"@!first bra L; st.shared.b32 [mine+512], y; L: bar.sync 0; @first bra M; {KEPT.format('other+512')} M:", True),
    (f"add.u32 b, y, 1; st.shared.v2.b32 [wide], {{tid, b}}; {KEPT.format('wide')}", False),
    (f"st.shared.v2.b32 [wide], {{tid, y}}; {KEPT.format('wide+4')}", True),
    (f"{GENERIC} st.b32 [d+512], y;", False), (f"{GENERIC} st.b32 [d+512], y; {KEPT.format('mine+512')}", True),
    ("st.b32 [at], y;", True), ("setp.eq.u32 q, tid, 99; @q bra M; M: st.b32 [at], y;", True),
    ("red.shared.add.u32 [mine+512], 1; atom.shared.cas.b32 b, [mine+1024], 0, 1;", False),
    (f"red.shared.add.u32 [mine+512], 1; {KEPT.format('mine+512')}", True),
    ("atom.shared.exch.b32 a, [mine+512], 1; setp.eq.u32 p, a, 0; @p bra END; END:", True),
    (f"atom.shared.exch.b32 a, [mine+512], 1; {KEPT.format('mine+512')}", False),
    (PAIR.format("wide", "b"), False), (PAIR.format("wide", "a"), True),
    (PAIR.format("tile+1024", "b"), False), (PAIR.format("tile+1024", "a"), True), (WIDEST, True),
    (STACK.format("a"), False), (STACK.format("b"), True),
])  # fmt: skip
def test_what_nothing_has_written_is_wrong_where_it_is_used(more, found):
    """Lane by lane: the first warp's upper half reads what no lane of the second one has written."""
    body = f"{WHERE} @p {PUT} bar.sync 0; {GET} {more}"
    with emulated_gpu.session(most=9) as session:
        emulated_gpu.launch(kernel(body), "kernel", 1, 64, [np.zeros(64, np.int32)] * 2)
    assert [fault.kind for fault in session.errors] == ["uninitialized-read"] * found, session.errors


PRODUCT = """shl.b32 a, lane, 4; {rows} st.shared.v4.b32 [row], {{tid, tid, tid, tid}}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{r0, r1, r2, r3}}, [row];
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{f0, f1, f2, f3}}, {{r0, r1, r2, r3}}, {{r4, r4}},
        {{f4, f4, f4, f4}};
    {at} st.global.f32 [at], {result};"""


@pytest.mark.parametrize("result, found", [("f1", False), ("f2", True)])
def test_a_row_of_a_product_is_garbage_if_one_of_its_operand_is(result, found):
    """A tile of which a kernel has loaded 8 of 16 rows, and whose other rows it leaves out at the end."""
    rows = "and.b32 b, lane, 8; setp.eq.u32 p, b, 0; add.u32 row, a, tile; @p"
    registers = ".reg .b32 row, r<5>; .reg .f32 f<5>; mov.b32 r4, 0; mov.f32 f4, 0f00000000;"
    with emulated_gpu.session(most=9) as session:
        body = registers + PRODUCT.format(rows=rows, at=AT, result=result)
        emulated_gpu.launch(kernel(body), "kernel", 1, 32, [np.zeros(32, np.int32)] * 2)
    assert [fault.kind for fault in session.errors] == ["uninitialized-read"] * found, session.errors


@pytest.mark.parametrize("space, place, same", [
    ("global", "out", "out"), ("shared", "tile", "tile"), ("global", "out+4", "at"),
])  # fmt: skip
@pytest.mark.parametrize("swapped, more, found", [
    ("y", "", False), ("b", "", True), ("y", "@lead st.{}.b32 [{}], 1;", True),
])  # fmt: skip
def test_the_guess_of_a_compare_and_swap_is_noted(space, place, same, swapped, more, found):
    """As the programming guide's atomicAdd of doubles begins. What is not compared, or races with a store, is wrong."""
    swap = f"mov.b32 b, 0; atom.{space}.cas.b32 b, [{same}], {swapped}, a;"
    loop = f"AGAIN: add.u32 a, y, 1; {swap} setp.ne.u32 p, y, b; mov.b32 y, b; @p bra AGAIN;"
    start = f"@lead st.{space}.b32 [{place}], 0; bar.sync 0; " * (space == "shared")
    body = f"{start} add.s64 at, out, 4; ld.{space}.b32 y, [{place}]; {more.format(space, place)}"
    body += loop if swapped == "y" else swap.replace(", a;", ", y;")
    with emulated_gpu.session(most=9) as session:
        emulated_gpu.launch(kernel(body), "kernel", 1, 64, [np.zeros(64, np.int32)] * 2)
    assert {fault.kind for fault in session.errors} == {"race"} if found else not session.errors, session.errors
    assert found or [note.note for note in session.notes] == ["cas-guess"]
    wrong("race", body)  # strictly


IN_PLACE = """mad.wide.u32 at, lane, 4, out; mov.b32 y, 0; NEXT: ld.global.b32 x, [at]; add.u32 b, x, 1; {more}
    @first st.global.b32 [at], b; add.u32 y, y, 1; setp.lt.u32 p, y, 40; @p bra NEXT;"""


@pytest.mark.parametrize("late", PARTIES.values(), ids=list(PARTIES))
@pytest.mark.parametrize("more, used", [
    ("", False), ("shfl.sync.bfly.b32 b, b, 1, 31, -1; shfl.sync.bfly.b32 b, b, 1, 31, -1;", False),
    ("@!first st.global.b32 [at+512], b;", True), ("setp.eq.u32 q, b, 0; @q bra NEXT;", True),
    ("st.shared.b32 [mine], b;", True), ("mad.wide.u32 d, b, 0, at; ld.global.b32 a, [d];", True),
    ("ld.global.b32 a, [in]; setp.ne.u32 q, a, 0; @q bra NEXT;", False),
])  # fmt: skip
def test_a_race_of_loads_of_which_nothing_comes_is_a_note(more, used, late, soon_hot):
    """Each warp loads all words, and one stores, as Triton's blocks do that are smaller than the CTA; 40 times, of
    which all but the first are machine code. A store of the other warp, a branch, an address make it wrong."""
    out = np.zeros(1024, np.int32)
    with emulated_gpu.session(most=9) as session:
        emulated_gpu.launch(kernel(late + IN_PLACE.format(more=more)), "kernel", 1, 64, [out, np.zeros_like(out)])
    assert {fault.kind for fault in session.errors} == ({"race"} if used else set())
    assert used or soon_hot and out[:32].tolist() == [40] * 32
    assert [note.note for note in session.notes] == ["unused-load"] * (len(session.notes) if used else 1)


@pytest.mark.parametrize("between, found", [("", True), ("bar.sync 0;", False)])
def test_an_earlier_load_that_is_used_makes_it_a_race(between, found):
    """The shadow keeps the later load of the word, of which nothing comes, as if it were the only one."""
    late = PARTIES["first warp late"]
    first = f"mad.wide.u32 at, lane, 4, out; ld.global.b32 a, [at]; setp.eq.u32 q, a, 77; @q bra END; {between} {late}"
    with emulated_gpu.session(most=9) as session:
        body = f"{first} {IN_PLACE.format(more='')} END:"
        emulated_gpu.launch(kernel(body), "kernel", 1, 64, [np.zeros(1024, np.int32)] * 2)
    assert {fault.kind for fault in session.errors} == ({"race"} if found else set())
    assert found or {note.note for note in session.notes} == {"unused-load"}


@pytest.mark.parametrize("more, kinds", [
    ("", ""), ("@!first st.shared.b32 [mine], tid;", ""),
    (f"@!first st.shared.b32 [mine], tid; {AT} @first st.global.b32 [at], b;", "race"),
    (f"{AT} @!first st.global.b32 [at], y;", "uninitialized-read"),
    ("setp.ne.u32 p, y, 0; @p bra END; END:", "uninitialized-read"),
])  # fmt: skip
def test_what_a_selp_may_leave_out_is_noted(more, kinds):
    """Only where the value goes to a selp alone, and whoever writes it later races with the read."""
    body = f"@first {PUT} bar.sync 0; {GET} selp.b32 b, 1, y, first; {more}"
    with emulated_gpu.session(most=9) as session:
        emulated_gpu.launch(kernel(body), "kernel", 1, 64, [np.zeros(64, np.int32)] * 2)
    assert {fault.kind for fault in session.errors} == set(kinds.split())
    if not kinds:
        assert [note.note for note in session.notes] == ["unused-load" if more else "selected-away"]
    wrong("race uninitialized-read", body)  # strictly


def test_while_a_writer_is_awaited_no_other_race_is_told(monkeypatch):
    """Each word that others write then was told, and took a millisecond: a GEMM's epilogue never ended."""
    told, tell = [], Launch._tell
    monkeypatch.setattr(Launch, "_tell", lambda self, fault, *more: told.append(fault.kind) or tell(self, fault, *more))
    races = f"OTHERS: {SPIN.format('L')} st.shared.b32 [tile+1024], tid; st.shared.b32 [tile+1028], tid; END:"
    body = f"{AT} @!first bra OTHERS; {GET} st.global.b32 [at], y; bra END; {races}"
    wrong("uninitialized-read", body, "nobody writes", threads=96, schedules=(0,))
    assert told == ["uninitialized-read"]


def test_a_weak_store_under_a_strong_one_is_found_by_machine_code():
    """Warp 1 stores what warp 0 has stored, and hands that on to warp 2, whose loop reads it in its last turns."""
    body = """@lead st.volatile.shared.b32 [tile+1024], 0; @lead st.volatile.shared.b32 [tile+1028], 0; bar.sync 0;
        setp.eq.u32 p, lane, 0; setp.eq.u32 q, warp, 2; @q bra C; @!p bra E; setp.eq.u32 q, warp, 1; @q bra B;
        st.shared.b32 [tile], 5; st.RELEASE.cta.shared.b32 [tile+1028], 1; bra E;
        B: ld.ACQUIRE.cta.shared.b32 x, [tile+1028]; setp.eq.u32 q, x, 0; @q bra B;
        st.volatile.shared.b32 [tile], 5; st.release.cta.shared.b32 [tile+1024], 1; bra E;
        C: ld.acquire.cta.shared.b32 x, [tile+1024]; setp.eq.u32 q, x, 0; @q bra C;
        mov.b32 a, tile; mad.lo.u32 b, lane, 4, a; add.u32 b, b, 256; st.shared.b32 [b], 1;
        L: setp.gt.u32 q, y, 5950; selp.b32 x, a, b, q; ld.shared.b32 x, [x]; add.u32 y, y, 1; setp.lt.u32 q, y, 6000;
        @q bra L; E:"""
    unordered = body.replace("RELEASE", "relaxed").replace("ACQUIRE", "relaxed")
    wrong("race", unordered, "read of shared memory .* store of warp 0", (0,), threads=96)
    right(body.replace("RELEASE", "release").replace("ACQUIRE", "acquire"), (0,), threads=96)
