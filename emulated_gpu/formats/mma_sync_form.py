"""What an mma.sync says of itself: shape, types and modifiers (PTX ISA 9.7.14.5)."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Unsupported
from .element_types import BF16, E4M3, E5M2, F16, F32, F64, S4, S8, S32, TF32, U1, U4, U8, ElementType

TYPES = {t.name: t for t in (F16, BF16, TF32, E4M3, E5M2, S8, U8, S4, U4, F32, F64, S32)} | {"b1": U1}
N = 8  # columns of B and D
INTEGERS = (S8, U8, S4, U4)
# Shapes by the type of A (9.7.14.5, table of shapes); B has the same shapes
_SHAPES = {
    F16: ("m16n8k8", "m16n8k16"),
    BF16: ("m16n8k8", "m16n8k16"),
    TF32: ("m16n8k4", "m16n8k8"),
    E4M3: ("m16n8k16", "m16n8k32"),
    E5M2: ("m16n8k16", "m16n8k32"),
    F64: ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    S8: ("m8n8k16", "m16n8k16", "m16n8k32"),
    S4: ("m8n8k32", "m16n8k32", "m16n8k64"),
    U1: ("m8n8k128", "m16n8k128", "m16n8k256"),
}  # fmt: skip
_SHAPES |= {U8: _SHAPES[S8], U4: _SHAPES[S4]}
_PARTNERS = {S8: {S8, U8}, S4: {S4, U4}, E4M3: {E4M3, E5M2}}
_PARTNERS |= {U8: _PARTNERS[S8], U4: _PARTNERS[S4], E5M2: _PARTNERS[E4M3]}


@dataclass(frozen=True)
class MmaSyncForm:
    """D [m, n] = A [m, k] B [k, n] + C, C of D's type, in the registers of a warp. A is row-major, B column-major."""

    shape: str
    a_type: ElementType
    b_type: ElementType
    d_type: ElementType
    saturate: bool = False
    bitwise: str = ""
    """For one-bit elements: "xor" or "and", whose ones are counted."""

    def __post_init__(self):
        """Raise Unsupported for shapes and types that the ISA does not list for sm_90 and sm_100."""
        a, b, d = self.a_type, self.b_type, self.d_type
        if a in (F16, E4M3, E5M2):
            results = {F16, F32}
        else:
            results = {F32} if a in (BF16, TF32) else {F64} if a is F64 else {S32}
        if b not in _PARTNERS.get(a, {a}) or d not in results or self.shape not in _SHAPES.get(a, ()):
            raise Unsupported(f"mma.sync {self.shape} of types {d.name}.{a.name}.{b.name}")
        if self.saturate and a not in INTEGERS or bool(self.bitwise) != (a is U1):
            raise Unsupported(f"mma.sync of {a.name} with these modifiers")

    @property
    def m(self) -> int:
        """Rows of A and D."""
        return 16 if self.shape.startswith("m16") else 8

    @property
    def k(self) -> int:
        """Columns of A."""
        return int(self.shape.partition("k")[2])

    @property
    def registers(self) -> tuple[int, int, int]:
        """How many registers a thread has of A, of B and of D: of 64 bits for f64, else of 32."""
        width = 64 if self.a_type is F64 else 32
        b = self.k * self.a_type.bits // width // 4
        return b * self.m // 8, b, self.m * self.d_type.bits // width // 4
