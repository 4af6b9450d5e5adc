"""FlashInfer's MoE functions by ragged_moe's, as its tests/moe call them.

Functions that bring weights into an order of a kernel's own are the identity: ragged_moe has orders of its own.
"""

import importlib

import torch

import ragged_moe
from ragged_moe.checks.peers.calls import Given, experts, judged, require, route
from ragged_moe.runtime.sizes import E4M3

PACKAGES = ("flashinfer",)
TESTS = ("tests/moe",)
OWN = ("flashinfer.tllm_enums",)
FIXTURES = None


def served() -> dict[str, object]:
    """Everything that tests find under these names, wherever in the package they look for it."""
    return {
        "flashinfer_api": lambda function=None, **_: function if callable(function) else lambda x: x,
        "get_compute_capability": lambda device=None: torch.cuda.get_device_capability(),
        "is_sm90a_supported": lambda device=None: torch.cuda.get_device_capability() == (9, 0),
        "is_sm100a_supported": lambda device=None: torch.cuda.get_device_capability()[0] == 10,
        "is_sm12x_supported": lambda device=None: False, "is_cute_dsl_available": lambda: True,
        "autotune": Unturned, "WeightLayout": WeightLayout, "is_gated_activation": is_gated,
        "shuffle_matrix_a": lambda x, _: x,
        "interleave_moe_weights_for_sm90_mixed_gemm": lambda x, *_: x,
        "interleave_moe_scales_for_sm90_mixed_gemm": lambda x, *_: x,
        "cutlass_fused_moe": cutlass_fused_moe, "trtllm_fp8_block_scale_moe": trtllm_fp8_block_scale_moe,
        "mono_moe": mono_moe, "has_monomoe": lambda: True,
        "alloc_scratchpad": lambda device: torch.empty(0, dtype=torch.uint8, device=device),
    }  # fmt: skip


def own(names: dict[str, object]) -> None:
    """Add to the names those of the package's enumerations, which it has in several places."""
    enums = vars(importlib.import_module("flashinfer.tllm_enums"))
    names.update({name: x for name, x in enums.items() if not name.startswith("_") and name not in names})


class Unturned:
    """`autotune`: there is nothing to tune."""

    def __init__(self, *_, **__): ...

    def __enter__(self): ...

    def __exit__(self, *_): ...


class WeightLayout:
    """Orders of weights in memory; all but the first are their kernels' own."""

    MajorK, MajorMn, BlockMajorK = 0, 1, 2


def is_gated(activation) -> bool:
    return activation.is_gated


def number(x, name: str) -> float | None:
    """What a tensor has for each expert, if it is the same for all."""
    if x is None:
        return None
    values = set(x.flatten().tolist())
    require(len(values) == 1, f"{name} that differ from expert to expert")
    return values.pop()


CUTLASS = (
    "input ids weights w13 w2 dtype scales w13_bias w2_bias input_sf swiglu_alpha swiglu_beta swiglu_limit tp_size"
    " tp_rank ep_size ep_rank"
)
REFUSED = {  # options of cutlass_fused_moe, and what they ask for
    "min_latency_mode": "its minimum-latency form", "workspace_buffer": "a buffer of its size",
    "input_sf": "tokens in FP4 or MXFP8", "enable_alltoall": "an exchange inside the call",
    "use_mxfp8_act_scaling": "tokens in MXFP8", "use_packed_weights": "INT4 weights",
    "use_wfp4afp8_humming": "FP4 weights with scales of groups in e4m3",
}  # fmt: skip


def cutlass_fused_moe(*args, **options) -> list[torch.Tensor]:
    """Up, then gate; returns the output alone, in the type that is asked for."""
    of = Given(CUTLASS, args, {ALSO.get(name, name): x for name, x in options.items()})
    require(getattr(of.activation_type, "name", "Swiglu") in ("Swiglu", "SwigluBias"),
            f"the activation {getattr(of.activation_type, 'name', '')}")  # fmt: skip
    for option, what in REFUSED.items():
        require(getattr(of, option) is None or getattr(of, option) is False, what)
    local = of.w2.shape[0]
    asked = {
        "local_expert_offset": (of.ep_rank or 0) * local, "num_experts": (of.ep_size or 1) * local,
        "limit": number(of.swiglu_limit, "limits"), "alpha": number(of.swiglu_alpha, "alphas") or 1.0,
        "shift": number(of.swiglu_beta, "betas") or 0.0,
    }  # fmt: skip
    out = experts(of.input, of.ids, of.weights, *weights_of(of, asked), **asked)
    return [out.to(of.dtype) if of.output is None else of.output.copy_(out)]


ALSO = {"fc1_expert_biases": "w13_bias", "fc2_expert_biases": "w2_bias", "quant_scales": "scales"}


def weights_of(of: Given, asked: dict[str, object]) -> tuple[torch.Tensor | None, ...]:
    """w13, w13_scale, w2, w2_scale; adds to `asked` what else belongs to weights of their type."""
    w13, w2, scales = of.w13, of.w2, of.scales
    if of.use_deepseek_fp8_block_scale:
        return w13, scales[0], w2, scales[1]
    if of.use_w4_group_scaling:
        require(torch.cuda.get_device_capability() == (9, 0) and w13.dtype is torch.uint8, "W4 weights that are INT4")
        w13, w13_scale, w13_global = ragged_moe.pack_mxfp4(w13.clone(), scales[0].view(torch.uint8).clone(), halves=2)
        w2, w2_scale, w2_global = ragged_moe.pack_mxfp4(w2.clone(), scales[1].view(torch.uint8).clone())
        biases = {"w13_bias": of.w13_bias, "w2_bias": of.w2_bias}
        asked |= {name: None if x is None else x.float() for name, x in biases.items()}
        asked |= {"w13_global": w13_global, "w2_global": w2_global}
        return w13, w13_scale, w2, w2_scale
    if w13.dtype is E4M3:
        first, _, second, of_tokens = scales
        rows = [(s.view(-1, 1).float() / by).expand(w.shape[:2]).contiguous()
                for s, by, w in ((first, of_tokens, w13), (second, 1.0, w2))]  # fmt: skip
        scale = of_tokens.float().expand(of.input.shape[0], of.input.shape[1] // 128)
        asked |= {"hidden_scale": scale, "hidden_scale_layout": "tokens_first"}
        return w13, rows[0], w2, rows[1]
    require(w13.dtype in (torch.bfloat16, torch.float16), f"weights in {w13.dtype} of this layout")
    require(of.w13_bias is None, "biases of weights that are not FP4")
    return w13, None, w2, None


ROUTERS = {  # by RoutingMethodType
    0: {"renormalize": False}, 1: {}, 2: {"scoring": "sigmoid"}, 4: {}, 6: {"scoring": "sigmoid"},
    7: {"scoring": "sigmoid"}, 8: {"scoring": "sigmoid", "renormalize": False},
}  # fmt: skip
TRTLLM = (
    "logits bias hidden hidden_scale w13 w13_scale w2 w2_scale num_experts top_k n_group topk_group intermediate_size"
    " local_expert_offset local_num_experts routed_scaling_factor routing_method_type"
)


def trtllm_fp8_block_scale_moe(*args, **options) -> torch.Tensor:
    """Tokens in e4m3 with scales [H/128, T]; weights K-major, as their order is not touched here."""
    of = Given(TRTLLM, args, options)
    require(not of.weight_layout, "weights in blocks of K")
    method = int(of.routing_method_type or 0)
    require(method in ROUTERS, f"the routing method {method}")
    require(of.activation_type in (None, 3), "another activation than SwiGLU")
    require(of.hidden.dtype is E4M3 and of.w13_scale.dtype is torch.float32, "MXFP8")
    require(not of.num_fused_shared_experts, "shared experts in the same call")
    groups = {"num_expert_group": of.n_group or 1, "topk_group": of.topk_group or 1}
    factor = {"routed_scaling_factor": of.routed_scaling_factor or 1.0}
    ids, weights = route(of.logits, of.top_k, bias=of.bias, **ROUTERS[method], **groups, **factor)
    return experts(
        of.hidden, ids, weights, of.w13, of.w13_scale, of.w2, of.w2_scale, hidden_scale=of.hidden_scale,
        hidden_scale_layout="blocks_first", num_experts=of.num_experts, local_expert_offset=of.local_expert_offset,
    )  # fmt: skip


def mono_moe(*args, **options) -> torch.Tensor:
    """Gate, then up; scratch memory is ragged_moe's own."""
    of = Given("x logits w13 w13_scale w2 w2_scale", args, options)
    ids, weights = route(of.logits, of.top_k, scoring=of.scoring_func, renormalize=of.renormalize)
    judged["experts"] += 1
    of_weights = of.w13, of.w13_scale, of.w2, of.w2_scale
    return ragged_moe.experts(of.x, ids, weights, *of_weights, gate_first=True, out=of.out)
