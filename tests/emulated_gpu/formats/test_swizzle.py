"""Swizzle patterns against the tables of PTX ISA 5.5.7 (which 16-byte chunk of a row lies at each place of the row)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats.swizzle import gather, scatter, swizzle

# one row of eight chunks per 128 bytes of shared memory, from an address aligned to the pattern
TABLES = {
    (0, 16): ["01234567"],
    (32, 16): ["01234567", "10325476"],
    (64, 16): ["01234567", "10325476", "23016745", "32107654"],
    (128, 16): ["01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210"],
    (128, 32): ["01234567", "23016745", "45670123", "67452301"],
    (128, 64): ["01234567", "45670123"],
}


def place(base: int, nbytes: int, mode: int, atom: int) -> dict[int, int]:
    """Shared address of each chunk of an image: looked up chunk by chunk in the tables."""
    table = TABLES[mode, atom]
    where = {}
    for chunk in range(nbytes // 16):
        line, column = divmod(base // 16 + chunk, 8)
        where[chunk] = line * 128 + 16 * table[line % len(table)].index(str(column))
    return where


@pytest.mark.parametrize("mode, atom", TABLES)
@given(line=st.integers(0, 40), chunks=st.integers(1, 80))
def test_tables(mode, atom, line, chunks):
    base, nbytes = 128 * line, 16 * chunks
    expected = place(base, nbytes, mode, atom)
    assert [swizzle(base + 16 * i, mode, atom) for i in range(chunks)] == list(expected.values())

    image = np.random.default_rng(chunks).integers(0, 256, nbytes, np.uint8)
    smem = np.full(8192, 0xAB, np.uint8)
    scatter(smem, base, image, mode, atom)
    moved = np.full(8192, 0xAB, np.uint8)
    for chunk, at in expected.items():
        moved[at : at + 16] = image[16 * chunk : 16 * chunk + 16]
    assert (smem == moved).all()
    got = gather(smem, base, nbytes, mode, atom)
    assert (got == image).all()
    smem[:] = 0
    assert (got == image).all(), "gather must copy"


def test_bytes_keep_their_place_in_a_chunk():
    assert swizzle(0x380 + 5, 128) == 0x380 + (7 << 4 | 5)
    assert (swizzle(np.arange(16) + 0x80, 32) == np.arange(16) + 0x90).all()


def test_last_line_of_shared_memory():
    smem = np.zeros(1024, np.uint8)
    scatter(smem, 896, np.arange(128, dtype=np.uint8), 128)
    assert smem[896 + 112] == 0 and smem[896] == 112
    with pytest.raises(Fault):
        scatter(smem, 896, np.zeros(256, np.uint8), 128)
    with pytest.raises(Fault):
        gather(smem, 1024, 16, 0)


@pytest.mark.parametrize("base, nbytes", [(8, 128), (128, 120)])
def test_misaligned(base, nbytes):
    with pytest.raises(Fault):
        gather(np.zeros(1024, np.uint8), base, nbytes, 0)


@pytest.mark.parametrize("mode, atom", [(96, 16), (64, 32), (128, 8)])
def test_unknown_modes(mode, atom):
    with pytest.raises(Unsupported):
        swizzle(0, mode, atom)
