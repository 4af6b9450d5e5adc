"""`route`: the choice of experts from a router's logits, in one launch, as ragged_moe.experts takes it."""

import functools
from collections.abc import Mapping, Sequence

import torch
from torch.compiler import is_dynamo_compiling

from ragged_moe.kernels import router
from ragged_moe.kernels.program import Program, float_bits
from ragged_moe.kernels.router import Choice
from ragged_moe.layers.repeated_calls import Checked, Function
from ragged_moe.layers.signatures import ROUTE_CALL
from ragged_moe.runtime.device import device_of
from ragged_moe.runtime.sizes import BF16, MAX_TOP_K
from ragged_moe.runtime.workspace import Arena


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
    options = top_k, scoring, renormalize, num_expert_group, topk_group, routed_scaling_factor
    if is_dynamo_compiling():
        return FUNCTION.operator({"logits": logits, "bias": bias}, dict(zip(OPTIONS, options)))
    tensors = (logits,) if bias is None else (logits, bias)
    call = calls.like(tensors, options)
    if call is not None:
        made = tuple([make() for make in call.makers])
        if call.repeat((*tensors, *made)):
            return made
    return FUNCTION.first({"logits": logits, "bias": bias}, dict(zip(OPTIONS, options)), options, None)


OPTIONS = tuple(option.name for option in ROUTE_CALL.options)


class Route(Function):
    """The five steps of a call of `route`."""

    def check(self, given: dict[str, torch.Tensor | None], options: dict[str, object]) -> Checked:
        """Step 1."""
        ROUTE_CALL.check_dims("logits", given["logits"])
        ROUTE_CALL.check_options(**options)
        gpu = device_of(given["logits"].device, "logits")
        for name, tensor in given.items():
            if isinstance(tensor, torch.Tensor):
                ROUTE_CALL.check_dtype(name, tensor.dtype)
        self.plan(Checked(gpu, ROUTE_CALL, given, ROUTE_CALL.letters(given), options))  # refuses what is no choice
        letters = ROUTE_CALL.check(gpu, given) | {"top_k": options["top_k"]}
        return Checked(gpu, ROUTE_CALL, given, letters, options)

    def plan(self, checked: Checked) -> Choice:
        """Step 2."""
        types = [x.dtype for x in checked.given.values() if isinstance(x, torch.Tensor)]
        of = [checked.options[x] for x in OPTIONS[:-1]]
        return choice_of(checked.letters["E"], *of, *types)

    def launch(self, choice: Choice, checked: Checked, of: Mapping, outs: Sequence, arena: Arena, workspace) -> None:
        """Step 4."""
        logits, bias = of["logits"], of["bias"]
        addresses = logits.data_ptr(), 0 if bias is None else bias.data_ptr(), *(x.data_ptr() for x in outs)
        factor = float_bits(checked.options["routed_scaling_factor"])
        program(checked.first.device, choice)(*addresses, checked.letters["T"], factor, checked.gpu.stream())


FUNCTION = Route(ROUTE_CALL.name)
calls = FUNCTION.calls


@functools.lru_cache(maxsize=256, typed=True)
def choice_of(
    experts: int, top_k: int, scoring: str, renormalize: bool, groups: int, top_groups: int, logits: torch.dtype,
    bias: torch.dtype | None = None,
) -> Choice:  # fmt: skip
    """Return the router that these arguments ask for; ValueError if the kernel does not do it."""
    ROUTE_CALL.check_options(
        scoring=scoring, top_k=top_k, num_expert_group=groups, topk_group=top_groups, renormalize=renormalize
    )
    ROUTE_CALL.require(E=experts)
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
