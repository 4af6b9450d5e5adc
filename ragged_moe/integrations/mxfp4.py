"""Weights in bf16 that a checkpoint in MXFP4 was dequantised to, as MXFP4 again, without loss."""

import torch

from ragged_moe.runtime.sizes import F32

GROUP = 32  # of K, which share a scale
LARGEST = 2  # exponent of 4 and 6, e2m1's largest
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # OCP Microscaling Formats v1.0, 5.3.3; the upper bit is the sign


def mxfp4_of(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights [N, K], bf16, f16 or f32, as codes uint8 [N, K/2], lower k in the lower half, and scales e8m0
    uint8 [N, K/32], as ragged_moe.pack_mxfp4 takes them.

    ValueError unless each 32 numbers of K are e2m1 times one power of two. Scales may be smaller than the checkpoint's,
    where no number needs its largest exponent: the numbers are the same.
    """
    groups = weights.to(F32).unflatten(1, (-1, GROUP))
    most = groups.abs().amax(2)
    exponent = (torch.frexp(most).exponent - 1 - LARGEST).clamp(-127, 127)
    exponent = torch.where(most > 0, exponent, 0)
    scaled = torch.ldexp(groups.double(), -exponent[..., None])
    values = torch.tensor(E2M1, dtype=torch.float64, device=weights.device)
    code = torch.bucketize(scaled.abs().contiguous(), values).clamp(max=len(E2M1) - 1)
    wrong = (values[code] != scaled.abs()).flatten(1)
    if wrong.any():
        n, k = wrong.nonzero()[0].tolist()
        k = k // GROUP * GROUP
        raise ValueError(f"[{n}, {k}:{k + GROUP}] are not e2m1 numbers times one power of two")
    code = (code | torch.where(scaled < 0, 8, 0)).flatten(1).to(torch.uint8)
    return code[:, 0::2] | code[:, 1::2] << 4, (exponent + 127).to(torch.uint8)
