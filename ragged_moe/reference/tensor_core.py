"""What tensor cores make of the e4m3 products of a k-block: `exact`, and `of_hopper`, which keeps fewer bits."""

import torch

INSTRUCTION_K = 32
FRACTION = 13  # bits that a wgmma of e4m3 keeps of a product, below the largest exponent, and of a sum


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the sums f32 [m, n] of a [m, 128] times b [n, 128], e4m3, rounded once; as Blackwell's are."""
    return (a.double() @ b.double().T).float()


def of_hopper(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the sums f32 [m, n] of a [m, 128] times b [n, 128], finite e4m3, as four wgmma leave them on Hopper.

    An instruction cuts its 32 products and the sum so far FRACTION bits below the largest exponent among them, adds
    them, and cuts the sum FRACTION bits behind its leading one. Source: emulated_gpu/units/wgmma_arithmetic.py, which
    has an H200's bits.
    """
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for k in range(0, a.shape[1], INSTRUCTION_K):
        x, y = (t[:, k : k + INSTRUCTION_K].double() for t in (a, b))
        terms = torch.cat((x[:, None] * y, total[..., None]), -1)
        exponents = torch.cat((exponent(x, -6)[:, None] + exponent(y, -6), exponent(total, -126)[..., None]), -1)
        unit = torch.exp2(torch.where(terms == 0, -1000.0, exponents).amax(-1) - FRACTION)
        total = (terms / unit[..., None]).trunc().sum(-1) * unit
        unit = torch.exp2(exponent(total, -126) - FRACTION)
        total = (total / unit).trunc() * unit
    return total.float()


def exponent(x: torch.Tensor, least: int) -> torch.Tensor:
    """Return the exponents, float64, of x's leading ones; `least` of smaller numbers, as of subnormal ones."""
    return torch.where(x == 0, least, torch.frexp(x).exponent - 1).clamp(min=least).double()
