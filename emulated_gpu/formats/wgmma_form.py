"""What a wgmma.mma_async says of itself: shape, types and modifiers (PTX ISA 9.7.15.5.2; its shapes: 9.7.15.1)."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Unsupported
from .element_types import BF16, E4M3, E5M2, F16, F32, S8, S32, TF32, U8, ElementType

TYPES = {t.name: t for t in (F16, BF16, TF32, E4M3, E5M2, S8, U8, F32, S32)}
M, K_BYTES = 64, 32
_INTEGER, _FLOAT8 = {S8, U8}, {E4M3, E5M2}


@dataclass(frozen=True)
class WgmmaForm:
    """D [64, N] = A [64, K] B [K, N] + D, K of 32 bytes. mn_major: the transpose of an operand in shared memory."""

    n: int
    a_type: ElementType
    b_type: ElementType
    d_type: ElementType
    a_in_registers: bool = False
    negate_a: bool = False
    negate_b: bool = False
    a_mn_major: bool = False
    b_mn_major: bool = False
    saturate: bool = False

    def __post_init__(self):
        """Raise Unsupported for shapes and types that the ISA does not list."""
        a, b = self.a_type, self.b_type
        if a in _INTEGER:
            fits, results = b in _INTEGER, {S32}
        else:
            fits = {a, b} <= _FLOAT8 or a is b
            results = {F32} if a in (BF16, TF32) else {F16, F32}
        if not fits or self.d_type not in results or (self.saturate and a not in _INTEGER):
            raise Unsupported(f"wgmma of types {self.d_type.name}.{a.name}.{b.name}")
        step = 16 if a in _INTEGER and self.n > 32 else 8
        if not 8 <= self.n <= 256 or self.n % step:
            raise Unsupported(f"wgmma of these types with N = {self.n}")

    @property
    def k(self) -> int:
        return 8 * K_BYTES // self.a_type.bits

    @property
    def d_registers(self) -> int:
        """How many 32-bit registers of D a thread has."""
        return self.n * self.d_type.bits // 64
