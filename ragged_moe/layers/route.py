"""`route`: the choice of experts from a router's logits, in one launch, as ragged_moe.experts takes it."""

import functools
import numbers

import torch

from ragged_moe.kernels import router
from ragged_moe.kernels.program import Program, float_bits
from ragged_moe.kernels.router import MAX_EXPERTS, MAX_TOP_K, SCORINGS, Choice
from ragged_moe.layers.experts import MAX_TOKENS
from ragged_moe.layers.repeated_calls import Call, Calls
from ragged_moe.runtime.device import Device, device_of
from ragged_moe.runtime.operands import addresses, complain, contiguous, require, require_flags
from ragged_moe.runtime.sizes import BF16, F32, I32
from ragged_moe.runtime.workspace import arena_of

calls = Calls()


def route(
    logits: torch.Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    renormalize: bool = True,
    bias: torch.Tensor | None = None,
    num_expert_group: int = 1,
    topk_group: int = 1,
    routed_scaling_factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(topk_ids int32, topk_weights f32), both [T, top_k]: each token's experts, the best first, for
    ragged_moe.experts.

    logits [T, E] bf16 or f32; T is at most 65536, also 0; E at most 512, top_k at most 16 of them. scoring "softmax",
    "sigmoid" or "sqrtsoftplus": scores = sqrt(log(1 + exp(logits))); all in f32.
    bias [E] bf16 or f32 (e_score_correction_bias): experts are chosen by score + bias, else by score; weights are
    scores alone. num_expert_group: experts of the topk_group best groups alone are chosen, a group being E /
    num_expert_group neighbours and as good as the sum of its two best with a bias, else as its best; then E is a
    multiple of 32, and num_expert_group 2, 4, 8, 16 or 32. renormalize: weights are divided by their sum + 1e-20. They
    are multiplied by routed_scaling_factor at last. Softmax over the chosen logits alone is that, too.
    Of equals the expert of the lower number comes first, and NaN before all others, as by torch.topk on a GPU.

    One kernel on torch's current stream; nothing returns to the host, the same bits every time, also in CUDA graphs.
    ValueError if an operand is not so, or not in a GPU's memory: then nothing is compiled or launched. No gradients.
    """
    if torch.compiler.is_compiling():
        return torch.ops.ragged_moe.route(
            logits, top_k, scoring=scoring, renormalize=renormalize, bias=bias, num_expert_group=num_expert_group,
            topk_group=topk_group, routed_scaling_factor=routed_scaling_factor,
        )  # fmt: skip
    if type(renormalize) is not bool:
        require_flags(renormalize=renormalize)
    tensors = (logits,) if bias is None else (logits, bias)
    options = top_k, scoring, renormalize, num_expert_group, topk_group, routed_scaling_factor
    call = calls.like(tensors, options)
    if call is not None:
        made = made_for(logits, top_k, call.gpu)
        if call.repeat((*tensors, *made)):
            return made
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2:
        raise ValueError("logits must be a tensor of 2 dimensions")
    types = [getattr(x, "dtype", None) for x in tensors]
    for name, dtype in zip(("logits", "bias"), types):
        if dtype not in (BF16, F32):
            raise ValueError(f"{name} has type {dtype}, but must have {F32} or {BF16}")
    if not isinstance(routed_scaling_factor, numbers.Real):
        raise ValueError(f"routed_scaling_factor is a {type(routed_scaling_factor).__name__}, but must be a number")
    tokens, experts = logits.shape
    require("logits", "T", tokens, 1, 0, MAX_TOKENS)
    choice = choice_of(experts, top_k, scoring, renormalize, num_expert_group, topk_group, *types)
    expected = contiguous("logits", types[0], tokens, experts), contiguous("bias", types[-1], experts)
    complain(tensors, expected, (logits, "logits"))
    gpu = device_of(logits.device, "logits")
    addresses(gpu, tensors, expected, ())
    if not gpu.is_current():
        raise ValueError(f"logits is on {logits.device}, but must be on torch's current device")
    made = made_for(logits, top_k, gpu)
    if tokens:
        factor, operands = float_bits(routed_scaling_factor), (*tensors, *made)
        call, arena = calls.add(tensors, options, Call(gpu, operands, ())), arena_of(logits.device, gpu)

        def launch(logits, *others):
            found = [x.data_ptr() for x in (logits, *others)]
            found[1:1] = [0] * (bias is None)
            program(logits.device, choice)(*found, tokens, factor, gpu.stream())

        with arena.lock:
            call.note(arena, operands, launch)
    return made


def made_for(logits: torch.Tensor, top_k: int, gpu: Device) -> tuple[torch.Tensor, torch.Tensor]:
    """New topk_ids and topk_weights."""
    shape, device = (logits.shape[0], top_k), logits.device
    return gpu.tensors(torch.empty(shape, dtype=I32, device=device), torch.empty(shape, dtype=F32, device=device))


@functools.lru_cache(maxsize=256)
def choice_of(
    experts: int, top_k: int, scoring: str, renormalize: bool, groups: int, top_groups: int, logits: torch.dtype,
    bias: torch.dtype | None = None,
) -> Choice:  # fmt: skip
    """Return the router that these arguments ask for; ValueError if the kernel does not do it."""
    if scoring not in SCORINGS:
        raise ValueError(f"scoring is {scoring!r}, but must be one of {', '.join(map(repr, SCORINGS))}")
    for name, number in (("top_k", top_k), ("num_expert_group", groups), ("topk_group", top_groups)):
        if not isinstance(number, numbers.Integral) or isinstance(number, bool):
            raise ValueError(f"{name} is a {type(number).__name__}, but must be an int")
    require("logits", "E", experts, 1, 1, MAX_EXPERTS)
    if groups != 1 and (groups not in (2, 4, 8, 16, 32) or experts % 32 or experts < 2 * groups):
        raise ValueError(f"num_expert_group is {groups} of {experts} experts, but must be 1, or 2, 4, 8, 16 or 32 of a "
                         "multiple of 32, with 2 experts a group")  # fmt: skip
    if not 1 <= top_groups <= groups:
        raise ValueError(f"topk_group is {top_groups}, but must be from 1 to {groups}, as num_expert_group is")
    most = min(MAX_TOP_K, experts // groups * top_groups)
    if not 1 <= top_k <= most:
        raise ValueError(f"top_k is {top_k}, but must be from 1 to {most}")
    types = bias is not None, logits is BF16, bias is BF16
    return Choice(experts, int(top_k), scoring, renormalize, int(groups), int(top_groups), *types)


@functools.cache
def program(device: torch.device, choice: Choice) -> Program:
    """The router's kernel for this choice, compiled for this GPU."""
    return Program(router.Router(choice), router.WORDS, repr(choice))
