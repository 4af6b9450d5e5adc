"""The references say what the kernels must compute, with exact dot products, on any device."""
