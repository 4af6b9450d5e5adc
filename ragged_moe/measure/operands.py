"""Operands that contestants share, drawn on the GPU: tokens, and weights in each format."""

import dataclasses

import torch

from ragged_moe.layers.pack_weights import pack_mxfp4, pack_nvfp4
from ragged_moe.measure import marlin
from ragged_moe.measure.rows import Row
from ragged_moe.runtime.sizes import BF16, E4M3, I32


@dataclasses.dataclass
class Inputs:
    """One set of operands of grouped_gemm_fp8."""

    a: torch.Tensor
    a_scale: torch.Tensor
    b: torch.Tensor
    b_scale: torch.Tensor
    m_indptr: torch.Tensor
    out: torch.Tensor

    @classmethod
    def draw(cls, row: Row, seed: int, weights: tuple[torch.Tensor, torch.Tensor]) -> "Inputs":
        """Draw tokens of magnitude 1 and scales of any sign, as the definition of the DeepSeek layer has them."""
        g = torch.Generator("cuda").manual_seed(seed)
        a = torch.randn(row.total, row.k, device="cuda", generator=g).clamp_(-2, 2).to(E4M3)
        a_scale = torch.randn(row.k // 128, row.total, device="cuda", generator=g)
        m_indptr = torch.tensor(row.offsets, dtype=I32, device="cuda")
        return cls(a, a_scale, *weights, m_indptr, torch.empty(row.total, row.n, dtype=BF16, device="cuda"))


def draw_fp8(experts: int, n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw e4m3 weights [experts, n, k] of magnitude 1 and their scales, of any sign."""
    g = torch.Generator("cuda").manual_seed(seed)
    b = torch.empty(experts, n, k, dtype=E4M3, device="cuda")
    for of_expert in b:
        of_expert.copy_(torch.randn(n, k, device="cuda", generator=g).clamp_(-2, 2))
    return b, torch.randn(experts, n // 128, k // 128, device="cuda", generator=g)


def checkpoint_nvfp4(experts: int, n: int, k: int, seed: int, b_global: float = 0.5) -> tuple[torch.Tensor, ...]:
    """Draw NVFP4 weights [experts, n, k] as checkpoints have them: numbers, scales, and what multiplies an expert's."""
    g = torch.Generator("cuda").manual_seed(seed)
    b = torch.randint(0, 256, (experts, n, k // 2), generator=g, dtype=torch.uint8, device="cuda")
    scale = torch.rand(experts, n, k // 16, generator=g, device="cuda").to(E4M3)
    return b, scale, torch.full((experts,), b_global, device="cuda")


def draw_nvfp4(
    experts: int, n: int, k: int, seed: int, b_global: float = 0.5
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Draw NVFP4 weights [experts, n, k]; return them packed for the kernels, and in Marlin's form."""
    b, scale, of_experts = checkpoint_nvfp4(experts, n, k, seed, b_global)
    of_marlin = marlin.weights(b, scale, of_experts)
    return pack_nvfp4(b, scale, weight_scale_2=of_experts), of_marlin  # which packs in b's memory


def draw_mxfp4(experts: int, n: int, k: int, seed: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Draw MXFP4 weights [experts, n, k]; return them packed for W4A16 and for W4A8.

    The scales of a row span 2^5; W4A8 takes up to 2^11.
    """
    g = torch.Generator("cuda").manual_seed(seed)
    b = torch.randint(0, 256, (experts, n, k // 2), generator=g, dtype=torch.uint8, device="cuda")
    scale = torch.randint(115, 121, (experts, n, k // 32), generator=g, dtype=torch.uint8, device="cuda")
    return pack_mxfp4(b.clone(), scale), pack_mxfp4(b, scale, activation="fp8")
