"""grouped_gemm_nvfp4, and the layer, with weights packed for tokens that stay bf16 on the emulated B200.

All checks of the emulator are on. test_moe_kernel.py runs this in its own process.
"""

import pytest
import torch

import emulated_gpu
from tests.ragged_moe import fp4_layer
from tests.ragged_moe.emulated import SMS, without_cuda
from tests.ragged_moe.fp4_layer import GPT_OSS, check_order, drawn, gpt_oss_layer, planted
from tests.thorough import all_but


@pytest.fixture(scope="module")
def fp4():
    """ragged_moe.checks.grouped_gemm_fp4, its kernels compiled into the emulator."""
    without_cuda("b200", SMS)
    from ragged_moe.checks import grouped_gemm_fp4

    return grouped_gemm_fp4


# Of the norm: some elements of c, and some of the result, round to the other neighbour in bf16
FAR = 0.001


def configs():
    from ragged_moe.tuning.sm100 import FP4_BF16

    return FP4_BF16


CASES = ["ragged", "one expert has all", "a single row, a single tile", "cut into many parts", "nan", "mxfp4"]
CASES += ["m_indptr not monotone", "many tiles of a CTA", "every width, the widest last"]


@pytest.mark.parametrize("name, config", all_but([("ragged", 1)], [(name, i) for name in CASES for i in range(2)]))
def test_cases(fp4, name, config):
    assert fp4.error_of(fp4.CASES[name], configs()[config]) <= fp4.BOUND


def test_call_with_a_checkpoints_tensors(fp4):
    """The public way: packed as for Hopper, chosen config, a new output, tokens exact; and what is refused."""
    import ragged_moe
    from ragged_moe.reference.grouped_gemm_fp4 import dequantised, reference

    g = torch.Generator().manual_seed(1)
    a, m_indptr = torch.randn(7, 192, generator=g).bfloat16(), torch.tensor([0, 3, 7], dtype=torch.int32)
    b = torch.randint(0, 256, (2, 64, 96), generator=g, dtype=torch.uint8)
    b_scale = torch.rand(2, 64, 12, generator=g).to(torch.float8_e4m3fn)
    expected = reference(a, dequantised(b, b_scale.double()), torch.tensor([0.5, 0.5]), m_indptr)
    hopper = ragged_moe.pack_nvfp4(b.clone(), b_scale.clone(), torch.tensor(0.5), capability=(9, 0))
    packed = ragged_moe.pack_nvfp4(b, b_scale, torch.tensor(0.5), activation="bf16")
    assert all(map(torch.equal, hopper, packed)) and packed[0].data_ptr() == b.data_ptr()
    with emulated_gpu.session(strict=True):
        on_device = emulated_gpu.device_tensors((a, *packed, m_indptr))
        out = ragged_moe.grouped_gemm_nvfp4(*on_device).cpu()
    assert ((out.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-4).all()
    with pytest.raises(ValueError, match="^a has type torch.float16, but must have torch.bfloat16$"):
        ragged_moe.grouped_gemm_nvfp4(a.half(), *packed, m_indptr)
    with pytest.raises(ValueError, match=r'^activation is "fp8", but must be None or "bf16" for \(10, 0\)$'):
        ragged_moe.grouped_gemm_nvfp4(a, packed[0], packed[1][..., :128], *packed[2:], m_indptr)
    with pytest.raises(ValueError, match='^activation is "fp8", but must be None or "bf16" for NVFP4$'):
        ragged_moe.pack_nvfp4(b, b_scale, activation="fp8")


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", range(1, 13))
def test_orders_of_events(fp4, schedule):
    check_order(fp4, fp4.CASES, configs(), schedule, written=schedule < 4)


FAULTS = ["wait", "no wait for stores", "rows of the other warpgroup", "MMA before its weights"]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fp4, monkeypatch, fault):
    """What the tests above are worth: each of these kernels fails."""
    from ragged_moe.kernels.sm100 import fp4_tensor_memory, fp4_weights

    memory = fp4_tensor_memory.Fp4TensorMemory
    wait_full, load = memory.wait_full, fp4_weights.tmem_load_rows
    if fault == "wait":
        monkeypatch.setattr(memory, "wait_full", lambda self, barriers, turn: wait_full(self, barriers, turn - 2))
    elif fault == "no wait for stores":
        monkeypatch.setattr(fp4_weights, "tmem_store_wait", lambda: None)
    elif fault == "rows of the other warpgroup":
        monkeypatch.setattr(fp4_weights, "tmem_load_rows", lambda tmem, columns: load(tmem ^ (1 << 20), columns))
    else:  # as soon as half of the warps have stored theirs
        monkeypatch.setattr(fp4_tensor_memory, "CONSUMER_WARPS", 4)
    with planted(fault, found=("wait", "no wait for stores", "MMA before its weights")):
        assert not fp4.error_of(fp4.CASES["the ring goes round"], configs()[0]) <= fp4.BOUND


LAYER = {"hidden": 192, "intermediate": 192, "local": 4, "tokens": 6}


@pytest.fixture(scope="module")
def layer(fp4):
    """The arguments of ragged_moe.experts on the CPU, NVFP4 packed for tokens in bf16, and weights in float64."""
    return drawn(**LAYER, activation="bf16")


@pytest.mark.parametrize("schedule", all_but((3,), range(20)))
def test_layer(layer, schedule):
    """With biases and gpt-oss's activation; c alone is rounded, to bf16."""
    h, i, e, _ = LAYER.values()
    g = torch.Generator().manual_seed(3)
    biases = {"w13_bias": torch.randn(e, 2 * i, generator=g), "w2_bias": torch.randn(e, h, generator=g) / 4}
    arguments = layer[0] | biases
    found = fp4_layer.called(arguments, schedule, gate_first=True, **GPT_OSS)
    assert fp4_layer.distance(found, arguments, layer[1], {"gate_first": True, **GPT_OSS}) <= FAR


@pytest.mark.thorough
def test_layer_of_full_and_empty_experts(layer):
    """With rows for more than one tile of an expert, and none of two; permuted by a launch of its own."""
    arguments, g, tokens = dict(layer[0]), torch.Generator().manual_seed(0), 180
    arguments["hidden"] = torch.randn(tokens, LAYER["hidden"], generator=g).bfloat16() / 16
    arguments["topk_ids"] = torch.where(torch.rand(tokens, 3, generator=g) < 0.95, 2, 4).int()
    arguments["topk_ids"][:, 1:] = -1
    arguments["topk_weights"] = torch.rand(tokens, 3, generator=g)
    assert fp4_layer.distance(fp4_layer.called(arguments), arguments, layer[1], {}) <= FAR


@pytest.mark.thorough
def test_layer_of_mxfp4(fp4, tmp_path):
    """gpt-oss's, from a file, whose tokens stay bf16 by the name of the packing."""
    arguments, exact = gpt_oss_layer(tmp_path, 192, 320, 6, activation="bf16")
    found = fp4_layer.called(arguments, gate_first=True, **GPT_OSS)
    assert fp4_layer.distance(found, arguments, exact, {"gate_first": True, **GPT_OSS}) <= FAR
