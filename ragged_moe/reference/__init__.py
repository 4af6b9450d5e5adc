"""What the kernels must compute, with exact dot products.

On any device, by torch alone.
"""
