"""FP8 grouped GEMM for mixture-of-experts layers, and the layer itself: README.md beside this file."""

import importlib

import ragged_moe.torch_ops  # noqa: F401  # torch.ops.ragged_moe

__version__ = "0.1.0"  # that of emulated_gpu, with which it comes
WHERE = {
    "batched_experts": "ragged_moe.batched",
    "experts": "ragged_moe.routed_experts",
    "experts_workspace_bytes": "ragged_moe.routed_experts",
    "grouped_gemm_fp8": "ragged_moe.grouped_gemm",
    "grouped_gemm_nvfp4": "ragged_moe.grouped_gemm_fp4",
    "pad_intermediate": "ragged_moe.padding",
    "pack_mxfp4": "ragged_moe.fp4_weights",
    "pack_nvfp4": "ragged_moe.fp4_weights",
    "route": "ragged_moe.routers",
    "run": "ragged_moe.layer",
    "warmup": "ragged_moe.compile_ahead",
    "workspace_bytes": "ragged_moe.layer",
}
__all__ = list(WHERE)


def __getattr__(name: str):
    """CuTe DSL is imported with the function: whoever wants the emulated GPU installs that before."""
    if name in WHERE:
        return getattr(importlib.import_module(WHERE[name]), name)
    raise AttributeError(f"module ragged_moe has no {name}")
