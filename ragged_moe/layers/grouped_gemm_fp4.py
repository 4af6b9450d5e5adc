"""`grouped_gemm_nvfp4`: the operands' checks, and the launches of the kernels for weights in e2m1."""

import functools
from collections.abc import Sequence

import torch

from ragged_moe.kernels import quantise_blocks, quantise_tokens
from ragged_moe.kernels.block_scaled import W4A4, W4A8, BlockScaled
from ragged_moe.kernels.config import Config
from ragged_moe.kernels.program import Program, float_bits
from ragged_moe.layers.grouped_gemm_fp8 import Launcher, Plan
from ragged_moe.layers.pack_weights import is_packed, kind_of
from ragged_moe.layers.signatures import BLACKWELL, GEMM_FORMS, HOPPER, TILE, U8, packing
from ragged_moe.runtime.device import device_of
from ragged_moe.runtime.dispatch import require_no_tracer
from ragged_moe.runtime.gradients import learns, refusing
from ragged_moe.runtime.operands import addresses, complain, contiguous
from ragged_moe.runtime.sizes import BF16, E4M3, F32, I32
from ragged_moe.runtime.workspace import Part, arena_of
from ragged_moe.tuning import sm90, sm100

QUANTISING_CTAS = 4  # of an SM
ONE = Part("scale of one", I32, (1,), float_bits(1), kept=True)


def grouped_gemm_nvfp4(
    a: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_global: torch.Tensor,
    m_indptr: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    input_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[r] = a[r] . (b[e] * b_scale[e]) * b_global[e], for the rows r of every expert e.

    a [total_M, K] bf16, on Hopper also fp16; b, b_scale and b_global [E] f32 are weights [E, N, K] that pack_nvfp4 or
    pack_mxfp4 has packed for this GPU; m_indptr [E+1] int32, out [total_M, N] bf16; all contiguous and on
    the current GPU, a, b, b_scale and out from a multiple of 16 bytes on, with MXFP4 on Blackwell of 32. m_indptr
    is what it is for grouped_gemm_fp8. N and K are multiples of 64, NVFP4's N on Blackwell of 128 in W4A4; E is at most
    512.
    Hopper, and Blackwell with what was packed with activation="bf16" (W4A16): a is not rounded. A weight times its
    scale is exact; the tensor core adds the products in f32; the sum is multiplied by b_global and rounded to bf16. One
    kernel.
    Hopper, MXFP4 that was packed with activation="fp8" (W4A8): a is bf16, and rounded to e4m3 first, with one f32 scale
    a token, as ragged_moe.reference.quantise_tokens says: some 2.6 % of its norm. The tensor core's sums of each 128 of
    K, which keep 14 bits, are added in f32; the sum is multiplied by the token's scale, then by b_global, which has one
    of each weight row, [E, N], and rounded to bf16. Two kernels.
    Blackwell, NVFP4 (W4A4): a is rounded to NVFP4 first, e2m1 with an e4m3 scale for 16 of K and input_scale, as
    ragged_moe.reference.quantise_fp4 says: some 10 % of its norm. The tensor core multiplies by both scales and adds in
    f32; the sum is multiplied by b_global * input_scale and rounded to bf16. Two kernels.
    Blackwell, MXFP4 (W4A8): a is rounded to MXFP8 first, e4m3 with an e8m0 scale for 32 of K, as
    ragged_moe.reference.quantise_mxfp8 says: some 2.6 % of its norm. Else the same; the sum is multiplied by b_global.
    input_scale: f32 of one element, positive, the checkpoint's of activations: what of a is beyond 2688 times that
    saturates, what is below 2^-8 times that becomes 0. 1 if not given. W4A16 and W4A8 have no use for it.
    On torch's current stream. Writes and returns out, or a new tensor. No gradients: backward says so, and out is
    refused. ValueError if an operand is not so, or the GPU is neither: then nothing is compiled, launched or written.
    """
    if not (isinstance(a, torch.Tensor) and a.dim() == 2 and is_packed(b)):
        raise ValueError("a must be a tensor [total_M, K], and b one that pack_nvfp4 or pack_mxfp4 has packed")
    operands = a, b, b_scale, b_global, m_indptr, out
    if learns(*operands, input_scale):
        call = functools.partial(grouped_gemm_nvfp4, *operands, input_scale=input_scale)
        return refusing("ragged_moe.grouped_gemm_nvfp4", call, (*operands, input_scale), out)
    require_no_tracer("ragged_moe.grouped_gemm_nvfp4")
    kind = kind_of(b, b_scale)
    call = plan(a.shape, b.shape, a.dtype, a.device, *kind)
    of_all = kind == (False, None)  # W4A4
    scale = (input_scale_of(input_scale, a),) if of_all or input_scale is not None else ()
    if out is None:
        out = call.make()
    call((a, b_global, b, b_scale, m_indptr, out), *(x.data_ptr() for x in scale))
    return out


def input_scale_of(input_scale: torch.Tensor | None, a: torch.Tensor) -> torch.Tensor:
    """The scale of all of a's numbers; 1 if none is given. ValueError if it is something else."""
    if input_scale is None:
        return scale_of_one(a.device)
    known = isinstance(input_scale, torch.Tensor) and input_scale.dim() == 0
    expected = (contiguous("input_scale", F32, *(() if known else (1,))),)
    complain((input_scale,), expected, (a, "a"))
    addresses(device_of(a.device, "a"), (input_scale,), expected, ())
    return input_scale


def scale_of_one(device: torch.device) -> torch.Tensor:
    """An f32 that is 1, in the next launches' scratch memory: filled before them, in a graph by each replay."""
    arena = arena_of(device, device_of(device))
    with arena.lock:
        return arena.take(ONE, lambda: [ONE]).tensors[0].view(F32)


def require_packed_for(b: torch.Size, capability: tuple[int, int], name: str = "b") -> None:
    """ValueError unless the kernels of this GPU read weights of b's dimensions."""
    if capability not in (HOPPER, BLACKWELL):
        raise ValueError(f"a is on a GPU of compute capability {capability}, but must be on one of {HOPPER} or "
                         f"{BLACKWELL}")  # fmt: skip
    if capability == HOPPER and len(b) == 3:
        is_ = f"not packed, or for one of {BLACKWELL}"
        raise ValueError(f"{name} is {is_}, but must be packed for this GPU, of compute capability {capability}")


@functools.lru_cache(maxsize=4096)
def plan(
    of_a: torch.Size, of_b: torch.Size, dtype: torch.dtype, device: torch.device, mxfp4: bool = False,
    activation: str | None = None,
) -> Plan:  # fmt: skip
    """The call for these shapes of a and b, and this type of a; ValueError if the kernel does not do them. mxfp4,
    activation: what `kind_of` says of b.
    """
    capability = device_of(device, "a").capability
    require_packed_for(of_b, capability)
    signature = GEMM_FORMS[packing(capability, mxfp4, activation)]
    signature.check_dtype("a", dtype)
    sizes = of_a[0], TILE * of_b[1] if activation else of_b[1], of_a[1], of_b[0]
    if activation == "fp8":
        return ByE4m3Plan(signature, sizes, dtype, device, lambda _, *of: sm90.choose_fp4_by_e4m3(*of[:3]))
    if activation:
        return Plan(signature, sizes, dtype, device, functools.partial(choose, dtype))
    of_form = functools.partial(choose_block_scaled, W4A8 if mxfp4 else W4A4)
    return BlockScaledPlan(signature, sizes, dtype, device, of_form)


def choose(dtype: torch.dtype, capability: tuple[int, int], *sizes: int) -> Config:
    """The config for tokens of this type, which stay what they are, and these sizes."""
    if capability == BLACKWELL:
        return sm100.choose_fp4_bf16(*sizes[:2])
    return sm90.choose_fp4(*sizes, "bf16" if dtype is BF16 else "f16")


def choose_block_scaled(form: BlockScaled, _: tuple[int, int], *sizes: int) -> Config:
    """Blackwell's config in this format for these sizes."""
    return sm100.choose_fp4(form, *sizes)


class ByE4m3Plan(Plan):
    """A call on Hopper with tokens in e4m3: a is quantised, to scratch memory, then multiplied."""

    def launch(self, found: Sequence[int]) -> None:
        """Launch with the operands at these addresses."""
        launch_by_e4m3(self.launcher, found[: len(self.expected)], self.words)


def launch_by_e4m3(gemm: Launcher, addresses: Sequence[int], words: tuple[int, ...]) -> None:
    """Quantise a and launch the kernel. addresses: the operands' in the order of the signature. words: what gemm.words
    gave for their sizes.
    """
    (a, *others), (total_m, _, k, *_) = addresses, words
    device, room = gemm.torch_device, 1 << (total_m - 1).bit_length()
    arena = arena_of(device, gemm.device)
    with arena.lock:
        values, scales = arena.take(("e4m3 tokens", room, k), lambda: token_parts(room, k)).addresses
        launch_quantiser(gemm, a, values, scales, total_m, k)
        gemm.launch((values, *others), (*words, scales))


def launch_quantiser(gemm: Launcher, a: int, values: int, scales: int, total_m: int, k: int) -> None:
    """Quantise a bf16 [total_m, k] to values e4m3 [total_m, k] and scales f32 [total_m]; of each, its address."""
    grid, stream = quantise_tokens.grid_of(total_m, gemm.device.sms, k), gemm.device.stream()
    token_program(gemm.torch_device, k)(a, 0, 0, values, scales, total_m, k, 0, grid, stream)


def token_parts(rows: int, k: int) -> list[Part]:
    """Scratch memory for this many tokens of k columns in e4m3, and for their scales."""
    return [Part("tokens", E4M3, (rows, k)), Part("token scales", F32, (rows,))]


@functools.cache
def token_program(device: torch.device, k: int, counted: bool = False, gathered: bool = False) -> Program:
    """The kernel that quantises tokens of k columns to e4m3, compiled for this GPU."""
    made = quantise_tokens.QuantiseTokens(counted, gathered, quantise_tokens.warps_of(k))
    return Program(made, quantise_tokens.WORDS, repr(made))


class BlockScaledPlan(Plan):
    """A call on Blackwell: a is quantised, to scratch memory, then multiplied."""

    def launch(self, found: Sequence[int]) -> None:
        """Launch with the operands at these addresses, and a's input_scale, if there is one, at the last one."""
        launch_block_scaled(self.launcher, found, self.words)


def launch_block_scaled(gemm: Launcher, addresses: Sequence[int], words: tuple[int, ...]) -> None:
    """Quantise a and launch the kernel. addresses: the operands' in the order of the signature, then input_scale's, if
    the format has one, as else it has no use. words: what gemm.words gave for their sizes.
    """
    form, (total_m, _, k, *_) = gemm.config.block_scaled, words
    (a, *others), of_all = addresses[:6], addresses[6:] if form.of_all else ()
    device, room = gemm.torch_device, 1 << (total_m - 1).bit_length()
    arena = arena_of(device, gemm.device)
    with arena.lock:
        (records,) = arena.take((form.name, room, k), lambda: [records_part(form, room, k)]).addresses
        grid = min(total_m, QUANTISING_CTAS * gemm.device.sms)
        scale = of_all[0] if of_all else 0
        quantise_program(device, form)(a, records, scale, total_m, k, grid, gemm.device.stream())
        gemm.launch((records, *others), (*words, *of_all))


def records_part(form: BlockScaled, rows: int, k: int, name: str = "records") -> Part:
    """Scratch memory for this many rows of k columns in this format."""
    return Part(name, U8, (rows, form.record_bytes(k)))


@functools.cache
def quantise_program(device: torch.device, form: BlockScaled) -> Program:
    """The kernel that quantises tokens to this format, compiled for this GPU."""
    return Program(quantise_blocks.QuantiseBlocks(form), quantise_blocks.WORDS, f"form={form}")
