"""grouped_gemm_nvfp4, and the layer, with MXFP4 weights by tokens in e4m3 on the emulated H200, with all of its checks.

test_moe_kernel.py runs this in its own process.
"""

import pytest
import torch

import emulated_gpu
from tests.ragged_moe import fp4_layer
from tests.ragged_moe.emulated import SMS, without_cuda
from tests.ragged_moe.fp4_layer import GPT_OSS, gpt_oss_layer, planted
from tests.thorough import all_but


@pytest.fixture(scope="module")
def fp4():
    """ragged_moe.checks.grouped_gemm_fp4, its kernels compiled into the emulator."""
    without_cuda("h200", SMS)
    from ragged_moe.checks import grouped_gemm_fp4

    return grouped_gemm_fp4


def config(i=3):
    """That of this number; by default for more than 88 tokens in the mean."""
    from ragged_moe.tuning.sm90 import FP4_BY_E4M3

    return FP4_BY_E4M3[i]


CASES = ["ragged", "small", "one expert has all", "a single row, a single tile", "cut into many parts", "nan", "mxfp4"]
CASES += ["the ring goes round", "m_indptr not monotone", "many tiles of a CTA"]


@pytest.mark.parametrize("name", all_but(("nan",), CASES))
def test_cases(fp4, name):
    """Weights and tokens of all codes, against the reference that rounds as the kernels and the tensor core do."""
    assert fp4.error_of(fp4.CASES[name], config()) <= fp4.BOUND


@pytest.mark.thorough
@pytest.mark.parametrize("i", [0, 1, 2])
def test_other_configs(fp4, i):
    """Of few tokens, and of many, with each width."""
    for case in (fp4.CASES["ragged"], fp4.Case((150, 0, 129, 3, 321, 97, 145, 161, 193, 177), 320, 256)):
        assert fp4.error_of(case, config(i)) <= fp4.BOUND


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", range(1, 21))
def test_orders_of_events(fp4, schedule):
    name = ("the ring goes round", "cut into many parts", "small", "one expert has all")[schedule % 4]
    assert fp4.error_of(fp4.CASES[name], config(), schedule, written=schedule < 8) <= fp4.BOUND


@pytest.mark.parametrize("rows, k", [(9, 832), (5, 16576)])
def test_tokens_are_quantised_to_the_references_bits(fp4, rows, k):
    """Tokens of all sizes, of zeros, and with a NaN or an infinity. 832 columns are no multiple of what a CTA loads at
    once, 16576 more than it holds.
    """
    from ragged_moe.layers.grouped_gemm_fp4 import token_program
    from ragged_moe.reference.quantise_tokens import quantised

    g = torch.Generator().manual_seed(3)
    sizes = torch.randint(-120, 120, (rows, 1), generator=g).double()
    x = (torch.randn(rows, k, generator=g).double() * torch.exp2(sizes)).clamp(-3e38, 3e38).bfloat16()
    x[0], x[1, 3], x[2, 40], x[3, k - 1] = 0, torch.nan, torch.inf, -torch.inf
    values, scales = torch.zeros(rows, k, dtype=torch.uint8), torch.zeros(rows)
    with emulated_gpu.session(strict=True):
        of_x, of_values, of_scales = emulated_gpu.device_tensors((x, values, scales))
        at = [y.data_ptr() for y in (of_values, of_scales)]
        token_program(torch.device("cpu"), k)(of_x.data_ptr(), 0, 0, *at, rows, k, 0, 4, 0)
        found = of_values.cpu(), of_scales.cpu()
    expected = quantised(x)
    finite = expected[1].isfinite()
    assert torch.equal(found[0][finite], expected[0].view(torch.uint8)[finite]) and finite.sum() == rows - 3
    assert torch.equal(found[1].nan_to_num(-1), expected[1].nan_to_num(-1))


def test_weights_are_exact(fp4):
    """Every code under every exponent that a row may have beside its largest, each by a token that is a unit vector."""
    import ragged_moe
    from ragged_moe.reference.grouped_gemm_fp4 import dequantised, e8m0

    g = torch.Generator().manual_seed(4)
    b = torch.randint(0, 256, (1, 64, 64), generator=g, dtype=torch.uint8)
    b_scale = (torch.arange(64 * 4) % 13 + 99).clamp(min=100).to(torch.uint8).view(1, 64, 4)
    b_scale[0, :, 0] = 111
    weights, a, m_indptr = dequantised(b, e8m0(b_scale)), torch.eye(128).bfloat16(), torch.tensor([0, 128]).int()
    codes = torch.stack((b & 15, b >> 4), -1).view(-1) + 16 * b_scale.view(-1).int().repeat_interleave(32)
    assert len(codes.unique()) == 12 * 16
    packed = ragged_moe.pack_mxfp4(b.clone(), b_scale, activation="fp8")
    assert [x.shape for x in packed] == [(1, 1, 2, 2048), (1, 1, 2, 128), (1, 64)]
    out = ragged_moe.grouped_gemm_nvfp4(*emulated_gpu.device_tensors((a, *packed, m_indptr)))
    assert torch.equal(out.cpu().double(), weights[0].T)


def test_refuses(fp4):
    """What is not exact is not packed; what is packed for tokens in e4m3 is not taken for another packing."""
    import ragged_moe

    b, scale = torch.full((2, 64, 32), 0x22, dtype=torch.uint8), torch.full((2, 64, 2), 100, dtype=torch.uint8)
    wide = scale.clone()
    wide[1, 5, 0], wide[0, 3, 1], b[0, 3, 16:] = 112, 120, 0
    sentence = "^b_scale: expert 1 has exponents from 100 to 112 in row 5, but a row's may span 11 with "
    with pytest.raises(ValueError, match=f'{sentence}activation="fp8"; 1 of 128 rows span more$'):
        ragged_moe.pack_mxfp4(b, wide, activation="fp8")
    assert (b[1] == 0x22).all()
    with pytest.raises(ValueError, match="^activation is 'fp4', but must be None, \"bf16\" or \"fp8\"$"):
        ragged_moe.pack_mxfp4(b, scale, activation="fp4")
    with pytest.raises(ValueError, match=r'^activation is "fp8", but must be None or "bf16" for \(10, 0\)$'):
        ragged_moe.pack_mxfp4(b, scale, activation="fp8", capability=(10, 0))
    packed, m_indptr = ragged_moe.pack_mxfp4(b, scale, activation="fp8"), torch.tensor([0, 1, 2], dtype=torch.int32)
    with pytest.raises(ValueError, match="^a has type torch.float16, but must have torch.bfloat16$"):
        ragged_moe.grouped_gemm_nvfp4(torch.zeros(2, 64).half(), *packed, m_indptr)
    with pytest.raises(ValueError, match="^b_global has 1 dimensions, but must have the 2 of "):
        ragged_moe.grouped_gemm_nvfp4(torch.zeros(2, 64).bfloat16(), *packed[:2], torch.ones(2), m_indptr)


FAULTS = ["signs", "scale of the other row", "half of K", "wait", "the other 64 rows", "fence", "row scale"]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fp4, monkeypatch, fault):
    """What the tests above are worth: each of these kernels fails."""
    from ragged_moe.kernels import dequantise_e4m3
    from ragged_moe.kernels.epilogue import row_scales
    from ragged_moe.kernels.sm90 import fp4_by_e4m3 as mainloop

    if fault == "signs":
        monkeypatch.setattr(dequantise_e4m3, "SIGNS", 0x80808000)
    elif fault == "scale of the other row":
        real = mainloop.weights_of
        monkeypatch.setattr(mainloop, "weights_of", lambda word, scales, i: real(word, scales, i ^ 2))
    elif fault == "half of K":
        monkeypatch.setattr(mainloop, "HALF", 0)
    elif fault == "wait":
        monkeypatch.setattr(mainloop, "wgmma_wait_keeping", lambda pending, a: a)
    elif fault == "fence":  # before TMA overwrites what a warp has read
        monkeypatch.setattr(mainloop, "fence_proxy_async", lambda: None)
    elif fault == "the other 64 rows":
        real_load = mainloop.Fp4ByE4m3.load
        wrong = lambda self, at, offset, part, packed: real_load(self, at, offset, 0, packed)  # noqa: E731
        monkeypatch.setattr(mainloop.Fp4ByE4m3, "load", wrong)
    else:
        real_float = row_scales.load_global_float
        monkeypatch.setattr(row_scales, "load_global_float", lambda at, wanted: real_float(at & ~4, wanted))
    case = {"fence": "the ring goes round", "the other 64 rows": "one expert has all"}.get(fault, "small")
    with planted(fault, found=("wait", "fence")):
        of_more_rows = fault in ("fence", "the other 64 rows")  # whose shares go round the ring in that case
        assert not fp4.error_of(fp4.CASES[case], config(0 if of_more_rows else 3)) <= fp4.BOUND


FAR = 0.001  # of the norm: some elements round to the other neighbour, as sums of a tile whose K is shared do


def distance(found, arguments, exact):
    row_scales = arguments["w13_global"], arguments["w2_global"]
    return fp4_layer.distance(found, arguments, exact, {"gate_first": True, **GPT_OSS}, row_scales=row_scales)


@pytest.mark.parametrize("schedule", all_but((), range(20)))
def test_layer(fp4, tmp_path, schedule):
    """gpt-oss's layout with biases; H and I are odd multiples of 64."""
    arguments, exact = gpt_oss_layer(tmp_path, 192, 192, 6, activation="fp8")
    found = fp4_layer.called(arguments, schedule, gate_first=True, **GPT_OSS)
    assert distance(found, arguments, exact) <= FAR


@pytest.mark.thorough
def test_layer_of_gpt_oss_sizes(fp4, tmp_path):
    arguments, exact = gpt_oss_layer(tmp_path, 2880, 192, 5, activation="fp8")
    found = fp4_layer.called(arguments, gate_first=True, **GPT_OSS)
    assert distance(found, arguments, exact) <= FAR


def test_layer_workspace(fp4):
    import ragged_moe

    with emulated_gpu.session():
        least = ragged_moe.experts_workspace_bytes(64, 256, 128, 4, 2, activation="fp8")
    rows = 64 * 2
    bytes_of_row = 256 + 128 * 2 + 128 + 256 * 2  # permuted, c, c in e4m3, o
    assert rows * bytes_of_row <= least <= rows * bytes_of_row + 2**14
