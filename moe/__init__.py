"""FP8 grouped GEMM for mixture-of-experts layers, and the layer itself: README.md beside this file."""

import importlib

__version__ = "0.1.0"  # that of emulated_gpu, with which it comes
WHERE = {
    "batched_experts": "moe.batched",
    "experts": "moe.routed_experts",
    "experts_workspace_bytes": "moe.routed_experts",
    "grouped_gemm_fp8": "moe.grouped_gemm",
    "grouped_gemm_nvfp4": "moe.grouped_gemm_fp4",
    "pad_intermediate": "moe.padding",
    "pack_mxfp4": "moe.fp4_weights",
    "pack_nvfp4": "moe.fp4_weights",
    "route": "moe.routers",
    "run": "moe.layer",
    "warmup": "moe.compile_ahead",
    "workspace_bytes": "moe.layer",
}
__all__ = list(WHERE)


def __getattr__(name: str):
    """CuTe DSL is imported with the function: whoever wants the emulated GPU installs that before."""
    if name in WHERE:
        importlib.import_module("moe.torch_ops")  # what the functions are under torch.compile
        return getattr(importlib.import_module(WHERE[name]), name)
    raise AttributeError(f"module moe has no {name}")
