"""The layer's references against small cases that are done by hand."""

import math

import pytest
import torch

from ragged_moe.reference import layer as d
from ragged_moe.runtime import sizes as p

SMALL = p.Sizes(hidden=256, intermediate=128, local=4)


def logits_of(*pairs, rest=-20.0) -> torch.Tensor:
    """One token's logits: (expert, logit) pairs, and the rest."""
    x = torch.full((1, 256), rest)
    for expert, logit in pairs:
        x[0, expert] = logit
    return x


NO_BIAS = torch.zeros(256, dtype=torch.bfloat16)


def test_groups_are_chosen_by_their_best_two():
    """A group with one excellent expert loses against four with two good ones each."""
    pairs = [(32 * g + i, 1.0) for g in range(4) for i in (3, 4)]
    chosen, weights = d.route(logits_of(*pairs, (32 * 7, 1.5)), NO_BIAS, 2.5)
    assert chosen.tolist() == [[3, 4, 35, 36, 67, 68, 99, 100]]
    assert torch.allclose(weights, torch.full((1, 8), 2.5 / 8))


def test_weights_are_without_bias_and_sum_to_the_factor():
    bias = NO_BIAS.clone()
    bias[8:16] = 4  # they are chosen, though their own scores are low
    chosen, weights = d.route(logits_of(*[(i, -2.0 - i / 8) for i in range(16)], (200, 3.0)), bias, 3.0)
    assert chosen.tolist() == [list(range(8, 16))]
    s = [1 / (1 + math.exp(2 + i / 8)) for i in range(8, 16)]
    assert torch.allclose(weights, torch.tensor([[3 * x / sum(s) for x in s]]))


@pytest.mark.parametrize("logits, expected", [
    (torch.zeros(1, 256), list(range(8))),  # all equal: the first groups, the first experts
    (logits_of(*[(e, 0.5) for e in range(250, 256)]), [0, 1, 250, 251, 252, 253, 254, 255]),
    (logits_of((40, math.inf), (41, math.inf), (7, -math.inf)), [0, 1, 2, 3, 4, 5, 40, 41]),
    (logits_of((77, math.nan)), [0, 1, 2, 3, 4, 5, 6, 77]),
])  # fmt: skip
def test_ties_infinities_nan(logits, expected):
    """Of equals the first; +inf is a score of 1, -inf of 0; NaN is above all, and so is its group."""
    assert d.route(logits, NO_BIAS, 1.0)[0].tolist() == [expected]


def test_a_bias_of_minus_infinity_is_below_pruned_experts():
    """As the definition has it: outside of the groups is f32's least, which -inf is below."""
    bias = torch.full((256,), -math.inf, dtype=torch.bfloat16)
    bias[[0, 32, 64, 96]] = 0
    assert d.route(torch.zeros(1, 256), bias, 1.0)[0].tolist() == [[0, 32, 64, 96, 128, 129, 130, 131]]


def test_lists():
    chosen = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [2, 9, 10, 11, 12, 13, 14, 15], [0, 3, 4, 16, 17, 18, 19, 20]])
    m_indptr, rows, places = d.lists(chosen, 2, 3)  # local are 2, 3, 4
    assert m_indptr.tolist() == [0, 2, 4, 6] and rows.tolist() == [0, 1, 0, 2, 0, 2]
    assert places.tolist() == [[0, 2, 4] + [-1] * 5, [1] + [-1] * 7, [3, 5] + [-1] * 6]
    weights = torch.arange(24.0).view(3, 8) + 1
    of_places = [[2, 3, 4] + [0] * 5, [9] + [0] * 7, [18, 19] + [0] * 6]
    assert d.local_weights(chosen, weights, 2, 3).tolist() == of_places


@pytest.mark.parametrize("offset", [253, 250])
def test_lists_beyond_the_last_expert_are_empty(offset):
    m_indptr, rows, _ = d.lists(torch.tensor([list(range(248, 256))]), offset, 8)
    assert m_indptr.tolist() == [min(i, 256 - offset) for i in range(9)] and len(rows) == 256 - offset


def constant(x: p.Inputs) -> p.Inputs:
    """All operands constants, so that every result can be written down."""
    for tensor, value in zip(x.tensors()[2:], (1.0, -0.5, 0.25, 0.125, 0.5, -2.0)):
        tensor.copy_(torch.full(tensor.shape, value))
    x.gemm1_weights_scale[:, 1:] = -0.25  # of gate
    x.routing_logits[:] = logits_of(*[(e, 2.0) for e in range(4)], *[(e, 0.0) for e in range(40, 44)])
    x.routing_bias[:] = 0
    return x


def test_the_layer_by_hand():
    """up = 256 * -0.5 * 0.25 * 0.125 = -4, gate = 8; O = 128 * silu(8) * -4 * 0.5 * -2; 4 of 8 experts are local."""
    x = constant(d.draw(SMALL, 3))
    silu = 8 / (1 + math.exp(-8))
    s, t = 1 / (1 + math.exp(-2)), 0.5
    expected = 128 * silu * -4 * 0.5 * -2 * 2.5 * s / (s + t)
    assert torch.allclose(d.layer(x), torch.full((3, 256), expected, dtype=torch.float64), rtol=1e-6)
    assert torch.allclose(d.quantised_layer(x).double(), torch.tensor(expected).double(), rtol=2**-8)


def test_only_local_experts_count_but_weights_are_over_all():
    """What all experts give is the sum of what two GPUs with half of them give."""
    x = d.draw(p.Sizes(128, 128, 8), 30, seed=1)
    whole = d.layer(x)
    parts = []
    for first in (0, 4):
        part = [t[first : first + 4] if t.dim() == 3 else t for t in x.tensors()]
        parts.append(d.layer(p.Inputs(*part, first, 2.5)))
    assert torch.allclose(parts[0] + parts[1], whole, rtol=1e-9, atol=1e-6 * whole.abs().max())
    assert parts[0].norm() > 0 and parts[1].norm() > 0


def test_quantised():
    c = torch.zeros(2, 256)
    c[0, 5], c[0, 6], c[1, 200] = -7.0, 3.5, 1e-3
    values, scales = d.quantised(c)
    assert values[0, 5].item() == -448 and values[0, 6].item() == 224 and values[1, 200].item() == 448
    assert torch.allclose(scales, torch.tensor([[7 / 448, 0], [0, 1e-3 / 448]])) and not values.isnan().any()


def test_what_quantising_costs():
    """Against the definition on its own kind of inputs: 2 to 4 % of the norm, and the contest's tolerance is met."""
    x = d.draw(p.Sizes(512, 256, 8), 40, seed=2)
    exact, out = d.layer(x), d.quantised_layer(x)
    assert 0.01 < d.distance(out, exact) < 0.04 and d.matched(out, exact) > 0.93


@pytest.mark.parametrize("fault", ["up and gate", "sign of a scale", "no bias", "weights", "another offset"])
def test_faults_are_seen(fault):
    x = d.draw(SMALL, 40, seed=3)
    x.routing_logits[:, :4] += 2
    expected = d.layer(x)
    if fault == "up and gate":
        x.gemm1_weights = x.gemm1_weights.view(torch.uint8).roll(128, 1).view(p.E4M3)
        x.gemm1_weights_scale = x.gemm1_weights_scale.roll(1, 1)
    elif fault == "sign of a scale":
        x.gemm2_weights_scale = x.gemm2_weights_scale.abs()
    elif fault == "no bias":
        x.routing_bias[:] = 0
    elif fault == "weights":
        x.routed_scaling_factor = 1.0
    else:
        x.local_expert_offset = 1
    out = d.layer(x)
    assert d.distance(out, expected) > 0.1
    if fault != "no bias":
        assert d.matched(out.bfloat16(), expected) < 0.9


def test_infinite_or_nan_matches_nothing():
    expected = torch.ones(2, 2)
    assert d.matched(expected, expected) == 1.0
    for bad in (math.inf, math.nan):
        assert d.matched(torch.tensor([[1.0, 1], [bad, 1]]), expected) == 0.0
