"""fence.proxy.async of one direction (PTX ISA 9.7.13.4): which writes of threads a bulk copy then sees."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.errors import Fault, Unsupported

RELEASE = "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;"
ACQUIRE = "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;"
CLUSTER = "barrier.cluster.arrive{}; barrier.cluster.wait;"
MEET, RELAXED = CLUSTER.format(""), CLUSTER.format(".relaxed")


def run(writes: str, then: str, schedule: int = 0) -> list[int]:
    """64 threads of each CTA write their number and their peer's to shared memory; thread 0 of each copies all out.

    writes, then: what is between, of all threads.
    """
    text = f""".version 8.8\n.target sm_100a\n.address_size 64
    .visible .entry kernel(.param .u64 out) {{
        .shared .align 16 .b32 own[64]; .shared .align 16 .b32 others[64];
        .reg .b32 tid, cta, peer, x, y; .reg .b64 at; .reg .pred lead;
        mov.u32 tid, %tid.x; mov.u32 cta, %cluster_ctarank; xor.b32 peer, cta, 1; setp.eq.u32 lead, tid, 0;
        ld.param.u64 at, [out]; mad.wide.u32 at, cta, 512, at;
        {MEET}
        mov.b32 x, own; mad.lo.u32 x, tid, 4, x; st.shared.b32 [x], tid;
        {writes}
        {then}
        @!lead ret;
        cp.async.bulk.global.shared::cta.bulk_group [at], [own], 256;
        cp.async.bulk.global.shared::cta.bulk_group [at+256], [others], 256;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }}"""
    out = np.full(256, 99, np.uint32)
    with emulated_gpu.session(schedule):
        emulated_gpu.launch(text, "kernel", 2, 64, [out], cluster=2)
    return out.reshape(2, 2, 64).tolist()


HERE = "mov.b32 y, others; mad.lo.u32 y, tid, 4, y; st.shared.b32 [y], tid;"
THERE = HERE.replace("st.shared.b32", "mapa.shared::cluster.u32 y, y, peer; st.shared::cluster.b32")


@pytest.mark.parametrize(
    ("writes", "then"),
    [
        (HERE, f"{RELEASE} bar.sync 0;"),
        (HERE, f"bar.sync 0; {ACQUIRE}"),
        (HERE, f"{RELEASE} {RELAXED} {ACQUIRE}"),
        (THERE, f"{MEET} {ACQUIRE}"),
    ],
    ids=["release", "acquire", "both, a relaxed barrier", "acquire in the other CTA"],
)
def test_a_fence_covers_the_writes_of_its_space(writes, then):
    for schedule in range(10):
        assert run(writes, f"{then} {MEET}", schedule) == [[list(range(64))] * 2] * 2


@pytest.mark.parametrize(
    ("writes", "then"),
    [
        (HERE, "bar.sync 0;"),
        (HERE, f"@lead {RELEASE} bar.sync 0;"),
        (HERE, f"{ACQUIRE} st.shared.b32 [y], tid; bar.sync 0;"),
        (THERE, f"{RELEASE} {MEET}"),
    ],
    ids=["none", "release by one lane", "acquire too early", "release of another CTA's memory"],
)
def test_a_fence_covers_no_other_writes(writes, then):
    with pytest.raises(Fault, match="missing-proxy-fence"):
        run(writes, f"{then} {MEET}")


@pytest.mark.parametrize(
    "fence",
    [
        RELEASE.replace("shared::cta", "shared::cluster"),
        ACQUIRE.replace("shared::cluster", "shared::cta"),
        RELEASE.replace(".cluster;", ".gpu;"),
        RELEASE.replace(".release", ""),
        ACQUIRE.replace(".sync_restrict::shared::cluster", ""),
    ],
)
def test_other_forms_are_refused(fence):
    with pytest.raises(Unsupported):
        run(HERE, fence)
