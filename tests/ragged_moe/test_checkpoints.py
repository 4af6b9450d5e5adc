"""Checkpoints in each format that is read, written as its definition says, and what is said of one that is not."""

import itertools
import re

import pytest
import torch
from safetensors.torch import save_file

from ragged_moe import pack_mxfp4, pack_nvfp4
from ragged_moe.integrations.checkpoints import bf16_experts, fp8_experts, mxfp4_experts, nvfp4_experts
from ragged_moe.layers import pack_weights

PREFIX, HIDDEN, EXPERTS = "model.layers.3.mlp.experts", 256, 3
PROJECTIONS = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")  # as Mixtral's code calls them
E4M3, E8M0, F32, BF16, U8 = torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float32, torch.bfloat16, torch.uint8


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    """Weights are packed for Hopper, unless a test asks for `capability`."""
    monkeypatch.setattr(pack_weights, "reader", lambda *_: (9, 0))


@pytest.fixture(params=[(9, 0), (10, 0)], ids=["hopper", "blackwell"])
def capability(request, hopper, monkeypatch):
    """Of the GPU that weights are packed for."""
    monkeypatch.setattr(pack_weights, "reader", lambda *_: request.param)
    return request.param


def write(folder, names, tensors, experts: int = EXPERTS, intermediate: int = 128) -> dict[str, torch.Tensor]:
    """Write a layer in two files; return its tensors by "e.PROJECTION.ENDING". tensors: of weights [n, k]."""
    g, made = torch.Generator().manual_seed(7), {}
    for e, (i, name) in itertools.product(range(experts), enumerate(names)):
        n, k = (intermediate, HIDDEN) if i < 2 else (HIDDEN, intermediate)
        made |= {f"{e}.{name}.{ending}": x for ending, x in tensors(g, n, k).items()}
    for i in range(2):
        part = {f"{PREFIX}.{name}": x for j, (name, x) in enumerate(made.items()) if j % 2 == i}
        save_file(part, folder / f"{i}.safetensors")
    return made


def codes(g, n, k) -> torch.Tensor:
    return torch.randint(0, 256, (n, k // 2), generator=g, dtype=U8)


def modelopt(g, n, k):
    return {"weight": codes(g, n, k), "weight_scale": torch.rand(n, k // 16, generator=g).to(E4M3),
            "weight_scale_2": torch.rand((), generator=g), "input_scale": torch.rand((), generator=g)}  # fmt: skip


def compressed_tensors(g, n, k):
    return {"weight_packed": codes(g, n, k), "weight_scale": torch.rand(n, k // 16, generator=g).to(E4M3),
            "weight_global_scale": torch.rand(1, generator=g) * 1000 + 1,
            "input_global_scale": torch.rand(1, generator=g) * 1000 + 1}  # fmt: skip


@pytest.mark.parametrize("names", PROJECTIONS)
@pytest.mark.parametrize("tensors", [modelopt, compressed_tensors])
def test_nvfp4(tmp_path, capability, names, tensors):
    """Packed as by hand, of scales that multiply: compressed-tensors' are one over those, as of the largest input."""
    made, (gate, up, down) = write(tmp_path, names, tensors), names
    activation = None if tensors is modelopt else "bf16"
    found = nvfp4_experts(tmp_path, PREFIX, [2, 1], "cpu", activation)
    weight = "weight" if tensors is modelopt else "weight_packed"
    for name, parts in (("w13", (gate, up)), ("w2", (down,))):
        of = {ending: [[made[f"{e}.{p}.{ending}"] for p in parts] for e in (2, 1)] for ending in tensors(
            torch.Generator(), 64, 64)}  # fmt: skip
        b, scale = (torch.stack([torch.cat(x) for x in of[y]]) for y in (weight, "weight_scale"))
        every = [torch.tensor([[float(x) for x in y] for y in of[z]]).double() for z in list(of)[2:]]
        of_all, of_input = every if tensors is modelopt else [1 / x for x in every]
        of_all = (of_all if name == "w13" else of_all[:, 0]).float()
        expected = pack_nvfp4(b, scale, of_all, activation=activation)
        assert torch.equal(found[name], expected[0]) and torch.equal(found[f"{name}_scale"], expected[1])
        assert torch.allclose(found[f"{name}_global"], expected[2], rtol=1e-6, atol=0)
        assert torch.allclose(found[f"{name}_input_scale"], of_input.max().float().view(1), rtol=1e-6, atol=0)
    assert found["gate_first"] and len(found) == 9


@pytest.mark.parametrize("weight, kind, ending, of_scale", [
    ("weight_packed", U8, "weight_scale", U8), ("weight_packed", U8, "weight_scale", E8M0),
    ("weight", U8, "weight_scale", U8), ("weight", torch.int8, "scale", E8M0),
])  # fmt: skip
def test_mxfp4(tmp_path, capability, weight, kind, ending, of_scale):
    def tensors(g, n, k):
        scale = torch.randint(119, 124, (n, k // 32), generator=g, dtype=U8)
        return {weight: codes(g, n, k).view(kind), ending: scale.view(of_scale)}

    made, (gate, up, down) = write(tmp_path, PROJECTIONS[1], tensors), PROJECTIONS[1]
    found = mxfp4_experts(tmp_path, PREFIX, range(1, 3), "cpu")
    for name, parts in (("w13", (gate, up)), ("w2", (down,))):
        b, scale = (torch.stack([torch.cat([made[f"{e}.{p}.{x}"].view(U8) for p in parts]) for e in (1, 2)])
                    for x in (weight, ending))  # fmt: skip
        expected = pack_mxfp4(b, scale, halves=len(parts))
        assert all(torch.equal(found[f"{name}{x}"], y) for x, y in zip(("", "_scale", "_global"), expected))


@pytest.mark.parametrize("ending, kind, intermediate", [
    ("weight_scale_inv", F32, 128), ("weight_scale_inv", BF16, 128), ("weight_scale", F32, 192), ("scale", E8M0, 192),
    ("weight_scale_inv", E8M0, 128), ("weight_scale", "one", 128), ("weight_scale", "rows", 192),
    ("weight_scale", "vector", 128),
])  # fmt: skip
def test_fp8(tmp_path, ending, kind, intermediate):
    """Values times scales are the checkpoint's, in float64, exactly; where I ends inside a block, zeros are around."""
    def tensors(g, n, k):
        values = torch.randn(n, k, generator=g).to(E4M3)
        scale = torch.rand(-(-n // 128), -(-k // 128), generator=g) + 0.1
        if kind == "one":
            return {"weight": values, ending: scale[0, 0].clone(), "input_scale": torch.tensor(0.5)}
        if kind in ("rows", "vector"):
            return {"weight": values, ending: torch.rand(n, 1, generator=g).view((n, 1) if kind == "rows" else n)}
        scale = 2.0 ** torch.round(scale * 5 - 9) if kind is E8M0 else scale
        return {"weight": values, ending: scale.to(kind)}

    made, (gate, up, down) = write(tmp_path, PROJECTIONS[0], tensors, intermediate=intermediate), PROJECTIONS[0]
    found = fp8_experts(tmp_path, PREFIX, [2, 0], "cpu")
    padded = -(-intermediate // 128) * 128
    w13, w2 = (dequantised(found[x], found[f"{x}_scale"]) for x in ("w13", "w2"))
    assert found["w13_scale"].dtype == found["w2_scale"].dtype == F32 and found["gate_first"] and len(found) == 5
    for i, e in enumerate((2, 0)):
        for name, part in ((gate, w13[i, :padded]), (up, w13[i, padded:]), (down, w2[i].t())):
            values, scale = made[f"{e}.{name}.weight"], made[f"{e}.{name}.{ending}"]
            n, k = values.shape
            scale = scale.double().expand(-(-n // 128), -(-k // 128)) if kind == "one" else scale.float().double()
            if scale.numel() == n:
                scale = scale.view(n, 1)
            else:
                scale = scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
            exact = values.double() * scale
            assert torch.equal(part[:intermediate], exact.t() if name == down else exact)
            assert not part[intermediate:].any()


def test_scales_of_two_kinds(tmp_path):
    """Rows' of gate beside one of all of up: a copy of that would fit where the rows' are."""
    turns = itertools.cycle((True, False, True))

    def tensors(g, n, k):
        scale = torch.ones(n, 1) if next(turns) else torch.tensor(0.5)
        return {"weight": torch.randn(n, k, generator=g).to(E4M3), "weight_scale": scale}

    write(tmp_path, PROJECTIONS[0], tensors)
    with pytest.raises(ValueError, match=r"experts.2.up_proj has scales \(1, .\), but .*experts.2.gate_proj has"):
        fp8_experts(tmp_path, PREFIX, [2, 0], "cpu")


@pytest.mark.parametrize("kind, intermediate", [(BF16, 128), (E8M0, 192), (U8, 128)])
def test_bf16(tmp_path, kind, intermediate):
    """The file's numbers, and MXFP8's products, exactly; zeros behind the last of I."""
    def tensors(g, n, k):
        if kind is BF16:
            return {"weight": torch.randn(n, k, generator=g).to(BF16)}
        scale = torch.randint(90, 140, (n, k // 32), generator=g, dtype=U8)
        return {"weight": torch.randn(n, k, generator=g).to(E4M3), "weight_scale": scale.view(kind)}

    made, (gate, up, down) = write(tmp_path, PROJECTIONS[0], tensors, intermediate=intermediate), PROJECTIONS[0]
    found = bf16_experts(tmp_path, PREFIX, [2, 0], "cpu")
    padded = -(-intermediate // 128) * 128
    assert found["w13_scale"] is found["w2_scale"] is None and found["w13"].dtype is found["w2"].dtype is BF16
    for i, e in enumerate((2, 0)):
        parts = found["w13"][i, :padded], found["w13"][i, padded:], found["w2"][i].t()
        for name, part in zip((gate, up, down), parts):
            exact = made[f"{e}.{name}.weight"].double()
            if kind is not BF16:
                scale = made[f"{e}.{name}.weight_scale"].view(U8)
                exact = exact * torch.exp2(scale.double() - 127).repeat_interleave(32, 1)
            assert torch.equal(part[:intermediate].double(), exact.t() if name == down else exact)
            assert not part[intermediate:].any()


def test_mxfp8_that_bf16_does_not_hold(tmp_path):
    def tensors(g, n, k):
        return {"weight": torch.randn(n, k, generator=g).to(E4M3), "weight_scale": torch.zeros(n, k // 32, dtype=U8)}

    write(tmp_path, PROJECTIONS[0], tensors)
    with pytest.raises(ValueError, match="MXFP8's scales times its numbers are not all numbers of bf16"):
        bf16_experts(tmp_path, PREFIX, [0], "cpu")


def dequantised(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Weights [E, n, k] in float64."""
    if scale.dim() == 2:
        return values.double() * scale.double()[..., None]
    return values.double() * scale.double().repeat_interleave(128, 1).repeat_interleave(128, 2)


def of_kind(**endings):
    return lambda g, n, k: {name.replace("_dot_", "."): make(n, k) for name, make in endings.items()}


int4 = of_kind(weight_packed=lambda n, k: torch.zeros(n, k // 8, dtype=torch.int32), weight_shape=lambda n, k:
               torch.tensor([n, k]), weight_scale=lambda n, k: torch.ones(n, k // 128, dtype=BF16))  # fmt: skip
grouped = {"scales": lambda n, k: torch.ones(k // 128, n), "qzeros": lambda n, k: torch.zeros(k // 128, n // 8).int()}
gptq = of_kind(qweight=lambda n, k: torch.zeros(k // 8, n).int(), **grouped)
gptq_of_8 = of_kind(qweight=lambda n, k: torch.zeros(k // 4, n).int(), g_idx=lambda n, k: torch.zeros(k),
                    **grouped | {"qzeros": lambda n, k: torch.zeros(k // 128, n // 4).int()})  # fmt: skip
awq = of_kind(qweight=lambda n, k: torch.zeros(k, n // 8).int(), **grouped)
of_one = {"qzeros": lambda n, k: torch.zeros(k, n // 8).int(), "scales": lambda n, k: torch.ones(k, n)}
of_eight = {"qzeros": lambda n, k: torch.zeros(k // 8, n // 8).int(), "scales": lambda n, k: torch.ones(k // 8, n)}
equal_awq = of_kind(qweight=lambda n, k: torch.zeros(k, n // 8).int(), **of_one)  # qweight and qzeros have one shape
equal_gptq = of_kind(qweight=lambda n, k: torch.zeros(k // 8, n).int(), **of_eight)  # qweight and scales have
gemv_awq = of_kind(qweight=lambda n, k: torch.zeros(n, k // 8).int(), scales=lambda n, k: torch.ones(n, k // 16),
                   qzeros=lambda n, k: torch.zeros(n, k // 128).int())  # fmt: skip
hqq = of_kind(W_q=lambda n, k: torch.zeros(n, k // 2, dtype=U8), zero=lambda n, k: torch.zeros(n, k // 64))
int8 = of_kind(weight=lambda n, k: torch.zeros(n, k, dtype=torch.int8), weight_scale=lambda n, k: torch.ones(n, 1))
bf16 = of_kind(weight=lambda n, k: torch.zeros(n, k, dtype=BF16))
mxfp8 = of_kind(weight=lambda n, k: torch.zeros(n, k).to(E4M3), weight_scale=lambda n, k:
                torch.ones(n, k // 32, dtype=U8))  # fmt: skip
rows = of_kind(weight=lambda n, k: torch.zeros(n, k).to(E4M3), weight_scale=lambda n, k: torch.ones(n, 1))
of_32 = of_kind(weight=lambda n, k: torch.zeros(n, k).to(E4M3), weight_scale=lambda n, k:
                torch.ones(n, k // 32).to(E8M0))  # fmt: skip
of_64 = of_kind(weight=lambda n, k: torch.zeros(n, k).to(E4M3), weight_scale=lambda n, k:
                torch.ones(n, k // 64).to(E8M0))  # fmt: skip
blocks = of_kind(weight=lambda n, k: torch.zeros(n, k).to(E4M3),
                 weight_scale_inv=lambda n, k: torch.ones(n // 128, k // 128))  # fmt: skip
other = of_kind(weight=lambda n, k: torch.zeros(n, k).to(torch.int8), gain=lambda n, k: torch.ones(n))


@pytest.mark.parametrize("tensors, reader, sentence", [
    (int4, nvfp4_experts, f"{PREFIX}.0 is compressed-tensors' INT4 or INT8 (pack-quantized), but must be ModelOpt's "
                          "NVFP4, compressed-tensors' NVFP4"),
    (gptq, nvfp4_experts, f"{PREFIX}.0 is GPTQ (INT4), but must be"),
    (gptq_of_8, nvfp4_experts, f"{PREFIX}.0 is GPTQ (INT8), but must be"),
    (awq, mxfp4_experts, f"{PREFIX}.0 is AWQ (INT4), but must be compressed-tensors' MXFP4, Quark's MXFP4"),
    *((x, nvfp4_experts, f"{PREFIX}.0 is AWQ (INT4), but must be") for x in (equal_awq, gemv_awq)),
    (equal_gptq, nvfp4_experts, f"{PREFIX}.0 is GPTQ (INT4), but must be"),
    (hqq, mxfp4_experts, f"{PREFIX}.0 is HQQ's, but must be"),
    (int8, fp8_experts, f"{PREFIX}.0 is INT8: down_proj.weight is torch.int8 [256, 128], but must be DeepSeek's FP8"),
    (bf16, fp8_experts, f"{PREFIX}.0 is not quantised: down_proj.weight is torch.bfloat16, but must be DeepSeek's FP8"),
    (modelopt, fp8_experts, f"{PREFIX}.0 is ModelOpt's NVFP4, but must be DeepSeek's FP8"),
    (compressed_tensors, mxfp4_experts, f"{PREFIX}.0 is compressed-tensors' NVFP4, but must be"),
    (rows, nvfp4_experts, f"{PREFIX}.0 is FP8 with scales, but must be"),
    (mxfp8, fp8_experts, f"{PREFIX}.0 is MXFP8, but must be DeepSeek's FP8"),
    (of_32, fp8_experts, f"{PREFIX}.0 is MXFP8, but must be DeepSeek's FP8"),
    (of_64, fp8_experts, f"{PREFIX}.0.gate_proj.weight_scale is torch.float8_e8m0fnu, scales (128, 4) of weights (128, "
                         "256), but must be one for 128 x 128, (1, 2), one a row, (128, 1), or one of all"),
    (rows, bf16_experts, f"{PREFIX}.0 is FP8 with scales, but must be bf16, MXFP8"),
    (other, nvfp4_experts, f"{PREFIX}.0 is of no known format: down_proj.gain torch.float32 [256], down_proj.weight "
                           "torch.int8 [256, 128], gate_proj.gain torch.float32 [128], gate_proj.weight torch.int8 "
                           "[128, 256] and 2 more"),
])  # fmt: skip
def test_another_format_is_named(tmp_path, tensors, reader, sentence):
    write(tmp_path, PROJECTIONS[0], tensors)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{tmp_path}: {sentence}')}"):
        reader(tmp_path, PREFIX, range(2), "cpu")


def test_experts_without_a_gate_are_named(tmp_path):
    write(tmp_path, ("up_proj", "up", "down_proj"), bf16)
    with pytest.raises(ValueError, match=f"{PREFIX}.0 is without a gate_proj, but must be bf16, MXFP8"):
        bf16_experts(tmp_path, PREFIX, range(2), "cpu")


def test_files_of_another_kind_are_named(tmp_path):
    with pytest.raises(ValueError, match="has no .safetensors files"):
        bf16_experts(tmp_path, PREFIX, range(2), "cpu")
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ValueError, match="x.gguf is not of safetensors: "):
        bf16_experts(tmp_path / "x.gguf", PREFIX, range(2), "cpu")


def test_another_place_is_named(tmp_path):
    write(tmp_path, PROJECTIONS[0], modelopt)
    with pytest.raises(ValueError, match=f"there is nothing under model.experts: experts are {PREFIX}, but must be"):
        nvfp4_experts(tmp_path, "model.experts", range(2), "cpu")
    sentence = f"{PREFIX} has no expert 9: it has {PREFIX}.0.down_proj.input_scale, .* and 32 more, but must be"
    with pytest.raises(ValueError, match=sentence):
        nvfp4_experts(tmp_path, PREFIX, [9], "cpu")
    with pytest.raises(ValueError, match=f"has no tensor {PREFIX}.3.gate_proj.weight$"):
        nvfp4_experts(tmp_path, PREFIX, range(4), "cpu")


@pytest.mark.parametrize("x", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("tensors, reader, ending", [
    (modelopt, nvfp4_experts, "input_scale"), (modelopt, nvfp4_experts, "weight_scale_2"),
    (compressed_tensors, nvfp4_experts, "input_global_scale"),
    (compressed_tensors, nvfp4_experts, "weight_global_scale"),
    (blocks, fp8_experts, "weight_scale_inv"),
])  # fmt: skip
def test_a_scale_that_is_none(tmp_path, tensors, reader, ending, x):
    def wrong(g, n, k):
        made = tensors(g, n, k)
        made[ending] = torch.full_like(made[ending], x) if n == 128 else made[ending]
        return made

    write(tmp_path, PROJECTIONS[0], wrong)
    with pytest.raises(ValueError, match=f"{PREFIX}.0.gate_proj.{ending} has a {x}, but must be finite and "):
        reader(tmp_path, PREFIX, range(2), "cpu")
