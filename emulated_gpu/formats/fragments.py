"""Matrices in the registers of a warp: which lane holds which element of its 16 rows of a wgmma, or of an mma.sync.

Implements the register fragments of PTX ISA 9.7.15.5.1 (figures for A, m64k16, m64k8, m64k32; D, m64nN): warp w of the
warpgroup has rows 16 w to 16 w + 15; and those of 9.7.14.5, which are alike for all shapes in words of 32 bits, of 64
for f64. Registers are uint32 [count, 32]: of 32 bits, a lane each.

The last two are of ldmatrix and stmatrix of 8-bit elements (9.7.14.5.15-16), which transpose them.
"""

from __future__ import annotations

import numpy as np

ROWS = 16  # of a warp


def load_a(registers: np.ndarray) -> np.ndarray:
    """A as uint32 [16, 8]: 32 bytes of K a row, low bytes first. registers [4, 32].

    Lane t has bytes 4 (t % 4) of rows t / 4 and t / 4 + 8, then the same 16 bytes on.
    """
    return load_words(registers, ROWS)


def load_words(registers: np.ndarray, rows: int) -> np.ndarray:
    """The words [rows, K words] of a matrix of 8 or 16 rows, registers [count, 32]: A of an mma.sync; B has 8 columns.

    Lane t has word t % 4 of row t / 4, of row t / 4 + 8 if there is one, then the same four words on.
    """
    return registers.reshape(-1, rows // 8, 8, 4).transpose(1, 2, 0, 3).reshape(rows, -1)


def load_d(registers: np.ndarray, dtype, rows: int = ROWS) -> np.ndarray:
    """D [rows, N] of a dtype of 32 or 64 bits, registers [N / 2, 32], or of float16, registers [N / 4, 32].

    Of 8 rows, a lane has half as many.

    Lane t has columns 2 (t % 4) and the next of rows t / 4 and t / 4 + 8, then the same 8 columns on.
    """
    halves, values = rows // 8, registers.view(dtype)
    if dtype == np.float16:
        pairs = values.reshape(-1, halves, 32, 2)
    else:
        pairs = values.reshape(-1, halves, 2, 32).transpose(0, 1, 3, 2)
    return pairs.reshape(len(pairs), halves, 8, 8).transpose(1, 2, 0, 3).reshape(rows, -1)


def store_d(d: np.ndarray) -> np.ndarray:
    """The registers of D [8 or 16, N]: the inverse of `load_d`."""
    pairs = d.reshape(len(d) // 8, 8, -1, 4, 2).transpose(2, 0, 1, 3, 4)  # [N / 8, halves, t / 4, t % 4, columns]
    if d.dtype == np.float16:
        return np.ascontiguousarray(pairs).view(np.uint32).reshape(-1, 32)
    unsigned = np.uint64 if d.itemsize == 8 else np.uint32
    return np.ascontiguousarray(pairs.transpose(0, 1, 4, 2, 3)).view(unsigned).reshape(-1, 32)


def store_transposed_bytes(matrix: np.ndarray) -> list[np.ndarray]:
    """The two registers of ldmatrix.m16n16.trans of a matrix as it lies in memory, uint8 [16, 16].

    Lane t has the rows 4 (t % 4) to 4 (t % 4) + 3 of column t / 4, and in the second register those of t / 4 + 8.
    """
    parts = matrix.reshape(4, 4, 2, 8)  # [t % 4, byte, register, t / 4]
    return list(parts.transpose(2, 3, 0, 1).reshape(2, 128).view(np.uint32))


def load_transposed_bytes(registers: np.ndarray) -> np.ndarray:
    """The matrices of stmatrix.m16n8.trans as they come to lie in memory, uint8 [count, 8, 16]; registers [count, 32].

    Lane t has the rows 2 (t % 4) and the next, of column t / 4 in its lower two bytes, of t / 4 + 8 in the others.
    """
    parts = np.ascontiguousarray(registers, np.uint32).view(np.uint8).reshape(-1, 8, 4, 2, 2)
    return parts.transpose(0, 2, 4, 3, 1).reshape(-1, 8, 16)  # [count, t % 4, row, half of the columns, t / 4]
