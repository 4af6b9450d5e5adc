"""`experts`: the experts of an MoE layer behind any router, in four or five launches.

    topk_ids, topk_weights ─► assign ─► m_indptr, rows, places, weights ─┐
    hidden bf16 ────────────────┴─────► e4m3, scales ────────────────────┴─► [permute] ─► GEMM1 ─► GEMM2 ─► finalise

The launches behind assign are the layer's (layer.py; for packed weights fp4_layer.py, for which assign quantises
nothing on Hopper, but copies few tokens to their rows), with its scratch memory, lock and rules for streams and graphs.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from ragged_moe.kernels import assign, quantise
from ragged_moe.kernels.config import Activation
from ragged_moe.kernels.program import Program, Recorded
from ragged_moe.kernels.quantise_blocks import QuantiseBlocks
from ragged_moe.layers.bf16_layer import bf16_layer_of
from ragged_moe.layers.deepseek_layer import Layer, Space, activation_of, layer_of, limited
from ragged_moe.layers.fp4_layer import Fp4Inputs, fp4_layer_of
from ragged_moe.layers.grouped_gemm_fp4 import scale_of_one
from ragged_moe.layers.pack_weights import kind_of
from ragged_moe.layers.repeated_calls import Checked, Function
from ragged_moe.layers.signatures import (
    BF16_EXPERTS,
    E4M3_EXPERTS,
    EXPERTS_CALL,
    EXPERTS_FORMS,
    I64,
    LAYOUT,
    OF_PACKED,
    U8,
    packing,
)
from ragged_moe.runtime.device import current_device, device_of
from ragged_moe.runtime.dispatch import is_eager, keys_of
from ragged_moe.runtime.operands import is_int, said
from ragged_moe.runtime.sizes import BF16, E4M3, Inputs, Sizes
from ragged_moe.runtime.workspace import Arena


def experts(
    hidden: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor | None,
    w2: torch.Tensor,
    w2_scale: torch.Tensor | None,
    num_experts: int | None = None,
    *,
    hidden_scale: torch.Tensor | None = None,
    hidden_scale_layout: str | None = None,
    gate_first: bool = False,
    apply_router_weight_on_input: bool = False,
    local_expert_offset: int = 0,
    sms: int | None = None,
    limit: float | None = None,
    alpha: float = 1.0,
    shift: float = 0.0,
    w13_global: torch.Tensor | None = None,
    w2_global: torch.Tensor | None = None,
    w13_bias: torch.Tensor | None = None,
    w2_bias: torch.Tensor | None = None,
    w13_input_scale: torch.Tensor | None = None,
    w2_input_scale: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None,
    replica_counts: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[t] = sum over the experts e of token t that are here of weight * (act(x[t] W13[e]) W2[e]), in FP8 or FP4.

    hidden [T, H] bf16, which is quantised here for 128 columns at a time, or e4m3 with hidden_scale f32 of any strides.
    hidden_scale_layout names its dimensions: "tokens_first" for [T, H/128], row-major (vLLM's
    per_token_group_quant_fp8) or column-major (DeepGEMM), "blocks_first" for [H/128, T] (FlashInfer). Without it the
    shape decides, but where T == H/128 it has two readings: then the layout must be named, so name it in a server. One
    copy by torch, unless the scales of a k-block lie side by side. Scales of a token, or of all, are expanded by the
    caller: scale.expand(T, H // 128).
    topk_ids [T, k] int32 or int64, topk_weights [T, k] f32, k at most 16: expert local_expert_offset + i is local
    expert i; any other number, such as -1, is left out. w13 [E, 2I, H] e4m3, up then gate, or gate then up if
    gate_first; w13_scale [E, 2I/128, H/128], w2 [E, H, I] e4m3, w2_scale [E, H/128, I/128], scales f32; or with a scale
    a weight row, per channel: w13_scale [E, 2I], w2_scale [E, H]. On Hopper also w13 and w2 bf16, without scales, which
    are None: hidden is bf16, and act is rounded to it. out [T, H] bf16. T is at most 65536, also 0; E at
    most 512; H and I are multiples of 128 (ragged_moe.pad_intermediate makes weights of other I so).
    expert_map [L] int32: the router's expert e is expert_map[e], a number as above or -1; a number in topk_ids beyond L
    is left out. expert_map [L, R] with replica_counts [L] int32: the first replica_counts[e] of row e are replicas of
    expert e, and entry j of token t goes to the one of number (t + j) mod replica_counts[e]. Both are read on the GPU,
    by each call and each replay of a graph, so they may be written between two.
    act = gate * sigmoid(alpha * gate) * (up + shift); with a limit, gate is at most that and up is clamped to
    [-limit, limit] first. gpt-oss: limit 7, alpha 1.702, shift 1. act is rounded to e4m3 with a scale for 128 columns.
    apply_router_weight_on_input: act(weight * x[t] W13[e]) W2[e] instead, as Llama 4 has it; k is 1 then, and weights
    are e4m3.
    num_experts: how many the router has, by which kernels are chosen; E if not given. sms: on how many SMs GEMM1 and
    GEMM2 run at most, 2 or more, where others are for communication; all launches but these are short.
    NVFP4 or MXFP4 weights: w13 [E, 2I, H] and w2 [E, H, I] with their scales as pack_nvfp4 or pack_mxfp4 (W13 with
    halves=2) gives them for this GPU, and w13_global f32 [E], or [E, 2] of W13's first half of rows and of its second,
    w2_global f32 [E]. Then hidden is bf16.
    Hopper, and Blackwell with what was packed with activation="bf16": H and I are multiples of 64, nothing is
    quantised, and act is rounded to bf16; w13_bias [E, 2I] and w2_bias [E, H] f32, both or neither, are added to x W13
    and to act W2. Hopper, MXFP4 that was packed with activation="fp8", both: x, and act behind bf16, are rounded to
    e4m3 with a scale a token, as grouped_gemm_nvfp4 rounds; w13_global [E, 2I] and w2_global [E, H]. Blackwell, NVFP4:
    H and I are multiples of 128, x and act are rounded to NVFP4 as grouped_gemm_nvfp4 rounds, with w13_input_scale and
    w2_input_scale, f32 of one element, both or neither; where a checkpoint has one for each expert, the largest. There
    are no biases. Blackwell, MXFP4: as Hopper, but x and act are rounded to MXFP8, and hidden, weights, their scales
    and biases begin at multiples of 32 bytes. Only NVFP4 on Blackwell has a use for input scales.

    All but hidden_scale are contiguous, all on the current GPU. out may lie in hidden's memory, in no other operand's,
    and workspace in none's. Launches on torch's current stream, nothing returns to the host, the same bits every time,
    also in CUDA graphs. Returns out, or a new tensor. ValueError if an operand is not so, or not in a GPU's memory:
    then nothing is compiled, launched or written. No gradients. Scratch memory and workspace as of ragged_moe.run;
    workspace of ragged_moe.experts_workspace_bytes(...) elements.
    """
    options = (
        hidden_scale_layout, gate_first, limit, alpha, shift, apply_router_weight_on_input, local_expert_offset,
        num_experts, sms,
    )  # fmt: skip
    if is_dynamo_compiling():
        given = (
            hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale, hidden_scale, w13_global, w2_global, w13_bias,
            w2_bias, w13_input_scale, w2_input_scale, expert_map, replica_counts,
        )  # fmt: skip
        return FUNCTION.operator(dict(zip(NAMES, given)), dict(zip(OPTIONS, options)), out)
    if (w13_input_scale is not None or w2_input_scale is not None) and kind_of(w2, w2_scale) != (False, None):
        w13_input_scale = w2_input_scale = None
    if hidden_scale is not None:
        hidden_scale = side_by_side(hidden, hidden_scale, hidden_scale_layout)
    given = operands = hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale
    there = None  # which operands are given, unless those alone that calls of weights with scales have
    none_more = (  # by `is`: to compare a tuple of tensors with one of None takes 12 us
        hidden_scale is w13_global is w2_global is w13_bias is w2_bias is w13_input_scale is w2_input_scale is None
        and expert_map is replica_counts is None
    )  # fmt: skip
    if not none_more or w13_scale is None or w2_scale is None:
        given += (
            hidden_scale, w13_global, w2_global, w13_bias, w2_bias, w13_input_scale, w2_input_scale, expert_map,
            replica_counts,
        )  # fmt: skip
        there = tuple([x is not None for x in given])
        operands = tuple([x for x in given if x is not None])
    key = options, there
    call = calls.like(operands, key) if workspace is None else None
    if call is not None:
        made = call.makers[0]() if out is None else out
        if call.repeat((*operands, made)):
            return made
    given = dict.fromkeys(NAMES) | dict(zip(NAMES, given))
    return FUNCTION.first(given, dict(zip(OPTIONS, options)), key, out, workspace)[0]


NAMES, OPTIONS = EXPERTS_CALL.names, tuple(option.name for option in EXPERTS_CALL.options)
ON_INPUT = "apply_router_weight_on_input"


class Experts(Function):
    """The five steps of a call of `experts`."""

    def check(self, given: dict[str, torch.Tensor | None], options: dict[str, object]) -> Checked:
        """Step 1."""
        EXPERTS_CALL.check_options(**options)
        hidden = given["hidden"]
        EXPERTS_CALL.check_dims("hidden", hidden)
        gpu = device_of(hidden.device, "hidden")
        packed = packing_of(gpu.capability, given)
        if getattr(given["w2"], "dtype", None) is BF16:
            signature = BF16_EXPERTS
        elif packed is None:
            check_scale_is_given(hidden, given["hidden_scale"])
            options = options | {"hidden_scale_layout": layout_of(options["hidden_scale_layout"], given)}
            signature = E4M3_EXPERTS[options["hidden_scale_layout"]]
        else:
            signature = EXPERTS_FORMS[packed]
        check_counts(given)
        letters = signature.check(gpu, given)
        if signature in E4M3_EXPERTS.values():
            has_channels(given)  # both or neither
        if options[ON_INPUT]:
            if letters["k"] != 1:
                raise ValueError(f"topk_ids: dimension k is {letters['k']}, but must be 1 for weights on the input")
            if signature not in E4M3_EXPERTS.values():
                what = "bf16" if signature is BF16_EXPERTS else "packed"
                raise ValueError(f"apply_router_weight_on_input is of weights in e4m3, but w13 is {what}")
        everywhere = experts_of(letters["E"], options["num_experts"])
        last, offset = everywhere - letters["E"], options["local_expert_offset"]
        if not 0 <= offset <= last:
            raise ValueError(f"local_expert_offset is {offset}, but must be from 0 to {last}: {letters['E']} of "
                             f"{everywhere} experts are here")  # fmt: skip
        return Checked(gpu, signature, given, letters, options)

    def plan(self, checked: Checked) -> Layer:
        """Step 2."""
        layer, sms = self.layer(checked), checked.options["sms"]
        return layer if sms is None else limited(layer, int(sms))

    def layer(self, checked: Checked) -> Layer:
        """The layer, on all SMs."""
        of, given, hidden = checked.options, checked.given, checked.first
        activation = activation_of(of["gate_first"], of["limit"], of["alpha"], of["shift"])
        sizes = sizes_for(checked.letters, of["num_experts"])
        if checked.signature in E4M3_EXPERTS.values():
            return layer_of(hidden.device, sizes, activation, hidden.dtype is BF16, has_channels(given))
        if checked.signature is BF16_EXPERTS:
            return bf16_layer_of(hidden.device, sizes, activation)
        kind = kind_of(given["w2"], given["w2_scale"])
        return fp4_layer_of(hidden.device, sizes, activation, given["w13_bias"] is not None, *kind)

    def is_noted(self, checked: Checked) -> bool:
        """Not if torch multiplies the scales by the weights."""
        return not checked.options[ON_INPUT] or checked.given["hidden_scale"] is None

    def launch(self, layer: Layer, checked: Checked, of: Mapping, outs: Sequence, arena: Arena, workspace) -> None:
        """Step 4."""
        space, on_input = layer.space(checked.letters["T"], arena, workspace), checked.options[ON_INPUT]
        choice = Choice(of["topk_ids"], of["topk_weights"], of["expert_map"], of["replica_counts"])
        launch(layer, inputs_of(checked, of), choice, space, outs[0], on_input)


FUNCTION = Experts(EXPERTS_CALL.name)
calls = FUNCTION.calls


def check_scale_is_given(hidden: torch.Tensor, scale: torch.Tensor | None) -> None:
    """ValueError unless hidden in e4m3 has scales, and hidden in bf16 has none."""
    if (hidden.dtype is E4M3) != (scale is not None) and hidden.dtype in (BF16, E4M3):
        raise ValueError("hidden_scale is of hidden in e4m3, and must be given with it alone")


def has_channels(given: Mapping[str, torch.Tensor | None]) -> bool:
    """Whether weights in e4m3, which have been checked, have a scale a row; ValueError if only W13 or W2 has."""
    of_row, dims = given["w2_scale"].dim() == 2, given["w13_scale"].dim()
    if of_row != (dims == 2):
        must = "[E, 2I], as w2_scale is [E, H]" if of_row else "[E, 2I/128, H/128], as w2_scale is of blocks"
        raise ValueError(f"w13_scale has {dims} dimensions, but must be {must}")
    return of_row


def check_counts(given: Mapping[str, torch.Tensor | None]) -> None:
    """ValueError if counts of replicas are missing, or there are none."""
    table, counts = given["expert_map"], given["replica_counts"]
    if (counts is not None) != (isinstance(table, torch.Tensor) and table.dim() == 2):
        raise ValueError("replica_counts [L] is of expert_map [L, R], and must be given with it alone")


def packing_of(capability: tuple[int, int], given: Mapping[str, torch.Tensor | None]) -> str | None:
    """The name of the packing that weights must have on this GPU, None for weights in e4m3."""
    w2, w2_scale = given["w2"], given["w2_scale"]
    if not isinstance(w2, torch.Tensor) or w2.dtype is not U8:
        return None
    return packing(capability, *kind_of(w2, w2_scale))


def inputs_of(checked: Checked, operands: Mapping) -> Inputs:
    """The layer's inputs: these operands, tensors or what stands for them."""
    scale = operands["hidden_scale"]
    if scale is not None:
        by_block = scale.t() if checked.options["hidden_scale_layout"] == "tokens_first" else scale
        scale = scale.of(by_block) if isinstance(scale, Recorded) else by_block
    weights = [operands[name] for name in ("w13", "w13_scale", "w2", "w2_scale")]
    inputs = None, None, operands["hidden"], scale, *weights, int(checked.options["local_expert_offset"])
    if checked.signature in E4M3_EXPERTS.values() or checked.signature is BF16_EXPERTS:
        return Inputs(*inputs)
    of_packed = [operands[name] for name in OF_PACKED]
    if checked.signature is EXPERTS_FORMS["as NVFP4 for Blackwell"]:
        of_packed[4:] = [scale_of_one(checked.first.device) if x is None else x for x in of_packed[4:]]
    return Fp4Inputs(*inputs, 0.0, *of_packed)


def experts_workspace_bytes(
    tokens: int, hidden: int, intermediate: int, local: int, top_k: int, num_experts: int | None = None,
    quantises: bool = True, packed: bool = False, mxfp4: bool = False, activation: str | None = None,
    bf16: bool = False,
) -> int:  # fmt: skip
    """Elements of a workspace, uint8, for `experts` on the current GPU with up to this many tokens.

    quantises: whether hidden comes in bf16 and is quantised. packed: whether weights are NVFP4 or MXFP4; mxfp4: these.
    activation: as of what packed them. bf16: whether weights are bf16.
    """
    packed = packed or mxfp4 or activation is not None
    name = packing(device_of(current_device()).capability, mxfp4, activation)
    tiles = packed and name != "as NVFP4 for Blackwell"
    sizes = sizes_of(tokens, hidden, intermediate, local, top_k, num_experts, tiles)
    if bf16:
        return bf16_layer_of(current_device(), sizes, Activation()).workspace_bytes(tokens)
    if packed:
        layer = fp4_layer_of(current_device(), sizes, Activation(), mxfp4=mxfp4, how=activation)
        return layer.workspace_bytes(tokens)
    return layer_of(current_device(), sizes, Activation(), quantises).workspace_bytes(tokens)


@functools.lru_cache(maxsize=4096, typed=True)
def sizes_of(
    tokens: int, hidden: int, intermediate: int, local: int, top_k: int, num_experts: int | None, tiles: bool = False
) -> Sizes:  # fmt: skip
    """The layer's sizes; ValueError if the kernels do not do them. tiles: they do multiples of 64: weights are packed,
    but not as NVFP4 for Blackwell.
    """
    letters = {"T": tokens, "H": hidden, "I": intermediate, "E": local, "k": top_k}
    (EXPERTS_FORMS["for Hopper"] if tiles else EXPERTS_CALL).require(**letters)
    return sizes_for(letters, num_experts)


def sizes_for(letters: Mapping[str, int], num_experts: int | None) -> Sizes:
    """The layer's sizes, of those by letters, which have been checked."""
    everywhere = experts_of(letters["E"], num_experts)
    return Sizes(letters["H"], letters["I"], letters["E"], letters["k"], everywhere)


def experts_of(local: int, num_experts: int | None) -> int:
    """How many experts the router has; ValueError if that cannot be."""
    everywhere = local if num_experts is None else num_experts
    if not is_int(everywhere) or everywhere < local:
        raise ValueError(f"num_experts is {said(everywhere)}, but must be an int that is at least E, {local}")
    return int(everywhere)


def layout_of(layout: str | None, given: Mapping[str, torch.Tensor | None]) -> str | None:
    """Return the layout of hidden_scale: the one that is named, else what its shape says, None if that fits neither.

    ValueError where the shape has two readings, T == H/128, and none is named.
    """
    scale = given["hidden_scale"]
    if layout is not None or not isinstance(scale, torch.Tensor):
        return layout
    tokens, blocks = given["hidden"].shape[0], given["hidden"].shape[1] // 128
    if tokens == blocks:
        raise LAYOUT.complaint(layout)
    return {(tokens, blocks): "tokens_first", (blocks, tokens): "blocks_first"}.get(tuple(scale.shape))


def side_by_side(hidden: torch.Tensor, scale: torch.Tensor, layout: str | None) -> torch.Tensor:
    """hidden_scale, or a copy in which the scales of a k-block lie side by side: of which the launches can be noted.

    What is wrong stays as it is, to be complained of.
    """
    if not all(isinstance(x, torch.Tensor) and x.dim() == 2 for x in (hidden, scale)) or scale.device != hidden.device:
        return scale
    by_token = layout == "tokens_first" or layout is None and len(scale) == len(hidden)
    by_block = scale.t() if by_token else scale
    if by_block.is_contiguous() or not is_eager(keys_of(scale)):
        return scale
    empty = torch.empty(by_block.shape, dtype=scale.dtype, device=scale.device)
    (copy,) = device_of(hidden.device, "hidden").tensors(empty)
    copy.copy_(by_block)
    return copy.t() if by_token else copy


@functools.cache
def assign_program(
    device: torch.device, slots: int, wide: bool, own: int, ones: bool = False,
    quantiser: quantise.Quantise | QuantiseBlocks | None = None, copies: bool = False, maps: int = 0,
) -> Program:  # fmt: skip
    """The assign kernel, compiled for this GPU. own: experts of a CTA. quantiser: that it quantises the tokens by.
    copies: whether it copies them to their rows. maps: the dimensions of a map, 0 without one.
    """
    kernel = assign.Assign(slots, wide, own, ones=ones, quantiser=quantiser, copies=copies, maps=maps)
    variant = f"slots={slots} wide={wide} own={own} ones={ones} quantiser={quantiser} copies={copies} maps={maps}"
    return Program(kernel, kernel.words, variant)


@functools.cache
def quantise_program(device: torch.device) -> Program:
    """The quantise kernel, compiled for this GPU."""
    return Program(quantise.Quantise(), quantise.WORDS, "")


class Choice(NamedTuple):
    """What a router has chosen, and which experts its numbers are."""

    ids: torch.Tensor
    weights: torch.Tensor
    expert_map: torch.Tensor | None = None
    replica_counts: torch.Tensor | None = None


def launch(
    layer: Layer, x: Inputs, choice: Choice, space: Space, out: torch.Tensor, on_input: bool = False
) -> None:  # fmt: skip
    """One stage after the other. x: its hidden_states are bf16 where the layer quantises them, by assign or by permute.

    on_input: the scales of tokens are multiplied by their weights, with which then nothing else is.
    """
    ids, weights, table, counts = choice
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
    of_ids, maps, of_map = (layer.sizes.slots, ids.dtype is I64, own), 0, ()
    if table is not None:
        maps, (logical, *replicas) = table.dim(), table.shape
        of_map = table.data_ptr(), 0 if counts is None else counts.data_ptr(), logical, *(replicas or (1,))
    program = assign_program(layer.torch_device, *of_ids, on_input, quantiser, copies, maps)
    program(ids.data_ptr(), weights.data_ptr(), *to, tokens, k, local, x.local_expert_offset, grid, stream, *of_hidden,
            *of_map)  # fmt: skip
    layer.compute(x, space, out)


@dataclasses.dataclass(frozen=True)
class At:
    """Scratch memory in a tensor's place: where it begins, and the tensor's shape."""

    address: int
    shape: tuple[int, ...] = ()

    def data_ptr(self) -> int:
        return self.address
