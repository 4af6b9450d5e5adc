"""tcgen05.mma: the arithmetic of the fifth-generation tensor core, and the places its operands are read from.

Implements PTX ISA 9.7.16.10. `mma` is the arithmetic alone, `execute` the instruction on shared and tensor memory.

The ISA does not define the rounding. The model is the one that microsoft/MMA-Sim (https://github.com/microsoft/MMA-Sim,
mmasim/simulator, "tcgen05mma" and "tcgen05mma_block_scale") presents as bit-accurate for Blackwell [read there]:
  * a term is, for packed FP4 kinds, the exact dot product of 16 elements of a row of A and of B times their two scale
    factors, with the exponent e(sa) + e(sb); for the other kinds it is one product a * b * sa * sb, with the exponent
    e(a) + e(b) + e(sa) + e(sb); C is one more term. Exponents are those of `element_types.ElementType.exponents`;
  * terms are added as dot_add.py says, with F = 35 for packed FP4 kinds and 25 for the others.
MMA-Sim covers infinities in the one-product kinds (IEEE rules) but not an infinite C of the packed FP4 kinds, nor 4-bit
and 6-bit elements of f8f6f4 and mxf8f6f4: the same rules are applied to them here [inferred].

Most sums are truncated nowhere, and BLAS computes them (dot_add.py).

Tensor memory layouts: [read from CUTLASS include/cute/atom/mma_traits_sm100_frag.hpp, the ISA has figures only].
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..errors import Fault, Unsupported
from ..formats import matrix_descriptor
from ..formats.element_types import (
    CONTAINER_SHIFT,
    E2M1,
    F16,
    F32,
    S32,
    ElementType,
    unpack,
    unpack_slots,
)
from ..formats.instruction_descriptor import InstructionDescriptor, MmaForm
from ..formats.mma_scaled_form import MmaScaledForm
from ..jit.rules import pointer
from ..native import fp4_mma
from ..state.tensor_memory import COLUMNS, TensorMemory
from .dot_add import aligned_sum, dot_add, exact_sum, exact_type, fits_float32, round_f32

WORD = 4  # scale factors of a cell of tensor memory
_FP4_GROUP = 16  # elements whose dot product is exact
_FP4_FRACTION, _PRODUCT_FRACTION = 35, 25  # bits kept below the largest exponent

# byte -> its two E2M1 values, as float32 pairs that numpy copies as one 8-byte item
_FP4_PAIRS = (
    np.stack([np.tile(E2M1.values, 16), np.repeat(E2M1.values, 16)], 1).astype(np.float32).view(np.complex64)[:, 0]
)


# ---- arithmetic ----


def mma(
    idesc: InstructionDescriptor | MmaScaledForm,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None,
    sfa: np.ndarray | None = None,
    sfb: np.ndarray | None = None,
) -> np.ndarray:
    """D = A * B + C for one instruction's K.

    a [M, K], b [N, K]: element codes (uint8, uint16 or uint32), or uint8 [rows, K / 2] for packed FP4 kinds; 4-bit and
    6-bit codes of the other kinds sit in the low bits of a byte. c [M, N] in D's type, or None for zero.
    sfa [M, scale_vec], sfb [N, scale_vec]: uint8 scale factor codes. Any M, N. Returns [M, N] in D's type.
    """
    if idesc.kind == "i8":
        return _mma_integer(idesc, a, b, c)
    if idesc.packed_fp4:
        return _mma_fp4(idesc, a, b, c, sfa, sfb)
    return _mma_products(idesc, a, b, c, sfa, sfb)


def _mma_integer(idesc, a, b, c) -> np.ndarray:
    """int32 [M, N]: exact, then wrapped or, with .saturate set, clamped. Sums of 32 products fit float64."""
    total = (idesc.a_type.decode(a) @ idesc.b_type.decode(b).T).astype(np.int64)
    if c is not None:
        total += c
    if idesc.saturate:
        total = total.clip(-(2**31), 2**31 - 1)
    return total.astype(np.int32)


def _mma_fp4(idesc, a, b, c, sfa, sfb) -> np.ndarray:
    scale = idesc.scale_type
    av, bv = (_FP4_PAIRS.take(codes).view(np.float32) for codes in (a, b))  # [rows, K]
    if idesc.negate_a != idesc.negate_b:
        av = -av
    ea, eb = int(scale.exponent_table[sfa].max()), int(scale.exponent_table[sfb].max())
    q = (
        int(scale.lowest_bit_table[sfa].min() + scale.lowest_bit_table[sfb].min()) - 2
    )  # E2M1 products: multiples of 1/4
    bound = 36 * idesc.k * float(scale.values[sfa].max()) * float(scale.values[sfb].max())  # NaN if a scale factor is
    if np.isfinite(bound):
        dtype = exact_type(q, bound, ea, eb)
        values = scale.values.astype(dtype)
        result = exact_sum(_scaled(av, values[sfa]), _scaled(bv, values[sfb]), c, F32, ea + eb, q, bound, _FP4_FRACTION)
        if result is not None:
            return round_f32(result)
    return _aligned_fp4(scale, av, bv, c, sfa, sfb)


@lru_cache(maxsize=4096)
def _limits(scale: ElementType, seen: bytes) -> tuple[float, int, int]:
    """The largest of some scale factors, their largest exponent and their lowest bit. seen: a byte for each code."""
    codes = np.flatnonzero(np.frombuffer(seen, np.uint8))
    tables = scale.values[codes], scale.exponent_table[codes], scale.lowest_bit_table[codes]
    return float(tables[0].max()), int(tables[1].max()), int(tables[2].min())


def _scaled(elements: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """elements [rows, K] times the scale factors [rows, nsf] of their K blocks, in the type of the latter."""
    rows, nsf = scales.shape
    return (elements.reshape(rows, nsf, -1) * scales[:, :, None]).reshape(rows, -1)


def _aligned_fp4(scale: ElementType, av, bv, c, sfa, sfb) -> np.ndarray:
    (m, k), n = av.shape, bv.shape[0]
    groups = k // _FP4_GROUP
    sfa, sfb = (np.repeat(sf, groups // sf.shape[1], axis=1).T for sf in (sfa, sfb))  # [groups, rows]
    dots = av.reshape(m, groups, -1).transpose(1, 0, 2) @ bv.reshape(n, groups, -1).transpose(1, 2, 0)  # exact
    sa, sb = scale.values[sfa], scale.values[sfb]
    terms = dots * (sa[:, :, None] * sb[:, None, :])  # float64 [groups, M, N], exact
    e_max = (scale.exponent_table[sfa][:, :, None] + scale.exponent_table[sfb][:, None, :]).max(0)
    special = np.where(np.isnan(sa).any(0)[:, None] | np.isnan(sb).any(0), np.nan, 0.0)
    return aligned_sum(terms, e_max, special, c, _FP4_FRACTION)


@np.errstate(invalid="ignore")  # signalling NaN, infinity times zero
def _mma_products(idesc, a, b, c, sfa, sfb) -> np.ndarray:
    av, bv = idesc.a_type.decode(a), idesc.b_type.decode(b)  # float64 [rows, K]
    if idesc.negate_a != idesc.negate_b:
        av = -av
    ea, eb = idesc.a_type.exponents(av), idesc.b_type.exponents(bv)
    if (scale := idesc.scale_type) is not None:
        sa, sb = (np.repeat(scale.values[codes], idesc.k // idesc.scale_vec, axis=1) for codes in (sfa, sfb))
        av, bv, ea, eb = av * sa, bv * sb, ea + scale.exponents(sa), eb + scale.exponents(sb)
    return dot_add(av, bv, ea, eb, c, idesc.d_type, _PRODUCT_FRACTION)


# ---- operands and accumulators ----


def _two_by_two(m: int, cta_group: int) -> bool:
    """Layout B: a CTA has 64 rows, the lower half of D's columns in lanes 0..63, the upper half in lanes 64..127."""
    return cta_group == 2 and m == 128


@lru_cache(maxsize=64)
def accumulator_blocks(m: int, n: int, cta_group: int) -> tuple[tuple[slice, slice, int], ...]:
    """How one CTA holds its share of D in tensor memory (ISA 9.7.16.10.5), in blocks of consecutive lanes that start
    at the first column: (rows, columns of D, first lane). Rows count from the CTA's first, rank * m / 2 in a pair."""
    everything = slice(0, n)
    if cta_group == 1 and m == 64:  # layout F: half of every warp's lanes
        return tuple((slice(r, r + 16), everything, 2 * r) for r in range(0, 64, 16))
    if _two_by_two(m, cta_group):  # layout B
        return (slice(0, 64), slice(0, n // 2), 0), (slice(0, 64), slice(n // 2, n), 64)
    return ((slice(0, 128), everything, 0),)  # layouts A, D


def _base(addr: int, m: int, cta_group: int, what: str) -> tuple[int, int]:
    """Lane and column of D's or A's address; layout F may sit in the upper half of every warp's lanes."""
    lane, column = addr >> 16, addr & 0xFFFF
    if lane not in ((0, 16) if cta_group == 1 and m == 64 else (0,)):
        raise Fault("tmem-lane-access", f"{what} at lane {lane}")
    return lane, column


def _read_accumulator(tmem: TensorMemory, d: InstructionDescriptor, cta_group: int, d_addr: int) -> np.ndarray:
    base, column = _base(d_addr, d.m, cta_group, what := "tcgen05.mma accumulator")
    out = np.empty((d.m // cta_group, d.n), np.uint32)
    if len(blocks := accumulator_blocks(d.m, d.n, cta_group)) == 4:  # layout F: all at once
        out.reshape(4, 16, d.n)[:] = tmem.read(base, 16, column, d.n, what, slice(0, 4))
        blocks = ()
    for r, c, lane in blocks:
        out[r, c] = tmem.read(base + lane, r.stop - r.start, column, c.stop - c.start, what)
    if d.d_type is S32:
        return out.view(np.int32)
    return out.astype(np.uint16).view(np.float16) if d.d_type is F16 else out.view(np.float32)


def _write_accumulator(tmem: TensorMemory, d: InstructionDescriptor, cta_group: int, d_addr: int, values: np.ndarray):
    base, column = _base(d_addr, d.m, cta_group, "tcgen05.mma accumulator")
    # f16 fills the low half of a cell (9.7.16.10.4.1); that the upper half becomes zero is inferred
    cells = values.view(np.uint16).astype(np.uint32) if d.d_type is F16 else values.view(np.uint32)
    blocks = accumulator_blocks(d.m, d.n, cta_group)
    parts = [(cells.reshape(4, 16, -1), 0)] if len(blocks) == 4 else [(cells[r, c], lane) for r, c, lane in blocks]
    for part, lane in parts:
        tmem.write(base + lane, column, part, "tcgen05.mma accumulator")


def scale_factors(
    tmem: TensorMemory, addr: int, rows: int, scale_vec: int, sf_id: int, partitions: slice = slice(0, 4)
) -> np.ndarray:
    """Scale factor codes, uint8 [rows, scale_vec], of A or B (ISA 9.7.16.10.7.2).

    Row r: lane r % 32 of each of the 32-lane `partitions`, column base + r / 32, bytes sf_id .. sf_id + scale_vec - 1.
    Where that is more than a word (K = 96, 128), the next word is `scale_columns_of_word` columns on.
    Bits 30-31 of `addr` are ignored: CUTLASS keeps the id there, and copies it to the instruction descriptor.
    """
    what, lane, column = "tcgen05.mma scale factors", addr >> 16 & 0x3FFF, addr & 0xFFFF
    if lane:
        raise Fault("tmem-lane-access", f"{what} at lane {lane}")
    if (several := -(-(sf_id + scale_vec) // WORD)) > 1:
        step = scale_columns_of_word(rows)
        parts = [scale_factors(tmem, column + i * step, rows, WORD, 0, partitions) for i in range(several)]
        return np.concatenate(parts, axis=1)[:, sf_id : sf_id + scale_vec]
    out = np.empty((-(-rows // 32), 32, 4), np.uint8)  # [row blocks, rows, bytes]
    for block, lanes in ((np.s_[: rows // 32], 32), (np.s_[rows // 32 :], rows % 32)):
        columns = len(out[block])
        if columns:
            cells = tmem.read(0, lanes, column + (block.start or 0), columns, what, partitions)
            words = np.ascontiguousarray(cells)
            if (words != words[0]).any():
                raise Fault("scale-factors-not-replicated", f"{what} at column {column}: the 32-lane partitions differ")
            out[block, :lanes] = words[0].view(np.uint8).reshape(lanes, columns, 4).transpose(1, 0, 2)
    return out.reshape(-1, 4)[:rows, sf_id : sf_id + scale_vec]


def scale_columns_of_word(rows: int) -> int:
    """Return after how many columns the next four scale factors of the same rows come: 4 for each 128 rows, as
    CUTLASS's atoms of 128 rows lie one after the other [inferred, confirmed by exact results of its kernels]."""
    return -(-rows // 128) * 4


def scale_columns(rows: int, d: InstructionDescriptor, sf_id: int) -> int:
    """Return how many columns, from their address on, have the scale factors of rows."""
    words = -(-(sf_id + d.scale_vec) // WORD)
    return (words - 1) * scale_columns_of_word(rows) + -(-rows // 32)


def _scale_factors_b(tmem: TensorMemory, addr: int, d: InstructionDescriptor, cta_group: int) -> np.ndarray:
    """Return the scale factors of B, uint8 [N, scale_vec]. With layout B, each half of the lanes has its half of N
    (CUTLASS: TmemAllocMode::ScaleFactorDuplicated2by2)."""
    if not _two_by_two(d.m, cta_group):
        return scale_factors(tmem, addr, d.n, d.scale_vec, d.sfb_id)
    if d.k > 64:
        raise Unsupported(f"K = {d.k} of packed FP4 with 64 rows a CTA: where its scale factors lie is not known")
    if d.n % 64:
        raise Unsupported(f"block-scaled 128x{d.n} for .cta_group::2: scale factor layouts are known for N % 64 = 0")
    halves = (slice(0, 2), slice(2, 4))
    return np.concatenate([scale_factors(tmem, addr, d.n // 2, d.scale_vec, d.sfb_id, half) for half in halves])


def _load_shared(smem: np.ndarray, desc: int, rows: int, k: int, d: InstructionDescriptor, of_a: bool) -> np.ndarray:
    element, mn_major = (d.a_type, d.a_mn_major) if of_a else (d.b_type, d.b_mn_major)
    bits = element.bits if d.packs(element) else max(element.bits, 8)
    codes = matrix_descriptor.load_operand(smem, desc, rows, k, mn_major, bits)
    if d.packed_fp4 or element.bits >= 8:
        return codes
    return (unpack if d.packs(element) else unpack_slots)(codes, element.bits)


def _load_a_from_tmem(tmem: TensorMemory, addr: int, d: InstructionDescriptor, cta_group: int) -> np.ndarray:
    """A, row-major in the lanes of D's layout: consecutive K in columns, first element in low bits.

    Layout B wants its 64 rows twice, in either half of the lanes (CUTLASS: TmemAllocMode::Duplicated).
    """
    if d.a_mn_major:
        raise Fault("instruction-descriptor", "transposed A in tensor memory")
    if d.packs(d.a_type) and not d.packed_fp4:
        raise Unsupported(f"K = {d.k} with {d.a_type.name} of A in tensor memory")
    if d.n % (32 if cta_group == 2 else 16 if d.m == 128 else 8):
        raise Fault("instruction-descriptor", f"N = {d.n} with A in tensor memory, M = {d.m}")
    base, column = _base(addr, d.m, cta_group, "tcgen05.mma A")
    words = [
        tmem.read(base + lane, r.stop - r.start, column, d.a_columns, "tcgen05.mma A")
        for r, _, lane in accumulator_blocks(d.m, d.n, cta_group)
    ]
    if _two_by_two(d.m, cta_group):
        if (words[0] != words[1]).any():
            raise Unsupported("A in tensor memory whose copies in lanes 0..63 and 64..127 differ")
        words.pop()
    codes = np.concatenate(words).view(np.uint8 if d.packed_fp4 else f"u{max(d.a_type.bits // 8, 1)}")
    if d.packed_fp4 or d.a_type.bits >= 8:
        return codes
    shift, mask = CONTAINER_SHIFT[d.a_type.bits], (1 << d.a_type.bits) - 1
    if (codes & ~np.uint8(mask << shift)).any():
        raise Unsupported(f"{d.a_type.name} A in tensor memory with bits set beside the element in its byte")
    return codes >> shift


class Operands(NamedTuple):
    """Values of the operands of one tcgen05.mma: d, sfa, sfb are addresses in tensor memory, b is a matrix descriptor.

    a is either, as its form says; scale factors are None of unscaled kinds.
    """

    d: int
    a: int
    b: int
    accumulate: bool
    sfa: int | None = None
    sfb: int | None = None


def accumulator_columns(d_addr: int, d: InstructionDescriptor, pair: bool) -> tuple[int, int]:
    """[first, last + 1) of the tensor memory columns that D has in one CTA."""
    lo = d_addr & 0xFFFF
    return lo, lo + (d.n // 2 if _two_by_two(d.m, 1 + pair) else d.n)


@lru_cache(maxsize=4)
def _table(scale: ElementType, negate: bool) -> np.ndarray:
    """Scale factors by their codes, float32, negated or not."""
    values = scale.values.astype(np.float32)
    return -values if negate else values


def _has_multiplied(form: MmaForm, d: InstructionDescriptor, o: Operands, ctas: list) -> bool:
    """Execute an MMA of packed FP4 as machine code and return True, or do nothing: where a bit may get lost, in other
    layouts, for faults."""
    group, n = form.cta_group, d.n
    if form.a_in_tmem or d.m != fp4_mma.ROWS * group or n % fp4_mma.WIDE:
        return False
    loops = fp4_mma.fp4_mma()
    if loops is None:
        return False
    to, sfa, sfb = o.d, o.sfa & ~(3 << 30), o.sfb & ~(3 << 30)
    ranges = (to, to + n), (sfa, sfa + fp4_mma.ROWS // 32), (sfb, sfb + -(-n // 32))
    (_, a, a_end), (_, b, b_end) = fp4_mma.rows_of(o.a, fp4_mma.ROWS), fp4_mma.rows_of(o.b, n // group)
    for smem, tmem in ctas:
        usable = tmem.usable.tobytes()
        if tmem.columns != COLUMNS or max(a_end, b_end) > smem.size:
            return False
        if any(end > COLUMNS or 0 in usable[at:end] for at, end in ranges):
            return False
    of_a = a, sfa, pointer(_table(d.scale_type, d.negate_a != d.negate_b))
    of_b = b, sfb, pointer(_table(d.scale_type, False))
    shared = [pointer(smem) for smem, _ in ctas]
    places = [(pointer(tmem.cells), pointer(tmem.written)) for _, tmem in ctas]
    b_parts = [(n // group, i * n // group, at, *of_b) for i, at in enumerate(shared)]
    with loops.lock:
        for cta, place in enumerate(places):
            seen = loops.operands(place, cta, n, (fp4_mma.ROWS, 0, shared[cta], *of_a), *b_parts)
            if seen is None or not _is_exact(d, seen[0], seen[1], loops, place, o):
                return False
        for place, a_at, b_at in zip(places, loops.a, loops.b):
            loops.multiply(*place, to, n, o.accumulate, a_at, b_at)
    return True


def _is_exact(d: InstructionDescriptor, seen_a: bytes, seen_b: bytes, loops, place, o: Operands) -> bool:
    """Whether float32 holds all sums of an MMA. Then 2 ** q is not below 2 ** (e_max - 13), as `bound` is not above
    2 ** (q + 24), and the tensor core truncates nothing. seen_a, seen_b: which scale factors there are."""
    (largest_a, ea, low_a), (largest_b, eb, low_b) = (_limits(d.scale_type, seen) for seen in (seen_a, seen_b))
    q, bound = low_a + low_b - 2, 36 * d.k * largest_a * largest_b
    if exact_type(q, bound, ea, eb) is not np.float32:
        return False
    if not o.accumulate:
        return True
    c_max = loops.accumulator(place, o.d, d.n, q)
    return c_max is not None and fits_float32(q, bound, c_max)


def execute(form: MmaForm, d: InstructionDescriptor, o: Operands, ctas: list[tuple[np.ndarray, TensorMemory]]) -> None:
    """Execute a tcgen05.mma: read the operands, write D to tensor memory.

    ctas: (shared memory, uint8, indexed by offset; tensor memory) of the CTA, or of the even and the odd one of a pair,
    which read their halves of A's and B's rows from their own shared memory at the same descriptor. With .ashift A
    moves, after it has been read, as by tcgen05.shift in each 32 lanes (see state/tensor_memory.py).
    """
    group = form.cta_group
    assert len(ctas) == group
    if d.scale_vec == 4 and d.k == fp4_mma.K and _has_multiplied(form, d, o, ctas):
        return
    if form.shift_a and d.m == 64:
        raise Fault("instruction-descriptor", ".ashift with M = 64")
    rows = d.m // group
    b = [_load_shared(smem, o.b, d.n // group, d.k, d, of_a=False) for smem, _ in ctas]
    b = b[0] if group == 1 else np.concatenate(b)
    results = []
    for smem, tmem in ctas:
        if form.a_in_tmem:
            codes = _load_a_from_tmem(tmem, o.a, d, group)
        else:
            codes = _load_shared(smem, o.a, rows, d.k, d, of_a=True)
        c = _read_accumulator(tmem, d, group, o.d) if o.accumulate else None
        sfa = sfb = None
        if d.scale_type is not None:
            sfa = scale_factors(tmem, o.sfa, rows, d.scale_vec, d.sfa_id)
            sfb = _scale_factors_b(tmem, o.sfb, d, group)
        results.append(mma(d, codes, b, c, sfa, sfb))
    for (_, tmem), result in zip(ctas, results):
        _write_accumulator(tmem, d, group, o.d, result)
        if form.shift_a:
            for lane in range(0, 128, 32):
                tmem.shift_down(o.a + (lane << 16), "tcgen05.mma.ashift")
