"""Gives right results, but returns tensors of its own."""
# caught: the returned tensor is not the given c

from reference import ref_kernel


def custom_kernel(data):
    return [c.clone() for c in ref_kernel(data)]
