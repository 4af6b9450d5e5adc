"""Marlin's layout of weights and scales, entry by entry, Humming's, and what --marlin and --humming refuse."""

import click
import pytest
import torch

from ragged_moe.measure import humming, marlin, options


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


@pytest.mark.parametrize("option, file", [
    ("marlin", "sglang/kernels/ops/moe/moe_wna16_marlin.py"), ("humming", "humming/layer.py"),
])  # fmt: skip
def test_folder_without_the_peer(option, file, tmp_path):
    """A folder that does not have it, a format that it does not do."""
    folders = {"of_marlin": None, "of_humming": None, f"of_{option}": tmp_path}
    with pytest.raises(click.UsageError, match=f"^--{option} is a peer of --format nvfp4$"):
        options.chosen_peers("fp8", None, **folders)
    with pytest.raises(click.UsageError, match=f"^--{option}: .* has no {file}"):
        options.chosen_peers("nvfp4", None, **folders)


def test_hummings_form_of_weights(monkeypatch):
    """What a checkpoint has goes to Humming's layer by name, in its shapes, before the layer transforms it."""
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda self: self)

    class Layer(torch.nn.Module):
        def __init__(self, **given):
            super().__init__()
            self.given, self.transformed = given, False
            for name, shape, dtype in (
                ("weight", (2, 4, 8), torch.uint8),
                ("weight_scale", (2, 4, 1), torch.float8_e4m3fn),
                ("weight_scale_2", (2, 1), torch.float32),
            ):
                self.register_buffer(name, torch.zeros(shape).to(dtype))

        def transform(self):
            self.transformed = bool(self.weight.any())

        def forward(self, a, outputs, expert_layout, compute_config):
            assert compute_config == '{"gemm_type": "grouped_contiguous"}'
            outputs.copy_(a + expert_layout[-1])

    b = torch.arange(64, dtype=torch.uint8).view(2, 4, 8)
    scale, of_experts = torch.ones(2, 4, 1).to(torch.float8_e4m3fn), torch.tensor([0.5, 2.0])
    layer = humming.layer_of(Layer, b, scale, of_experts)
    assert layer.transformed and torch.equal(layer.weight, b) and layer.weight_scale_2.flatten().tolist() == [0.5, 2.0]
    expected = {"shape_n": 4, "shape_k": 16, "num_experts": 2, "torch_dtype": torch.bfloat16}
    assert expected.items() <= layer.given.items() and layer.given["weight_config"]["quant_algo"] == "nvfp4"
    out = torch.zeros(3)
    humming.multiply(layer, torch.ones(3), torch.tensor([0, 1, 3]), out)
    assert out.tolist() == [4.0] * 3
