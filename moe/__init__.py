"""FP8 grouped GEMM for mixture-of-experts layers, and the layer itself: README.md beside this file."""

__all__ = ["grouped_gemm_fp8", "run"]


def __getattr__(name: str):
    """CuTe DSL is imported with the function: whoever wants the emulated GPU installs that before."""
    if name == "grouped_gemm_fp8":
        from moe.grouped_gemm import grouped_gemm_fp8

        return grouped_gemm_fp8
    if name == "run":
        from moe.layer import run

        return run
    raise AttributeError(f"module moe has no {name}")
