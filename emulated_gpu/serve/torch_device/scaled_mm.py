"""`torch._scaled_mm` for operands that live on the emulated device: FP8 and FP4, scaled by tensor, row or block.

The forms that cuBLAS has on a B200. Block scales come in its order, tiles of 128 rows x 4 scales in 512 bytes:
https://docs.nvidia.com/cuda/cublas/#d-block-scaling-factors-layout. Sums are made in float64, not in the tensor core's
arithmetic: this is a reference to compare kernels with, and cuBLAS promises no order either.
"""

from __future__ import annotations

import numpy as np
import torch

from ...errors import Unsupported
from ...formats.element_types import E2M1

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
BLOCKS = {  # (operand, scale) -> elements along K that share a scale
    (torch.float4_e2m1fn_x2, torch.float8_e4m3fn): 16,
    (torch.float8_e4m3fn, torch.float8_e8m0fnu): 32,
    (torch.float8_e5m2, torch.float8_e8m0fnu): 32,
}


def scaled_mm(
    a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False, *, out=None
) -> torch.Tensor:
    """[M, K] row-major x [K, N] column-major -> [M, N]; FP4 packs two along K. Arguments as torch names them.

    scale_a, scale_b: float32 of one element, float32 [M, 1] and [1, N], or block scales in blocked order. out: [M, N]
    of any strides, which is written and returned; its dtype is that of the result. Raises Unsupported for what a B200
    or this function does not have.
    """
    if scale_result is not None:
        raise Unsupported("torch._scaled_mm with scale_result")
    if out is not None and (out.shape != (a.shape[0], b.shape[1]) or out_dtype not in (None, out.dtype)):
        raise Unsupported("torch._scaled_mm: out of another shape or dtype than the result")
    if a.stride(1) != 1 or b.stride(0) != 1:
        raise Unsupported("torch._scaled_mm: the first operand must be row-major, the second column-major")
    left = _scaled(a, scale_a, (-1, 1))
    right = _scaled(b.t(), scale_b, (1, -1))
    result = left @ right.t()
    if bias is not None:
        result += bias.double()
    return result.to(out_dtype or a.dtype) if out is None else out.copy_(result)


def _scaled(x: torch.Tensor, scale: torch.Tensor, row_shape: tuple[int, int]) -> torch.Tensor:
    """[rows, K] of any of the formats -> float64 [rows, K], times the scales."""
    values = _decode(x)
    rows, k = values.shape
    if scale.dtype == torch.float32 and x.dtype in FP8:
        if scale.numel() == 1:
            return values * scale.double().reshape(1, 1)
        if scale.numel() == rows and scale.shape == torch.empty(rows).view(row_shape).shape:
            return values * scale.double().reshape(rows, 1)
        raise Unsupported(f"torch._scaled_mm: float32 scales of shape {tuple(scale.shape)} for {rows} rows")
    block = BLOCKS.get((x.dtype, scale.dtype))
    if block is None:
        raise Unsupported(f"torch._scaled_mm: {x.dtype} scaled by {scale.dtype}")
    columns = -(-k // block)
    return values * unblocked(scale, rows, columns).double().repeat_interleave(block, 1)[:, :k]


def _decode(x: torch.Tensor) -> torch.Tensor:
    if x.dtype in FP8:
        return x.double()
    if x.dtype != torch.float4_e2m1fn_x2:
        raise Unsupported(f"torch._scaled_mm of {x.dtype}")
    table = torch.from_numpy(E2M1.values.astype(np.float64))
    packed = x.contiguous().view(torch.uint8)
    return table[torch.stack((packed & 15, packed >> 4), -1).long()].flatten(1)  # low nibble first


def unblocked(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales in blocked order, any shape -> [rows, columns]. Row r, column c sit in byte r%32*16 + r//32%4*4 + c%4."""
    tiles_r, tiles_c = -(-rows // 128), -(-columns // 4)
    if scale.numel() != tiles_r * tiles_c * 512 or not scale.is_contiguous():
        raise Unsupported(f"torch._scaled_mm: {scale.numel()} scales, not {tiles_r * tiles_c * 512} contiguous ones")
    tiles = scale.view(torch.uint8).view(tiles_r, tiles_c, 32, 4, 4)
    plain = tiles.permute(0, 3, 2, 1, 4).reshape(tiles_r * 128, tiles_c * 4)  # [tile, r//32, r%32, tile, c%4]
    return plain[:rows, :columns].contiguous().view(scale.dtype)
