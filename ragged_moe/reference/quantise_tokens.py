"""`quantised` rounds tokens to e4m3 with a scale each, as ragged_moe/kernels/quantise_tokens.py does, bit by bit."""

import torch

from ragged_moe.runtime.sizes import E4M3, F32, LARGEST


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (e4m3 [T, K], scales f32 [T]) of x [T, K] of 16 bits.

    A token's largest magnitude becomes 448: scale = largest * (1/448), value = x * (448 / largest), each rounded to
    f32, in that order. A token of zeros has scale 0; one with a NaN or an infinity has NaN, and so its results do.
    """
    x = x.float()
    most = x.abs().amax(1)
    inverse = torch.where(most > 0, torch.full_like(most, LARGEST) / most, 0)
    values = (x * inverse[:, None]).clamp(-LARGEST, LARGEST).to(E4M3)
    scale = most * torch.tensor(1 / LARGEST, dtype=F32, device=x.device)
    return values, torch.where(most.isfinite(), scale, torch.nan)


def fake_quantised(x: torch.Tensor) -> torch.Tensor:
    """Return float64 of what `quantised` x stands for."""
    values, scale = quantised(x)
    return values.double() * scale.double()[:, None]
