"""`grouped_gemm_nvfp4`: the operands' checks, and the launches of the kernels for weights in e2m1."""

import functools
from collections.abc import Sequence

import torch

from ragged_moe.kernels import quantise_blocks, quantise_tokens
from ragged_moe.kernels.block_scaled import W4A4, W4A8, BlockScaled
from ragged_moe.kernels.config import MAX_EXPERTS, Config
from ragged_moe.kernels.program import Program
from ragged_moe.layers.grouped_gemm_fp8 import Launcher, Plan
from ragged_moe.layers.pack_weights import (
    ATOM,
    ATOM_ROWS,
    BLACKWELL,
    HOPPER,
    MX_K,
    TILE,
    is_for_e4m3,
    is_mxfp4,
    packed_for,
    rounded_up,
)
from ragged_moe.runtime.device import device_of
from ragged_moe.runtime.operands import MAX_ROWS, Operand, addresses, complain, contiguous, require
from ragged_moe.runtime.sizes import BF16, E4M3, F32, I32
from ragged_moe.runtime.workspace import Part, arena_of
from ragged_moe.tuning import sm90, sm100

F16, U8 = torch.float16, torch.uint8
ALIGNED = 0, 2, 3, 5  # which of the operands are read or written by 16 bytes
QUANTISING_CTAS = 4  # of an SM
TMA_FP4_BYTES = 32  # at a multiple of which a tensor begins whose FP4 numbers a TMA gives a byte's room each


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
    is what it is for grouped_gemm_fp8. N and K are multiples of 64, NVFP4's N on Blackwell of 128; E is at most 512.
    Hopper (W4A16): a is not rounded. A weight times its scale is exact; the tensor core adds the products in f32; the
    sum is multiplied by b_global and rounded to bf16. One kernel.
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
    saturates, what is below 2^-8 times that becomes 0. 1 if not given. Hopper and W4A8 have no use for it.
    On torch's current stream. Writes and returns out, or a new tensor. ValueError if an operand is not so, or the GPU
    is neither: then nothing is compiled, launched or written.
    """
    if not (isinstance(a, torch.Tensor) and a.dim() == 2 and packed_for(b)):
        raise ValueError("a must be a tensor [total_M, K], and b one that pack_nvfp4 or pack_mxfp4 has packed")
    call = plan(a.shape, b.shape, a.dtype, a.device, is_mxfp4(b_scale), is_for_e4m3(b_scale))
    of_all = call.gpu.capability == BLACKWELL and not is_mxfp4(b_scale)
    scale = (input_scale_of(input_scale, a),) if of_all or input_scale is not None else ()
    if out is None:
        (out,) = call.gpu.tensors(torch.empty(call.out_shape, dtype=BF16, device=a.device))
    call((a, b_global, b, b_scale, m_indptr, out), *(x.data_ptr() for x in scale))
    return out


def input_scale_of(input_scale: torch.Tensor | None, a: torch.Tensor) -> torch.Tensor:
    """The scale of all of a's numbers; 1 if none is given. ValueError if it is something else."""
    if input_scale is None:
        return one(a.device)
    expected = (input_scale_operand(input_scale, "input_scale"),)
    complain((input_scale,), expected, (a, "a"))
    addresses(device_of(a.device, "a"), (input_scale,), expected, ())
    return input_scale


def input_scale_operand(input_scale: torch.Tensor, name: str) -> Operand:
    """Say what it must be: f32 of one element, of no dimension or one."""
    known = isinstance(input_scale, torch.Tensor) and input_scale.dim() == 0
    return contiguous(name, F32, *(() if known else (1,)))


@functools.cache
def one(device: torch.device) -> torch.Tensor:
    """An f32 that is 1, on this GPU."""
    return device_of(device).tensors(torch.ones(1, dtype=F32, device=device))[0]


def require_sizes(total_m: int, n: int, k: int, experts: int, step: int = TILE) -> None:
    """ValueError unless a kernel does these sizes. step: what N is a multiple of."""
    for name, operand, x, multiple, least, most in (
        ("total_M", "a", total_m, 1, 0, MAX_ROWS),
        ("N", "b", n, step, step, MAX_ROWS),
        ("K", "a", k, TILE, TILE, MAX_ROWS),
        ("E", "b", experts, 1, 1, MAX_EXPERTS),
    ):
        require(operand, name, x, multiple, least, most)
    if (-(-total_m // 16) + experts) * -(-n // 128) * -(-k // 128) >= 2**31:
        raise ValueError(f"a: total_M = {total_m} with N = {n} and K = {k} is more than one launch can count")


def expectations(
    total_m: int, n: int, k: int, experts: int, dtype: torch.dtype, of_b: tuple[Operand, Operand], of_rows: bool = False
) -> tuple[Operand, ...]:
    """Say what each operand must be, in the order of the kernel's words. of_b: what b and b_scale must be. of_rows:
    whether b_global has one of each weight row.
    """
    return (
        contiguous("a", dtype, total_m, k),
        contiguous("b_global", F32, experts, *((n,) if of_rows else ())),
        *of_b,
        contiguous("m_indptr", I32, experts + 1),
        contiguous("out", BF16, total_m, n),
    )


def packed_operands(
    experts: int, n: int, k: int, capability: tuple[int, int], b: str = "b", b_scale: str = "b_scale",
    mxfp4: bool = False, halves: int = 1, e4m3: bool = False,
) -> tuple[Operand, Operand]:  # fmt: skip
    """What weights [experts, n, k] and their scales, of these names, must be if they are packed for this GPU.

    mxfp4: they are MXFP4's, not NVFP4's, which on Hopper are packed alike. halves: of n, as of pack_mxfp4. e4m3: on
    Hopper for tokens in e4m3.
    """
    if capability == BLACKWELL and mxfp4:
        columns, atoms = rounded_up(k, MX_K), halves * rounded_up(n // halves, ATOM_ROWS) // ATOM_ROWS
        of_scales = contiguous(b_scale, U8, experts, atoms, columns // MX_K, 32, 16)
        return contiguous(b, U8, experts, n, columns // 2), of_scales
    if capability == BLACKWELL:
        atoms = experts, n // ATOM_ROWS, k // TILE, ATOM
        return contiguous(b, U8, experts, n, k // 2), contiguous(b_scale, U8, *atoms)
    tiles = experts, n // TILE, k // TILE
    return contiguous(b, U8, *tiles, 2048), contiguous(b_scale, U8, *tiles, 128 if e4m3 else 256)


def require_packed_for(b: torch.Size, capability: tuple[int, int], name: str = "b") -> None:
    """ValueError unless the kernels of this GPU read weights of b's dimensions."""
    reads = {3: BLACKWELL, 4: HOPPER}[len(b)]
    if capability not in (HOPPER, BLACKWELL):
        raise ValueError(f"a is on a GPU of compute capability {capability}, but must be on one of {HOPPER} or "
                         f"{BLACKWELL}")  # fmt: skip
    if capability != reads:
        is_ = f"packed for one of {HOPPER}" if reads == HOPPER else f"not packed, or for one of {BLACKWELL}"
        raise ValueError(f"{name} is {is_}, but must be packed for this GPU, of compute capability {capability}")


@functools.lru_cache(maxsize=4096)
def plan(
    of_a: torch.Size, of_b: torch.Size, dtype: torch.dtype, device: torch.device, mxfp4: bool = False,
    e4m3: bool = False,
) -> Plan:  # fmt: skip
    """The call for these shapes of a and b, and this type of a; ValueError if the kernel does not do them. mxfp4: b is
    MXFP4 for Blackwell. e4m3: it is MXFP4 for Hopper and tokens in e4m3.
    """
    capability = device_of(device, "a").capability
    require_packed_for(of_b, capability)
    hopper = capability == HOPPER
    either = hopper and not e4m3
    if dtype not in ((BF16, F16) if either else (BF16,)):
        raise ValueError(f"a has type {dtype}, but must have {f'{BF16} or {F16}' if either else BF16}")
    n = 64 * of_b[1] if hopper else of_b[1]
    sizes = of_a[0], n, of_a[1], of_b[0]
    require_sizes(*sizes, TILE if hopper or mxfp4 else ATOM_ROWS)
    of_b = packed_operands(sizes[3], n, sizes[2], capability, mxfp4=mxfp4, e4m3=e4m3)
    expected = expectations(*sizes, dtype, of_b, e4m3)
    if e4m3:
        return ByE4m3Plan(sizes, expected, ALIGNED, device, lambda *_: sm90.FP4_BY_E4M3)
    if hopper:
        return Plan(sizes, expected, ALIGNED, device, functools.partial(choose, dtype))
    of_form = functools.partial(choose_block_scaled, W4A8 if mxfp4 else W4A4)
    return BlockScaledPlan(sizes, expected, ALIGNED, device, of_form, TMA_FP4_BYTES if mxfp4 else 16)


def choose(dtype: torch.dtype, _: tuple[int, int], *sizes: int) -> Config:
    """Hopper's config for tokens of this type and these sizes."""
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
    """Quantise a and launch the kernel. addresses: the operands' in the order of `expectations`. words: what gemm.words
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
    """Scratch memory for so many tokens of k columns in e4m3, and for their scales."""
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
    """Quantise a and launch the kernel. addresses: the operands' in the order of `expectations`, then input_scale's, if
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
    """Scratch memory for so many rows of k columns in this format."""
    return Part(name, U8, (rows, form.record_bytes(k)))


@functools.cache
def quantise_program(device: torch.device, form: BlockScaled) -> Program:
    """The kernel that quantises tokens to this format, compiled for this GPU."""
    return Program(quantise_blocks.QuantiseBlocks(form), quantise_blocks.WORDS, f"form={form}")
