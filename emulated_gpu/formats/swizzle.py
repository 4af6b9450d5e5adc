"""Swizzling modes: where the 16-byte chunks of a tile land in shared memory.

PTX ISA 5.5.7. A swizzle XORs some of the address bits 4..6 with bits from 7 on, so a chunk never leaves its 128-byte
line. The bits are those of the absolute shared address, not of the offset in the tile: seen on an H200 with a tile at
bases that are not a multiple of 1024, and it is what lets TMA and the tensor core agree on one layout.
Rows that are narrower than the span of the mode (32, 64 or 128 bytes) start one span apart; what is between them is
left alone (H200, golden cases tma_load_swizzle_*_narrow_*).
The 8-byte flip and the 96-byte mode (sm_103a) of the ISA are not implemented.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..errors import Fault, Unsupported

CHUNK = 16  # bytes that every mode keeps together
PERIOD = 1024  # bytes after which the pattern of the longest mode repeats
LINE = 128

# (mode, atom) in bytes -> (mask of the address bits from 7 on, lowest bit that they are XORed into)
MODES = {(0, 16): (0, 4), (32, 16): (1, 4), (64, 16): (3, 4), (128, 16): (7, 4), (128, 32): (3, 5), (128, 64): (1, 6)}


def swizzle(addr, mode: int, atom: int = 16):
    """Shared address at which the byte of linear address `addr` lies; `addr` is an int or an integer array."""
    if (mode, atom) not in MODES:
        raise Unsupported(f"swizzle mode {mode}B with {atom}B atoms")
    mask, bit = MODES[mode, atom]
    return addr ^ ((addr >> 7 & mask) << bit)


@lru_cache(maxsize=1024)
def _chunks(phase: int, count: int, mode: int, atom: int, row: int = 0) -> np.ndarray:
    """Chunk numbers, counted from the last multiple of PERIOD, of the `count` chunks of an image placed at `phase`."""
    place = CHUNK * np.arange(count, dtype=np.int64)
    if row:
        place = place // row * mode + place % row
    order = swizzle(phase + place, mode, atom) // CHUNK
    order.setflags(write=False)
    return order


def scatter(smem: np.ndarray, base: int, image: np.ndarray, mode: int, atom: int = 16, row: int = 0) -> None:
    """Write the dense `image` (uint8, flat) to shared memory `smem` (uint8, flat) at `base`, swizzled.

    row: bytes of the image's rows; 0 if they fill the span, or if it does not matter because there is no swizzle.

    Raises Fault("out-of-bounds") if a line of the tile lies outside `smem`, Fault("misaligned") if base or size is not
    a multiple of 16.
    """
    lines, order = _lines(smem, base, image.size, mode, atom, row)
    lines[order] = image.view(np.complex128)


def gather(smem: np.ndarray, base: int, nbytes: int, mode: int, atom: int = 16, row: int = 0) -> np.ndarray:
    """The dense image [nbytes] (uint8, a copy) that lies swizzled at `base`: the inverse of `scatter`, same errors."""
    lines, order = _lines(smem, base, nbytes, mode, atom, row)
    return (lines[order] if mode else lines.copy()).view(np.uint8)


def _phase(base: int, nbytes: int) -> int:
    if base % CHUNK or nbytes % CHUNK:
        raise Fault("misaligned", f"a tile of {nbytes} bytes at shared offset {base:#x}: both must be multiples of 16")
    return base % PERIOD


def _lines(
    smem: np.ndarray, base: int, nbytes: int, mode: int, atom: int, row: int
) -> tuple[np.ndarray, slice | np.ndarray]:
    """The chunks of `smem` around a tile and which of them, in order, hold its image.

    A chunk is seen as one complex128, the 16-byte type that numpy copies by index fastest; no arithmetic touches it.
    """
    phase = _phase(base, nbytes)
    end = base + (nbytes // row * mode if mode and row else nbytes)
    if mode:  # the last line of a ragged tile may be permuted as a whole
        end = -(-end // LINE) * LINE
    if base < 0 or end > smem.size:
        raise Fault(
            "out-of-bounds", f"a tile of {nbytes} bytes at shared offset {base:#x} leaves shared memory ({smem.size})"
        )
    if not mode:
        return smem[base:end].view(np.complex128), slice(None)
    return smem[base - phase : end].view(np.complex128), _chunks(phase, nbytes // CHUNK, mode, atom, row)
