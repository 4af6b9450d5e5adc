"""Tensor memory against CuTe's copy traits (include/cute/atom/copy_traits_sm100.hpp), evaluated bit by bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulated_gpu.errors import Fault
from emulated_gpu.state.tensor_memory import TensorMemory, fragment

SHAPES = [("32x32b", 128, 1), ("16x64b", 128, 1), ("16x128b", 64, 2), ("16x256b", 32, 4), ("16x32bx2", 128, 1)]


def cute_cell(shape, n, t, bit, packed):
    """(lane, bit within the lane) that bit `bit` of thread t's registers comes from: DstLayout, then ValID."""
    if shape == "32x32b":  # (32, 32n):(32n, 1)
        width, value = 32 * n, 32 * n * t + bit
    elif shape == "16x64b":  # ((2,2,8), (32,n)):((512n,32,64n),(1,64))
        width = 64 * n
        value = t % 2 * 512 * n + t // 2 % 2 * 32 + t // 4 * 64 * n + bit % 32 + bit // 32 * 64
    elif shape == "16x128b":  # ((4,8),(32,2,n)):((32,128n),(1,1024n,128))
        width = 128 * n
        value = t % 4 * 32 + t // 4 * 128 * n + bit % 32 + bit // 32 % 2 * 1024 * n + bit // 64 * 128
    elif shape == "16x256b":  # ((4,8),(64,2,n)):((64,256n),(1,2048n,256))
        width = 256 * n
        value = t % 4 * 64 + t // 4 * 256 * n + bit % 64 + bit // 64 % 2 * 2048 * n + bit // 128 * 256
    else:  # ((16,2),32n):((64n,32n),1)
        width, value = 64 * n, t % 16 * 64 * n + t // 16 * 32 * n + bit
    lane, bit = value // width, value % width
    return (lane, bit // 16 * 32 + bit % 16) if packed else (lane, bit)  # ValID: ((16,..),lanes):((1,32),DP)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape, largest, per_num", SHAPES)
def test_fragments_are_those_of_cute(shape, largest, per_num, packed):
    rng = np.random.default_rng(0)
    for n in (1, 2, 4, 8, 16, 32, 64, 128):
        if (
            n > largest
            or n * (2 if packed else 1) * {"16x256b": 8, "16x128b": 4, "16x64b": 2, "16x32bx2": 2}.get(shape, 1) > 512
        ):
            continue
        tmem = TensorMemory()
        tmem.alloc(512)
        tmem.write(0, 0, rng.integers(0, 2**32, (128, 512), dtype=np.uint32), "test")
        addr = 64 << 16
        # CuTe passes the width of the first half as immHalfSplitoff
        got = tmem.load(addr, 2, shape, n, packed, n * (2 if packed else 1) if shape == "16x32bx2" else 0)
        assert got.shape == (n * per_num, 32) and got.dtype == np.uint32
        for t in range(32):
            for r in {0, 1, 2, 3, n * per_num // 2, n * per_num - 1} & set(range(n * per_num)):
                for part in (0, 16):
                    lane, bit = cute_cell(shape, n, t, 32 * r + part, packed)
                    cell = int(tmem.cells[64 + lane, bit // 32])
                    assert int(got[r, t]) >> part & 0xFFFF == cell >> bit % 32 & 0xFFFF, (n, t, r, part)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape, largest, per_num", SHAPES)
def test_store_then_load(shape, largest, per_num, packed):
    tmem = TensorMemory()
    tmem.alloc(256)
    regs = np.random.default_rng(1).integers(0, 2**32, (8 * per_num, 32), dtype=np.uint32)
    addr = (32 << 16) + 64
    tmem.store(addr, 1, shape, 8, regs, packed, 16)
    np.testing.assert_array_equal(tmem.load(addr, 1, shape, 8, packed, 16), regs)
    assert tmem.written.sum() == regs.size * (2 if packed else 1)
    assert not tmem.cells[~tmem.written].any()
    if packed:
        assert tmem.cells.max() < 1 << 16


def test_half_split_moves_the_second_half():
    lane, column = fragment("16x32bx2", 4, False, 100)
    assert lane[2, 5] == 5 and column[2, 5] == 2
    assert lane[2, 21] == 5 and column[2, 21] == 102


def test_access_rules():
    tmem = TensorMemory()
    tmem.alloc(64)
    tmem.write(0, 0, np.ones((128, 64), np.uint32), "test")
    for addr, quadrant, shape in (
        (0, 1, "32x32b"),
        (16 << 16, 0, "32x32b"),
        (8 << 16, 0, "16x64b"),
        (32 << 16, 0, "16x64b"),
    ):
        with pytest.raises(Fault, match="tmem-lane-access"):
            tmem.load(addr, quadrant, shape, 1)
        with pytest.raises(Fault, match="tmem-lane-access"):
            tmem.store(addr, quadrant, shape, 1, np.zeros((1, 32), np.uint32))
    tmem.load(16 << 16, 0, "16x64b", 1)
    tmem.load(32, 0, "32x32b", 32)
    for column, num in ((33, 32), (64, 1), (511, 2), (600, 1)):
        with pytest.raises(Fault, match="tmem-out-of-bounds"):
            tmem.load(column, 0, "32x32b", num)
    for shape, num in (("16x256b", 64), ("16x128b", 128), ("32x32b", 3), ("8x8b", 1)):
        with pytest.raises(Fault, match="tmem-shape"):
            tmem.load(0, 0, shape, num)


def test_uninitialised_reads_are_reported():
    found = []
    for tmem, collected in ((TensorMemory(), False), (TensorMemory(found.append), True)):
        tmem.alloc(32)
        tmem.store(5, 0, "32x32b", 1, np.ones((1, 32), np.uint32))
        tmem.load(5, 0, "32x32b", 1)
        if collected:
            tmem.load(4, 0, "32x32b", 2)
        else:
            with pytest.raises(Fault, match="tmem-uninitialised.*column 4"):
                tmem.load(4, 0, "32x32b", 2)
            with pytest.raises(Fault, match="tmem-uninitialised.*lane 32, column 5"):
                tmem.read(0, 64, 5, 1, "test")
        tmem.close(0, 32)
        tmem.dealloc(0, 32)
        tmem.alloc(32)
        assert not tmem.written.any()
    assert [fault.kind for fault in found] == ["tmem-uninitialised"]


def test_allocation():
    tmem = TensorMemory()
    assert [tmem.alloc(256), tmem.alloc(128), tmem.alloc(128), tmem.alloc(32)] == [0, 256, 384, None]
    with pytest.raises(Fault, match="tmem-alloc"):
        tmem.close(256, 64)
    with pytest.raises(Fault, match="tmem-alloc"):
        tmem.close(128, 128)
    tmem.close(256, 128)
    with pytest.raises(Fault, match="tmem-alloc"):
        tmem.close(256, 128)
    with pytest.raises(Fault, match="tmem-out-of-bounds.*is freeing them"):
        tmem.write(0, 256, np.zeros((1, 2), np.uint32), "test")
    assert tmem.room(128) is None
    tmem.dealloc(256, 128)
    with pytest.raises(Fault, match="tmem-out-of-bounds"):
        tmem.write(0, 255, np.zeros((1, 2), np.uint32), "test")
    with pytest.raises(Fault, match="tmem-alloc"):
        tmem.alloc(256)  # sizes may not increase
    assert tmem.alloc(64) == 256
    tmem.relinquish()
    with pytest.raises(Fault, match="tmem-alloc"):
        tmem.alloc(32)
    with pytest.raises(Fault, match="tmem-leak"):
        tmem.check_exit()
    for base, columns in list(tmem.allocations.items()):
        tmem.close(base, columns)
        tmem.dealloc(base, columns)
    tmem.check_exit()


@given(st.integers(0, 1024))
def test_allocation_sizes(columns):
    tmem = TensorMemory()
    if columns in (32, 64, 128, 256, 512):
        assert tmem.alloc(columns) == 0
    else:
        with pytest.raises(Fault, match="tmem-alloc"):
            tmem.alloc(columns)


# lane l of the destination <- source row, from the ValID of CuTe's UTCCP traits: (row, bit, broadcast) -> lane
COPIES = {
    ("128x256b", None): (8, {lane: lane for lane in range(128)}),
    ("128x128b", None): (4, {lane: lane for lane in range(128)}),
    ("64x128b", "warpx2::02_13"): (4, {lane: lane % 64 for lane in range(128)}),
    ("64x128b", "warpx2::01_23"): (4, {lane: lane % 32 + lane // 64 * 32 for lane in range(128)}),
    ("32x128b", "warpx4"): (4, {lane: lane % 32 for lane in range(128)}),
    ("4x256b", None): (8, {0: 0, 32: 1, 64: 2, 96: 3}),
}


@pytest.mark.parametrize("shape, multicast", COPIES)
def test_copy(shape, multicast):
    smem = np.random.default_rng(2).integers(0, 256, 1 << 14, dtype=np.uint8)
    columns, rows = COPIES[shape, multicast]
    tmem = TensorMemory()
    tmem.alloc(64)
    sbo, lbo, start = 128, 2048, 1024
    desc = start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | 1 << 46  # no swizzle: 8 rows of 16 bytes
    tmem.copy(smem, desc, shape, multicast, 8)
    assert tmem.written.sum() == len(rows) * columns
    for lane, row in rows.items():
        for column in range(columns):
            offset = start + row // 8 * sbo + row % 8 * 16 + column // 4 * lbo + column % 4 * 4
            assert tmem.cells[lane, 8 + column] == int.from_bytes(smem[offset : offset + 4].tobytes(), "little")


def test_copy_refusals():
    tmem, smem = TensorMemory(), np.zeros(4096, np.uint8)
    tmem.alloc(32)
    desc = 8 << 32 | 1 << 46
    with pytest.raises(Fault, match="tmem-shape"):
        tmem.copy(smem, desc, "32x128b", None, 0)
    with pytest.raises(Fault, match="tmem-out-of-bounds"):
        tmem.copy(smem, desc, "32x128b", "warpx4", 30)


@pytest.mark.parametrize("source_format, bits, shift", [("b4x16_p64", 4, 2), ("b6x16_p32", 6, 1)])
@pytest.mark.parametrize("shape, multicast", COPIES)
def test_copy_expands_packed_elements(shape, multicast, source_format, bits, shift):
    """16 elements in the first bytes of 16 become one to a byte: 00xxxx00 or 0xxxxxx0 (CUTLASS's
    experimental/primitives/tcgen05/cp_narrow_a_to_tmem_mma.py)."""
    smem = np.random.default_rng(3).integers(0, 256, 1 << 14, dtype=np.uint8)
    columns, rows = COPIES[shape, multicast]
    tmem = TensorMemory()
    tmem.alloc(32)
    start, lbo, sbo = 512, 2048, 128
    desc = start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | 1 << 46
    tmem.copy(smem, desc, shape, multicast, 0, source_format)
    for lane, row in rows.items():
        cells = tmem.cells[lane, :columns].view(np.uint8)
        for i, byte in enumerate(cells):
            at = start + row // 8 * sbo + row % 8 * 16 + i // 16 * lbo
            packed = int.from_bytes(smem[at : at + 16].tobytes(), "little")
            assert byte == (packed >> bits * (i % 16) & (1 << bits) - 1) << shift


@pytest.mark.parametrize("lane", [0, 32, 64, 96])
def test_shift_takes_the_next_lane(lane):
    """What NVIDIA saw on a B200: shifted[r] = A[r + 1], but the last of 32 rows keeps its own (CUTLASS's
    experimental/primitives/tcgen05/1cta_mma_a_from_tmem.py)."""
    tmem = TensorMemory()
    tmem.alloc(32)
    before = np.random.default_rng(lane).integers(0, 2**32, (128, 32), dtype=np.uint32)
    tmem.write(0, 0, before, "test")
    tmem.shift_down(lane << 16 | 5)
    for r in range(128):
        moved = lane <= r < lane + 31
        np.testing.assert_array_equal(tmem.cells[r, 5:13], before[r + 1 if moved else r, 5:13])
        np.testing.assert_array_equal(np.delete(tmem.cells[r, :32], slice(5, 13)), np.delete(before[r], slice(5, 13)))
    with pytest.raises(Fault, match="tmem-lane-access"):
        tmem.shift_down(16 << 16)
    with pytest.raises(Fault, match="tmem-out-of-bounds"):
        tmem.shift_down(25)
