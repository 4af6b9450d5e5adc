"""What tcgen05.ld.red makes of the columns that a thread has loaded (PTX ISA 9.7.16.8.3).

The ISA says which columns; that NaNs and -0 count as in min and max of registers is inferred. Triton's test on a
Blackwell Ultra has NaNs with .NaN, and .abs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from ..errors import Unsupported
from . import alu


@dataclass(frozen=True)
class LoadReduction:
    """min or max of f32, u32 or s32; absolute, nan: .abs and .NaN, of f32 alone."""

    kind: str
    is_max: bool
    absolute: bool
    nan: bool

    def check(self, shape: str, num: int) -> None:
        """Raise Unsupported for what the ISA does not have."""
        if shape not in ("32x32b", "16x32bx2") or num < 2:
            raise Unsupported(f"reduction of .{shape}.x{num}: .32x32b and .16x32bx2 of at least .x2 have one")
        if (self.absolute or self.nan) and self.kind != "f32":
            raise Unsupported(f".abs or .NaN of .{self.kind}")

    def of(self, values: Iterable[np.ndarray]) -> np.ndarray:
        """Return uint32 [threads], made of the registers that each has loaded, at least two."""
        if self.kind != "f32":
            signed = [value.view(np.int32) if self.kind == "s32" else value for value in values]
            return reduce(np.maximum if self.is_max else np.minimum, signed).view(np.uint32)
        return alu.fminmax("f32", *values, is_max=self.is_max, nan=self.nan, absolute=self.absolute)
