"""Allocates until there is no memory left."""
# kind: hangs and crashes
# caught: memory

import torch

hoard = []


def custom_kernel(data):
    while True:
        hoard.append(torch.empty(2**30, dtype=torch.uint8))
