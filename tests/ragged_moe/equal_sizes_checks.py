"""Calls whose sizes are all equal, so that an operand and its transpose have one shape: none is read as the other.

Tokens, local experts, experts a token, blocks of K and of N are 2. test_moe_kernel.py runs this, in a process for each
machine, which MOE_MACHINE names.
"""

import os
from itertools import permutations

import pytest
import torch

import emulated_gpu
from tests.ragged_moe.emulated import SMS, fp8_experts, without_cuda

MACHINE = os.environ["MOE_MACHINE"]
TWO = 2
FAR = 0.01  # one value that a tensor core rounds to a neighbour counts for much in so few rows


@pytest.fixture(scope="module", autouse=True)
def machine():
    without_cuda(MACHINE, SMS)


@pytest.fixture(scope="module")
def tokens() -> dict[str, torch.Tensor]:
    """What experts takes beside weights; tokens that differ in size, for scales to."""
    from ragged_moe.reference.layer import quantised

    g = torch.Generator().manual_seed(4)
    hidden = torch.randn(TWO, 2 * 128, generator=g) * torch.tensor([[1.0], [2.0]])
    hidden[:, 128:] *= 3
    values, scales = quantised(hidden)
    return {"hidden": values, "hidden_scale": scales, "topk_ids": torch.tensor([[0, 1], [0, 1]], dtype=torch.int32),
            "topk_weights": torch.tensor([[0.1, 1.0], [0.6, 0.3]])}  # fmt: skip


def turned(x: torch.Tensor) -> list[torch.Tensor]:
    """Return all transposes of x that have its shape and are something else."""
    found = [x.permute(order).contiguous() for order in permutations(range(x.dim()))]
    return [y for y in found if y.shape == x.shape and not same(x, y)]


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether they have the same bits."""
    return torch.equal(x.view(torch.uint8), y.view(torch.uint8))


def shows(expected, operands: dict[str, torch.Tensor], names: str) -> None:
    """Assert that the result is another one with any transpose of the operands of these names: they have some."""
    from ragged_moe.reference.layer import distance

    right = expected(**operands)
    for name in names.split():
        others = turned(operands[name])
        assert others, name
        for other in others:
            assert distance(expected(**operands | {name: other}), right) > 5 * FAR, name


def device(operands: dict) -> dict:
    """The operands in device memory, as if a launch before had written them."""
    made = emulated_gpu.device_tensors(operands)
    emulated_gpu.written(made)
    return made


@pytest.mark.parametrize("intermediate", [128, 256])
def test_experts(tokens, intermediate):
    """E4m3 tokens and weights: I / 128 is 1, so that w13_scale is 2 x 2 x 2, or 2, so that w2 and its scale are."""
    import ragged_moe
    from ragged_moe.reference import experts as d
    from ragged_moe.reference.layer import distance

    names = "w13", "w13_scale", "w2", "w2_scale"
    operands = tokens | dict(zip(names, fp8_experts(256, intermediate, TWO, 0.25)))

    def expected(hidden, hidden_scale, topk_ids, topk_weights, **weights):
        return d.experts(hidden, hidden_scale, topk_ids, topk_weights, *weights.values())

    of_weights = "w13_scale" if intermediate == 128 else "w2 w2_scale"
    shows(expected, operands, f"hidden_scale topk_ids topk_weights {of_weights}")
    right = expected(**operands)
    layouts = ("tokens_first", operands["hidden_scale"].t()), ("blocks_first", operands["hidden_scale"])
    for layout, scale in layouts:
        for of_scale in (scale, scale.contiguous(), scale.t().contiguous().t())[: 3 if intermediate == 128 else 1]:
            with emulated_gpu.session(strict=True):
                given = device(operands | {"hidden_scale": of_scale})
                found = ragged_moe.experts(**given, hidden_scale_layout=layout).clone()
            assert distance(found, right) <= FAR, (layout, of_scale.stride())


def test_batched_experts(tokens):
    """Scales [E, M, H/128] are 2 x 2 x 2; of any strides, which say nothing of what a dimension is."""
    import ragged_moe
    from ragged_moe.reference import experts as d
    from ragged_moe.reference.layer import distance, quantised

    g = torch.Generator().manual_seed(9)
    size = torch.tensor([1.0, 3.0]).view(2, 1, 1) * torch.tensor([1.0, 5.0]).view(1, 2, 1)
    hidden = torch.randn(TWO, TWO, 256, generator=g) * size
    hidden[..., 128:] *= 7
    values, scales = quantised(hidden.view(-1, 256))
    operands = {"hidden": values.view(hidden.shape), "hidden_scale": scales.t().reshape(TWO, TWO, TWO).contiguous()}
    weights = fp8_experts(256, 128, TWO, 0.25)

    def expected(hidden, hidden_scale):
        ids = torch.tensor([[0], [0], [1], [1]])
        scales = hidden_scale.view(-1, TWO).t().contiguous()
        return d.experts(hidden.view(-1, 256), scales, ids, torch.ones(4, 1), *weights)

    shows(expected, operands, "hidden_scale")
    right = expected(**operands)
    for order in permutations(range(3)):
        inverse = [order.index(i) for i in range(3)]
        scale = operands["hidden_scale"].permute(order).contiguous().permute(inverse)  # of other strides
        with emulated_gpu.session(strict=True):
            counts = torch.full((TWO,), TWO, dtype=torch.int32)
            given = device(operands | {"hidden_scale": scale, "counts": counts})
            of_weights = emulated_gpu.device_tensors(dict(zip(("w13", "w13_scale", "w2", "w2_scale"), weights)))
            found = ragged_moe.batched_experts(**given, **of_weights).clone()
        assert distance(found.view(-1, 256), right) <= FAR, order


def test_grouped_gemm(tokens):
    """Scales are 2 x 2 and 2 x 2 x 2, b is 2 x 256 x 256."""
    import ragged_moe
    from ragged_moe.reference.grouped_gemm import reference
    from ragged_moe.reference.layer import distance

    g = torch.Generator().manual_seed(6)
    _, _, b, b_scale = fp8_experts(256, 256, TWO, 1.0)
    m_indptr = torch.tensor([0, 1, 2], dtype=torch.int32)
    operands = {"a": tokens["hidden"], "a_scale": torch.rand(TWO, TWO, generator=g), "b": b, "b_scale": b_scale}
    shows(lambda **x: reference(*x.values(), m_indptr), operands, "a_scale b b_scale")
    with emulated_gpu.session(strict=True):
        offsets = emulated_gpu.device_tensors(m_indptr)  # which the kernel reads before it waits
        found = ragged_moe.grouped_gemm_fp8(**device(operands), m_indptr=offsets).clone()
    assert distance(found, reference(*operands.values(), m_indptr)) <= FAR


def test_run():
    """hidden_states_scale [H/128, T] is 2 x 2, the weights' scales are 2 x 2 x 2."""
    import ragged_moe
    from ragged_moe.reference.layer import distance, draw, quantised_layer
    from ragged_moe.runtime.sizes import Sizes

    x = draw(Sizes(hidden=256, intermediate=128, local=TWO), TWO)
    x.routing_logits[:, :TWO] += 9  # both experts of both tokens are here
    names = "hidden_states_scale", "gemm1_weights_scale"
    operands = {name: getattr(x, name) for name in names}
    expected = lambda **given: quantised_layer(type(x)(**vars(x) | given))  # noqa: E731
    shows(expected, operands, " ".join(names))
    with emulated_gpu.session(strict=True):
        given = device(dict(enumerate(x.tensors())))
        output = emulated_gpu.device_tensors(torch.zeros(TWO, 256, dtype=torch.bfloat16))
        ragged_moe.run(*given.values(), x.local_expert_offset, x.routed_scaling_factor, output)
        found = output.clone()
    assert distance(found, expected()) <= FAR


@pytest.mark.skipif(MACHINE != "h200", reason="one form of packed weights is enough")
def test_packed_experts(tokens):
    """Global scales [E, 2], of the halves of W13, are 2 x 2."""
    import ragged_moe
    from ragged_moe.reference.experts import experts_fp4
    from ragged_moe.reference.grouped_gemm_fp4 import dequantised
    from ragged_moe.reference.layer import distance

    g, packed, exact = torch.Generator().manual_seed(2), {}, {}
    of_all = {"w13": torch.tensor([[0.1, 0.5], [1.0, 0.3]]), "w2": torch.tensor([0.7, 0.2])}
    for name, n, k in (("w13", 128, 128), ("w2", 128, 64)):
        b = torch.randint(0, 256, (TWO, n, k // 2), generator=g, dtype=torch.uint8)
        scale = torch.randn(TWO, n, k // 16, generator=g).to(torch.float8_e4m3fn)
        exact[name] = dequantised(b, scale.double())
        names = name, f"{name}_scale", f"{name}_global"
        packed |= dict(zip(names, ragged_moe.pack_nvfp4(b, scale, weight_scale_2=of_all[name])))
    hidden = torch.randn(TWO, 128, generator=g).bfloat16() / 16
    operands = {"w13_global": of_all["w13"], "topk_ids": tokens["topk_ids"], "topk_weights": tokens["topk_weights"]}

    def expected(w13_global, topk_ids, topk_weights):
        w13 = exact["w13"] * w13_global.double().repeat_interleave(64, 1)[:, :, None]
        w2 = exact["w2"] * of_all["w2"].double().view(-1, 1, 1)
        return experts_fp4(hidden, topk_ids, topk_weights, w13, w2)

    shows(expected, operands, " ".join(operands))
    with emulated_gpu.session(strict=True):
        given = device(operands | packed | {"hidden": hidden})
        found = ragged_moe.experts(**given).clone()
    assert distance(found, expected(**operands)) <= FAR


def test_route():
    """As many tokens as experts as are chosen: logits and the results are 4 x 4, a bias is one of experts."""
    import ragged_moe
    from ragged_moe.layers.route import choice_of
    from ragged_moe.reference.router import route

    g = torch.Generator().manual_seed(3)
    logits, bias = torch.randn(4, 4, generator=g), torch.randn(4, generator=g)
    with emulated_gpu.session(strict=True):
        found = [x.clone() for x in ragged_moe.route(**device({"logits": logits, "bias": bias}), top_k=4,
                                                     scoring="sigmoid", renormalize=False)]  # fmt: skip
    choice = choice_of(4, 4, "sigmoid", False, 1, 1, logits.dtype, bias.dtype)
    ids, weights = route(logits, choice, bias)
    assert torch.equal(found[0].long(), ids.long()) and torch.allclose(found[1], weights.float(), atol=1e-6)
    assert not torch.allclose(route(logits.t(), choice, bias)[1], weights, atol=0.05)
