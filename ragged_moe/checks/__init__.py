"""What holds the kernels to their references, on a real GPU or an emulated one.

The commands ragged_moe check gemm and ragged_moe check layer run it.
"""
