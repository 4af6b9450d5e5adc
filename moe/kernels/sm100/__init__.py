"""Kernels for Blackwell: an MMA warp issues tcgen05.mma, consumers scale and add each k-block from tensor memory."""
