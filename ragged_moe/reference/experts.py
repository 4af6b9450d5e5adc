"""What ragged_moe.experts must give, for a choice of experts that somebody else has made."""

from collections.abc import Callable

import torch

from ragged_moe.kernels.config import Activation
from ragged_moe.reference import quantise_fp4, quantise_mxfp8, quantise_tokens
from ragged_moe.reference.grouped_gemm import reference
from ragged_moe.reference.grouped_gemm_fp4 import reference as reference_fp4
from ragged_moe.reference.grouped_gemm_fp4 import reference_by_e4m3
from ragged_moe.reference.layer import quantised
from ragged_moe.reference.tensor_core import exact
from ragged_moe.runtime.sizes import BF16, E4M3


def lists(ids: torch.Tensor, offset: int, local: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (m_indptr, rows, places) of topk_ids [T, k]: the local experts' rows, by expert, then as in topk_ids.

    m_indptr int32 [local + 1]; rows int32: the token of each; places int32 [T, k]: the row of each entry, -1 if its
    expert is not local.
    """
    flat = ids.long().flatten() - offset
    here = (flat >= 0) & (flat < local)
    order = torch.where(here, flat, local).sort(stable=True).indices[: int(here.sum())]
    places = torch.full_like(flat, -1)
    places[order] = torch.arange(len(order))
    ends = torch.bincount(flat[here], minlength=local).cumsum(0)
    m_indptr = torch.cat([ends.new_zeros(1), ends]).int()
    return m_indptr, (order // ids.shape[1]).int(), places.view(ids.shape).int()


def mapped(ids: torch.Tensor, expert_map: torch.Tensor, counts: torch.Tensor | None = None) -> torch.Tensor:
    """Return the experts that the numbers in ids [T, k] stand for, by a map [L], or [L, R] with counts [L]; -1: none.

    Of a row's first `counts` the entry j of token t has the one of number (t + j) mod counts.
    """
    found = torch.full(ids.shape, -1)
    for t, j in torch.cartesian_prod(*map(torch.arange, ids.shape)).tolist():
        e = int(ids[t, j])
        row = expert_map[e].reshape(-1) if 0 <= e < len(expert_map) else ()
        row = row[: int(counts[e])] if len(row) and counts is not None else row
        if len(row):
            found[t, j] = row[(t + j) % len(row)]
    return found


def activated(first: torch.Tensor, second: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return the activation of the results of the weights' first rows and of their second ones, in float64."""
    gate, up = (first, second) if activation.gate_first else (second, first)
    if activation.limit is not None:
        gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
    return gate * torch.sigmoid(activation.alpha * gate) * (up + activation.shift)


def experts(
    values: torch.Tensor, scales: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, w13, w13_scale, w2, w2_scale,
    offset: int = 0, activation: Activation = Activation(), dot: Callable = exact,
) -> torch.Tensor:  # fmt: skip
    """Return what the kernels compute, stage by stage, bf16 [T, H]; `dot` says how tensor cores round, if at all.

    values e4m3 [T, H], scales f32 [H/128, T]: of hidden in bf16, ragged_moe.reference.layer.quantised(hidden.float()).
    """
    m_indptr, rows, places = lists(ids, offset, len(w2))
    a = values.view(torch.uint8)[rows.long()].view(E4M3)
    product = reference(a, scales[:, rows.long()].contiguous(), w13, w13_scale, m_indptr, dot).double()
    c = quantised(activated(*product.chunk(2, 1), activation).float())
    o = reference(*c, w2, w2_scale, m_indptr, dot).to(BF16)
    return weighted(o, places, weights)


def experts_fp4(
    hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor,
    offset: int = 0, activation: Activation = Activation(), w13_bias=None, w2_bias=None, input_scales=None,
    mxfp8: bool = False, row_scales=None,
) -> torch.Tensor:  # fmt: skip
    """Return what the kernels compute with weights in e2m1, bf16 [T, H], from products in float64.

    hidden bf16 [T, H]; w13 [E, 2I, H] and w2 [E, H, I] float64: `grouped_gemm_fp4.dequantised`, times global scales.
    w13_bias [E, 2I], w2_bias [E, H]: added to their products if given. input_scales: those of W13's and of W2's input,
    f32 [1], if these are rounded to NVFP4 (W4A4). mxfp8: they are rounded to MXFP8 (W4A8 of Blackwell). row_scales:
    f32 [E, 2I] and [E, H], if they are rounded to e4m3 with a scale each (W4A8 of Hopper, with its tensor core's sums).
    """
    m_indptr, rows, places = lists(ids, offset, len(w2))
    ones, experts_of = torch.ones(len(w2)), torch.arange(len(w2)).repeat_interleave(m_indptr.diff())

    def product_of(x, w, of_all, row_scale):
        if row_scale is None:
            return reference_fp4(rounded(x, of_all, mxfp8), w, ones, m_indptr)
        return reference_by_e4m3(*quantise_tokens.quantised(x), w, row_scale, m_indptr).double()

    (of_x, of_c), (first, second) = input_scales or (None, None), row_scales or (None, None)
    product = product_of(hidden[rows.long()], w13, of_x, first)
    product = product if w13_bias is None else product + w13_bias[experts_of]
    c = activated(*product.chunk(2, 1), activation)
    o = product_of(c.float() if input_scales or mxfp8 else c.to(BF16), w2, of_c, second)
    o = (o if w2_bias is None else o + w2_bias[experts_of]).to(BF16)
    return weighted(o, places, weights)


def rounded(x: torch.Tensor, of_all: torch.Tensor | None, mxfp8: bool) -> torch.Tensor:
    """What x is after it was rounded to MXFP8, or to NVFP4 if there is a scale of all, in float64; else x."""
    if mxfp8:
        return quantise_mxfp8.fake_quantised(x)
    return x if of_all is None else quantise_fp4.fake_quantised(x, of_all) * of_all.double()


def weighted(o: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sum of each token's rows of o times their weights, in the order of `places`, in f32, as bf16."""
    out = torch.zeros(len(places), o.shape[1])
    for j in range(places.shape[1]):
        used = places[:, j] >= 0
        row, weight = o[places[used, j].long()].double(), weights[used, j, None].double()
        out[used] = (row * weight + out[used].double()).float()
    return out.to(BF16)
