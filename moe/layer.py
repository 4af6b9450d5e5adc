"""The DeepSeek-V3 MoE layer in FP8, in four launches: routing, GEMM1, GEMM2, finalise; five where experts have many
tokens, whose rows permute then copies for GEMM1, which gathers them itself else.

    logits, bias ─► routing ─► m_indptr, rows ──────────┬──────────────────┐
                       └─────► places, weights ─────────┼──────────────────┼────────────────┐
                                                        ▼                  ▼                ▼
    hidden_states, W13 ──────────────────────────► GEMM1, SwiGLU ─► c ─► GEMM2 ─► o ─► finalise ─► output

Each is a dependent launch that waits for the one before it before it touches memory, and lets the next one start only
after that: so whatever earlier kernels wrote is there. GEMM2, and GEMM1 behind permute, read m_indptr before they wait,
which is why the kernel between them and routing must have waited by then.
"""

import dataclasses
import functools
import numbers
from typing import NamedTuple

import torch

from moe.device import device_of
from moe.grouped_gemm import launcher
from moe.kernels import finalise, permute, routing
from moe.kernels.config import Config
from moe.kernels.program import Program, float_bits
from moe.kernels.schedule import search_step
from moe.kernels.stream_k import EMPTY
from moe.operands import MAX_ROWS, Operand, addresses, complain, contiguous, require
from moe.problem import BF16, E4M3, EXPERTS, F32, I32, TOP_K, Inputs, Sizes
from moe.tuning.back_ends import kernel, tuning

LEAST_ROWS = 8  # of an expert in the mean, for hardly any to have none,
MOST_ROWS = 32  # and to have more than a tile of GEMM1's: where routing prefetches its weights
ALIGNED = 0, 1, 2, 4, 6, 8  # which of the tensors are read or written by 16 bytes


def run(
    routing_logits: torch.Tensor,
    routing_bias: torch.Tensor,
    hidden_states: torch.Tensor,
    hidden_states_scale: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm1_weights_scale: torch.Tensor,
    gemm2_weights: torch.Tensor,
    gemm2_weights_scale: torch.Tensor,
    local_expert_offset: int,
    routed_scaling_factor: float,
    output: torch.Tensor,
) -> None:
    """output[t] = sum over token t's local experts e of weight * (silu(gate) * up) W2[e], gate and up = x[t] W13[e].

    routing_logits [T, 256] f32, routing_bias [256] f32 or bf16, hidden_states [T, H] e4m3, its scales [H/128, T] f32,
    gemm1_weights [E, 2I, H] e4m3 (up, then gate), scales [E, 2I/128, H/128] f32, gemm2_weights [E, H, I] e4m3, scales
    [E, H/128, I/128] f32, output [T, H] bf16; all contiguous and on the current GPU. T is at most 16384, also 0; E at
    most 32; H and I are multiples of 128. Local expert i is expert local_expert_offset + i of 256, so
    that local_expert_offset, an int, is from 0 to 256 - E. How experts are
    chosen and weighted, and what of this is rounded: moe.reference.layer. silu(gate) * up is rounded to e4m3 with a
    scale for 128 columns, which the definition does not do: 2 to 3 % of the result's norm, within its tolerance.
    Four or five kernels on torch's current stream, nothing returns to the host, the same bits every time. Memory is
    allocated by the first call of a size class (T rounded up to a power of two) on a stream. ValueError if an operand
    is not so, or not in a GPU's memory, as fake, meta and CPU tensors: then nothing is compiled, launched or written.
    """
    tensors = (
        routing_logits, routing_bias, hidden_states, hidden_states_scale,
        gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale,
    )  # fmt: skip
    layer, x = checked(tensors, local_expert_offset, routed_scaling_factor, output)
    layer(x, output)


@functools.lru_cache(maxsize=4096)
def expectations(
    hidden_states: torch.Size, gemm2_weights: torch.Size, bias: torch.dtype = BF16
) -> tuple[Operand, ...]:
    """What each tensor must be, in the order of `run`; ValueError if sizes are not the layer's.

    bias: the type of routing_bias, which has no influence on the others.
    """
    (tokens, h), (e, _, i) = hidden_states, gemm2_weights
    for name, dimension, size, multiple, least, most in (
        ("hidden_states", "T", tokens, 1, 0, routing.MAX_TOKENS),
        ("hidden_states", "H", h, 128, 128, MAX_ROWS),
        ("gemm2_weights", "I", i, 128, 128, MAX_ROWS),
        ("gemm2_weights", "E", e, 1, 1, routing.MAX_LOCAL),
    ):
        require(name, dimension, size, multiple, least, most)
    return (
        contiguous("routing_logits", F32, tokens, EXPERTS),
        contiguous("routing_bias", bias, EXPERTS),
        contiguous("hidden_states", E4M3, tokens, h),
        contiguous("hidden_states_scale", F32, h // 128, tokens),
        contiguous("gemm1_weights", E4M3, e, 2 * i, h),
        contiguous("gemm1_weights_scale", F32, e, 2 * i // 128, h // 128),
        contiguous("gemm2_weights", E4M3, e, h, i),
        contiguous("gemm2_weights_scale", F32, e, h // 128, i // 128),
        contiguous("output", BF16, tokens, h),
    )


def checked(tensors: tuple, offset: int, factor: float, output: torch.Tensor) -> tuple["Layer", Inputs]:
    """The layer for these operands, and its inputs; ValueError if there is none."""
    hidden_states, gemm2_weights = tensors[2], tensors[6]
    for name, tensor, dims in (("hidden_states", hidden_states, 2), ("gemm2_weights", gemm2_weights, 3)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != dims:
            raise ValueError(f"{name} must be a tensor of {dims} dimensions")
    bias, device = getattr(tensors[1], "dtype", BF16), hidden_states.device
    if bias not in (BF16, F32):
        raise ValueError(f"routing_bias has type {bias}, but must have {F32} or {BF16}")
    expected = expectations(hidden_states.shape, gemm2_weights.shape, bias)
    gpu, everything = device_of(device, "hidden_states"), (*tensors, output)
    for tensor, (_, dtype, shape, _) in zip(everything, expected):
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.dtype is not dtype
            or tensor.shape != shape
            or not tensor.is_contiguous()
            or tensor.device != device
        ):
            complain((hidden_states, *everything), (expected[2], *expected), (hidden_states, "hidden_states"))
    local, hidden, intermediate = gemm2_weights.shape
    if not isinstance(offset, numbers.Integral) or isinstance(offset, bool):
        raise ValueError(f"local_expert_offset is a {type(offset).__name__}, but must be an int")
    if not 0 <= offset <= EXPERTS - local:
        rule = f"from 0 to {EXPERTS - local}, as {local} of {EXPERTS} experts are local"
        raise ValueError(f"local_expert_offset is {offset}, but must be {rule}")
    if not isinstance(factor, numbers.Real):
        raise ValueError(f"routed_scaling_factor is a {type(factor).__name__}, but must be a number of the host's")
    addresses(gpu, everything, expected, ALIGNED)
    return layer_of(device, Sizes(hidden, intermediate, local)), Inputs(*tensors, int(offset), float(factor))


class Space(NamedTuple):
    """What the kernels leave each other, for up to `room` tokens."""

    room: int
    m_indptr: torch.Tensor  # int32 [E + 1]
    rows: torch.Tensor  # int32 [room * min(8, E)]: the token of each row
    places: torch.Tensor  # int32 [room, 8]: the rows of each token, then -1
    weights: torch.Tensor  # f32 [room, 8]: of these rows
    counts: torch.Tensor  # int32 [CTAs, 32]
    barrier: torch.Tensor  # int32 [2], 0 at first
    c: torch.Tensor  # e4m3 [rows, I]
    c_scale: torch.Tensor  # f32 [I/128, rows]
    polled: torch.Tensor  # int32: stream-K's partial sums of GEMM1, EMPTY at first, or
    partials: torch.Tensor  # those of configs that do not poll, and their
    flags: torch.Tensor  # int32 [CTAs, 2], 0 at first
    o: torch.Tensor  # bf16 [rows, H]
    permuted: torch.Tensor  # e4m3 [rows, H]: tokens in the order of `rows`; none if GEMM1 gathers them
    permuted_scale: torch.Tensor  # f32 [H/128, rows]


@functools.cache
def routing_program(device: torch.device, f32_bias: bool) -> Program:
    """The routing kernel for a bias in f32 or bf16, compiled for this GPU."""
    return Program(routing.Routing(f32_bias), routing.WORDS)


@functools.cache
def permute_program(device: torch.device) -> Program:
    """The permute kernel, compiled for this GPU."""
    return Program(permute.Permute(), permute.WORDS)


@functools.cache
def finalise_program(device: torch.device) -> Program:
    """The finalise kernel, compiled for this GPU."""
    return Program(finalise.Finalise(), finalise.WORDS)


@functools.cache
def gemm1_program(device: torch.device, config: Config) -> Program:
    """GEMM1's kernel under this config, compiled for this GPU."""
    of_config = kernel(config)
    return Program(of_config, of_config.words)


class Layer:
    """The layer's kernels for these sizes on one GPU. Each stage is one launch, and can be called on its own."""

    def __init__(self, device: torch.device, sizes: Sizes):
        self.torch_device, self.device, self.sizes, self.spaces = device, device_of(device), sizes, {}
        self.sms, self.tuning = self.device.sms, tuning(self.device.capability)
        self.configs = functools.lru_cache(maxsize=4096)(self.configs)

    def configs(self, tokens: int) -> tuple[Config, Config]:
        """The configs of GEMM1 and GEMM2, for the rows that evenly spread tokens give.

        GEMM2 knows its rows before GEMM1 has ended, so it prefetches as much as its ring holds, not two stages.
        """
        h, i, e = self.sizes.hidden, self.sizes.intermediate, self.sizes.local
        rows = -(-tokens * TOP_K * e // EXPERTS)
        second = self.tuning.choose_gemm(rows, e, h, i, routed=True)
        return self.tuning.choose_gemm1(rows, e), dataclasses.replace(second, prefetch=second.stages)

    def grid(self, config: Config) -> int:
        """CTAs of GEMM1."""
        return self.sms // config.launch_cluster * config.launch_cluster

    def space(self, tokens: int) -> Space:
        """Scratch memory for this many tokens, which launches of one order share."""
        key = self.device.order(), max(16, 1 << (tokens - 1).bit_length())
        if key not in self.spaces:
            self.spaces[key] = self.allocate(key[1])
        return self.spaces[key]

    def allocate(self, room: int) -> Space:
        """Scratch memory for up to `room` tokens."""
        h, i, e = self.sizes.hidden, self.sizes.intermediate, self.sizes.local
        rows = room * min(TOP_K, e)
        configs = [self.configs(tokens)[0] for tokens in (room // 2 + 1, room)]
        polled, partials = [
            max((c.partial_bytes // 4 * self.sms for c in configs if c.polled_partials == way), default=0)
            for way in (True, False)
        ]
        permuted = rows if any(config.permuted for config in configs) else 0

        def empty(*shape: int, dtype: torch.dtype = I32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=self.torch_device)

        tensors = self.device.tensors(
            empty(e + 1), empty(rows), empty(room, TOP_K), empty(room, TOP_K, dtype=F32),
            empty(routing.MAX_CTAS, routing.MAX_LOCAL), empty(2).zero_(),
            empty(rows, i, dtype=E4M3), empty(i // 128, rows, dtype=F32),
            empty(polled).fill_(EMPTY), empty(partials), empty(self.sms, 2).zero_(), empty(rows, h, dtype=BF16),
            empty(permuted, h, dtype=E4M3), empty(h // 128, permuted, dtype=F32),
        )  # fmt: skip
        return Space(room, *tensors)

    def __call__(self, x: Inputs, output: torch.Tensor) -> None:
        """The launches; none if there are no tokens. x and output must be as `checked` says."""
        if not self.device.is_current():
            raise ValueError(f"hidden_states is on {self.torch_device}, but must be on torch's current device")
        tokens = x.hidden_states.shape[0]
        if tokens:
            self.launch(x, self.space(tokens), output)

    def stages(self, tokens: int) -> tuple[str, ...]:
        """What is launched, in this order."""
        first, _ = self.configs(tokens)
        return "routing", *(("permute",) if first.permuted else ()), "GEMM1", "GEMM2", "finalise"

    def launch(self, x: Inputs, space: Space, output: torch.Tensor) -> None:
        """One stage after the other."""
        first, second = self.configs(x.hidden_states.shape[0])
        self.route(x, space)
        if first.permuted:
            self.permute(x, space)
        self.gemm1(x, space, first)
        self.gemm2(x, space, second)
        self.finalise(space, output)

    def route(self, x: Inputs, space: Space) -> None:
        """To m_indptr, rows, places, weights."""
        tokens, i, e = x.hidden_states.shape[0], self.sizes.intermediate, self.sizes.local
        grid, chunk = routing.grid_of(tokens, self.sms)
        tensors = x.routing_logits, x.routing_bias, *space[1:7], x.gemm1_weights
        sizes = tokens, e, x.local_expert_offset, chunk, grid, float_bits(x.routed_scaling_factor)
        config, _ = self.configs(tokens)
        mean = tokens * TOP_K // EXPERTS  # rows of an expert
        early = self.grid(config) if LEAST_ROWS <= mean <= MOST_ROWS else 0
        of_gemm1 = 2 * i, self.sizes.hidden, early, config.cluster, bool(config.data_parallel)
        program = routing_program(self.torch_device, x.routing_bias.dtype is F32)
        program(*[t.data_ptr() for t in tensors], *sizes, *of_gemm1, self.device.stream())

    def permute(self, x: Inputs, space: Space) -> None:
        """From m_indptr and rows to permuted, permuted_scale."""
        tensors = x.hidden_states, x.hidden_states_scale, *space[1:3], space.permuted, space.permuted_scale
        tokens, rows = x.hidden_states.shape[0], space.rows.shape[0]
        sizes = tokens, self.sizes.hidden, rows, self.sizes.local, permute.grid_of(rows, self.sms)
        permute_program(self.torch_device)(*[t.data_ptr() for t in tensors], *sizes, self.device.stream())

    def gemm1(self, x: Inputs, space: Space, config: Config) -> None:
        """From m_indptr and rows, or what permute left, to c, c_scale."""
        h, i, e = self.sizes.hidden, self.sizes.intermediate, self.sizes.local
        tokens = (space.permuted, space.permuted_scale) if config.permuted else (x.hidden_states, x.hidden_states_scale)
        tensors = (
            *tokens, x.gemm1_weights, x.gemm1_weights_scale, space.m_indptr, space.rows,
            space.c, space.c_scale, space.polled if config.polled_partials else space.partials, space.flags,
        )  # fmt: skip
        sizes = space.rows.shape[0], 2 * i, h, e, search_step(e), self.grid(config), x.hidden_states.shape[0]
        gemm1_program(self.torch_device, config)(*[t.data_ptr() for t in tensors], *sizes, self.device.stream())

    def gemm2(self, x: Inputs, space: Space, config: Config) -> None:
        """From m_indptr, c and c_scale to o."""
        operands = space.c, space.c_scale, x.gemm2_weights, x.gemm2_weights_scale, space.m_indptr, space.o
        rows, sizes = space.rows.shape[0], self.sizes
        launcher(self.torch_device, config)(operands, rows, sizes.hidden, sizes.intermediate, sizes.local)

    def finalise(self, space: Space, output: torch.Tensor) -> None:
        """From o, places and weights to output."""
        tensors = space.o, space.places, space.weights, output
        finalise_program(self.torch_device)(*[t.data_ptr() for t in tensors], *output.shape, self.device.stream())


layer_of = functools.lru_cache(maxsize=16)(Layer)
