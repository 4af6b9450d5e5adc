"""torch. wrong: `length - 1` -> `length`"""

import math

import torch

RANK, ROPE, NOPE, HEADS = 512, 64, 128, 128


def rotated(x, first):
    half = x.shape[-1] // 2
    theta = 10000 ** (-torch.arange(half, dtype=torch.bfloat16) / half)
    positions = torch.arange(first, first + x.shape[-2], device=x.device)
    angles = torch.einsum("s,d->sd", positions, theta.to(x.device)).repeat(1, 2)
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * angles.cos().to(torch.bfloat16) + turned * angles.sin().to(torch.bfloat16)


def custom_kernel(data):
    config, x, cache = data
    batch = len(x)
    query = x @ config.Q_proj_down_weight.T @ config.Q_proj_up_weight.T
    query = query.view(batch, 1, HEADS, NOPE + ROPE).transpose(1, 2)
    latent, length = cache(x @ config.KV_proj_down_weight.T)
    both = (latent[..., :RANK] @ config.KV_proj_up_weight.T).view(batch, length, HEADS, -1).transpose(1, 2)
    turned = rotated(latent[:, None, :, RANK:], 0).expand(-1, HEADS, -1, -1)
    key = torch.cat((both[..., :NOPE], turned), -1)
    query = torch.cat((query[..., :NOPE], rotated(query[..., NOPE:], length - 1)), -1)
    scores = torch.softmax(query @ key.mT / math.sqrt(NOPE + ROPE), -1).to(torch.bfloat16)
    out = (scores @ both[..., NOPE:]).view(batch, 1, -1) @ config.wo_weight.T
    return out, cache.get_data()
