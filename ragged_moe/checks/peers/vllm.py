"""vLLM's MoE functions by ragged_moe's, as its tests/kernels/moe call them; the adapter in vLLM's own modular kernel.

What is Python alone of vLLM is its own: configs, the modular kernel, what prepares and finalises. Quantisers that are
kernels there are torch's here, by their definitions: references use them, too.
"""

import contextlib
import functools
import importlib

import pytest
import torch
from torch.nn.functional import silu

from ragged_moe.checks.peers import calls
from ragged_moe.checks.peers.calls import Given, Refused, judged, require
from ragged_moe.runtime.sizes import BF16, E4M3

PACKAGES = ("vllm",)
TESTS = ("tests/kernels/moe",)
LAYERS = "vllm.model_executor.layers"
MOE, QUANT = f"{LAYERS}.fused_moe", f"{LAYERS}.quantization.utils"
OWN = (
    *(f"{MOE}.{x}" for x in ("activation", "config", "modular_kernel", "topk_weight_and_reduce", "moe_output")),
    *(f"{MOE}.{x}" for x in ("utils", "prepare_finalize.no_dp_ep", "prepare_finalize.batched")),
    *(f"{QUANT}.{x}" for x in ("quant_utils", "ocp_mx_utils")), "vllm.scalar_type", "vllm.utils.math_utils",
)  # fmt: skip
MOST, LEAST = torch.finfo(E4M3).max, 1e-10


class Fixtures:
    """What vLLM's conftest.py gives."""

    @pytest.fixture
    def workspace_init(self): ...

    @pytest.fixture
    def disable_deepgemm_ue8m0(self): ...

    @pytest.fixture
    def default_vllm_config(self): ...


FIXTURES = Fixtures()


class Anything:
    """Has any attribute, and may be called for nothing: a logger, a config."""

    def __init__(self, *_, **__): ...

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class Platform:
    """The GPU; what else it may be, it is not."""

    device_type = "cuda"

    def get_device_capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability()

    def has_device_capability(self, least: int) -> bool:
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor >= least

    def is_device_capability(self, wanted: int) -> bool:
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor == wanted

    def is_device_capability_family(self, wanted: int) -> bool:
        return 10 * torch.cuda.get_device_capability()[0] == wanted

    def fp8_dtype(self) -> torch.dtype:
        return E4M3

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: name in ("is_cuda", "is_cuda_alike")


def served() -> dict[str, object]:
    """Everything that tests find under these names, wherever in the package they look for it."""
    nothing = functools.partial(contextlib.nullcontext)
    return {
        "current_platform": Platform(), "vllm.envs": None, "init_logger": Anything, "VllmConfig": Anything,
        "set_current_vllm_config": nothing, "set_random_seed": torch.manual_seed, "dbo_enabled": lambda: False,
        "dbo_maybe_run_recv_hook": lambda: None, "current_workspace_manager": Workspaces,
        "per_token_group_quant_fp8": by_group, "scaled_fp8_quant": scaled, "per_block_cast_to_fp8": by_block,
        "is_fp8": lambda x: x is E4M3, "SiluAndMul": SiluAndMul, "op_registry": {"silu_and_mul": SiluAndMul},
        "rocm_aiter_ops": Anything(), "has_deep_gemm": lambda: True, "is_deep_gemm_e8m0_used": lambda: False,
        "get_mk_alignment_for_contiguous_layout": lambda: [128, 128],
        "_valid_deep_gemm_shape": lambda m, n, k: not n % 128 and not k % 128,
        "fused_topk": fused_topk, "fused_topk_bias": fused_topk_bias, "fused_grouped_topk": fused_grouped_topk,
        "fused_experts": fused_experts, "HummingIndexedExperts": Anything,
    }  # fmt: skip


def own(names: dict[str, object]) -> None:
    """Add to the names classes that need vLLM's own: the adapter's, in place of several of vLLM's experts."""
    adapter = importlib.import_module("ragged_moe.integrations.vllm")
    kernels = importlib.import_module(f"{MOE}.prepare_finalize.no_dp_ep")
    for module in ("modular_kernel", "config", "activation", "topk_weight_and_reduce"):
        public = vars(importlib.import_module(f"{MOE}.{module}"))
        names.update({name: x for name, x in public.items() if not name.startswith("_") and name not in names})
    experts, batched = of_any_weights(adapter.Fp8Experts), of_any_weights(adapter.Fp8BatchedExperts)
    names |= dict.fromkeys(("TritonExperts", "TritonOrDeepGemmExperts", "CutlassExpertsFp8"), experts)
    names |= dict.fromkeys(("BatchedTritonExperts", "NaiveBatchedExperts", "BatchedDeepGemmExperts"), batched)
    names["maybe_make_prepare_finalize"] = lambda **_: kernels.MoEPrepareAndFinalizeNoDPEPModular()


def of_any_weights(adapter: type) -> type:
    """The adapter's class, which also refuses by name what vLLM would not have given it, and is counted."""

    class Experts(adapter):
        def apply(self, *operands, **options):
            hidden = options["hidden_states"] if "hidden_states" in options else operands[1]
            weights = self.quant_config.weight_quant_dtype
            require(weights in (E4M3, None), f"weights in {weights}")
            if hidden.dtype not in (E4M3, BF16):
                raise Refused(f"tokens in {hidden.dtype}")
            judged["experts by the adapter"] += 1
            return super().apply(*operands, **options)

    return Experts


class Workspaces:
    """`current_workspace_manager()`: new memory each time."""

    def get_simultaneous(self, *shapes_and_types) -> list[torch.Tensor]:
        return [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in shapes_and_types]


class SiluAndMul:
    """silu(gate) * up, of gate and up side by side."""

    def __init__(self, *_, **__): ...

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return silu(x[..., :half]) * x[..., half:]

    __call__ = forward_native


def by_group(x, group_size, eps=LEAST, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 with a scale for group_size columns: [.., K], [.., K / group_size]."""
    require(not options.get("use_ue8m0"), "scales of tokens that are powers of two")
    groups = x.float().unflatten(-1, (-1, group_size))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=eps) / MOST
    return (groups / scale).clamp(-MOST, MOST).to(E4M3).view(x.shape), scale.squeeze(-1)


def scaled(x, scale=None, use_per_token_if_dynamic=False, **_) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 with this scale, else with one a row, [.., 1], or one of all, [1]."""
    if scale is None:
        most = x.float().abs()
        most = most.amax(-1, keepdim=True) if use_per_token_if_dynamic else most.amax().view(1)
        scale = (most / MOST).clamp(min=1e-12)
    return (x.float() / scale).clamp(-MOST, MOST).to(E4M3), scale


def by_block(x, block_size=(128, 128), **_) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 with a scale for each block of a matrix."""
    rows, columns = x.shape
    n, k = (-(-size // of) for size, of in zip(x.shape, block_size))
    whole = torch.zeros(n * block_size[0], k * block_size[1], device=x.device)
    whole[:rows, :columns] = x.float()
    blocks = whole.view(n, block_size[0], k, block_size[1])
    scale = blocks.abs().amax((1, 3), keepdim=True).clamp(min=1e-4) / MOST
    return (blocks / scale).to(E4M3).view(whole.shape)[:rows, :columns].contiguous(), scale.view(n, k)


def routed(of: Given) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, ids) by ragged_moe.route."""
    require(of.hash_indices_table is None, "experts by the token's number, from a table")
    require(of.bias_vl is None, "another bias for the tokens of images")
    ids, weights = calls.route(
        of.gating_output, of.topk, scoring=of.scoring_func or "softmax", renormalize=of.renormalize,
        bias=of.e_score_correction_bias, num_expert_group=of.num_expert_group or 1, topk_group=of.topk_group or 1,
        routed_scaling_factor=of.routed_scaling_factor or 1.0,
    )  # fmt: skip
    return weights, ids if of.indices_type is None else ids.to(of.indices_type)


def fused_topk(*args, **options) -> tuple[torch.Tensor | None, ...]:
    """(weights, ids, nothing)."""
    return *routed(Given("hidden_states gating_output topk renormalize indices_type", args, options)), None


def fused_topk_bias(*args, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, ids)."""
    names = "hidden_states gating_output scoring_func e_score_correction_bias topk renormalize indices_type"
    return routed(Given(names, args, options))


def fused_grouped_topk(*args, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, ids)."""
    names = "hidden_states gating_output topk renormalize e_score_correction_bias num_expert_group topk_group"
    return routed(Given(names, args, options))


def fused_experts(*args, **options) -> torch.Tensor:
    """Tokens in bf16 or f16, weights as the config has them; gate, then up."""
    of = Given("hidden w1 w2 topk_weights topk_ids", args, {ALSO.get(name, name): x for name, x in options.items()})
    adapter = importlib.import_module("ragged_moe.integrations.vllm")
    config = of.quant_config or Given("", (), {})
    require(config.weight_quant_dtype in (E4M3, None), f"weights in {config.weight_quant_dtype}")
    require(getattr(of.activation, "value", "silu") == "silu", f"the activation {of.activation}")
    require(config.w1_bias is None, "biases of weights that are not FP4")
    first, second = [None if s is None else adapter.of_rows(s, w)
                     for s, w in ((config.w1_scale, of.w1), (config.w2_scale, of.w2))]  # fmt: skip
    count = None if of.global_num_experts in (None, -1) else of.global_num_experts
    asked = {"gate_first": True, "limit": config.gemm1_clamp_limit, "num_experts": count}
    asked["expert_map"] = adapter.mapping(of.expert_map)
    asked["apply_router_weight_on_input"] = bool(of.apply_router_weight_on_input)
    out = calls.experts(of.hidden, of.topk_ids, of.topk_weights, of.w1, first, of.w2, second, **asked)
    return out.to(of.hidden.dtype)


ALSO = {"hidden_states": "hidden"}
