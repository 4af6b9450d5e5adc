"""Stubs of the interfaces that ragged_moe/integrations/vllm.py and sglang.py are written against: names, and what is
abstract.

Of vLLM: vllm/model_executor/layers/fused_moe/modular_kernel.py, oracle/fp8.py and experts/batched_deep_gemm_moe.py of
November 2026, https://github.com/vllm-project/vllm; of SGLang: sglang 0.5.23, layers/moe/moe_runner/ and
token_dispatcher/, https://github.com/sgl-project/sglang. Nothing of them is computed here.
"""

import enum
import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple


def put(monkeypatch, name: str, **contents) -> types.ModuleType:
    """Put a module of this name, with packages above it, where imports find it."""
    parent, _, own = name.rpartition(".")
    module = sys.modules.get(name)
    if module is None:
        module = types.ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    if parent:
        setattr(put(monkeypatch, parent), own, module)
    vars(module).update(contents)
    return module


# ---------------------------------------------------------------------------------------------------------------- vLLM


class FusedMoEActivationFormat(enum.Enum):
    Standard = ("standard",)
    BatchedExperts = ("batched_experts",)


class MoEActivation(enum.Enum):
    SILU = "silu"
    GELU = "gelu"
    SWIGLUOAI = "swigluoai"
    SWIGLUOAI_UNINTERLEAVE = "swigluoai_uninterleave"


class Fp8MoeBackend(enum.Enum):
    TRITON = "TRITON"
    BATCHED_TRITON = "BATCHED_TRITON"
    DEEPGEMM = "DEEPGEMM"


@dataclass
class ExpertTokensMetadata:
    expert_num_tokens: Any
    expert_num_tokens_cpu: Any = None


class FusedMoEExpertsModular(ABC):
    def __init__(self, moe_config, quant_config, max_num_tokens=None, num_dispatchers=None):
        batched = self.activation_format() == FusedMoEActivationFormat.BatchedExperts
        if batched != (max_num_tokens is not None and num_dispatchers is not None):
            raise ValueError("max_num_tokens and num_dispatchers are of the batched format")
        self.moe_config, self.quant_config = moe_config, quant_config
        self.max_num_tokens, self.num_dispatchers = max_num_tokens, num_dispatchers

    @staticmethod
    @abstractmethod
    def activation_format(): ...

    @staticmethod
    @abstractmethod
    def _supports_current_device(): ...

    @staticmethod
    @abstractmethod
    def _supports_no_act_and_mul(): ...

    @staticmethod
    @abstractmethod
    def _supports_quant_scheme(weight_key, activation_key): ...

    @staticmethod
    @abstractmethod
    def _supports_activation(activation): ...

    @staticmethod
    @abstractmethod
    def _supports_parallel_config(moe_parallel_config): ...

    @staticmethod
    def _supports_shape(hidden_dim): ...

    @property
    def w1_scale(self):
        return self.quant_config.w1_scale

    @property
    def w2_scale(self):
        return self.quant_config.w2_scale

    @abstractmethod
    def workspace_shapes(
        self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation
    ): ...

    @abstractmethod
    def finalize_weight_and_reduce_impl(self): ...

    @abstractmethod
    def apply(
        self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map,
        a1q_scale, a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input,
    ): ...  # fmt: skip


class TopKWeightAndReduceDelegate: ...


class TopKWeightAndReduceNoOP: ...


def vllm(monkeypatch) -> None:
    """Put what ragged_moe/integrations/vllm.py imports of vLLM in place."""
    layers = "vllm.model_executor.layers"
    put(monkeypatch, f"{layers}.fused_moe.modular_kernel", FusedMoEActivationFormat=FusedMoEActivationFormat,
        ExpertTokensMetadata=ExpertTokensMetadata, FusedMoEExpertsModular=FusedMoEExpertsModular)  # fmt: skip
    put(monkeypatch, f"{layers}.fused_moe.activation", MoEActivation=MoEActivation)
    put(monkeypatch, f"{layers}.fused_moe.oracle.fp8", Fp8MoeBackend=Fp8MoeBackend,
        backend_to_kernel_cls=lambda backend: [backend.value])  # fmt: skip
    put(monkeypatch, f"{layers}.fused_moe.topk_weight_and_reduce",
        TopKWeightAndReduceDelegate=TopKWeightAndReduceDelegate,
        TopKWeightAndReduceNoOP=TopKWeightAndReduceNoOP)  # fmt: skip
    put(monkeypatch, f"{layers}.quantization.utils.quant_utils", kFp8Dynamic128Sym="tokens", kFp8Static128BlockSym="w",
        kFp8DynamicTokenSym="a token", kFp8DynamicTensorSym="all", kFp8StaticTensorSym="tensor",
        kFp8StaticChannelSym="rows")  # fmt: skip
    hopper = types.SimpleNamespace(
        is_cuda=lambda: True, is_device_capability=lambda x: x == 90, is_device_capability_family=lambda x: False
    )
    put(monkeypatch, "vllm.platforms", current_platform=hopper)


# -------------------------------------------------------------------------------------------------------------- SGLang


@dataclass
class MoeRunnerConfig:
    num_experts: int | None = None
    activation: str = "silu"
    is_gated: bool = True
    apply_router_weight_on_input: bool = False
    no_combine: bool = False
    routed_scaling_factor: float | None = None
    gemm1_alpha: float | None = None
    gemm1_beta: float | None = None
    gemm1_clamp_limit: float | None = None
    swiglu_limit: float | None = None


@dataclass
class DeepGemmMoeQuantInfo:
    w13_weight: Any
    w2_weight: Any
    use_fp8: bool
    w13_scale: Any = None
    w2_scale: Any = None
    block_shape: list[int] | None = None
    is_fp4_experts: bool = False


class DispatchMoeRunnerCore(ABC):
    def __init__(self, config):
        self.config = config

    @property
    @abstractmethod
    def runner_backend(self): ...

    @abstractmethod
    def run_from_dispatch(self, dispatch_output, quant_info, runner_config, hooks=None): ...


class Format(enum.Enum):
    STANDARD = "standard"
    DEEPEP_NORMAL = "deepep_normal"
    DEEPEP_LL = "deepep_ll"


class StandardTopKOutput(NamedTuple):
    topk_weights: Any
    topk_ids: Any
    router_logits: Any


class StandardDispatchOutput(NamedTuple):
    hidden_states: Any
    hidden_states_scale: Any
    topk_output: StandardTopKOutput

    @property
    def format(self):
        return Format.STANDARD


class DeepEPNormalDispatchOutput(NamedTuple):
    hidden_states: Any
    hidden_states_scale: Any
    topk_ids: Any
    topk_weights: Any
    num_recv_tokens_per_expert: Any

    @property
    def format(self):
        return Format.DEEPEP_NORMAL


class DeepEPLLDispatchOutput(NamedTuple):
    hidden_states: Any
    hidden_states_scale: Any
    topk_ids: Any
    topk_weights: Any
    masked_m: Any
    expected_m: int

    @property
    def format(self):
        return Format.DEEPEP_LL


class StandardCombineInput(NamedTuple):
    hidden_states: Any


class DeepEPNormalCombineInput(NamedTuple):
    hidden_states: Any
    topk_ids: Any
    topk_weights: Any


class DeepEPLLCombineInput(NamedTuple):
    hidden_states: Any
    topk_ids: Any
    topk_weights: Any


def sglang(monkeypatch) -> dict:
    """Put what ragged_moe/integrations/sglang.py imports of SGLang in place; return the table of registered cores."""
    moe, cores = "sglang.srt.layers.moe", {}
    put(monkeypatch, f"{moe}.moe_runner", register_moe_runner_core=cores.__setitem__)
    put(monkeypatch, f"{moe}.moe_runner.base", DispatchMoeRunnerCore=DispatchMoeRunnerCore)
    put(monkeypatch, f"{moe}.token_dispatcher.deepep", DeepEPLLCombineInput=DeepEPLLCombineInput,
        DeepEPNormalCombineInput=DeepEPNormalCombineInput)  # fmt: skip
    put(monkeypatch, f"{moe}.token_dispatcher.standard", StandardCombineInput=StandardCombineInput)
    put(monkeypatch, f"{moe}.utils", resolve_moe_runner_backend=lambda name: name)
    return cores
