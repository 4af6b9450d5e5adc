"""`quantised` rounds tokens to MXFP8 as the kernels do (ragged_moe/kernels/block_scaled.py), bit by bit, on any device.

The scale is rounded up to a power of two, as TensorRT-LLM's and FlashInfer's mxfp8_quantize do, not down as OCP's MX
v1.0 (6.3) allows: so nothing saturates.
"""

import torch

from ragged_moe.runtime.sizes import E4M3

BLOCK = 32
LARGEST = 448.0  # of e4m3


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (e4m3 [T, K], scales e8m0, uint8 [T, K/32]) of x [T, K] of 16 or 32 bits.

    A block of 32 columns has the least scale 2^(byte - 127) with which no finite value is above 448, and values
    x / scale, rounded to the nearest, of two to the even one. NaN stays NaN, and infinity is 448 * 2^120.
    """
    x = x.double().unflatten(-1, (-1, BLOCK))
    most = torch.where(x.isnan(), torch.inf, x.abs()).amax(-1)
    mantissa, exponent = torch.frexp(most / LARGEST)  # most / 448 = mantissa * 2^exponent: above 0.5 it is rounded up
    byte = (127 + exponent - (mantissa == 0.5).int()).clamp(min=0)
    byte = torch.where(most == 0, 0, torch.where(most.isinf(), 247, byte))
    scaled = (x * torch.exp2(127 - byte.double())[..., None]).clamp(-LARGEST, LARGEST)
    return scaled.float().to(E4M3).flatten(-2), byte.to(torch.uint8)


def fake_quantised(x: torch.Tensor) -> torch.Tensor:
    """Return float64 of what `quantised` x stands for."""
    values, byte = quantised(x)
    return values.double() * torch.exp2(byte.double() - 127).repeat_interleave(BLOCK, -1)
