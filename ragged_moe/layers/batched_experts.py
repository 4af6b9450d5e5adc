"""`batched_experts`: the experts of tokens that lie by expert, as DeepEP's low-latency dispatch leaves them.

    counts ─► list ─► m_indptr, rows, scales ──┐
    hidden bf16 ─► quantise ─► e4m3, scales ───┴─► [permute] ─► GEMM1 ─► GEMM2 ─► unpack ─► out [E, M, H]

The launches between are the layer's (layer.py), with its scratch memory, lock and rules for streams and graphs.
"""

import functools
from collections.abc import Mapping, Sequence

import torch
from torch.compiler import is_dynamo_compiling

from ragged_moe.kernels import batched
from ragged_moe.kernels.program import Program
from ragged_moe.layers.deepseek_layer import Layer, Space, activation_of, layer_of
from ragged_moe.layers.experts import At, check_scale_is_given, has_channels
from ragged_moe.layers.repeated_calls import Checked, Function
from ragged_moe.layers.signatures import BATCHED_CALL, MOST_BATCHED
from ragged_moe.runtime.device import device_of
from ragged_moe.runtime.operands import require
from ragged_moe.runtime.sizes import Inputs, Sizes
from ragged_moe.runtime.workspace import ALIGNMENT, Arena


def batched_experts(
    hidden: torch.Tensor,
    counts: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    *,
    hidden_scale: torch.Tensor | None = None,
    gate_first: bool = False,
    limit: float | None = None,
    alpha: float = 1.0,
    shift: float = 0.0,
    expected_m: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[e, i] = act(hidden[e, i] W13[e]) W2[e] for i < counts[e], in FP8.

    hidden [E, M, H] bf16, which is quantised here for 128 columns at a time, or e4m3 with hidden_scale [E, M, H/128]
    f32 of any strides, as DeepEP's, whose last two dimensions are column-major. counts [E] int32, each 0 to M. Weights,
    gate_first, limit, alpha and shift as of ragged_moe.experts. out [E, M, H] bf16. E * M is at most 2**20, also 0.
    Rows from counts[e] on are not read, and not written.
    expected_m: rows of an expert in the mean, by which kernels are chosen (DeepGEMM's masked GEMMs have one, too); M
    if not given.

    hidden, counts, weights and out are contiguous, all on the current GPU. Launches on torch's current stream, nothing
    returns to the host, the same bits every time, also in CUDA graphs. Returns out, or a new tensor. ValueError if an
    operand is not so, or not in a GPU's memory: then nothing is compiled, launched or written. No gradients. Scratch
    memory as of ragged_moe.run.
    """
    operands = (hidden, counts, w13, w13_scale, w2, w2_scale, *(() if hidden_scale is None else (hidden_scale,)))
    options = gate_first, limit, alpha, shift, expected_m
    if is_dynamo_compiling():
        return FUNCTION.operator(dict(zip(NAMES, operands)), dict(zip(OPTIONS, options)), out)
    call = calls.like(operands, options)
    if call is not None:
        made = call.makers[0]() if out is None else out
        if call.repeat((*operands, made)):
            return made
    given = dict(zip(NAMES, (*operands[:6], hidden_scale)))
    return FUNCTION.first(given, dict(zip(OPTIONS, options)), options, out)[0]


NAMES, OPTIONS = BATCHED_CALL.names, tuple(option.name for option in BATCHED_CALL.options)


class BatchedExperts(Function):
    """The five steps of a call of `batched_experts`."""

    def check(self, given: dict[str, torch.Tensor | None], options: dict[str, object]) -> Checked:
        """Step 1."""
        BATCHED_CALL.check_options(**options)
        hidden = given["hidden"]
        BATCHED_CALL.check_dims("hidden", hidden)
        check_scale_is_given(hidden, given["hidden_scale"])
        gpu = device_of(hidden.device, "hidden")
        letters = BATCHED_CALL.letters(given)
        require_rows(letters["E"], letters["M"])
        return Checked(gpu, BATCHED_CALL, given, BATCHED_CALL.check(gpu, given), options)

    def plan(self, checked: Checked) -> Layer:
        """Step 2."""
        of, letters = checked.options, checked.letters
        sizes = sizes_of(*(letters[x] for x in "EMHI"), of["expected_m"])
        activation = activation_of(of["gate_first"], of["limit"], of["alpha"], of["shift"])
        return layer_of(checked.first.device, sizes, activation, channels=has_channels(checked.given))

    def launch(self, layer: Layer, checked: Checked, of: Mapping, outs: Sequence, arena: Arena, workspace) -> None:
        """Step 4."""
        space = layer.space(checked.letters["E"] * checked.letters["M"], arena)
        launch(layer, [x for x in of.values() if x is not None], space, outs[0])


FUNCTION = BatchedExperts(BATCHED_CALL.name)
calls = FUNCTION.calls


@functools.lru_cache(maxsize=4096, typed=True)
def sizes_of(experts: int, most: int, hidden: int, intermediate: int, expected_m: int | None) -> Sizes:
    """The layer's sizes, of a router that gives an expert this many rows; ValueError if the kernels do not do them."""
    BATCHED_CALL.check_options(expected_m=expected_m)
    BATCHED_CALL.require(E=experts, M=most, H=hidden, I=intermediate)
    require_rows(experts, most)
    expected_m = max(1, most) if expected_m is None else expected_m
    everywhere = max(experts, experts * most // int(expected_m))  # to which E * M tokens go, one expert each
    return Sizes(hidden, intermediate, experts, 1, everywhere)


def require_rows(experts: int, most: int) -> None:
    """ValueError for more rows of all experts together than the kernels do."""
    require("hidden", "M", most, 1, 0, MOST_BATCHED // experts)


@functools.cache
def program(device: torch.device, host: type, words: int, *options: bool) -> Program:
    """One of this call's own kernels, compiled for this GPU."""
    return Program(host(*options), words, repr(options))


def launch(
    layer: Layer, operands: Sequence[torch.Tensor], space: Space, out: torch.Tensor
) -> None:
    """One stage after the other. Scales, and tokens that are quantised here, are where GEMM2 then writes o."""
    hidden, counts, *weights = operands[:6]
    experts, most, h = hidden.shape
    tokens, blocks, device, stream = experts * most, h // 128, layer.torch_device, layer.device.stream()
    scales, values = space.o, space.o + -(-4 * blocks * tokens // ALIGNMENT) * ALIGNMENT
    used, grid = space.m_indptr + 4 * experts, batched.grid_of(tokens, layer.sms)
    scaled = len(operands) > 6
    given = (operands[6].data_ptr(), scales, *operands[6].stride()) if scaled else (0,) * 5
    program(device, batched.ListBatch, batched.LIST_WORDS, scaled)(
        counts.data_ptr(), space.m_indptr, space.rows, *given, experts, most, blocks, stream
    )
    if scaled:
        values = hidden.data_ptr()
    else:
        program(device, batched.QuantiseRows, batched.QUANTISE_WORDS)(
            hidden.data_ptr(), values, scales, space.rows, used, tokens, h, grid, stream
        )
    layer.multiply(Inputs(None, None, At(values, (tokens, h)), At(scales), *weights), space)
    program(device, batched.UnpackRows, batched.UNPACK_WORDS)(
        space.o, space.rows, used, out.data_ptr(), h, grid, stream
    )
