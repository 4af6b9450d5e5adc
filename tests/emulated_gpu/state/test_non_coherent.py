"""ld.global.nc of what the launch has written: a note, in Python and in machine code."""

import numpy as np
import pytest

import emulated_gpu

PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 result, .param .u64 source) {
    .reg .pred p, q; .reg .b16 h; .reg .b32 tid, x, turn; .reg .b64 out, in, at;
    ld.param.u64 out, [result]; ld.param.u64 in, [source]; mov.u32 tid, %tid.x; mov.u32 turn, 0;
    mul.wide.u32 at, tid, 4; add.u64 out, out, at; add.u64 in, in, at;
    BODY
    ret; }
"""
LOOP = "AGAIN: add.u32 turn, turn, 1; setp.eq.u32 p, turn, 5950; {0} ld.global.nc.b32 x, [in]; st.global.b32 [out], x;"
LOOP += "setp.lt.u32 q, turn, 6000; @q bra AGAIN;"


def notes(body: str) -> list:
    with emulated_gpu.session() as session:
        emulated_gpu.launch(PTX.replace("BODY", body), "k", 1, 32, list(np.zeros((2, 32), np.uint32)))
    return session.notes


@pytest.mark.parametrize(
    "body",
    [
        "st.global.b32 [in], tid; ld.global.nc.b32 x, [in]; st.global.b32 [out], x;",
        "st.global.b32 [in], tid; ld.global.nc.b16 h, [in+2]; st.global.b16 [out], h;",
        LOOP.format("@p st.global.b32 [in], turn;"),
        LOOP.format("@p st.global.b8 [in], turn;"),
    ],
    ids=["a word", "a part", "in a loop", "a part in a loop"],
)
def test_what_the_launch_has_written(body):
    (note,) = notes(body)
    assert note.note == "non-coherent-load" and "ld.global.nc reads argument 1 at byte" in note.message
    assert "store of warp 0" in note.message and "PTX line 8" in note.where
    assert not notes(body.replace(".nc", ""))


@pytest.mark.parametrize(
    "body",
    ["ld.global.nc.b32 x, [in]; st.global.b32 [in], x;", LOOP.format(""), LOOP.format("@p st.global.b32 [out], turn;")],
    ids=["read before it is written", "read only", "something else is written"],
)
def test_what_it_has_not_written(body):
    assert not notes(body)
