"""Bits that come of a register which nothing writes: where the analysis says that none is used, none may be."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.errors import Fault
from emulated_gpu.ptx import undefined_bits
from emulated_gpu.ptx.parse import parse

PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out) {{
  .reg .b32 x, y, d, e, f, lane; .reg .b16 h, l; .reg .b64 i, o, v, w; .reg .pred p;
  mov.u32 lane, %tid.x; ld.param.u64 i, [in]; ld.param.u64 o, [out]; mad.wide.u32 o, lane, 4, o;
  mad.wide.u32 i, lane, 4, i; ld.global.b32 y, [i+128]; {load} {body} ret; }}
"""
LOAD, STORE = "ld.global.b32 x, [i];", "st.global.b32 [o], d;"

# What makes d of x and y, and the bits of d that may come of x
MADE = {
    "and.b32 d, x, 0x00ff00ff;": 0x00FF00FF,
    "or.b32 d, x, 0x0000ffff;": 0xFFFF0000,
    "shl.b32 e, x, 20; xor.b32 d, e, y;": 0xFFF00000,
    "shr.u32 e, x, 20; and.b32 e, e, 0xff; add.u32 d, e, 0x10;": 0xFFFFFFFF,
    "shr.s32 d, x, 28;": 0xFFFFFFFF,
    "shl.b32 e, x, 24; sub.u32 d, y, e;": 0xFF000000,
    "shl.b32 e, x, 16; mul.lo.u32 d, e, y;": 0xFFFF0000,
    "lop3.b32 d, y, x, 0x10000, 0xf8;": 0xFFFFFFFF,
    "prmt.b32 d, y, x, 0x7531;": 0xFFFF0000,
    "and.b32 e, x, 0x8000; prmt.b32 d, y, e, 0x3d20;": 0x00FF0000,
    "cvt.rn.f16x2.f32 d, x, y;": 0xFFFF0000,
    "cvt.rn.f16x2.f32 e, y, x; min.f16x2 d, e, y;": 0x0000FFFF,
    "cvt.rn.f16x2.f32 e, y, x; set.nan.f16x2.f16x2 d, e, e;": 0x0000FFFF,
    "cvt.rn.f16x2.f32 e, x, y; fma.rn.f16x2 d, e, y, y;": 0xFFFF0000,
    "cvt.rn.satfinite.e4m3x2.f32 h, x, y; cvt.u32.u16 d, h;": 0x0000FF00,
    "mov.b32 {l, h}, x; mov.b32 d, {h, 1};": 0x0000FFFF,
    "shl.b32 e, x, 8; cvt.u16.u32 h, e; cvt.s32.s16 d, h;": 0xFFFFFF00,
    "cvt.u64.u32 w, x; shl.b64 v, w, 8; cvt.u32.u64 d, v;": 0xFFFFFF00,
    "setp.gt.u32 p, x, y; selp.b32 d, 1, 2, p;": 0xFFFFFFFF,
    "popc.b32 d, x;": 0xFFFFFFFF,
    "add.f32 d, x, y;": 0xFFFFFFFF,
}


@pytest.mark.parametrize("text", MADE)
def test_bits_that_change_are_those_that_the_analysis_names(text):
    random = np.random.default_rng(5)
    data = np.concatenate([random.integers(0, 1 << 32, 32, np.uint32), np.full(32, 0x3F9E1234, np.uint32)])
    out = np.zeros(32, np.uint32)
    emulated_gpu.launch(PTX.format(load=LOAD, body=text + STORE), "k", 1, 32, [data, out])
    changed = np.bitwise_or.reduce(out ^ out[0])
    assert changed and not changed & ~np.uint32(MADE[text])
    for bits in (MADE[text], ~MADE[text] & 0xFFFFFFFF):  # a mask that keeps any of them, and one that keeps none
        used = f"and.b32 f, d, {bits:#x}; st.global.b32 [o], f;"
        assert is_used(text + used) == bool(bits & MADE[text])


def is_used(body: str) -> bool:
    kernel = parse(PTX.format(load="", body=body)).kernels["k"]
    return undefined_bits.is_used(kernel.instrs, next(r for r in kernel.registers if r.name == "x"))


@pytest.mark.parametrize(
    "body",
    [
        "st.global.b32 [o], x;", "setp.eq.u32 p, x, 1; @p st.global.b32 [o], y;", "shfl.sync.idx.b32 d, x, 0, 31, -1;",
        "setp.eq.u32 p, x, 1; @p bra END; END:", "add.cc.u32 d, x, y; addc.u32 d, y, y;",
    ],
)  # fmt: skip
def test_what_decides_or_leaves_the_lane_is_used(body):
    assert is_used(body)


def test_padding_of_packed_assembly_is_no_finding():
    """As Triton makes two numbers of E5M2 by assembly that makes four."""
    packed = """cvt.rz.f16x2.f32 d, y, y; cvt.rz.f16x2.f32 e, x, x; prmt.b32 f, d, e, 0x7531;
        cvt.u16.u32 h, f; st.global.b16 [o], h;"""
    data, outs = np.arange(64, dtype=np.float32).view(np.uint32), [np.zeros(32, np.uint32) for _ in range(2)]
    texts = [PTX.format(load="", body=packed), PTX.format(load=LOAD, body=packed)]
    for text, out in zip(texts, outs, strict=True):
        emulated_gpu.launch(text, "k", 1, 32, [data, out])
    assert (outs[0] == outs[1]).all() and outs[0].any()
    with pytest.raises(Fault, match="x is read before anything was written to it"):
        emulated_gpu.launch(texts[0].replace("0x7531", "0x3175"), "k", 1, 32, [data, outs[0]])
