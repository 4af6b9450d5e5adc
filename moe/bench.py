"""python -m moe.bench: grouped_gemm_fp8 and its peers, timed on this GPU."""

from moe.measure.grouped_gemm import main

if __name__ == "__main__":
    main()
