"""torch. wrong: `h.clone()` -> `h + 1`"""

import torch

CHUNK = 64


def custom_kernel(data):
    k, w, u, g = (x.float().transpose(1, 2) for x in data)
    batch, heads, length, width = k.shape
    h = torch.zeros(batch, heads, width, u.shape[-1], device=k.device)
    states, updates = [], []
    for start in range(0, length, CHUNK):
        part = slice(start, start + CHUNK)
        states.append(h.clone())
        updates.append(u[:, :, part] - w[:, :, part] @ h)
        last = g[:, :, start + CHUNK - 1, None, None]
        gated = updates[-1] * (last[..., 0] - g[:, :, part]).exp()[..., None]
        h.mul_(last.exp()).add_(k[:, :, part].mT @ gated)
    return torch.stack(states, 1).to(data[0].dtype), torch.cat(updates, 2).transpose(1, 2).to(data[2].dtype)
