"""grouped_gemm_nvfp4, and the layer with such weights, on the emulated H200, with all of its checks.

test_moe_kernel.py runs this in its own process.
"""

import pytest
import torch

import emulated_gpu
from tests import quick_dsl
from tests.ragged_moe import fp4_layer
from tests.ragged_moe.fp4_layer import GPT_OSS, drawn, gpt_oss_file, gpt_oss_layer, planted
from tests.thorough import all_but


@pytest.fixture(scope="module")
def fp4():
    """ragged_moe.checks.grouped_gemm_fp4, its kernels compiled into the emulator."""
    emulated_gpu.install("h200")
    quick_dsl.install()
    from ragged_moe.checks import grouped_gemm_fp4

    return grouped_gemm_fp4


def configs():
    from ragged_moe.tuning.sm90 import FP4

    return FP4


UNEVEN, REST = "every width, the widest last", "an expert's rest is narrow"
CASES = [
    ("ragged", 5), (UNEVEN, 2), *(("ragged", i) for i in (0, 3, 4)), *(("one expert has all", i) for i in (1, 2, 6)),
    (UNEVEN, 1), (UNEVEN, 3), (REST, 2),
]  # fmt: skip


@pytest.mark.parametrize("name, config", all_but([(REST, 2)], CASES))
def test_cases(fp4, name, config):
    assert fp4.error_of(fp4.CASES[name], configs()["bf16"][config]) <= fp4.BOUND


EDGES = ["a single row, a single tile", "cut into many parts", "m_indptr not monotone", "nan", "mxfp4"]


@pytest.mark.parametrize("name", all_but([EDGES[2], EDGES[4]], EDGES))
def test_edges(fp4, name):
    assert fp4.error_of(fp4.CASES[name], configs()["bf16"][0]) <= fp4.BOUND


@pytest.mark.parametrize("name", all_but(["small"], ["small", "mxfp4"]))
def test_fp16(fp4, name):
    assert fp4.error_of(fp4.CASES[name], configs()["f16"][0]) <= fp4.BOUND


@pytest.mark.parametrize("schedule", all_but((1,), range(1, 5)))
def test_orders_of_events(fp4, schedule):
    name, config = (("the ring goes round", 3), ("cut into many parts", 0))[schedule % 2]
    assert fp4.error_of(fp4.CASES[name], configs()["bf16"][config], schedule, written=schedule < 3) <= fp4.BOUND


def test_call_with_a_checkpoints_tensors(fp4):
    """The public way: packed in place, chosen config, a new output."""
    import ragged_moe
    from ragged_moe.reference.grouped_gemm_fp4 import dequantised, reference

    g = torch.Generator().manual_seed(1)
    a, m_indptr = torch.randn(7, 128, generator=g).bfloat16(), torch.tensor([0, 3, 7], dtype=torch.int32)
    b = torch.randint(0, 256, (2, 64, 64), generator=g, dtype=torch.uint8)
    b_scale = torch.rand(2, 64, 8, generator=g).to(torch.float8_e4m3fn)
    weights = dequantised(b, b_scale.double())
    expected = reference(a, weights, torch.tensor([0.5, 0.5]), m_indptr)
    address = b.data_ptr()
    b, b_scale, b_global = ragged_moe.pack_nvfp4(b, b_scale, weight_scale_2=torch.tensor(0.5))
    assert b.data_ptr() == address and b.shape == (2, 1, 2, 2048) and b_scale.shape == (2, 1, 2, 256)
    operands = emulated_gpu.device_tensors((a, b, b_scale, b_global, m_indptr))
    out = ragged_moe.grouped_gemm_nvfp4(*operands)
    assert ((out.cpu().double() - expected).abs() <= 2**-8 * expected.abs() + 1e-4).all()
    with pytest.raises(ValueError, match=r"^b is not packed, or for one of \(10, 0\), but must be packed for this GPU"):
        ragged_moe.grouped_gemm_nvfp4(a, b.view(2, 64, 64), *operands[2:])
    with pytest.raises(ValueError, match="^b_scale: dimension 3 is 192, but must be 256$"):
        ragged_moe.grouped_gemm_nvfp4(*operands[:2], operands[2][..., :192], *operands[3:])


def test_pack_refuses(fp4):
    import ragged_moe

    b, scale = torch.zeros(1, 64, 32, dtype=torch.uint8), torch.zeros(1, 64, 4).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="^b: dimension N is 32, but must be a multiple of 64 "):
        ragged_moe.pack_nvfp4(b[:, :32].contiguous(), scale)
    with pytest.raises(ValueError, match="^weight_scale_2 and weight_global_scale are both given"):
        ragged_moe.pack_nvfp4(b, scale, torch.ones(1), torch.ones(1))
    wide = torch.full((1, 64, 2), 100, dtype=torch.uint8)
    wide[0, 0, 0] = 131
    with pytest.raises(ValueError, match="^b_scale: expert 0 has exponents from 100 to 131, but they may span 30$"):
        ragged_moe.pack_mxfp4(b + 0x22, wide)


OF_EIGHT = ["8: tokens of another step", "8: wait"]
FAULTS = ["signs", "scale of another step", "second half of K", "wait", "release", *OF_EIGHT]


@pytest.mark.parametrize("fault", all_but(("signs",), FAULTS))
def test_planted_faults_are_seen(fp4, monkeypatch, fault):
    """What the tests above are worth: each of these kernels fails."""
    from ragged_moe.kernels import dequantise
    from ragged_moe.kernels.sm90 import fp4_mma_sync as eight
    from ragged_moe.kernels.sm90 import fp4_registers as registers
    from ragged_moe.kernels.sm90 import fp4_weights as mainloop

    if fault == "signs":
        monkeypatch.setattr(dequantise, "SIGNS", 0x00008000)
    elif fault == "scale of another step":
        real = registers.scales_of
        monkeypatch.setattr(registers, "scales_of", lambda word, kind: real(word, kind)[::-1])
    elif fault == "second half of K":
        real_pair = registers.load_shared_pair
        monkeypatch.setattr(registers, "load_shared_pair", lambda at: real_pair(at & ~256))
    elif fault == "wait":
        monkeypatch.setattr(mainloop, "wgmma_results", lambda d: d)
    elif fault == "8: tokens of another step":
        real_load = eight.load_matrix
        monkeypatch.setattr(eight, "load_matrix", lambda at: real_load(at ^ 32))
    elif fault == "8: wait":
        monkeypatch.setattr(eight, "mbarrier_wait", lambda bar, phase: None)
    else:  # of a stage whose tokens wgmma still reads
        monkeypatch.setattr(mainloop, "wgmma_wait_keeping", lambda pending, a: a)
    with planted(fault, found=("wait", "release", "8: wait")):
        config = 3 if fault in ("wait", "release") else 0  # tiles of 64 tokens, as wgmma has no fewer than 16
        assert not fp4.error_of(fp4.CASES["small"], configs()["bf16"][config]) <= fp4.BOUND


LAYER = {"hidden": 192, "intermediate": 192, "local": 4, "tokens": 6}


@pytest.fixture(scope="module")
def layer(fp4):
    """The arguments of ragged_moe.experts on the CPU, packed NVFP4 weights among them, and these weights in float64."""
    return drawn(**LAYER)


def biases() -> dict[str, torch.Tensor]:
    h, i, e, _ = LAYER.values()
    g = torch.Generator().manual_seed(3)
    return {"w13_bias": torch.randn(e, 2 * i, generator=g), "w2_bias": torch.randn(e, h, generator=g) / 4}


def called(arguments, schedule=0, **options):
    """As `fp4_layer.called`, on six SMs."""
    from ragged_moe.runtime.device import device_of

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(type(device_of(torch.device("cpu"))), "sms", 6)
        return fp4_layer.called(arguments, schedule, **options)


def distance(found, arguments, exact, **activation):
    return fp4_layer.distance(found, arguments, exact, activation)


FAR = 0.001  # of the norm: some elements of c, and some of the result, round to the other neighbour in bf16


@pytest.mark.parametrize("schedule", all_but((3,), range(20)))
def test_layer(layer, schedule):
    """H and I are odd multiples of 64, up and gate have global scales of their own, and biases."""
    arguments = layer[0] | biases()
    found = called(arguments, schedule, gate_first=True, **GPT_OSS)
    assert distance(found, arguments, layer[1], gate_first=True, **GPT_OSS) <= FAR


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(5))
def test_layer_under_each_config(layer, monkeypatch, first):
    """With rows for all of a tile, more than one tile, and none."""
    from ragged_moe.layers.fp4_layer import Fp4Layer, fp4_layer_of
    from ragged_moe.tuning import sm90

    arguments, exact = dict(layer[0]), layer[1]
    g, tokens = torch.Generator().manual_seed(first), 140
    arguments["hidden"] = torch.randn(tokens, LAYER["hidden"], generator=g).bfloat16() / 16
    arguments["topk_ids"] = torch.where(torch.rand(tokens, 1, generator=g) < 0.95, 2, 4).int()
    arguments["topk_weights"] = torch.rand(tokens, 1, generator=g)
    config = sm90.FP4_GEMM1[first]
    monkeypatch.setattr(Fp4Layer, "configs", lambda self, tokens: (config, sm90.FP4["bf16"][first]))
    fp4_layer_of.cache_clear()
    try:
        assert distance(called(arguments), arguments, exact) <= FAR
    finally:
        fp4_layer_of.cache_clear()


WRONG = {
    r"w13 must be a tensor \[E, 2I/64, H/64, 2048\], packed for Hopper": lambda a: {
        "w13": a["w13"].view(4, 384, 96)
    },
    "w2_global is None, but must be a tensor": lambda a: {
        "w2_global": None
    },
    "w13_global: dimension 0 is 3, but must be 4": lambda a: {"w13_global": a["w13_global"][:3, 0].contiguous()},
    "w13_global is given, but weights in e4m3 have no use for it": lambda a: {
        "w2": torch.zeros(4, 192, 192).to(torch.float8_e4m3fn)
    },
    "w13_bias and w2_bias must be given both or neither": lambda a: {"w2_bias": biases()["w2_bias"]},
    "w2_bias: dimension 1 is 384, but must be 192": lambda a: {x: biases()["w13_bias"] for x in biases()},
    "w2_scale has type torch.float32": lambda a: {"w2_scale": torch.zeros(4, 3, 3)},
    "hidden has type torch.float8_e4m3fn, but must have torch.bfloat16, as weights are packed": lambda a: {
        "hidden": a["hidden"].to(torch.float8_e4m3fn)
    },
    "hidden: dimension H is 100, but must be a multiple of 64": lambda a: {"hidden": a["hidden"][:, :100]},
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG)
def test_layer_refuses(layer, sentence):
    import ragged_moe

    arguments = layer[0] | WRONG[sentence](layer[0])
    out = torch.full((6, 192), 7, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=sentence):
        ragged_moe.experts(**arguments, out=out, num_experts=6)
    assert (out == 7).all()


def test_what_is_packed_for_tokens_in_e4m3_is_not_for_blackwell(layer, monkeypatch):
    import ragged_moe
    from ragged_moe.runtime.device import device_of

    monkeypatch.setattr(type(device_of(torch.device("cpu"))), "capability", (10, 0))
    given, sentence = layer[0] | {"w2_scale": layer[0]["w2_scale"][..., :128]}, '^activation is "fp8", but must be None'
    with emulated_gpu.session(), pytest.raises(ValueError, match=sentence):
        tensors = emulated_gpu.device_tensors(tuple(given.values()))
        ragged_moe.experts(**dict(zip(given, tensors)), num_experts=6)


def test_input_scales_are_left_out(layer, monkeypatch):
    """A call with Blackwell's operands is checked, and noted, as one without."""
    import ragged_moe
    from ragged_moe.layers import experts as routed_experts

    def check(given, options):
        raise ValueError(f"{given['w13_input_scale']} {given['w2_input_scale']}")

    monkeypatch.setattr(routed_experts.FUNCTION, "check", check)
    with pytest.raises(ValueError, match="^None None$"):
        scales = {name: torch.ones(1) for name in ("w13_input_scale", "w2_input_scale")}
        ragged_moe.experts(**layer[0], **scales, num_experts=6)


@pytest.mark.parametrize("given_out", [False, True])
def test_layer_is_an_operator_of_torch(layer, given_out):
    """While torch traces, a call is one operator, whose result has hidden's shape."""
    import ragged_moe

    with torch._subclasses.FakeTensorMode() as mode:
        fakes = {name: mode.from_tensor(x) for name, x in layer[0].items()}
        if given_out:
            fakes["out"] = torch.empty_like(fakes["hidden"])
        found = ragged_moe.experts(**fakes, num_experts=6)
    assert found.shape == layer[0]["hidden"].shape and found.dtype is torch.bfloat16


def test_layer_workspace(fp4):
    import ragged_moe

    with emulated_gpu.session():
        least, of_fp8 = [ragged_moe.experts_workspace_bytes(64, 256, 128, 4, 2, packed=x) for x in (True, False)]
    rows = 64 * 2
    assert rows * (256 + 256 + 128) * 2 <= least <= rows * (256 + 256 + 128) * 2 + 2**14 and of_fp8 != least


LAYER_FAULTS = ["global scale", "bias", "rows", "not copied", "m_indptr read early", "no barrier"]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", LAYER_FAULTS)
def test_planted_faults_of_the_layer_are_seen(layer, monkeypatch, fault):
    from ragged_moe.kernels import assign, loads
    from ragged_moe.kernels.config import Config
    from ragged_moe.kernels.epilogue import global_scale, swiglu_bf16
    from ragged_moe.layers import experts as routed_experts

    arguments = layer[0] | (biases() if fault == "bias" else {})
    if fault == "global scale":
        real = global_scale.load_global_float
        monkeypatch.setattr(global_scale, "load_global_float", lambda at, wanted: real(at & ~4, wanted))
    elif fault == "bias":
        monkeypatch.setattr(global_scale, "fma", lambda x, y, z: x * y)
    elif fault == "rows":
        real_box = loads.Fp4Weights.box
        wrong = lambda self, tile, k, pieces: real_box(self, tile._replace(row=tile.row >> 1), k, pieces)  # noqa: E731
        monkeypatch.setattr(loads.Fp4Weights, "box", wrong)
    elif fault == "no barrier":
        monkeypatch.setattr(swiglu_bf16, "consumer_barrier", lambda number: None)
    elif fault == "m_indptr read early":
        monkeypatch.setattr(Config, "early_schedule", True)
    else:
        monkeypatch.setattr(routed_experts, "assign_program", routed_experts.assign_program.__wrapped__)
        monkeypatch.setattr(assign, "copy_row", lambda *_: None)
    with planted(fault, found=("not copied", "m_indptr read early", "no barrier")):
        assert not distance(called(arguments), arguments, layer[1]) <= FAR


@pytest.mark.parametrize("hidden", all_but((192,), (192, 2880)))
def test_gpt_oss_checkpoint(fp4, tmp_path, monkeypatch, hidden):
    """MXFP4 from a file: rows of gate and up in turn, biases, and K = 2880, which ends inside a k-block. Tokens are
    permuted in a launch of its own, and GEMM1 has tiles of 256 rows, as of more tokens.
    """
    from ragged_moe.layers import fp4_layer
    from ragged_moe.tuning import sm90

    fp4_layer.fp4_layer_of.cache_clear()  # a layer knows its configs
    monkeypatch.setattr(fp4_layer, "COPIED_ENTRIES", 0)
    monkeypatch.setattr(sm90, "choose_fp4_gemm1", lambda *_: sm90.FP4_GEMM1[0])
    arguments, exact = gpt_oss_layer(tmp_path, hidden, 192, 5)
    assert all(torch.equal(arguments[name], exact[name]) for name in ("w13_bias", "w2_bias"))
    found = called(arguments, gate_first=True, **GPT_OSS)
    assert distance(found, arguments, exact, gate_first=True, **GPT_OSS) <= FAR


def nvfp4_file(folder, hidden: int, intermediate: int, experts: int, compressed: bool) -> dict[str, torch.Tensor]:
    """Write a layer as ModelOpt, or compressed-tensors, names and shapes it; return its weights in float64."""
    from safetensors.torch import save_file

    from ragged_moe.reference.grouped_gemm_fp4 import dequantised

    g, made, exact = torch.Generator().manual_seed(7), {}, {"w13": [], "w2": []}
    for e in range(experts):
        of_expert = []
        for name, n, k in (
            ("gate_proj", intermediate, hidden), ("up_proj", intermediate, hidden), ("down_proj", hidden, intermediate)
        ):  # fmt: skip
            at = f"model.layers.3.mlp.experts.{e}.{name}"
            b = torch.randint(0, 256, (n, k // 2), generator=g, dtype=torch.uint8)
            scale = torch.rand(n, k // 16, generator=g).to(torch.float8_e4m3fn)
            of_all, of_input = torch.rand(2, generator=g) + 0.01
            if compressed:
                made |= {f"{at}.weight_packed": b, f"{at}.weight_scale": scale,
                         f"{at}.weight_global_scale": 1 / of_all.view(1),
                         f"{at}.input_global_scale": 1 / of_input.view(1)}  # fmt: skip
                of_all = 1 / made[f"{at}.weight_global_scale"].double()
            else:
                made |= {f"{at}.weight": b, f"{at}.weight_scale": scale, f"{at}.weight_scale_2": of_all.clone(),
                         f"{at}.input_scale": of_input.clone()}  # fmt: skip
            of_expert.append(dequantised(b, scale.double()) * of_all.double())
        exact["w13"].append(torch.cat(of_expert[:2]))
        exact["w2"].append(of_expert[2])
    save_file(made, folder / "x.safetensors")
    return {name: torch.stack(x) for name, x in exact.items()}


@pytest.mark.parametrize("compressed", all_but([True], [False, True]))
def test_nvfp4_checkpoint_is_called(fp4, tmp_path, compressed):
    """A layer from a file gives what its definition says, in float64, of the tokens."""
    from ragged_moe.integrations.checkpoints import nvfp4_experts

    exact, g = nvfp4_file(tmp_path, 128, 64, 6, compressed), torch.Generator().manual_seed(8)
    arguments = {
        "hidden": torch.randn(5, 128, generator=g).bfloat16(),
        "topk_ids": torch.randint(0, 6, (5, 2), generator=g),
        "topk_weights": torch.rand(5, 2, generator=g),
    } | nvfp4_experts(tmp_path, "model.layers.3.mlp.experts", range(1, 5), "cpu")
    exact = {name: x[1:5] for name, x in exact.items()}
    gate_first = arguments.pop("gate_first")
    assert distance(called(arguments, gate_first=gate_first), arguments, exact, gate_first=True) <= FAR


def test_checkpoints_refuse(fp4, tmp_path, monkeypatch):
    from ragged_moe.integrations.checkpoints import mxfp4_experts, nvfp4_experts

    gpt_oss_file(tmp_path / "x.safetensors", 64, 64)
    sentence = "there is nothing under other: experts are model.layers.0.mlp.experts, but must be"
    with pytest.raises(ValueError, match=sentence):
        mxfp4_experts(tmp_path / "x.safetensors", "other", range(2), "cpu")
    with pytest.raises(ValueError, match="gate_up_proj_blocks is torch.uint8 .6, 128, 2, 16., but must be .* .9, 128,"):
        mxfp4_experts(tmp_path, "model.layers.0.mlp.experts", range(9), "cpu")
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(ImportError, match="^reading a checkpoint needs safetensors: pip install safetensors$"):
        nvfp4_experts(tmp_path, "", [0], "cpu")
