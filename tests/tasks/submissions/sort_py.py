"""torch. wrong: `torch.sort(x)` -> `torch.sort(x, descending=True)`"""

import torch


def custom_kernel(data):
    x, output = data
    output.copy_(torch.sort(x).values)
    return output
