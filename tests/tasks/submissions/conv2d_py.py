"""torch. wrong: `columns(x)` -> `columns(x.flip(3))`"""

import torch


def custom_kernel(data):
    x, weight, output = data
    columns = torch.nn.Unfold(weight.shape[2:])
    output.copy_((weight.flatten(1) @ columns(x)).view(output.shape))
    return output
