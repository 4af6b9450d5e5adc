"""Matrices in the registers of a warp: which lane holds which element of its 16 rows of a wgmma.

Implements the register fragments of PTX ISA 9.7.15.5.1 (figures for A, m64k16, m64k8, m64k32; D, m64nN): warp w of the
warpgroup has rows 16 w to 16 w + 15. Registers are uint32 [count, 32]: of 32 bits, a lane each.
"""

from __future__ import annotations

import numpy as np

ROWS = 16  # of a warp


def load_a(registers: np.ndarray) -> np.ndarray:
    """A as uint32 [16, 8]: 32 bytes of K a row, low bytes first. registers [4, 32].

    Lane t has bytes 4 (t % 4) of rows t / 4 and t / 4 + 8, then the same 16 bytes on.
    """
    return registers.reshape(2, 2, 8, 4).transpose(1, 2, 0, 3).reshape(ROWS, 8)


def load_d(registers: np.ndarray, dtype) -> np.ndarray:
    """D [16, N] of a 32-bit dtype, registers [N / 2, 32], or of float16, registers [N / 4, 32].

    Lane t has columns 2 (t % 4) and the next of rows t / 4 and t / 4 + 8, then the same 8 columns on.
    """
    pairs = registers.view(dtype).reshape(-1, 2, 32, 2) if dtype == np.float16 else _pairs(registers.view(dtype))
    return pairs.reshape(len(pairs), 2, 8, 8).transpose(1, 2, 0, 3).reshape(ROWS, -1)


def _pairs(registers: np.ndarray) -> np.ndarray:
    """[N / 8, 2 halves, 32 lanes, 2 columns] of [N / 2, 32]."""
    return registers.reshape(-1, 2, 2, 32).transpose(0, 1, 3, 2)


def store_d(d: np.ndarray) -> np.ndarray:
    """The registers of D [16, N]: the inverse of `load_d`."""
    pairs = d.reshape(2, 8, -1, 4, 2).transpose(2, 0, 1, 3, 4)  # [N / 8, halves, t / 4, t % 4, columns]
    if d.dtype == np.float16:
        return np.ascontiguousarray(pairs).view(np.uint32).reshape(-1, 32)
    return np.ascontiguousarray(pairs.transpose(0, 1, 4, 2, 3)).view(np.uint32).reshape(-1, 32)
