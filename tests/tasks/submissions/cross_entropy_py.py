"""torch. wrong: `scatter_add_(1, at, -ones)` -> `scatter_add_(1, at, ones)`"""

import torch


def cross_entropy_forward(logits, targets):
    wide = logits.float()
    return wide.logsumexp(1) - wide.gather(1, targets[:, None])[:, 0]


def cross_entropy_backward(logits, targets, grad_output):
    at, ones = targets[:, None], torch.ones(len(targets), 1, device=logits.device)
    gradients = logits.float().softmax(1)
    return gradients.scatter_add_(1, at, -ones).mul_(grad_output[:, None]).to(logits.dtype)
