"""ragged_moe.integrations.transformers under tiny random models, on the emulated GPU that MOE_MACHINE names (or h200).

In a command of its own, where transformers is installed: python -m pytest tests/ragged_moe/transformers_checks.py -s
With -k "not generation" it takes minutes; MOE_STEPS says how many tokens are generated, 64 unless given.
"""

import functools
import importlib
import os
import re
from pathlib import Path

import pytest
import torch
import transformers as tf
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import emulated_gpu
from tests import quick_dsl

MACHINE = os.environ.get("MOE_MACHINE", "h200")
COMMON = {
    "vocab_size": 128, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
SHARED = {"n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}
MODELS = {
    "Qwen3Moe": {"num_experts": 32, "num_experts_per_tok": 8, "head_dim": 64, "moe_intermediate_size": 128},
    "Qwen3Moe, I = 192": {"num_experts": 8, "num_experts_per_tok": 2, "head_dim": 64, "moe_intermediate_size": 192},
    "DeepseekV3": {
        **SHARED, "moe_intermediate_size": 128, "n_group": 4, "topk_group": 2, "q_lora_rank": 64, "kv_lora_rank": 64,
        "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 64,
    },
    "Glm4Moe": {**SHARED, "moe_intermediate_size": 128, "n_group": 1, "topk_group": 1, "head_dim": 64},
    "MiniMaxM2": {"num_local_experts": 16, "num_experts_per_tok": 4, "head_dim": 64, "rotary_dim": 32},
    "Qwen3Next": {
        "num_experts": 32, "num_experts_per_tok": 10, "head_dim": 64, "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "layer_types": ["linear_attention", "full_attention"],
    },
    "GptOss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 64},
}  # fmt: skip
# e4m3 rounds by 2.6 % (r.m.s.). Hidden, W13, the activation and W2 are rounded, the first two in gate and in up:
# 2.6 % * sqrt(2 * 2 + 1 + 1) = 6.4 %. Gate and up the other way round are 100 % and more away.
FP8 = 0.1
CLOSE = 0.001  # from the reference: a few values lie where an order of sums decides to which neighbour they round
# Of gpt-oss, whose weights are what they were. Hopper only rounds activations elsewhere. Blackwell rounds them to e4m3,
# hidden in gate and in up, and what the activation gives: 2.6 % * sqrt(2 + 1) = 4.5 %.
OF_GPT_OSS = {"h200": 0.01, "b200": 0.06}[MACHINE]
TOKENS = torch.arange(14).view(2, 7) * 9 % 128


@pytest.fixture(scope="module")
def adapter():
    """The module ragged_moe.integrations.transformers, its kernels compiled into the emulator."""
    emulated_gpu.install(MACHINE)
    quick_dsl.install()
    torch.cuda.is_available = lambda: False
    from ragged_moe.integrations import transformers
    from ragged_moe.runtime.device import device_of

    type(device_of(torch.device("cpu"))).sms = 6
    op = transformers.experts_op

    def on_the_emulated_gpu(*operands, **options):
        with emulated_gpu.session():
            tensors = {name: x for name, x in options.items() if isinstance(x, torch.Tensor)}
            tensors = dict(zip(tensors, emulated_gpu.device_tensors(tuple(tensors.values()))))
            there = iter(emulated_gpu.device_tensors(tuple(x for x in operands if x is not None)))
            return op(*(None if x is None else next(there) for x in operands), **options | tensors).clone()

    transformers.experts_op = on_the_emulated_gpu
    return transformers


def built(name: str, **more) -> tf.PreTrainedModel:
    """A model with random weights, the experts' large enough to matter."""
    name = name.partition(",")[0]
    torch.manual_seed(0)
    config = getattr(tf, f"{name}Config")(**COMMON | MODELS.get(name, {}) | more)
    model = getattr(tf, f"{name}ForCausalLM")(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if ".experts." in key:
                value.normal_(0, 0.05)
                if name == "GptOss" and "bias" not in key:
                    value.copy_(dequantised_mxfp4(*value.shape))
            if key.endswith(("gate.weight", "router.weight")):
                value.normal_(0, 0.5)
    return model


def dequantised_mxfp4(e: int, k: int, n: int) -> torch.Tensor:
    """Weights [e, k, n] as Mxfp4Config(dequantize=True) makes them of a checkpoint's."""
    blocks = torch.randint(256, (e, n, k // 32, 16), dtype=torch.uint8)
    scales = torch.randint(119, 123, (e, n, k // 32), dtype=torch.uint8)
    return convert_moe_packed_tensors(blocks, scales)


def experts_of(model) -> list:
    return [m for m in model.modules() if hasattr(m, "is_concatenated")]


def reference(adapter, module, hidden, ids, given, rounded: bool = True) -> torch.Tensor:
    """What the kernels must give for a layer's inputs: quantised where they quantise.

    rounded: of sums as this machine's tensor cores round them, not of exact ones. The B200's are exact.
    """
    from ragged_moe.integrations.checkpoints import apart
    from ragged_moe.kernels.config import Activation
    from ragged_moe.reference.experts import experts, experts_fp4
    from ragged_moe.reference.layer import quantised
    from ragged_moe.reference.tensor_core import exact, of_hopper

    if isinstance(module, adapter.GptOssExperts):
        weights = [x.transpose(1, 2).double() for x in (module.gate_up_proj, module.down_proj)]
        activation = Activation(True, module.limit, module.alpha, 1.0)
        biases = apart(module.gate_up_proj_bias), module.down_proj_bias
        of = apart(weights[0]), weights[1], 0, activation, *biases
        out = experts_fp4(hidden, ids, given.float(), *of, mxfp8=MACHINE == "b200")
    else:
        fp8 = isinstance(module, adapter.FP8Experts)
        w13, w2 = (module.gate_up_proj, module.down_proj) if fp8 else (module.moe_w13, module.moe_w2)
        of = w13, module.moe_w13_scale, w2, module.moe_w2_scale
        activation = Activation(True, getattr(module, "limit", None) if fp8 else None)
        dot = of_hopper if rounded and MACHINE == "h200" else exact
        out = experts(*quantised(hidden.float()), ids, given.float(), *of, 0, activation, dot)
    return out.to(hidden.dtype)


def run(adapter, model) -> tuple[torch.Tensor, list[tuple[float, ...]]]:
    """Logits on the emulated GPU, and of each layer, for its own inputs, how far it is from what the kernels must
    give, from that of exact sums, and from transformers' own, which behind the FP8 quantiser wants a GPU."""
    from ragged_moe.reference.layer import distance

    distances = []

    def checked(module, *inputs):
        found = adapter.forward(module, *inputs)
        others = [reference(adapter, module, *inputs), reference(adapter, module, *inputs, rounded=False)]
        if not isinstance(module, adapter.FP8Experts):
            others.append(type(module).forward.__wrapped__(module, *inputs))
        distances.append(tuple(distance(found, other) for other in others))
        assert distances[-1][0] <= CLOSE
        return found

    for table in (adapter.interface.ALL_EXPERTS_FUNCTIONS, adapter.ALL_FP8_EXPERTS_FUNCTIONS):
        table.register("checked", checked)
    model.set_experts_implementation("checked")
    with torch.no_grad():
        return model(TOKENS).logits.float(), distances


@pytest.mark.parametrize("name", MODELS)
def test_model(adapter, name):
    """Each layer is what the kernels must give, and transformers' own in bf16 but for FP8's rounding (gpt-oss on
    Hopper: bf16's)."""
    model = built(name, **MODELS[name])
    with torch.no_grad():
        model.set_experts_implementation("eager")
        eager = model(TOKENS).logits.float()
    adapter.enable(model)
    assert model.config._experts_implementation == adapter.NAME
    found, distances = run(adapter, model)
    difference = ((found - eager).norm() / eager.norm()).item()
    columns = ["/".join(f"{100 * x:.3f}" for x in column) for column in zip(*distances)]
    print(f"\n{name}: layers, % of the norm, from the reference {columns[0]}, of exact sums {columns[1]}, "
          f"from eager {columns[2]}, logits from eager {100 * difference:.3f}")  # fmt: skip
    limit = OF_GPT_OSS if name == "GptOss" else FP8
    assert len(distances) == len(experts_of(model)) and max(of_eager for *_, of_eager in distances) <= limit


STEPS = int(os.environ.get("MOE_STEPS", "64"))
SMALLER = {"num_hidden_layers": 1, "num_experts_per_tok": 2, "max_position_embeddings": 128}  # to take minutes a model


@pytest.mark.parametrize("name", MODELS)
def test_generation(adapter, name):
    """Greedy, with a cache: the tokens that the reference chooses, whose logits are within 0.5 % of the norm at every
    step."""
    from ragged_moe.reference.layer import distance

    adapter.interface.ALL_EXPERTS_FUNCTIONS.register("reference", functools.partial(reference, adapter))
    config = MODELS[name] | SMALLER | {key: 0 for key in ("first_k_dense_replace",) if key in MODELS[name]}
    config |= {key: config[key][-1:] for key in ("layer_types",) if key in config}
    model = built(name, **config)
    adapter.enable(model)
    tokens, logits = [], []
    for implementation in (adapter.NAME, "reference"):
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            made = model.generate(
                TOKENS[:1], min_new_tokens=STEPS, max_new_tokens=STEPS, do_sample=False, output_logits=True,
                return_dict_in_generate=True,
            )  # fmt: skip
        tokens.append(made.sequences)
        logits.append(made.logits)
    off = [distance(*pair) for pair in zip(*logits)]
    best = torch.cat(logits[1]).topk(2).values
    gap = (best[:, 0] - best[:, 1]).min().item()
    moved = max((x - y).abs().max().item() for x, y in zip(*logits))
    chosen = len(tokens[1][0, TOKENS.shape[1]:].unique())
    print(f"\n{name}: {STEPS} tokens, {chosen} different, logits up to {100 * max(off):.3f} % of the norm away, each "
          f"up to {moved:.2g}; least lead of a token {gap:.2g}")  # fmt: skip
    assert torch.equal(*tokens) and tokens[0].shape[1] == TOKENS.shape[1] + STEPS and max(off) <= 0.005


@pytest.mark.parametrize("options", [{}, {"swiglu_limit": 0.5}])
def test_model_in_fp8(adapter, options):
    """Behind transformers' FP8 quantiser: its weights and scales as they are, also a limit of its config."""
    model = built("Qwen3Moe", **options)
    (first, *_) = plain = experts_of(model)
    of_plain = [[adapter.prepared(m)[f"moe_{k}"] for k in ("w13", "w13_scale", "w2", "w2_scale")] for m in plain]
    kept = [name for name, m in model.named_modules() if type(m) is torch.nn.Linear]
    replace_with_fp8_linear(model, kept, tf.FineGrainedFP8Config(modules_to_not_convert=kept))
    modules = experts_of(model)
    assert first not in modules and len(modules) == len(plain)
    for module, tensors in zip(modules, of_plain):
        for key, tensor in zip(("gate_up_proj", "gate_up_proj_scale_inv", "down_proj", "down_proj_scale_inv"), tensors):
            setattr(module, key, torch.nn.Parameter(tensor, requires_grad=False))
    adapter.enable(model)
    assert not hasattr(modules[0], "moe_w13") and modules[0].limit == options.get("swiglu_limit")
    _, distances = run(adapter, model)
    assert len(distances) == len(modules)


def test_expert_parallelism_leaves_out_other_ranks(adapter):
    """transformers numbers their entries from the count of local experts on."""
    model = built("Qwen3Moe")
    adapter.enable(model)
    module = experts_of(model)[0]
    ids = torch.tensor([[32, 1], [32, 32], [2, 3]])
    with torch.no_grad():
        found = adapter.forward(module, torch.randn(3, 128), ids, torch.ones(3, 2))
    assert found.dtype == torch.float32 and not found[1].any() and found[0].any() and found[2].any()


def test_weights_are_quantised_to_the_block(adapter):
    """A block's largest is 448, zeros stay zeros, and gate, up and w2 are padded with them."""
    (module, *_) = experts_of(built("Qwen3Moe, I = 192", **MODELS["Qwen3Moe, I = 192"]))
    with torch.no_grad():
        module.gate_up_proj[0, :128] = 0
    made = adapter.prepared(module)
    w13 = made["moe_w13"].float() * made["moe_w13_scale"].repeat_interleave(128, 1).repeat_interleave(128, 2)
    w2 = made["moe_w2"].float() * made["moe_w2_scale"].repeat_interleave(128, 1).repeat_interleave(128, 2)
    for found, expected in (
        (w13[:, :192], module.gate_up_proj[:, :192]),
        (w13[:, 256:448], module.gate_up_proj[:, 192:]),
        (w2[..., :192], module.down_proj),
    ):
        off = (found - expected).abs()
        assert (off <= expected.abs() / 16 + expected.abs().max() / 448 / 512).all()
    assert not w13[:, 192:256].any() and not w13[:, 448:].any() and not w2[..., 192:].any() and not w13[0, :128].any()
    assert (made["moe_w13"][1:].float().abs().view(7, 4, 128, 128).amax((2, 3)) == 448).all()


# Experts' classes of transformers whose layers are not run: what they have that ragged_moe.experts has not
OTHER = {
    "transposed": "Aria", "activation": "DiffusionGemmaText Gemma4Text Inkling2 Inkling2Loop Step3p7",
    "biases": "OpenAIPrivacyFilter MuseSpark", "gate": "NemotronH",
}  # fmt: skip
FAMILY = re.compile(r"@use_experts_implementation(?:\([^)]*\))?\s*\nclass (\w+)")
SMALL = dict.fromkeys(("hidden_size", "moe_intermediate_size", "intermediate_size", "expert_ffn_hidden_size"), 128) | (
    dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4)
)  # fmt: skip


@pytest.mark.skipif(MACHINE != "h200", reason="kernels for weights in bf16 are Hopper's")
@pytest.mark.parametrize("name, shared", [("Qwen3Moe", True), ("Qwen3Moe, padded", False)])
def test_model_that_is_not_quantised(adapter, name, shared):
    """Within bf16's rounding of transformers' own in float64; weights that are written anew count at once."""
    model = built(name, moe_intermediate_size=128 if shared else 96, num_experts=4, num_experts_per_tok=2)
    adapter.enable(model, quantise=False)
    module = experts_of(model)[0]
    count, hidden, _ = module.down_proj.shape
    assert (module.moe_w13.data_ptr() == module.gate_up_proj.data_ptr()) is shared and module.moe_w13_scale is None
    x = torch.randn(7, hidden).bfloat16()
    ids, given = torch.stack([torch.randperm(count)[:2] for _ in range(7)]), torch.rand(7, 2)
    for _ in range(1 + shared):
        with torch.no_grad():
            found = adapter.forward(module, x, ids, given).double()
            expected = torch.zeros_like(found)
            for t, k in ((t, k) for t in range(7) for k in range(2)):
                both = module.gate_up_proj[ids[t, k]].double() @ x[t].double()
                expected[t] += given[t, k].double() * (module.down_proj[ids[t, k]].double() @ gated(both))
            assert (found - expected).norm() <= 0.006 * expected.norm()
            module.gate_up_proj.mul_(2.0)


def gated(both: torch.Tensor) -> torch.Tensor:
    """SwiGLU of gate, then up."""
    gate, up = both.chunk(2)
    return torch.nn.functional.silu(gate) * up


def families() -> list[tuple[str, str]]:
    """The module and name of each class of experts that transformers lets one choose an implementation for."""
    files = sorted((Path(tf.__file__).parent / "models").glob("*/modeling_*.py"))
    named = [(f"transformers.models.{x.parent.name}.{x.stem}", FAMILY.findall(x.read_text())) for x in files]
    # gpt-oss's weights are MXFP4's: above
    return [(module, name) for module, names in named for name in names if name != "GptOssExperts"]


def small(module: str, name: str) -> torch.nn.Module | None:
    """Small experts of this class, in float64, of gates and ups beyond its limits; None if no config makes them."""
    found = importlib.import_module(module)
    configs = [x for x in vars(found).values() if isinstance(x, type) and issubclass(x, tf.PretrainedConfig)]
    for made in (x() for x in configs if x is not tf.PretrainedConfig):
        for size, value in SMALL.items():
            if isinstance(getattr(made, size, []), int | None):
                setattr(made, size, value)
        made._experts_implementation = "eager"
        try:
            experts = getattr(found, name)(made).double()
        except (AttributeError, TypeError):  # the config of another part of the model
            continue
        torch.manual_seed(0)
        with torch.no_grad():
            for x in experts.parameters():
                x.copy_(torch.randn(x.shape).mul(0.5).bfloat16())
        return experts
    return None


@pytest.mark.parametrize("module, name", families())
def test_every_family(adapter, module, name):
    """What transformers computes of an experts module in float64, within what e4m3 rounds; or why it is refused."""
    from ragged_moe.reference.layer import distance

    experts = small(module, name)
    if experts is None:
        pytest.skip("none of its configs makes its experts")
    fault = adapter.unsupported(experts.float())
    known = {x: why for why, names in OTHER.items() for x in names.split()}
    assert (fault is None) == (name.removesuffix("Experts") not in known), fault
    if fault is not None:
        return
    hidden, given = torch.randn(5, 128).bfloat16(), torch.rand(5, 2)
    ids = torch.tensor([[0, 3], [1, 2], [3, 1], [2, 0], [1, 3]])
    with torch.no_grad():
        expected = experts.double()(hidden.double(), ids, given.double())
    for key, buffer in adapter.prepared(experts).items():
        experts.register_buffer(key, buffer, persistent=False)
    experts.moe_swiglu = adapter.swiglu(experts)
    with torch.no_grad():
        off = distance(adapter.forward(experts, hidden, ids, given), expected)
    print(f"{name}: {off:.2%} of the norm from transformers' own in float64, {experts.moe_swiglu}")
    assert off <= FP8


def no_change(model, sentence: str, adapter) -> None:
    before = model.config._experts_implementation, dict(model.named_buffers()).keys()
    with pytest.raises(ValueError, match=sentence):
        adapter.enable(model)
    assert (model.config._experts_implementation, dict(model.named_buffers()).keys()) == before


def test_what_is_refused(adapter):
    """With the module's name, and nothing changes: also where only the last module is at fault."""
    no_change(tf.LlamaForCausalLM(tf.LlamaConfig(**COMMON)), "LlamaForCausalLM has no experts whose impl", adapter)
    gpt_oss = built("GptOss", num_local_experts=4, head_dim=64, num_experts_per_tok=2)
    experts_of(gpt_oss)[1].down_proj.data[3, 5, 7] = 0.3
    sentence = r"layers.1.mlp.experts, a GptOssExperts, .*not MXFP4's: down_proj\[3\].T\[7, 0:32\] are not e2m1"
    no_change(gpt_oss, sentence, adapter)
    no_change(built("GptOss", hidden_size=160, head_dim=80), "H is 160", adapter)
    no_change(built("Qwen3Moe", hidden_act="gelu"), "its activation, with GELUActivation, is not SwiGLU's", adapter)
    no_change(built("Qwen3Moe", hidden_size=192), "H is 192", adapter)
    model = built("Qwen3Moe")
    last = experts_of(model)[-1]
    last.gate_up_proj = torch.nn.Parameter(last.gate_up_proj.to("meta"))
    no_change(model, "layers.1.mlp.experts.*its weights are not loaded", adapter)
    last.gate_up_proj = torch.nn.Parameter(torch.zeros(last.gate_up_proj.shape, dtype=torch.float64))
    no_change(model, "its weights are torch.float64 and torch.bfloat16", adapter)


def test_a_module_that_came_later_is_refused(adapter):
    model = built("Qwen3Moe")
    adapter.enable(model)
    del experts_of(model)[0]._buffers["moe_w13_scale"]
    with pytest.raises(RuntimeError, match="call enable"):
        model(TOKENS)


class Adapted(torch.nn.Module):
    """What PEFT puts on a weight while it calls the module that has it."""

    def forward(self, weight):
        return weight + 1


def test_lora_is_not_left_out(adapter):
    """Weights that are computed when they are read are none of those that `enable` saw."""
    model = built("Qwen3Moe")
    adapter.enable(model)
    torch.nn.utils.parametrize.register_parametrization(experts_of(model)[0], "down_proj", Adapted())
    with pytest.raises(RuntimeError, match="its weights are computed when they are read, as LoRA does"):
        model(TOKENS)
    no_change(model, "its weights are computed when they are read", adapter)


def test_a_wrong_layer_is_seen(adapter):
    """What test_model is worth: gate and up the other way round."""
    model = built("Qwen3Moe")
    adapter.enable(model)
    (module, *_) = experts_of(model)
    module.moe_w13.copy_(torch.cat(module.moe_w13.view(torch.uint8).chunk(2, 1)[::-1], 1).view(torch.float8_e4m3fn))
    _, distances = run(adapter, model)
    assert distances[0][2] > FP8 >= distances[1][2]
