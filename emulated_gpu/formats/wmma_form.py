"""Fragments of the wmma instructions: which lane holds which element of a matrix (PTX ISA 9.7.14.4).

The ISA leaves it open, and programs may not rely on it. Here they lie as those of mma.sync (fragments.py); of f16,
whose fragments of A and B have 8 registers whatever their shape, the further ones repeat the first.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ..errors import Unsupported
from .element_types import BF16, F16, F32, F64, S4, S8, S32, TF32, U1, U4, U8, ElementType
from .mma_sync_form import MmaSyncForm

TYPES = {t.name: t for t in (F16, BF16, TF32, S8, U8, S4, U4, F32, F64, S32)} | {"b1": U1}
_WIDE = ("m16n16k16", "m8n32k16", "m32n8k16")
# Shapes by the type of A and B, and the types that C and D may have
_SHAPES = {
    F16: (_WIDE, (F16, F32)), BF16: (_WIDE, (F32,)), TF32: (("m16n16k8",), (F32,)), S8: (_WIDE, (S32,)),
    S4: (("m8n8k32",), (S32,)), U1: (("m8n8k128",), (S32,)), F64: (("m8n8k4",), (F64,)),
}  # fmt: skip
_SHAPES |= {U8: _SHAPES[S8], U4: _SHAPES[S4]}


def sizes(shape: str) -> tuple[int, int, int]:
    """M, N and K of a shape."""
    m, n, k = shape.replace("n", " ").replace("k", " ")[1:].split()
    return int(m), int(n), int(k)


@dataclass(frozen=True)
class Fragment:
    """A fragment of A, B, C or D, which memory has row-major or not."""

    role: str
    """"a", "b", "c" or "d"."""
    shape: str
    type: ElementType
    row_major: bool

    def __post_init__(self):
        """Raise Unsupported for forms that the ISA does not list."""
        known = [
            a for a, (shapes, results) in _SHAPES.items()
            if self.shape in shapes and (self.type is a if self.role in "ab" else self.type in results)
        ]  # fmt: skip
        if not known:
            raise Unsupported(f"a fragment of {self.role} of {self.shape}, type {self.type.name}")
        if self.type.bits < 8 and self.row_major != (self.role == "a"):
            raise Unsupported(f"{self.type.name} in this layout")

    @property
    def rows(self) -> int:
        """Rows of A, C and D, columns of B: of what lies in eighths of a warp."""
        m, n, _ = sizes(self.shape)
        return n if self.role == "b" else m

    @property
    def columns(self) -> int:
        """The other dimension."""
        _, n, k = sizes(self.shape)
        return k if self.role in "ab" else n

    @property
    def together(self) -> bool:
        """Whether neighbours in a row of the fragment are neighbours in memory."""
        return self.row_major != (self.role == "b")

    @property
    def stride(self) -> int:
        """The leading dimension in memory where the instruction has none, in elements."""
        return self.columns if self.together else self.rows

    @property
    def register_bits(self) -> int:
        """Bits of a register."""
        return 64 if self.type is F64 else 32

    @property
    def per_register(self) -> int:
        """Elements in a register."""
        return self.register_bits // self.type.bits

    @property
    def registers(self) -> int:
        """Registers of a lane."""
        if self.type is F16 and self.role in "ab":
            return 8
        return self.rows * self.columns // self.per_register // 32

    @functools.cached_property
    def first(self) -> np.ndarray:
        """The place of the first element of each register, row * columns + column, int64 [distinct registers, 32]."""
        places = np.arange(self.rows * self.columns).reshape(self.rows, -1)[:, :: self.per_register]
        if self.role in "ab" or self.per_register > 1:  # words of a row go around four lanes
            return places.reshape(self.rows // 8, 8, -1, 4).transpose(2, 0, 1, 3).reshape(-1, 32)
        return places.reshape(self.rows // 8, 8, -1, 4, 2).transpose(2, 0, 4, 1, 3).reshape(-1, 32)

    def offsets(self, element: int, stride: np.ndarray | int) -> np.ndarray:
        """Where in memory element 0, 1, .. of each register lies, in elements from the first, int64 [registers, 32]."""
        row, column = np.divmod(self.first + element, self.columns)
        return row * stride + column if self.together else column * stride + row

    def matrix(self, registers: np.ndarray) -> np.ndarray:
        """The registers [registers, 32] as words [rows, words of a row]."""
        words = np.zeros(self.rows * self.columns // self.per_register, registers.dtype)
        words[self.first // self.per_register] = registers[: len(self.first)]
        return words.reshape(self.rows, -1)

    def fragment(self, words: np.ndarray) -> np.ndarray:
        """The registers of words [rows, words of a row]: the inverse of `matrix`."""
        return words.reshape(-1)[self.first // self.per_register]


@dataclass(frozen=True)
class WmmaForm:
    """D [m, n] = A [m, k] B [k, n] + C, C of D's type."""

    a: Fragment
    b: Fragment
    d: Fragment
    arithmetic: MmaSyncForm
    """The mma.sync whose arithmetic it has."""

    @classmethod
    def of(cls, shape: str, a: ElementType, b: ElementType, d: ElementType, saturate: bool, bitwise: str) -> WmmaForm:
        """The form of a shape and types."""
        of_a, of_b = Fragment("a", shape, a, True), Fragment("b", shape, b, False)
        like = {F64: "m8n8k4", S4: "m8n8k32", U4: "m8n8k32", U1: "m8n8k128"}.get(a, f"m16n8k{sizes(shape)[2]}")
        return cls(of_a, of_b, Fragment("d", shape, d, True), MmaSyncForm(like, a, b, d, saturate, bitwise))
