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

import copy
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from ragged_moe.kernels import finalise, permute, routing
from ragged_moe.kernels.config import Activation, Config
from ragged_moe.kernels.program import Program, float_bits
from ragged_moe.kernels.quantise import Quantise
from ragged_moe.kernels.schedule import search_step
from ragged_moe.layers.grouped_gemm_fp8 import flags, launcher, partials
from ragged_moe.layers.repeated_calls import Checked, Function
from ragged_moe.layers.signatures import LAYER_CALL
from ragged_moe.runtime.device import current_device, device_of
from ragged_moe.runtime.sizes import BF16, E4M3, EXPERTS, F32, I32, MAX_LOCAL, Inputs, Sizes
from ragged_moe.runtime.workspace import Arena, Part, arena_of, offsets
from ragged_moe.tuning.back_ends import kernel, tuning

LEAST_ROWS = 8  # of an expert in the mean, for hardly any to have none,
MOST_ROWS = 32  # and to have more than a tile of GEMM1's: where routing prefetches its weights
LEAST_ROOM = 16  # tokens
QUANTISED_ROWS = 2  # rows of a token, to which it is quantised for each: for 3 as many bytes move as if before


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
    workspace: torch.Tensor | None = None,
) -> None:
    """output[t] = sum over token t's local experts e of weight * (silu(gate) * up) W2[e], gate and up = x[t] W13[e].

    routing_logits [T, 256] f32, routing_bias [256] f32 or bf16, hidden_states [T, H] e4m3, its scales [H/128, T] f32,
    gemm1_weights [E, 2I, H] e4m3 (up, then gate), scales [E, 2I/128, H/128] f32, gemm2_weights [E, H, I] e4m3, scales
    [E, H/128, I/128] f32, output [T, H] bf16; all contiguous and on the current GPU. T is at most 16384, also 0; E at
    most 32; H and I are multiples of 128. Local expert i is expert local_expert_offset + i of 256, so that
    local_expert_offset, an int, is from 0 to 256 - E. How experts are chosen and weighted, and what of this is rounded:
    ragged_moe.reference.layer. silu(gate) * up is rounded to e4m3 with a scale for 128 columns, which the definition
    does not do: 2 to 3 % of the result's norm, within its tolerance.
    Four or five kernels on torch's current stream, nothing returns to the host, the same bits every time. No
    gradients: RuntimeError for operands that require them. ValueError if an operand is not so, or not in a GPU's
    memory, as fake, meta and CPU tensors: then nothing is compiled, launched or written.

    Scratch memory is one allocation a stream, which all sizes and layers share and which grows with the largest T; a
    CUDA graph takes its own from its memory pool, which graphs of one pool share. workspace: for most of it, the
    caller's memory instead, uint8 with at least ragged_moe.workspace_bytes(...) elements, of whatever contents. Calls
    on different streams and graphs of different pools may run at once, those with the same workspace may not; threads
    may call at once, on one stream, too.
    """
    operands = (
        routing_logits, routing_bias, hidden_states, hidden_states_scale,
        gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale,
    )  # fmt: skip
    options = local_expert_offset, routed_scaling_factor
    call = calls.like(operands, options) if workspace is None else None
    if call is not None and call.repeat((*operands, output)):
        return
    given = dict(zip(LAYER_CALL.names, operands))
    FUNCTION.first(given, dict(zip(OPTIONS, options)), options, output, workspace)


OPTIONS = tuple(option.name for option in LAYER_CALL.options)


class Run(Function):
    """The five steps of a call of `run`."""

    def check(self, given: dict[str, torch.Tensor | None], options: dict[str, object]) -> Checked:
        """Step 1."""
        LAYER_CALL.check_dims("hidden_states", given["hidden_states"])
        LAYER_CALL.letters(given)
        LAYER_CALL.check_options(**options)
        gpu = device_of(given["hidden_states"].device, "hidden_states")
        letters = LAYER_CALL.check(gpu, given)
        local, offset = letters["E"], options["local_expert_offset"]
        if not 0 <= offset <= EXPERTS - local:
            rule = f"from 0 to {EXPERTS - local}, as {local} of {EXPERTS} experts are local"
            raise ValueError(f"local_expert_offset is {offset}, but must be {rule}")
        return Checked(gpu, LAYER_CALL, given, letters, options)

    def plan(self, checked: Checked) -> "Layer":
        """Step 2."""
        return layer_of(checked.first.device, Sizes(*(checked.letters[x] for x in "HIE")))

    def launch(self, layer: "Layer", checked: Checked, of: Mapping, outs: Sequence, arena: Arena, workspace) -> None:
        """Step 4."""
        options = int(checked.options["local_expert_offset"]), float(checked.options["routed_scaling_factor"])
        layer.launch(Inputs(*of.values(), *options), layer.space(checked.letters["T"], arena, workspace), outs[0])


FUNCTION = Run(LAYER_CALL.name)
calls = FUNCTION.calls


def workspace_bytes(tokens: int, hidden: int, intermediate: int, local: int) -> int:
    """Elements of a workspace, uint8, for `run` on the current GPU with up to this many tokens.

    hidden, intermediate, local: the layer's H, I and E. ValueError if they are not as `run` says.
    """
    LAYER_CALL.require(T=tokens, H=hidden, I=intermediate, E=local)
    return layer_of(current_device(), Sizes(hidden, intermediate, local)).workspace_bytes(tokens)


class Space(NamedTuple):
    """Addresses, or the tensors, of what the kernels leave each other for up to `room` tokens and `total` rows."""

    room: int
    total: int  # room * 8: rows
    m_indptr: int  # int32 [E + 1]
    rows: int  # int32 [total]: the token of each row
    places: int  # int32 [room, 8]: the rows of each token, then -1
    weights: int  # f32 [room, 8]: of these rows
    counts: int  # int32 [CTAs, 32]
    c: int  # e4m3 [total, I]
    c_scale: int  # f32 [I/128, total]
    o: int  # bf16 [total, H]
    permuted: int  # e4m3 [total, H]: tokens in the order of `rows`; none if GEMM1 gathers them
    permuted_scale: int  # f32 [H/128, total]
    quantised: int  # e4m3 [room, H]: tokens that came in bf16; none if they came in e4m3; with block scales records
    quantised_scale: int  # f32 [H/128, room]
    barrier: int  # int32 [2], 0 at first
    polled: int  # int32: stream-K's partial sums of GEMM1, EMPTY at first, or
    partials: int  # those of configs that do not poll, and their
    flags: int  # int32 [CTAs, 3], 0 at first


def activation_of(gate_first: bool, limit: float | None, alpha: float, shift: float) -> Activation:
    """The activation that these options of a call, which have been checked, are."""
    return Activation(gate_first, None if limit is None else float(limit), float(alpha), float(shift))


@functools.cache
def routing_program(device: torch.device, f32_bias: bool) -> Program:
    """The routing kernel for a bias in f32 or bf16, compiled for this GPU."""
    return Program(routing.Routing(f32_bias), routing.WORDS, f"f32_bias={f32_bias}")


@functools.cache
def permute_program(device: torch.device, scaled: bool = True) -> Program:
    """The permute kernel for tokens with or without scales, compiled for this GPU."""
    return Program(permute.Permute(scaled), permute.WORDS, f"scaled={scaled}")


@functools.cache
def permute_quantised_program(device: torch.device) -> Program:
    """The permute kernel that quantises, compiled for this GPU."""
    return Program(permute.PermuteQuantised(), permute.WORDS, "")


@functools.cache
def finalise_program(device: torch.device, slots: int, others: bool = False) -> Program:
    """The finalise kernel for this many places of a token, of all tokens or of others than those with one row, compiled
    for this GPU.
    """
    return Program(finalise.Finalise(slots, others), finalise.WORDS, f"slots={slots} others={others}")


@functools.cache
def gemm1_program(device: torch.device, config: Config) -> Program:
    """GEMM1's kernel under this config, compiled for this GPU."""
    of_config = kernel(config)
    return Program(of_config, of_config.words, repr(config))


def room_of(tokens: int) -> int:
    """Tokens that scratch memory for this many has room for."""
    return max(LEAST_ROOM, 1 << (tokens - 1).bit_length())


class Layer:
    """The layer's kernels for these sizes on one GPU. Each stage is one launch, and can be called on its own.

    quantises: whether scratch memory has room for tokens that come in bf16 (ragged_moe.experts). channels: whether
    weights have a scale a row, f32 [E, 2I] and [E, H], instead of one for 128 x 128. scaled: whether the tokens that
    permute copies have scales. finalises_others: whether GEMM2 writes the output of tokens with one row.
    """

    scaled = True
    finalises_others = False

    def __init__(
        self, device: torch.device, sizes: Sizes, activation: Activation = Activation(), quantises: bool = False,
        channels: bool = False,
    ):  # fmt: skip
        self.torch_device, self.device, self.sizes = device, device_of(device), sizes
        self.activation, self.quantises, self.channels = activation, quantises, channels
        self.sms, self.tuning = self.device.sms, tuning(self.device.capability)
        self.configs = functools.lru_cache(maxsize=4096)(self.configs)
        self.offsets = functools.cache(self.workspace_offsets)
        self.workspace_bytes = functools.lru_cache(maxsize=4096)(self.workspace_bytes)

    def configs(self, tokens: int) -> tuple[Config, Config]:
        """The configs of GEMM1 and GEMM2, for the rows that evenly spread tokens give.

        GEMM2 knows its rows before GEMM1 has ended, so it prefetches as much as its ring holds, not two stages.
        """
        h, i, e = self.sizes.hidden, self.sizes.intermediate, self.sizes.local
        rows = self.rows(tokens)
        first, second = self.tuning.choose_gemm1(rows, e), self.tuning.choose_gemm(rows, e, h, i, routed=True)
        first = dataclasses.replace(first, activation=self.activation, channels=self.channels)
        return first, dataclasses.replace(second, prefetch=second.stages, channels=self.channels)

    def rows(self, tokens: int) -> int:
        """Rows that this many tokens give the local experts, if all experts have as many."""
        return -(-tokens * self.sizes.top_k * self.sizes.local // self.sizes.experts)

    def grid(self, config: Config) -> int:
        """CTAs of a GEMM that there is room for."""
        return self.sms // config.launch_cluster * config.launch_cluster

    def shared_parts(self, room: int) -> list[Part]:
        """The fields of a Space from m_indptr to quantised_scale: nothing of them is left for the next call."""
        h, i, e, slots = self.sizes.hidden, self.sizes.intermediate, self.sizes.local, self.sizes.slots
        total, quantised = room * self.sizes.top_k, room if self.quantises else 0
        permuted = total if any(config.permuted for config in self.gemm1_configs(room)) else 0
        return [
            Part("m_indptr", I32, (e + 1,)), Part("rows", I32, (total,)),
            Part("places", I32, (room, slots)), Part("weights", F32, (room, slots)),
            Part("counts", I32, (routing.MAX_CTAS, MAX_LOCAL)),
            Part("c", E4M3, (total, i)), Part("c_scale", F32, (i // 128, total)), Part("o", BF16, (total, h)),
            Part("permuted", E4M3, (permuted, h)), Part("permuted_scale", F32, (h // 128, permuted)),
            Part("quantised", E4M3, (quantised, h)), Part("quantised_scale", F32, (h // 128, quantised)),
        ]  # fmt: skip

    def kept_parts(self, room: int) -> list[Part]:
        """The fields of a Space from barrier on."""
        parts = {part.name: part for part in (partials(c, self.sms) for c in self.gemm1_configs(room))}
        none = Part("none", I32, (0,), kept=True)
        of_partials = parts.get("polled partials", none), parts.get("partials", none)
        return [Part("barrier", I32, (2,), 0, kept=True), *of_partials, flags(self.sms)]

    def gemm1_configs(self, room: int) -> list[Config]:
        """GEMM1's configs for as many tokens as use a Space of this room.

        Of a room that is twice the one before, its least and its most tokens have all: of two borders between configs
        the rows are further apart. The least room is for any number up to it.
        """
        every = range(1, room + 1) if room == LEAST_ROOM else (room // 2 + 1, room)
        return [self.configs(tokens)[0] for tokens in every]

    def space(self, tokens: int, arena: Arena | None = None, workspace: torch.Tensor | None = None) -> Space:
        """Scratch memory for this many tokens, of this arena, or of the next launch's; the most of it in `workspace`.

        Who launches while other threads do holds the arena's lock.
        """
        arena, room = arena or arena_of(self.torch_device, self.device), room_of(tokens)
        if workspace is None:
            return self.space_of(room, arena.take((self, room), lambda: self.parts(room)).addresses)
        kept = arena.take((self, room, "kept"), lambda: self.kept_parts(room)).addresses
        base = workspace.data_ptr()
        return self.space_of(room, (*(base + offset for offset in self.offsets(room)[:-1]), *kept))

    def tensors(self, tokens: int, arena: Arena | None = None) -> Space:
        """The tensors of `space`."""
        arena, room = arena or arena_of(self.torch_device, self.device), room_of(tokens)
        return self.space_of(room, arena.take((self, room), lambda: self.parts(room)).tensors)

    def parts(self, room: int) -> list[Part]:
        """The fields of a Space from m_indptr on."""
        return self.shared_parts(room) + self.kept_parts(room)

    def space_of(self, room: int, fields: tuple) -> Space:
        """A Space with these fields from m_indptr on."""
        return Space(room, room * self.sizes.top_k, *fields)

    def workspace_offsets(self, room: int) -> list[int]:
        """Where in a workspace each field from m_indptr to quantised_scale begins, and where the last one ends."""
        return offsets(self.shared_parts(room))

    def workspace_bytes(self, tokens: int) -> int:
        """Bytes of a workspace for up to this many tokens."""
        rooms = [1 << i for i in range(room_of(tokens).bit_length()) if 1 << i >= LEAST_ROOM]
        return max(self.offsets(room)[-1] for room in rooms)

    def __call__(self, x: Inputs, output: torch.Tensor, workspace: torch.Tensor | None = None) -> None:
        """The launches; none if there are no tokens. x, output and workspace must be as `checked` says."""
        self.check_current()
        tokens = x.hidden_states.shape[0]
        if tokens:
            arena = arena_of(self.torch_device, self.device)
            with arena.lock:
                self.launch(x, self.space(tokens, arena, workspace), output)

    def check_current(self) -> None:
        """ValueError unless launches go to the layer's GPU."""
        if not self.device.is_current():
            raise ValueError(f"hidden_states is on {self.torch_device}, but must be on torch's current device")

    def quantiser(self, tokens: int, on_input: bool) -> Quantise | None:
        """What assign rounds tokens by, if it does. on_input: to scales that are multiplied by the tokens' weights."""
        return Quantise(on_input) if self.quantises and (on_input or not self.quantises_rows(tokens)) else None

    def beside_quantised(self, _x: Inputs, space: Space) -> int:
        """The quantiser's third word: where the tokens' scales go."""
        return space.quantised_scale

    def quantises_rows(self, tokens: int) -> bool:
        """Whether tokens that come in bf16 are quantised where they are permuted, a token for each of its rows."""
        few = self.sizes.top_k * self.sizes.local <= QUANTISED_ROWS * self.sizes.experts
        return self.quantises and few and self.configs(tokens)[0].permuted

    def copies(self, tokens: int) -> bool:
        """Whether assign copies this many tokens to their rows, so that permute is not launched."""
        return self.configs(tokens)[0].copied

    def compile(self, tokens: int, quantises_rows: bool = False) -> None:
        """Compile what `multiply` launches for this many tokens."""
        first, second = self.configs(tokens)
        if quantises_rows:
            permute_quantised_program(self.torch_device)
        elif first.permuted and not first.copied:
            self.compile_permute()
        self.compile_gemm1(first)
        launcher(self.torch_device, second)

    def compile_permute(self) -> None:
        """Compile the kernel that brings tokens into the order of the experts."""
        permute_program(self.torch_device, self.scaled)

    def compile_gemm1(self, config: Config) -> None:
        """Compile GEMM1's kernel."""
        gemm1_program(self.torch_device, config)

    def stages(self, tokens: int) -> tuple[str, ...]:
        """List what is launched, in this order."""
        first, _ = self.configs(tokens)
        return "routing", *(("permute",) if first.permuted else ()), "GEMM1", "GEMM2", "finalise"

    def launch(self, x: Inputs, space: Space, output: torch.Tensor) -> None:
        """One stage after the other."""
        self.route(x, space)
        self.compute(x, space, output)

    def compute(self, x: Inputs, space: Space, output: torch.Tensor) -> None:
        """All stages behind the one that has written m_indptr, rows, places and weights."""
        self.multiply(x, space)
        self.finalise(space, output)

    def multiply(self, x: Inputs, space: Space) -> None:
        """From m_indptr and rows, and permuted if assign has copied, to o: permute, GEMM1, GEMM2."""
        first, second = self.configs(x.hidden_states.shape[0])
        if first.permuted and not first.copied:
            self.permute(x, space)
        self.gemm1(x, space, first)
        self.gemm2(x, space, second)

    def route(self, x: Inputs, space: Space) -> None:
        """To m_indptr, rows, places, weights."""
        tokens, i, e = x.hidden_states.shape[0], self.sizes.intermediate, self.sizes.local
        grid, chunk = routing.grid_of(tokens, self.sms)
        tensors = (
            x.routing_logits.data_ptr(), x.routing_bias.data_ptr(), space.m_indptr, space.rows, space.places,
            space.weights, space.counts, space.barrier, x.gemm1_weights.data_ptr(),
        )  # fmt: skip
        sizes = tokens, e, x.local_expert_offset, chunk, grid, float_bits(x.routed_scaling_factor)
        config, _ = self.configs(tokens)
        mean = tokens * self.sizes.top_k // self.sizes.experts  # rows of an expert
        early = self.grid(config) if LEAST_ROWS <= mean <= MOST_ROWS else 0
        of_gemm1 = 2 * i, self.sizes.hidden, early, config.cluster, bool(config.data_parallel)
        program = routing_program(self.torch_device, x.routing_bias.dtype is F32)
        program(*tensors, *sizes, *of_gemm1, self.device.stream())

    def permute(self, x: Inputs, space: Space) -> None:
        """From m_indptr and rows to permuted, permuted_scale. Tokens without scales are bf16, and quantised here."""
        if x.hidden_states_scale is None:
            program, scale = permute_quantised_program(self.torch_device), 0
        else:
            program, scale = permute_program(self.torch_device, self.scaled), x.hidden_states_scale.data_ptr()
        hidden = x.hidden_states.data_ptr(), scale
        tensors = *hidden, space.m_indptr, space.rows, space.permuted, space.permuted_scale
        grid = permute.grid_of(space.total, self.sms)
        sizes = x.hidden_states.shape[0], self.sizes.hidden, space.total, self.sizes.local, grid
        program(*tensors, *sizes, self.device.stream())

    def gemm1(self, x: Inputs, space: Space, config: Config) -> None:
        """From m_indptr and rows, or what permute left, to c, c_scale."""
        h, i, e = self.sizes.hidden, self.sizes.intermediate, self.sizes.local
        tokens = space.permuted, space.permuted_scale
        if not config.permuted:
            tokens = x.hidden_states.data_ptr(), x.hidden_states_scale.data_ptr()
        tensors = (
            *tokens, x.gemm1_weights.data_ptr(), x.gemm1_weights_scale.data_ptr(), space.m_indptr, space.rows,
            space.c, space.c_scale, space.polled if config.polled_partials else space.partials, space.flags,
        )  # fmt: skip
        sizes = space.total, 2 * i, h, e, search_step(e), self.grid(config), x.hidden_states.shape[0]
        gemm1_program(self.torch_device, config)(*tensors, *sizes, self.device.stream())

    def gemm2(self, x: Inputs, space: Space, config: Config) -> None:
        """From m_indptr, c and c_scale to o."""
        weights, sizes = (x.gemm2_weights.data_ptr(), x.gemm2_weights_scale.data_ptr()), self.sizes
        operands = space.c, space.c_scale, *weights, space.m_indptr, space.o
        made = launcher(self.torch_device, config)
        words = made.words(self.grid(config), space.total, sizes.hidden, sizes.intermediate, sizes.local)
        made.launch(operands, words)

    def finalise(self, space: Space, output: torch.Tensor) -> None:
        """From o, places and weights to output."""
        tensors = space.o, space.places, space.weights, output.data_ptr()
        program = finalise_program(self.torch_device, self.sizes.slots, self.finalises_others)
        program(*tensors, *output.shape, self.device.stream())


layer_of = functools.lru_cache(maxsize=16)(Layer)


@functools.lru_cache(maxsize=64)
def limited(layer: Layer, sms: int) -> Layer:
    """The layer with GEMMs on this many SMs at most; others are for other work, such as communication."""
    made = copy.copy(layer)
    made.sms = min(layer.sms, sms)
    return made
