"""Launches a grid whose first size is no number."""
# kind: forged messages
# caught: the submission's process sent something that is not a reply

import emulated_gpu

launch_itself = emulated_gpu.DEVICE.elsewhere
honest_kernel = custom_kernel


class Endless(list):
    def __iter__(self):
        return iter((float("inf"), 1, 1))


def custom_kernel(data):
    emulated_gpu.DEVICE.elsewhere = lambda module, kernel, grid, *rest, **options: launch_itself(
        module, kernel, Endless(), *rest, **options
    )
    return honest_kernel(data)
