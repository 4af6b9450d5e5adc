"""grouped_gemm_nvfp4 on the emulated H200, with all of its checks; test_moe_kernel.py runs this in its own process."""

import pytest
import torch

import emulator
from tests import quick_dsl
from tests.thorough import all_but


@pytest.fixture(scope="module")
def fp4():
    """moe.checks.grouped_gemm_fp4, its kernels compiled into the emulator."""
    emulator.install("h200")
    quick_dsl.install()
    from moe.checks import grouped_gemm_fp4

    return grouped_gemm_fp4


def configs():
    from moe.tuning.sm90 import FP4

    return FP4


@pytest.mark.parametrize("name, config", [("ragged", 0), ("one expert has all", 1)])
def test_cases(fp4, name, config):
    assert fp4.run(fp4.CASES[name], configs()["bf16"][config]) <= fp4.BOUND


EDGES = ["a single row, a single tile", "cut into many parts", "m_indptr not monotone", "nan", "mxfp4"]


@pytest.mark.parametrize("name", all_but(EDGES[1:3] + EDGES[4:], EDGES))
def test_edges(fp4, name):
    assert fp4.run(fp4.CASES[name], configs()["bf16"][0]) <= fp4.BOUND


def test_fp16(fp4):
    assert fp4.run(fp4.CASES["small"], configs()["f16"][0]) <= fp4.BOUND


@pytest.mark.parametrize("schedule", all_but((1, 2), range(1, 5)))
def test_orders_of_events(fp4, schedule):
    name, config = (("small", 2), ("cut into many parts", 0))[schedule % 2]
    assert fp4.run(fp4.CASES[name], configs()["bf16"][config], schedule, written=schedule < 3) <= fp4.BOUND


def test_call_with_a_checkpoints_tensors(fp4):
    """The public way: packed in place, chosen config, a new output."""
    import moe
    from moe.reference.grouped_gemm_fp4 import dequantised, reference

    g = torch.Generator().manual_seed(1)
    a, m_indptr = torch.randn(7, 128, generator=g).bfloat16(), torch.tensor([0, 3, 7], dtype=torch.int32)
    b = torch.randint(0, 256, (2, 64, 64), generator=g, dtype=torch.uint8)
    b_scale = torch.rand(2, 64, 8, generator=g).to(torch.float8_e4m3fn)
    weights = dequantised(b, b_scale.double())
    expected = reference(a, weights, torch.tensor([0.5, 0.5]), m_indptr)
    address = b.data_ptr()
    b, b_scale, b_global = moe.pack_nvfp4(b, b_scale, weight_scale_2=torch.tensor(0.5))
    assert b.data_ptr() == address and b.shape == (2, 1, 2, 2048) and b_scale.shape == (2, 1, 2, 256)
    operands = emulator.device_tensors((a, b, b_scale, b_global, m_indptr))
    out = moe.grouped_gemm_nvfp4(*operands)
    assert ((out.cpu().double() - expected).abs() <= 2**-8 * expected.abs() + 1e-4).all()
    with pytest.raises(ValueError, match="^a must be a tensor .*, and b one that pack_nvfp4 or pack_mxfp4 has packed$"):
        moe.grouped_gemm_nvfp4(a, b.view(2, 64, 64), *operands[2:])
    with pytest.raises(ValueError, match="^b_scale: dimension 3 is 128, but must be 256$"):
        moe.grouped_gemm_nvfp4(*operands[:2], operands[2][..., :128], *operands[3:])


def test_pack_refuses(fp4):
    import moe

    b, scale = torch.zeros(1, 64, 32, dtype=torch.uint8), torch.zeros(1, 64, 4).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="^b: dimension N is 32, but must be a multiple of 64 "):
        moe.pack_nvfp4(b[:, :32].contiguous(), scale)
    with pytest.raises(ValueError, match="^weight_scale_2 and weight_global_scale are both given"):
        moe.pack_nvfp4(b, scale, torch.ones(1), torch.ones(1))
    wide = torch.full((1, 64, 2), 100, dtype=torch.uint8)
    wide[0, 0, 0] = 131
    with pytest.raises(ValueError, match="^b_scale: expert 0 has exponents from 100 to 131, but they may span 30$"):
        moe.pack_mxfp4(b + 0x22, wide)


FAULTS = ["signs", "scale of another step", "second half of K", "wait"]


@pytest.mark.parametrize("fault", all_but(("scale of another step", "wait"), FAULTS))
def test_planted_faults_are_seen(fp4, monkeypatch, fault):
    """What the tests above are worth: each of these kernels fails."""
    from moe.grouped_gemm import launcher
    from moe.kernels import dequantise
    from moe.kernels.sm90 import fp4_weights as mainloop

    if fault == "signs":
        monkeypatch.setattr(dequantise, "SIGNS", 0x00008000)
    elif fault == "scale of another step":
        real = mainloop.scales_of
        monkeypatch.setattr(mainloop, "scales_of", lambda word, kind: real(word, kind)[::-1])
    elif fault == "second half of K":
        real_pair = mainloop.load_shared_pair
        monkeypatch.setattr(mainloop, "load_shared_pair", lambda at: real_pair(at & ~256))
    else:
        monkeypatch.setattr(mainloop, "wgmma_results", lambda d: d)
    launcher.cache_clear()
    try:
        assert not fp4.run(fp4.CASES["small"], configs()["bf16"][0]) <= fp4.BOUND
    except emulator.EmulatorError:
        assert fault == "wait"
    finally:
        launcher.cache_clear()
