"""grouped_gemm_nvfp4, and the layer, with MXFP4 weights on the emulated B200, where tokens are in MXFP8.

All checks of the emulator are on. test_moe_kernel.py runs this in its own process.
"""

import pytest
import torch

import emulated_gpu
from tests.ragged_moe import fp4_layer
from tests.ragged_moe.emulated import SMS, without_cuda
from tests.ragged_moe.fp4_layer import GPT_OSS, check_order, gpt_oss_layer, planted
from tests.thorough import all_but


@pytest.fixture(scope="module")
def fp4():
    """ragged_moe.checks.grouped_gemm_fp4, its kernels compiled into the emulator."""
    without_cuda("b200", SMS)
    from ragged_moe.checks import grouped_gemm_fp4

    return grouped_gemm_fp4


def configs():
    from ragged_moe.kernels.block_scaled import W4A8
    from ragged_moe.tuning.sm100 import FP4

    return FP4[W4A8]


CASES = ["ragged", "small", "one expert has all", "a single row, a single tile", "cut into many parts", "nan", "mxfp4"]
CASES += ["m_indptr not monotone", "many tiles of a CTA", "extremes", "sizes of gpt-oss"]


@pytest.mark.parametrize("name", all_but(("nan",), CASES))
@pytest.mark.parametrize("config", all_but((1,), range(2)))
def test_cases(fp4, name, config):
    assert fp4.error_of(fp4.W4A8_CASES[name], configs()[config]) <= fp4.BOUND


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", range(1, 21))
def test_orders_of_events(fp4, schedule):
    check_order(fp4, fp4.W4A8_CASES, configs(), schedule, written=schedule < 8)


def test_tokens_are_quantised_to_the_references_bits(fp4):
    """Blocks of all sizes that bf16 has, zeros, 448 and what is just above, subnormal numbers, NaN and infinities."""
    from ragged_moe.kernels.block_scaled import W4A8
    from ragged_moe.layers.grouped_gemm_fp4 import quantise_program
    from ragged_moe.reference.quantise_mxfp8 import quantised

    rows, k, g = 11, 1088, torch.Generator().manual_seed(3)
    sizes = torch.randint(-133, 127, (rows, k // 32), generator=g).double()
    x = (torch.randn(rows, k, generator=g).double() * torch.exp2(sizes).repeat_interleave(32, 1)).clamp(-3e38, 3e38)
    x[0, :32], x[0, 32:64], x[0, 64:96] = 0, 448, 450
    x[1, 3], x[1, 40], x[1, 70] = torch.nan, torch.inf, -torch.inf
    x = x.bfloat16()
    values, scales = quantised(x)
    with emulated_gpu.session(strict=True):
        to = torch.zeros(rows, W4A8.record_bytes(k), dtype=torch.uint8)
        on_device = emulated_gpu.device_tensors((x, to))
        addresses = [t.data_ptr() for t in on_device]
        quantise_program(torch.device("cpu"), W4A8)(*addresses, 0, rows, k, 3, 0)
        found = on_device[1].cpu()
    of_values, of_scales = found[:, :k], found[:, k : k + k // 32]
    assert torch.equal(of_values & 0x7F, values.view(torch.uint8) & 0x7F) and not found[:, k + k // 32 :].any()
    sign = (of_values ^ values.view(torch.uint8)) & 0x80
    assert not sign[~values.float().isnan()].any()
    assert torch.equal(of_scales, scales) and scales[0, :3].tolist() == [0, 127, 128] and scales.max() == 247


@pytest.fixture(scope="module")
def operands(fp4):
    """Of a call, as a checkpoint has them, packed, and what results they must give; K is no multiple of 128."""
    from ragged_moe.layers.pack_weights import pack_mxfp4
    from ragged_moe.reference.grouped_gemm_fp4 import dequantised, e8m0, reference
    from ragged_moe.reference.quantise_mxfp8 import fake_quantised

    g = torch.Generator().manual_seed(1)
    a, m_indptr = torch.randn(7, 192, generator=g).bfloat16(), torch.tensor([0, 3, 7], dtype=torch.int32)
    b = torch.randint(0, 256, (2, 192, 96), generator=g, dtype=torch.uint8)
    b_scale = torch.randint(119, 124, (2, 192, 6), generator=g, dtype=torch.uint8)
    expected = reference(fake_quantised(a), dequantised(b, e8m0(b_scale)), torch.ones(2), m_indptr)
    packed = pack_mxfp4(b, b_scale)
    return dict(zip(("a", "b", "b_scale", "b_global", "m_indptr"), (a, *packed, m_indptr))), expected


@pytest.mark.thorough
def test_call_with_a_checkpoints_tensors(operands):
    """The public way: packed, chosen config, a new output; an input scale is NVFP4's, and does nothing."""
    import ragged_moe

    given, expected = operands
    with emulated_gpu.session(strict=True):
        on_device = dict(zip(given, emulated_gpu.device_tensors(tuple(given.values()))))
        out = ragged_moe.grouped_gemm_nvfp4(**on_device)
        (scale,) = emulated_gpu.device_tensors((torch.tensor([0.5]),))
        assert torch.equal(ragged_moe.grouped_gemm_nvfp4(**on_device, input_scale=scale).cpu(), out.cpu())
    assert ((out.cpu().double() - expected).abs() <= 2**-8 * expected.abs() + 1e-4).all()


WRONG = {
    "^a has type torch.float16, but must have torch.bfloat16$": lambda x: {"a": x["a"].half()},
    "^a: dimension K is 96, but must be a multiple of 64": lambda x: {"a": x["a"][:, :96]},
    "^b: dimension N is 100, but must be a multiple of 64": lambda x: {"b": x["b"][:, :100]},
    "^b: dimension 2 is 96, but must be 128$": lambda x: {"b": x["b"][..., :96].contiguous()},
    "^b_scale: dimension 1 is 1, but must be 2$": lambda x: {"b_scale": x["b_scale"][:, :1]},
    "^b_scale has type torch.int8, but must have torch.uint8$": lambda x: {"b_scale": x["b_scale"].view(torch.int8)},
    "^b: dimension N is 192, but must be a multiple of 128": lambda x: {"b_scale": x["b_scale"].flatten(3)},  # NVFP4's
    "^b starts at an address that is not a multiple of 32, but must$": lambda x: {"b": misplaced(x["b"])},
}  # fmt: skip


def misplaced(x: torch.Tensor) -> torch.Tensor:
    """The same 16 bytes behind a multiple of 32."""
    room = torch.zeros(x.nbytes + 48, dtype=torch.uint8)
    room = room[(16 - room.data_ptr()) % 32 :][: x.nbytes].view(x.dtype).view(x.shape)
    return room.copy_(x)


@pytest.mark.parametrize("sentence", WRONG)
def test_refuses(operands, sentence, monkeypatch):
    import ragged_moe
    from ragged_moe.runtime.device import device_of

    given = operands[0] | WRONG[sentence](operands[0])
    gpu = device_of(torch.device("cpu"))
    monkeypatch.setattr(type(gpu), "reaches", lambda *_: True)
    out = torch.full((7, 192), 7, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=sentence):
        ragged_moe.grouped_gemm_nvfp4(**given, out=out)
    assert (out == 7).all()


def test_pack(fp4):
    """Where scales and numbers go, and that b stays in its memory if K is a multiple of 128."""
    import ragged_moe

    b = torch.arange(2 * 64 * 64, dtype=torch.int32).to(torch.uint8).view(1, 128, 64)
    scale = torch.arange(128 * 4, dtype=torch.int32).to(torch.uint8).view(1, 128, 4)
    packed, atoms, b_global = ragged_moe.pack_mxfp4(b, scale)
    assert packed is b and atoms.shape == (1, 1, 1, 32, 16) and b_global.tolist() == [1]
    assert atoms[0, 0, 0, 5].tolist() == [int(scale[0, 5 + 32 * i, j]) for i in range(4) for j in range(4)]
    packed, atoms, _ = ragged_moe.pack_mxfp4(b[..., :32].contiguous(), scale[..., :2].contiguous(), halves=2)
    assert packed.shape == (1, 128, 64) and torch.equal(packed[..., :32], b[..., :32]) and not packed[..., 32:].any()
    rows = [scale[0, 64 * half + 37].tolist() for half in range(2)]  # of a half's row 37
    assert [atoms[0, half, 0, 5, 4:8].tolist() for half in range(2)] == [[*row[:2], 0, 0] for row in rows]
    assert not atoms[:, :, :, :, 8:].any()  # of rows 64 to 127, which a half has not
    with pytest.raises(ValueError, match="^halves is 3, but must be an int from 1 to 2$"):
        ragged_moe.pack_mxfp4(b, scale, halves=3)
    with pytest.raises(ValueError, match="^b: dimension N is 64, but must be a multiple of 128 "):
        ragged_moe.pack_mxfp4(b[:, :64], scale[:, :64], halves=2)
    with pytest.raises(ValueError, match="^b_scale: dimension 2 is 2, but must be 4$"):
        ragged_moe.pack_mxfp4(b, scale[..., :2].contiguous())


FAULTS = ["scales of another MMA", "weights' scales of another expert", "scales of tokens", "wait"]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fp4, monkeypatch, fault):
    """What the tests above are worth: each of these kernels fails."""
    from ragged_moe.kernels import loads
    from ragged_moe.kernels.block_scaled import Mxfp4ByMxfp8
    from ragged_moe.kernels.sm100 import scaled_issue, token_scales

    if fault == "scales of another MMA":
        monkeypatch.setattr(Mxfp4ByMxfp8, "scales_of", lambda self, mma: (0, mma & 2))
    elif fault == "weights' scales of another expert":
        real_load = loads.tma_load

        def of_first(to, tensormap, at, *more):
            return real_load(to, tensormap, (*at[:-1], 0) if len(at) == 4 else at, *more)

        monkeypatch.setattr(loads, "tma_load", of_first)
    elif fault == "scales of tokens":
        real_store = token_scales.store_shared_words
        monkeypatch.setattr(token_scales, "store_shared_words", lambda at, x: real_store(at, x[::-1]))
    else:  # for the accumulator, before it is overwritten
        monkeypatch.setattr(scaled_issue, "mbarrier_wait", lambda bar, parity: None)
    with planted(fault, found=("wait",)):
        assert not fp4.error_of(fp4.W4A8_CASES["small"], configs()[0]) <= fp4.BOUND


LAYER = {"hidden": 192, "intermediate": 320, "tokens": 6}  # neither size is a multiple of 128


@pytest.fixture(scope="module")
def layer(fp4, tmp_path_factory):
    """The arguments of ragged_moe.experts with biases on the CPU, and their weights in float64."""
    return gpt_oss_layer(tmp_path_factory.mktemp("gpt-oss"), **LAYER)


def called(arguments, schedule=0, **options):
    return fp4_layer.called(arguments, schedule, gate_first=True, **options)


def distance(found, arguments, exact, **activation):
    return fp4_layer.distance(found, arguments, exact, {"gate_first": True, **activation}, mxfp8=True)


# Of the norm: some results round to the other neighbour in bf16, and now and then an element of c does in e4m3
FAR = 0.0005


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", range(20))
def test_layer(layer, schedule):
    """As gpt-oss has it, with biases, and I and H that end inside a tile and a k-block."""
    assert distance(called(layer[0], schedule, **GPT_OSS), *layer, **GPT_OSS) <= FAR


@pytest.mark.thorough
def test_layer_without_biases_of_full_and_empty_experts(layer):
    """With rows for more than one tile of an expert, and none of two."""
    arguments = {name: x for name, x in layer[0].items() if "bias" not in name}
    g, tokens = torch.Generator().manual_seed(0), 140
    arguments["hidden"] = torch.randn(tokens, LAYER["hidden"], generator=g).bfloat16()
    arguments["topk_ids"] = torch.where(torch.rand(tokens, 1, generator=g) < 0.95, 2, 4).int()
    arguments["topk_weights"] = torch.rand(tokens, 1, generator=g)
    assert distance(called(arguments), arguments, layer[1]) <= FAR


@pytest.mark.thorough
def test_layer_of_gpt_oss_sizes(fp4, tmp_path):
    """H = I = 2880, which takes a minute: one token, two of whose three experts are here."""
    arguments, exact = gpt_oss_layer(tmp_path, 2880, 2880, 1)
    assert distance(called(arguments, **GPT_OSS), arguments, exact, **GPT_OSS) <= FAR


@pytest.mark.thorough
def test_a_like_call_repeats_the_launches_with_its_own_operands(layer, monkeypatch):
    from ragged_moe import experts as call
    from ragged_moe.layers import experts

    options = {"local_expert_offset": 1, "num_experts": 6, "gate_first": True}
    with emulated_gpu.session(strict=True):
        on_device = emulated_gpu.device_tensors(tuple(layer[0].values()))
        call(**dict(zip(layer[0], on_device)), **options)
        other = layer[0] | {"w2_bias": layer[0]["w2_bias"] * 2, "hidden": layer[0]["hidden"].flip(0)}
        on_device = emulated_gpu.device_tensors(tuple(other.values()))
        monkeypatch.setattr(experts, "checked", None)
        found = call(**dict(zip(other, on_device)), **options).cpu()
    assert distance(found, other, layer[1]) <= FAR


WRONG_LAYER = {
    "^w13_scale: dimension 1 is 5, but must be 6$": lambda a: {"w13_scale": a["w13_scale"][:, :5].contiguous()},
    "^w2_bias: dimension 1 is 640, but must be 192$": lambda a: {"w2_bias": a["w13_bias"]},
    "^w13_bias and w2_bias must be given both or neither$": lambda a: {"w2_bias": None},
    "^w2: dimension 2 is 160, but must be 192$": lambda a: {"w2": a["w2"][..., :160].contiguous()},
    "^w13: dimension I is 300, but must be a multiple of 64": lambda a: {"w13": a["w13"][:, :600].contiguous()},
    "^hidden: dimension H is 96, but must be a multiple of 64": lambda a: {"hidden": a["hidden"][:, :96]},
    "^w13_bias starts at an address that is not a multiple of 32, but must$":
        lambda a: {"w13_bias": misplaced(a["w13_bias"])},
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG_LAYER)
def test_layer_refuses(layer, sentence, monkeypatch):
    import ragged_moe
    from ragged_moe.runtime.device import device_of

    arguments = layer[0] | WRONG_LAYER[sentence](layer[0])
    monkeypatch.setattr(type(device_of(torch.device("cpu"))), "reaches", lambda *_: True)
    out = torch.full((6, 192), 7, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=sentence):
        ragged_moe.experts(**arguments, out=out, num_experts=6)
    assert (out == 7).all()


def test_layer_workspace(fp4):
    """Tokens and c in bytes, with a byte for 32, results in bf16."""
    import ragged_moe

    with emulated_gpu.session():
        least = ragged_moe.experts_workspace_bytes(64, 192, 320, 4, 2, mxfp4=True)
    rows = 64 * 2
    held = 64 * (192 + 16) + rows * (320 + 16 + 2 * 192)
    assert held <= least <= held + 2**14


LAYER_FAULTS = ["bias", "biases of other rows", "rows", "scales of c", "other columns", "others' tokens", "no fence"]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", LAYER_FAULTS)
def test_planted_faults_of_the_layer_are_seen(layer, monkeypatch, fault):
    from ragged_moe.kernels import loads
    from ragged_moe.kernels.epilogue import block_scaled
    from ragged_moe.kernels.quantise_blocks import QuantiseBlocks
    from ragged_moe.kernels.sm100 import scaled_issue, token_scales
    from ragged_moe.layers import experts
    from ragged_moe.layers.repeated_calls import Calls

    monkeypatch.setattr(experts, "calls", Calls())  # of right kernels, whose launches would be repeated
    if fault == "bias":
        monkeypatch.setattr(block_scaled, "fma", lambda x, y, z: x * y)
    elif fault == "biases of other rows":
        real_floats = block_scaled.load_global_floats
        monkeypatch.setattr(block_scaled, "load_global_floats", lambda at, wanted: real_floats(at ^ 16, wanted))
    elif fault == "rows":
        real_boxes = loads.GatedWeights.boxes
        monkeypatch.setattr(loads.GatedWeights, "boxes", lambda *x: real_boxes(*x)[::-1])
    elif fault == "scales of c":  # those behind the last column are the next lines' scales
        monkeypatch.setattr(block_scaled, "store_global_byte", lambda at, x, wanted: None)
    elif fault == "others' tokens":
        monkeypatch.setattr(token_scales, "load_relaxed_if", lambda at, wanted: wanted)
    elif fault == "no fence":
        monkeypatch.setattr(scaled_issue, "fence_proxy_async", lambda: None)
    else:
        real_part = QuantiseBlocks.part
        monkeypatch.setattr(QuantiseBlocks, "part", lambda self, x, *more: real_part(self, x + 32, *more))
        monkeypatch.setattr(experts, "assign_program", experts.assign_program.__wrapped__)
    with planted(fault, found=("scales of c", "other columns", "no fence")):
        assert not distance(called(layer[0]), *layer) <= FAR
