"""Computes the last group only."""
# kind: parts of the work
# caught: group 0: .*never written

from reference import ref_kernel


def custom_kernel(data):
    ref_kernel([part[-1:] for part in data])
    return [c for _, _, c in data[0]]
