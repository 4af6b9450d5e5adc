"""moe's calls as operators of torch (torch.library): for torch.compile, torch.export and whoever wants a schema.

Importing this registers torch.ops.moe.experts, .experts_out, .batched_experts, .batched_experts_out, .route,
.grouped_gemm_fp8 and .grouped_gemm_fp8_out. Under torch.compile moe's functions call them by themselves. They have no
gradients: backward says so.
"""

import torch
from torch import Tensor

from moe.batched import batched_experts
from moe.grouped_gemm import grouped_gemm_fp8
from moe.problem import BF16, F32, I32
from moe.routed_experts import experts
from moe.routers import route


@torch.library.custom_op("moe::experts", mutates_args=())
def experts_op(
    hidden: Tensor, topk_ids: Tensor, topk_weights: Tensor, w13: Tensor, w13_scale: Tensor, w2: Tensor,
    w2_scale: Tensor, hidden_scale: Tensor | None = None, gate_first: bool = False,
    apply_router_weight_on_input: bool = False, local_expert_offset: int = 0, num_experts: int | None = None,
    limit: float | None = None, alpha: float = 1.0, shift: float = 0.0,
    w13_global: Tensor | None = None, w2_global: Tensor | None = None, w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """moe.experts into a new tensor."""
    return experts(
        hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale, hidden_scale=hidden_scale, gate_first=gate_first,
        apply_router_weight_on_input=apply_router_weight_on_input,
        local_expert_offset=local_expert_offset, num_experts=num_experts, limit=limit, alpha=alpha, shift=shift,
        w13_global=w13_global, w2_global=w2_global, w13_bias=w13_bias, w2_bias=w2_bias,
    )  # fmt: skip


@experts_op.register_fake
def _(hidden, *_, **__):
    return torch.empty(hidden.shape, dtype=BF16, device=hidden.device)


@torch.library.custom_op("moe::experts_out", mutates_args=("out",))
def experts_out_op(
    out: Tensor, hidden: Tensor, topk_ids: Tensor, topk_weights: Tensor, w13: Tensor, w13_scale: Tensor, w2: Tensor,
    w2_scale: Tensor, hidden_scale: Tensor | None = None, gate_first: bool = False,
    apply_router_weight_on_input: bool = False, local_expert_offset: int = 0, num_experts: int | None = None,
    limit: float | None = None, alpha: float = 1.0, shift: float = 0.0,
    w13_global: Tensor | None = None, w2_global: Tensor | None = None, w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
) -> None:  # fmt: skip
    """moe.experts into `out`."""
    experts(
        hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale, hidden_scale=hidden_scale, gate_first=gate_first,
        apply_router_weight_on_input=apply_router_weight_on_input,
        local_expert_offset=local_expert_offset, num_experts=num_experts, limit=limit, alpha=alpha, shift=shift,
        w13_global=w13_global, w2_global=w2_global, w13_bias=w13_bias, w2_bias=w2_bias, out=out,
    )  # fmt: skip


@experts_out_op.register_fake
def _(*_, **__):
    return None


@torch.library.custom_op("moe::batched_experts", mutates_args=())
def batched_experts_op(
    hidden: Tensor, counts: Tensor, w13: Tensor, w13_scale: Tensor, w2: Tensor, w2_scale: Tensor,
    hidden_scale: Tensor | None = None, gate_first: bool = False, limit: float | None = None, alpha: float = 1.0,
    shift: float = 0.0, expected_m: int | None = None,
) -> Tensor:  # fmt: skip
    """moe.batched_experts into a new tensor."""
    return batched_experts(
        hidden, counts, w13, w13_scale, w2, w2_scale, hidden_scale=hidden_scale, gate_first=gate_first, limit=limit,
        alpha=alpha, shift=shift, expected_m=expected_m,
    )  # fmt: skip


@batched_experts_op.register_fake
def _(hidden, *_, **__):
    return torch.empty(hidden.shape, dtype=BF16, device=hidden.device)


@torch.library.custom_op("moe::batched_experts_out", mutates_args=("out",))
def batched_experts_out_op(
    out: Tensor, hidden: Tensor, counts: Tensor, w13: Tensor, w13_scale: Tensor, w2: Tensor, w2_scale: Tensor,
    hidden_scale: Tensor | None = None, gate_first: bool = False, limit: float | None = None, alpha: float = 1.0,
    shift: float = 0.0, expected_m: int | None = None,
) -> None:  # fmt: skip
    """moe.batched_experts into `out`."""
    batched_experts(
        hidden, counts, w13, w13_scale, w2, w2_scale, hidden_scale=hidden_scale, gate_first=gate_first, limit=limit,
        alpha=alpha, shift=shift, expected_m=expected_m, out=out,
    )  # fmt: skip


@batched_experts_out_op.register_fake
def _(*_, **__):
    return None


@torch.library.custom_op("moe::route", mutates_args=())
def route_op(
    logits: Tensor, top_k: int, scoring: str = "softmax", renormalize: bool = True, bias: Tensor | None = None,
    num_expert_group: int = 1, topk_group: int = 1, routed_scaling_factor: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """moe.route."""
    return route(
        logits, top_k, scoring=scoring, renormalize=renormalize, bias=bias, num_expert_group=num_expert_group,
        topk_group=topk_group, routed_scaling_factor=routed_scaling_factor,
    )  # fmt: skip


@route_op.register_fake
def _(logits, top_k, *_, **__):
    return tuple(torch.empty((logits.shape[0], top_k), dtype=dtype, device=logits.device) for dtype in (I32, F32))


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
