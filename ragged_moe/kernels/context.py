"""What the roles of a GEMM kernel know: addresses in shared memory, the problem's operands, the warp's own place."""

from typing import NamedTuple

from cutlass import Int32, Int64


class Cta(NamedTuple):
    """Addresses in shared memory, and the CTA's place in its cluster."""

    rank: Int32
    cluster: Int32
    split_k: Int32  # f32 [warp / 2, 4 sums, lane, 4]: sums that come from the other CTA
    ring: Int32  # [stages, weights | tokens]
    scales: Int32  # [scale_stages, scale_bytes]
    scratch: Int32  # [warp, scratch_bytes]
    full: Int32  # mbarriers [stages]
    empty: Int32
    mma: Int32  # mma_barrier_bytes: accumulators in tensor memory, a tail's tiles, and split-K
    tiles: Int32  # [stages, WORK_TILE_BYTES]: the work tile, where a stage is the first of one
    # Of the ring of scales: one of its own, or, if scales come and go with the operands, those above
    scales_full: Int32
    scales_empty: Int32
    scale_tiles: Int32


class Operands(NamedTuple):
    """Addresses and sizes of the grouped GEMM's operands that do not come by TMA."""

    a_scale: Int64
    b_scale: Int64
    out: Int64
    partials: Int64  # f32 [CTA, partial_bytes / 4]: stream-K's partial sums; if polled, EMPTY where there are none
    flags: Int64  # int32 [CTA, Config.groups]: 1 while there are some, if not polled
    total_m: Int32
    n: Int32


class Fp4Operands(NamedTuple):
    """Addresses and sizes of the operands of the GEMMs with weights in e2m1 that do not come by TMA."""

    b_global: Int64
    out: Int64
    partials: Int64  # as of Operands
    flags: Int64
    total_m: Int32
    n: Int32  # if gated, of up and gate together
    globals: Int32  # of an expert in b_global: 1, or 2 if gated, of up and of gate
    bias: Int64  # f32 [E, n], if the config has it


class RowScaledOperands(NamedTuple):
    """Addresses and sizes of the operands of the GEMMs of e2m1 weights by e4m3 tokens that do not come by TMA."""

    row_scale: Int64  # f32 [E, n]
    a_scale: Int64  # f32 [total_m]
    out: Int64
    partials: Int64  # as of Operands
    flags: Int64
    total_m: Int32
    n: Int32  # if gated, of up and gate together
    bias: Int64  # f32 [E, n], if the config has it


class BlockScaledOperands(NamedTuple):
    """Addresses and sizes of the operands of the GEMMs with block scales that do not come by TMA."""

    a: Int64  # records [total_m, record_bytes(K)]; if gated of the tokens, [T, record_bytes(K)]
    rows: Int64  # in the layer int32 [total_m]: the token of each row
    a_global: Int64  # f32 [1], if the format has a scale of all
    b_global: Int64
    out: Int64  # bf16 [total_m, n]; if gated records [total_m, record_bytes(n / 2)]
    out_global: Int64  # if gated f32 [1], of out, as a_global
    partials: Int64  # as of Operands
    flags: Int64
    total_m: Int32
    n: Int32  # if gated, of up and gate together
    k: Int32
    globals: Int32  # as of Fp4Operands
    bias: Int64
    places: Int64  # with slots int32 [T, slots]: the rows of each token, and -1
    weights: Int64  # with slots f32 [T, slots]: of these rows
    output: Int64  # with slots bf16 [T, n]: the layer's


def global_scale_address(operands: Fp4Operands | BlockScaledOperands, expert: Int32, half: int) -> Int64:
    """Return where b_global has the scale of this half of an expert's weight rows."""
    index = expert * operands.globals + (operands.globals - 1) * half
    return operands.b_global + Int64(index) * 4


class GatedOperands(NamedTuple):
    """Addresses and sizes of the operands of the layer's GEMM1."""

    a: Int64
    a_scale: Int64
    b_scale: Int64
    rows: Int64
    c: Int64
    c_scale: Int64
    partials: Int64
    flags: Int64
    total_m: Int32  # rows that there is room for
    n: Int32  # of up and gate together
    tokens: Int32


class TensorMaps(NamedTuple):
    """Addresses of tensormaps among the kernel parameters."""

    tokens: Int64  # [Config.boxes]: 128 bytes each
    weights: Int64


class Warp(NamedTuple):
    """A warp's place in the kernel, and what it works on."""

    cta: Cta
    operands: tuple
    number: Int32  # of the warp in the CTA
    lane: Int32
    thread: Int32  # of the CTA
