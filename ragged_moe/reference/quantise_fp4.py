"""`quantised` rounds tokens to NVFP4 as the kernels do (ragged_moe/kernels/quantise_fp4.py), bit by bit, on any
device."""

import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # as of ragged_moe.reference.grouped_gemm_fp4
BETWEEN = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # of two neighbours the even code gets the middle


def codes(x: torch.Tensor) -> torch.Tensor:
    """Return f32 as e2m1, uint8: to the nearest, of two the even code, saturated; NaN is 6."""
    size, middle = x.abs(), torch.tensor(BETWEEN, device=x.device)
    up = torch.bucketize(size, middle, right=False)  # those below: the lower code in the middle
    odd = (up % 2 == 1) & (size == middle[up.clamp(max=len(BETWEEN) - 1)])
    code = torch.where(x.isnan(), len(BETWEEN), up + odd)
    return (code + 8 * (x.signbit() & ~x.isnan())).to(torch.uint8)


def quantised(x: torch.Tensor, of_all: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (e2m1 uint8 [T, K/2], scales e4m3 [T, K/16]) of x [T, K] of 16 or 32 bits. of_all: f32 [1].

    A block of 16 columns has scale = the largest absolute value / (6 * of_all), rounded and at most 448, and values
    x * (1 / (scale * of_all)), each operation in f32. It stands for value * scale * of_all.
    """
    x = x.float().unflatten(-1, (-1, 16))
    of_all = of_all.float().to(x.device).reshape(())
    most = torch.where(x.isnan().any(-1), torch.nan, x.abs().amax(-1))
    scale = (most / (of_all * 6.0)).clamp(max=448.0).to(torch.float8_e4m3fn)
    factor = torch.where(scale.float() == 0, 0.0, 1.0 / (scale.float() * of_all))
    code = codes(x * factor[..., None]).flatten(-2)
    return code[..., ::2] | code[..., 1::2] << 4, scale


def fake_quantised(x: torch.Tensor, of_all: torch.Tensor) -> torch.Tensor:
    """Return float64 of what `quantised` x stands for, without of_all."""
    from ragged_moe.reference.grouped_gemm_fp4 import dequantised

    code, scale = quantised(x, of_all)
    return dequantised(code, scale.double())
