"""What an mma.sync with a .kind says of itself: the warp-level forms of sm_120 (PTX ISA 9.7.14.5, from 8.7 on).

[read from PTX ISA] kinds, types, scale_vec. [read from CUTLASS mma_traits_sm120.hpp] fragments
are those of m16n8k32 of bytes, in words of 32 bits; a 4-bit element of f8f6f4 kinds lies in bits 2 to 5 of its byte.
[inferred] a 6-bit one in bits 0 to 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Unsupported
from .element_types import E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, UE4M3, UE8M0, ElementType

BYTES = (E4M3, E5M2, E3M2, E2M3, E2M1)
TYPES = {t.name: t for t in (*BYTES, F16, F32, UE4M3, UE8M0)}
# kind -> its K, what it multiplies, {scale type: allowed scale_vec}, the scale_vec that needs no name
KINDS: dict[str, tuple[int, tuple[ElementType, ...], dict[ElementType, tuple[int, ...]], int | None]] = {
    "f8f6f4": (32, BYTES, {}, None),
    "mxf8f6f4": (32, BYTES, {UE8M0: (1,)}, 1),
    "mxf4": (64, (E2M1,), {UE8M0: (2,)}, 2),
    "mxf4nvf4": (64, (E2M1,), {UE8M0: (2, 4), UE4M3: (4,)}, None),
}
PACKED = ("mxf4", "mxf4nvf4")


@dataclass(frozen=True)
class MmaScaledForm:
    """D [16, n 8] = A [16, k] B [k, 8] + C, with scale factors for each K / scale_vec elements of a row or column.

    It has what units.mma wants of an instruction descriptor.
    """

    kind: str
    a_type: ElementType
    b_type: ElementType
    d_type: ElementType
    scale_type: ElementType | None = None
    scale_vec: int = 0
    m = 16
    n = 8
    negate_a = negate_b = False

    @staticmethod
    def of(shape: str, kind: str, names: list[str], scaled: bool, vec: int | None) -> MmaScaledForm:
        """Return the form of an instruction's modifiers; names: its types in order.

        Raises Unsupported for what the ISA does not list.
        """
        k, elements, scales, usual = KINDS[kind]
        types = [TYPES[name] for name in names if name in TYPES]
        if shape != f"m16n8k{k}" or len(types) != len(names) or len(types) != 4 + scaled or scaled != bool(scales):
            raise Unsupported(f"mma.sync {shape} of kind::{kind} and types {names}")
        d, a, b, c, *of_scales = types
        results = (F32,) if scaled else (F32, F16)
        if a not in elements or b not in elements or d is not c or d not in results:
            raise Unsupported(f"mma.sync of kind::{kind} and types {names}")
        if not scaled:
            return MmaScaledForm(kind, a, b, d)
        wanted = vec or usual or 0
        if wanted not in scales.get(of_scales[0], ()):
            raise Unsupported(f"mma.sync of kind::{kind} with scale_vec::{wanted}X of {of_scales[0].name}")
        return MmaScaledForm(kind, a, b, d, of_scales[0], wanted)

    @property
    def k(self) -> int:
        return KINDS[self.kind][0]

    @property
    def packed_fp4(self) -> bool:
        return self.kind in PACKED

    @property
    def registers(self) -> tuple[int, int, int]:
        return 4, 2, 4 if self.d_type is F32 else 2
