"""ragged_moe.route on the emulated GPU that MOE_MACHINE names, all checks of the emulator on.

test_moe_kernel.py runs this, in a process for each machine.
"""

import dataclasses
import os

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import emulated_gpu
from tests.ragged_moe.emulated import compiled_anew, without_cuda
from tests.thorough import all_but, unless

MACHINE = os.environ["MOE_MACHINE"]
BF16, F32 = torch.bfloat16, torch.float32
# experts, top_k, scoring, renormalize, groups, top_groups, type of the bias, that of the logits, factor
MODELS = {
    "DeepSeek-V3": (256, 8, "sigmoid", True, 8, 4, F32, F32, 2.5),
    "DeepSeek-V2": (160, 6, "softmax", False, 8, 3, None, BF16, 16.0),
    "DeepSeek-V4": (384, 6, "sqrtsoftplus", True, 1, 1, F32, F32, 1.5),
    "Kimi-K2": (384, 8, "sigmoid", True, 1, 1, F32, F32, 2.827),
    "Qwen3-MoE": (128, 8, "softmax", True, 1, 1, None, BF16, 1.0),
    "Qwen3-Next": (512, 10, "softmax", True, 1, 1, None, BF16, 1.0),
    "Qwen2-MoE": (60, 4, "softmax", False, 1, 1, None, F32, 1.0),
    "Ernie-4.5": (64, 6, "softmax", True, 1, 1, BF16, F32, 1.0),
    "Llama-4": (16, 1, "sigmoid", False, 1, 1, None, BF16, 1.0),
}
KEPT = ("DeepSeek-V3", "DeepSeek-V4", "Qwen2-MoE") * (MACHINE == "h200")  # one text for both machines


@pytest.fixture(scope="module")
def ragged_moe():
    """The module ragged_moe.layers.route, its kernels compiled into the emulator."""
    without_cuda(MACHINE)
    from ragged_moe.layers import route

    return route


def draw(experts: int, top_k: int, of_logits: torch.dtype, of_bias: torch.dtype | None):
    """(logits, bias): ties, both zeros, numbers whose scores are tiny or 1, infinities, and a NaN are among them."""
    g = torch.Generator().manual_seed(experts)
    x = 3 * torch.randn(17, experts, generator=g)
    x[0] = 0
    x[1] = torch.randint(-2, 3, (experts,), generator=g)
    x[2, 5], x[3, 3] = torch.inf, torch.nan
    x[4], x[5] = -60 + x[4], 60 + x[5]
    x[6] = -torch.inf
    x[6, experts - 1 - top_k : -1] = 1.0
    x[7] = -0.0
    x[7, experts // 2] = 0.0
    return x.to(of_logits), None if of_bias is None else (torch.randn(experts, generator=g) / 10).to(of_bias)


@pytest.mark.parametrize("model", all_but(KEPT, MODELS))
def test_choice(ragged_moe, model):
    """Expert by expert, in their order; weights to some units in the last place."""
    from ragged_moe.reference import router as d

    experts, top_k, scoring, renormalize, groups, top_groups, of_bias, of_logits, factor = MODELS[model]
    logits, bias = draw(experts, top_k, of_logits, of_bias)
    with emulated_gpu.session(schedule=2, strict=True):
        tensors = emulated_gpu.device_tensors((logits, *(() if bias is None else (bias,))))
        emulated_gpu.protect(tensors)
        emulated_gpu.written(tensors)
        ids, weights = ragged_moe.route(
            tensors[0], top_k, scoring=scoring, renormalize=renormalize, bias=None if bias is None else tensors[1],
            num_expert_group=groups, topk_group=top_groups, routed_scaling_factor=factor,
        )  # fmt: skip
    choice = ragged_moe.choice_of(experts, top_k, scoring, renormalize, groups, top_groups, of_logits, of_bias)
    expected = d.route(logits, choice, bias, factor)
    assert ids.dtype is torch.int32 and torch.equal(ids.long(), expected[0])
    assert torch.allclose(weights.double(), expected[1], rtol=2e-6, atol=1e-30, equal_nan=True)
    other = dataclasses.replace(choice, renormalize=not renormalize)  # the test of this test
    assert top_k == 1 or not torch.allclose(d.route(logits, other, bias, factor)[1], expected[1], equal_nan=True)


WRONG = {
    r"logits must be a tensor \[T, E\]": {"logits": torch.zeros(64)},
    "logits has type torch.float16, but must have": {"logits": torch.zeros(3, 64).half()},
    "bias has type NoneType|bias has type torch.int32": {"bias": torch.zeros(64).int()},
    "bias: dimension 0 is 63, but must be 64": {"bias": torch.zeros(63)},
    "logits: dimension E is 513, but must be from 1 to 512": {"logits": torch.zeros(3, 513)},
    "scoring is 'tanh', but must be one of 'softmax', 'sigmoid', 'sqrtsoftplus'": {"scoring": "tanh"},
    "top_k is 17, but must be from 1 to 16": {"top_k": 17},
    "top_k is 2.0, but must be an int": {"top_k": 2.0},
    "top_k is 9, but must be from 1 to 8": {"num_expert_group": 8, "topk_group": 1, "top_k": 9},
    "num_expert_group is 3 of 64 experts": {"num_expert_group": 3},
    "topk_group is 9, but must be from 1 to 8": {"num_expert_group": 8, "topk_group": 9},
    "routed_scaling_factor is '2.5', but must be a finite number": {"routed_scaling_factor": "2.5"},
    "logits is not in the emulated GPU's memory": {},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_is_refused(ragged_moe, monkeypatch, sentence):
    monkeypatch.setattr(ragged_moe, "program", lambda *_: pytest.fail("it was not refused"))
    with pytest.raises(ValueError, match=f"^({sentence})"):
        ragged_moe.route(**{"logits": torch.zeros(3, 64), "top_k": 4} | WRONG[sentence])


def test_nothing_to_do(ragged_moe):
    assert [x.shape for x in ragged_moe.route(torch.zeros(0, 64), 4)] == [(0, 4)] * 2


@pytest.mark.skipif(MACHINE != "h200", reason="the host's part, the same on a B200")
def test_fake(ragged_moe):
    """Tensors of torch's tracers become what a call would return."""

    with FakeTensorMode():
        ids, weights = torch.ops.ragged_moe.route(torch.empty(5, 64), 8)
    assert (ids.shape, ids.dtype, weights.shape, weights.dtype) == ((5, 8), torch.int32, (5, 8), F32)


@unless(False)
def test_traced_by_torch(ragged_moe):
    """One operator, whose fake says what comes back."""

    class Model(torch.nn.Module):
        def forward(self, logits, bias):
            return ragged_moe.route(logits * 1, 8, scoring="sigmoid", bias=bias, routed_scaling_factor=2.5)

    graph = torch.export.export(Model(), (torch.randn(5, 64), torch.randn(64))).graph
    (node,) = [n for n in graph.nodes if "ragged_moe" in str(n.target)]
    assert node.target is torch.ops.ragged_moe.route.default
    assert [(x.dtype, tuple(x.shape)) for x in node.meta["val"]] == [(torch.int32, (5, 8)), (F32, (5, 8))]


@unless(MACHINE == "h200")
def test_planted_fault_is_seen(ragged_moe, monkeypatch):
    """What the tests above are worth: -0 is not 0."""
    from ragged_moe.kernels import router

    monkeypatch.setattr(router, "select_float", lambda condition, x, y: y)
    ragged_moe.calls.known.clear()
    try:
        with compiled_anew(ragged_moe.program), pytest.raises((AssertionError, emulated_gpu.EmulatorError)):
            test_choice(ragged_moe, "Llama-4")
    finally:
        ragged_moe.calls.known.clear()
