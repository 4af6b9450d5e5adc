"""What times the kernels and their peers, on a real GPU or on the timing model.

The commands moe.bench and moe.layer_bench run it; results/ has what they recorded.
"""
