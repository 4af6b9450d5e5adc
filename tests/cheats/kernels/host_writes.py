"""Counts its calls in device memory by the host's own stores, which are no launch and no operation."""
# kind: state in memory
# benchmark: changes device memory between (launches|operations)

import ctypes

counted = torch.zeros(1, dtype=torch.int32, device="cuda")
calls = 0
honest_kernel = custom_kernel


def custom_kernel(data):
    global calls
    calls += 1
    ctypes.memmove(counted.data_ptr(), calls.to_bytes(4, "little"), 4)
    return honest_kernel(data)
