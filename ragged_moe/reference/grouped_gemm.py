"""`reference` computes the result that `grouped_gemm_fp8` must have, with exact dot products unless told otherwise."""

from collections.abc import Callable

import torch

from ragged_moe.reference.tensor_core import exact

BLOCK_K = 128


def reference(a, a_scale, b, b_scale, m_indptr, dot: Callable = exact) -> torch.Tensor:
    """Return what is rounded to bf16 at the end, f32 [total_M, N]; rows of no expert are 0. On any device.

    a [total_M, K] and b [E, N, K] e4m3, a_scale [K/128, total_M] and b_scale [E, N/128, K/128] f32, m_indptr int32
    [E + 1]. A dot product of 128 e4m3 products is an integer number of 2^-18 below 2^25: exact in float64. It is
    rounded to f32, multiplied by the f32 product of the scales and added to the sum in one rounding: in float64 the
    product is exact. dot: makes the dot products f32 [m, n] of a [m, 128] and b [n, 128].
    """
    rows, (_, n, k) = a.shape[0], b.shape
    out = torch.zeros(rows, n, dtype=torch.float32, device=a.device)
    bounds = m_indptr.tolist()
    for e, (start, end) in enumerate(zip(bounds, bounds[1:])):
        for i in range(k // BLOCK_K if end > start else 0):
            block = slice(i * BLOCK_K, (i + 1) * BLOCK_K)
            product = dot(a[start:end, block], b[e, :, block])
            scale = a_scale[i, start:end, None] * b_scale[e, :, i].repeat_interleave(128)[None, :]
            out[start:end] = (product.double() * scale.double() + out[start:end].double()).float()
    return out


def magnitudes(a, a_scale, b, b_scale, m_indptr) -> torch.Tensor:
    """Return `reference` of all operands' absolute values, to which the tensor core's rounding is in proportion."""
    absolute = [x.abs() if x.dtype == torch.float32 else x.float().abs().to(x.dtype) for x in (a, a_scale, b, b_scale)]
    return reference(*absolute, m_indptr)
