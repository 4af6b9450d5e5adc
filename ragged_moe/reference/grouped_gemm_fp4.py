"""The grouped GEMM with weights in e2m1 in float64, from tensors as checkpoints have them."""

import torch

from ragged_moe.reference.tensor_core import of_hopper

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # OCP Microscaling Formats v1.0, 5.3.3; the upper bit is the sign


def dequantised(b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return float64 [.., K] of uint8 [.., K/2], lower half first, times scales float64 [.., K/block]."""
    values = torch.tensor([*E2M1, *(-x for x in E2M1)], dtype=torch.float64, device=b.device)
    weights = values[torch.stack((b & 15, b >> 4), -1).flatten(-2).long()]
    return weights * scale.repeat_interleave(weights.shape[-1] // scale.shape[-1], -1)


def e8m0(scale: torch.Tensor) -> torch.Tensor:
    """float64 of uint8 e8m0: 2^(x - 127), NaN for 255."""
    return torch.where(scale == 255, torch.nan, torch.exp2(scale.double() - 127))


def reference_by_e4m3(values, scale, weights, row_scale, m_indptr) -> torch.Tensor:
    """Return what Hopper's kernel makes of tokens in e4m3, as long as no tile's K is shared, f32 [total_m, N] before it
    is rounded to bf16: the tensor core's sums of each 128 of K, added in f32, times both scales. Zeros for rows of no
    expert.

    values e4m3 [total_m, K] and scale f32 [total_m]: of quantise_tokens. weights: `dequantised` [E, N, K]. row_scale
    f32 [E, N]: what e4m3 weights are multiplied by to be these.
    """
    out = torch.zeros(values.shape[0], weights.shape[1])
    bounds, values = m_indptr.tolist(), values.float().nan_to_num(0).to(values.dtype)  # whose scale is NaN, too
    for e, (start, end) in enumerate(zip(bounds, bounds[1:])):
        exact = (weights[e] / row_scale[e].double()[:, None]).nan_to_num(0).float()
        in_e4m3, total = exact.to(values.dtype), torch.zeros(end - start, len(exact))
        assert torch.equal(in_e4m3.float(), exact)
        for k in range(0, values.shape[1], 128):
            total = total + of_hopper(values[start:end, k : k + 128], in_e4m3[:, k : k + 128])
        out[start:end] = total * scale[start:end, None] * row_scale[e]
    return out


def reference(a, weights, b_global, m_indptr) -> torch.Tensor:
    """Return out, float64 [total_M, N]; zeros for rows of no expert. weights: `dequantised` [E, N, K]."""
    out = torch.zeros(a.shape[0], weights.shape[1], dtype=torch.float64, device=a.device)
    bounds = m_indptr.tolist()
    for e, (start, end) in enumerate(zip(bounds, bounds[1:])):
        out[start:end] = a[start:end].double() @ weights[e].T * b_global[e].double()
    return out
