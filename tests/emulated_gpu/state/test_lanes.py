"""Lanes of one warp against each other in shared memory: a note where they have not met, silence where they have."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.state import lanes

HEAD = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 result) {
    .reg .pred p, q; .reg .b16 h; .reg .b32 tid, mine, other, at, x, y, turn, a<4>; .reg .b64 out;
    .shared .align 16 .b8 tile[4096];
    ld.param.u64 out, [result]; mov.u32 tid, %tid.x; setp.eq.u32 p, tid, 0; mov.u32 y, 0; mov.u32 turn, 0;
    mad.lo.u32 mine, tid, SIZE, tile; xor.b32 x, tid, 1; mad.lo.u32 other, x, SIZE, tile;
    BODY
    mad.wide.u32 out, tid, 4, out; st.global.b32 [out], y; ret; }
"""
MEETINGS = ["bar.warp.sync -1;", "bar.sync 0;", "shfl.sync.idx.b32 x, tid, 0, 31, -1;", "vote.sync.all.pred q, p, -1;"]
# Of each: the bytes of an element, the program with MEND where something is missing, which two accesses
KINDS = {
    "a neighbour's element is read": (
        4, "st.shared.b32 [mine], tid; MEND ld.shared.b32 y, [other];", ("read", "store")
    ),
    "of two bytes": (
        2, "cvt.u16.u32 h, tid; st.shared.b16 [mine], h; MEND ld.shared.b16 h, [other]; cvt.u32.u16 y, h;",
        ("read", "store"),
    ),
    "of sixteen bytes": (
        16, "st.shared.v4.b32 [mine], {tid, tid, tid, 7}; MEND ld.shared.v4.b32 {a0, a1, y, a2}, [other];",
        ("read", "store"),
    ),
    "one lane's element is read by all": (
        4, "@p st.shared.b32 [tile], 7; MEND ld.shared.b32 y, [tile];", ("read", "store")
    ),
    "behind a branch": (
        4, "@!p bra MET; st.shared.b32 [tile], 7; MET: MEND ld.shared.b32 y, [tile];", ("read", "store")
    ),
    "an element is written that a neighbour reads": (
        4, "st.shared.b32 [mine], tid; bar.warp.sync -1; ld.shared.b32 y, [other]; MEND st.shared.b32 [mine], 9;",
        ("write", "load"),
    ),
    "one lane overwrites what all have read": (
        4, "@p st.shared.b32 [tile], 7; bar.warp.sync -1; ld.shared.b32 y, [tile]; MEND @p st.shared.b32 [tile], 9;",
        ("write", "load"),
    ),
    "one lane overwrites what all have written": (
        4, "st.shared.b32 [tile], 7; @p st.shared.b32 [tile], 9; MEND ld.shared.b32 y, [tile];", ("read", "store")
    ),
    "a neighbour's element is overwritten": (
        4, "st.shared.b32 [mine], tid; MEND st.shared.b32 [other], 77;", ("write", "store")
    ),
}  # fmt: skip
# A loop long enough for machine code, whose last turns go to a neighbour's element
LOOP = """st.shared.b32 [mine], tid; bar.warp.sync -1; AGAIN: add.u32 turn, turn, 1; setp.gt.u32 q, turn, 5950;
    selp.b32 at, other, mine, q; FIRST MEND SECOND setp.lt.u32 q, turn, 6000; @q bra AGAIN;"""
LOOPS = {
    "a read": ("st.shared.b32 [mine], turn;", "ld.shared.b32 y, [at]; shfl.sync.idx.b32 x, tid, 0, 31, -1;"),
    "a write": ("ld.shared.b32 y, [mine];", "st.shared.b32 [at], turn; shfl.sync.idx.b32 x, tid, 0, 31, -1;"),
    "a read of what was written twice": (
        "st.shared.b32 [tile], turn; @p st.shared.b32 [tile], 9;",
        "@q ld.shared.b32 y, [tile]; shfl.sync.idx.b32 x, tid, 0, 31, -1;",
    ),
    "a read by all": ("@p st.shared.b32 [tile], turn;", "ld.shared.b32 y, [at]; shfl.sync.idx.b32 x, tid, 0, 31, -1;"),
}


def notes(body: str, size: int = 4, strict: bool = False) -> list:
    """What is noted of a launch of a warp."""
    with emulated_gpu.session(strict=strict) as session:
        ptx = HEAD.replace("BODY", body).replace("SIZE", str(size))
        emulated_gpu.launch(ptx, "k", 1, 32, [np.zeros(32, np.uint32)])
    return session.notes


@pytest.mark.parametrize("compiled", [True, False], ids=["machine code", "Python"])
@pytest.mark.parametrize("name", KINDS)
def test_lanes_that_have_not_met(name, compiled, monkeypatch):
    size, body, (this, that) = KINDS[name]
    if not compiled:
        monkeypatch.setattr(lanes.each_lane, "compiled", lanes.each_lane)
    (note,) = notes(body.replace("MEND", ""), size)
    assert note.note == "lanes-apart" and note.kind == "race"
    assert note.message.startswith(f"{this} of shared memory") and f"{that} of warp 0" in note.message
    assert "PTX line 9" in note.where
    for meeting in MEETINGS:
        assert not notes(body.replace("MEND", meeting), size)


# In global memory: what is loaded, and whether it is another lane's
IN_GLOBAL = {
    "a neighbour's": ("ld.global.b32 y, [there];", True),
    "volatile": ("ld.volatile.global.b32 y, [there];", True),
    "its own": ("ld.global.b32 y, [here];", False),
}


@pytest.mark.parametrize("name", IN_GLOBAL)
def test_lanes_that_have_not_met_in_global_memory(name):
    load, of_another = IN_GLOBAL[name]
    body = ".reg .b64 here, there; mad.wide.u32 here, tid, 4, out; mad.wide.u32 there, x, 4, out; "
    body += f"st.global.b32 [here], 5; MEND {load}"
    found = notes(body.replace("MEND", ""))
    assert [note.note for note in found] == ["lanes-apart"] * of_another
    assert all("store of warp 0" in note.message and "written by another lane" in note.message for note in found)
    for meeting in MEETINGS[:2]:
        assert not notes(body.replace("MEND", meeting))


def test_it_is_a_fault_if_that_is_asked_for():
    size, body, _ = KINDS["a neighbour's element is read"]
    with pytest.raises(emulated_gpu.Fault, match="written by another lane of the warp"):
        notes(body.replace("MEND", ""), size, strict=True)


@pytest.mark.parametrize("name", LOOPS)
def test_in_machine_code(name):
    first, second = LOOPS[name]
    body = LOOP.replace("FIRST", first).replace("SECOND", second)
    (note,) = notes(body.replace("MEND", ""))
    assert note.note == "lanes-apart"
    assert not notes(body.replace("MEND", "vote.sync.all.pred p, p, -1; setp.eq.u32 p, tid, 0;"))


@pytest.mark.parametrize(
    "body",
    [
        "st.shared.b32 [mine], tid; ld.shared.b32 y, [mine]; st.shared.b32 [mine], y;",
        "st.shared.b32 [tile], 7; ld.shared.b32 y, [tile];",
        "@p st.shared.b32 [tile], 1; bar.warp.sync -1; ld.shared.b32 y, [tile]; ld.shared.b32 y, [tile];",
        "st.shared.b32 [other], 7; bar.warp.sync -1; ld.shared.b32 y, [mine]; st.shared.b32 [mine], 7;",
        "st.volatile.shared.b32 [mine], tid; ld.volatile.shared.b32 y, [other];",
    ],
    ids=["own elements", "all write one value", "all read", "the value that is there", "volatile"],
)
def test_what_is_no_race_of_lanes(body):
    assert not notes(body)
