"""torch. wrong: `chunk(count)[rank]` -> `chunk(count)[0]`"""

import torch
import torch.distributed as dist


def custom_kernel(data):
    x, weight, bias = data
    product = torch.nn.functional.linear(x, weight, bias)
    dist.all_reduce(product)
    count, rank = dist.get_world_size(), dist.get_rank()
    return product.chunk(count)[rank]
