"""Lanes of an instruction with member masks of their own, as tiles of cooperative groups have, and cuda::barrier."""

import numpy as np
import pytest

import emulated_gpu

LANES = np.arange(32)
TILE = 0xFF << (LANES & -8)  # of each lane, the mask of its eight
PTX = """.version 8.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 result) {
    .reg .pred p, q; .reg .b32 tid, x, mask, at; .reg .b64 out, state, now; .shared .b64 full;
    ld.param.u64 out, [result]; mov.u32 tid, %tid.x; and.b32 x, tid, 24; mov.u32 mask, 255; shl.b32 mask, mask, x;
    mov.u32 x, 0; rem.u32 at, tid, 3; setp.eq.u32 p, at, 0;
    BODY
    mul.wide.u32 state, tid, 4; add.u64 out, out, state; st.global.b32 [out], x; ret; }
"""


def run(body: str) -> np.ndarray:
    out = np.zeros(32, np.uint32)
    with emulated_gpu.session(strict=True):
        emulated_gpu.launch(PTX.replace("BODY", body), "k", 1, 32, [out])
    return out


def of_tiles(reduce) -> np.ndarray:
    """A function of each eight lanes' numbers, for all of them."""
    return np.repeat([reduce(LANES[first : first + 8]) for first in range(0, 32, 8)], 8)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("vote.sync.ballot.b32 x, p, mask;", of_tiles(lambda t: (1 << t[t % 3 == 0]).sum())),
        ("setp.eq.u32 p, tid, 9; vote.any.sync.pred q, p, mask; selp.u32 x, 1, 0, q;", of_tiles(lambda t: 9 in t)),
        ("setp.lt.u32 p, tid, 20; vote.sync.all.pred q, p, mask; selp.u32 x, 1, 0, q;",
         of_tiles(lambda t: max(t) < 20)),
        ("setp.lt.u32 p, tid, 20; vote.sync.uni.pred q, p, mask; selp.u32 x, 1, 0, q;",
         of_tiles(lambda t: max(t) < 20 or min(t) >= 20)),
        ("redux.sync.add.u32 x, tid, mask;", of_tiles(sum)),
        ("shr.u32 at, tid, 4; match.any.sync.b32 x, at, mask;", TILE),
        ("shr.u32 at, tid, 4; setp.eq.u32 p, tid, 3; @p mov.u32 at, 9; match.all.sync.b32 x|q, at, mask;",
         np.where(LANES < 8, 0, TILE)),
        ("shfl.sync.bfly.b32 x, tid, 4, 6175, mask;", LANES ^ 4),
        ("bar.warp.sync mask; mov.u32 x, mask;", TILE),
    ],
    ids=lambda v: v.split()[0] if isinstance(v, str) and v[0] in "rsbv" else None,
)  # fmt: skip
def test_each_mask_alone(body, expected):
    assert (run(body) == expected).all()


def test_a_lane_outside_its_own_mask():
    with pytest.raises(emulated_gpu.Fault, match="lanes 0x8 execute .* member mask 0xf7 leaves them out"):
        run("setp.eq.u32 q, tid, 3; @q and.b32 mask, mask, 0xF7; bar.warp.sync mask;")


def test_a_wait_by_states_that_count_different_arrivals():
    """As cuda::barrier waits: arrivals of all lanes, a state each, and a loop that reads a timer."""
    body = """mov.u32 at, full; setp.eq.u32 p, tid, 0; @p mbarrier.init.shared.b64 [at], COUNT; bar.sync 0;
        mbarrier.arrive.shared.b64 state, [at]; AGAIN: mov.u64 now, %globaltimer;
        mbarrier.try_wait.shared.b64 q, [at], state; @!q bra AGAIN;"""
    run(body.replace("COUNT", "32"))
    with pytest.raises(emulated_gpu.Hang, match="1 of 33 arrivals pending"):
        run(body.replace("COUNT", "33"))
