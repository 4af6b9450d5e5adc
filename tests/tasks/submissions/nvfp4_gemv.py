"""torch. wrong: `[0, 0.5, 1, 1.5` -> `[0, 0.5, 1, 1.25`"""

import torch

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def plain(packed, scales, batch):
    """float32 [rows, K] of one batch: element 2 i is in the low half of byte i, a scale is of 16 elements."""
    codes = packed[:, :, batch].cpu().view(torch.uint8)
    codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1).long()
    values = VALUES[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
    return values * scales[:, :, batch].cpu().float().repeat_interleave(16, 1)


def custom_kernel(data):
    a, b, scales_a, scales_b, *_, c = data
    for batch in range(c.shape[2]):
        product = plain(a, scales_a, batch) @ plain(b, scales_b, batch).T
        c[:, :, batch] = product[:, : c.shape[1]].half().cuda()
    return c
