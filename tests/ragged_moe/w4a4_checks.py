"""grouped_gemm_nvfp4, and the layer with such weights, on the emulated B200, where tokens are in e2m1, too.

All checks of the emulator are on. test_moe_kernel.py runs this in its own process.
"""

import pytest
import torch

import emulated_gpu
from tests.ragged_moe import fp4_layer
from tests.ragged_moe.emulated import SMS, without_cuda
from tests.ragged_moe.fp4_layer import GPT_OSS, check_order, drawn, planted
from tests.thorough import all_but


@pytest.fixture(scope="module")
def fp4():
    """ragged_moe.checks.grouped_gemm_fp4, its kernels compiled into the emulator."""
    without_cuda("b200", SMS)
    from ragged_moe.checks import grouped_gemm_fp4

    return grouped_gemm_fp4


def configs():
    from ragged_moe.kernels.block_scaled import W4A4
    from ragged_moe.tuning.sm100 import FP4

    return FP4[W4A4]


RUNS = [("ragged", 0), ("one expert has all", 0), ("ragged", 1), ("one expert has all", 1)]
RUNS += [("many tiles of a CTA", 0), ("many tiles of a CTA", 1), ("a single row, a single tile", 1), ("small", 0)]


@pytest.mark.thorough
@pytest.mark.parametrize("name, config", RUNS)
def test_cases(fp4, name, config):
    assert fp4.error_of(fp4.W4A4_CASES[name], configs()[config]) <= fp4.BOUND


EDGES = ["m_indptr not monotone", "nan", "cut into many parts"]


@pytest.mark.parametrize("name", all_but(EDGES[1:2], EDGES))
def test_edges(fp4, name):
    assert fp4.error_of(fp4.W4A4_CASES[name], configs()[1]) <= fp4.BOUND  # which other tests use, too


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", range(1, 21))
def test_orders_of_events(fp4, schedule):
    check_order(fp4, fp4.W4A4_CASES, configs(), schedule, written=schedule < 8)


def records(x: torch.Tensor, of_all: torch.Tensor) -> torch.Tensor:
    """What the kernel makes of tokens."""
    from ragged_moe.kernels.block_scaled import W4A4
    from ragged_moe.layers.grouped_gemm_fp4 import quantise_program

    rows, k = x.shape
    with emulated_gpu.session(strict=True):
        to = torch.zeros(rows, W4A4.record_bytes(k), dtype=torch.uint8)
        x, to, of_all = emulated_gpu.device_tensors((x, to, of_all))
        addresses = x.data_ptr(), to.data_ptr(), of_all.data_ptr()
        quantise_program(torch.device("cpu"), W4A4)(*addresses, rows, k, 3, 0)
        return to.cpu()


@pytest.mark.parametrize("of_all", all_but((0.013,), (0.013, 1.0, 2.0**-20)))
def test_quantised_tokens_have_the_references_bits(fp4, of_all):
    """Of values in the middle of two e2m1, of blocks that saturate or become 0, of NaN and infinities; K = 320."""
    from ragged_moe.reference.quantise_fp4 import quantised

    g, of_all = torch.Generator().manual_seed(0), torch.tensor([of_all])
    sizes = torch.exp2(torch.randint(-14, 15, (8, 20), generator=g).float()).repeat_interleave(16, 1)
    x = torch.randn(8, 320, generator=g) * sizes
    x[0, :16] = torch.tensor([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, 0])
    x[0, :16] *= of_all
    x[1, :32] = 0
    x[2, 3], x[2, 20], x[2, 40] = torch.nan, torch.inf, -torch.inf
    x = x.bfloat16()
    values, scale = quantised(x, of_all)
    found = records(x, of_all)
    assert torch.equal(found[:, :160], values)
    assert torch.equal(found[:, 160:180], scale.view(torch.uint8)) and not found[:, 180:].any()
    assert scale[2, 0].isnan() and not scale[1, :2].any() and scale.float()[2, 1] == 448


@pytest.fixture(scope="module")
def called(fp4):
    """Operands as a checkpoint has them, packed, and the result that they must give."""
    from ragged_moe.layers.pack_weights import pack_nvfp4
    from ragged_moe.reference.grouped_gemm_fp4 import dequantised, reference
    from ragged_moe.reference.quantise_fp4 import fake_quantised

    g = torch.Generator().manual_seed(1)
    a, m_indptr = torch.randn(7, 192, generator=g).bfloat16(), torch.tensor([0, 3, 7], dtype=torch.int32)
    b = torch.randint(0, 256, (2, 128, 96), generator=g, dtype=torch.uint8)
    b_scale = torch.randn(2, 128, 12, generator=g).to(torch.float8_e4m3fn)
    input_scale = torch.tensor(0.002)
    weights, rounded = dequantised(b, b_scale.double()), fake_quantised(a, input_scale) * input_scale.double()
    expected = reference(rounded, weights, torch.tensor([0.5, 0.5]), m_indptr)
    places = b.data_ptr(), b_scale.data_ptr()
    b, b_scale, b_global = pack_nvfp4(b, b_scale, weight_scale_2=torch.tensor(0.5))
    assert (b.data_ptr(), b_scale.data_ptr()) == places and b.shape == (2, 128, 96) and b_scale.shape == (2, 1, 3, 512)
    names = "a", "b", "b_scale", "b_global", "m_indptr", "input_scale"
    return dict(zip(names, (a, b, b_scale, b_global, m_indptr, input_scale))), expected


def test_call_with_a_checkpoints_tensors(called):
    """The public way: packed in place, scales of any sign, chosen config, a new output; without input_scale it is 1."""
    import ragged_moe

    operands, expected = called
    with emulated_gpu.session(strict=True):
        on_device = dict(zip(operands, emulated_gpu.device_tensors(tuple(operands.values()))))
        out = ragged_moe.grouped_gemm_nvfp4(**on_device)
        assert ((out.cpu().double() - expected).abs() <= 2**-8 * expected.abs() + 1e-4).all()
        without = ragged_moe.grouped_gemm_nvfp4(**on_device | {"input_scale": None}).cpu().double()
    assert 0.01 < (without - expected).norm() / expected.norm() < 0.2


WRONG = {
    "^a has type torch.float16, but must have torch.bfloat16$": lambda x: {"a": x["a"].half()},
    "^a: dimension K is 96, but must be a multiple of 64": lambda x: {"a": x["a"][:, :96]},
    "^b: dimension N is 64, but must be a multiple of 128": lambda x: {"b": x["b"][:, :64]},
    "^b: dimension 2 is 64, but must be 96$": lambda x: {"b": x["b"][..., :64].contiguous()},
    "^b_scale has type torch.float8_e4m3fn, but must have torch.uint8$": lambda x: {
        "b_scale": x["b_scale"].view(torch.float8_e4m3fn)
    },
    "^b_scale: dimension 3 is 256, but must be 512$": lambda x: {"b_scale": x["b_scale"][..., :256]},
    "^b_scale: dimension 1 is 1, but must be 2$": lambda x: {  # b is for tokens in bf16
        "b": torch.zeros(2, 2, 3, 2048, dtype=torch.uint8)
    },
    "^input_scale has type torch.float64, but must have torch.float32$": lambda x: {
        "input_scale": x["input_scale"].double()
    },
    "^input_scale: dimension 0 is 2, but must be 1$": lambda x: {"input_scale": torch.ones(2)},
    "^input_scale is 0.5, but must be a tensor$": lambda x: {"input_scale": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG)
def test_refuses(called, sentence):
    import ragged_moe

    operands = called[0] | WRONG[sentence](called[0])
    with emulated_gpu.session():
        tensors = [x for x in operands.values() if isinstance(x, torch.Tensor)]
        on_device = dict(zip(map(id, tensors), emulated_gpu.device_tensors(tuple(tensors))))
        out = torch.full((7, 128), 7, dtype=torch.bfloat16)
        with pytest.raises(ValueError, match=sentence):
            ragged_moe.grouped_gemm_nvfp4(**{name: on_device.get(id(x), x) for name, x in operands.items()}, out=out)
        assert (out == 7).all()


def test_pack_refuses(fp4):
    """And leaves what it refuses as it was; what Hopper's call makes of these weights is refused there."""
    import ragged_moe

    b, scale = torch.full((1, 64, 32), 3, dtype=torch.uint8), torch.ones(1, 64, 4).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="^b: dimension N is 64, but must be a multiple of 128 "):
        ragged_moe.pack_nvfp4(b, scale)
    with pytest.raises(ValueError, match=r"^capability is \(8, 0\), but must be \(9, 0\) or \(10, 0\)$"):
        ragged_moe.pack_nvfp4(b, scale, capability=(8, 0))
    assert (b == 3).all() and (scale.float() == 1).all()
    assert ragged_moe.pack_nvfp4(b, scale, capability=(9, 0))[0].shape == (1, 1, 1, 2048)


FAULTS = ["scales of another step", "weights' scales of another expert", "no fence", "global scale", "wait"]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fp4, monkeypatch, fault):
    """What the tests above are worth: each of these kernels fails."""
    from ragged_moe.kernels import loads
    from ragged_moe.kernels.epilogue import block_scaled
    from ragged_moe.kernels.sm100 import scaled_issue, token_scales

    if fault == "scales of another step":
        real_store = token_scales.store_shared_words
        monkeypatch.setattr(token_scales, "store_shared_words", lambda at, x: real_store(at, x[::-1]))
    elif fault == "weights' scales of another expert":
        real_load = loads.tma_load

        def of_first(to, tensormap, at, *more):
            return real_load(to, tensormap, (*at[:-1], 0) if len(at) == 4 else at, *more)

        monkeypatch.setattr(loads, "tma_load", of_first)
    elif fault == "no fence":
        monkeypatch.setattr(token_scales, "fence_proxy_async", lambda: None)
    elif fault == "global scale":
        real_float = block_scaled.load_global_float
        monkeypatch.setattr(block_scaled, "load_global_float", lambda at, wanted: real_float(at & ~8, wanted))
    else:  # for the accumulator, before it is overwritten
        monkeypatch.setattr(scaled_issue, "mbarrier_wait", lambda bar, parity: None)
    with planted(fault, found=("no fence", "wait")):
        assert not fp4.error_of(fp4.W4A4_CASES["small"], configs()[0]) <= fp4.BOUND


LAYER = {"hidden": 256, "intermediate": 384, "local": 4, "tokens": 6}  # W2's records have scales for 512 columns


@pytest.fixture(scope="module")
def layer(fp4):
    """The arguments of ragged_moe.experts on the CPU, packed NVFP4 weights among them, and these weights in float64."""
    arguments, exact = drawn(**LAYER)
    arguments |= {"w13_input_scale": torch.tensor([1e-4]), "w2_input_scale": torch.tensor([0.02])}
    return arguments, exact


def distance(found, arguments, exact, **activation):
    scales = [arguments.get(f"{name}_input_scale", torch.ones(1)) for name in ("w13", "w2")]
    return fp4_layer.distance(found, arguments, exact, activation, input_scales=scales)


# Of the norm: some results round to the other neighbour in bf16, and now and then an element of c does in e2m1
FAR = 0.002


@pytest.mark.parametrize("schedule", all_but((3,), range(20)))
def test_layer(layer, schedule):
    """I is an odd multiple of 128, and up and gate have global scales of their own."""
    found = fp4_layer.called(layer[0], schedule, gate_first=True, **GPT_OSS)
    assert distance(found, *layer, gate_first=True, **GPT_OSS) <= FAR


@pytest.mark.thorough
def test_a_like_call_repeats_the_launches_with_its_own_operands(layer, monkeypatch):
    from ragged_moe import experts as call
    from ragged_moe.layers import experts

    with emulated_gpu.session(strict=True):
        on_device = emulated_gpu.device_tensors(tuple(layer[0].values()))
        call(**dict(zip(layer[0], on_device)), local_expert_offset=1, num_experts=6)
        other = layer[0] | {"w2_input_scale": torch.tensor([0.01]), "hidden": layer[0]["hidden"].flip(0)}
        on_device = emulated_gpu.device_tensors(tuple(other.values()))
        monkeypatch.setattr(experts, "checked", None)
        found = call(**dict(zip(other, on_device)), local_expert_offset=1, num_experts=6).cpu()
    assert distance(found, other, layer[1]) <= FAR


@pytest.mark.thorough
def test_layer_of_full_and_empty_experts(layer):
    """With rows for more than one tile of an expert, and none of two; without input scales these are 1."""
    arguments = {name: x for name, x in layer[0].items() if "input" not in name}
    g, tokens = torch.Generator().manual_seed(0), 140
    arguments["hidden"] = torch.randn(tokens, LAYER["hidden"], generator=g).bfloat16() * 4
    arguments["topk_ids"] = torch.where(torch.rand(tokens, 1, generator=g) < 0.95, 2, 4).int()
    arguments["topk_weights"] = torch.rand(tokens, 1, generator=g)
    assert distance(fp4_layer.called(arguments), arguments, layer[1]) <= FAR


WRONG_LAYER = {
    r"^w13 must be a tensor \[E, 2I, H/2\], packed as NVFP4 for Blackwell$":
        lambda a: {"w13": a["w13"].view(4, 6, 4, -1)},
    "^w13_bias is given, but weights packed as NVFP4 for Blackwell have no use for it$":
        lambda a: {"w13_bias": torch.zeros(4, 768), "w2_bias": torch.zeros(4, 256)},
    "^w13_input_scale and w2_input_scale must be given both or neither$": lambda a: {"w2_input_scale": None},
    "^w2_input_scale: dimension 0 is 4, but must be 1$": lambda a: {"w2_input_scale": torch.ones(4)},
    "^w13_input_scale has type torch.bfloat16": lambda a: {"w13_input_scale": torch.ones(1).bfloat16()},
    "^w13_global is given, but weights in e4m3 have no use for it$":
        lambda a: {"w2": torch.zeros(4, 256, 384).to(torch.float8_e4m3fn)},
    "^hidden: dimension H is 192, but must be a multiple of 128": lambda a: {"hidden": a["hidden"][:, :192]},
    "^w2: dimension I is 320, but must be a multiple of 128": lambda a: {"w2": a["w2"][..., :160]},
    "^w2_scale: dimension 1 is 1, but must be 2$": lambda a: {"w2_scale": a["w2_scale"][:, :1]},
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG_LAYER)
def test_layer_refuses(layer, sentence):
    import ragged_moe

    arguments = layer[0] | WRONG_LAYER[sentence](layer[0])
    out = torch.full((6, 256), 7, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=sentence):
        ragged_moe.experts(**arguments, out=out, num_experts=6)
    assert (out == 7).all()


def test_layer_workspace(fp4):
    """Tokens and c in 4.5 bits, results in bf16."""
    import ragged_moe

    with emulated_gpu.session():
        least = ragged_moe.experts_workspace_bytes(64, 256, 128, 4, 2, packed=True)
    rows = 64 * 2
    held = 64 * (256 // 2 + 16) + rows * (128 // 2 + 16 + 2 * 256)
    assert held <= least <= held + 2**14


LAYER_FAULTS = ["global scale", "rows", "scales of c", "other columns", "others' tokens", "no fence"]
LAYER_FAULTS += ["a single row's weight", "a single row's place"]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", LAYER_FAULTS)
def test_planted_faults_of_the_layer_are_seen(layer, monkeypatch, fault):
    from ragged_moe.kernels import loads
    from ragged_moe.kernels.block_scaled import Nvfp4
    from ragged_moe.kernels.epilogue import block_scaled
    from ragged_moe.kernels.quantise_blocks import QuantiseBlocks
    from ragged_moe.kernels.sm100 import scaled_issue, token_scales
    from ragged_moe.layers import experts
    from ragged_moe.layers.repeated_calls import Calls

    monkeypatch.setattr(experts, "calls", Calls())  # of right kernels, whose launches would be repeated
    if fault == "global scale":
        real = block_scaled.load_global_float
        monkeypatch.setattr(block_scaled, "load_global_float", lambda at, wanted: real(at & ~4, wanted))
    elif fault == "rows":
        real_boxes = loads.GatedWeights.boxes
        monkeypatch.setattr(loads.GatedWeights, "boxes", lambda *x: real_boxes(*x)[::-1])
    elif fault == "scales of c":
        real_block = Nvfp4.quantised_block
        wrong = lambda *x: (real_block(*x)[0], real_block(*x)[1] ^ 8)  # noqa: E731
        monkeypatch.setattr(Nvfp4, "quantised_block", wrong)
    elif fault == "others' tokens":
        monkeypatch.setattr(token_scales, "load_relaxed_if", lambda at, wanted: wanted)
    elif fault == "no fence":
        monkeypatch.setattr(scaled_issue, "fence_proxy_async", lambda: None)
    elif fault == "a single row's weight":
        monkeypatch.setattr(block_scaled.Destinations, "weighted", lambda _, words: words)
    elif fault == "a single row's place":
        real_to = block_scaled.Destinations.address
        to_out = lambda self, x, *place: real_to(self, x._replace(output=x.out), *place)  # noqa: E731
        monkeypatch.setattr(block_scaled.Destinations, "address", to_out)
    else:
        real_part = QuantiseBlocks.part
        monkeypatch.setattr(QuantiseBlocks, "part", lambda self, x, *more: real_part(self, x + 32, *more))
        monkeypatch.setattr(experts, "assign_program", experts.assign_program.__wrapped__)
    with planted(fault, found=("other columns", "no fence", "a single row's place")):
        assert not distance(fp4_layer.called(layer[0]), *layer) <= FAR
