"""What grouped_gemm_fp8 refuses: one sentence with operand, dimension and rule, before anything is compiled."""

import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ragged_moe.checks.grouped_gemm import Case
from ragged_moe.kernels.config import BARRIER_BYTES, SMEM, TABLE_BYTES, Config
from ragged_moe.layers import grouped_gemm_fp8 as grouped_gemm
from ragged_moe.layers.grouped_gemm_fp8 import grouped_gemm_fp8
from ragged_moe.runtime import device
from ragged_moe.tuning import sm90, sm100
from ragged_moe.tuning.sm90 import (
    GEMM,
    M16_SWAP_AB,
    M128_N64_SPLIT_K,
    M128_N128_C2,
    M128_N224,
    M128_N224_C2,
    M128_N256,
    M128_N256_C2,
    M128_N256_C2_BURST2,
    choose_gemm,
)


@pytest.fixture(autouse=True)
def no_launch(monkeypatch):
    """CPU tensors are taken for an emulated GPU's, and nothing is launched there."""

    def launcher(*_):
        raise AssertionError("it was not refused")

    monkeypatch.setattr(grouped_gemm, "launcher", launcher)
    monkeypatch.setattr(device, "emulated", lambda: True)
    monkeypatch.setattr(device.EmulatedGpu, "reaches", lambda *_: True)
    grouped_gemm.plan.cache_clear()


def operands() -> dict[str, torch.Tensor]:
    names = "a", "a_scale", "b", "b_scale", "m_indptr"
    return dict(zip(names, Case((3, 5), 256, 384).draw())) | {"out": torch.empty(8, 256, dtype=torch.bfloat16)}


@pytest.mark.parametrize(
    "name, change, sentence",
    [
        ("a", lambda t: t.float(), "a has type torch.float32, but must have torch.float8_e4m3fn"),
        ("a", lambda t: t[:, :200], "a: dimension K is 200, but must be a multiple of 128 from 128 to 16777216"),
        ("a", lambda t: t[0], "a must be a tensor [total_M, K]"),
        ("a", lambda t: t.T.contiguous().T, "a: dimension 0 has stride 1, but must have 384: it must be contiguous"),
        ("a_scale", lambda t: t.T, "a_scale: dimension 0 is 8, but must be 3"),
        ("a_scale", lambda t: t.T.contiguous().T, "a_scale: dimension 0 has stride 1, but must have 8"),
        ("a_scale", lambda t: t.double(), "a_scale has type torch.float64, but must have torch.float32"),
        ("b", lambda t: t[:, :200], "b: dimension N is 200, but must be a multiple of 128 from 128 to 16777216"),
        ("b", lambda t: t[:, :, :256], "b: dimension 2 is 256, but must be 384"),
        ("b", lambda t: t[:0], "b: dimension E is 0, but must be from 1 to 512"),
        ("b_scale", lambda t: t[:, :1], "b_scale: dimension 1 is 1, but must be 2"),
        ("b_scale", lambda t: t[0], "b_scale has 2 dimensions, but must have the 3 of (2, 2, 3)"),
        ("m_indptr", lambda t: t[:2], "m_indptr: dimension 0 is 2, but must be 3"),
        ("m_indptr", lambda t: t.long(), "m_indptr has type torch.int64, but must have torch.int32"),
        ("m_indptr", lambda t: [0, 3, 8], "m_indptr is a list, but must be a tensor"),
        ("m_indptr", lambda t: t.to("meta"), "m_indptr is on meta, but must be on cpu, as a is"),
        ("out", lambda t: t.half(), "out has type torch.float16, but must have torch.bfloat16"),
        ("out", lambda t: t[:7], "out: dimension 0 is 7, but must be 8"),
    ],
)
def test_refused(name, change, sentence):
    given = operands()
    given[name] = change(given[name])
    with pytest.raises(ValueError, match="^" + sentence.replace("[", r"\[").replace("(", r"\(").replace(")", r"\)")):
        grouped_gemm_fp8(**given)


def without_memory(kind: str, tensors: dict, names: set) -> dict:
    """The operands, those of these names without memory that a GPU could reach."""
    if kind == "fake":
        mode = FakeTensorMode()
        return {name: mode.from_tensor(x) if name in names else x for name, x in tensors.items()}
    return {name: x.to("meta") if name in names and kind == "meta" else x for name, x in tensors.items()}


@pytest.mark.parametrize("kind, sentence", [
    ("fake", "a has no memory on the GPU: it is a fake tensor, or one that torch traces"),
    ("meta", "a is on meta, but must be on a CUDA GPU"),
    ("cpu", "a is on cpu, but must be on a CUDA GPU"),
    ("host", "a is not in the emulated GPU's memory: emulated_gpu.device_tensors makes a copy that is"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_tensors_without_memory_are_refused(monkeypatch, kind, sentence):
    """In one sentence, before a kernel is made, and out stays as it was. A GPU's fake tensors have address 0."""
    monkeypatch.undo()
    monkeypatch.setattr(grouped_gemm, "launcher", lambda *_: pytest.fail("it was not refused"))
    if kind == "fake":
        monkeypatch.setattr(grouped_gemm, "device_of", lambda *_: real_gpu())
    monkeypatch.setattr(device, "emulated", lambda: kind == "host")  # another test may have installed one
    grouped_gemm.plan.cache_clear()
    given = operands()
    out = given["out"] = given["out"].fill_(7)
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        grouped_gemm_fp8(**without_memory(kind, given, set(given) - {"out"}))
    assert (out == 7).all()


@pytest.mark.parametrize("name", ["a_scale", "b", "b_scale", "m_indptr", "out"])
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_one_fake_tensor_is_named(monkeypatch, name):
    monkeypatch.setattr(grouped_gemm, "device_of", lambda *_: real_gpu())
    with pytest.raises(ValueError, match=f"^{name} has no memory on the GPU"):
        grouped_gemm_fp8(**without_memory("fake", operands(), {name}))


def real_gpu() -> device.Gpu:
    """A CUDA GPU, as far as it answers without one."""
    gpu = object.__new__(device.Gpu)
    gpu.index, gpu.sms, gpu.capability, gpu.is_current = 0, 132, (9, 0), lambda: True
    return gpu


def test_a_gpu_that_torch_does_not_find():
    """In the mode of fake tensors it is not asked for: the operator answers."""
    if not torch.cuda.is_available():
        with FakeTensorMode():
            given = [torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in operands().values()]
            assert grouped_gemm_fp8(*given[:5]).shape == given[5].shape and grouped_gemm_fp8(*given) is given[5]
        with pytest.raises(ValueError, match="^a is on cuda:0, but torch finds no CUDA GPU here$"):
            grouped_gemm_fp8(*given)


@pytest.mark.parametrize("name", ["a_scale", "b_scale", "out"])
def test_a_negated_view_is_refused_where_devices_are_numbered(name):
    """As CUDA's are: its memory would be taken for its numbers."""
    given = operands()
    call = grouped_gemm.plan(given["a"].shape, given["b"].shape, given["a"].device)
    call.index, call.indexed = -1, True
    with pytest.raises(ValueError, match=f"^{name} is negated when it is read"):
        grouped_gemm_fp8(**given | {name: torch._neg_view(given[name])})


def test_good_operands_reach_the_launch():
    """The test of the tests above: unchanged operands are not refused, also where a stride does not matter."""
    given = operands()
    given["a"] = given["a"][:1].as_strided((1, 384), (7, 1))
    given |= {"a_scale": given["a_scale"][:, :1].contiguous(), "out": given["out"][:1]}
    given["m_indptr"] = torch.tensor([0, 1, 1], dtype=torch.int32)
    for good in (operands(), given):
        with pytest.raises(AssertionError, match="it was not refused"):
            grouped_gemm_fp8(**good)


def test_no_rows_is_no_launch():
    out = grouped_gemm_fp8(*Case((0, 0), 128, 128).draw())
    assert out.shape == (0, 128) and out.dtype == torch.bfloat16


@pytest.mark.parametrize("config", [*GEMM, Config(block_m=32), Config(block_m=64), Config(block_m=128)])
def test_shared_memory(config):
    """It fits, with a ring of as many stages as do; whatever is addressed by 1024 bytes or 16 is aligned to them."""
    assert config.smem <= SMEM < config.smem + config.stage_bytes + config.scale_bytes
    assert config.stage_bytes % 1024 == 0 and config.scale_bytes % 16 == 0 and (TABLE_BYTES + BARRIER_BYTES) % 8 == 0


def test_configs_say_their_shape():
    assert str(M16_SWAP_AB) == "16x128x128 swap-ab burst4 prefetch2"
    assert str(M128_N256_C2) == "128x256x128 cluster2 prefetch2"
    assert str(M128_N64_SPLIT_K) == "128x64x128 splitk2 prefetch2"
    assert str(sm100.M256_N256_2CTA) == "256x256x128 2cta prefetch2"
    assert str(sm90.GATED_M128_C2) == "128x256x128 cluster2 gated permuted"
    assert all(len({str(config) for config in configs}) == len(configs) for configs in (GEMM, sm100.GEMM, sm90.GEMM1))


def test_choose():
    """Every config is chosen for some sizes; whole tiles for nearly all SMs where there are such."""
    of_layers = (4096, 7168), (7168, 2048), (7168, 7168)
    sizes = [(e * m, e, n, k) for e in (1, 2, 4, 8, 16, 32) for m in (8, 64, 128, 256, 512) for n, k in of_layers]
    assert {choose_gemm(*x) for x in sizes} == set(GEMM)
    assert choose_gemm(64, 8, 4096, 7168) == M16_SWAP_AB
    assert choose_gemm(2048, 16, 4096, 7168) == M128_N128_C2  # 256 tiles of 256 rows for 132 SMs
    assert choose_gemm(896, 7, 4096, 7168) == M128_N256_C2_BURST2  # 112
    assert choose_gemm(512, 4, 7168, 7168) == choose_gemm(1024, 8, 7168, 7168) == M128_N224_C2  # 128, 256 of 224 rows
    assert choose_gemm(2048, 4, 7168, 7168) == M128_N224  # 512
    assert choose_gemm(4096, 8, 7168, 7168) == M128_N256_C2  # 1024
    assert choose_gemm(8192, 32, 4096, 7168) == choose_gemm(32 * 272, 32, 4096, 7168) == sm90.M128_N256_C2_TAIL
    assert choose_gemm(512, 4, 2560, 7168) == M128_N128_C2  # 40
    assert choose_gemm(4096, 32, 7168, 2048, routed=True) == M128_N256_C2
    assert choose_gemm(2048, 32, 7168, 2048, routed=True) == M128_N256_C2_BURST2
    assert choose_gemm(512, 32, 7168, 2048, routed=True) == M128_N256_C2_BURST2
    assert choose_gemm(256, 32, 7168, 2048, routed=True) == choose_gemm(512, 32, 7168, 2048) == M16_SWAP_AB
    assert choose_gemm(4096, 32, 7168, 2048) == choose_gemm(4096, 32, 4096, 7168) == M128_N256_C2_BURST2
    assert choose_gemm(512, 4, 7168, 2048) == M128_N224 and M128_N224.grid(132, 512, 7168, 4) == 128
    assert choose_gemm(1024, 2, 4096, 7168) == M128_N256 and M128_N256.grid(132, 1024, 4096, 2) == 128
    assert choose_gemm(100, 1, 4096, 7168) == M128_N64_SPLIT_K and M128_N64_SPLIT_K.grid(132, 100, 4096, 1) == 128
    assert M16_SWAP_AB.grid(132, 100, 16384, 1) == M128_N128_C2.grid(132, 1024, 7168, 8) == 132
    assert M128_N64_SPLIT_K.grid(132, 1, 2048, 1) == 132


def test_choose_fp4():
    """Every config is chosen for some sizes; the widest tile holds what most experts of a mean have."""
    sizes = [(e * m, e, 4096, 7168) for e in (1, 32) for m in (8, 16, 64, 80, 128, 200)]
    assert {sm90.choose_fp4(*x, "bf16") for x in sizes} == {*sm90.FP4["bf16"]}
    tiles = {8: 16, 9: 64, 40: 64, 41: 112, 80: 112, 81: 144, 128: 144, 289: 144}
    for mean, tile in tiles.items():
        assert sm90.choose_fp4(32 * mean, 32, 4096, 7168, "f16").block_m == tile
        assert sm90.choose_fp4_gemm1(32 * mean, 32, 4096).block_m == tile


@pytest.mark.parametrize("arch, tuning", [("sm90", sm90), ("sm100", sm100)])
def test_files_are_named_by_the_tokens_that_they_serve(arch, tuning):
    """Mainloops of kernels/ARCH are in files that say up to, or from, how many tokens an expert they run."""
    for name in (path.stem for path in (Path(grouped_gemm.__file__).parent / "kernels" / arch).glob("*_tokens.py")):
        bound, swap_ab = int(re.search(r"\d+", name)[0]), name.startswith("swap_ab")
        inside, outside = (bound, bound + 1) if "_to_" in name else (bound, bound - 1)
        for m, expected in ((inside, True), (outside, False)):
            config = tuning.choose_gemm(8 * m, 8, 7168, 7168)
            assert (config.two_cta if "two_cta" in name else config.swap_ab == swap_ab) == expected, (name, m)


def test_a_wrong_shape_of_b_is_seen_where_the_gpu_tells_its_tensors(monkeypatch):
    """As on a real GPU, where operands that are right are not looked at one by one."""
    monkeypatch.setattr(device.EmulatedGpu, "indexed", True)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: None)
    tensors = operands()
    with pytest.raises(ValueError, match="^b: dimension 2 is 256, but must be 384$"):
        grouped_gemm_fp8(**tensors | {"b": tensors["b"][:, :, :256].contiguous()})
