"""A layer of FP8 experts through SGLang's MoeRunner, as each dispatcher hands over its tokens; run by suite.py."""

import pytest
import torch

H, WIDTH, E, FACTOR = 256, 128, 8, 2.5


@pytest.fixture(scope="module")
def runner():
    """SGLang's runner, whose core is the adapter's."""
    from sglang.srt.layers.moe.moe_runner import MoeRunner, MoeRunnerConfig
    from sglang.srt.layers.moe.utils import Backend

    from ragged_moe.checks.peers.calls import judged
    from ragged_moe.integrations import sglang as adapter

    class Core(adapter.Fp8RunnerCore):
        def run_from_dispatch(self, *args, **options):
            judged["the adapter's core"] += 1
            return super().run_from_dispatch(*args, **options)

    adapter.register_moe_runner_core(adapter.BACKEND, Core)
    return MoeRunner(Backend(adapter.BACKEND), MoeRunnerConfig(num_experts=E, routed_scaling_factor=FACTOR, top_k=2))


@pytest.fixture
def layer():
    """(tokens, ids, weights, quantised weights as SGLang has them, the same again on the CPU)."""
    from sglang.srt.layers.moe.moe_runner.deep_gemm import DeepGemmMoeQuantInfo

    from ragged_moe.reference.layer import draw
    from ragged_moe.runtime.sizes import Sizes

    torch.manual_seed(0)
    x = draw(Sizes(H, WIDTH, E), 1)
    of = x.gemm1_weights, x.gemm1_weights_scale, x.gemm2_weights, x.gemm2_weights_scale
    w13, w13_scale, w2, w2_scale = (t.cuda() for t in of)
    info = DeepGemmMoeQuantInfo(w13_weight=w13, w2_weight=w2, use_fp8=True, w13_scale=w13_scale, w2_scale=w2_scale,
                                block_shape=[128, 128])  # fmt: skip
    ids = torch.stack([torch.randperm(E)[:2] for _ in range(5)]).int()
    return torch.randn(5, H).bfloat16(), ids, torch.rand(5, 2), info, of


def expected(hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, of: tuple) -> torch.Tensor:
    """By exact sums of tokens that are rounded as the kernels round; gate, then up."""
    from ragged_moe.kernels.config import Activation
    from ragged_moe.reference.experts import experts
    from ragged_moe.reference.layer import quantised

    return experts(*quantised(hidden.float()), ids, weights, *of, 0, Activation(True))


def near(found: torch.Tensor, must: torch.Tensor) -> bool:
    from ragged_moe.reference.layer import distance

    return distance(found.cpu(), must) < 0.01


def test_standard(runner, layer):
    from sglang.srt.layers.moe.token_dispatcher import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    hidden, ids, weights, info, of = layer
    topk = StandardTopKOutput(weights.cuda(), ids.cuda(), None)
    found = runner.run(StandardDispatchOutput(hidden.cuda(), None, topk), info)
    assert near(found.hidden_states, expected(hidden, ids, FACTOR * weights, of))
    assert not near(found.hidden_states, expected(hidden, ids, weights, of))


def test_deepep_normal(runner, layer):
    from sglang.srt.layers.moe.token_dispatcher import DeepEPNormalDispatchOutput

    hidden, ids, weights, info, of = layer
    ids[1, 0] = -1  # of another rank
    counts = torch.bincount(ids[ids >= 0], minlength=E).tolist()
    found = runner.run(DeepEPNormalDispatchOutput(hidden.cuda(), None, ids.cuda(), weights.cuda(), counts), info)
    assert near(found.hidden_states, expected(hidden, ids, weights, of))


def test_deepep_low_latency(runner, layer):
    from sglang.srt.layers.moe.token_dispatcher import DeepEPLLDispatchOutput

    hidden, ids, weights, info, of = layer
    counts = torch.tensor([2, 0, 5, 1, 0, 0, 3, 0], dtype=torch.int32)
    rows = torch.stack([hidden] * E)
    given = rows.cuda(), None, ids.cuda(), weights.cuda(), counts.cuda(), 2
    found = runner.run(DeepEPLLDispatchOutput(*given), info)
    for e, count in enumerate(counts.tolist()):
        one = expected(hidden, torch.full((5, 1), e), torch.ones(5, 1), of)
        assert not count or near(found.hidden_states[e, :count], one[:count])
