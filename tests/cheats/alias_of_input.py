"""Returns views of its inputs."""
# kind: no result
# caught: returned tensor is not the given c|returned \(

import torch


def custom_kernel(data):
    return [a.view(torch.uint8).flatten().view(torch.float16) for a, _, _ in data[0]]
