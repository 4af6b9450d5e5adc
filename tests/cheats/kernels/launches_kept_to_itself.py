"""Runs its launches in its own process, where nobody checks them."""
# kind: replaces what judges
# caught: uninitialized-read|never written|crash|Fault
# benchmark: nothing to time|never written|uninitialized-read|crash|Fault

import emulated_gpu

DEVICE = emulated_gpu.DEVICE
honest_kernel = custom_kernel


def custom_kernel(data):
    DEVICE.elsewhere = None
    DEVICE.session.checks = False
    for _, _, c in data[0]:
        c.fill_(float("nan"))
    if DEVICE.session.recorded is None:
        DEVICE.session.recorded = []
    return honest_kernel(data)
