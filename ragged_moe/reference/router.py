"""What ragged_moe.route must give."""

import torch

from ragged_moe.kernels.router import Choice
from ragged_moe.reference.layer import largest

SCORES = {
    "softmax": lambda x: x.softmax(-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda x: torch.nn.functional.softplus(x, threshold=100).sqrt(),
}


def route(
    logits: torch.Tensor, choice: Choice, bias: torch.Tensor | None = None, factor: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (topk_ids int64, topk_weights f64), [T, top_k]: computed in float64 but for what is chosen by, in f32."""
    tokens = logits.shape[0]
    scores = SCORES[choice.scoring](logits.double())
    keys = logits.float() if bias is None else scores.float() + bias.float()
    of_groups = keys.view(tokens, choice.groups, -1)
    best = of_groups.amax(2) if bias is None else of_groups.gather(2, largest(of_groups, 2)).sum(2)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, largest(best, choice.top_groups), True)
    kept = kept.repeat_interleave(choice.experts // choice.groups, 1)
    order = largest(keys, choice.experts)  # all, the best first; then those that are kept, as they are
    order = order.gather(1, largest(kept.gather(1, order).int(), choice.top_k))
    weights = scores.gather(1, order)
    if choice.renormalize:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    return order, weights * factor
