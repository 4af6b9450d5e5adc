"""What CTAs do for each other: tensor memory that a pair allocates and frees together, and multicast masks."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.errors import Fault, Hang
from emulated_gpu.formats.tensormap import TensorMap, encode

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
SCHEDULES = range(10)
SPIN = "mov.b32 x, 500; {0}: sub.u32 x, x, 1; setp.ne.u32 p, x, 0; @p bra {0};"
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
ALLOC = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 64; ld.shared.b32 base, [slot];"
DEALLOC = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 base, 64;"
SLEEP = "nanosleep.u32 4000;"
FLAG = "st.relaxed.gpu.global.b32 [at], 7;"
LOOK = "ld.relaxed.gpu.global.b32 x, [at]; st.global.b32 [at+4], x;"


def kernel(first: str, second: str) -> str:
    """One path for either CTA of a pair. `at`: the output, a flag and what the first CTA has seen of it."""
    return f"""{HEADER}.visible .entry kernel(.param .u64 out) {{
        .shared .align 1024 .b8 tile[4096]; .shared .align 8 .b64 done; .shared .b32 slot;
        .reg .b32 x, tid, cta, base; .reg .b64 at, d; .reg .pred p, q, lead;
        mov.u32 tid, %tid.x; mov.u32 cta, %cluster_ctarank; ld.param.u64 at, [out]; setp.eq.u32 lead, tid, 0;
        @lead mbarrier.init.shared::cta.b64 [done], 1; fence.mbarrier_init.release.cluster;
        {MEET} setp.ne.u32 p, cta, 0; @p bra SECOND;
        {first} ret;
        SECOND: {second} ret; }}"""


def run(first: str, second: str, schedule: int = 0, cluster: int = 2, threads: int = 32) -> list[int]:
    out = np.zeros(2, np.uint32)
    with emulated_gpu.session(schedule):
        emulated_gpu.launch(kernel(first, second), "kernel", cluster, threads, [out], cluster=cluster)
    return out.tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_allocation_of_a_pair_waits_for_both(schedule):
    first, second = f"{ALLOC} {LOOK} {DEALLOC}", f"{SPIN.format('S')} {FLAG} {ALLOC} {DEALLOC}"
    assert run(first, second, schedule) == [7, 7]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tensor_memory_of_a_pair_is_freed_when_both_have_come(schedule):
    first, second = f"{ALLOC} {DEALLOC} {LOOK}", f"{ALLOC} {SPIN.format('S')} {FLAG} {DEALLOC}"
    assert run(first, second, schedule) == [7, 7]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_a_cta_does_in_its_peers_tensor_memory_finds_it_allocated(schedule):
    """The second CTA is late; the first has the tensor core copy to both as soon as its own allocation returns."""
    wait = "{0}: mbarrier.try_wait.parity.shared::cta.b64 q, [done], 0; @!q bra {0};"
    copy = f"""{ALLOC} mov.b32 x, tile; shr.u32 x, x, 4; cvt.u64.u32 d, x; or.b64 d, d, {8 << 16 | 8 << 32 | 1 << 46};
        @lead tcgen05.cp.cta_group::2.128x128b [base], d; mov.b32 x, done;
        @lead tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [x], 3;
        {wait.format("F")} {MEET} {DEALLOC}"""
    run(copy, f"{SPIN.format('S')} {ALLOC} {wait.format('W')} {MEET} {DEALLOC}", schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_cta_that_frees_its_tensor_memory_uses_it_no_more(schedule):
    """Though the other has not come: the first one to free may wait for it, or not. The second comes after the use."""
    store = "shr.u32 x, tid, 5; shl.b32 x, x, 21; add.u32 x, x, base; tcgen05.st.sync.aligned.32x32b.x1.b32 [x], {tid};"
    tell = "mov.b32 x, done; mapa.shared::cluster.u32 x, x, 1; mbarrier.arrive.shared::cluster.b64 _, [x];"
    first = f"""setp.lt.u32 p, tid, 32; @p bra FREE; bar.sync 0; ld.shared.b32 base, [slot]; {SPIN.format("S")} {store}
        tcgen05.wait::st.sync.aligned; setp.eq.u32 p, tid, 32; @!p ret; {tell} ret;
        FREE: {ALLOC} bar.sync 0; {DEALLOC} ret;"""
    told = "T: mbarrier.try_wait.parity.shared::cta.b64 q, [done], 0; @!q bra T;"
    with pytest.raises(Fault, match="tmem-out-of-bounds: .* is freeing them"):
        run(first, f"setp.ge.u32 p, tid, 32; @p ret; {ALLOC} {told} {DEALLOC}", schedule, threads=64)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_allocation_of_a_pair_waits_for_room_in_both(schedule):
    """Warp 1 asks for what warp 0 has, which the second CTA is late to free."""
    path = """tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 512; ld.shared.b32 base, [slot];
        bar.sync 0; {late} tcgen05.dealloc.cta_group::2.sync.aligned.b32 base, 512; ret;
        {other}: bar.sync 0; {alloc} {look} {dealloc}"""
    choose = "setp.ge.u32 p, tid, 32; @p bra {0};"
    first = choose.format("A") + path.format(late="", other="A", alloc=ALLOC, look=LOOK, dealloc=DEALLOC)
    late = SPIN.format("S") + FLAG
    second = choose.format("B") + path.format(late=late, other="B", alloc=ALLOC, look="", dealloc=DEALLOC)
    assert run(first, second, schedule, threads=64) == [7, 7]


@pytest.mark.parametrize(
    ("first", "second", "missing"),
    [
        (f"{ALLOC} {DEALLOC}", "", r"tcgen05.alloc by CTA \(1, 0, 0\), which has exited"),
        (f"{ALLOC} {DEALLOC}", MEET, r"tcgen05.alloc by CTA \(1, 0, 0\)$"),
        (f"{ALLOC} {DEALLOC}", f"{ALLOC} {MEET} {DEALLOC}", r"tcgen05.dealloc by CTA \(1, 0, 0\)$"),
    ],
    ids=["exited", "elsewhere", "another order"],
)
def test_a_pair_of_which_one_never_comes_hangs(first, second, missing):
    """The last is the PTX ISA's example of a hang (9.7.16.5); timed runs find the same."""
    with pytest.raises(Hang, match=rf"(?m)waits for {missing}"):
        run(first, second)
    with pytest.raises(Hang, match=rf"(?m)waits for {missing}"), emulated_gpu.timing("b200"):
        emulated_gpu.launch(kernel(first, second), "kernel", 2, 32, [np.zeros(2, np.uint32)], cluster=2)


def test_a_cta_that_does_not_free_what_its_peer_wants_to_free_leaks_it():
    with pytest.raises(Fault, match="tmem-leak"):
        run(f"{ALLOC} {DEALLOC}", ALLOC)


def test_a_pair_allocates_as_many_columns_in_both():
    with pytest.raises(Fault, match="tmem-alloc: tcgen05.alloc of (32|64) columns"):
        run(f"{ALLOC} {DEALLOC}", f"{ALLOC} {DEALLOC}".replace("64", "32"))


def test_one_cta_is_no_pair():
    with pytest.raises(Fault, match="cluster: .cta_group::2 needs a cluster of an even number"):
        run(f"{ALLOC} {DEALLOC}", "", cluster=1)


@pytest.mark.parametrize(
    ("meet", "kinds"),
    [
        (MEET.replace("arrive", "arrive.relaxed"), []),
        (SPIN.format("S"), ["cluster", "mbarrier"]),
        (f"fence.mbarrier_init.release.cluster; {MEET.replace('arrive', 'arrive.relaxed')}", []),
    ],
    ids=["relaxed, which is a note", "perhaps not started", "right"],
)
def test_a_kernel_goes_on_that_arrives_at_its_peer_too_early(meet, kinds):
    """Findings, behind which barrier and peer are what they are. CUTLASS's GEMMs of pairs arrive at an mbarrier whose
    init no fence follows, and store their results after that: a note (tests/emulated_gpu/units/test_notes_of_units.py).
    """
    ptx = f"""{HEADER}.visible .entry kernel(.param .u64 out) {{
        .shared .align 8 .b64 done; .reg .b32 x, cta; .reg .b64 at; .reg .pred p, q, lead;
        mov.u32 x, %tid.x; setp.eq.u32 lead, x, 0; mov.u32 cta, %cluster_ctarank; ld.param.u64 at, [out];
        @lead mbarrier.init.shared::cta.b64 [done], 1; {meet}
        setp.ne.u32 q, cta, 0; @q bra SECOND;
        mov.b32 x, done; mapa.shared::cluster.u32 x, x, 1; @lead mbarrier.arrive.shared::cluster.b64 _, [x];
        @lead st.global.b32 [at], 7; ret;
        SECOND: bar.warp.sync -1; W: mbarrier.try_wait.parity.shared::cta.b64 p, [done], 0; @!p bra W;
        @lead st.global.b32 [at+4], 7; ret; }}"""
    out = np.zeros(2, np.uint32)
    with emulated_gpu.session(most=9) as session:
        emulated_gpu.launch(ptx, "kernel", 2, 32, [out], cluster=2)
    assert ([fault.kind for fault in session.errors], out.tolist()) == (kinds, [7, 7])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (f"{ALLOC} {SLEEP} {DEALLOC}", f"{SLEEP} {ALLOC} {DEALLOC}"),
        (f"{ALLOC} {DEALLOC} {SLEEP}", f"{ALLOC} {SLEEP} {DEALLOC}"),
    ],
    ids=["alloc", "dealloc"],
)
def test_a_timed_pair_waits_for_both(first, second):
    """4 us in front of it in the second CTA, 4 us behind it in the first: one after the other."""
    with emulated_gpu.timing("b200") as timed:
        emulated_gpu.launch(kernel(first, second), "kernel", 2, 32, [np.zeros(2, np.uint32)], cluster=2)
    assert 8.0 < timed.ends_us[0] < 10.5


COPY = "shared::cluster.global{}.mbarrier::complete_tx::bytes.multicast::cluster [tile], [at{}]{}, [done], h;"
MULTICASTS = {
    "bulk copy": "cp.async.bulk." + COPY.format("", "", ", 16"),
    "tensor copy": "mov.b64 at, described; cvta.param.u64 at, at; cp.async.bulk.tensor.1d."
    + COPY.format(".tile", ", {0}", ""),
    "commit": "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [done], h;",
}


@pytest.mark.parametrize("mask", [0b100, 0b111, 0])
@pytest.mark.parametrize("what", MULTICASTS)
def test_a_multicast_names_ctas_of_its_cluster(what, mask):
    text = kernel(f"mov.b16 h, {mask}; {MULTICASTS[what]}", "").replace(".reg .b64 at", ".reg .b16 h; .reg .b64 at")
    text = text.replace(".u64 out", ".u64 out, .param .align 64 .b8 described[128]")
    out = np.zeros(4, np.uint32)
    described = encode(TensorMap(out.ctypes.data, "u32", (4,), (), (4,), (1,)))
    with pytest.raises(Fault, match=f"out-of-bounds: multicast mask {mask:#x} in a cluster of 2"):
        emulated_gpu.launch(text, "kernel", 2, 32, [out, described], cluster=2)
