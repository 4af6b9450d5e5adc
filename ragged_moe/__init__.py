"""FP8 grouped GEMM for mixture-of-experts layers, and the layer itself: README.md beside this file."""

import importlib


def _module(name: str):
    """Import a module. Raises ImportError that says what to install where there is no torch or no CuTe DSL."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "cutlass"):
            raise
        why = f"ragged_moe needs torch and CuTe DSL, and there is no {error.name}: pip install 'emulated-gpu[moe]'"
        raise ImportError(why, name=error.name) from None


_module("ragged_moe.torch_ops")  # torch.ops.ragged_moe

__version__ = "0.1.0"  # that of emulated_gpu, with which it comes
WHERE = {
    "batched_experts": "ragged_moe.layers.batched_experts",
    "experts": "ragged_moe.layers.experts",
    "experts_workspace_bytes": "ragged_moe.layers.experts",
    "grouped_gemm_fp8": "ragged_moe.layers.grouped_gemm_fp8",
    "grouped_gemm_nvfp4": "ragged_moe.layers.grouped_gemm_fp4",
    "pad_intermediate": "ragged_moe.runtime.pad_weights",
    "pack_mxfp4": "ragged_moe.layers.pack_weights",
    "pack_nvfp4": "ragged_moe.layers.pack_weights",
    "route": "ragged_moe.layers.route",
    "run": "ragged_moe.layers.deepseek_layer",
    "warmup": "ragged_moe.warm_up",
    "workspace_bytes": "ragged_moe.layers.deepseek_layer",
}
__all__ = list(WHERE)


def __getattr__(name: str):
    """CuTe DSL is imported with the function: whoever wants the emulated GPU installs that before."""
    if name in WHERE:
        found = globals()[name] = getattr(_module(WHERE[name]), name)
        return found
    raise AttributeError(f"module ragged_moe has no {name}")
