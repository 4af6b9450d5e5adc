"""What holds the kernels to their references, on a real GPU or an emulated one.

The commands ragged_moe.check and ragged_moe.layer_check run it.
"""
