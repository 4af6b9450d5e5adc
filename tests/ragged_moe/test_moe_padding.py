"""Weights padded to whole blocks are the same experts, also those that begin in the middle of a block."""

import pytest
import torch

from ragged_moe.reference.layer import dequantised, draw
from ragged_moe.runtime.pad_weights import pad_intermediate
from ragged_moe.runtime.sizes import Sizes


def slices(x, i: int, which: int) -> tuple:
    """One of the slices of I columns of a layer's weights, and how far it begins behind a block's beginning."""
    begin, end = which * i, (which + 1) * i
    blocks = slice(begin // 128, -(-end // 128))
    whole, h = x.gemm2_weights.shape[2], x.gemm2_weights.shape[1]
    w13 = x.gemm1_weights.view(-1, 2, whole, h)[:, :, begin:end].reshape(-1, 2 * i, h)
    w13_scale = x.gemm1_weights_scale.view(-1, 2, whole // 128, h // 128)[:, :, blocks].flatten(1, 2)
    return (w13, w13_scale, x.gemm2_weights[:, :, begin:end], x.gemm2_weights_scale[:, :, blocks]), begin % 128


@pytest.mark.parametrize("which", [0, 1])
def test_padded(which):
    """Of each of two ranks with 192 of 384 columns: what was dequantised before, and zeros."""
    x = draw(Sizes(hidden=256, intermediate=384, local=2), 1)
    given, before = slices(x, 192, which)
    w13, w13_scale, w2, w2_scale = pad_intermediate(*given, before)
    assert before == 64 * which and w13.shape == (2, 512, 256) and w2.shape == (2, 256, 256)
    inside = slice(before, before + 192)
    halves = dequantised(w13, w13_scale).view(2, 2, 256, 256)
    of_x = dequantised(x.gemm1_weights, x.gemm1_weights_scale).view(2, 2, 384, 256)
    columns = slice(192 * which, 192 * (which + 1))
    assert torch.equal(halves[:, :, inside], of_x[:, :, columns]) and halves[:, :, inside].any()
    back, of_x = dequantised(w2, w2_scale), dequantised(x.gemm2_weights, x.gemm2_weights_scale)
    assert torch.equal(back[:, :, inside], of_x[:, :, columns])
    halves[:, :, inside], back[:, :, inside] = 0, 0
    assert not halves.any() and not back.any()


@pytest.mark.parametrize("change, sentence", [
    (lambda a: a | {"w13_scale": a["w13_scale"][:, :3]}, r"w13_scale has shape \(2, 3, 2\), but must have \(2, 4, 2\)"),
    (lambda a: a | {"w2": a["w2"].float()}, "w2 must be a tensor of 3 dimensions and torch.float8_e4m3fn"),
    (lambda a: a | {"before": 128}, "before is 128, but must be an int from 0 to 127"),
])  # fmt: skip
def test_refused(change, sentence):
    given, _ = slices(draw(Sizes(hidden=256, intermediate=384, local=2), 1), 192, 0)
    with pytest.raises(ValueError, match=f"^{sentence}"):
        pad_intermediate(**change(dict(zip(("w13", "w13_scale", "w2", "w2_scale"), given))))
