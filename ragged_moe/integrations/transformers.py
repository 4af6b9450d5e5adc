"""`enable(model)`: the experts of a Hugging Face transformers model by ragged_moe.experts.

transformers (5.x) looks up in two tables, by the name in the model's config, what computes an MoE layer's experts:
ALL_EXPERTS_FUNCTIONS, and ALL_FP8_EXPERTS_FUNCTIONS behind its FP8 quantiser. `forward` is in both, as NAME.
"""

import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel
from transformers.integrations import moe as interface
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from ragged_moe.integrations.checkpoints import apart
from ragged_moe.integrations.mxfp4 import mxfp4_of
from ragged_moe.layers.experts import sizes_of
from ragged_moe.layers.pack_weights import pack_mxfp4
from ragged_moe.layers.signatures import HOPPER
from ragged_moe.runtime.sizes import BF16, E4M3, F32, LARGEST
from ragged_moe.torch_ops import experts_op

NAME = "moe_fp8"  # set_experts_implementation("grouped_mm") goes back
BLOCK = 128
OF_GPT_OSS = "w13_global", "w2_global", "w13_bias", "w2_bias"
COMPUTED = "its weights are computed when they are read, as LoRA does: merge them, then call enable(model) again"


def enable(model: PreTrainedModel, quantise: bool = True) -> None:
    """From now on ragged_moe.experts computes the model's experts: inference on one GPU, routers and all else as
    before.

    Weights in bf16, f16 or f32 are quantised here, an e4m3 copy beside them with an f32 scale for 128 x 128, in buffers
    that move with the model and are not saved; the intermediate size is padded with zeros to a multiple of 128. Call
    again when weights have changed. Those of transformers' FP8 quantiser (blocks of 128 x 128) are used as they are.
    Hidden states become bf16, then e4m3, and what comes back has their type. gpt-oss, loaded with
    Mxfp4Config(dequantize=True), gets its MXFP4 weights back, without loss. On a Hopper GPU nothing else is quantised;
    on a Blackwell one hidden states and what the activation gives are rounded to MXFP8.
    quantise=False, on a Hopper GPU: weights that are not quantised, gpt-oss's apart, are used in bf16, as they are
    where they are bf16 and their intermediate size is a multiple of 128: then one memory has both, and what is written
    to it counts at once.

    ValueError, which names the first experts module that ragged_moe.experts cannot do, before anything has changed.
    """
    modules = {name: m for name, m in model.named_modules() if hasattr(m, "is_concatenated") and hasattr(m, "has_gate")}
    if not modules:
        raise ValueError(f"{type(model).__name__} has no experts whose implementation transformers lets one choose")
    for name, module in modules.items():
        if fault := unsupported(module):
            raise refusal(name, module, fault)
    buffers = {}
    for name, module in modules.items():
        try:
            buffers[module] = prepared(module, as_they_are=not quantise)
        except ValueError as fault:
            raise refusal(name, module, fault) from None
    interface.ALL_EXPERTS_FUNCTIONS.register(NAME, forward)
    ALL_FP8_EXPERTS_FUNCTIONS.register(NAME, forward)
    for module, tensors in buffers.items():
        for name, tensor in tensors.items():
            module.register_buffer(name, tensor, persistent=False)
        module.moe_swiglu = None if isinstance(module, GptOssExperts) else swiglu(module)
    model.set_experts_implementation(NAME)


def refusal(name: str, module: nn.Module, fault: object) -> ValueError:
    """The complaint about an experts module."""
    return ValueError(f"{name}, a {type(module).__name__}, cannot be run by ragged_moe.experts: {fault}")


def unsupported(module: nn.Module) -> str | None:
    """Say what of this experts module ragged_moe.experts cannot do, None if nothing."""
    if not module.has_gate:
        return "its experts have no gate"
    if parametrize.is_parametrized(module):
        return COMPUTED
    if isinstance(module, GptOssExperts):
        return unsupported_gpt_oss(module)
    if module.has_bias or getattr(module, "has_post_expert_norm", False):
        return "its experts have biases or a norm of their own"
    if module.is_transposed or not module.is_concatenated:
        return "its weights are transposed, or gate and up interleaved"
    weights = module.gate_up_proj, module.down_proj
    if any(w.is_meta for w in weights):
        return "its weights are not loaded"
    count, hidden, intermediate = weights[1].shape
    if isinstance(module, FP8Experts):
        if weights[0].dtype is not E4M3 or tuple(module.block_size or ()) != (BLOCK, BLOCK):
            return f"its weights are {weights[0].dtype} in blocks of {module.block_size}, not e4m3 of 128 x 128"
        if module.activation_scheme != "dynamic":
            return "its activations have static scales"
    else:
        if any(w.dtype not in (BF16, torch.float16, F32) for w in weights):
            return f"its weights are {weights[0].dtype} and {weights[1].dtype}"
        intermediate = padded(intermediate)
    if swiglu(module) is None:
        what = type(getattr(module, "act_fn", None)).__name__
        return f"its activation, with {what}, is not SwiGLU's, nor that with a limit or gpt-oss's alpha"
    try:
        sizes_of(0, hidden, intermediate, count, 1, None)
    except ValueError as refused:
        return str(refused)
    return None


def swiglu(module: nn.Module) -> dict[str, float | None] | None:
    """The limit, alpha and shift by which ragged_moe.experts computes what the module's `_apply_gate` does; None if it
    is another activation. Found by its values, for gates and ups on both sides of its limits: models write it in many
    ways.
    """
    numbers = {name: getattr(module, name, None) for name in ("limit", "swiglu_limit", "alpha", "swiglu_alpha")}
    numbers = {name: float(x) for name, x in numbers.items() if isinstance(x, (int, float)) and x > 0}
    limits = [x for name, x in numbers.items() if "limit" in name]
    sizes = torch.tensor([0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 30.0, *(y * x for x in limits for y in (0.9, 1.1, 3.0))])
    gate, up = (x.reshape(-1, 1) for x in torch.meshgrid(*[torch.cat([-sizes, sizes])] * 2, indexing="ij"))
    with torch.no_grad():
        found = module._apply_gate(torch.cat([gate, up], 1)).double()
    gate, up = gate.double(), up.double()
    for limit in (None, *limits):
        g, u = (gate, up) if limit is None else (gate.clamp(max=limit), up.clamp(-limit, limit))
        for alpha, shift in ((1.0, 0.0), *((x, 1.0) for name, x in numbers.items() if "alpha" in name)):
            if torch.allclose(found, g * torch.sigmoid(alpha * g) * (u + shift), rtol=1e-5, atol=1e-6):
                return {"limit": limit, "alpha": alpha, "shift": shift}
    return None


def unsupported_gpt_oss(module: GptOssExperts) -> str | None:
    """As `unsupported`, of gpt-oss's: weights [E, H, 2I], gate and up in turn, and [E, I, H], with biases."""
    if any(w.is_meta for w in module.parameters()):
        return "its weights are not loaded"
    if any(w.dtype not in (BF16, torch.float16, F32) for w in module.parameters()):
        return f"its weights are {module.gate_up_proj.dtype} and {module.down_proj.dtype}"
    count, intermediate, hidden = module.down_proj.shape
    try:
        sizes_of(0, hidden, intermediate, count, 1, None, tiles=True)
    except ValueError as refused:
        return str(refused)
    return None


def padded(intermediate: int) -> int:
    """Round up to whole blocks."""
    return -(-intermediate // BLOCK) * BLOCK


def prepared(module: nn.Module, as_they_are: bool = False) -> dict[str, torch.Tensor | None]:
    """Make the buffers that `forward` reads: w13_scale, w2_scale and, unless the weights are in FP8, w13 and w2; scales
    are None where weights are not to be quantised.

    Of gpt-oss's also global scales and biases; ValueError if its weights are not MXFP4's numbers.
    """
    with torch.no_grad():
        if isinstance(module, GptOssExperts):
            return prepared_gpt_oss(module)
        if isinstance(module, FP8Experts):
            scales = module.gate_up_proj_scale_inv, module.down_proj_scale_inv
            return dict(zip(("moe_w13_scale", "moe_w2_scale"), (s.detach().to(F32, copy=True) for s in scales)))
        count, hidden, intermediate = module.down_proj.shape
        i, device = padded(intermediate), module.down_proj.device
        if as_they_are:
            if device.type == "cuda" and torch.cuda.get_device_capability(device) != HOPPER:
                raise ValueError(f"its weights are not quantised, which kernels for compute capability {HOPPER} can do")
            w13, w2 = (x.detach().to(BF16).contiguous() for x in (module.gate_up_proj, module.down_proj))
            if i != intermediate:
                w13 = nn.functional.pad(w13.view(count, 2, intermediate, hidden), (0, 0, 0, i - intermediate))
                w13, w2 = w13.view(count, 2 * i, hidden), nn.functional.pad(w2, (0, i - intermediate))
            return {"moe_w13": w13, "moe_w13_scale": None, "moe_w2": w2, "moe_w2_scale": None}
        w13, w13_scale = empty(count, 2 * i, hidden, device)
        w2, w2_scale = empty(count, hidden, i, device)
        for e in range(count):  # one at a time: the f32 numbers of all would be large
            both = module.gate_up_proj[e].view(2, intermediate, hidden)
            both = nn.functional.pad(both, (0, 0, 0, i - intermediate)).view(2 * i, hidden)
            quantise(both, w13[e], w13_scale[e])
            quantise(nn.functional.pad(module.down_proj[e], (0, i - intermediate)), w2[e], w2_scale[e])
    return {"moe_w13": w13, "moe_w13_scale": w13_scale, "moe_w2": w2, "moe_w2_scale": w2_scale}


def prepared_gpt_oss(module: GptOssExperts) -> dict[str, torch.Tensor]:
    """`prepared` of gpt-oss's."""
    made = {}
    for name, projection, rows in (("w13", "gate_up_proj", apart), ("w2", "down_proj", lambda x: x)):
        weights, bias = getattr(module, projection), getattr(module, f"{projection}_bias")
        experts = []
        for e, of_expert in enumerate(weights):  # one at a time: the f32 numbers of all would be large
            try:
                experts.append(mxfp4_of(rows(of_expert.T[None])[0]))
            except ValueError as fault:
                raise ValueError(f"its weights are not MXFP4's: {projection}[{e}].T{fault}") from None
        packed = pack_mxfp4(*(torch.stack(x) for x in zip(*experts)), halves=2 if name == "w13" else 1)
        made |= dict(zip((f"moe_{name}", f"moe_{name}_scale", f"moe_{name}_global"), packed))
        made[f"moe_{name}_bias"] = rows(bias.to(F32)).contiguous()
    return made


def empty(e: int, n: int, k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return room for weights e4m3 [e, n, k] and their scales f32 [e, n/128, k/128]."""
    return (torch.empty(e, n, k, dtype=E4M3, device=device),
            torch.empty(e, n // BLOCK, k // BLOCK, dtype=F32, device=device))  # fmt: skip


def quantise(w: torch.Tensor, values: torch.Tensor, scale: torch.Tensor) -> None:
    """Write w [n, k] as values e4m3, of which 448 stands for the largest magnitude of 128 x 128, and scale f32."""
    blocks = w.float().view(w.shape[0] // BLOCK, BLOCK, -1, BLOCK)
    most = blocks.abs().amax((1, 3), keepdim=True)
    inverse = torch.where(most > 0, LARGEST / most, 0)
    values.copy_((blocks * inverse).clamp(-LARGEST, LARGEST).view(w.shape).to(E4M3))
    scale.copy_(most.view(scale.shape) / LARGEST)


def forward(
    module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute the experts of hidden_states [T, H] as transformers calls them: [T, H] of the same type.

    With its expert parallelism, entries of other ranks have numbers from the count of local experts on: left out.
    RuntimeError if the module came to the model after `enable`, if its weights are parametrized, as PEFT does for LoRA
    while it calls a module, or in a `backward`: there are no gradients.
    """
    if parametrize.is_parametrized(module):
        raise RuntimeError(f"a {type(module).__name__} cannot be run by ragged_moe.experts: {COMPUTED}")
    if not hasattr(module, "moe_w13_scale"):
        raise RuntimeError(f"a {type(module).__name__} has no weights for ragged_moe.experts: call enable(model) again")
    packed = {}
    if isinstance(module, FP8Experts):
        w13, w2, activation = module.gate_up_proj, module.down_proj, module.moe_swiglu
    elif isinstance(module, GptOssExperts):
        w13, w2 = module.moe_w13, module.moe_w2
        activation = {"limit": module.limit, "alpha": module.alpha, "shift": 1.0}
        packed = {name: getattr(module, f"moe_{name}") for name in OF_GPT_OSS}
    else:
        w13, w2, activation = module.moe_w13, module.moe_w2, module.moe_swiglu
    out = experts_op(  # the operator refuses a backward, and a call takes no longer by it
        hidden_states.to(BF16).contiguous(), top_k_index.contiguous(), top_k_weights.to(F32).contiguous(),
        w13, module.moe_w13_scale, w2, module.moe_w2_scale, gate_first=True, **activation, **packed,
    )  # fmt: skip
    return out.to(hidden_states.dtype)
