"""SGLang's experts by ragged_moe.experts and ragged_moe.batched_experts: a runner core of its MoeRunner, and
`enable()`.

Written against sglang 0.5.23, sglang/srt/layers/moe/moe_runner/base.py, and checked against stubs of it
(tests/ragged_moe/serving_stubs.py), in its MoeRunner (checks/peers/sglang_layer.py), and in its Engine on an H200.
"""

from sglang.srt.layers.moe.moe_runner import register_moe_runner_core
from sglang.srt.layers.moe.moe_runner.base import DispatchMoeRunnerCore
from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPLLCombineInput, DeepEPNormalCombineInput
from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput
from sglang.srt.layers.moe.utils import resolve_moe_runner_backend

import ragged_moe

BACKEND = "deep_gemm"  # whose weights are what ragged_moe.experts takes, and which has no fused function of its own


def enable() -> None:
    """From now on `--moe-runner-backend deep_gemm` is this core, for FP8 experts in blocks of 128 x 128.

    Call it in every process that has a model, as SGLang's plugins do; the wheel has such a plugin (plugins.py).
    ValueError if SGLang has another core for that name.
    """
    register_moe_runner_core(BACKEND, Fp8RunnerCore)


class Fp8RunnerCore(DispatchMoeRunnerCore):
    """Runs what SGLang's standard dispatcher hands over, and DeepEP's, the normal and the low-latency one.

    ValueError, which says what, for a layer that ragged_moe.experts cannot do.
    """

    def __init__(self, config):
        super().__init__(config)
        for is_so, what in (
            (config.activation != "silu", f"its activation is {config.activation}, not silu"),
            (not config.is_gated, "its experts have no gate"),
            (config.no_combine, "it leaves the sums over experts to the caller (no_combine)"),
            (config.gemm1_alpha is not None, "its SwiGLU has an alpha (gemm1_alpha)"),
            (config.gemm1_beta is not None, "its SwiGLU has a beta (gemm1_beta)"),
            (config.gemm1_clamp_limit is not None, "its SwiGLU has gpt-oss's limit (gemm1_clamp_limit)"),
        ):
            if is_so:
                raise ValueError(f"ragged_moe.experts cannot run this layer: {what}")

    @property
    def runner_backend(self):
        return resolve_moe_runner_backend(BACKEND)

    def run_from_dispatch(self, dispatch_output, quant_info, runner_config, hooks=None):
        """Return what the dispatcher combines; ValueError for a dispatcher, or weights, that are not supported."""
        if hooks is not None:
            raise ValueError("ragged_moe.experts cannot run this layer: it has LoRA")
        if not quant_info.use_fp8 or quant_info.is_fp4_experts or list(quant_info.block_shape or ()) != [128, 128]:
            what = "its weights are not e4m3 in blocks of 128 x 128"
            raise ValueError(f"ragged_moe.experts cannot run this layer: {what}")
        weights = quant_info.w13_weight, quant_info.w13_scale, quant_info.w2_weight, quant_info.w2_scale
        options = {"gate_first": True, "limit": runner_config.swiglu_limit}
        form = dispatch_output.format.value
        if form == "standard":
            return self.run_standard(dispatch_output, weights, options)
        if form == "deepep_normal":
            return self.run_received(dispatch_output, weights, options)
        if form == "deepep_ll":
            return self.run_by_expert(dispatch_output, weights, options)
        raise ValueError(f"ragged_moe.experts cannot run what the dispatcher {form} hands over")

    def run_standard(self, dispatched, weights: tuple, options: dict):
        """Tokens [T, H], and their local experts, to their sums."""
        of = dispatched.topk_output
        topk_weights, factor = of.topk_weights.float(), self.config.routed_scaling_factor
        on_input, scales = self.config.apply_router_weight_on_input, factor not in (None, 1.0)
        if scales and not on_input:
            topk_weights = topk_weights * factor
        out = ragged_moe.experts(
            dispatched.hidden_states, of.topk_ids, topk_weights, *weights, hidden_scale=dispatched.hidden_states_scale,
            hidden_scale_layout="tokens_first", num_experts=self.config.num_experts,
            apply_router_weight_on_input=on_input, **options,
        )  # fmt: skip
        return StandardCombineInput(out.mul_(factor) if scales and on_input else out)  # behind the activation

    def run_received(self, dispatched, weights: tuple, options: dict):
        """Tokens [T, H] that other ranks have sent, too, and their experts here, to their weighted sums."""
        out = ragged_moe.experts(
            dispatched.hidden_states, dispatched.topk_ids, dispatched.topk_weights.float(), *weights,
            hidden_scale=dispatched.hidden_states_scale, hidden_scale_layout="tokens_first",
            num_experts=self.config.num_experts,
            apply_router_weight_on_input=self.config.apply_router_weight_on_input, **options,
        )  # fmt: skip
        return DeepEPNormalCombineInput(out, dispatched.topk_ids, dispatched.topk_weights)

    def run_by_expert(self, dispatched, weights: tuple, options: dict):
        """Tokens [E, M, H] and their counts to as many rows, which the combine weights and adds."""
        if self.config.apply_router_weight_on_input:
            raise ValueError("ragged_moe.batched_experts cannot run this layer: its weights are on the input")
        out = ragged_moe.batched_experts(
            dispatched.hidden_states, dispatched.masked_m, *weights, hidden_scale=dispatched.hidden_states_scale,
            expected_m=max(1, dispatched.expected_m), **options,
        )  # fmt: skip
        return DeepEPLLCombineInput(out, dispatched.topk_ids, dispatched.topk_weights)
