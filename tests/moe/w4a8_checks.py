"""grouped_gemm_nvfp4, and the layer, with MXFP4 weights on the emulated B200, where tokens are in MXFP8.

All checks of the emulator are on. test_moe_kernel.py runs this in its own process.
"""

import pytest
import torch

import emulator
from tests.moe.emulated import SMS, without_cuda
from tests.moe.fp4_layer import GPT_OSS, gpt_oss_file
from tests.thorough import all_but


@pytest.fixture(scope="module")
def fp4():
    """moe.checks.grouped_gemm_fp4, its kernels compiled into the emulator."""
    without_cuda("b200", SMS)
    from moe.checks import grouped_gemm_fp4

    return grouped_gemm_fp4


def configs():
    from moe.kernels.block_scaled import W4A8
    from moe.tuning.sm100 import FP4

    return FP4[W4A8]


CASES = ["ragged", "small", "one expert has all", "a single row, a single tile", "cut into many parts", "nan", "mxfp4"]
CASES += ["m_indptr not monotone", "many tiles of a CTA", "extremes", "sizes of gpt-oss"]


@pytest.mark.parametrize("name", all_but(("nan",), CASES))
@pytest.mark.parametrize("config", all_but((1,), range(2)))
def test_cases(fp4, name, config):
    assert fp4.run(fp4.W4A8_CASES[name], configs()[config]) <= fp4.BOUND


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", range(1, 21))
def test_orders_of_events(fp4, schedule):
    name = ("the ring goes round", "cut into many parts", "many tiles of a CTA", "one expert has all")[schedule % 4]
    config = configs()[schedule // 4 % 2]
    assert fp4.run(fp4.W4A8_CASES[name], config, schedule, written=schedule < 8) <= fp4.BOUND


def test_tokens_are_quantised_to_the_references_bits(fp4):
    """Blocks of all sizes that bf16 has, zeros, 448 and what is just above, subnormal numbers, NaN and infinities."""
    from moe.grouped_gemm_fp4 import quantise_program
    from moe.kernels.block_scaled import W4A8
    from moe.reference.quantise_mxfp8 import quantised

    rows, k, g = 11, 1088, torch.Generator().manual_seed(3)
    sizes = torch.randint(-133, 127, (rows, k // 32), generator=g).double()
    x = (torch.randn(rows, k, generator=g).double() * torch.exp2(sizes).repeat_interleave(32, 1)).clamp(-3e38, 3e38)
    x[0, :32], x[0, 32:64], x[0, 64:96] = 0, 448, 450
    x[1, 3], x[1, 40], x[1, 70] = torch.nan, torch.inf, -torch.inf
    x = x.bfloat16()
    values, scales = quantised(x)
    with emulator.session(strict=True):
        to = torch.zeros(rows, W4A8.record_bytes(k), dtype=torch.uint8)
        on_device = emulator.device_tensors((x, to))
        addresses = [t.data_ptr() for t in on_device]
        quantise_program(torch.device("cpu"), W4A8)(*addresses, 0, 0, 0, rows, k, 3, 0)
        found = on_device[1].cpu()
    of_values, of_scales = found[:, :k], found[:, k : k + k // 32]
    assert torch.equal(of_values & 0x7F, values.view(torch.uint8) & 0x7F) and not found[:, k + k // 32 :].any()
    sign = (of_values ^ values.view(torch.uint8)) & 0x80
    assert not sign[~values.float().isnan()].any()
    assert torch.equal(of_scales, scales) and scales[0, :3].tolist() == [0, 127, 128] and scales.max() == 247


LAYER = {"hidden": 192, "intermediate": 320, "local": 4, "tokens": 6}  # neither is a multiple of 128


def drawn(tmp_path, hidden: int, intermediate: int, tokens: int) -> tuple[dict, dict, dict]:
    """The arguments of moe.experts from a checkpoint of gpt-oss's layout, without and with biases, and the weights in
    float64: experts 1 to 4 of 6.
    """
    from moe.integrations.checkpoints import mxfp4_experts
    from moe.reference.grouped_gemm_fp4 import dequantised, e8m0

    made = gpt_oss_file(tmp_path / "model.safetensors", hidden, intermediate)
    g, exact = torch.Generator().manual_seed(6), {}
    for name, key in (("w13", "gate_up_proj"), ("w2", "down_proj")):
        weights = dequantised(made[f"{key}_blocks"].flatten(2), e8m0(made[f"{key}_scales"]))
        exact[name] = (torch.cat((weights[:, ::2], weights[:, 1::2]), 1) if name == "w13" else weights)[1:5]
    arguments = mxfp4_experts(tmp_path, "model.layers.0.mlp.experts", range(1, 5), "cpu")
    assert arguments.pop("gate_first")
    arguments["hidden"] = torch.randn(tokens, hidden, generator=g).bfloat16()
    arguments["topk_ids"] = torch.stack([torch.randperm(6, generator=g)[:3] for _ in range(tokens)]).int()
    arguments["topk_weights"] = torch.rand(tokens, 3, generator=g)
    return {name: x for name, x in arguments.items() if "bias" not in name}, arguments, exact


@pytest.fixture(scope="module")
def layer(fp4, tmp_path_factory):
    return drawn(tmp_path_factory.mktemp("gpt-oss"), LAYER["hidden"], LAYER["intermediate"], LAYER["tokens"])


def called(arguments, schedule=0, **options):
    """Call moe.experts as torch's operator, as if the launch before had written all operands; experts 0 and 5 are
    elsewhere.
    """
    from moe import torch_ops  # noqa: F401

    with emulator.session(schedule=schedule, strict=True):
        tensors = emulator.device_tensors(tuple(arguments.values()))
        emulator.protect(tensors)
        emulator.written(tensors)
        given = dict(zip(arguments, tensors)) | {"local_expert_offset": 1, "num_experts": 6, "gate_first": True}
        return torch.ops.moe.experts(**given, **options).cpu()


def distance(found, arguments, exact, **activation):
    """Of the norm, from what the kernels should give."""
    from moe.kernels.config import Activation
    from moe.reference import experts, layer

    given = [arguments[name] for name in ("hidden", "topk_ids", "topk_weights")]
    biases = [arguments.get(f"{name}_bias") for name in ("w13", "w2")]
    expected = experts.experts_fp4(
        *given, exact["w13"], exact["w2"], 1, Activation(gate_first=True, **activation), *biases, mxfp8=True
    )  # fmt: skip
    assert expected.isfinite().all() and expected.float().norm() > 1
    return layer.distance(found, expected)


# Of the norm: some results round to the other neighbour in bf16, and now and then an element of c does in e4m3
FAR = 0.0005


@pytest.mark.parametrize("schedule", all_but((3,), range(20)))
def test_layer(layer, schedule):
    """As gpt-oss has it, with biases, and I and H that end inside a tile and a k-block."""
    assert distance(called(layer[1], schedule, **GPT_OSS), layer[1], layer[2], **GPT_OSS) <= FAR
