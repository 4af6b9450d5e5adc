"""vLLM's experts by ragged_moe.experts and ragged_moe.batched_experts: classes for its modular MoE kernel, and
`enable()`.

Written against vLLM's published interface, vllm/model_executor/layers/fused_moe/modular_kernel.py, and checked against
stubs of it (tests/ragged_moe/serving_stubs.py). vLLM 0.26.0 has served with it on an H200: PEERS.md beside this folder.
"""

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.oracle import fp8
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import (
    TopKWeightAndReduceDelegate,
    TopKWeightAndReduceNoOP,
)
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    kFp8Dynamic128Sym,
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kFp8Static128BlockSym,
    kFp8StaticChannelSym,
    kFp8StaticTensorSym,
)
from vllm.platforms import current_platform

import ragged_moe
from ragged_moe.integrations.plugins import CLASSES, NAME, vllm_registry

# Of weights and of tokens: all that vLLM's Triton experts do in FP8
SCHEMES = (
    (kFp8Static128BlockSym, kFp8Dynamic128Sym), (kFp8StaticChannelSym, kFp8DynamicTokenSym),
    *((kFp8StaticTensorSym, x) for x in (kFp8DynamicTokenSym, kFp8StaticTensorSym, kFp8DynamicTensorSym)),
)  # fmt: skip


def enable() -> None:
    """Where vLLM has a registry of FP8 backends (PR 53897): add these classes to it, for `--moe-backend ragged_moe`.
    Else layers of FP8 experts, of any scheme, run by these classes where vLLM would take Triton's.

    That is its default on a Hopper GPU without expert parallelism, else what `--moe-backend triton` asks for. What
    these classes do not support vLLM asks Triton's for, as before. Call it in every process that has a model, as vLLM's
    plugins do; the wheel has such a plugin (plugins.py).
    """
    register = vllm_registry()
    if register is not None:
        register(NAME, CLASSES)
        return
    ours = {fp8.Fp8MoeBackend.TRITON: Fp8Experts, fp8.Fp8MoeBackend.BATCHED_TRITON: Fp8BatchedExperts}
    chosen = fp8.backend_to_kernel_cls
    if getattr(chosen, "of_moe", False):
        return

    def backend_to_kernel_cls(backend):
        return [ours[backend], *chosen(backend)] if backend in ours else chosen(backend)

    backend_to_kernel_cls.of_moe = True
    fp8.backend_to_kernel_cls = backend_to_kernel_cls


class Fp8ExpertsBase(mk.FusedMoEExpertsModular):
    """Says what both forms support: SwiGLU, with the limit, alpha and beta of the quantisation's config, on GPUs that
    moe has kernels for.
    """

    @staticmethod
    def _supports_current_device() -> bool:
        on = current_platform
        return on.is_cuda() and (on.is_device_capability(90) or on.is_device_capability_family(100))

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key, activation_key) -> bool:
        return (weight_key, activation_key) in SCHEMES

    @staticmethod
    def _supports_activation(activation) -> bool:
        return activation in (MoEActivation.SILU, MoEActivation.SWIGLUOAI_UNINTERLEAVE)

    @staticmethod
    def _supports_parallel_config(moe_parallel_config) -> bool:
        return True

    @staticmethod
    def _supports_batch_invariance() -> bool:
        """The bits are the same every time, but those of a token depend on how many there are: kernels are chosen by
        that, and add the blocks of K in another order.
        """
        return False

    @staticmethod
    def _supports_shape(hidden_dim: int) -> bool:
        return hidden_dim % 128 == 0

    def activation_options(self, activation) -> dict:
        """The options of ragged_moe.experts that are this activation."""
        config = self.quant_config
        alpha, beta = 1.0, 0.0
        if activation == MoEActivation.SWIGLUOAI_UNINTERLEAVE:
            alpha = 1.0 if config.gemm1_alpha is None else config.gemm1_alpha
            beta = 0.0 if config.gemm1_beta is None else config.gemm1_beta
        return {"gate_first": True, "limit": config.gemm1_clamp_limit, "alpha": alpha, "shift": beta}

    def weights(self, w1: torch.Tensor, w2: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """w13, w13_scale, w2, w2_scale, without scales where weights are bf16; ValueError if others have none."""
        if w1.dtype is torch.bfloat16:
            return w1, None, w2, None
        if self.w1_scale is None or self.w2_scale is None:
            raise ValueError("the experts' weights have no scales, but must have some")
        return w1, of_rows(self.w1_scale, w1), w2, of_rows(self.w2_scale, w2)


def mapping(expert_map: torch.Tensor | None) -> torch.Tensor | None:
    """The map [experts] of local numbers, -1 for others, as ragged_moe.experts takes it: int32, which it is in vLLM.

    None, all are here, where vLLM has none, or False.
    """
    return expert_map.int() if isinstance(expert_map, torch.Tensor) else None


def of_rows(scale: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Scales of weights [E, n, k] as ragged_moe.experts takes them: [E, n] where vLLM has one a row, or one of all of
    an expert; of blocks as they are.

    Told by their shape, not by how many they are: with k = 16384 blocks are as many as rows.
    """
    count, n, k = weights.shape
    if tuple(scale.shape) == (count, -(-n // 128), -(-k // 128)):
        return scale
    if scale.numel() == count * n:
        return scale.view(count, n)
    return scale.view(count, 1).expand(count, n).contiguous() if scale.numel() == count else scale


def of_columns(scale: torch.Tensor | None, hidden: torch.Tensor) -> torch.Tensor | None:
    """Scales of tokens [.., K], expanded to 128 columns each where vLLM has one a token, or one of all."""
    blocks = hidden.shape[-1] // 128
    if scale is None or scale.shape[-1] == blocks and scale.dim() == hidden.dim():
        return scale
    return (scale if scale.dim() == hidden.dim() else scale.view(-1, 1)).expand(*hidden.shape[:-1], blocks)


class Fp8Experts(Fp8ExpertsBase):
    """Tokens as they come, [M, K], to their weighted sums, [M, K]."""

    @staticmethod
    def activation_format():
        return mk.FusedMoEActivationFormat.Standard

    def finalize_weight_and_reduce_impl(self):
        return TopKWeightAndReduceNoOP()

    def workspace_shapes(
        self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return (0,), (0,), (M, K)  # scratch memory is moe's own

    def apply(
        self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map,
        a1q_scale, a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input,
    ) -> None:  # fmt: skip
        """Write into output. Weights that are already on the input are not applied again."""
        if apply_router_weight_on_input:
            topk_weights = torch.ones_like(topk_weights)
        ragged_moe.experts(
            hidden_states, topk_ids, topk_weights.float(), *self.weights(w1, w2),
            hidden_scale=of_columns(a1q_scale, hidden_states), hidden_scale_layout="tokens_first",
            expert_map=mapping(expert_map), num_experts=None if global_num_experts == -1 else global_num_experts,
            out=output, **self.activation_options(activation),
        )  # fmt: skip


class Fp8BatchedExperts(Fp8ExpertsBase):
    """Tokens by expert, [E, M, K], as DeepEP's low-latency kernels have them, to as many rows without weights."""

    @staticmethod
    def activation_format():
        return mk.FusedMoEActivationFormat.BatchedExperts

    def finalize_weight_and_reduce_impl(self):
        return TopKWeightAndReduceDelegate()

    def workspace_shapes(
        self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return (0,), (0,), (local_num_experts, self.max_num_tokens * self.num_dispatchers, K)

    def apply(
        self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map,
        a1q_scale, a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input,
    ) -> None:  # fmt: skip
        """Write into output the rows that expert_tokens_meta counts."""
        everywhere = w1.shape[0] if global_num_experts == -1 else global_num_experts
        rows = topk_ids.numel() * self.num_dispatchers  # of all experts, if each rank has as many tokens
        ragged_moe.batched_experts(
            hidden_states, expert_tokens_meta.expert_num_tokens, *self.weights(w1, w2),
            hidden_scale=of_columns(a1q_scale, hidden_states), expected_m=max(1, -(-rows // everywhere)),
            out=output, **self.activation_options(activation),
        )  # fmt: skip
