"""`pack_nvfp4` and `pack_mxfp4`: a checkpoint's e2m1 weights and scales in the order that a GPU's kernels read.

For Hopper, and for Blackwell and tokens in bf16, packed b is uint8 [E, N/64, K/64, 2048] and b_scale uint8 [E, N/64,
K/64, 256]: tiles of 64 weight rows x 64 of K, in which what a thread needs lies side by side
(ragged_moe/kernels/dequantise.py). For Blackwell's tokens in blocks b is as it was, but for signs, and b_scale uint8
[E, N/128, K/64, 512]: the scales of 128 weight rows x 64 of K as tcgen05.cp copies them, [row % 32, row / 32, K / 16]
(PTX ISA, 9.7.16.10.7). MXFP4 for Blackwell has rows of a multiple of 128 of K, which TMA wants of 16U4_ALIGN16B, and
b_scale uint8 [E, N/128, K/128, 32, 16], the same with blocks of 32. MXFP4 for Hopper and tokens in e4m3 has b of
Hopper's shape, its words in another order (ragged_moe/kernels/dequantise_e4m3.py), and b_scale uint8 [E, N/64, K/64,
128]. But for what is rounded up, all take as many bytes as the checkpoint's (MXFP4 on Hopper for tokens of 16 bits: 4.5
bits a weight, not 4.25). b_scale has a shape that neither the checkpoint's nor another packing's has, so that none is
taken for another.
"""

from collections.abc import Sequence

import torch

from ragged_moe.kernels import dequantise_e4m3
from ragged_moe.kernels.dequantise import EXPONENT_OF_ONE, NAN_SCALE, PLACES
from ragged_moe.layers.signatures import ATOM, ATOM_ROWS, BLACKWELL, HOPPER, MX_K, TILE, U8, packing
from ragged_moe.runtime.device import current_device, device_of
from ragged_moe.runtime.operands import MAX_ROWS, complain, contiguous, require, require_apart, require_int
from ragged_moe.runtime.sizes import E4M3, F32

LARGEST_EXPONENT = 30  # of a scale's byte that is no NaN


def pack_nvfp4(
    b: torch.Tensor,
    b_scale: torch.Tensor,
    weight_scale_2: torch.Tensor | None = None,
    weight_global_scale: torch.Tensor | None = None,
    *,
    capability: tuple[int, int] | None = None,
    activation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pack NVFP4 weights in place; return b, b_scale and b_global for grouped_gemm_nvfp4, the first two in b's and
    b_scale's memory.

    b uint8 [E, N, K/2]: two e2m1 a byte, the one of lower k in the lower half. b_scale e4m3 [E, N, K/16], of any sign.
    N and K are multiples of 64, for Blackwell N one of 128. capability: the compute capability of the GPU that is to
    read them, (9, 0) or (10, 0), as torch.cuda.get_device_capability gives it; by default that of the GPU that b is on,
    or, if b is on the CPU, torch's current one. Other GPUs' calls refuse what is packed for one.
    activation: of Blackwell; None, calls with these weights round tokens to NVFP4 (W4A4), or "bf16", tokens stay bf16
    (W4A16): weights are packed as for Hopper, where "bf16" changes nothing, and N is a multiple of 64.
    The global scale is f32 [E], or of one element for all, by the name that checkpoints give it: weight_scale_2
    (ModelOpt) is multiplied, weight_global_scale (compressed-tensors) divides; neither: 1.
    ragged_moe.experts takes those of W13 as [E, 2], too, of the first half of its rows and of the second.
    Needs memory for a few copies of one expert meanwhile. ValueError, and nothing is written, if an operand is not so.
    """
    experts, n, k = sizes_of(b)
    if activation == "fp8":
        raise ValueError('activation is "fp8", but must be None or "bf16" for NVFP4')
    blackwell = packing(reader(b, capability), False, activation) == "as NVFP4 for Blackwell"
    if blackwell:
        require("b", "N", n, ATOM_ROWS, ATOM_ROWS, MAX_ROWS)
    expected = contiguous("b", U8, experts, n, k // 2), contiguous("b_scale", E4M3, experts, n, k // 16)
    complain((b, b_scale), expected, (b, "b"))
    b_global = global_scale(b, experts, weight_scale_2, weight_global_scale)
    require_apart("b", b, [("b_scale", b_scale)])
    of_scales = b_scale.view(U8)
    if blackwell:
        for e in range(experts):
            of_blocks = b[e].view(n, k // 16, 8)
            of_blocks.copy_(torch.where((of_scales[e] >> 7 != 0)[..., None], of_blocks ^ 0x88, of_blocks))
            of_scales[e].view(-1).copy_(scale_atoms(of_scales[e] & 0x7F).view(-1))
        return b, of_scales.view(experts, n // ATOM_ROWS, k // TILE, ATOM), b_global
    for e in range(experts):
        signs, bytes_of = nvfp4_scales(b_scale[e].float())
        tile = tiles(adjusted(b[e], signs, bytes_of == 0))
        b[e].view(-1).copy_(tile.view(-1))
        of_scales[e].view(-1).copy_(scale_tiles(bytes_of).view(-1))
    shape = experts, n // TILE, k // TILE
    return b.view(*shape, 2048), of_scales.view(*shape, 256), b_global


def pack_mxfp4(
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    halves: int = 1,
    capability: tuple[int, int] | None = None,
    activation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pack MXFP4 weights; return b, in b's memory, b_scale, in new memory, and b_global for grouped_gemm_nvfp4.

    b as of pack_nvfp4; b_scale uint8 [E, N, K/32]: e8m0, 2^(x - 127), 255 is NaN. N and K are multiples of 64.
    halves: 2 for W13 of ragged_moe.experts, as Blackwell's kernels read scales of 128 rows of up, then of gate.
    Hopper's do not care. capability: as of pack_nvfp4. For Hopper scales of an expert's weights that are not 0 may span
    2^30. For Blackwell scales stay as they are, and b gets new memory if K is no multiple of 128.
    activation: None or "fp8" on Hopper: tokens stay as they are (W4A16), or calls with these weights round them to e4m3
    (W4A8). None or "bf16" on Blackwell: tokens are rounded to MXFP8, or stay bf16: packed as for Hopper. Weights are
    exact in either: with "fp8" those of a row that are not 0 may have scales that span 2^11, and b_global is [E, N], of
    each weight row. ValueError, and nothing is written, if an operand is not so.
    """
    require_int("halves", halves, 1, 2)
    name = packing(reader(b, capability), True, activation)
    if name == "as MXFP4 for Blackwell":
        return pack_for_mxf8f6f4(b, b_scale, halves)
    if name == "for Hopper and tokens in e4m3":
        return pack_for_e4m3(b, b_scale)
    experts, n, k = sizes_of_mxfp4(b, b_scale)
    exponent, used = b_scale.int(), used_scales(b, b_scale)
    largest = torch.where(used, exponent, 0).flatten(1).amax(1)
    least = torch.where(used, exponent, 255).flatten(1).amin(1)
    for e, (high, low) in enumerate(zip(largest.tolist(), least.tolist())):
        if high - low > LARGEST_EXPONENT:
            span = f"from {low} to {high}, but they may span {LARGEST_EXPONENT}"
            raise ValueError(f"b_scale: expert {e} has exponents {span}")
    shape = experts, n // TILE, k // TILE
    packed = torch.empty(*shape, 256, dtype=U8, device=b.device)
    for e in range(experts):
        code = (exponent[e] - largest[e] + LARGEST_EXPONENT).clamp(0, LARGEST_EXPONENT) << 3
        code = torch.where(used[e], code, 0)
        code = torch.where(b_scale[e] == 255, NAN_SCALE, code).to(U8).repeat_interleave(2, 1)
        packed[e] = scale_tiles(code)
        b[e].view(-1).copy_(tiles(b[e]).view(-1))
    b_global = torch.exp2((largest - 127 - (LARGEST_EXPONENT - EXPONENT_OF_ONE)).double()).float()
    return b.view(*shape, 2048), packed, b_global


def pack_for_e4m3(b: torch.Tensor, b_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`pack_mxfp4` for Hopper with tokens in e4m3."""
    experts, n, k = sizes_of_mxfp4(b, b_scale)
    exponent, used = b_scale.int(), used_scales(b, b_scale)
    largest = torch.where(used, exponent, 0).amax(2)
    least, span = torch.where(used, exponent, 255).amin(2), dequantise_e4m3.SPAN
    wide = (largest - least > span).nonzero()
    if len(wide):
        e, row = wide[0].tolist()
        found = f"from {least[e, row].item()} to {largest[e, row].item()}"
        raise ValueError(f"b_scale: expert {e} has exponents {found} in row {row}, but a row's may span {span} with "
                         f'activation="fp8"; {len(wide)} of {experts * n} rows span more')  # fmt: skip
    shape = experts, n // TILE, k // TILE
    packed = torch.empty(*shape, 128, dtype=U8, device=b.device)
    for e in range(experts):
        byte = torch.where(used[e], exponent[e] - largest[e, :, None] + span, 0) << 3
        packed[e] = scale_tiles(byte.to(U8), 2)
        b[e].view(-1).copy_(tiles_for_e4m3(b[e]).view(-1))
    row_scale = torch.exp2((largest - 127 - dequantise_e4m3.LARGEST_EXPONENT).double()).float()
    return b.view(*shape, 2048), packed, torch.where((b_scale == 255).any(2), torch.nan, row_scale)


def sizes_of_mxfp4(b: torch.Tensor, b_scale: torch.Tensor, halves: int = 1) -> tuple[int, int, int]:
    """E, N, K of MXFP4 weights as a checkpoint has them; ValueError if they cannot be packed."""
    experts, n, k = sizes_of(b, halves)
    expected = contiguous("b", U8, experts, n, k // 2), contiguous("b_scale", U8, experts, n, k // 32)
    complain((b, b_scale), expected, (b, "b"))
    require_apart("b", b, [("b_scale", b_scale)])
    return experts, n, k


def used_scales(b: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    """Which of MXFP4's scales [E, N, K/32] are no NaN, and of blocks with a weight that is not 0."""
    return ((b.view(*b_scale.shape, 16) & 0x77) != 0).any(-1) & (b_scale != 255)


def pack_for_mxf8f6f4(b: torch.Tensor, b_scale: torch.Tensor, halves: int) -> tuple[torch.Tensor, ...]:
    """`pack_mxfp4` for Blackwell."""
    experts, n, k = sizes_of_mxfp4(b, b_scale, halves)
    rows, columns = rounded_up(n // halves, ATOM_ROWS), rounded_up(k, MX_K)
    scales = b_scale.new_zeros(experts, halves, rows, columns // 32)
    scales[:, :, : n // halves, : k // 32] = b_scale.view(experts, halves, n // halves, k // 32)
    atoms = scale_atoms(scales.view(-1, columns // 32))
    atoms = atoms.view(experts, halves * rows // ATOM_ROWS, columns // MX_K, 32, 16)
    if columns != k:
        b = torch.nn.functional.pad(b, (0, (columns - k) // 2))
    return b, atoms, torch.ones(experts, dtype=F32, device=b.device)


def rounded_up(x: int, multiple: int) -> int:
    """The least multiple that is not below x."""
    return -(-x // multiple) * multiple


def reader(b: torch.Tensor, capability: tuple[int, int] | None = None) -> tuple[int, int]:
    """The compute capability of the GPU that is to read b: the one given, else that of b's GPU or the current one."""
    if capability is None and isinstance(b, torch.Tensor):
        try:
            capability = device_of(b.device if b.device.type == "cuda" else current_device(), "b").capability
        except ValueError as error:
            raise ValueError("b is on no GPU, nor has torch one: capability must say which is to read it") from error
    if capability not in (HOPPER, BLACKWELL):
        raise ValueError(f"capability is {capability}, but must be {HOPPER} or {BLACKWELL}")
    return capability


def is_packed(b: torch.Tensor, *dims: int) -> bool:
    """Whether weights b may be packed, in one of these numbers of dimensions: 4 if in tiles, 3 if for Blackwell's
    tokens in blocks.
    """
    return isinstance(b, torch.Tensor) and b.dtype is U8 and b.dim() in (dims or (3, 4))


def kind_of(b: torch.Tensor, b_scale: torch.Tensor) -> tuple[bool, str | None]:
    """Whether weights were packed as MXFP4 for Blackwell, and for which `activation`, by their dimensions."""
    shape = b_scale.shape if isinstance(b_scale, torch.Tensor) else ()
    if not is_packed(b, 4):
        return len(shape) == 5, None
    return False, "fp8" if len(shape) == 4 and shape[3] == 128 else "bf16"


def sizes_of(b: torch.Tensor, halves: int = 1) -> tuple[int, int, int]:
    """E, N, K of weights as a checkpoint has them; ValueError if they cannot be packed."""
    if not isinstance(b, torch.Tensor) or b.dim() != 3:
        raise ValueError("b must be a tensor [E, N, K/2]")
    experts, n, k = b.shape[0], b.shape[1], 2 * b.shape[2]
    require("b", "N", n, halves * TILE, halves * TILE, MAX_ROWS)
    require("b", "K", k, TILE, TILE, MAX_ROWS)
    return experts, n, k


def global_scale(b: torch.Tensor, experts: int, multiplied, divides) -> torch.Tensor:
    """f32 [E], or [E, 2], that results are multiplied by."""
    if multiplied is not None and divides is not None:
        raise ValueError("weight_scale_2 and weight_global_scale are both given, but only one may be")
    name = "weight_scale_2" if divides is None else "weight_global_scale"
    given = multiplied if divides is None else divides
    if given is None:
        return torch.ones(experts, dtype=F32, device=b.device)
    known = isinstance(given, torch.Tensor) and given.dtype is F32
    of_halves = known and given.shape == (experts, 2)
    if not known or not of_halves and given.numel() != 1 and given.shape not in ((experts,), (experts, 1)):
        raise ValueError(f"{name} must be f32 of one element, or of shape {(experts,)} or {(experts, 2)}")
    require_scales(name, given, zero=divides is None)
    given = given.to(b.device)
    given = given if of_halves else given.flatten().expand(experts)
    return (given if divides is None else 1 / given).contiguous()


def require_scales(name: str, scale: torch.Tensor, zero: bool) -> None:
    """ValueError for a scale that is NaN, infinite or negative; for one that is 0, too, if `zero` does not allow it."""
    wrong = ~(scale.isfinite() & (scale >= 0 if zero else scale > 0))
    if wrong.any():
        must = "finite and not negative" if zero else "finite and above 0"
        raise ValueError(f"{name} has a {scale[wrong].flatten()[0].item()}, but must be {must}")


def nvfp4_scales(scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether scales are negative, and their magnitudes' bytes; 0 for 0, for which weights must be 0, too."""
    mantissa, exponent = torch.frexp(scale.abs())  # in [0.5, 1)
    byte = (exponent - 1 + EXPONENT_OF_ONE) * 8 + (mantissa * 16).int() - 8
    byte = torch.where(scale == 0, 0, torch.where(scale.isnan(), NAN_SCALE, byte))
    return scale < 0, byte.to(U8)


def adjusted(b: torch.Tensor, negative: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Weights [N, K/2] with the other sign where their scale is negative, and 0 where it is."""
    shape = b.shape
    b = b.view(*negative.shape, 8)
    b = torch.where(negative[..., None], b ^ 0x88, b)
    return torch.where(zero[..., None], 0, b).view(shape)


def tiles(b: torch.Tensor) -> torch.Tensor:
    """Weights [N, K/2] as int32 [N/64, K/64, warp, lane, step], for tokens of 16 bits."""
    codes = torch.stack((b & 15, b >> 4), -1).view(len(b) // TILE, 4, 2, 8, 2 * b.shape[1] // TILE, 4, 2, 4, 2)
    # n-tile, warp, row half, row, k-tile, step, column half, lane % 4, number -> .., register of A, number
    codes = codes.permute(0, 4, 1, 3, 7, 5, 6, 2, 8)
    places = [(sign + 16 * number, magnitude + 16 * number) for sign, magnitude in PLACES for number in range(2)]
    return words_of(codes.flatten(-3), places)


def tiles_for_e4m3(b: torch.Tensor) -> torch.Tensor:
    """Weights [N, K/2] as int32 [N/64, K/64, warp, lane, row half, step], for tokens in e4m3."""
    codes = torch.stack((b & 15, b >> 4), -1).view(len(b) // TILE, 4, 2, 8, 2 * b.shape[1] // TILE, 2, 2, 4, 4)
    # n-tile, warp, row half, row, k-tile, step, column half, lane % 4, number -> .., column half, number
    return words_of(codes.permute(0, 4, 1, 3, 7, 2, 5, 6, 8).flatten(-2), dequantise_e4m3.PLACES)


def words_of(codes: torch.Tensor, places: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Codes of e2m1 [.., 8] as bytes of words, in each the sign and the magnitude of number i at places[i]."""
    word = torch.zeros(codes.shape[:-1], dtype=torch.int64, device=codes.device)
    for i, (sign, magnitude) in enumerate(places):
        code = codes[..., i].long()
        word |= (code >> 3) << sign | (code & 7) << magnitude
    return word.to(torch.int32).view(U8)


def scale_tiles(byte: torch.Tensor, steps: int = 4) -> torch.Tensor:
    """Bytes of scales, `steps` for 64 of K, [N, ..] as [N/64, K/64, warp, row, row half, step]."""
    n, k = byte.shape
    shaped = byte.view(n // TILE, 4, 2, 8, k // steps, steps).permute(0, 4, 1, 3, 2, 5)
    return shaped.reshape(n // TILE, k // steps, 64 * steps)


def scale_atoms(byte: torch.Tensor) -> torch.Tensor:
    """Bytes of scales [N, blocks] as [N/128, blocks/4, row % 32, row / 32, block % 4]."""
    n, blocks = byte.shape
    shaped = byte.view(n // ATOM_ROWS, 4, 32, blocks // 4, 4).permute(0, 3, 2, 1, 4)
    return shaped.reshape(n // ATOM_ROWS, blocks // 4, ATOM)
