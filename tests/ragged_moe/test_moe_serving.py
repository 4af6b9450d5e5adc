"""The adapters for vLLM and SGLang, against stubs of their interfaces: what they call, and with what.

Of the one for transformers, which transformers_checks.py tries, what needs no transformers.
"""

import importlib
import inspect
import math
import sys
import types
from pathlib import Path

import pytest
import torch

from ragged_moe import torch_ops
from ragged_moe.integrations import plugins
from ragged_moe.integrations.mxfp4 import mxfp4_of
from ragged_moe.layers import batched_experts
from ragged_moe.layers import experts as routed_experts
from ragged_moe.reference.grouped_gemm_fp4 import dequantised, e8m0
from ragged_moe.tuning import sm90
from tests.ragged_moe import serving_stubs as stubs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]

H, WIDTH, E = 256, 128, 3


@pytest.fixture
def calls(monkeypatch):
    """Calls of ragged_moe's functions by the adapters, in order: their names, and arguments by name."""
    return []


def adapter(monkeypatch, name: str, calls: list):
    """ragged_moe.integrations.NAME, imported anew; the functions that it calls are recorded and return ones."""
    full = f"ragged_moe.integrations.{name}"
    monkeypatch.delitem(sys.modules, full, raising=False)
    module = importlib.import_module(full)
    monkeypatch.setitem(sys.modules, full, module)  # so that it is gone afterwards

    def recorded(function):
        def record(*args, **options):
            given = inspect.signature(function).bind(*args, **options).arguments
            calls.append((function.__name__, given))
            return torch.ones(given["hidden"].shape)

        return record

    found = {f.__name__: recorded(f) for f in (routed_experts.experts, batched_experts.batched_experts)}
    monkeypatch.setattr(module, "ragged_moe", types.SimpleNamespace(**found))
    return module


def weights() -> tuple[torch.Tensor, ...]:
    """w13, its scale, w2, its scale."""
    e4m3 = torch.float8_e4m3fn
    return (torch.zeros(E, 2 * WIDTH, H).to(e4m3), torch.ones(E, 2, 2), torch.zeros(E, H, WIDTH).to(e4m3),
            torch.ones(E, 2, 1))  # fmt: skip


def quant_config(**options):
    of = weights()
    options = {"gemm1_alpha": None, "gemm1_beta": None, "gemm1_clamp_limit": None} | options
    return types.SimpleNamespace(w1_scale=of[1], w2_scale=of[3], **options)


def same_parameters(ours: type, stub: type) -> None:
    """Whatever is abstract is there, and takes what the stub's takes."""
    for name in stub.__abstractmethods__:
        found, expected = inspect.getattr_static(ours, name), inspect.getattr_static(stub, name)
        assert type(found) is type(expected), name
        if not isinstance(found, property):
            parameters = [list(inspect.signature(getattr(of, name)).parameters) for of in (ours, stub)]
            assert parameters[0] == parameters[1], name


def test_vllm_runs_tokens(monkeypatch, calls):
    """By vLLM's map, whose memory is handed on: it may change (EPLB)."""
    stubs.vllm(monkeypatch)
    module = adapter(monkeypatch, "vllm", calls)
    same_parameters(module.Fp8Experts, stubs.FusedMoEExpertsModular)
    experts = module.Fp8Experts(None, quant_config(gemm1_clamp_limit=7.0, gemm1_alpha=1.702, gemm1_beta=1.0))
    assert experts.workspace_shapes(4, 2 * WIDTH, H, 2, 6, E, None, None)[2] == (4, H)
    ids, map_ = torch.tensor([[0, 5], [4, -1]], dtype=torch.int32), torch.tensor([0, -1, -1, 1, -1, 2]).int()
    w13, w13_scale, w2, w2_scale = weights()
    output, hidden, scale = torch.empty(2, H), torch.zeros(2, H), torch.ones(2, 2)
    for activation, on_input in ((stubs.MoEActivation.SILU, False), (stubs.MoEActivation.SWIGLUOAI_UNINTERLEAVE, True)):
        experts.apply(output, hidden, w13, w2, torch.full((2, 2), 0.5), ids, activation, 6, map_, scale, None, None,
                      None, None, on_input)  # fmt: skip
    (name, first), (_, second) = calls
    assert name == "experts" and first["out"] is output and first["hidden_scale"] is scale
    assert first["hidden_scale_layout"] == "tokens_first"
    assert first["topk_ids"] is ids and first["expert_map"] is map_ and module.mapping(False) is None
    assert first["num_experts"] == 6 and first["gate_first"]
    assert first["w13_scale"] is experts.w1_scale and first["w2"] is w2
    assert (first["limit"], first["alpha"], first["shift"]) == (7.0, 1.0, 0.0)
    assert (second["limit"], second["alpha"], second["shift"]) == (7.0, 1.702, 1.0)
    assert first["topk_weights"].tolist()[0] == [0.5, 0.5] and second["topk_weights"].tolist()[0] == [1.0, 1.0]


def test_vllm_runs_tokens_by_expert(monkeypatch, calls):
    stubs.vllm(monkeypatch)
    module = adapter(monkeypatch, "vllm", calls)
    same_parameters(module.Fp8BatchedExperts, stubs.FusedMoEExpertsModular)
    experts = module.Fp8BatchedExperts(None, quant_config(), max_num_tokens=8, num_dispatchers=4)
    assert experts.workspace_shapes(8, 2 * WIDTH, H, 2, 12, E, None, None)[2] == (E, 32, H)
    w13, _, w2, _ = weights()
    counts, ids = torch.tensor([1, 2, 3], dtype=torch.int32), torch.zeros(7, 2, dtype=torch.int32)
    experts.apply(torch.empty(E, 32, H), torch.zeros(E, 32, H), w13, w2, torch.ones(7, 2), ids,
                  stubs.MoEActivation.SILU, 12, None, torch.ones(E, 32, 2), None, None, None,
                  stubs.ExpertTokensMetadata(counts), False)  # fmt: skip
    ((name, given),) = calls
    assert name == "batched_experts" and given["counts"] is counts and given["expected_m"] == 5


@pytest.mark.parametrize("of_weights, of_tokens", [("rows", 3), ("tensor", 3), ("tensor", 1), ("rows", 1)])
def test_vllm_has_other_scales(monkeypatch, calls, of_weights, of_tokens):
    """One a row, or one of all of an expert's rows; of tokens one each, or one of all. All become what they are."""
    stubs.vllm(monkeypatch)
    module = adapter(monkeypatch, "vllm", calls)
    w13, _, w2, _ = weights()
    first, second = (torch.rand(E, w.shape[1], 1) if of_weights == "rows" else torch.rand(E) for w in (w13, w2))
    config = types.SimpleNamespace(**vars(quant_config()) | {"w1_scale": first, "w2_scale": second})
    one = module.Fp8Experts(None, config)
    hidden, scale = torch.zeros(3, H), torch.rand(of_tokens, 1) if of_tokens > 1 else torch.rand(1)
    one.apply(torch.empty(3, H), hidden, w13, w2, torch.ones(3, 2), torch.zeros(3, 2, dtype=torch.int32),
              stubs.MoEActivation.SILU, E, None, scale, None, None, None, None, False)  # fmt: skip
    ((_, given),) = calls
    for found, of, n in ((given["w13_scale"], first, 2 * WIDTH), (given["w2_scale"], second, H)):
        assert found.is_contiguous() and torch.equal(found, of.view(E, -1).expand(E, n))
    assert torch.equal(given["hidden_scale"], scale.view(-1, 1).expand(3, H // 128))
    assert len(module.SCHEMES) == 5 and all(module.Fp8Experts._supports_quant_scheme(*x) for x in module.SCHEMES)


def test_vllm_has_as_many_blocks_as_rows(monkeypatch, calls):
    """With K = 16384, as Mixtral 8x22B's and Grok 2's W2: scales of blocks stay so."""
    stubs.vllm(monkeypatch)
    module, n, k = adapter(monkeypatch, "vllm", calls), 256, 16384
    weights, blocks, rows = torch.empty(E, n, k, device="meta"), torch.rand(E, 2, 128), torch.rand(E, n, 1)
    assert blocks.numel() == rows.numel() and module.of_rows(blocks, weights) is blocks
    assert torch.equal(module.of_rows(rows, weights), rows[..., 0])


def test_vllm_asks_for_it_first(monkeypatch, calls):
    """Where it would take Triton's, once, and for what it supports."""
    stubs.vllm(monkeypatch)
    module = adapter(monkeypatch, "vllm", calls)
    module.enable()
    module.enable()
    asked = sys.modules["vllm.model_executor.layers.fused_moe.oracle.fp8"].backend_to_kernel_cls
    assert asked(stubs.Fp8MoeBackend.TRITON) == [module.Fp8Experts, "TRITON"]
    assert asked(stubs.Fp8MoeBackend.BATCHED_TRITON) == [module.Fp8BatchedExperts, "BATCHED_TRITON"]
    assert asked(stubs.Fp8MoeBackend.DEEPGEMM) == ["DEEPGEMM"]
    one = module.Fp8Experts
    assert one._supports_current_device() and one._supports_quant_scheme("w", "tokens") and one._supports_shape(7168)
    assert not (one._supports_quant_scheme("w", None) or one._supports_shape(2880) or one._supports_no_act_and_mul())
    assert [x for x in stubs.MoEActivation if one._supports_activation(x)] == [
        stubs.MoEActivation.SILU, stubs.MoEActivation.SWIGLUOAI_UNINTERLEAVE
    ]  # fmt: skip


def test_vllm_has_a_registry(monkeypatch, calls):
    """Then its classes are registered by their names, and nothing else changes; by hand and by the plugin."""
    registered = []
    stubs.vllm(monkeypatch)
    oracle = "vllm.model_executor.layers.fused_moe.oracle"
    monkeypatch.setattr(sys.modules[oracle], "register_fp8_moe_backend", lambda *x: registered.append(x), raising=False)
    module = adapter(monkeypatch, "vllm", calls)
    before = sys.modules[f"{oracle}.fp8"].backend_to_kernel_cls
    module.enable()
    plugins.vllm()
    assert registered == [("ragged_moe", plugins.CLASSES)] * 2
    assert [getattr(module, name.rpartition(".")[2]) for name in plugins.CLASSES] == [
        module.Fp8Experts, module.Fp8BatchedExperts
    ]  # fmt: skip
    assert sys.modules[f"{oracle}.fp8"].backend_to_kernel_cls is before


@pytest.mark.parametrize("named, enabled", [(None, False), ("", False), ("other", False), ("a, ragged_moe", True)])
def test_a_plugin_changes_nothing_unless_it_is_named(monkeypatch, calls, named, enabled):
    stubs.vllm(monkeypatch)
    cores = stubs.sglang(monkeypatch)
    for server in ("vllm", "sglang"):
        adapter(monkeypatch, server, calls)
        variable = f"{server.upper()}_PLUGINS"
        monkeypatch.delenv(variable, raising=False) if named is None else monkeypatch.setenv(variable, named)
    plugins.vllm()
    plugins.sglang()
    asked = sys.modules["vllm.model_executor.layers.fused_moe.oracle.fp8"].backend_to_kernel_cls
    assert len(asked(stubs.Fp8MoeBackend.TRITON)) == 1 + enabled and (set(cores) == {"deep_gemm"}) is enabled


def test_entry_points_are_there():
    """Those of the wheel are functions of plugins.py."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, name in (("vllm.general_plugins", "vllm"), ("sglang.srt.plugins", "sglang")):
        assert groups[group] == {"ragged_moe": f"ragged_moe.integrations.plugins:{name}"}
        assert callable(getattr(plugins, name))


def test_batch_invariance_is_what_vllm_is_told(monkeypatch, calls):
    """It is not, as the kernels for few tokens share K among CTAs, and those for many do not: another order of sums."""
    stubs.vllm(monkeypatch)
    module = adapter(monkeypatch, "vllm", calls)
    assert not module.Fp8Experts._supports_batch_invariance()
    assert not module.Fp8BatchedExperts._supports_batch_invariance()
    few, many = (sm90.choose_gemm(8 * t, 32, 7168, 2048, routed=True) for t in (8, 2048))
    assert not few.data_parallel and many.data_parallel and many.split_k == 1


def quant_info(**options) -> stubs.DeepGemmMoeQuantInfo:
    w13, w13_scale, w2, w2_scale = weights()
    given = {"use_fp8": True, "w13_scale": w13_scale, "w2_scale": w2_scale, "block_shape": [128, 128]} | options
    return stubs.DeepGemmMoeQuantInfo(w13, w2, **given)


def test_sglang_runs_tokens(monkeypatch, calls):
    cores = stubs.sglang(monkeypatch)
    module = adapter(monkeypatch, "sglang", calls)
    module.enable()
    same_parameters(module.Fp8RunnerCore, stubs.DispatchMoeRunnerCore)
    config = stubs.MoeRunnerConfig(num_experts=8, routed_scaling_factor=2.5, swiglu_limit=10.0)
    core = cores["deep_gemm"](config)
    assert core.runner_backend == "deep_gemm"
    ids, given = torch.zeros(4, 2, dtype=torch.int32), torch.full((4, 2), 0.5)
    dispatched = stubs.StandardDispatchOutput(torch.zeros(4, H), None, stubs.StandardTopKOutput(given, ids, None))
    combined = core.run_from_dispatch(dispatched, quant_info(), config)
    ((name, found),) = calls
    assert name == "experts" and combined.hidden_states.shape == (4, H)
    assert found["topk_ids"] is ids and found["topk_weights"].tolist()[0] == [1.25, 1.25]
    assert (found["num_experts"], found["limit"], found["gate_first"]) == (8, 10.0, True)
    assert found["hidden_scale_layout"] == "tokens_first"


def test_sglang_scales_what_is_summed(monkeypatch, calls):
    """Weights on the input are behind no factor: that is of the sums, not of what is activated."""
    stubs.sglang(monkeypatch)
    module = adapter(monkeypatch, "sglang", calls)
    config = stubs.MoeRunnerConfig(num_experts=8, routed_scaling_factor=2.5, apply_router_weight_on_input=True)
    topk = stubs.StandardTopKOutput(torch.full((4, 1), 0.5), torch.zeros(4, 1, dtype=torch.int32), None)
    dispatched = stubs.StandardDispatchOutput(torch.zeros(4, H), None, topk)
    combined = module.Fp8RunnerCore(config).run_from_dispatch(dispatched, quant_info(), config)
    ((_, given),) = calls
    assert torch.equal(given["topk_weights"], topk.topk_weights) and given["apply_router_weight_on_input"]
    assert (combined.hidden_states == 2.5).all()


def test_sglang_runs_tokens_by_expert(monkeypatch, calls):
    stubs.sglang(monkeypatch)
    module = adapter(monkeypatch, "sglang", calls)
    config, ids, given = stubs.MoeRunnerConfig(num_experts=8), object(), object()
    counts, scale = torch.zeros(E, dtype=torch.int32), torch.ones(E, 16, 2)
    dispatched = stubs.DeepEPLLDispatchOutput(torch.zeros(E, 16, H), scale, ids, given, counts, 4)
    combined = module.Fp8RunnerCore(config).run_from_dispatch(dispatched, quant_info(), config)
    ((name, found),) = calls
    assert name == "batched_experts" and found["counts"] is counts and found["hidden_scale"] is scale
    assert found["expected_m"] == 4 and combined[1:] == (ids, given) and combined.hidden_states.shape == (E, 16, H)


def test_sglang_runs_tokens_that_others_have_sent(monkeypatch, calls):
    """DeepEP's normal mode: numbers are of experts here, weights count, and the combine of all ranks scales."""
    stubs.sglang(monkeypatch)
    module = adapter(monkeypatch, "sglang", calls)
    config, ids, given = stubs.MoeRunnerConfig(num_experts=8, routed_scaling_factor=2.5), object(), torch.ones(4, 2)
    scale = torch.ones(4, 2)
    dispatched = stubs.DeepEPNormalDispatchOutput(torch.zeros(4, H), scale, ids, given, [4, 0, 0])
    combined = module.Fp8RunnerCore(config).run_from_dispatch(dispatched, quant_info(), config)
    ((name, found),) = calls
    assert name == "experts" and found["topk_ids"] is ids and found["hidden_scale"] is scale
    assert torch.equal(found["topk_weights"], given) and found["hidden_scale_layout"] == "tokens_first"
    assert isinstance(combined, stubs.DeepEPNormalCombineInput) and combined[1:] == (ids, given)


@pytest.mark.parametrize("config, info, sentence", [
    ({"activation": "gelu"}, {}, "its activation is gelu, not silu"),
    ({"no_combine": True}, {}, "it leaves the sums over experts to the caller"),
    ({"gemm1_alpha": 1.702}, {}, r"its SwiGLU has an alpha \(gemm1_alpha\)"),
    ({"gemm1_beta": 1.0}, {}, r"its SwiGLU has a beta \(gemm1_beta\)"),
    ({}, {"block_shape": [1, 32]}, "its weights are not e4m3 in blocks of 128 x 128"),
    ({}, {"is_fp4_experts": True}, "its weights are not e4m3 in blocks of 128 x 128"),
])  # fmt: skip
def test_sglang_refuses(monkeypatch, calls, config, info, sentence):
    stubs.sglang(monkeypatch)
    module = adapter(monkeypatch, "sglang", calls)
    with pytest.raises(ValueError, match=f"ragged_moe.experts cannot run this layer: {sentence}"):
        config = stubs.MoeRunnerConfig(**config)
        module.Fp8RunnerCore(config).run_from_dispatch(None, quant_info(**info), config)
    assert not calls


def test_operators_take_what_the_functions_take():
    """An argument that an operator drops would be dropped here in silence."""
    for function, operator in ((routed_experts.experts, torch_ops.experts_op),
                               (batched_experts.batched_experts, torch_ops.batched_experts_op)):  # fmt: skip
        taken = {argument.name for argument in operator._schema.arguments}
        assert set(inspect.signature(function).parameters) - {"out", "workspace"} == taken


def test_mxfp4_again():
    """Numbers that MXFP4 has come back as they are, whatever their scales were; others are refused."""
    g = torch.Generator().manual_seed(0)
    code = torch.randint(0, 16, (6, 96), generator=g)
    code[0, :32], code[1, :32] = 0, 1  # zeros alone; the smallest number alone, which scales make 4
    scale = torch.randint(90, 140, (6, 3), generator=g)
    numbers = dequantised((code[:, 0::2] | code[:, 1::2] << 4).to(torch.uint8), e8m0(scale)).bfloat16()
    b, b_scale = mxfp4_of(numbers)
    assert torch.equal(dequantised(b, e8m0(b_scale)).bfloat16(), numbers) and (b_scale[2:] <= scale[2:]).all()
    for wrong in (1.25, 2**-6, math.inf, math.nan):
        numbers[4, 32:64] = 4
        numbers[4, 40] = wrong
        with pytest.raises(ValueError, match=r"^\[4, 32:64\] are not e2m1 numbers times one power of two$"):
            mxfp4_of(numbers)
