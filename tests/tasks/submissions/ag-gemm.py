"""torch. wrong: `torch.cat(parts)` -> `torch.cat(parts[::-1])`"""

import torch
import torch.distributed as dist


def custom_kernel(data):
    x, weight, bias = data
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.nn.functional.linear(torch.cat(parts), weight, bias)
