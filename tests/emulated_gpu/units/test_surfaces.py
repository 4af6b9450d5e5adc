"""Accesses to surfaces (PTX ISA 9.7.11): the first coordinate in bytes; outside they trap, clamp or do nothing."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.device import allocate
from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats.texels import TexelForm
from emulated_gpu.state import images
from emulated_gpu.state.images import Image, Surface

HEAD = ".version 8.8\n.target sm_90\n.address_size 64\n"
KERNEL = HEAD + """.visible .entry k(.param .u64 ps, .param .u64 pa, .param .u64 po, .param .u64 memory) {{
    .reg .b64 t, a, o; .reg .b32 i, c<5>, r<5>; .reg .b16 h; .reg .pred p;
    ld.param.u64 t, [ps]; ld.param.u64 a, [pa]; ld.param.u64 o, [po];
    mov.u32 i, %tid.x; mad.wide.u32 a, i, 16, a; mad.wide.u32 o, i, 4, o;
    ld.global.v4.b32 {{c1, c2, c3, c4}}, [a];
    {body} ret; }}
"""
WHERE = {"1d": "c1", "2d": "c1, c2", "3d": "c1, c2, c3, c3", "a1d": "c3, c1", "a2d": "c3, c1, c2, c2"}
SHAPES = {"1d": (1, 1, 8), "2d": (1, 4, 8), "3d": (3, 4, 8), "a1d": (3, 1, 8), "a2d": (3, 4, 8)}
HANDLE, N = 3, 32


@pytest.fixture
def surface(monkeypatch):
    """A function that makes a surface of a geometry; returns its texels, numbered from 1, uint32 [slices, rows, 8]."""
    monkeypatch.setattr(images, "OBJECTS", images.Objects())

    def made(geometry: str = "2d") -> np.ndarray:
        slices, rows, width = SHAPES[geometry]
        texels = allocate(slices * rows * width * 4).view(np.uint32).reshape(slices, rows, width)
        texels.flat = np.arange(1, texels.size + 1)
        height = 0 if "1" in geometry else rows
        flags = Image.LAYERED * geometry.startswith("a") | Image.SURFACE
        depth = slices if geometry in ("3d", "a1d", "a2d") else 0
        form = TexelForm("u", 32, 1)
        of = Image(texels.ctypes.data, form, width, height, depth, 32, flags)
        images.OBJECTS[HANDLE] = Surface(of)
        return texels

    return made


def run(body: str, places: np.ndarray, texels: np.ndarray, handle: int = HANDLE) -> np.ndarray:
    """places: x in bytes, y, z of each lane. Returns uint32 [lanes], what the body stores to [o]."""
    at, out = np.zeros((len(places), 4), np.int32), np.full(len(places), 77, np.uint32)
    at[:, : places.shape[1]] = places
    emulated_gpu.launch(KERNEL.format(body=body), "k", 1, len(places), [handle, at, out, texels])
    return out


def drawn(geometry: str, outside: int = 0) -> np.ndarray:
    draw, (slices, rows, width) = np.random.default_rng(5), SHAPES[geometry]
    low, high = -outside, np.array([width, rows, slices]) + outside
    return draw.integers(low, high, (N, 3)) * [4, 1, 1]


@pytest.mark.parametrize("geometry", WHERE)
@pytest.mark.parametrize("outside", ["trap", "clamp", "zero"])
def test_loads(surface, geometry, outside):
    texels = surface(geometry)
    places = drawn(geometry, 2 if outside != "trap" else 0)
    out = run(f"suld.b.{geometry}.b32.{outside} r1, [t, {{{WHERE[geometry]}}}]; st.global.b32 [o], r1;", places, texels)
    for lane, (x, y, z) in enumerate(places.tolist()):
        place, ends = [z, y, x // 4], texels.shape
        if geometry in ("1d", "a1d"):
            place[1] = 0
        if geometry in ("1d", "2d"):
            place[0] = 0
        inside = all(0 <= p < end for p, end in zip(place, ends))
        nearest = tuple(min(max(p, 0), end - 1) for p, end in zip(place, ends))
        assert out[lane] == (texels[nearest] if inside or outside == "clamp" else 0), (lane, place)


@pytest.mark.parametrize("outside", ["clamp", "zero"])
def test_stores_and_sums(surface, outside):
    texels = surface()
    before = texels.copy()
    places = np.stack([np.arange(N) % 8 * 4, np.arange(N) // 8 - 1], 1)  # a row above
    if outside == "clamp":
        places = places[8:]
    body = f"add.u32 i, i, 100; sust.b.2d.b32.{outside} [t, {{c1, c2}}], i; st.global.b32 [o], i;"
    body += f"sured.b.add.2d.u32.{outside} [t, {{c1, c2}}], c2;"
    run(body, places, texels)
    first = 108 if outside == "zero" else 100
    wanted = (np.arange(24) + first).reshape(3, 8) + np.arange(3)[:, None]
    assert (texels[0, :3] == wanted).all() and (texels[0, 3] == before[0, 3]).all()


def test_widths(surface):
    texels = surface()
    places = np.stack([np.arange(4) * 8, np.arange(4) % 2], 1)
    load = "suld.b.2d.v2.b32.trap {r1, r2}, [t, {c1, c2}]; add.u32 r1, r1, r2; st.global.b32 [o], r1;"
    out = run(load, places, texels)
    assert out.tolist() == [1 + 2, 11 + 12, 5 + 6, 15 + 16]
    out = run("suld.b.2d.b8.trap h, [t, {c1, c2}]; cvt.u32.u16 r1, h; st.global.b32 [o], r1;", places + [3, 0], texels)
    assert not out.any()  # the highest bytes of small numbers
    run("cvt.u16.u32 h, c1; sust.b.2d.b8.trap [t, {c1, c2}], h;", places + [3, 0], texels)
    assert (texels[0, 0, ::2] >> 24).tolist() == [3, 0, 19, 0] and (texels[0, 1, ::2] >> 24).tolist() == [0, 11, 0, 27]


def test_guards_and_lanes_alike(surface):
    texels = surface()
    places = np.zeros((N, 2), np.int32)
    body = "mov.b32 r1, 9; setp.lt.u32 p, i, 4; @p suld.b.2d.b32.trap r1, [t, {8, 1}]; st.global.b32 [o], r1;"
    assert run(body, places, texels).tolist() == [11] * 4 + [9] * 28
    body = "suld.b.2d.b32.trap r1, [t, {8, 1}]; suld.b.2d.b32.zero r2, [t, {8, 9}]; add.u32 r1, r1, r2;"
    assert run(body + "st.global.b32 [o], r1;", places, texels).tolist() == [11] * N
    run("setp.ne.u32 p, i, 5; @p bra E; sust.b.2d.b32.zero [t, {0, 0}], 7; E:", places, texels)
    assert texels[0, 0, 0] == 7
    body = "suq.width.b32 r1, [t]; suq.height.b32 r2, [t]; mad.lo.u32 r1, r1, 10, r2; st.global.b32 [o], r1;"
    assert run(body, places, texels).tolist() == [84] * N


def test_what_is_wrong_is_said(surface):
    texels = surface()
    load = "suld.b.2d.b32.trap r1, [t, {c1, c2}];"
    outside = r"access of 4 bytes at \(32, 1\), the first in bytes, is outside a surface of 8 x 4 texels of 4 bytes"
    with pytest.raises(Fault, match=outside) as found:
        run(load, np.array([[0, 0], [32, 1]]), texels)
    assert found.value.kind == "out-of-bounds"
    with pytest.raises(Fault, match="access of 4 bytes at byte 2 of a row of a surface"):
        run(load, np.array([[2, 0]]), texels)
    with pytest.raises(Fault, match="0x9 is no surface object"):
        run(load, np.array([[0, 0]]), texels, handle=9)
    with pytest.raises(Unsupported, match="an access .1d to a surface of geometry .2d"):
        run("suld.b.1d.b32.trap r1, [t, {c1}];", np.array([[0, 0]]), texels)
    with pytest.raises(Unsupported, match="no modifier out of .b"):
        run("sust.p.2d.b32.trap [t, {c1, c2}], i;", np.array([[0, 0]]), texels)


def test_races_are_those_of_global_memory(surface):
    texels = surface()
    body = "setp.ne.u32 p, i, 32; @p bra R; sust.b.2d.b32.trap [t, {0, 0}], i; R: setp.ne.u32 p, i, 0; @p bra E;"
    with pytest.raises(Fault) as found:
        run(body + "suld.b.2d.b32.trap r1, [t, {0, 0}]; st.global.b32 [o], r1; E:", np.zeros((64, 2), np.int32), texels)
    assert found.value.kind == "race"
