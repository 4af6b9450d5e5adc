"""The layer's launches with NVFP4 or MXFP4 weights, which stay 4.5 bits in memory.

`Fp4Layer`. Nothing is quantised: tokens and c are bf16, as what the tensor core reads the weights as.

    m_indptr, rows, hidden bf16 ─► permute ─► GEMM1, SwiGLU ─► c bf16 ─► GEMM2 ─► o ─► finalise

Few tokens assign brings into the order of the experts, in the launch that lists the rows, and permute is left out.

`ByE4m3Layer`, on Hopper with MXFP4 weights that are packed for it. Tokens are rounded to e4m3 with a scale each where
they are permuted, c in a launch of its own, as a row's scale is known when all of its tiles are.

    m_indptr, rows, hidden bf16 ─► quantise ─► GEMM1, SwiGLU ─► c bf16 ─► quantise ─► GEMM2 ─► o ─► finalise

`BlockScaledLayer`, on Blackwell. Tokens are rounded to NVFP4, or to MXFP8 if weights are MXFP4, by assign, which lists
rows meanwhile; GEMM1 gathers them; c is rounded where it is made.

    m_indptr, rows, records ─► GEMM1, SwiGLU ─► c, records ─► GEMM2 ─┬─► o ─► finalise ─► output
                                                                    └─► output of tokens with one row
"""

import dataclasses
import functools

import torch

from ragged_moe.kernels import assign, permute, quantise_tokens
from ragged_moe.kernels.block_scaled import W4A4, W4A8, BlockScaled
from ragged_moe.kernels.config import Activation, Config
from ragged_moe.kernels.quantise_blocks import QuantiseBlocks
from ragged_moe.layers.deepseek_layer import Layer, Space, permute_program
from ragged_moe.layers.grouped_gemm_fp4 import records_part, token_program
from ragged_moe.layers.grouped_gemm_fp8 import launcher
from ragged_moe.layers.signatures import BLACKWELL, packing
from ragged_moe.runtime.device import device_of
from ragged_moe.runtime.sizes import BF16, E4M3, F32, I32, Inputs, Sizes
from ragged_moe.runtime.workspace import Part
from ragged_moe.tuning import sm90, sm100

COPIED_ENTRIES = 512  # of topk_ids, as many CTAs of assign


@dataclasses.dataclass
class Fp4Inputs(Inputs):
    """Inputs with packed weights: gemm1_weights and gemm2_weights, and their scales, as ragged_moe.layers.pack_weights
    packs them."""

    # f32 [E], or [E, 2]: of the first half of the rows and of the second. Of tokens in e4m3 f32 [E, 2I], of each row
    gemm1_global: torch.Tensor | None = None
    gemm2_global: torch.Tensor | None = None  # f32 [E]; or [E, H]
    gemm1_bias: torch.Tensor | None = None  # f32 [E, 2I], if the layer is biased
    gemm2_bias: torch.Tensor | None = None  # f32 [E, H]
    gemm1_input_scale: torch.Tensor | None = None  # f32 [1], of hidden_states: of Blackwell's layer in W4A4
    gemm2_input_scale: torch.Tensor | None = None  # f32 [1], of what GEMM2 takes


class Fp4Layer(Layer):
    """W4A16: the layer's kernels for these sizes on one GPU.

    hidden_states are bf16. biased: whether both GEMMs add a bias.
    """

    scaled = False

    def __init__(self, device: torch.device, sizes: Sizes, activation: Activation, biased: bool = False):
        super().__init__(device, sizes, activation)
        self.biased = biased

    def configs(self, tokens: int) -> tuple[Config, Config]:
        """The configs of GEMM1 and GEMM2, for the rows that evenly spread tokens give."""
        h, i, e = self.sizes.hidden, self.sizes.intermediate, self.sizes.local
        rows = self.rows(tokens)
        if self.device.capability == BLACKWELL:
            first, second = sm100.choose_fp4_bf16(rows, e, gated=True), sm100.choose_fp4_bf16(rows, e)
        else:
            first, second = sm90.choose_fp4_gemm1(rows, e, 2 * i), sm90.choose_fp4(rows, e, h, i, "bf16", routed=True)
        first = dataclasses.replace(first, activation=self.activation, bias=self.biased)
        first = dataclasses.replace(first, copied=tokens * self.sizes.top_k <= COPIED_ENTRIES)
        return first, dataclasses.replace(second, prefetch=second.stages, bias=self.biased)

    def shared_parts(self, room: int) -> list[Part]:
        """The fields of a Space from m_indptr to quantised_scale; those of what is not quantised are empty."""
        h, i, e, slots = self.sizes.hidden, self.sizes.intermediate, self.sizes.local, self.sizes.slots
        total = room * self.sizes.top_k
        return [
            Part("m_indptr", I32, (e + 1,)), Part("rows", I32, (total,)),
            Part("places", I32, (room, slots)), Part("weights", F32, (room, slots)), Part("counts", I32, (0,)),
            Part("c", BF16, (total, i)), Part("c_scale", F32, (0,)), Part("o", BF16, (total, h)),
            Part("permuted", BF16, (total, h)), Part("permuted_scale", F32, (0,)),
            Part("quantised", BF16, (0,)), Part("quantised_scale", F32, (0,)),
        ]  # fmt: skip

    def compile_gemm1(self, config: Config) -> None:
        """Compile GEMM1's kernel."""
        launcher(self.torch_device, config)

    def permute(self, x: Fp4Inputs, space: Space) -> None:
        """From m_indptr and rows to permuted."""
        tensors = x.hidden_states.data_ptr(), 0, space.m_indptr, space.rows, space.permuted, 0
        grid = permute.grid_of(space.total, self.sms)
        sizes = x.hidden_states.shape[0], 2 * self.sizes.hidden, space.total, self.sizes.local, grid
        permute_program(self.torch_device, self.scaled)(*tensors, *sizes, self.device.stream())

    def gemm1(self, x: Fp4Inputs, space: Space, config: Config) -> None:
        """From m_indptr and permuted to c."""
        more = x.gemm1_global.numel() // self.sizes.local, *address(x.gemm1_bias)
        self.launch_gemm1(x, space.permuted, space, config, more)

    def launch_gemm1(self, x: Fp4Inputs, tokens: int, space: Space, config: Config, more: tuple[int, ...]) -> None:
        """Launch GEMM1. tokens: their address. more: its kernel's words behind the sizes'."""
        weights = x.gemm1_global.data_ptr(), x.gemm1_weights.data_ptr(), x.gemm1_weights_scale.data_ptr()
        shape = 2 * self.sizes.intermediate, self.sizes.hidden
        self.launch_gemm(config, space, (tokens, *weights, space.c), shape, x.hidden_states.shape[0], more)

    def gemm2(self, x: Fp4Inputs, space: Space, config: Config) -> None:
        """From m_indptr and c to o."""
        self.launch_gemm2(x, space.c, space, config, address(x.gemm2_bias))

    def launch_gemm2(self, x: Fp4Inputs, c: int, space: Space, config: Config, more: tuple[int, ...]) -> None:
        """Launch GEMM2. c: its address. more: its kernel's words behind the sizes'."""
        weights = x.gemm2_global.data_ptr(), x.gemm2_weights.data_ptr(), x.gemm2_weights_scale.data_ptr()
        shape = self.sizes.hidden, self.sizes.intermediate
        self.launch_gemm(config, space, (c, *weights, space.o), shape, x.hidden_states.shape[0], more)

    def launch_gemm(
        self, config: Config, space: Space, operands: tuple[int, ...], shape: tuple[int, int], tokens: int,
        more: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Launch one. operands: addresses as its kernel's words have them, but m_indptr's. shape: N, K."""
        made, (*read, out) = launcher(self.torch_device, config), operands
        words = made.words(self.grid(config), space.total, *shape, self.sizes.local, self.rows(tokens))
        made.launch((*read, space.m_indptr, out), (*words, *more))


class ByE4m3Layer(Fp4Layer):
    """W4A8: the layer's kernels for these sizes on one Hopper GPU, with tokens that are rounded to e4m3."""

    def configs(self, tokens: int) -> tuple[Config, Config]:
        """The configs of GEMM1 and GEMM2, for the rows that evenly spread tokens give."""
        rows, e = self.rows(tokens), self.sizes.local
        first = sm90.choose_fp4_by_e4m3_gemm1(rows, e)
        second = sm90.choose_fp4_by_e4m3(rows, e, self.sizes.hidden)
        return (
            dataclasses.replace(first, activation=self.activation, bias=self.biased),
            dataclasses.replace(second, prefetch=second.stages, bias=self.biased),
        )

    def shared_parts(self, room: int) -> list[Part]:
        """The same fields; permuted is e4m3, and quantised is c in e4m3, of which c_scale are the scales."""
        h, i, total = self.sizes.hidden, self.sizes.intermediate, room * self.sizes.top_k
        own = [
            Part("permuted", E4M3, (total, h)), Part("permuted_scale", F32, (total,)),
            Part("quantised", E4M3, (total, i)), Part("c_scale", F32, (total,)),
        ]  # fmt: skip
        own = {part.name: part for part in own}
        return [own.get(part.name, part) for part in super().shared_parts(room)]

    def compile_permute(self) -> None:
        """Compile the kernels that quantise."""
        for k, gathered in ((self.sizes.hidden, True), (self.sizes.intermediate, False)):
            token_program(self.torch_device, k, True, gathered)

    def permute(self, x: Fp4Inputs, space: Space) -> None:
        """From m_indptr and rows to permuted, permuted_scale."""
        to = space.permuted, space.permuted_scale
        self.quantise(x.hidden_states.data_ptr(), space.rows, *to, space, self.sizes.hidden)

    def quantise(self, x: int, rows: int, values: int, scales: int, space: Space, k: int) -> None:
        """Quantise x bf16 [.., k]: its rows of these numbers, or, if there are none, its first ones."""
        grid, stream = quantise_tokens.grid_of(space.total, self.sms, k), self.device.stream()
        sizes = space.total, k, self.sizes.local, grid
        token_program(self.torch_device, k, True, rows != 0)(x, space.m_indptr, rows, values, scales, *sizes, stream)

    def gemm1(self, x: Fp4Inputs, space: Space, config: Config) -> None:
        """From m_indptr and permuted to c."""
        self.launch_gemm1(x, space.permuted, space, config, (space.permuted_scale, *address(x.gemm1_bias)))

    def gemm2(self, x: Fp4Inputs, space: Space, config: Config) -> None:
        """From m_indptr and c to o."""
        self.quantise(space.c, 0, space.quantised, space.c_scale, space, self.sizes.intermediate)
        self.launch_gemm2(x, space.quantised, space, config, (space.c_scale, *address(x.gemm2_bias)))


class BlockScaledLayer(Fp4Layer):
    """The layer's kernels for these sizes on one Blackwell GPU, in a format that says how tokens are rounded."""

    finalises_others = True

    def __init__(self, device: torch.device, sizes: Sizes, activation: Activation, form: BlockScaled, biased: bool):
        super().__init__(device, sizes, activation, biased)
        self.form, self.quantises = form, True
        assert form.biased or not biased

    def configs(self, tokens: int) -> tuple[Config, Config]:
        """The configs of GEMM1 and GEMM2, for the rows that evenly spread tokens give."""
        h, i, e = self.sizes.hidden, self.sizes.intermediate, self.sizes.local
        rows = self.rows(tokens)
        second = sm100.choose_fp4(self.form, rows, e, h, i)
        first = dataclasses.replace(sm100.FP4_GEMM1[self.form], activation=self.activation, bias=self.biased)
        of_tokens = {"bias": self.biased, "slots": self.sizes.slots}
        return first, dataclasses.replace(second, prefetch=second.stages, **of_tokens)

    def shared_parts(self, room: int) -> list[Part]:
        """The same fields; quantised and c are records (ragged_moe/kernels/block_scaled.py), and nothing is
        permuted."""
        h, i, total = self.sizes.hidden, self.sizes.intermediate, room * self.sizes.top_k
        records = ("quantised", room, h), ("c", total, i)
        own = {name: records_part(self.form, rows, k, name) for name, rows, k in records}
        own["permuted"] = Part("permuted", BF16, (0,))
        return [own.get(part.name, part) for part in super().shared_parts(room)]

    def quantiser(self, _tokens: int, _on_input: bool) -> QuantiseBlocks:
        """What assign rounds tokens by, on what its lists leave of the GPU: `limited` is of GEMMs."""
        lists, _ = assign.grid_of(self.sizes.local)
        return QuantiseBlocks(self.form, max(1, QuantiseBlocks.of_sm * self.device.sms - lists))

    def beside_quantised(self, x: Fp4Inputs, _space: Space) -> int:
        """The quantiser's third word: the address of the scale of all tokens, if the format has one."""
        return x.gemm1_input_scale.data_ptr() if self.form.of_all else 0

    def gemm1(self, x: Fp4Inputs, space: Space, config: Config) -> None:
        """From m_indptr, rows and quantised to c."""
        scales = *address(x.gemm1_input_scale), *address(x.gemm2_input_scale)
        of_expert = x.gemm1_global.numel() // self.sizes.local
        self.launch_gemm1(x, space.quantised, space, config, (*scales, of_expert, space.rows, *address(x.gemm1_bias)))

    def compute(self, x: Fp4Inputs, space: Space, output: torch.Tensor) -> None:
        """All stages behind assign: GEMM2 writes the output of tokens with one row, finalise that of the others."""
        first, second = self.configs(x.hidden_states.shape[0])
        self.gemm1(x, space, first)
        of_tokens = space.rows, space.places, space.weights, output.data_ptr()
        more = *address(x.gemm2_input_scale), *of_tokens, *address(x.gemm2_bias)
        self.launch_gemm2(x, space.c, space, second, more)
        self.finalise(space, output)


def address(operand: torch.Tensor | None) -> tuple[int, ...]:
    """The kernel's word for an operand: none if there is none."""
    return () if operand is None else (operand.data_ptr(),)


@functools.lru_cache(maxsize=16)
def fp4_layer_of(
    device: torch.device, sizes: Sizes, activation: Activation, biased: bool = False, mxfp4: bool = False,
    how: str | None = None,
) -> Layer:  # fmt: skip
    """The layer of this GPU. mxfp4: weights are MXFP4, which layers of W4A16 do not tell from NVFP4. how: `activation`
    of what packed them.
    """
    name = packing(device_of(device).capability, mxfp4, how)
    if name.endswith("for Blackwell"):
        return BlockScaledLayer(device, sizes, activation, W4A8 if mxfp4 else W4A4, biased)
    return (ByE4m3Layer if how == "fp8" else Fp4Layer)(device, sizes, activation, biased)
