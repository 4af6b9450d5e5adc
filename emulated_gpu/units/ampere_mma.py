"""How the tensor cores of sm_80 to sm_89 round: fewer bits than Hopper's, and the larger K in two halves.

[read from MMA-Sim, simulator/nv.py] Products are added to C with 24 bits below the largest exponent; where A's rows
have 256 bits, the halves of K one after the other. Products of FP8 (sm_89) keep 13 bits, their f32 sums 14. No card has
confirmed it here. That wmma is made of the same products is inferred.
"""

from __future__ import annotations

import numpy as np

from ..formats.element_types import E4M3, E5M2
from ..formats.mma_sync_form import MmaSyncForm
from .dot_add import FLOAT8, dot_add

BITS = 24


def product(form: MmaSyncForm, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return D [m, n] of C [m, n] and codes of A [m, K] and B [n, K]."""
    bits = FLOAT8 if form.a_type in (E4M3, E5M2) else BITS
    for half in np.split(np.arange(form.k), 1 + (form.k * form.a_type.bits == 256)):
        x, y = form.a_type.decode(a[:, half]), form.b_type.decode(b[:, half])
        exponents = form.a_type.exponents(x), form.b_type.exponents(y)
        c = dot_add(x, y, *exponents, c, form.d_type, bits)
    return c
