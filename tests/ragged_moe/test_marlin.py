"""Marlin's layout of weights and scales, entry by entry, and what --marlin refuses."""

import click
import pytest
import torch

from ragged_moe.measure import marlin


def test_weights():
    """A word has k, k + 8 of column n and of n + 8, then the same of k + 1."""
    n, k = 128, 64
    g = torch.Generator().manual_seed(0)
    b = torch.randint(0, 256, (n, k // 2), generator=g, dtype=torch.uint8)
    codes, words = torch.stack((b & 15, b >> 4), -1).view(n, k), marlin.of_expert(b)
    assert words.shape == (k // 16, 2 * n)
    for column in range(n):
        for row in range(k):
            word = column // 64 * 128 + column % 8 * 16 + row % 8 // 2 * 4 + column % 64 // 16
            place = row % 2 * 4 + column % 16 // 8 * 2 + row % 16 // 8
            assert (int(words[row // 16, word]) >> 4 * place) & 15 == codes[column, row]


def test_scales():
    """Of 64 columns those that are 8 apart lie side by side, the middle two of each four swapped; 2^7 times an f16."""
    scale = torch.rand(128, 4, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)
    found = marlin.scales_of(scale).view(torch.uint8).short()
    for column in range(128):
        at = column % 8 * 8 + column % 64 // 8
        at = column // 64 * 64 + at // 4 * 4 + (0, 2, 1, 3)[at % 4]
        assert torch.equal((found[:, at] << 7).view(torch.float16).float() / 128, scale[column].float())


def test_block_of_sglang():
    assert [marlin.own_block(8 * m, 8) for m in (1, 8, 16, 64, 512)] == [8, 16, 32, 64, 64]


def test_folder_without_marlin(tmp_path):
    assert marlin.load_marlin("nvfp4", None) is None
    with pytest.raises(click.UsageError, match="^--marlin is a peer of --format nvfp4$"):
        marlin.load_marlin("fp8", tmp_path)
    with pytest.raises(click.UsageError, match="^--marlin: .* has no sglang/kernels/ops/moe/moe_wna16_marlin.py"):
        marlin.load_marlin("nvfp4", tmp_path)
