"""Shared memory matrix descriptors: where the elements of an MMA or tcgen05.cp operand lie in shared memory.

Implements PTX ISA 9.7.16.3 (strides and canonical layouts), 9.7.16.4.1 (the 64-bit descriptor) and 5.5.7 (swizzling).

[read from PTX ISA] the bit fields, the canonical layouts of all modes but 128B_BASE32B, the swizzle functions.
[read from CUTLASS include/cute/arch/mma_sm100_desc.hpp] 128B_BASE32B exists for MN-major operands only, as
    Swizzle<2,5,2> o ((8,n),(4,k)):((1,LBO),(8,SBO)) in units of 16 bytes; CuTe DSL 4.5.2 emits strides that agree.
[measured for TMA on sm_90, inferred for the tensor core] the swizzle permutes bits of the absolute shared address, not
    of the offset inside the tile, so that a tile which is not aligned to its swizzle pattern still has base offset 0.
[inferred] addresses wrap at the range of the start: 256 KiB, on sm_107 512 KiB.
[read from CuTe DSL 4.8.1, experimental/primitives/descriptors.py] on sm_107 the start and the leading dimension have 15
    bits, the stride 14, and bit 53 tells where a segment of K starts, which is Unsupported.
[read from CUTLASS include/cute/arch/mma_sm100_desc.hpp] bit 52 is the absolute leading dimension mode of sm_103.
[inferred, confirmed by exact results of CUTLASS's kernels] there the leading dimension is the address at which K goes
    on behind the end of the swizzle's span in which it begins: K = 96 of FP4 takes 48 of a ring's 128 bytes.

A descriptor here is the 64 bits of PTX, and above them what the machine's has beyond sm_100's (`of_chip`).

Everything moves in chunks of 16 bytes, the unit that no swizzle mode splits. "rows" means M or N, "k" the contraction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..chip import Chip
from ..errors import Fault, Unsupported
from .swizzle import swizzle

CHUNK = 16  # bytes
_CHUNK_DTYPE = np.dtype(np.complex128)  # any 16-byte item: the gather then copies one machine register per chunk
WIDE, ABSOLUTE = 1 << 64, 1 << 65  # 15 bits of an address; whether there is the absolute mode


@dataclass(frozen=True)
class Swizzle:
    """Rows of `span` bytes, `atom_k` of them to an MN-major atom; (mode, atom) as in swizzle.py."""

    name: str
    span: int
    mode: int
    atom: int = 16
    atom_k: int = 8


SWIZZLES = {
    0: Swizzle("none", 16, 0),
    1: Swizzle("128B_BASE32B", 128, 128, atom=32, atom_k=4),
    2: Swizzle("128B", 128, 128),
    4: Swizzle("64B", 64, 64),
    6: Swizzle("32B", 32, 32),
}


@dataclass(frozen=True)
class MatrixDescriptor:
    """`start`, `lbo` (leading dimension byte offset) and `sbo` (stride dimension byte offset) in bytes.

    absolute: `lbo` is an address. range: at which addresses wrap.
    """

    start: int
    lbo: int
    sbo: int
    swizzle: Swizzle
    absolute: bool = False
    range: int = 1 << 18


def of_chip(chip: Chip) -> int:
    """Return what to add to the descriptors of a chip's instructions."""
    return WIDE * chip.wide_addresses + ABSOLUTE * (96 in chip.fp4_k)


@lru_cache(maxsize=4096)
def decode(desc: int) -> MatrixDescriptor:
    """Decode a 64-bit descriptor. Fault("matrix-descriptor") if it is malformed, Unsupported for what sm_100 lacks."""
    wide, may_be_absolute, desc = desc & WIDE, desc & ABSOLUTE, desc & (1 << 64) - 1
    bits, mode = 15 if wide else 14, desc >> 61 & 7
    if wide and desc >> 53 & 1:
        raise Unsupported(f"start of a segment of K in descriptor {desc:#018x}")
    reserved = desc >> 46 & 7 != 1 or desc >> 53 & 0xFF or any((desc >> at & 0xFFFF) >> bits for at in (0, 16))
    if reserved or mode not in SWIZZLES:
        raise Fault("matrix-descriptor", f"malformed shared memory descriptor {desc:#018x}")
    if desc >> 49 & 7 and mode:  # without a swizzle there is no pattern whose start it could tell
        raise Unsupported(f"matrix base offset {desc >> 49 & 7} in descriptor {desc:#018x}")
    absolute = bool(desc >> 52 & 1)
    if absolute and not may_be_absolute:
        raise Unsupported(f"absolute leading dimension mode (sm_103a, sm_107a) in descriptor {desc:#018x}")
    if absolute and SWIZZLES[mode].name in ("none", "128B_BASE32B"):
        raise Unsupported(f"absolute leading dimension mode with swizzle {SWIZZLES[mode].name}")
    start, lbo, sbo = (desc & 0xFFFF) << 4, (desc >> 16 & 0xFFFF) << 4, (desc >> 32 & 0x3FFF) << 4
    return MatrixDescriptor(start, lbo, sbo, SWIZZLES[mode], absolute, 16 << bits)


@lru_cache(maxsize=8192)
def located(desc: int, rows: int, k: int, mn_major: bool, elem_bits: int) -> tuple[np.ndarray, int, int]:
    """The `layout` of a 64-bit descriptor."""
    return layout(decode(desc), rows, k, mn_major, elem_bits)


def layout(d: MatrixDescriptor, rows: int, k: int, mn_major: bool, elem_bits: int) -> tuple[np.ndarray, int, int]:
    """Chunk numbers (address / 16), K-major [rows, k bytes / 16] or MN-major [k, row bytes / 16]; their byte range."""
    contiguous = (rows if mn_major else k) * elem_bits // 8
    assert contiguous % CHUNK == 0, f"{contiguous} contiguous bytes are not whole 16-byte chunks"
    c = np.arange(contiguous // CHUNK)[None, :]
    start: int | np.ndarray = d.start
    if mn_major:
        if d.absolute:
            raise Unsupported("absolute leading dimension mode of an MN-major operand")
        if (elem_bits == 32) != (d.swizzle.name == "128B_BASE32B") or elem_bits < 8:  # Table 54
            raise Fault("matrix-descriptor", f"MN-major {elem_bits}-bit operand with swizzle {d.swizzle.name}")
        line = np.arange(k)[:, None]
        # without swizzling the roles of the two strides are exchanged (9.7.16.3.1, "interleave")
        row_stride, k_stride = (d.sbo, d.lbo) if d.swizzle.name == "none" else (d.lbo, d.sbo)
        outer = c // (d.swizzle.span // CHUNK) * row_stride + line // d.swizzle.atom_k * k_stride
        inner = c % (d.swizzle.span // CHUNK) * CHUNK + line % d.swizzle.atom_k * d.swizzle.span
    else:
        if d.swizzle.name == "128B_BASE32B":
            raise Unsupported("128B swizzle with 32B atoms for a K-major operand: PTX gives no layout for it")
        line = np.arange(rows)[:, None]
        along = c * (d.lbo if d.swizzle.name == "none" else CHUNK)
        if d.absolute:
            along = along + d.start % d.swizzle.span
            start = np.where(along < d.swizzle.span, d.start - d.start % d.swizzle.span, d.lbo - d.swizzle.span)
        outer = line // 8 * d.sbo + along
        inner = line % 8 * d.swizzle.span
    address = swizzle((start + outer + inner) % d.range, d.swizzle.mode, d.swizzle.atom)
    index = address // CHUNK
    index.flags.writeable = False
    return index, int(address.min()), int(address.max()) + CHUNK


def byte_ranges(desc: int, rows: int, k: int, mn_major: bool, elem_bits: int) -> tuple[int, int]:
    """The smallest [lo, hi) of shared memory bytes that contains the operand."""
    _, lo, hi = located(desc, rows, k, mn_major, elem_bits)
    return lo, hi


def chunks(desc: int, rows: int, k: int, mn_major: bool, elem_bits: int) -> np.ndarray:
    """The 16-byte chunks of shared memory that the operand occupies: addresses / 16, in a cached array."""
    return located(desc, rows, k, mn_major, elem_bits)[0]


@lru_cache(maxsize=8192)
def words(desc: int, rows: int, k: int, mn_major: bool, elem_bits: int) -> np.ndarray:
    """The 4-byte words of shared memory that the operand occupies: addresses / 4, int64, in a cached array."""
    return words_of(chunks(desc, rows, k, mn_major, elem_bits))


def words_of(chunks: np.ndarray) -> np.ndarray:
    """The words of 16-byte chunks, which are named by their numbers."""
    found = (chunks.reshape(-1, 1) * 4 + np.arange(4)).ravel()
    found.flags.writeable = False
    return found


def load_operand(smem: np.ndarray, desc: int, rows: int, k: int, mn_major: bool, elem_bits: int) -> np.ndarray:
    """Fetch an operand from `smem` (uint8, indexed by shared offset, a multiple of 16 bytes long) in logical order.

    Returns uint8 [rows, k / 2] for packed 4-bit elements (even k in the low nibble), else element codes [rows, k] of
    elem_bits bits. Fault("out-of-bounds") if it leaves `smem`.
    """
    index, _, hi = located(desc, rows, k, mn_major, elem_bits)
    if hi > smem.size:
        raise Fault("out-of-bounds", f"operand of descriptor {desc:#018x} ends at {hi:#x} of {smem.size:#x} bytes")
    return gather(smem, index, mn_major, elem_bits)


def gather(smem: np.ndarray, index: np.ndarray, mn_major: bool, elem_bits: int) -> np.ndarray:
    """The elements of the chunks of a `layout`, as `load_operand` returns them."""
    elements = smem.view(_CHUNK_DTYPE).take(index).view(f"u{max(elem_bits // 8, 1)}")
    return elements.T if mn_major else elements
