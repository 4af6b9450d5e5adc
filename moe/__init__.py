"""FP8 grouped GEMM for mixture-of-experts layers: README.md beside this file."""

from moe.api import grouped_gemm_fp8

__all__ = ["grouped_gemm_fp8"]
