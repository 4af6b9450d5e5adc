"""Matrix descriptors against the ISA's canonical layouts (Table in 9.7.16.3.3), evaluated one element at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats.matrix_descriptor import byte_ranges, chunks, decode, load_operand

MODES = {"none": 0, "128B_BASE32B": 1, "128B": 2, "64B": 4, "32B": 6}
ADDRESS_SWIZZLE = {  # CuTe Swizzle<bits, base, shift> on byte addresses
    "none": (0, 4, 3),
    "32B": (1, 4, 3),
    "64B": (2, 4, 3),
    "128B": (3, 4, 3),
    "128B_BASE32B": (2, 5, 2),
}


def encode(start, lbo, sbo, mode):
    return start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | 1 << 46 | MODES[mode] << 61


def operand_index(desc, rows, k, mn_major, bits):
    """Offsets in shared memory: of every byte of a K-major operand, of every element of an MN-major one, [rows, ..]."""
    index = chunks(desc, rows, k, mn_major, bits)
    offsets = (index[:, :, None] * 16 + np.arange(0, 16, bits // 8 if mn_major else 1)).reshape(len(index), -1)
    return offsets.T if mn_major else offsets


def swizzle(address, mode):
    bits, base, shift = ADDRESS_SWIZZLE[mode]
    return address ^ ((address >> shift) & (((1 << bits) - 1) << base))


def canonical(mode, mn_major, row, k, t, lbo, sbo):
    """Offset in elements of (row, k), from the canonical layouts; t = elements per 16 bytes; lbo, sbo in elements."""
    w = {"none": 1, "32B": 2, "64B": 4, "128B": 8, "128B_BASE32B": 8}[mode]
    if not mn_major:
        if mode == "none":  # ((8,m),(T,2k)):((1T,SBO),(1,LBO))
            return row % 8 * t + row // 8 * sbo + k % t + k // t * lbo
        return row % 8 * w * t + row // 8 * sbo + k % t + k // t * t  # ((8,m),(T,2k)):((wT,SBO),(1,T))
    if mode == "none":  # ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
        return row % t + row // t * sbo + k % 8 * t + k // 8 * lbo
    depth = 4 if mode == "128B_BASE32B" else 8  # ((T,w,m),(depth,k)):((1,T,LBO),(wT,SBO))
    return row % t + row // t % w * t + row // (t * w) * lbo + k % depth * w * t + k // depth * sbo


CASES = [(mode, False, bits) for mode in ("none", "32B", "64B", "128B") for bits in (4, 8, 16, 32)]
CASES += [(mode, True, bits) for mode in ("none", "32B", "64B", "128B") for bits in (8, 16)] + [
    ("128B_BASE32B", True, 32)
]


@pytest.mark.parametrize("mode, mn_major, bits", CASES)
@settings(max_examples=15, deadline=None)
@given(
    start=st.integers(0, 0x3FFF).map(lambda x: x * 16),
    lbo=st.integers(0, 400).map(lambda x: x * 16),
    sbo=st.integers(0, 400).map(lambda x: x * 16),
    rows=st.sampled_from([16, 64, 128]),
)
def test_chunks_are_the_canonical_layout(mode, mn_major, bits, start, lbo, sbo, rows):
    k, t = 256 // bits, 128 // bits
    index = operand_index(encode(start, lbo, sbo, mode), rows, k, mn_major, bits)
    for row in {0, 1, 7, 8, 15, rows // 2, rows - 1}:
        for kk in range(0, k, 1 if bits > 4 else 2):
            element = canonical(mode, mn_major, row, kk, t, lbo * 8 // bits, sbo * 8 // bits)
            address = swizzle((start + element * bits // 8) & 0x3FFFF, mode)
            if mn_major:
                assert index[row, kk] == address
            else:
                width = max(bits // 8, 1)
                byte = kk * bits // 8
                assert list(index[row, byte : byte + width]) == list(range(address, address + width))


def test_isa_examples():
    # K-major, no swizzle, tf32: ((8,2),(4,4)):((4,32),(1,64))
    index = operand_index(encode(0, 256, 128, "none"), 16, 16, False, 32)
    assert index[9, 4 * 6] == (4 + 32 + 2 + 64) * 4
    # MN-major, 64B swizzle, bf16: ((8,4,2),(8,2)):((1,8,256),(32,512)); row 43, k 9 lie at 3 + 8 + 256 + 32 + 512
    index = operand_index(encode(0, 512, 1024, "64B"), 64, 16, True, 16)
    assert index[43, 9] == swizzle((3 + 8 + 256 + 32 + 512) * 2, "64B")


@pytest.mark.parametrize("mode, mn_major, bits", CASES)
def test_load_operand_gathers_the_chunks(mode, mn_major, bits):
    smem = np.random.default_rng(0).integers(0, 256, 1 << 18, dtype=np.uint8)
    desc, k = encode(640, 4096, 1024, mode), 256 // bits
    index = operand_index(desc, 64, k, mn_major, bits)
    got = load_operand(smem, desc, 64, k, mn_major, bits)
    if mn_major:
        width = bits // 8
        expected = sum(smem[index + i].astype(np.uint64) << 8 * i for i in range(width))
    else:
        expected = smem[index].view(f"u{max(bits // 8, 1)}")
    assert got.dtype.itemsize == max(bits // 8, 1)
    np.testing.assert_array_equal(got, expected)
    lo, hi = byte_ranges(desc, 64, k, mn_major, bits)
    assert (lo, hi) == (index.min() // 16 * 16, index.max() // 16 * 16 + 16)


def test_operand_may_end_on_the_last_byte_and_no_further():
    desc = encode(1024, 0, 1024, "128B")
    smem = np.zeros(1024 + 16 * 1024, np.uint8)
    load_operand(smem, desc, 128, 64, False, 4)
    with pytest.raises(Fault, match="out-of-bounds"):
        load_operand(smem[:-16], desc, 128, 64, False, 4)


def test_decode():
    d = decode(encode(0x3FFF0, 0x20, 0x400, "64B"))
    assert (d.start, d.lbo, d.sbo, d.swizzle.name) == (0x3FFF0, 0x20, 0x400, "64B")
    good = encode(0, 0, 1024, "128B")
    for bad in (good ^ 1 << 46, good | 1 << 47, good | 1 << 53, good | 1 << 61, good | 1 << 14, good | 1 << 30):
        with pytest.raises(Fault, match="matrix-descriptor"):
            decode(bad)
    assert decode(encode(0, 0, 1024, "none") | 5 << 49) == decode(encode(0, 0, 1024, "none"))
    for unsupported in (good | 1 << 49, good | 1 << 52):
        with pytest.raises(Unsupported):
            decode(unsupported)


def test_forbidden_combinations():
    for mode, bits in (("128B", 32), ("none", 32), ("128B_BASE32B", 16), ("128B", 4)):
        with pytest.raises(Fault, match="matrix-descriptor"):
            operand_index(encode(0, 0, 1024, mode), 64, 256 // bits, True, bits)
    with pytest.raises(Unsupported):
        operand_index(encode(0, 0, 1024, "128B_BASE32B"), 64, 8, False, 32)


def test_layouts_that_cute_dsl_makes():
    """Descriptors of tile_to_shape(make_smem_layout_atom(..)) find elements where CuTe puts them."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import tcgen05

    types = {4: cutlass.Float4E2M1FN, 8: cutlass.Float8E4M3FN, 16: cutlass.Float16, 32: cutlass.TFloat32}
    names = {"none": "INTER", "128B_BASE32B": "SW128_32B", "128B": "SW128", "64B": "SW64", "32B": "SW32"}
    rng, strides, placed = np.random.default_rng(0), {}, {}
    points = [(int(r), int(k)) for r, k in zip(rng.integers(0, 128, 30), rng.integers(0, 64, 30))]

    def place(case):
        mode, mn_major, bits = case
        kind = tcgen05.SmemLayoutAtomKind.__members__[f"{'MN' if mn_major else 'K'}_{names[mode]}"]
        atom = tcgen05.make_smem_layout_atom(kind, types[bits])
        layout = cute.tile_to_shape(atom, (128, max(1024 // bits, 64)), (0, 1))

        def at(r, k):  # bytes, before the swizzle, which CuTe applies to the pointer
            return cute.crd2idx((r, k), layout.outer) * bits // 8

        assert str(layout.inner) == "S<{},{},{}>".format(*ADDRESS_SWIZZLE[mode])
        t, k_tile = 128 // bits, 256 // bits
        span = {"none": t, "32B": 2 * t, "64B": 4 * t, "128B": 8 * t, "128B_BASE32B": 8 * t}[mode]
        if mode == "none":
            strides[case] = (at(0, 8), at(t, 0)) if mn_major else (at(0, t), at(8, 0))
        elif mode == "128B_BASE32B":  # CuTe DSL encodes an SBO of 512 for it: its 8 rows of k are two groups of 4
            strides[case] = at(span, 0), 512
        else:
            strides[case] = (at(span % 128, 0), at(0, 8)) if mn_major else (0, at(8, 0))
        placed[case] = [swizzle(at(r, k % k_tile), mode) for r, k in points]

    @cute.jit
    def trace():
        for case in CASES:
            place(case)

    trace()
    assert len(placed) == len(CASES)
    for (mode, mn_major, bits), addresses in placed.items():
        k_tile, (lbo, sbo) = 256 // bits, strides[mode, mn_major, bits]
        index = operand_index(encode(0, lbo, sbo, mode), 128, k_tile, mn_major, bits)
        for (r, k), address in zip(points, addresses):
            assert index[r, k % k_tile if mn_major else k % k_tile * bits // 8] == address, (mode, mn_major, bits, r, k)
