"""`warmup`: compile, or load from the disk, what calls will need, before there are any."""

import numbers
from collections.abc import Iterable, Mapping

import torch

from ragged_moe.kernels import assign
from ragged_moe.kernels import batched as batch
from ragged_moe.layers import batched_experts as batched
from ragged_moe.layers import experts as routed_experts
from ragged_moe.layers import grouped_gemm_fp8
from ragged_moe.layers import route as routers
from ragged_moe.layers.bf16_layer import bf16_layer_of
from ragged_moe.layers.deepseek_layer import activation_of, finalise_program, layer_of, routing_program
from ragged_moe.layers.fp4_layer import fp4_layer_of
from ragged_moe.layers.signatures import BATCHED_CALL, EXPERTS_CALL, GEMM_CALL, I64, LAYER_CALL, packing
from ragged_moe.runtime.device import current_device, device_of
from ragged_moe.runtime.operands import require_int
from ragged_moe.runtime.signature import flag
from ragged_moe.runtime.sizes import BF16, F32, I32, Sizes
from ragged_moe.tuning.back_ends import tuning

Count = int | Iterable[int]


def warmup(
    grouped_gemms: Iterable[tuple[Count, int, int, int]] = (),
    layers: Iterable[tuple[Count, int, int, int]] = (),
    routing_bias: torch.dtype = BF16,
    experts: Iterable[Mapping] = (),
    batched_experts: Iterable[Mapping] = (),
    routers: Iterable[Mapping] = (),
) -> None:
    """Compile the kernels that calls with these sizes launch on the current GPU; nothing is launched.

    grouped_gemms: (total_M, E, N, K) of calls of grouped_gemm_fp8. layers: (T, H, I, E) of calls of run. total_M and T
    are one number or several, as range(1, 513): for some of them kernels differ. routing_bias: run's, bf16 or f32.
    experts, batched_experts, routers: of calls of experts, batched_experts and route, the arguments of `of_experts`,
    `of_batched_experts` and `of_route` below, as dict(tokens=range(1, 513), hidden=7168, intermediate=2048, local=32,
    top_k=8, num_experts=256).
    A kernel takes 3 to 5 seconds, or some milliseconds if this user has compiled it here before: it is then on the disk
    (ragged_moe/kernels/disk_cache.py). ValueError for sizes that the calls refuse, TypeError for other arguments.
    """
    device = current_device()
    choose = tuning(device_of(device).capability).choose_gemm
    for total_m, local, n, k in grouped_gemms:
        for m in counts(total_m):
            grouped_gemm_fp8.require_sizes(GEMM_CALL, m, n, k, local)
            if m:
                grouped_gemm_fp8.launcher(device, choose(m, local, n, k))
    for tokens, hidden, intermediate, local in layers:
        for t in counts(tokens):
            LAYER_CALL.require(T=t, H=hidden, I=intermediate, E=local)
            if t:
                layer = layer_of(device, Sizes(hidden, intermediate, local))
                routing_program(device, routing_bias is F32)
                layer.compile(t)
                finalise_program(device, layer.sizes.slots, layer.finalises_others)
    for function, calls in ((of_experts, experts), (of_batched_experts, batched_experts), (of_route, routers)):
        for call in calls:
            function(device, **call)


def of_experts(
    device: torch.device, *, tokens: Count, hidden: int, intermediate: int, local: int, top_k: int,
    num_experts: int | None = None, hidden_dtype: torch.dtype = BF16, ids_dtype: torch.dtype = I32,
    gate_first: bool = False, limit: float | None = None, alpha: float = 1.0, shift: float = 0.0,
    apply_router_weight_on_input: bool = False, packed: bool = False, biased: bool = False, mxfp4: bool = False,
    activation: str | None = None, channels: bool = False, bf16: bool = False, maps: int = 0,
) -> None:  # fmt: skip
    """Compile what ragged_moe.experts launches for T tokens, H, I and E local experts, k of num_experts a token.

    hidden_dtype: bf16 or e4m3. ids_dtype: of topk_ids, int32 or int64. packed: weights are NVFP4 or MXFP4; mxfp4:
    these; biased: with biases; activation: as of what packed them. channels: they are e4m3 with a scale
    a row; bf16: they are bf16. maps: how many dimensions expert_map has, 0 without one. The others are
    ragged_moe.experts' own.
    """
    require_int("maps", maps, 0, 2)
    for name, x in (("packed", packed), ("biased", biased), ("mxfp4", mxfp4), ("channels", channels), ("bf16", bf16)):
        flag(name).check(x)
    EXPERTS_CALL.check_options(
        gate_first=gate_first, limit=limit, alpha=alpha, shift=shift,
        apply_router_weight_on_input=apply_router_weight_on_input,
    )  # fmt: skip
    swiglu = activation_of(gate_first, limit, alpha, shift)
    packed = packed or mxfp4 or activation is not None
    on_input = apply_router_weight_on_input
    tiles = packed and packing(device_of(device).capability, mxfp4, activation) != "as NVFP4 for Blackwell"
    for t in counts(tokens):
        sizes = routed_experts.sizes_of(t, hidden, intermediate, local, top_k, num_experts, tiles)
        if not t:
            continue
        if bf16:
            layer = bf16_layer_of(device, sizes, swiglu)
        elif packed:
            layer = fp4_layer_of(device, sizes, swiglu, biased, mxfp4, activation)
        else:
            layer = layer_of(device, sizes, swiglu, hidden_dtype is BF16, channels)
        rows = not on_input and layer.quantises_rows(t)
        wide, (_, own) = ids_dtype is I64, assign.grid_of(local)
        quantiser = layer.quantiser(t, on_input)
        routed_experts.assign_program(device, sizes.slots, wide, own, on_input, quantiser, layer.copies(t), maps)
        layer.compile(t, rows)
        finalise_program(device, sizes.slots, layer.finalises_others)


def of_batched_experts(
    device: torch.device, *, most: Count, hidden: int, intermediate: int, local: int, expected_m: Count | None = None,
    scaled: bool = False, gate_first: bool = False, limit: float | None = None, alpha: float = 1.0, shift: float = 0.0,
    channels: bool = False,
) -> None:  # fmt: skip
    """Compile what ragged_moe.batched_experts launches for hidden [E, M, H].

    most: M. scaled: hidden is e4m3. local: E. channels: weights have a scale a row. The others are
    ragged_moe.batched_experts' own, of which expected_m may be several.
    """
    for name, x in (("scaled", scaled), ("channels", channels)):
        flag(name).check(x)
    BATCHED_CALL.check_options(gate_first=gate_first, limit=limit, alpha=alpha, shift=shift)
    activation = activation_of(gate_first, limit, alpha, shift)
    for m in counts(most):
        for expected in (None,) if expected_m is None else counts(expected_m):
            sizes = batched.sizes_of(local, m, hidden, intermediate, expected)
            if m:
                batched.program(device, batch.ListBatch, batch.LIST_WORDS, scaled)
                if not scaled:
                    batched.program(device, batch.QuantiseRows, batch.QUANTISE_WORDS)
                layer_of(device, sizes, activation, channels=channels).compile(local * m)
                batched.program(device, batch.UnpackRows, batch.UNPACK_WORDS)


def of_route(
    device: torch.device, *, experts: int, top_k: int, scoring: str = "softmax", renormalize: bool = True,
    num_expert_group: int = 1, topk_group: int = 1, bias: torch.dtype | None = None, logits: torch.dtype = F32,
) -> None:  # fmt: skip
    """Compile what ragged_moe.route launches for logits [T, experts] of any T.

    logits, bias: their types, bf16 or f32; no bias if None. The others are ragged_moe.route's own.
    """
    groups = num_expert_group, topk_group
    types = (logits,) if bias is None else (logits, bias)
    routers.program(device, routers.choice_of(experts, top_k, scoring, renormalize, *groups, *types))


def counts(x: Count) -> Iterable[int]:
    """The numbers of a Count."""
    return (x,) if isinstance(x, numbers.Integral) else x
