"""Writes the given tensors and returns them in another order."""
# kind: no result
# caught: group 0: returned .* not|not the given c

from reference import ref_kernel


def custom_kernel(data):
    return ref_kernel(data)[::-1]
