"""What peers' functions call: ragged_moe's, on tensors as peers have them. Calls are counted for the test that runs."""

from collections import Counter

import torch
from torch.nn.functional import pad

import ragged_moe

BLOCK = 128
judged: Counter[str] = Counter()  # calls of ragged_moe's functions in the test that runs


class Refused(ValueError):
    """A peer's call asks for what ragged_moe does not do."""


def require(is_so: bool, what: str) -> None:
    """Refused unless it is so: `what` the call asks for."""
    if not is_so:
        raise Refused(what)


class Given:
    """A call's arguments by name, None for those that were not given. names: of those that may come by their place."""

    def __init__(self, names: str, args: tuple, options: dict[str, object]):
        vars(self).update(dict(zip(names.split(), args)) | options)

    def __getattr__(self, name: str) -> None:
        return None


def bf16(x: torch.Tensor | None) -> torch.Tensor | None:
    """Tensors in f16 and f32 as bf16; others as they are."""
    return x.bfloat16() if x is not None and x.dtype in (torch.float16, torch.float32) else x


def padded(x: torch.Tensor, dim: int, halves: int = 1) -> torch.Tensor:
    """Zeros behind each half of a dimension, up to a multiple of 128."""
    size = x.shape[dim] // halves
    more = -size % BLOCK
    if not more:
        return x.contiguous()
    parts = x.view(*x.shape[:dim], halves, size, *x.shape[dim + 1 :])
    behind = x.dim() - dim - 1
    return pad(parts, (0, 0) * behind + (0, more)).flatten(dim, dim + 1)


def experts(hidden, ids, weights, w13, w13_scale, w2, w2_scale, **options) -> torch.Tensor:
    """ragged_moe.experts, for hidden and weights in f16, too, which become bf16, and any I and H of weights in bf16.

    Returns bf16.
    """
    judged["experts"] += 1
    hidden = bf16(hidden).contiguous()
    width = hidden.shape[1]
    if w13_scale is None:
        w13, w2 = padded(padded(bf16(w13), 1, 2), 2), padded(padded(bf16(w2), 1), 2)
        hidden = padded(hidden, 1)
    elif w2.dtype is torch.float8_e4m3fn and w2.shape[2] % BLOCK:
        w13, w13_scale, w2, w2_scale = ragged_moe.pad_intermediate(w13, w13_scale, w2, w2_scale)
    ids = ids.contiguous() if ids.dtype in (torch.int32, torch.int64) else ids.int()
    out = ragged_moe.experts(hidden, ids, weights.float().contiguous(), w13, w13_scale, w2, w2_scale, **options)
    return out[:, :width].contiguous() if out.shape[1] != width else out


def batched_experts(*operands, **options) -> torch.Tensor:
    """ragged_moe.batched_experts."""
    judged["batched_experts"] += 1
    return ragged_moe.batched_experts(*operands, **options)


def route(logits: torch.Tensor, top_k: int, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """ragged_moe.route, for logits and a bias in f16, too, which become f32: (topk_ids, topk_weights)."""
    judged["route"] += 1
    bias = options.get("bias")
    half = [x.float() if x is not None and x.dtype is torch.float16 else x for x in (logits, bias)]
    return ragged_moe.route(half[0].contiguous(), top_k, **options | {"bias": half[1]})
