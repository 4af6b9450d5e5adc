"""The result that `grouped_gemm_fp8` must have, with exact dot products."""

import torch

BLOCK_K = 128


def reference(a, a_scale, b, b_scale, m_indptr) -> torch.Tensor:
    """[total_M, N] f32: what is rounded to bf16 at the end. Rows of no expert are 0. On any device.

    A dot product of 128 e4m3 products is an integer number of 2^-18 below 2^25: exact in float64. It is rounded to f32,
    multiplied by the f32 product of the scales and added to the sum in one rounding: in float64 the product is exact.
    """
    rows, (_, n, k) = a.shape[0], b.shape
    out = torch.zeros(rows, n, dtype=torch.float32, device=a.device)
    bounds = m_indptr.tolist()
    for e, (start, end) in enumerate(zip(bounds, bounds[1:])):
        for i in range(k // BLOCK_K if end > start else 0):
            block = slice(i * BLOCK_K, (i + 1) * BLOCK_K)
            dot = (a[start:end, block].double() @ b[e, :, block].double().T).float()
            scale = a_scale[i, start:end, None] * b_scale[e, :, i].repeat_interleave(128)[None, :]
            out[start:end] = (dot.double() * scale.double() + out[start:end].double()).float()
    return out


def magnitudes(a, a_scale, b, b_scale, m_indptr) -> torch.Tensor:
    """`reference` of the absolute values of all operands: what the tensor core's own rounding is in proportion to."""
    absolute = [x.abs() if x.dtype == torch.float32 else x.float().abs().to(x.dtype) for x in (a, a_scale, b, b_scale)]
    return reference(*absolute, m_indptr)
