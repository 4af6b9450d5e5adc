"""`grouped_gemm_nvfp4`: the operands' checks, and one launch of the kernel for weights in e2m1."""

import functools

import torch

from moe.fp4_weights import TILE
from moe.grouped_gemm import Plan
from moe.kernels.config import MAX_EXPERTS
from moe.operands import MAX_ROWS, Operand, contiguous, require
from moe.problem import BF16, F32, I32
from moe.tuning import sm90

F16, U8 = torch.float16, torch.uint8
ALIGNED = 0, 2, 3, 5  # which of the operands are read or written by 16 bytes


def grouped_gemm_nvfp4(
    a: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_global: torch.Tensor,
    m_indptr: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[r] = a[r] . (b[e] * b_scale[e]) * b_global[e], for the rows r of every expert e, on a Hopper GPU.

    a [total_M, K] bf16 or fp16; b, b_scale and b_global [E] f32 are NVFP4 or MXFP4 weights [E, N, K] that pack_nvfp4 or
    pack_mxfp4 has packed; m_indptr [E+1] int32, out [total_M, N] bf16; all contiguous and on the current GPU, a, b,
    b_scale and out from a multiple of 16 bytes on. m_indptr is what it is for grouped_gemm_fp8. N and K are multiples
    of 64, E at most 512.
    A weight times its scale is exact; the tensor core adds the products in f32; the sum is multiplied by b_global and
    rounded to bf16.
    One kernel on torch's current stream. Writes and returns out, or a new tensor. ValueError if an operand is not so,
    or the GPU is no Hopper: then nothing is compiled, launched or written.
    """
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dim() == 2 and b.dim() == 4):
        raise ValueError("a must be a tensor [total_M, K], and b one that pack_nvfp4 or pack_mxfp4 has packed")
    call = plan(a.shape, b.shape, a.dtype, a.device)
    if out is None:
        (out,) = call.gpu.tensors(torch.empty(call.out_shape, dtype=BF16, device=a.device))
    call((a, b_global, b, b_scale, m_indptr, out))
    return out


def expectations(total_m: int, n: int, k: int, experts: int, dtype: torch.dtype) -> tuple[Operand, ...]:
    """Say what each operand must be, in the order of the kernel's words; ValueError if it does not do these sizes."""
    for name, operand, x, multiple, least, most in (
        ("total_M", "a", total_m, 1, 0, MAX_ROWS),
        ("N", "b", n, TILE, TILE, MAX_ROWS),
        ("K", "a", k, TILE, TILE, MAX_ROWS),
        ("E", "b", experts, 1, 1, MAX_EXPERTS),
    ):
        require(operand, name, x, multiple, least, most)
    if (-(-total_m // 16) + experts) * -(-n // 128) * -(-k // 128) >= 2**31:
        raise ValueError(f"a: total_M = {total_m} with N = {n} and K = {k} is more than one launch can count")
    tiles = experts, n // TILE, k // TILE
    return (
        contiguous("a", dtype, total_m, k),
        contiguous("b_global", F32, experts),
        contiguous("b", U8, *tiles, 2048),
        contiguous("b_scale", U8, *tiles, 256),
        contiguous("m_indptr", I32, experts + 1),
        contiguous("out", BF16, total_m, n),
    )


@functools.lru_cache(maxsize=4096)
def plan(of_a: torch.Size, of_b: torch.Size, dtype: torch.dtype, device: torch.device) -> Plan:
    """The call for these shapes of a and b, and this type of a; ValueError if the kernel does not do them."""
    if dtype not in (BF16, F16):
        raise ValueError(f"a has type {dtype}, but must have {BF16} or {F16}")
    sizes = of_a[0], 64 * of_b[1], of_a[1], of_b[0]
    made = Plan(sizes, expectations(*sizes, dtype), ALIGNED, device, functools.partial(choose, dtype))
    if made.gpu.capability != (9, 0):
        raise ValueError(f"a is on a GPU of compute capability {made.gpu.capability}, but must be on one of (9, 0)")
    return made


def choose(dtype: torch.dtype, capability: tuple[int, int], *sizes: int):
    """The config for tokens of this type and these sizes."""
    return sm90.choose_fp4(*sizes, "bf16" if dtype is BF16 else "f16")
