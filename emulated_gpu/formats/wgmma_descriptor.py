"""The matrix descriptors of wgmma.mma_async: where its operands lie in the shared memory of sm_90.

Implements PTX ISA 9.7.15.5.1: strides, canonical layouts, the 64-bit descriptor. The layouts are those of sm_100
(matrix_descriptor.py); the fields are fewer, and the swizzles have other codes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..errors import Fault, Unsupported
from .matrix_descriptor import SWIZZLES, MatrixDescriptor, layout

_FIELDS = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62
_SWIZZLES = {0: SWIZZLES[0], 1: SWIZZLES[2], 2: SWIZZLES[4], 3: SWIZZLES[6]}  # none, 128, 64, 32 bytes


def decode(desc: int) -> MatrixDescriptor:
    """Decode a 64-bit descriptor. Fault("matrix-descriptor") if bits are set that have no meaning."""
    if desc & ~_FIELDS:
        raise Fault("matrix-descriptor", f"malformed shared memory descriptor {desc:#018x}")
    if desc >> 49 & 7 and desc >> 62:  # without a swizzle there is no pattern whose start it could tell
        raise Unsupported(f"matrix base offset {desc >> 49 & 7} in descriptor {desc:#018x}")
    return MatrixDescriptor(
        (desc & 0x3FFF) << 4, (desc >> 16 & 0x3FFF) << 4, (desc >> 32 & 0x3FFF) << 4, _SWIZZLES[desc >> 62]
    )


@lru_cache(maxsize=8192)
def chunks(desc: int, rows: int, k: int, mn_major: bool, elem_bits: int) -> tuple[np.ndarray, int, int]:
    """The 16-byte chunks that an operand occupies, and its byte range, as matrix_descriptor.layout returns them."""
    return layout(decode(desc), rows, k, mn_major, elem_bits)
