"""moe's calls as operators of torch (torch.library): for torch.compile, torch.export and whoever wants a schema.

Importing this registers torch.ops.moe.experts, .experts_out, .batched_experts, .batched_experts_out, .route,
.grouped_gemm_fp8 and .grouped_gemm_fp8_out. Under torch.compile moe's functions call them by themselves. They have no
gradients: backward says so.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from moe.batched import batched_experts
from moe.grouped_gemm import grouped_gemm_fp8
from moe.problem import BF16, F32, I32
from moe.routed_experts import experts
from moe.routers import route

LIBRARY = torch.library.Library("moe", "FRAGMENT")


def operator(name: str, fake: Callable, mutates: Sequence[str] = ()) -> Callable:
    """Decorate the function that torch.ops.moe.NAME runs, whose annotations are its schema; returns the operator.

    As torch.library.custom_op, which takes the host 20 us a call more, and 190 for one that mutates. fake: what comes
    back of tensors that torch traces.
    """

    def register(function: Callable):
        LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=mutates))
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"moe::{name}", fake, lib=LIBRARY)
        made = getattr(torch.ops.moe, name).default
        LIBRARY.impl(name, functools.partial(without_gradients, made), "Autograd", with_keyset=True)
        return made

    return register


def nothing(*_, **__) -> None:
    """The fake of an operator that writes to `out`."""


def as_hidden(hidden: Tensor, *_, **__) -> Tensor:
    """The fake of what has a row for each of hidden's."""
    return torch.empty(hidden.shape, dtype=BF16, device=hidden.device)


def choice(logits: Tensor, top_k: int, *_, **__) -> tuple[Tensor, ...]:
    """The fake of a router's choice."""
    return tuple(torch.empty((logits.shape[0], top_k), dtype=dtype, device=logits.device) for dtype in (I32, F32))


def product(a: Tensor, a_scale: Tensor, b: Tensor, *_) -> Tensor:
    """The fake of a grouped GEMM's result."""
    return torch.empty((a.shape[0], b.shape[1]), dtype=BF16, device=a.device)


def without_gradients(made, keys, *args, **options):
    """Run an operator behind autograd. What it returns refuses a backward; a call that writes to `out` is refused."""
    learning = ()
    if torch.is_grad_enabled():
        learning = [x for x in (*args, *options.values()) if isinstance(x, Tensor) and x.requires_grad]
        if learning and not made._schema.returns:
            raise RuntimeError(f"{made} writes to out, but an operand requires gradients, of which there are none")
    with torch._C._AutoDispatchBelowAutograd():
        found = made.redispatch(keys & torch._C._after_autograd_keyset, *args, **options)
    if not learning:
        return found
    several = isinstance(found, tuple)
    results = found if several else (found,)
    results = NoGradients.apply(str(made), len(results), *results, *learning)
    return results if several else results[0]


class NoGradients(torch.autograd.Function):
    """Results of operands that require gradients."""

    @staticmethod
    def forward(ctx, name: str, results: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name
        ctx.mark_non_differentiable(*(x for x in tensors[:results] if not x.is_floating_point()))
        return tensors[:results]

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(f"{ctx.name} has no gradients")


@operator("experts", as_hidden)
def experts_op(
    hidden: Tensor, topk_ids: Tensor, topk_weights: Tensor, w13: Tensor, w13_scale: Tensor, w2: Tensor,
    w2_scale: Tensor, hidden_scale: Tensor | None = None, gate_first: bool = False,
    apply_router_weight_on_input: bool = False, local_expert_offset: int = 0, num_experts: int | None = None,
    limit: float | None = None, alpha: float = 1.0, shift: float = 0.0,
    w13_global: Tensor | None = None, w2_global: Tensor | None = None, w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None, w13_input_scale: Tensor | None = None, w2_input_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """moe.experts into a new tensor."""
    return experts(
        hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale, hidden_scale=hidden_scale, gate_first=gate_first,
        apply_router_weight_on_input=apply_router_weight_on_input,
        local_expert_offset=local_expert_offset, num_experts=num_experts, limit=limit, alpha=alpha, shift=shift,
        w13_global=w13_global, w2_global=w2_global, w13_bias=w13_bias, w2_bias=w2_bias,
        w13_input_scale=w13_input_scale, w2_input_scale=w2_input_scale,
    )  # fmt: skip


@operator("experts_out", nothing, mutates=("out",))
def experts_out_op(
    out: Tensor, hidden: Tensor, topk_ids: Tensor, topk_weights: Tensor, w13: Tensor, w13_scale: Tensor, w2: Tensor,
    w2_scale: Tensor, hidden_scale: Tensor | None = None, gate_first: bool = False,
    apply_router_weight_on_input: bool = False, local_expert_offset: int = 0, num_experts: int | None = None,
    limit: float | None = None, alpha: float = 1.0, shift: float = 0.0,
    w13_global: Tensor | None = None, w2_global: Tensor | None = None, w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None, w13_input_scale: Tensor | None = None, w2_input_scale: Tensor | None = None,
) -> None:  # fmt: skip
    """moe.experts into `out`."""
    experts(
        hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale, hidden_scale=hidden_scale, gate_first=gate_first,
        apply_router_weight_on_input=apply_router_weight_on_input,
        local_expert_offset=local_expert_offset, num_experts=num_experts, limit=limit, alpha=alpha, shift=shift,
        w13_global=w13_global, w2_global=w2_global, w13_bias=w13_bias, w2_bias=w2_bias,
        w13_input_scale=w13_input_scale, w2_input_scale=w2_input_scale, out=out,
    )  # fmt: skip


@operator("batched_experts", as_hidden)
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


@operator("batched_experts_out", nothing, mutates=("out",))
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


@operator("route", choice)
def route_op(
    logits: Tensor, top_k: int, scoring: str = "softmax", renormalize: bool = True, bias: Tensor | None = None,
    num_expert_group: int = 1, topk_group: int = 1, routed_scaling_factor: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """moe.route."""
    return route(
        logits, top_k, scoring=scoring, renormalize=renormalize, bias=bias, num_expert_group=num_expert_group,
        topk_group=topk_group, routed_scaling_factor=routed_scaling_factor,
    )  # fmt: skip


@operator("grouped_gemm_fp8", product)
def grouped_gemm_op(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, m_indptr: Tensor) -> Tensor:
    """moe.grouped_gemm_fp8 into a new tensor."""
    return grouped_gemm_fp8(a, a_scale, b, b_scale, m_indptr)


@operator("grouped_gemm_fp8_out", nothing, mutates=("out",))
def grouped_gemm_out_op(
    out: Tensor, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, m_indptr: Tensor
) -> None:
    """moe.grouped_gemm_fp8 into `out`."""
    grouped_gemm_fp8(a, a_scale, b, b_scale, m_indptr, out)
