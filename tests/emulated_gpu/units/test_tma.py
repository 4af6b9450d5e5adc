"""TMA copies against a scalar model that follows the text of PTX ISA 5.5.3 element by element.

The model covers what sm_90 does not have (4-bit types, gather4, scatter4); test_tma_h200.py holds facts of silicon.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import emulated_gpu
from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats.tensormap import BITS, TensorMap, encode
from emulated_gpu.units import tma

START = 1 << 20  # address of the first byte of the global memory below
SIZE = 1 << 18  # the largest tensor of `boxes` has 190,752 bytes


class Memory:
    """Global memory that records which ranges were asked for."""

    def __init__(self, seed: int = 0):
        self.bytes = np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)
        self.views = []

    def view(self, addr: int, nbytes: int, write: bool) -> np.ndarray:
        self.views.append((addr, nbytes, write))
        if not START <= addr <= addr + nbytes <= START + SIZE:
            raise Fault("out-of-bounds", f"{addr:#x}")
        return self.bytes[addr - START : addr - START + nbytes]


@st.composite
def boxes(draw, elems=("u8", "f16", "u32", "f64", "b4x16")):
    """A tensor map of rank 1-5 and coordinates that may stick out on every side."""
    elem = draw(st.sampled_from(elems))
    rank, per16 = draw(st.integers(1, 5)), 128 // BITS[elem]
    inner = per16 * draw(st.integers(1, min(4, 256 // per16)))
    box = [inner] + [draw(st.integers(1, 4)) for _ in range(rank - 1)]
    steps = [1] + [draw(st.sampled_from([1, 1, 2, 3])) for _ in range(rank - 1)]
    dims = [2 * draw(st.integers(1, inner))] + [draw(st.integers(1, 6)) for _ in range(rank - 1)]
    strides, pitch = [], -(-dims[0] * BITS[elem] // 128) * 16
    for dim in dims[1:]:
        strides.append(pitch + 16 * draw(st.integers(0, 1)))
        pitch = strides[-1] * dim
    coords = [per16 * draw(st.integers(-2, 5))] + [draw(st.integers(-3, 6)) for _ in range(rank - 1)]
    tm = TensorMap(START + 4096, elem, tuple(dims), tuple(strides), tuple(box), tuple(steps))
    return tm, tuple(coords)


def elements(tm: TensorMap, coords: tuple[int, ...]):
    """(bit position in the image, bit position in global memory or None outside the tensor) of each element."""
    counts = [-(-b // s) for b, s in zip(tm.box, tm.element_strides)]
    for n, index in enumerate(product(*(range(c) for c in reversed(counts)))):
        at = [c + i * s for c, i, s in zip(coords, reversed(index), tm.element_strides)]
        inside = all(0 <= x < dim for x, dim in zip(at, tm.dims))
        address = tm.address + sum(x * s for x, s in zip(at[1:], tm.strides_bytes))
        yield n * tm.bits, 8 * address + at[0] * tm.bits if inside else None


def bits_of(data: np.ndarray) -> np.ndarray:
    return np.unpackbits(data, bitorder="little")


def model_load(tm, coords, memory: np.ndarray) -> np.ndarray:
    source, places = bits_of(memory), list(elements(tm, coords))
    image = np.zeros(len(places) * tm.bits, np.uint8)
    for to, bit in places:
        if bit is not None:
            image[to : to + tm.bits] = source[bit - 8 * START :][: tm.bits]
    return np.packbits(image, bitorder="little")


def touched(tm, coords) -> set[int]:
    return {b // 8 for _, bit in elements(tm, coords) if bit is not None for b in range(bit, bit + tm.bits)}


@settings(max_examples=200, deadline=None)
@given(boxes())
def test_load(case):
    tm, coords = case
    memory = Memory()
    image = tma.load_box(tm, coords, memory.view)
    assert image.dtype == np.uint8 and image.size == tm.box_bytes
    assert (image == model_load(tm, coords, memory.bytes)).all()

    inside = touched(tm, coords)
    expected = (min(inside), max(inside) + 1) if inside else None
    assert memory.views == ([(expected[0], expected[1] - expected[0], False)] if inside else [])
    starts, nbytes = tma.row_addresses(tm, coords)
    assert {a for start in starts.tolist() for a in range(start, start + nbytes)} == inside
    assert len(starts) * nbytes == sum(bit is not None for _, bit in elements(tm, coords)) * tm.bits // 8
    if inside and image.base is not None:
        assert not np.shares_memory(image, memory.bytes), "a load must copy"


@settings(max_examples=100, deadline=None)
@given(boxes())
def test_store(case):
    tm, coords = case
    coords = tuple(max(0, c) for c in coords)
    image = np.random.default_rng(1).integers(0, 256, tm.box_bytes, np.uint8)
    # rows end on 16 bytes: the model of a tensor whose inner dimension is rounded up
    padded = replace(tm, dims=(-(-tm.dims[0] * tm.bits // 128) * 128 // tm.bits, *tm.dims[1:]))
    memory = Memory()
    expected, new = bits_of(memory.bytes), bits_of(image)
    for at, bit in elements(padded, coords):
        if bit is not None:
            expected[bit - 8 * START :][: tm.bits] = new[at : at + tm.bits]
    tma.store_box(tm, coords, image, memory.view)
    assert (bits_of(memory.bytes) == expected).all()
    assert all(write for *_, write in memory.views)
    inside = touched(padded, coords)
    starts, nbytes = tma.row_addresses(tm, coords, write=True)
    assert {a for start in starts.tolist() for a in range(start, start + nbytes)} == inside


LOAD = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry load(.param .align 64 .b8 map[128], .param .u32 x, .param .u32 y, .param .u32 bytes, .param .u64 to) {
  .reg .b32 %x, %y, %bytes, %i, %v, %s;
  .reg .b64 %map, %to, %o, %state;
  .reg .pred %first, %done;
  .shared .align 1024 .b8 box[256];
  .shared .align 8 .b64 bar;
  mov.b64 %map, map;
  cvta.param.u64 %map, %map;
  ld.param.u32 %x, [x];
  ld.param.u32 %y, [y];
  ld.param.u32 %bytes, [bytes];
  ld.param.u64 %to, [to];
  mov.u32 %i, %tid.x;
  setp.eq.u32 %first, %i, 0;
  @!%first bra WAIT;
  mbarrier.init.shared::cta.b64 [bar], 1;
  fence.mbarrier_init.release.cluster;
  fence.proxy.async;
  mbarrier.arrive.expect_tx.shared::cta.b64 %state, [bar], %bytes;
  cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [box], [%map, {%x, %y}], [bar];
WAIT:
  bar.sync 0;
AGAIN:
  mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0;
  @!%done bra AGAIN;
  mov.u32 %s, box;
  mad.lo.u32 %s, %i, 4, %s;
  ld.shared.u32 %v, [%s];
  mul.wide.u32 %o, %i, 4;
  add.s64 %to, %to, %o;
  st.global.u32 [%to], %v;
  ret;
}"""


def launch_load(tm: TensorMap, memory: np.ndarray, coords: tuple[int, int], expected: int) -> np.ndarray:
    """The 256 bytes of shared memory that a copy from global memory has written, once it has moved this many bytes."""
    there, seen = emulated_gpu.device_tensors(torch.from_numpy(memory)), np.zeros(64, np.uint32)
    raw = encode(replace(tm, address=there.data_ptr()))
    emulated_gpu.launch(LOAD, "load", 1, 64, [raw, *coords, expected, seen])
    return seen.view(np.uint8)


@pytest.mark.parametrize("elem, data", [("b4x16_p64", 8), ("b6x16_p32", 12)])
@pytest.mark.parametrize("row", [0, 3, -1])
def test_a_load_of_a_padded_type(elem, data, row):
    """Rows of 128 elements, sixteen after the other with a gap behind; complete_tx counts no gaps."""
    pitch = 16 * data
    tm = TensorMap(START, elem, (256, 6), (pitch,), (128, 2), (1, 1), swizzle=128)
    memory = np.arange(1, 6 * pitch + 1, dtype=np.uint8)
    cta_sees = launch_load(tm, memory, (128, row), 2 * tm.row_bytes)
    for i in range(2):
        inside = memory[(row + i) * pitch + pitch // 2 :][: pitch // 2] if row + i >= 0 else np.zeros(pitch // 2)
        for group in range(8):  # of 16 bytes, swizzled by the row
            at = i * 128 + 16 * (group ^ i)
            assert (cta_sees[at : at + data] == inside[group * data :][:data]).all()


def tensor(**fields) -> TensorMap:
    """[rows 64, K 256] of 4-bit elements with a pitch of 160 bytes; a box takes one row of 64 elements."""
    defaults = dict(address=START, elem="b4x16", dims=(256, 64), strides_bytes=(160,), box=(64, 1))
    return TensorMap(**{**defaults, "element_strides": (1, 1), **fields})


@given(st.integers(-1, 4), st.lists(st.integers(-2, 66), min_size=4, max_size=4))
def test_gather4(column, picked):
    tm, memory = tensor(), Memory()
    image = tma.load_gather4(tm, (64 * column, *picked), memory.view)
    expected = [model_load(tm, (64 * column, row), memory.bytes) for row in picked]
    assert (image == np.concatenate(expected)).all() and image.size == 4 * tm.box_bytes


def test_scatter4():
    tm, memory = tensor(), Memory()
    before, image = memory.bytes.copy(), np.arange(128, dtype=np.uint8)
    tma.store_scatter4(tm, (128, 7, 3, 99, 0), image, memory.view)
    expected = before.copy()
    for n, row in ((0, 7), (1, 3), (3, 0)):  # row 99 is outside
        expected[row * 160 + 64 :][:32] = image[32 * n :][:32]
    assert (memory.bytes == expected).all()


@pytest.mark.parametrize(
    "fields", [dict(box=(64, 2)), dict(dims=(256,), strides_bytes=(), box=(64,), element_strides=(1,))]
)
def test_gather4_needs_single_rows(fields):
    with pytest.raises(Fault):
        tma.load_gather4(tensor(**fields), (0, 0, 1, 2, 3), Memory().view)


def test_faults():
    with pytest.raises(Fault):
        tma.load_box(tensor(), (0,), Memory().view)
    with pytest.raises(Fault):  # 8 bytes into a row
        tma.load_box(tensor(), (16, 0), Memory().view)
    with pytest.raises(Fault):
        tma.store_box(tensor(), (0, -1), np.zeros(32, np.uint8), Memory().view)
    with pytest.raises(Fault):  # the view's own refusal
        tma.load_box(tensor(dims=(256, 1 << 20)), (0, 1 << 19), Memory().view)


def test_overlapping_writes_are_refused():
    """A stride shorter than a row makes rows share bytes; loading them is well defined, writing them is not."""
    tm = tensor(strides_bytes=(16,), box=(64, 2))
    assert tma.load_box(tm, (0, 0), Memory().view).size == 64
    with pytest.raises(Unsupported):
        tma.store_box(tm, (0, 0), np.zeros(64, np.uint8), Memory().view)
    with pytest.raises(Unsupported):
        tma.store_box(tensor(strides_bytes=(0,), box=(64, 2)), (0, 0), np.zeros(64, np.uint8), Memory().view)


def test_writes_with_dimensions_out_of_order():
    """Dimensions whose strides do not grow are fine as long as elements stay apart."""
    tm = TensorMap(START, "u8", (16, 4, 4), (256, 16), (16, 4, 4), (1, 1, 1))
    memory, image = Memory(), np.arange(256, dtype=np.uint8)
    tma.store_box(tm, (0, 0, 0), image, memory.view)
    assert (memory.bytes[:1024].reshape(4, 16, 16)[:, :4] == image.reshape(4, 4, 16).transpose(1, 0, 2)).all()


@pytest.mark.parametrize(
    "op, elem, dst, src, expected",
    [
        ("add", "u32", 0xFFFFFFFF, 2, 1),
        ("add", "u64", 0xFFFFFFFF, 1, 0x100000000),
        ("min", "s32", 0xFFFFFFFF, 1, 0xFFFFFFFF),
        ("min", "u32", 0xFFFFFFFF, 1, 1),
        ("max", "s64", 1 << 63, 5, 5),
        ("max", "u64", 1 << 63, 5, 1 << 63),
        ("inc", "u32", 7, 7, 0),
        ("inc", "u32", 6, 7, 7),
        ("dec", "u32", 0, 7, 7),
        ("dec", "u32", 9, 7, 7),
        ("dec", "u32", 7, 7, 6),
        ("and", "b32", 0b1100, 0b1010, 0b1000),
        ("or", "b64", 0b1100, 1 << 40, 1 << 40 | 0b1100),
        ("xor", "b32", 0b1100, 0b1010, 0b0110),
        ("add", "f16", 0x3C00, 0x0001, 0x3C00),
        ("add", "f16", 0x7BFF, 0x7BFF, 0x7C00),
        ("add", "f16", 0x0001, 0x0001, 0x0002),
        ("add", "bf16", 0x3F80, 0x3B80, 0x3F80),  # 1 + 2**-8, a tie
        ("add", "bf16", 0x3F81, 0x3B80, 0x3F82),
        ("add", "f32", 0x3F800000, 0x3F800000, 0x40000000),
        ("add", "f32", 0x00000001, 0x80800000, 0x807FFFFF),  # subnormals are kept (H200)
        ("add", "f32", 0x00800001, 0x80800000, 0x00000001),
        ("add", "f64", 0x3FF0000000000000, 0x3CB0000000000001, 0x3FF0000000000001),  # 1 + 2**-52 (1 + 2**-52)
        ("add", "f64", 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000),
        ("add", "f32", 0x7F800000, 0xFF800000, 0x7FFFFFFF),
        ("min", "f16", 0x0000, 0x8000, 0x8000),
        ("max", "bf16", 0xBF80, 0x7FC0, 0xBF80),
    ],
)
def test_bulk_reduce(op, elem, dst, src, expected):
    """Single values, worked out by hand from ISA 9.7.9.25.4.2 and the atom instructions it refers to."""
    width = int(elem.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8
    words = [np.frombuffer(x.to_bytes(width, "little") * (32 // width), np.uint8).copy() for x in (dst, src, expected)]
    tma.bulk_reduce(words[0], words[1], op, elem)
    assert (words[0] == words[2]).all()


@pytest.mark.parametrize("op, elem", [("add", "s64"), ("min", "f32"), ("inc", "s32"), ("and", "u32"), ("mul", "u32")])
def test_reductions_outside_the_table(op, elem):
    with pytest.raises(Unsupported):
        tma.bulk_reduce(np.zeros(16, np.uint8), np.zeros(16, np.uint8), op, elem)


def test_four_bit_types_are_not_reduced():
    with pytest.raises(Unsupported):
        tma.reduce_box(tensor(), (0, 0), np.zeros(32, np.uint8), "add", Memory().view)
