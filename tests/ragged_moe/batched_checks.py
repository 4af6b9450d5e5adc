"""ragged_moe.batched_experts on the emulated GPU that MOE_MACHINE names, all checks of the emulator on.

test_moe_kernel.py runs this, in a process for each machine.
"""

import os

import pytest
import torch

import emulated_gpu
from tests.ragged_moe.emulated import SMS, compiled_anew, fp8_experts, without_cuda
from tests.thorough import all_but, unless

MACHINE = os.environ["MOE_MACHINE"]
EXPERTS, MOST, HIDDEN, INTERMEDIATE = 5, 11, 256, 128
COUNTS = 3, 0, 11, 1, 4


@pytest.fixture(scope="module")
def ragged_moe():
    """The module ragged_moe.layers.batched_experts, its kernels compiled into the emulator."""
    without_cuda(MACHINE, SMS)
    from ragged_moe.layers import batched_experts

    return batched_experts


@pytest.fixture(scope="module")
def weights(ragged_moe):
    """(w13, w13_scale, w2, w2_scale)."""
    return fp8_experts(HIDDEN, INTERMEDIATE, EXPERTS, 0.25)


def compare(ragged_moe, weights, form: str, counts=COUNTS, schedule: int = 0, given=None, **options) -> str | None:
    """What is wrong with a call, if anything: with a row that is there, or with one that must stay as it was.

    given: the same weights, as the call gets them.
    """
    from ragged_moe.kernels.config import Activation
    from ragged_moe.reference import experts as d
    from ragged_moe.reference.layer import distance, quantised

    g = torch.Generator().manual_seed(7)
    there = torch.arange(MOST) < torch.tensor(counts)[:, None]
    hidden = torch.randn(EXPERTS, MOST, HIDDEN, generator=g).bfloat16()
    hidden[~there] = torch.nan
    values, scales = quantised(hidden[there].float())
    ids = torch.arange(EXPERTS)[:, None].expand(EXPERTS, MOST)[there][:, None]
    of = Activation(gate_first=options.get("gate_first", False))
    expected = d.experts(values, scales, ids, torch.ones(len(ids), 1), *weights, activation=of)
    with emulated_gpu.session(schedule=schedule, strict=True):
        out = emulated_gpu.device_tensors(torch.full(hidden.shape, 7.0).bfloat16())
        tensors = [hidden, torch.tensor(counts, dtype=torch.int32), *(given or weights)]
        if form != "bf16":
            tensors[0] = torch.zeros(hidden.shape).to(values.dtype)
            tensors[0].view(torch.uint8)[there] = values.view(torch.uint8)
            shape = {"rows": (EXPERTS, MOST, 2), "columns": (EXPERTS, 2, MOST)}[form]
            by_row = torch.full(shape, torch.nan)
            (by_row if form == "rows" else by_row.mT)[there] = scales.t()
            of_tokens = emulated_gpu.device_tensors(by_row)
            options["hidden_scale"] = of_tokens if form == "rows" else of_tokens.mT
        tensors = emulated_gpu.device_tensors(tuple(tensors))
        emulated_gpu.protect(tensors)
        emulated_gpu.written(tensors)
        assert ragged_moe.batched_experts(*tensors, out=out, **options) is out
    if not (out[~there] == 7).all():
        return "a row that is not there was written"
    off = distance(out[there], expected)  # one value that a tensor core rounds to a neighbour is 0.3 % of so few
    return None if off <= 0.01 else f"the rows that are there are {off} of their norm away"


@pytest.mark.parametrize("form", all_but(["columns"] if MACHINE == "b200" else ["bf16"], ["bf16", "rows", "columns"]))
def test_forms(ragged_moe, weights, form):
    """Also the layout of DeepEP's scales; rows that are not there are NaN, and out is not written there."""
    assert compare(ragged_moe, weights, form, schedule=3, expected_m=4, gate_first=form == "rows") is None


@unless(False)
@pytest.mark.parametrize("counts", [(0,) * EXPERTS, (MOST,) * EXPERTS])
def test_none_and_all(ragged_moe, weights, counts):
    assert compare(ragged_moe, weights, "columns", counts, expected_m=1) is None


@unless(False)
def test_scales_of_each_weight_row(ragged_moe, weights):
    """One of all of an expert's weights, given as that of each row."""
    g, given, blocks = torch.Generator().manual_seed(5), [], []
    for w in weights[::2]:
        of = torch.rand(EXPERTS, 1, 1, generator=g) + 0.5
        given += [w, of[..., 0].expand(EXPERTS, w.shape[1]).contiguous()]
        blocks += [w, of.expand(EXPERTS, w.shape[1] // 128, w.shape[2] // 128).contiguous()]
    assert compare(ragged_moe, blocks, "columns", given=given, expected_m=4) is None


def test_chosen_by_expected_rows(ragged_moe):
    """Kernels are those for as many rows as are expected, whatever M is."""
    from ragged_moe.layers.deepseek_layer import layer_of

    for most, expected_m in ((1024, 2), (1024, 64), (128, 128), (3, None)):
        sizes = ragged_moe.sizes_of(32, most, 7168, 2048, expected_m)
        layer, rows = layer_of(torch.device("cpu"), sizes), 32 * (expected_m or most)
        assert layer.configs(32 * most)[0] == layer.tuning.choose_gemm1(rows, 32)


WRONG = {
    r"hidden must be a tensor \[E, M, H\]": lambda a: a | {"hidden": a["hidden"][0]},
    "hidden: dimension 0 is 4, but must be 5": lambda a: a | {"hidden": a["hidden"][:4]},
    "counts has type torch.int64": lambda a: a | {"counts": a["counts"].long()},
    "hidden_scale is of hidden in e4m3": lambda a: a | {"hidden_scale": torch.ones(EXPERTS, MOST, 2)},
    r"hidden_scale is \(5, 2, 11\), but must have shape \(5, 11, 2\)": lambda a: a | {
        "hidden": a["hidden"].to(torch.float8_e4m3fn), "hidden_scale": torch.ones(EXPERTS, 2, MOST)
    },
    "hidden_scale has type torch.int32": lambda a: a | {
        "hidden": a["hidden"].to(torch.float8_e4m3fn), "hidden_scale": torch.ones(EXPERTS, MOST, 2).int()
    },
    "expected_m is 0, but must be an int from 1 on": lambda a: a | {"expected_m": 0},
    "hidden: dimension M is 300000, but must be from 0 to 209715": lambda a: a | {
        "hidden": torch.empty(1, dtype=torch.bfloat16).expand(EXPERTS, 300000, HIDDEN)
    },
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG)
def test_what_is_refused(ragged_moe, weights, monkeypatch, sentence):
    monkeypatch.setattr(ragged_moe, "launch", lambda *_: pytest.fail("it was not refused"))
    monkeypatch.setattr("ragged_moe.runtime.device.EmulatedGpu.reaches", lambda *_: True)
    hidden = torch.zeros(EXPERTS, MOST, HIDDEN, dtype=torch.bfloat16)
    given = dict(zip(("hidden", "counts", "w13", "w13_scale", "w2", "w2_scale"),
                     (hidden, torch.zeros(EXPERTS, dtype=torch.int32), *weights)))  # fmt: skip
    out = torch.full(hidden.shape, 7.0).bfloat16()
    with pytest.raises(ValueError, match=f"^{sentence}"):
        ragged_moe.batched_experts(**WRONG[sentence](given), out=out)
    assert (out == 7).all()


@unless(False)
def test_planted_fault_is_seen(ragged_moe, weights, monkeypatch):
    """What the tests above are worth: an expert's rows begin where they should not."""
    from ragged_moe.kernels import batched

    monkeypatch.setattr(batched, "minimum", lambda x, y: y)
    ragged_moe.calls.known.clear()
    try:
        with compiled_anew(ragged_moe.program), pytest.raises((AssertionError, emulated_gpu.EmulatorError)):
            assert compare(ragged_moe, weights, "bf16") is None
    finally:
        ragged_moe.calls.known.clear()
