"""`experts`: the experts of an MoE layer behind any router, in four or five launches.

    topk_ids, topk_weights ─► assign ─► m_indptr, rows, places, weights ─┐
    hidden bf16 ────────────────┴─────► e4m3, scales ────────────────────┴─► [permute] ─► GEMM1 ─► GEMM2 ─► finalise

The launches behind assign are the layer's (layer.py; for packed weights fp4_layer.py, for which assign quantises
nothing on Hopper, but copies few tokens to their rows), with its scratch memory, lock and rules for streams and graphs.
"""

import dataclasses
import functools
import numbers
from collections.abc import Sequence

import torch

from ragged_moe.kernels import assign, quantise
from ragged_moe.kernels.config import MAX_EXPERTS, Activation
from ragged_moe.kernels.program import Program, Recorded
from ragged_moe.kernels.quantise_blocks import QuantiseBlocks
from ragged_moe.layers.deepseek_layer import Layer, Space, activation_of, check_workspace, layer_of
from ragged_moe.layers.fp4_layer import Fp4Inputs, fp4_layer_of
from ragged_moe.layers.grouped_gemm_fp4 import TMA_FP4_BYTES, input_scale_operand, one, packed_operands
from ragged_moe.layers.pack_weights import BLACKWELL, HOPPER, TILE, is_e4m3, is_for_e4m3, is_mxfp4, packed_for
from ragged_moe.layers.repeated_calls import Call, Calls
from ragged_moe.runtime.device import current_device, device_of
from ragged_moe.runtime.operands import (
    MAX_ROWS,
    Operand,
    addresses,
    complain,
    contiguous,
    of_any_strides,
    require,
    require_apart,
    require_flags,
)
from ragged_moe.runtime.sizes import BF16, E4M3, F32, I32, Inputs, Sizes
from ragged_moe.runtime.workspace import arena_of

MAX_TOKENS = 65536
NO_FP4 = (None,) * 6
I64 = torch.int64
LAYOUTS = {
    "tokens_first": '"tokens_first" for hidden_scale [T, H/128]',
    "blocks_first": '"blocks_first" for hidden_scale [H/128, T]',
}  # of hidden_scale, whose dimensions its shape does not tell where T == H/128
calls = Calls()
NAMES = "hidden", "topk_ids", "topk_weights", "w13", "w13_scale", "w2", "w2_scale"
FP4_NAMES = "w13_global", "w2_global", "w13_bias", "w2_bias", "w13_input_scale", "w2_input_scale"


def experts(
    hidden: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    *,
    hidden_scale: torch.Tensor | None = None,
    hidden_scale_layout: str | None = None,
    gate_first: bool = False,
    apply_router_weight_on_input: bool = False,
    local_expert_offset: int = 0,
    num_experts: int | None = None,
    limit: float | None = None,
    alpha: float = 1.0,
    shift: float = 0.0,
    w13_global: torch.Tensor | None = None,
    w2_global: torch.Tensor | None = None,
    w13_bias: torch.Tensor | None = None,
    w2_bias: torch.Tensor | None = None,
    w13_input_scale: torch.Tensor | None = None,
    w2_input_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[t] = sum over the experts e of token t that are here of weight * (act(x[t] W13[e]) W2[e]), in FP8 or FP4.

    hidden [T, H] bf16, which is quantised here for 128 columns at a time, or e4m3 with hidden_scale f32 of any strides.
    hidden_scale_layout names its dimensions, as both forms have one shape where T == H/128: "tokens_first" for
    [T, H/128], row-major (vLLM's per_token_group_quant_fp8) or column-major (DeepGEMM), "blocks_first" for [H/128, T]
    (FlashInfer). One copy by torch, unless the scales of a k-block lie side by side.
    topk_ids [T, k] int32 or int64, topk_weights [T, k] f32, k at most 16: expert local_expert_offset + i is local
    expert i; any other number, such as -1, is left out. w13 [E, 2I, H] e4m3, up then gate, or gate then up if
    gate_first; w13_scale [E, 2I/128, H/128], w2 [E, H, I] e4m3, w2_scale [E, H/128, I/128], scales f32. out [T, H]
    bf16. T is at most 65536, also 0; E at most 512; H and I are multiples of 128 (ragged_moe.pad_intermediate makes
    weights of other I so).
    act = gate * sigmoid(alpha * gate) * (up + shift); with a limit, gate is at most that and up is clamped to
    [-limit, limit] first. gpt-oss: limit 7, alpha 1.702, shift 1. act is rounded to e4m3 with a scale for 128 columns.
    apply_router_weight_on_input: act(weight * x[t] W13[e]) W2[e] instead, as Llama 4 has it; k is 1 then, and weights
    are e4m3.
    num_experts: how many the router has, by which kernels are chosen; E if not given.
    NVFP4 or MXFP4 weights: w13 [E, 2I, H] and w2 [E, H, I] with their scales as pack_nvfp4 or pack_mxfp4 (W13 with
    halves=2) gives them for this GPU, and w13_global f32 [E], or [E, 2] of W13's first half of rows and of its second,
    w2_global f32 [E]. Then hidden is bf16.
    Hopper: H and I are multiples of 64, nothing is quantised, and act is rounded to bf16; w13_bias [E, 2I] and w2_bias
    [E, H] f32, both or neither, are added to x W13 and to act W2. Hopper, MXFP4 that was packed with activation="fp8",
    both: x, and act behind bf16, are rounded to e4m3 with a scale a token, as grouped_gemm_nvfp4 rounds; w13_global
    [E, 2I] and w2_global [E, H]. Blackwell, NVFP4: H and I are multiples of 128, x and
    act are rounded to NVFP4 as grouped_gemm_nvfp4 rounds, with w13_input_scale and w2_input_scale, f32 of one element,
    both or neither; where a checkpoint has one for each expert, the largest. There are no biases. Blackwell,
    MXFP4: as Hopper, but x and act are rounded to MXFP8, and hidden, weights, their scales and biases begin at
    multiples of 32 bytes. Only NVFP4 on Blackwell has a use for input scales.

    All but hidden_scale are contiguous, all on the current GPU. out may lie in hidden's memory, in no other operand's,
    and workspace in none's. Launches on torch's current stream, nothing returns to the host, the same bits every time,
    also in CUDA graphs. Returns out, or a new tensor. ValueError if an operand is not so, or not in a GPU's memory:
    then nothing is compiled, launched or written. No gradients. Scratch memory and workspace as of ragged_moe.run;
    workspace of ragged_moe.experts_workspace_bytes(...) elements.
    """
    if torch.compiler.is_compiling():
        given = hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale
        options = {
            "hidden_scale": hidden_scale, "hidden_scale_layout": hidden_scale_layout, "gate_first": gate_first,
            "limit": limit, "alpha": alpha, "shift": shift,
            "apply_router_weight_on_input": apply_router_weight_on_input, "local_expert_offset": local_expert_offset,
            "num_experts": num_experts, "w13_global": w13_global, "w2_global": w2_global, "w13_bias": w13_bias,
            "w2_bias": w2_bias, "w13_input_scale": w13_input_scale, "w2_input_scale": w2_input_scale,
        }  # fmt: skip
        if out is None:
            return torch.ops.ragged_moe.experts(*given, **options)
        torch.ops.ragged_moe.experts_out(out, *given, **options)
        return out
    if type(gate_first) is not bool or type(apply_router_weight_on_input) is not bool:
        require_flags(gate_first=gate_first, apply_router_weight_on_input=apply_router_weight_on_input)
    of_fp4 = w13_global, w2_global, w13_bias, w2_bias, w13_input_scale, w2_input_scale
    if of_fp4[4:] != (None, None) and (packed_for(w2) == HOPPER or is_mxfp4(w2_scale)):
        of_fp4 = *of_fp4[:4], None, None
    operands = hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale
    if hidden_scale is not None or of_fp4 != NO_FP4:
        operands += tuple(x for x in (hidden_scale, *of_fp4) if x is not None)
    options = (
        gate_first, apply_router_weight_on_input, local_expert_offset, num_experts, limit, alpha, shift,
        hidden_scale_layout,
    )  # fmt: skip
    call = calls.like(operands, options) if workspace is None else None
    if call is not None:
        made = call.gpu.tensors(torch.empty_like(hidden, dtype=BF16))[0] if out is None else out
        if call.repeat((*operands, made)):
            return made
    layer, x, given = checked(
        hidden, (hidden_scale, hidden_scale_layout), topk_ids, topk_weights, (w13, w13_scale, w2, w2_scale, *of_fp4),
        activation_of(gate_first, limit, alpha, shift), local_expert_offset, num_experts,
    )  # fmt: skip
    if apply_router_weight_on_input and layer.sizes.top_k != 1:
        raise ValueError(f"topk_ids: dimension k is {layer.sizes.top_k}, but must be 1 for weights on the input")
    if apply_router_weight_on_input and w13_global is not None:
        raise ValueError("apply_router_weight_on_input is of weights in e4m3, but w13 is packed")
    if out is None:
        (out,) = layer.device.tensors(torch.empty(hidden.shape, dtype=BF16, device=hidden.device))
    expected = contiguous("out", BF16, *hidden.shape)
    complain((out,), (expected,), (hidden, "hidden"))
    addresses(layer.device, (out,), (expected,), (0,))
    named = list(zip((*NAMES, "hidden_scale", *FP4_NAMES), (*operands[:7], hidden_scale, *of_fp4)))
    require_apart("out", out, named[1:])  # hidden has been read when out is written
    if workspace is not None:
        check_workspace(workspace, layer, hidden)
        require_apart("workspace", workspace, (*named, ("out", out)))
    if not layer.device.is_current():
        raise ValueError(f"hidden is on {hidden.device}, but must be on torch's current device")
    tokens = hidden.shape[0]
    if tokens:
        arena = arena_of(layer.torch_device, layer.device)
        with arena.lock:
            on_input = apply_router_weight_on_input
            if workspace is not None or on_input and hidden_scale is not None:  # which torch multiplies by the weights
                launch(layer, x, *given, layer.space(tokens, arena, workspace), out, on_input)
            else:
                aligned, multiple = alignment(True, w2_scale, w13_bias)
                apart = range(1, len(operands))
                made = Call(layer.device, (*operands, out), (*aligned, -1), multiple, apart)
                call = calls.add(operands, options, made)
                call.note(arena, (*operands, out), lambda *recorded: launch_recorded(
                    layer, x, (*operands, out), recorded, layer.space(tokens, arena), on_input
                ))  # fmt: skip
    return out


def launch_recorded(
    layer: Layer, x: Inputs, operands: Sequence[torch.Tensor], recorded: Sequence[Recorded], space: Space,
    on_input: bool,
) -> None:  # fmt: skip
    """`launch` with the recorded operands in place of those that they stand for; hidden_scale may be a view of its."""
    stands_for = {y.data_ptr(): z for y, z in zip(operands, recorded) if y.numel()}
    fields = {
        name: stands_for[y.data_ptr()].of(y)
        for name, y in vars(x).items() if isinstance(y, torch.Tensor) and y.data_ptr() in stands_for
    }  # fmt: skip
    launch(layer, dataclasses.replace(x, **fields), recorded[1], recorded[2], space, recorded[-1], on_input)


def experts_workspace_bytes(
    tokens: int, hidden: int, intermediate: int, local: int, top_k: int, num_experts: int | None = None,
    quantises: bool = True, packed: bool = False, mxfp4: bool = False, activation: str | None = None,
) -> int:  # fmt: skip
    """Elements of a workspace, uint8, for `experts` on the current GPU with up to this many tokens.

    quantises: whether hidden comes in bf16 and is quantised. packed: whether weights are NVFP4 or MXFP4; mxfp4: these.
    activation: as of the pack_mxfp4 that packed them.
    """
    e4m3 = is_e4m3(activation)
    packed = packed or mxfp4 or e4m3
    tiles = packed and (mxfp4 or device_of(current_device()).capability == HOPPER)
    sizes = sizes_of(tokens, hidden, intermediate, local, top_k, num_experts, tiles)
    if packed:
        layer = fp4_layer_of(current_device(), sizes, Activation(), mxfp4=mxfp4, e4m3=e4m3)
        return layer.workspace_bytes(tokens)
    return layer_of(current_device(), sizes, Activation(), quantises).workspace_bytes(tokens)


@functools.lru_cache(maxsize=4096)
def sizes_of(
    tokens: int, hidden: int, intermediate: int, local: int, top_k: int, num_experts: int | None, tiles: bool = False
) -> Sizes:  # fmt: skip
    """The layer's sizes; ValueError if the kernels do not do them. tiles: they do multiples of 64: weights are packed
    for Hopper, or MXFP4.
    """
    step = TILE if tiles else 128
    for name, dimension, size, multiple, least, most in (
        ("hidden", "T", tokens, 1, 0, MAX_TOKENS),
        ("hidden", "H", hidden, step, step, MAX_ROWS),
        ("w2", "I", intermediate, step, step, MAX_ROWS),
        ("w2", "E", local, 1, 1, MAX_EXPERTS),
        ("topk_ids", "k", top_k, 1, 1, assign.MAX_TOP_K),
    ):
        require(name, dimension, size, multiple, least, most)
    everywhere = local if num_experts is None else num_experts
    if not isinstance(everywhere, numbers.Integral) or everywhere < local:
        raise ValueError(f"num_experts is {everywhere}, but must be an int that is at least E, {local}")
    return Sizes(hidden, intermediate, local, top_k, int(everywhere))


def are_packed(
    capability: tuple[int, int], w13, w2, w13_global, w2_global, w13_bias, w2_bias, w13_input_scale, w2_input_scale
) -> bool:
    """Whether the weights are e2m1 packed for a GPU of this compute capability, not e4m3; ValueError if they are
    neither, or mixed.
    """
    dims = 3 if capability == BLACKWELL else 4
    for name, tensor in (("w13", w13), ("w2", w2)):
        if isinstance(tensor, torch.Tensor) and tensor.dtype is torch.uint8 and tensor.dim() != dims:
            raise ValueError(f"{name} is uint8 of {tensor.dim()} dimensions, but must have the {dims} that pack_nvfp4 "
                             f"or pack_mxfp4 gives it for this GPU, of compute capability {capability}")  # fmt: skip
    packed = isinstance(w2, torch.Tensor) and w2.dtype is torch.uint8
    for name, tensor in (("w13_global", w13_global), ("w2_global", w2_global)):
        if packed and tensor is None:
            raise ValueError(f"{name} is None, but must be what pack_nvfp4 or pack_mxfp4 gives, as weights are packed")
    given = w13_global, w2_global, w13_bias, w2_bias, w13_input_scale, w2_input_scale
    for name, tensor in zip(FP4_NAMES, given):
        if not packed and tensor is not None:
            raise ValueError(f"{name} is of packed weights, but w2 is not packed")
    for first, second in ((2, 3), (4, 5)):
        if (given[first] is None) != (given[second] is None):
            raise ValueError(f"{FP4_NAMES[first]} and {FP4_NAMES[second]} must be given both or neither")
    return packed


def require_dims(*of: tuple[str, torch.Tensor, int]) -> None:
    """ValueError unless each is a tensor of so many dimensions."""
    for name, tensor, dims in of:
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != dims:
            raise ValueError(f"{name} must be a tensor of {dims} dimensions")


def checked(hidden, scale_and_layout, ids, weights, of_weights, activation, offset, num_experts):
    """The layer for these operands, its inputs, and what assign takes; ValueError if there is none."""
    hidden_scale, layout = scale_and_layout
    w13, w13_scale, w2, w2_scale, *of_fp4 = of_weights
    require_dims(("hidden", hidden, 2))
    gpu = device_of(hidden.device, "hidden")
    packed = are_packed(gpu.capability, w13, w2, *of_fp4)
    hopper = packed and gpu.capability == HOPPER
    mxfp4 = packed and not hopper and is_mxfp4(w2_scale)  # packed for Blackwell
    e4m3 = hopper and is_for_e4m3(w2_scale)
    require_dims(("topk_ids", ids, 2), ("w2", w2, 4 if hopper else 3), *[("w13", w13, 3)] * mxfp4)
    (tokens, h), k, (e, _, i) = hidden.shape, ids.shape[1], w2.shape[:3]
    i = TILE * i if hopper else w13.shape[1] // 2 if mxfp4 else 2 * i if packed else i  # w2's is rounded up in MXFP4
    sizes = sizes_of(tokens, h, i, e, k, num_experts, hopper or mxfp4)
    if hidden.dtype not in ((BF16,) if packed else (BF16, E4M3)):
        must = f"{BF16}, as weights are packed" if packed else f"{BF16} or {E4M3}"
        raise ValueError(f"hidden has type {hidden.dtype}, but must have {must}")
    if ids.dtype not in (I32, I64):
        raise ValueError(f"topk_ids has type {ids.dtype}, but must have {I32} or {I64}")
    if not isinstance(offset, numbers.Integral) or isinstance(offset, bool):
        raise ValueError(f"local_expert_offset is a {type(offset).__name__}, but must be an int")
    if not 0 <= offset <= sizes.experts - e:
        raise ValueError(f"local_expert_offset is {offset}, but must be from 0 to {sizes.experts - e}: {e} of "
                         f"{sizes.experts} experts are here")  # fmt: skip
    quantises = hidden.dtype is BF16 and not packed
    if hidden.dtype is BF16 and hidden_scale is not None:
        raise ValueError("hidden_scale is of hidden in e4m3, but hidden is in bf16")
    tensors = hidden, ids, weights, w13, w13_scale, w2, w2_scale
    expected = expectations(tokens, h, i, e, k, hidden.dtype, ids.dtype)
    if packed:
        others = zip(of_fp4[:4], fp4_expectations(h, i, e, getattr(of_fp4[0], "shape", None), e4m3))
        more = [(tensor, operand) for tensor, operand in others if tensor is not None]
        if not hopper and not mxfp4 and of_fp4[2] is not None:
            raise ValueError("w13_bias is for MXFP4 weights, and on Hopper for NVFP4, but w13 is NVFP4 on Blackwell")
        for name, scale in zip(FP4_NAMES[4:], of_fp4[4:]):
            more += [] if scale is None else [(scale, input_scale_operand(scale, name))]
        tensors = *tensors, *(tensor for tensor, _ in more)
        weights_are = packed_operands(e, 2 * i, h, gpu.capability, "w13", "w13_scale", mxfp4, 2, e4m3)
        weights_are += packed_operands(e, h, i, gpu.capability, "w2", "w2_scale", mxfp4, 1, e4m3)
        expected = *expected[:3], *weights_are, *(operand for _, operand in more)
    complain(tensors, expected, (hidden, "hidden"))
    if layout not in LAYOUTS and (hidden.dtype is E4M3 or layout is not None):
        raise ValueError(f"hidden_scale_layout is {layout!r}, but must be {' or '.join(LAYOUTS.values())}")
    if hidden.dtype is E4M3:
        hidden_scale = scale_by_block(hidden_scale, layout, hidden, gpu)
        tensors, expected = (*tensors, hidden_scale), (*expected, contiguous("hidden_scale", F32, h // 128, tokens))
    addresses(gpu, tensors, expected[: len(tensors)], *alignment(packed, w2_scale, of_fp4[2]))
    inputs = None, None, hidden, hidden_scale, w13, w13_scale, w2, w2_scale, int(offset)
    if packed:
        layer = fp4_layer_of(hidden.device, sizes, activation, of_fp4[2] is not None, mxfp4, e4m3)
        if not hopper and not mxfp4:
            of_fp4 = *of_fp4[:4], *(one(hidden.device) if x is None else x for x in of_fp4[4:])
        return layer, Fp4Inputs(*inputs, 0.0, *of_fp4), (ids, weights)
    return layer_of(hidden.device, sizes, activation, quantises), Inputs(*inputs), (ids, weights)


def alignment(packed: bool, w2_scale: torch.Tensor, bias: torch.Tensor | None) -> tuple[tuple[int, ...], int]:
    """Which of a call's tensors begin at a multiple of how many bytes. bias: of W13."""
    if is_mxfp4(w2_scale):
        return (0, 3, 4, 5, 6, *((9, 10) if bias is not None else ())), TMA_FP4_BYTES
    return (0, 3, 4, 5, 6) if packed else (0, 3, 5), 16


@functools.lru_cache(maxsize=4096)
def expectations(
    tokens: int, h: int, i: int, e: int, k: int, of_hidden: torch.dtype, of_ids: torch.dtype
) -> tuple[Operand, ...]:
    """Say what each tensor must be, in the order of `experts`."""
    return (
        contiguous("hidden", of_hidden, tokens, h),
        contiguous("topk_ids", of_ids, tokens, k),
        contiguous("topk_weights", F32, tokens, k),
        contiguous("w13", E4M3, e, 2 * i, h),
        contiguous("w13_scale", F32, e, 2 * i // 128, h // 128),
        contiguous("w2", E4M3, e, h, i),
        contiguous("w2_scale", F32, e, h // 128, i // 128),
    )


@functools.lru_cache(maxsize=4096)
def fp4_expectations(
    h: int, i: int, e: int, w13_global: torch.Size | None, e4m3: bool = False
) -> tuple[Operand, ...]:  # fmt: skip
    """Say what global scales and biases of packed weights must be. w13_global: the shape given, of two. e4m3: they are
    of each weight row.
    """
    return (
        contiguous("w13_global", F32, *((e, 2 * i) if e4m3 else (e, 2) if w13_global == (e, 2) else (e,))),
        contiguous("w2_global", F32, *((e, h) if e4m3 else (e,))),
        contiguous("w13_bias", F32, e, 2 * i),
        contiguous("w2_bias", F32, e, h),
    )


def scale_by_block(scale, layout: str, hidden: torch.Tensor, gpu) -> torch.Tensor:
    """hidden_scale as [H/128, T], contiguous, a view of what is given or a copy; ValueError for another shape."""
    tokens, blocks = hidden.shape[0], hidden.shape[1] // 128
    tokens_first = layout == "tokens_first"
    of_any_strides("hidden_scale", scale, F32, (tokens, blocks) if tokens_first else (blocks, tokens), hidden, gpu)
    scale = scale.t() if tokens_first else scale
    if scale.is_contiguous():
        return scale
    (copy,) = gpu.tensors(torch.empty(scale.shape, dtype=F32, device=scale.device))
    return copy.copy_(scale)


@functools.cache
def assign_program(
    device: torch.device, slots: int, wide: bool, own: int, ones: bool = False,
    quantiser: quantise.Quantise | QuantiseBlocks | None = None, copies: bool = False,
) -> Program:  # fmt: skip
    """The assign kernel, compiled for this GPU. own: experts of a CTA. quantiser: that it quantises the tokens by.
    copies: whether it copies them to their rows.
    """
    kernel = assign.Assign(slots, wide, own, ones=ones, quantiser=quantiser, copies=copies)
    variant = f"slots={slots} wide={wide} own={own} ones={ones} quantiser={quantiser} copies={copies}"
    return Program(kernel, kernel.words, variant)


@functools.cache
def quantise_program(device: torch.device) -> Program:
    """The quantise kernel, compiled for this GPU."""
    return Program(quantise.Quantise(), quantise.WORDS, "")


def launch(
    layer: Layer, x: Inputs, ids: torch.Tensor, weights: torch.Tensor, space: Space, out: torch.Tensor,
    on_input: bool = False,
) -> None:  # fmt: skip
    """One stage after the other. x: its hidden_states are bf16 where the layer quantises them, by assign or by permute.

    on_input: the scales of tokens are multiplied by their weights, with which then nothing else is.
    """
    tokens, k = ids.shape
    stream, local = layer.device.stream(), layer.sizes.local
    of_hidden, quantiser, copies = (), layer.quantiser(tokens, on_input), layer.copies(tokens)
    if copies:
        of_hidden = x.hidden_states.data_ptr(), space.permuted, 0, layer.sizes.hidden * x.hidden_states.element_size()
    if quantiser is not None:
        hidden = x.hidden_states
        of_hidden = hidden.data_ptr(), space.quantised, layer.beside_quantised(x, space), layer.sizes.hidden
        to = At(space.quantised, hidden.shape), At(space.quantised_scale)
        x = dataclasses.replace(x, hidden_states=to[0], hidden_states_scale=to[1])
    elif on_input:
        (scale,) = layer.device.tensors(torch.empty_like(x.hidden_states_scale))
        x = dataclasses.replace(x, hidden_states_scale=torch.mul(x.hidden_states_scale, weights.t(), out=scale))
    grid, own = assign.grid_of(local)
    to = space.m_indptr, space.rows, space.places, space.weights
    of_ids = layer.sizes.slots, ids.dtype is I64, own
    program = assign_program(layer.torch_device, *of_ids, on_input, quantiser, copies)
    program(ids.data_ptr(), weights.data_ptr(), *to, tokens, k, local, x.local_expert_offset, grid, stream, *of_hidden)
    layer.compute(x, space, out)


@dataclasses.dataclass(frozen=True)
class At:
    """Scratch memory in a tensor's place: where it begins, and the tensor's shape."""

    address: int
    shape: tuple[int, ...] = ()

    def data_ptr(self) -> int:
        return self.address
