"""`batched_experts`: the experts of tokens that lie by expert, as DeepEP's low-latency dispatch leaves them.

    counts ─► list ─► m_indptr, rows, scales ──┐
    hidden bf16 ─► quantise ─► e4m3, scales ───┴─► [permute] ─► GEMM1 ─► GEMM2 ─► unpack ─► out [E, M, H]

The launches between are the layer's (layer.py), with its scratch memory, lock and rules for streams and graphs.
"""

import functools
import numbers
from collections.abc import Sequence

import torch

from ragged_moe.kernels import batched
from ragged_moe.kernels.config import MAX_EXPERTS
from ragged_moe.kernels.program import Program
from ragged_moe.layers.deepseek_layer import Layer, Space, activation_of, layer_of
from ragged_moe.layers.experts import At
from ragged_moe.layers.repeated_calls import Call, Calls
from ragged_moe.runtime.device import device_of
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
from ragged_moe.runtime.workspace import ALIGNMENT, arena_of

MOST = 2**20  # E * M
calls = Calls()


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
    if torch.compiler.is_compiling():
        given = hidden, counts, w13, w13_scale, w2, w2_scale
        options = {
            "hidden_scale": hidden_scale, "gate_first": gate_first, "limit": limit, "alpha": alpha, "shift": shift,
            "expected_m": expected_m,
        }  # fmt: skip
        if out is None:
            return torch.ops.ragged_moe.batched_experts(*given, **options)
        torch.ops.ragged_moe.batched_experts_out(out, *given, **options)
        return out
    if type(gate_first) is not bool:
        require_flags(gate_first=gate_first)
    operands = [hidden, counts, w13, w13_scale, w2, w2_scale]
    if hidden_scale is not None:
        operands.append(hidden_scale)
    options = gate_first, limit, alpha, shift, expected_m
    call = calls.like(operands, options)
    if call is not None:
        made = call.gpu.tensors(torch.empty_like(hidden, dtype=BF16))[0] if out is None else out
        if call.repeat((*operands, made)):
            return made
    for name, tensor in (("hidden", hidden), ("w2", w2)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 3:
            raise ValueError(f"{name} must be a tensor of 3 dimensions")
    (_, most, h), (experts, _, i) = hidden.shape, w2.shape
    if hidden.dtype not in (BF16, E4M3):
        raise ValueError(f"hidden has type {hidden.dtype}, but must have {BF16} or {E4M3}")
    if (hidden.dtype is BF16) != (hidden_scale is None):
        raise ValueError("hidden_scale is of hidden in e4m3, and must be given with it alone")
    sizes = sizes_of(experts, most, h, i, expected_m)
    gpu = device_of(hidden.device, "hidden")
    expected = expectations(experts, most, h, i, hidden.dtype)
    complain(operands, expected, (hidden, "hidden"))
    addresses(gpu, operands[:6], expected, (0, 2, 4))
    if hidden_scale is not None:
        of_any_strides("hidden_scale", hidden_scale, F32, (experts, most, h // 128), hidden, gpu)
    activation = activation_of(gate_first, limit, alpha, shift)
    layer = layer_of(hidden.device, sizes, activation)
    if out is None:
        (out,) = gpu.tensors(torch.empty(hidden.shape, dtype=BF16, device=hidden.device))
    of_out = contiguous("out", BF16, *hidden.shape)
    complain((out,), (of_out,), (hidden, "hidden"))
    addresses(gpu, (out,), (of_out,), (0,))
    require_apart("out", out, zip((*(x.name for x in expected[1:]), "hidden_scale"), operands[1:]))
    if not gpu.is_current():
        raise ValueError(f"hidden is on {hidden.device}, but must be on torch's current device")
    if most:
        arena = arena_of(layer.torch_device, gpu)
        with arena.lock:
            made = Call(gpu, (*operands, out), (0, 2, 4, -1), apart=range(1, len(operands)))
            call = calls.add(operands, options, made)
            call.note(arena, (*operands, out), lambda *recorded: launch(
                layer, recorded[:-1], layer.space(experts * most, arena), recorded[-1]
            ))  # fmt: skip
    return out


@functools.lru_cache(maxsize=4096)
def sizes_of(experts: int, most: int, hidden: int, intermediate: int, expected_m: int | None) -> Sizes:
    """The layer's sizes, of a router that gives an expert so many rows; ValueError if the kernels do not do them."""
    for name, dimension, size, multiple, least, largest in (
        ("w2", "E", experts, 1, 1, MAX_EXPERTS),
        ("hidden", "M", most, 1, 0, MOST // experts if experts else MOST),
        ("hidden", "H", hidden, 128, 128, MAX_ROWS),
        ("w2", "I", intermediate, 128, 128, MAX_ROWS),
    ):
        require(name, dimension, size, multiple, least, largest)
    expected_m = max(1, most) if expected_m is None else expected_m
    if not isinstance(expected_m, numbers.Integral) or isinstance(expected_m, bool) or expected_m < 1:
        raise ValueError(f"expected_m is {expected_m}, but must be an int from 1 on")
    everywhere = max(experts, experts * most // int(expected_m))  # to which E * M tokens go, one expert each
    return Sizes(hidden, intermediate, experts, 1, everywhere)


@functools.lru_cache(maxsize=4096)
def expectations(experts: int, most: int, h: int, i: int, of_hidden: torch.dtype) -> tuple[Operand, ...]:
    """Say what each tensor must be, in the order of `batched_experts`."""
    return (
        contiguous("hidden", of_hidden, experts, most, h),
        contiguous("counts", I32, experts),
        contiguous("w13", E4M3, experts, 2 * i, h),
        contiguous("w13_scale", F32, experts, 2 * i // 128, h // 128),
        contiguous("w2", E4M3, experts, h, i),
        contiguous("w2_scale", F32, experts, h // 128, i // 128),
    )


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
