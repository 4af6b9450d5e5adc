"""The tensor map's bits: words that CuTe DSL's host code writes, the rules of the driver, and `tensormap.replace`.

Words of the driver, all types and fields: test_tma_h200.py.
"""

import dataclasses
import struct

import numpy as np
import pytest

from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats.tensormap import TensorMap, decode, encode, replace

# NVFP4 operand of the group GEMM [K, M, L]: 256 x 128 elements, 128-byte swizzle
A = TensorMap(
    address=0x7F0000001000,
    elem="b4x16",
    dims=(7168, 128, 1),
    strides_bytes=(3584, 3584 * 128),
    box=(256, 128, 1),
    element_strides=(1, 1, 1),
    swizzle=128,
    l2_promotion=128,
)


def variant(**fields) -> TensorMap:
    return dataclasses.replace(A, **fields)


def word1(tm: TensorMap) -> int:
    """Low half of 64-bit word 1 without the bit that depends on the size."""
    return struct.unpack_from("<I", encode(tm), 8)[0] & ~(1 << 21)


def test_words_of_cute_dsl():
    """Constants seen in the host code that CuTe DSL 4.5.2 generates, for these types, ranks and swizzles."""
    half = dict(elem="f16", dims=(4096, 512), strides_bytes=(8192,), box=(64, 64), element_strides=(1, 1))
    half3 = dict(half, dims=(4096, 512, 1), strides_bytes=(8192, 1 << 22), box=(64, 64, 1), element_strides=(1, 1, 1))
    scales = dict(elem="u16", dims=(256, 112, 1, 1), strides_bytes=(512, 57344, 57344), box=(256, 4, 1, 1))
    assert word1(A) == 0x465A2
    assert word1(variant(**scales, element_strides=(1,) * 4, swizzle=0)) == 0x400B2
    assert word1(variant(**half)) == 0x46312
    assert word1(variant(**half3)) == 0x46322
    assert word1(variant(**{**half3, "box": (32, 64, 1)}, swizzle=64)) == 0x44322


def test_large_bit():
    """CuTe DSL sets bit 21 from 131072 bytes on."""

    def size(rows):
        return encode(variant(dims=(2048, rows), strides_bytes=(1024,), box=(256, 64), element_strides=(1, 1)))

    assert [size(rows)[10] >> 5 & 1 for rows in (127, 128)] == [0, 1]


def test_layout_of_the_words():
    """Every multi-dimensional field of a rank-5 map, read as the words of the recovered layout."""
    tm = TensorMap(
        address=0x123456789ABCDE0,
        elem="u8",
        dims=(1 << 32, 3, 5, 7, 11),
        strides_bytes=(0xF123456780, 0x20, 0x30, 0xE000000040),
        box=(256, 2, 3, 4, 5),
        element_strides=(1, 2, 3, 7, 8),
    )
    raw = encode(tm)
    words = struct.unpack("<8Q", raw[:64])
    assert words[0] == 0x123456789ABCDE0
    assert words[1] >> 32 == 0xF12345678 & 0xFFFFFFFF
    assert words[2] == 2 | 3 << 32
    assert words[3] == 0xE00000004 & 0xFFFFFFFF | 0xF << 32 | 0xE << 44
    assert words[4] == 0xFFFFFFFF | 2 << 32 and words[5] == 4 | 6 << 32
    assert words[6] == 10 | (0 | 1 << 3 | 2 << 6 | 6 << 9 | 7 << 12) << 32 | 255 << 56
    assert words[7] == 1 | 2 << 8 | 3 << 16 | 4 << 24
    assert len(raw) == 128 and not any(raw[64:])
    assert decode(raw) == tm


def test_only_the_first_half_is_read():
    assert decode(encode(A)[:64] + bytes(range(64))) == A
    with pytest.raises(ValueError):
        decode(encode(A)[:63])


@pytest.mark.parametrize(
    "fields",
    [
        dict(address=A.address + 8),
        dict(strides_bytes=(3592, 3584 * 128)),
        dict(strides_bytes=(1 << 40, 3584 * 128)),
        dict(dims=(7167, 128, 1)),
        dict(dims=(0, 128, 1)),
        dict(box=(16, 128, 1), swizzle=0),  # 8 bytes
        dict(box=(256, 257, 1)),
        dict(swizzle=64),
        dict(element_strides=(1, 9, 1)),
        dict(atom=32, box=(128, 128, 1), swizzle=64),
        dict(oob_nan=True),
    ],
    ids=str,
)
def test_rules(fields):
    with pytest.raises(Fault) as fault:
        variant(**fields)
    assert fault.value.kind == "tensormap"


def test_a_row_shorter_than_the_swizzle_takes_a_whole_span():
    narrow = variant(box=(128, 128, 1))
    assert (narrow.row_bytes, narrow.box_bytes, narrow.shared_bytes) == (64, 64 * 128, 128 * 128)
    assert A.shared_bytes == A.box_bytes == variant(box=(128, 128, 1), swizzle=0).shared_bytes * 2


PADDED = dict(elem="b4x16_p64", box=(128, 128, 1))


def test_a_padded_type_has_gaps_in_shared_memory_alone():
    four, six = variant(**PADDED), variant(**PADDED | dict(elem="b6x16_p32", strides_bytes=(5376, 5376 * 128)))
    assert (four.row_bytes, four.box_bytes, four.shared_bytes) == (64, 64 * 128, 128 * 128)
    assert (six.row_bytes, six.box_bytes, six.shared_bytes) == (96, 96 * 128, 128 * 128)
    assert decode(encode(four)) == four and decode(encode(six)) == six


@pytest.mark.parametrize("fields", [
    dict(address=A.address + 16), dict(strides_bytes=(3600, 3584 * 128)), dict(dims=(7104, 128, 1)),
    dict(box=(64, 128, 1)), dict(swizzle=64),
], ids=str)  # fmt: skip
def test_rules_of_padded_types(fields):
    with pytest.raises(Fault) as fault:
        variant(**PADDED | fields)
    assert fault.value.kind == "tensormap"


@pytest.mark.parametrize(
    "bit, value",
    [(64, 1), (71, 15), (75, 1), (83, 2), (83, 3), (86, 1), (240, 1), (431, 1)],
    ids=[
        "version",
        "type",
        "interleave",
        "flip",
        "atom64",
        "reserved",
        "reserved",
        "reserved",
    ],
)
def test_unknown_encodings_are_refused(bit, value):
    width = {64: 4, 71: 4, 75: 2, 83: 2}.get(bit, 1)
    word = int.from_bytes(encode(A), "little") & ~(((1 << width) - 1) << bit) | value << bit
    with pytest.raises(Unsupported):
        decode(word.to_bytes(128, "little"))


def test_rank_above_five():
    raw = bytearray(encode(A))
    raw[8] = raw[8] & 0x0F | 5 << 4
    with pytest.raises(Fault):
        decode(bytes(raw))


def test_replace_builds_a_map_from_another():
    """Every field of `tensormap.replace`, with the operands of the PTX table: numbering of types, rank minus 1."""
    raw = bytearray(encode(A))
    for field, ord, value in [
        ("rank", None, 3),
        ("elemtype", None, 10),  # bf16
        ("global_address", None, 0x7F1200000040),
        *[("global_dim", i, n) for i, n in enumerate((96, 5, 6, 7))],
        *[("global_stride", i, n) for i, n in enumerate((0xABC0000C40, 0x2000, 0x10000))],
        *[("box_dim", i, n) for i, n in enumerate((64, 2, 3, 4))],
        *[("element_stride", i, n) for i, n in enumerate((1, 1, 2, 3))],
        ("swizzle_mode", None, 3),
        ("swizzle_atomicity", None, 1),
        ("interleave_layout", None, 0),
        ("fill_mode", None, 1),
    ]:
        replace(raw, field, ord, value)
    assert decode(bytes(raw)) == TensorMap(
        address=0x7F1200000040,
        elem="bf16",
        dims=(96, 5, 6, 7),
        strides_bytes=(0xABC0000C40, 0x2000, 0x10000),
        box=(64, 2, 3, 4),
        element_strides=(1, 1, 2, 3),
        swizzle=128,
        atom=32,
        oob_nan=True,
        l2_promotion=128,
    )


@pytest.mark.parametrize(
    "code, name", [(0, "u8"), (5, "s64"), (9, "f64"), (11, "tf32"), (12, "tf32.ftz"), (13, "b4x16")]
)
def test_replace_elemtype(code, name):
    raw = bytearray(encode(variant(elem="f32", box=(32, 128, 1))))
    replace(raw, "box_dim", 0, 128 * 8 // {"u8": 8, "s64": 64, "f64": 64, "b4x16": 4}.get(name, 32))
    replace(raw, "elemtype", None, code)
    assert decode(bytes(raw)).elem == name


def test_replace_in_numpy_memory_and_above_the_rank():
    """Kernels write the unused dimensions too, with any value; memory may be a numpy view of shared memory."""
    memory = np.zeros(256, np.uint8)
    memory[128:] = np.frombuffer(encode(A), np.uint8)
    replace(memory[128:], "global_dim", 1, 77)
    replace(memory[128:], "global_dim", 4, 0)
    replace(memory[128:], "global_stride", 3, 0)
    assert decode(memory[128:].tobytes()) == variant(dims=(7168, 77, 1))
    assert not memory[:128].any()


@pytest.mark.parametrize(
    "args",
    [("global_dim", 1, 0), ("global_dim", 5, 1), ("global_dim", 0, 1 << 33), ("box_dim", 0, 257), ("rank", None, 5),
     ("global_stride", 4, 16), ("global_stride", 0, 8), ("element_stride", 1, 9), ("elemtype", None, 16)],
    ids=str,
)  # fmt: skip
def test_replace_faults(args):
    with pytest.raises(Fault):
        replace(bytearray(encode(A)), *args)


@pytest.mark.parametrize(
    "args, why", [(("swizzle_mode", None, 4), "how far apart its rows lie"), (("swizzle_atomicity", None, 2), "code 2"),
                  (("swizzle_atomicity", None, 3), "code 3"), (("descriptor", None, 0), "there are")], ids=str,
)  # fmt: skip
def test_replace_refuses(args, why):
    with pytest.raises(Unsupported, match=why):
        replace(bytearray(encode(A)), *args)
