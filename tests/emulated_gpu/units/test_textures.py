"""Fetches from textures against the CUDA C++ programming guide's appendix "Texture Fetching", told anew: in scalars, by
coordinates, with fractions of Python's. Two rules are not the guide's: addressing acts on each texel of a filter, and a
normalized coordinate times the size is a float."""

import itertools
from fractions import Fraction
from math import floor

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.device import allocate
from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats.texels import BORDER, CLAMP, MIRROR, WRAP, TexelForm
from emulated_gpu.native import hot_blocks
from emulated_gpu.state import images
from emulated_gpu.state.images import Image, Texture
from emulated_gpu.units import textures

HEAD = ".version 8.8\n.target sm_90\n.address_size 64\n"
KERNEL = HEAD + """.visible .entry k(.param .u64 pt, .param .u64 pa, .param .u64 po, .param .u64 memory) {{
    .reg .b64 t, a, o; .reg .b32 i, c<5>, r<5>; .reg .pred p;
    ld.param.u64 t, [pt]; ld.param.u64 a, [pa]; ld.param.u64 o, [po];
    mov.u32 i, %tid.x; mad.wide.u32 a, i, 16, a; mad.wide.u32 o, i, 16, o;
    ld.global.v4.b32 {{c1, c2, c3, c4}}, [a];
    {fetch}
    st.global.v4.b32 [o], {{r1, r2, r3, r4}}; ret; }}
"""
N, RESULT = 32, "{r1, r2, r3, r4}"
WHERE = {
    "1d": "{c1}", "2d": "{c1, c2}", "3d": "{c1, c2, c3, c3}", "a1d": "{c1, c2}", "a2d": "{c1, c2, c3, c3}",
    "cube": "{c1, c2, c3, c3}", "acube": "{c1, c2, c3, c4}",
}  # fmt: skip


@pytest.fixture(autouse=True)
def objects(monkeypatch):
    """Blocks become machine code at once; a launch's first load and fetch find no shadows, and are Python's."""
    monkeypatch.setattr(hot_blocks, "START", -1e9)
    monkeypatch.setattr(hot_blocks, "CROSSING", -1e3)
    yield
    images.OBJECTS.clear()


def image(texels: np.ndarray, kind: str, flags: int = 0, **more) -> Image:
    """texels: [slices, rows, width, channels], or without the first ones."""
    *slices, width, channels = texels.shape
    height, depth = (0, 0, *slices)[-1], (0, 0, *slices)[-2]
    form = TexelForm(kind, 8 * texels.itemsize, channels)
    return Image(texels.ctypes.data, form, width, height, depth, width * form.size, flags, **more)


def texture(
    of: Image, mode: int = CLAMP, linear=False, normalized=False, fractions=True, srgb=False, border=(0.0,) * 4
) -> int:
    images.OBJECTS[7] = Texture(of, (mode,) * 3, linear, normalized, fractions, srgb, border)
    return 7


def run(fetch: str, handle: int, coordinates: np.ndarray, texels: np.ndarray, lanes: int = N) -> np.ndarray:
    """coordinates: [lanes, up to 4] of 32 bits. Returns uint32 [lanes, 4], of three warps that do the same."""
    warps = 3 if lanes == N else 1
    at = np.zeros((warps, lanes, 4), np.uint32)
    at[:, :, : coordinates.shape[1]] = coordinates.view(np.uint32)
    out = np.zeros((warps, lanes, 4), np.uint32)
    emulated_gpu.launch(KERNEL.format(fetch=fetch), "k", 1, warps * lanes, [handle, at, out, texels])
    assert (out == out[0]).all(), "machine code's is another result"
    return out[0]


def frac(x):
    return x - floor(x)


def addressed(x: Fraction, size: int, mode: int, normalized: bool) -> Fraction:
    """The coordinate in texels, as the guide replaces it in front of a fetch."""
    if normalized and mode == WRAP:
        x = frac(x)
    if normalized and mode == MIRROR:
        x = frac(x) if floor(x) % 2 == 0 else 1 - frac(x)
    return Fraction(float(np.float32(float(x * size)))) if normalized else x


def texel(values, index, mode, border):
    """T[i, j, k], whose sizes are those of `values` the other way round."""
    place = []
    for i, size in zip(index, values.shape[-2::-1]):
        if mode == BORDER and not 0 <= i < size:
            return border
        place.append(i % size if mode == WRAP else min(max(i, 0), size - 1))
    return [Fraction(float(v)) for v in values[tuple(place[::-1])]]


def expected(values: np.ndarray, where, mode, linear, normalized, border=(0, 0, 0, 0)) -> list[Fraction]:
    """values: [.., width, channels]; where: x, y, z."""
    sizes = values.shape[-2::-1]
    coordinates = [addressed(Fraction(float(x)), n, mode, normalized) for x, n in zip(where, sizes)]
    if not linear:
        return texel(values, [floor(x) for x in coordinates], mode, border)[: values.shape[-1]]
    firsts = [floor(x - Fraction(1, 2)) for x in coordinates]
    # 9-bit fixed point with 8 bits of fractional value, so that 1 is exact
    alphas = [Fraction(floor(frac(x - Fraction(1, 2)) * 256 + Fraction(1, 2)), 256) for x in coordinates]
    total = [Fraction(0)] * values.shape[-1]
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        weight = Fraction(1)
        for second, alpha in zip(corner, alphas):
            weight *= alpha if second else 1 - alpha
        found = texel(values, [f + c for f, c in zip(firsts, corner)], mode, border)
        total = [t + weight * v for t, v in zip(total, found)]
    return total


def resident(values: np.ndarray) -> np.ndarray:
    """The same in memory that kernels work on, no copy."""
    placed = allocate(values.nbytes).view(values.dtype).reshape(values.shape)
    placed[:] = values
    return placed


def texels_of(shape, kind: str, bits: int) -> np.ndarray:
    draw = np.random.default_rng(sum(shape))
    if kind == "f":
        return resident((draw.integers(-64, 64, shape) / 4).astype(f"f{bits // 8}"))
    info = np.iinfo(f"{kind.replace('s', 'i')}{bits // 8}")
    return resident(draw.integers(info.min, info.max, shape, endpoint=True, dtype=info.dtype))


@pytest.mark.parametrize("geometry, shape", [("1d", (9, 2)), ("2d", (5, 8, 4)), ("3d", (3, 4, 5, 1))])
@pytest.mark.parametrize("linear", [False, True], ids=["point", "linear"])
def test_address_modes_and_filters(geometry, shape, linear, monkeypatch):
    calls: list = []
    monkeypatch.setattr(textures, "fetch", lambda *a, f=textures.fetch: (calls.append(a), f(*a))[1])
    values = texels_of(shape, "f", 32)
    draw = np.random.default_rng(1)
    for mode, normalized in [(CLAMP, False), (BORDER, False), *((m, True) for m in (WRAP, CLAMP, MIRROR, BORDER))]:
        low, high = (-1.6, 2.6) if normalized else (-3, max(shape) + 3)
        where = draw.uniform(low, high, (N, len(shape) - 1)).astype(np.float32)
        where[:4] = np.array([0, 1, 0.5, -0.25], np.float32)[:, None]  # edges and centres
        border = (0.5, -2.0, 3.0, 8.0)
        handle = texture(image(values, "f"), mode, linear, normalized, border=border)
        fetch = f"tex.{geometry}.v4.f32.f32 {RESULT}, [t, {WHERE[geometry]}];"
        out = run(fetch, handle, where, values).view(np.float32)
        for lane in range(N):
            wanted = expected(values, where[lane], mode, linear, normalized, [Fraction(b) for b in border])
            assert out[lane, : shape[-1]].tolist() == [float(np.float32(float(v))) for v in wanted], (mode, lane)
            assert not out[lane, shape[-1] :].any()
    assert len(calls) == 8  # of eighteen


@pytest.mark.parametrize("kind, bits", [("u", 8), ("s", 8), ("u", 16), ("s", 16), ("f", 16)])
def test_fractions_of_the_largest_number(kind, bits):
    """The guide: [0, 1] of unsigned, [-1, 1] of signed integers, 0xff of eight bits being 1."""
    values = texels_of((8, 2), kind, bits)
    if kind != "f":
        values[:2, 0] = np.iinfo(values.dtype).min, np.iinfo(values.dtype).max
    where = np.arange(N, dtype=np.float32)[:, None] % 8 + np.float32(0.5)
    out = run(f"tex.1d.v4.f32.f32 {RESULT}, [t, {{c1}}];", texture(image(values, kind)), where, values)
    largest = {"u": 2**bits - 1, "s": 2 ** (bits - 1) - 1, "f": 1}[kind]
    least = -1.0 if kind == "s" else -1e9
    wanted = [[float(np.float32(max(float(v) / largest, least))) for v in row] for row in values]
    assert out.view(np.float32)[:8, :2].tolist() == wanted


@pytest.mark.parametrize("kind, bits", [("u", 8), ("s", 8), ("s", 16), ("u", 32), ("s", 32)])
def test_integers_as_they_are_and_linear_memory(kind, bits):
    """tex1Dfetch: outside of linear memory there are zeros."""
    values = texels_of((20, 4), kind, bits)
    handle = texture(image(values, kind, linear=True), fractions=False)
    where = np.arange(-4, N - 4, dtype=np.int32)[:, None]
    out = run(f"tex.1d.v4.{kind}32.s32 {RESULT}, [t, {{c1}}];", handle, where, values)
    wanted = np.zeros((N, 4), np.int64)
    wanted[4:24] = values
    assert (out.view(np.int32) == wanted.astype(np.uint32).view(np.int32)).all()
    with pytest.raises(Unsupported, match="a fetch by floats from 1d memory"):
        run(f"tex.1d.v4.{kind}32.f32 {RESULT}, [t, {{c1}}];", handle, where, values)


def test_srgb():
    values = resident(np.arange(32, dtype=np.uint8).reshape(8, 4) * 8)
    where = np.arange(N, dtype=np.float32)[:, None] % 8
    out = run(f"tex.1d.v4.f32.f32 {RESULT}, [t, {{c1}}];", texture(image(values, "u"), srgb=True), where, values)
    linear = lambda c: c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4  # noqa: E731
    wanted = [[*(linear(v / 255) for v in row[:3].tolist()), row[3] / 255] for row in values]
    np.testing.assert_allclose(out.view(np.float32)[:8], wanted, rtol=1e-6)


@pytest.mark.parametrize("geometry", ["a1d", "a2d"])
def test_layers_are_not_filtered_and_clamped(geometry):
    values = texels_of((3, *(4,) * (geometry == "a2d"), 5, 1), "f", 32)
    draw = np.random.default_rng(2)
    where = draw.uniform(-1, 6, (N, 3)).astype(np.float32)
    layers = np.arange(N, dtype=np.int32) % 5 - 1
    at = np.concatenate([layers.view(np.float32)[:, None], where], 1)
    of = image(values, "f", Image.LAYERED)
    if geometry == "a1d":
        of = Image(of.address, of.form, 5, 0, 3, 20, Image.LAYERED)
    out = run(f"tex.{geometry}.v4.f32.f32 {RESULT}, [t, {WHERE[geometry]}];", texture(of, linear=True), at, values)
    for lane in range(N):
        wanted = expected(values[min(max(int(layers[lane]), 0), 2)], where[lane], CLAMP, True, False)
        assert out.view(np.float32)[lane, 0] == float(wanted[0])


# The guide's table: face, m, s, t
FACES = {
    0: lambda x, y, z: (x, -z, -y), 1: lambda x, y, z: (-x, z, -y), 2: lambda x, y, z: (y, x, z),
    3: lambda x, y, z: (-y, x, -z), 4: lambda x, y, z: (z, x, -y), 5: lambda x, y, z: (-z, -x, -y),
}  # fmt: skip


@pytest.mark.parametrize("layer", [None, 1])
def test_cubes(layer):
    values = texels_of((12 if layer else 6, 4, 4, 1), "f", 32)
    where = np.random.default_rng(3).uniform(-1, 1, (N, 3)).astype(np.float32)
    flags = Image.CUBE | (Image.LAYERED if layer else 0)
    at = where if layer is None else np.concatenate([np.full((N, 1), layer, np.int32).view(np.float32), where], 1)
    name = "acube" if layer else "cube"
    handle = texture(image(values, "f", flags), normalized=True)
    out = run(f"tex.{name}.v4.f32.f32 {RESULT}, [t, {WHERE[name]}];", handle, at, values).view(np.float32)
    for lane, direction in enumerate(where.astype(float).tolist()):
        axis = max(range(3), key=lambda a: abs(direction[a]))
        face = 2 * axis + (direction[axis] < 0)
        m, s, t = FACES[face](*direction)
        i, j = (min(floor((v / m + 1) / 2 * 4), 3) for v in (s, t))
        assert out[lane, 0] == values[face + 6 * (layer or 0), j, i, 0]


def test_gather():
    """The four texels of a filter, counter-clockwise from the lower left (PTX ISA 9.7.10.2)."""
    values = texels_of((4, 6, 2), "u", 8)
    where = np.random.default_rng(4).uniform(1, 3, (N, 2)).astype(np.float32)
    handle = texture(image(values, "u", Image.GATHER), fractions=False)
    out = run(f"tld4.g.2d.v4.u32.f32 {RESULT}, [t, {{c1, c2}}];", handle, where, values)
    for lane in range(N):
        i, j = (floor(float(v) - 0.5) for v in where[lane])
        assert out[lane].tolist() == [int(values[y, x, 1]) for x, y in ((i, j + 1), (i + 1, j + 1), (i + 1, j), (i, j))]


def test_guards_levels_queries_and_lanes_alike():
    values = texels_of((4, 6, 1), "f", 32)
    where = np.full((N, 2), 2.5, np.float32)
    handle = texture(image(values, "f"))
    fetch = "and.b32 i, i, 31; setp.gt.u32 p, i, 7; mov.b32 r1, 9; mov.b32 r2, 0; mov.b32 r3, 0; mov.b32 r4, 0;"
    fetch += f"@p tex.level.2d.v4.f32.f32 {RESULT}, [t, {{c1, c2}}], c4;"
    out = run(fetch, handle, where, values)
    assert (out[:8, 0] == 9).all() and (out[8:, 0].view(np.float32) == values[2, 2, 0]).all()
    one = f"tex.grad.2d.v4.f32.f32 {RESULT}, [t, {{0f3F800000, 0f00000000}}], {{c1, c2}}, {{c1, c2}};"
    for lanes in (1, N):
        assert (run(one, handle, where[:lanes], values, lanes)[:, 0].view(np.float32) == values[0, 1, 0]).all()
    ask = "".join(f"txq.{what}.b32 r{k}, [t];" for k, what in enumerate(("width", "height", "depth", "array_size"), 1))
    assert run(ask, handle, where, values).tolist() == [[6, 4, 0, 0]] * N


def test_what_is_no_texture_is_said():
    values = texels_of((4, 6, 1), "f", 32)
    where = np.zeros((N, 3), np.float32)
    fetch = f"tex.2d.v4.f32.f32 {RESULT}, [t, {{c1, c2}}];"
    handle = texture(image(values, "f"))
    with pytest.raises(Fault, match="0x8 is no texture object"):
        run(fetch, 8, where, values)
    with pytest.raises(Unsupported, match="an access .3d to a texture of geometry .2d"):
        run(f"tex.3d.v4.f32.f32 {RESULT}, [t, {{c1, c2, c3, c3}}];", handle, where, values)
    with pytest.raises(Unsupported, match="coordinates of type .s32"):
        run(f"tex.cube.v4.f32.s32 {RESULT}, [t, {{c1, c2, c3, c3}}];", handle, where, values)
    with pytest.raises(Unsupported, match="a sampler beside the texture"):
        run(f"tex.2d.v4.f32.f32 {RESULT}, [t, a, {{c1, c2}}];", handle, where, values)
    with pytest.raises(Unsupported, match="named: a reference to a texture or surface, which CUDA 12 has removed"):
        run(f"tex.2d.v4.f32.f32 {RESULT}, [named, {{c1, c2}}];", handle, where, values)
    images.OBJECTS[7] = None
    with pytest.raises(Fault, match="texture object 0x7 is used, which has been destroyed"):
        run(fetch, 7, where, values)


def test_memory_that_a_texture_reads_may_be_gone_or_written_meanwhile():
    """As other loads of global memory; the texture cache need not have what the launch has written."""
    values = texels_of((4, 8, 1), "f", 32)
    handle = texture(image(values, "f"))
    fetch = f"tex.2d.v4.f32.f32 {RESULT}, [t, {{c1, c2}}];"
    with pytest.raises(Fault, match="outside global memory"):
        run(fetch, handle, np.zeros((N, 2), np.float32), values[0].copy())
    race = "setp.lt.u32 p, i, 32; ld.param.u64 t, [memory]; mad.wide.u32 t, i, 4, t; @p st.global.b32 [t], i;"
    race += "bar.sync 0; ld.param.u64 t, [pt];" + fetch
    where = np.stack([np.arange(N) % 8, np.arange(N) // 8], 1).astype(np.float32)
    with emulated_gpu.session() as session:
        run(race, handle, where, values)
    (note,) = session.notes
    assert note.note == "non-coherent-load" and "a texture reads" in note.message


def test_reads_of_texels_by_machine_code_are_kept():
    """Warps 0 to 2 fetch a row of texels each, the last one by machine code; warp 3 writes what that has read."""
    values = texels_of((4, 8, 1), "f", 32)
    at = np.zeros((4, N, 4), np.float32)
    at[..., 0], at[..., 1] = np.arange(N) % 8, np.arange(4)[:, None]
    fetch = f"setp.gt.u32 p, i, 95; mov.b32 r1, 0; @!p tex.2d.v4.f32.f32 {RESULT}, [t, {{c1, c2}}]; mov.b32 r2, r1;"
    fetch += "mov.b32 r3, r1; mov.b32 r4, r1; ld.param.u64 a, [memory]; and.b32 i, i, 7; mad.wide.u32 a, i, 4, a;"
    arguments = [texture(image(values, "f")), at, np.zeros((4, N, 4), np.float32), values]
    with pytest.raises(Fault, match="race: write .* which texture fetch of warp 2"):
        emulated_gpu.launch(KERNEL.format(fetch=fetch + "@p st.global.b32 [a+64], i;"), "k", 1, 4 * N, arguments)
