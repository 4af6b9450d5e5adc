"""What holds the kernels to their references, on a real GPU or an emulated one.

The commands moe.check and moe.layer_check run it.
"""
