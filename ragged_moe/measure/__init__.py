"""What times the kernels and their peers, on a real GPU or on the timing model.

The commands ragged_moe bench gemm and ragged_moe bench layer run it; results/ has what they recorded.
"""
