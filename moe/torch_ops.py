"""moe's calls as operators of torch (torch.library): for torch.compile, torch.export and whoever wants a schema.

Importing this registers torch.ops.moe.experts, .experts_out, .grouped_gemm_fp8 and .grouped_gemm_fp8_out. Under
torch.compile moe.experts and moe.grouped_gemm_fp8 call them by themselves. They have no gradients: backward says so.
"""

import torch
from torch import Tensor

from moe.grouped_gemm import grouped_gemm_fp8
from moe.problem import BF16
from moe.routed_experts import experts


@torch.library.custom_op("moe::experts", mutates_args=())
def experts_op(
    hidden: Tensor, topk_ids: Tensor, topk_weights: Tensor, w13: Tensor, w13_scale: Tensor, w2: Tensor,
    w2_scale: Tensor, hidden_scale: Tensor | None = None, gate_first: bool = False, local_expert_offset: int = 0,
    num_experts: int | None = None, limit: float | None = None, alpha: float = 1.0, shift: float = 0.0,
    w13_global: Tensor | None = None, w2_global: Tensor | None = None, w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """moe.experts into a new tensor."""
    return experts(
        hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale, hidden_scale=hidden_scale, gate_first=gate_first,
        local_expert_offset=local_expert_offset, num_experts=num_experts, limit=limit, alpha=alpha, shift=shift,
        w13_global=w13_global, w2_global=w2_global, w13_bias=w13_bias, w2_bias=w2_bias,
    )  # fmt: skip


@experts_op.register_fake
def _(hidden, *_, **__):
    return torch.empty(hidden.shape, dtype=BF16, device=hidden.device)


@torch.library.custom_op("moe::experts_out", mutates_args=("out",))
def experts_out_op(
    out: Tensor, hidden: Tensor, topk_ids: Tensor, topk_weights: Tensor, w13: Tensor, w13_scale: Tensor, w2: Tensor,
    w2_scale: Tensor, hidden_scale: Tensor | None = None, gate_first: bool = False, local_expert_offset: int = 0,
    num_experts: int | None = None, limit: float | None = None, alpha: float = 1.0, shift: float = 0.0,
    w13_global: Tensor | None = None, w2_global: Tensor | None = None, w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
) -> None:  # fmt: skip
    """moe.experts into `out`."""
    experts(
        hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale, hidden_scale=hidden_scale, gate_first=gate_first,
        local_expert_offset=local_expert_offset, num_experts=num_experts, limit=limit, alpha=alpha, shift=shift,
        w13_global=w13_global, w2_global=w2_global, w13_bias=w13_bias, w2_bias=w2_bias, out=out,
    )  # fmt: skip


@experts_out_op.register_fake
def _(*_, **__):
    return None


@torch.library.custom_op("moe::grouped_gemm_fp8", mutates_args=())
def grouped_gemm_op(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, m_indptr: Tensor) -> Tensor:
    """moe.grouped_gemm_fp8 into a new tensor."""
    return grouped_gemm_fp8(a, a_scale, b, b_scale, m_indptr)


@grouped_gemm_op.register_fake
def _(a, a_scale, b, b_scale, m_indptr):
    return torch.empty((a.shape[0], b.shape[1]), dtype=BF16, device=a.device)


@torch.library.custom_op("moe::grouped_gemm_fp8_out", mutates_args=("out",))
def grouped_gemm_out_op(
    out: Tensor, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, m_indptr: Tensor
) -> None:
    """moe.grouped_gemm_fp8 into `out`."""
    grouped_gemm_fp8(a, a_scale, b, b_scale, m_indptr, out)


@grouped_gemm_out_op.register_fake
def _(*_, **__):
    return None
