"""The DeepSeek-V3 MoE layer in FP8 as FlashInfer-Bench defines it: its numbers, its sizes and its inputs.

`moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048`,
https://github.com/flashinfer-ai/flashinfer-bench/tree/2b6440b2/flashinfer_trace/definitions/moe: 256 experts in 8
groups, of which 32 are on this GPU. Hidden size, intermediate size and number of local experts are parameters here, so
that tests need not multiply gigabytes. What it computes from them: ragged_moe.reference.layer.
"""

import dataclasses

import torch

EXPERTS, GROUPS, TOP_GROUPS, TOP_K = 256, 8, 4, 8
GROUP = EXPERTS // GROUPS
E4M3, F32, BF16, I32 = torch.float8_e4m3fn, torch.float32, torch.bfloat16, torch.int32
LARGEST = 448.0  # of e4m3
MAX_EXPERTS, MAX_TOP_K = 512, 16  # local experts, and experts of a token
SCORINGS = "softmax", "sigmoid", "sqrtsoftplus"  # of a router
MAX_LOCAL = 32  # local experts of the definition's layer: a bit of a mask, and a lane, each
PRUNED = torch.finfo(F32).min  # what the definition gives experts outside of the chosen groups


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a layer: hidden and intermediate are multiples of 128. The default is the definition's.

    top_k of all `experts` are chosen for a token.
    """

    hidden: int = 7168
    intermediate: int = 2048
    local: int = 32
    top_k: int = TOP_K
    experts: int = EXPERTS

    @property
    def slots(self) -> int:
        """The places that a token has in lists: top_k, rounded up to 16 bytes of them."""
        return -(-self.top_k // 4) * 4


@dataclasses.dataclass
class Inputs:
    """The layer's inputs, named, typed and shaped as in the definition, which has a bias in bf16."""

    routing_logits: torch.Tensor  # f32 [T, 256]
    routing_bias: torch.Tensor  # bf16 or f32 [256]
    hidden_states: torch.Tensor  # e4m3 [T, H]
    hidden_states_scale: torch.Tensor  # f32 [H/128, T]
    gemm1_weights: torch.Tensor  # e4m3 [E, 2I, H]: rows of up, then of gate
    gemm1_weights_scale: torch.Tensor  # f32 [E, 2I/128, H/128]
    gemm2_weights: torch.Tensor  # e4m3 [E, H, I]
    gemm2_weights_scale: torch.Tensor  # f32 [E, H/128, I/128]
    local_expert_offset: int = 0  # the global number of local expert 0
    routed_scaling_factor: float = 2.5

    @property
    def sizes(self) -> Sizes:
        """The sizes that the tensors have."""
        return Sizes(self.hidden_states.shape[1], self.gemm2_weights.shape[2], self.gemm2_weights.shape[0])

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors, in the order of the definition."""
        return tuple(x for x in vars(self).values() if isinstance(x, torch.Tensor))

    def replaced(self, tensors: tuple) -> "Inputs":
        """The same inputs with other tensors in place of `tensors()`."""
        return Inputs(*tensors, self.local_expert_offset, self.routed_scaling_factor)
