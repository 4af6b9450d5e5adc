"""Lanes that part for a few instructions go both ways together, with the results and findings that they have apart."""
# ruff: noqa: E501

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.machine.warp import Group
from emulated_gpu.native.region import Region
from emulated_gpu.ptx.control_flow import ControlFlow

PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .b64 out, .param .b64 table) {
.reg .pred %p<3>; .reg .b16 %h<2>; .reg .b32 %r<12>; .reg .b64 %d<5>; .shared .align 4 .b8 tile[256];
ld.param.b64 %d0, [out]; ld.param.b64 %d1, [table];
mov.u32 %r0, %tid.x; mov.u32 %r1, 7; mov.u32 %r2, 0; mov.u32 %r7, 0; mad.wide.u32 %d2, %r0, 4, %d1;
mad.wide.u32 %d3, %r0, 8, %d0; shl.b32 %r8, %r0, 2; mov.u32 %r9, tile; add.u32 %r8, %r8, %r9;
AGAIN: add.u32 %r3, %r0, %r7; and.b32 %r4, %r3, 5; setp.eq.u32 %p0, %r4, 0;
BODY
MEET: mad.lo.u32 %r2, %r2, 3, %r1; add.u32 %r7, %r7, 1; setp.lt.u32 %p1, %r7, TURNS; @%p1 bra AGAIN;
st.global.b32 [%d3], %r1; st.global.b32 [%d3+4], %r2; ret; }
"""
TRIANGLE = "@%p0 bra MEET; {} "
DIAMOND = "@!%p0 bra ELSE; {} bra.uni MEET; ELSE: {}"
TOGETHER = {
    "computes": TRIANGLE.format("mad.lo.u32 %r5, %r1, 5, %r3; xor.b32 %r1, %r5, %r0;"),
    "a part of a register's lanes": TRIANGLE.format("cvt.u16.u32 %h0, %r3; cvt.u32.u16 %r5, %h0; max.u32 %r1, %r1, %r5;"),
    "a predicate": TRIANGLE.format("setp.gt.u32 %p2, %r3, 9; selp.b32 %r1, %r3, %r1, %p2;"),
    "loads": TRIANGLE.format("ld.global.b32 %r5, [%d2]; ld.global.b32 %r6, [%d1+8]; add.u32 %r5, %r5, %r6; xor.b32 %r1, %r1, %r5;"),
    "loads out of reach of the others": TRIANGLE.format("mul.wide.u32 %d4, %r4, 4; add.u64 %d4, %d1, %d4; ld.global.b32 %r1, [%d4];"),
    "an address is overwritten": TRIANGLE.format("mul.wide.u32 %d4, %r4, 8; add.u64 %d4, %d1, %d4; ld.global.b64 %d4, [%d4]; cvt.u32.u64 %r5, %d4; add.u32 %r1, %r1, %r5;"),
    "stores and loads": TRIANGLE.format("st.shared.b32 [%r8], %r3; ld.shared.b32 %r5, [%r8]; add.u32 %r1, %r1, %r5; st.global.b32 [%d3], %r1;"),
    "two sides": DIAMOND.format("add.u32 %r1, %r1, %r3; mov.u32 %r5, 3;", "sub.u32 %r1, %r1, %r3; mov.u32 %r5, %r1; xor.b32 %r1, %r1, %r5;"),
    "a side that needs what the other one overwrites": DIAMOND.format("mov.u32 %r2, 9; mov.u32 %r1, %r2;", "add.u32 %r1, %r1, %r2;"),
    "both load": DIAMOND.format("ld.global.b32 %r1, [%d2];", "ld.global.b32 %r5, [%d1]; mul.lo.u32 %r1, %r1, %r5;"),
}  # fmt: skip
FOUND = {  # what is wrong in such a way, and what kind of finding that is
    "nobody has written it": ("uninitialized-read", TRIANGLE.format("ld.shared.b32 %r1, [%r8];")),
    "nobody has written half of it": ("uninitialized-read", TRIANGLE.format("ld.shared.v2.b32 {%r5, %r6}, [%r9+8]; add.u32 %r1, %r6, %r5;")),
    "nobody has written it, nor uses it": ("", TRIANGLE.format("ld.shared.b32 %r5, [%r8]; add.u32 %r5, %r5, 1;")),
    "outside": ("out-of-bounds", TRIANGLE.format("ld.shared.b32 %r1, [%r8+400000];")),
    "another lane's": ("race", TRIANGLE.format("st.shared.b32 [%r9], %r3;") + " ld.shared.b32 %r1, [%r9];"),
}  # fmt: skip
APART = {
    "an atomic": TRIANGLE.format("atom.global.add.u32 %r5, [%d3], 1;"),
    "a meeting": TRIANGLE.format("activemask.b32 %r5; xor.b32 %r1, %r1, %r5;"),
    "a strong load": TRIANGLE.format("ld.relaxed.gpu.global.b32 %r1, [%d2];"),
    "stores of two sides": DIAMOND.format("st.global.b32 [%d3], 1;", "st.global.b32 [%d3], 2;"),
    "a clock": TRIANGLE.format("mov.u32 %r5, %clock; and.b32 %r5, %r5, 0; xor.b32 %r1, %r1, %r5;"),
    "the condition itself": TRIANGLE.format("setp.gt.u32 %p0, %r3, 9; selp.b32 %r1, %r3, %r1, %p0;"),
    "a way in from elsewhere": "setp.eq.u32 %p2, %r3, 99; @%p2 bra IN; @%p0 bra MEET; add.u32 %r1, %r1, 1; IN: add.u32 %r1, %r1, 2;",
}  # fmt: skip


def executed(body: str, turns: int = 9, threads: int = 32, table=None) -> tuple[np.ndarray, list[str]]:
    """What lanes have in the end, and what was found."""
    out = np.zeros((threads, 2), np.uint32)
    table = np.arange(100, 100 + threads, dtype=np.uint32) if table is None else table
    with emulated_gpu.session(strict=True, most=9) as found:
        text = PTX.replace("BODY", body).replace("TURNS", str(turns))
        emulated_gpu.launch(text, "k", 1, threads, [out, table])
    return out, [f"{one.kind}: {one.message}" for one in found.errors]


@pytest.fixture
def parted(monkeypatch):
    """Counts how often lanes have parted."""
    counted = []
    split = Group.split
    monkeypatch.setattr(Group, "split", lambda self, *a: (counted.append(1), split(self, *a))[1])
    return counted


@pytest.mark.parametrize("what", TOGETHER)
def test_they_go_together_as_they_would_apart(what, parted, soon_hot, monkeypatch):
    # one by one in Python, and long enough for machine code; a warp of fewer lanes
    sizes = [(9, 32), (600, 32), (9, 20)]
    got = [executed(TOGETHER[what], *size) for size in sizes]
    assert soon_hot and not parted
    monkeypatch.setattr(ControlFlow, "predicated", property(lambda program: program))
    for (out, found), size in zip(got, sizes, strict=True):
        wanted, also = executed(TOGETHER[what], *size)
        assert (out == wanted).all() and found == also == []
    assert parted


def test_lanes_that_part_late_stay_in_machine_code(parted, soon_hot, monkeypatch):
    entered, run = [], Region.run
    monkeypatch.setattr(Region, "run", lambda self, *a, **k: (entered.append(1), run(self, *a, **k))[1])
    turn = "shr.u32 %r5, %r7, 9; mul.lo.u32 %r5, %r5, %r0; and.b32 %r5, %r5, 1; setp.eq.u32 %p0, %r5, 0; "
    out, found = executed(turn + TRIANGLE.format("mad.lo.u32 %r1, %r1, 5, %r3; xor.b32 %r1, %r1, %r0;"), 2048)
    assert (out[1] != out[0]).all() and not found and not parted
    assert 0 < len(entered) < 512 and soon_hot  # until that way is hot, too


@pytest.mark.parametrize("what", FOUND)
def test_what_is_found_is_found_alike(what, parted, monkeypatch):
    kind, body = FOUND[what]
    _, found = executed(body)
    assert not parted
    monkeypatch.setattr(ControlFlow, "predicated", property(lambda program: program))
    _, apart = executed(body)
    assert parted and found == apart
    assert [one.partition(":")[0] for one in found[:1]] == [kind] * bool(kind)


@pytest.mark.parametrize("what", APART)
def test_what_others_see_or_what_may_differ_is_done_apart(what, parted):
    executed(APART[what])
    assert parted
