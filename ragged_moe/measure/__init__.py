"""What times the kernels and their peers, on a real GPU or on the timing model.

The commands ragged_moe.bench and ragged_moe.layer_bench run it; results/ has what they recorded.
"""
