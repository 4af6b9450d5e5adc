"""What units note of forms that silicon bears, or carries out otherwise than was meant: found, and silent beside it."""

import numpy as np
import pytest
import torch

import emulated_gpu
from emulated_gpu.formats.tensormap import TensorMap, encode

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
LOAD = """.visible .entry k(.param .align 64 .b8 map[128]) {
    .reg .pred p; .reg .b64 at; .reg .b32 tile, full; .shared .align 1024 .b8 room[4096]; .shared .b64 bar;
    mov.b64 at, map; cvta.param.u64 at, at; mov.u32 tile, room; mov.u32 full, bar; add.u32 tile, tile, OFFSET;
    mbarrier.init.shared::cta.b64 [full], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 2048;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], [at, {0, 0}], [full];
W:  mbarrier.try_wait.parity.shared::cta.b64 p, [full], 0; @!p bra W; ret; }"""
USE = """.visible .entry k(.param .u64 out) {
    .reg .b32 a, x, tid; .reg .b64 at; .shared .b32 base; ld.param.u64 at, [out]; mov.u32 tid, %tid.x;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [base], 32; ld.shared.b32 a, [base];
    tcgen05.st.sync.aligned.32x32b.x1.b32 [a], {tid}; tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {x}, [a]; WAIT mad.wide.u32 at, tid, 4, at; st.global.b32 [at], x;
    tcgen05.wait::ld.sync.aligned; tcgen05.dealloc.cta_group::1.sync.aligned.b32 a, 32; ret; }"""
MADE = """.visible .entry k() { .shared .b64 bar; .reg .pred lead; .reg .b32 tid, peer; mov.u32 tid, %tid.x;
    setp.eq.u32 lead, tid, 0; mov.u32 peer, %cluster_ctarank; xor.b32 peer, peer, 1; BETWEEN
    mbarrier.arrive.shared::cta.b64 _, [bar]; ret; }"""
AT_PEER = """mov.b32 tid, bar; mapa.shared::cluster.u32 tid, tid, peer;
    mbarrier.arrive.shared::cluster.b64 _, [tid]; barrier.cluster.arrive; barrier.cluster.wait; ret;"""
INIT, ARRIVE = "@lead mbarrier.init.shared::cta.b64 [bar], 64;", "barrier.cluster.arrive.relaxed;"


def notes(ptx: str, threads: int, *args, at: str = "", ctas: int = 1) -> list[str]:
    """The notes of a launch of one cluster, each of which is of an instruction that begins so."""
    with emulated_gpu.session() as session:
        emulated_gpu.launch(HEAD + ptx, "k", ctas, threads, [*args], cluster=ctas)
    assert all(f": {at}" in note.where for note in session.notes), session.notes
    return [note.note for note in session.notes]


@pytest.mark.parametrize(("offset", "swizzle", "found"), [(128, 128, ["swizzle-phase"]), (1024, 128, []), (128, 0, [])])
def test_a_tile_where_its_swizzle_does_not_begin(offset, swizzle, found):
    x = emulated_gpu.device_tensors(torch.arange(512, dtype=torch.int32), "x")
    tile = TensorMap(x.data_ptr(), "u32", (32, 16), (128,), (32, 16), (1, 1), swizzle=swizzle)
    assert notes(LOAD.replace("OFFSET", str(offset)), 1, bytes(encode(tile))) == found


@pytest.mark.parametrize(("wait", "found"), [("", ["unwaited-load"]), ("tcgen05.wait::ld.sync.aligned;", [])])
def test_registers_that_are_used_before_the_wait_for_them(wait, found):
    out = np.zeros(32, np.uint32)
    assert notes(USE.replace("WAIT", wait), 32, out, at="st.global") == found and (out == np.arange(32)).all()


@pytest.mark.parametrize(("between", "found"), [
    (f"{INIT} {ARRIVE} barrier.cluster.wait;", ["relaxed-init"]),
    (f"{INIT} fence.mbarrier_init.release.cluster; {ARRIVE} barrier.cluster.wait;", []),
    (f"{ARRIVE} {INIT} barrier.cluster.wait;", None), (f"{INIT} {ARRIVE}", None),
])  # fmt: skip
def test_an_init_that_a_relaxed_barrier_shows(between, found):
    """CUB's scan of Blackwell does so. None: wrong, where whoever made it had come before, or the user has not waited.
    """
    ptx = MADE.replace("BETWEEN", between)
    if found is None:
        with pytest.raises(emulated_gpu.Fault, match="has not waited for its init"):
            notes(ptx, 64)
    else:
        assert notes(ptx, 64, at="mbarrier.arrive") == found


@pytest.mark.parametrize(("between", "found"), [
    (f"{INIT} {ARRIVE} barrier.cluster.wait;", ["relaxed-init"]),
    (f"{INIT} fence.mbarrier_init.release.cluster; {ARRIVE} barrier.cluster.wait;", []),
    (f"{ARRIVE} {INIT} barrier.cluster.wait;", None),
])  # fmt: skip
def test_an_init_that_a_relaxed_barrier_shows_to_a_peer(between, found):
    """CUTLASS's GEMMs of two SMs for Blackwell have one such mbarrier, of the end of tensor memory."""
    ptx = MADE.replace("mbarrier.arrive.shared::cta.b64 _, [bar]; ret;", AT_PEER).replace("BETWEEN", between)
    if found is None:
        with pytest.raises(emulated_gpu.Fault, match="has not waited for its init"):
            notes(ptx, 64, ctas=2)
    else:
        assert notes(ptx, 64, at="mbarrier.arrive", ctas=2) == found
