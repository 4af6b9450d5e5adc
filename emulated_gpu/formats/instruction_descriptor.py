"""The 32-bit instruction descriptor of tcgen05.mma: shape, element types and modifiers.

Implements PTX ISA 9.7.16.4.2 (Tables 42-44), the dense rows without .ws of Table 39 (shapes), Tables 51, 52 (transpose,
negate) and 56, 57 (scale vector sizes). [read from PTX ISA], all of it. Sparse MMA and .ws are Unsupported.
[read from CUTLASS include/cute/arch/mma_sm100_desc.hpp] bit 31 is K = 96 of packed FP4, on sm_103.
[read from CuTe DSL 4.8.1, experimental/primitives/descriptors.py and nvgpu/tcgen05/mma.py] on sm_107 bit 3 is K = 128
    of packed FP4, bit 29 K = 64 of .kind::f8f6f4, bit 31 that of .kind::mxf8f6f4. Bits 23, 24 are the type of scale
    factors: on sm_107, which K = 128 tells here, 2 is ue5m3, for .kind::mxf4nvf4 and blocks of 16 or 32.
[inferred, confirmed by exact results of CUTLASS's and FlashInfer's kernels] a row of a larger K has as many scale
    factors more: side by side, in the words that follow where one is full.
[read from CUTLASS examples/python/CuTeDSL/cute/rubin, dense_blockscaled_mxfp6_gemm_persistent.py; of four bits
    confirmed by exact results] K = 64 of .kind::mxf8f6f4 reads elements of four and six bits packed.
CUTLASS and CuTe DSL 4.5.2 accept the same N as Table 39 for operands in shared memory and are stricter for A in tensor
memory (M = 128: N % 16, pairs: N % 32); `units.mma` applies that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..chip import B200, Chip
from ..errors import Fault, Unsupported
from .element_types import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    F16,
    F32,
    S8,
    S32,
    TF32,
    U8,
    UE4M3,
    UE5M3,
    UE8M0,
    ElementType,
)  # fmt: skip

_F8F6F4 = {0: E4M3, 1: E5M2, 3: E2M3, 4: E3M2, 5: E2M1}
_OPERAND_TYPES = {
    "f16": {0: F16, 1: BF16},
    "tf32": {2: TF32},
    "f8f6f4": _F8F6F4,
    "i8": {0: U8, 1: S8},
    "mxf8f6f4": _F8F6F4,
    "mxf4": {1: E2M1},
    "mxf4nvf4": {1: E2M1},
}
_K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
_FP4 = ("mxf4", "mxf4nvf4")


@dataclass(frozen=True)
class InstructionDescriptor:
    """`m` is that of the whole instruction: both CTAs of a pair together. Unscaled kinds have scale_type None."""

    kind: str
    m: int
    n: int
    k: int
    a_type: ElementType
    b_type: ElementType
    d_type: ElementType
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool
    scale_type: ElementType | None = None
    scale_vec: int = 0  # scale factors per row and instruction: the N of .scale_vec::NX
    sfa_id: int = 0
    sfb_id: int = 0
    saturate: bool = False  # kind::i8

    @property
    def packed_fp4(self) -> bool:
        """Two E2M1 per byte, as opposed to one element per 8-bit slot."""
        return self.kind in _FP4

    def packs(self, element: ElementType) -> bool:
        """Whether elements of this type, of A or B, lie side by side, and not each in a byte."""
        return self.packed_fp4 or element.bits < 8 and self.k != _K[self.kind]

    @property
    def a_columns(self) -> int:
        """How many columns of tensor memory K of A takes: 8, if K is the usual one."""
        return 8 * self.k // _K[self.kind]


@dataclass(frozen=True)
class MmaForm:
    """Holds what the text of a tcgen05.mma fixes: its modifiers, and whether A is in shared or tensor memory.

    scale_vec: the N of its .scale_vec::NX, or None. shift_a: .ashift.
    """

    kind: str
    cta_group: int
    scale_vec: int | None = None
    a_in_tmem: bool = False
    shift_a: bool = False

    def decode(self, idesc: int, chip: Chip = B200) -> InstructionDescriptor:
        """Decode the 32-bit instruction descriptor that this instruction got as an operand."""
        return decode(idesc, self.kind, self.cta_group, self.scale_vec, chip.fp4_k if self.kind in _FP4 else chip.fp8_k)


def _require(ok: bool, idesc: int, what: str) -> None:
    if not ok:
        raise Fault("instruction-descriptor", f"{what} in instruction descriptor {idesc:#010x}")


@lru_cache(maxsize=1024)
def decode(
    idesc: int, kind: str, cta_group: int, scale_vec: int | None = None, has_k: tuple[int, ...] = ()
) -> InstructionDescriptor:
    """Decode and validate for .kind::`kind` and .cta_group::`cta_group`.

    scale_vec: the N of the instruction's .scale_vec::NX qualifier, or None when it has none. has_k: what the chip has
    of K beside the usual one, for elements of this size.
    Fault("instruction-descriptor") for what the ISA forbids, Unsupported for what it allows and this emulator does not.
    """
    if kind not in _OPERAND_TYPES:
        raise Unsupported(f"tcgen05.mma.kind::{kind}")
    if idesc >> 2 & 1:
        raise Unsupported("sparse tcgen05.mma")
    assert cta_group in (1, 2)
    types, n = _OPERAND_TYPES[kind], (idesc >> 17 & 0x3F) * 8
    # Bit 12 of 4-bit kinds has no meaning on sm_100: NVIDIA's own builder sets it (CuTe DSL, Tcgen05MxOmmaInstrDesc).
    a_code, b_code = idesc >> 7 & 7, idesc >> 10 & (3 if kind in _FP4 else 7)
    _require(a_code in types and b_code in types, idesc, f"element types {a_code}, {b_code} for kind::{kind}")
    common: dict[str, Any] = dict(
        kind=kind,
        n=n,
        k=_K[kind],
        a_type=types[a_code],
        b_type=types[b_code],
        negate_a=bool(idesc >> 13 & 1),
        negate_b=bool(idesc >> 14 & 1),
        a_mn_major=bool(idesc >> 15 & 1),
        b_mn_major=bool(idesc >> 16 & 1),
    )
    if kind in ("f16", "tf32", "f8f6f4", "i8"):
        _require(scale_vec is None, idesc, f"scale_vec::{scale_vec}X for kind::{kind}")
        if kind == "f8f6f4" and 64 in has_k and idesc >> 29 & 1:
            _require({types[a_code], types[b_code]} <= {E4M3, E5M2}, idesc, "K = 64 of less than eight bits")
            common["k"], idesc = 64, idesc & ~(1 << 29)
        _require(not idesc & 0xE080_0043, idesc, "reserved or weight-stationary bits")
        _require(kind != "i8" or not idesc & 0x6000, idesc, "negation of integers")
        _require(kind == "i8" or not idesc & 8, idesc, "integer saturation")
        common["saturate"] = bool(idesc & 8)
        result = InstructionDescriptor(m=(idesc >> 24 & 0x1F) * 16, d_type=_d_type(idesc, **common), **common)
    else:
        common["k"] = _k_of_scaled(idesc, kind, has_k)
        result = _block_scaled(idesc, kind, scale_vec, _scale_type(idesc, has_k), common)
    _check_shape(idesc, result, cta_group)
    return result


def _d_type(idesc: int, kind: str, a_type: ElementType, b_type: ElementType, **_) -> ElementType:
    code = idesc >> 4 & 3
    if kind == "i8":
        _require(code == 2, idesc, f"D type {code} for kind::i8")
        return S32
    half = code == 0 and kind != "tf32" and BF16 not in (a_type, b_type)
    _require(code == 1 or half, idesc, f"D type {code} for kind::{kind} of {a_type.name} and {b_type.name}")
    return F16 if half else F32


def _k_of_scaled(idesc: int, kind: str, has_k: tuple[int, ...]) -> int:
    """Return the K that bits 31 and 3 tell, of which a chip has the usual one and those in `has_k`."""
    if kind not in _FP4:
        k = 64 if idesc >> 31 else _K[kind]
        _require(not idesc & 8 and k in (_K[kind], *has_k), idesc, "reserved bits")
        return k
    _require(not (idesc >> 31 and idesc & 8), idesc, "K = 96 and K = 128")
    k = 96 if idesc >> 31 else 128 if idesc & 8 else 64
    _require(k != 128 or k in has_k, idesc, "reserved bits")
    if k not in (64, *has_k):
        raise Unsupported(f"K = {k} in instruction descriptor {idesc:#010x}: sm_103a and sm_107a have it")
    return k


def _scale_type(idesc: int, has_k: tuple[int, ...]) -> ElementType:
    types, code = (UE4M3, UE8M0, UE5M3)[: 3 if 128 in has_k else 2], idesc >> 23 & 3
    _require(code < len(types), idesc, "reserved bits")
    return types[code]


def _block_scaled(
    idesc: int, kind: str, scale_vec: int | None, scale_type: ElementType, common: dict
) -> InstructionDescriptor:
    _require(not idesc & 0x0600_0043, idesc, "reserved bits")
    if kind == "mxf8f6f4":
        allowed = {1} if scale_type is UE8M0 else set()
    elif kind == "mxf4":
        allowed = {2} if scale_type is UE8M0 else set()
    else:
        allowed = {4} if scale_type is UE4M3 else {2, 4}
    _require(len(allowed) > 0, idesc, f"scale type {scale_type.name} for kind::{kind}")
    if scale_vec is None:
        _require(len(allowed) == 1, idesc, f"no scale vector size given, with scale type {scale_type.name},")
        scale_vec = next(iter(allowed))
    _require(scale_vec in allowed, idesc, f"scale_vec::{scale_vec}X for {scale_type.name}, kind::{kind}")
    sfa_id, sfb_id = idesc >> 29 & 3, idesc >> 4 & 3
    ids = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}[scale_vec]
    if common["k"] == 96:  # three factors, or six, of words of four
        ids = (0, 1, 2, 3) if scale_vec == 2 else (0, 2)
    elif common["k"] == 128:
        ids = (0,)
    elif common["k"] == 64 and kind == "mxf8f6f4":
        ids = (0, 2)
    _require(sfa_id in ids and sfb_id in ids, idesc, f"scale factor ids {sfa_id}, {sfb_id} for scale_vec::{scale_vec}X")
    if kind in _FP4:
        _require(not idesc >> 15 & 3, idesc, "transpose of a 4-bit operand")
    return InstructionDescriptor(
        m=(idesc >> 27 & 3) * 128,
        d_type=F32,
        scale_type=scale_type,
        scale_vec=scale_vec * common["k"] // _K[kind],
        sfa_id=sfa_id,
        sfb_id=sfb_id,
        **common,
    )


def _check_shape(idesc: int, d: InstructionDescriptor, cta_group: int) -> None:
    if cta_group == 1:
        rows, step = ((128,) if d.scale_type else (64, 128)), 8
    else:
        rows, step = (128, 256), 16
    if d.kind == "i8":
        step = 32 if cta_group == 2 else 16 if d.n > 32 else 8
    if d.b_mn_major and d.kind in ("f8f6f4", "mxf8f6f4"):
        step *= 2  # Table 52
    shape = f"{d.m}x{d.n} for kind::{d.kind}.cta_group::{cta_group}"
    _require(d.m in rows and d.n % step == 0 and step <= d.n <= 256, idesc, f"shape {shape}")
    for element, mn_major in ((d.a_type, d.a_mn_major), (d.b_type, d.b_mn_major)):
        _require(not mn_major or element.bits >= 8, idesc, f"transpose of a {element.bits}-bit operand")  # Table 54
