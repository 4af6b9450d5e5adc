"""mma.sync: a warp multiplies matrices that lie in its registers (PTX ISA 9.7.14.5), which leaves the rounding open.

An H100 ran what silicon/golden/mma_sync.py has, and agrees bit for bit:
  * f16, bf16 and tf32 as wgmma of the same types (units/wgmma_arithmetic.py), all K of an instruction at once;
  * FP8 as if f16: the products of bytes 0 and 1 of each register, onto them those of bytes 2 and 3, and to that sum, of
    D's type, C is added by an ordinary addition. So it has more bits than FP8 of wgmma;
  * f64 one fused multiply-add for each k, in ascending order;
  * integers exactly; sums wrap, or clamp with .satfinite.
No card was asked about sm_100, which is taken to do the same: of FP8 ptxas 13.0 makes the same two HMMAs and FADDs,
with .kind::f8f6f4, too. On sm_120 it makes one QMMA of either, which adds all products at once [read from MMA-Sim].
"""

from __future__ import annotations

import numpy as np

from ..errors import Unsupported
from ..formats import alu
from ..formats.element_types import E4M3, E5M2, F16, F32, F64, U1
from ..formats.fragments import load_d, load_words, store_d
from ..formats.mma_scaled_form import MmaScaledForm
from ..formats.mma_sync_form import INTEGERS, MmaSyncForm
from . import ampere_mma, wgmma_arithmetic
from .group import LaneGroup
from .mma import mma as tensor_core

GEFORCE = 120  # the compute capability from which there is an instruction for FP8
DTYPES = {F16: np.float16, F32: np.float32, F64: np.float64}


def multiply(g: LaneGroup, form: MmaSyncForm, a: tuple, b: tuple, c: tuple) -> tuple:
    """Return the registers of D, given those of A, B and C."""
    g.need_all_lanes("mma.sync")
    g.clock.mma_sync(g, form)
    if not g.cta.computes_mma:
        return (0,) * form.registers[2]
    width = 64 if form.a_type is F64 else 32
    of_a, of_b, of_c = (np.stack([g.lane_array(v, width) for v in part]) for part in (a, b, c))
    added = load_d(of_c, DTYPES.get(form.d_type, np.int32), form.m)
    words = load_words(of_a, form.m), load_words(of_b, 8)
    return tuple(store_d(product(form, *words, added, g.launch.chip.compute)))


def multiply_kind(g: LaneGroup, form: MmaScaledForm, a: tuple, b: tuple, c: tuple, sfa=None, sfb=None) -> tuple:
    """Return the registers of D of an mma.sync with a .kind. sfa, sfb: (register of scale factors, byte id, thread id).

    The scale factors of rows r and r + 8 of A lie in lanes 4 r + 2 thread id and the next one, those of column n of B
    in lane 4 n + thread id. [read from CUTLASS's SFALayout and SFBLayout for thread id 0; for the others from a public
    probe of an RTX 50 of scale_vec::1X, inferred for 2X and 4X]
    """
    g.need_all_lanes("mma.sync")
    of_a, of_b, of_c = (np.stack([g.lane_array(v, 32) for v in part]) for part in (a, b, c))
    added = load_d(of_c, DTYPES[form.d_type], 16)
    codes = []
    for words, of in (load_words(of_a, 16), form.a_type), (load_words(of_b, 8), form.b_type):
        part = np.ascontiguousarray(words).view(np.uint8)
        codes.append(part >> 2 if of.bits == 4 and not form.packed_fp4 else part)
    scales: list[np.ndarray | None] = [None, None]
    if form.scale_type is not None:
        row = np.arange(16)
        lanes = (4 * (row % 8) + row // 8, 2), (4 * np.arange(8), 1)
        for i, ((word, byte, thread), (lane, step)) in enumerate(zip((sfa, sfb), lanes)):
            byte, thread = (int(g.lane_array(v, 16)[0]) for v in (byte, thread))
            if byte % form.scale_vec or byte + form.scale_vec > 4 or thread >= (2 if i == 0 else 4):
                raise Unsupported(f"byte id {byte}, thread id {thread} of scale_vec::{form.scale_vec}X")
            held = np.ascontiguousarray(g.lane_array(word, 32)).view(np.uint8).reshape(32, 4)
            scales[i] = held[lane + step * thread, byte : byte + form.scale_vec]
    of_a, of_b = codes
    if form.scale_type is None:
        return tuple(store_d(_float8(form, of_a, of_b, added, g.launch.chip.compute)))
    return tuple(store_d(tensor_core(form, of_a, of_b, added, *scales)))


def product(form: MmaSyncForm, a: np.ndarray, b: np.ndarray, c: np.ndarray, compute: int = 90) -> np.ndarray:
    """D [m, 8] of C [m, 8], on sm_`compute`. a [m, K words], b [8, K words]: rows of A, columns of B."""
    if form.a_type is U1:
        met = a[:, None] ^ b if form.bitwise == "xor" else a[:, None] & b
        ones = alu.popc(met.ravel(), 32).astype(np.int64).reshape(met.shape)
        return (c + ones.sum(axis=2)).astype(np.int32)
    a, b = (_codes(x, form.a_type.bits) for x in (a, b))
    if form.a_type in INTEGERS:
        total = form.a_type.decode(a) @ form.b_type.decode(b).T + c  # whole numbers below 2 ** 53
        total = total.clip(-(2**31), 2**31 - 1) if form.saturate else total
        return total.astype(np.int64).astype(np.int32)
    if form.a_type is F64:
        return _doubles(form.a_type.decode(a), form.b_type.decode(b), c)
    if compute < 90:
        return ampere_mma.product(form, a, b, c)
    if form.a_type in (E4M3, E5M2):
        return _float8(form, a, b, c, compute)
    return wgmma_arithmetic.sums(form.a_type, form.b_type, form.d_type, a, b, c)


def _codes(words: np.ndarray, bits: int) -> np.ndarray:
    """The elements of rows of words, low bits first."""
    words = np.ascontiguousarray(words)
    if bits == 4:
        packed = words.view(np.uint8)
        return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(words), -1)
    return words.view(f"u{bits // 8}")


def _float8(form: MmaSyncForm | MmaScaledForm, a: np.ndarray, b: np.ndarray, c: np.ndarray, compute: int) -> np.ndarray:
    """On sm_120 all products at once; before it those of two halves, one after the other, then C."""
    if compute >= GEFORCE:
        return tensor_core(MmaScaledForm("f8f6f4", form.a_type, form.b_type, form.d_type), a, b, c)
    total, second = None, np.arange(form.k) % 4 >= 2
    for half in (~second, second):
        total = wgmma_arithmetic.sums(form.a_type, form.b_type, form.d_type, a[:, half], b[:, half], total)
    unsigned = f"u{total.itemsize}"
    x, y = (np.ascontiguousarray(v).view(unsigned).ravel() for v in (c, total))
    return alu.arithmetic("add", form.d_type.name, x, y).view(total.dtype).reshape(c.shape)


def _doubles(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """One fused multiply-add after another."""
    total = np.ascontiguousarray(c).view(np.uint64).ravel()
    for k in range(a.shape[1]):
        x, y = (np.ascontiguousarray(v).view(np.uint64).ravel() for v in np.broadcast_arrays(a[:, k, None], b[:, k]))
        total = alu.arithmetic("fma", "f64", x, y, total)
    return total.view(np.float64).reshape(c.shape)
