"""Kernels for Hopper: their mainloops issue wgmma, and scale and add each k-block in registers."""
