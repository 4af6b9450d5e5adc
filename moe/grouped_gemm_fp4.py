"""`grouped_gemm_nvfp4`: the operands' checks, and the launches of the kernels for weights in e2m1."""

import functools
from collections.abc import Sequence

import torch

from moe.device import device_of
from moe.fp4_weights import ATOM, ATOM_ROWS, BLACKWELL, HOPPER, TILE, packed_for
from moe.grouped_gemm import Launcher, Plan
from moe.kernels import quantise_fp4
from moe.kernels.config import MAX_EXPERTS
from moe.kernels.program import Program
from moe.kernels.quantise_fp4 import record_bytes
from moe.operands import MAX_ROWS, Operand, addresses, complain, contiguous, require
from moe.problem import BF16, F32, I32
from moe.scratch import Part, arena_of
from moe.tuning import sm90, sm100

F16, U8 = torch.float16, torch.uint8
ALIGNED = 0, 2, 3, 5  # which of the operands are read or written by 16 bytes
QUANTISING_CTAS = 4  # of an SM


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

    a [total_M, K] bf16, on Hopper also fp16; b, b_scale and b_global [E] f32 are weights [E, N, K] that pack_nvfp4, or
    on Hopper pack_mxfp4, has packed for this GPU; m_indptr [E+1] int32, out [total_M, N] bf16; all contiguous and on
    the current GPU, a, b, b_scale and out from a multiple of 16 bytes on. m_indptr is what it is for grouped_gemm_fp8.
    N and K are multiples of 64, on Blackwell N one of 128; E is at most 512.
    Hopper (W4A16): a is not rounded. A weight times its scale is exact; the tensor core adds the products in f32; the
    sum is multiplied by b_global and rounded to bf16. One kernel.
    Blackwell (W4A4): a is rounded to NVFP4 first, e2m1 with an e4m3 scale for 16 of K and input_scale, as
    moe.reference.quantise_fp4 says: some 10 % of its norm. The tensor core multiplies by both scales and adds in f32;
    the sum is multiplied by b_global * input_scale and rounded to bf16. Two kernels.
    input_scale: f32 of one element, positive, the checkpoint's of activations: what of a is beyond 2688 times that
    saturates, what is below 2^-8 times that becomes 0. 1 if not given. Hopper has no use for it.
    On torch's current stream. Writes and returns out, or a new tensor. ValueError if an operand is not so, or the GPU
    is neither: then nothing is compiled, launched or written.
    """
    if not (isinstance(a, torch.Tensor) and a.dim() == 2 and packed_for(b)):
        raise ValueError("a must be a tensor [total_M, K], and b one that pack_nvfp4 or pack_mxfp4 has packed")
    call = plan(a.shape, b.shape, a.dtype, a.device)
    scale = () if call.gpu.capability == HOPPER and input_scale is None else (input_scale_of(input_scale, a),)
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
    total_m: int, n: int, k: int, experts: int, dtype: torch.dtype, of_b: tuple[Operand, Operand]
) -> tuple[Operand, ...]:
    """Say what each operand must be, in the order of the kernel's words. of_b: what b and b_scale must be."""
    return (
        contiguous("a", dtype, total_m, k),
        contiguous("b_global", F32, experts),
        *of_b,
        contiguous("m_indptr", I32, experts + 1),
        contiguous("out", BF16, total_m, n),
    )


def packed_operands(
    experts: int, n: int, k: int, capability: tuple[int, int], b: str = "b", b_scale: str = "b_scale"
) -> tuple[Operand, Operand]:
    """What weights [experts, n, k] and their scales, of these names, must be if they are packed for this GPU."""
    if capability == BLACKWELL:
        atoms = experts, n // ATOM_ROWS, k // TILE, ATOM
        return contiguous(b, U8, experts, n, k // 2), contiguous(b_scale, U8, *atoms)
    tiles = experts, n // TILE, k // TILE
    return contiguous(b, U8, *tiles, 2048), contiguous(b_scale, U8, *tiles, 256)


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
def plan(of_a: torch.Size, of_b: torch.Size, dtype: torch.dtype, device: torch.device) -> Plan:
    """The call for these shapes of a and b, and this type of a; ValueError if the kernel does not do them."""
    capability = device_of(device, "a").capability
    require_packed_for(of_b, capability)
    hopper = capability == HOPPER
    if dtype not in ((BF16, F16) if hopper else (BF16,)):
        raise ValueError(f"a has type {dtype}, but must have {f'{BF16} or {F16}' if hopper else BF16}")
    n = 64 * of_b[1] if hopper else of_b[1]
    sizes = of_a[0], n, of_a[1], of_b[0]
    require_sizes(*sizes, TILE if hopper else ATOM_ROWS)
    expected = expectations(*sizes, dtype, packed_operands(sizes[3], n, sizes[2], capability))
    of_gpu = Plan if hopper else W4a4Plan
    return of_gpu(sizes, expected, ALIGNED, device, functools.partial(choose, dtype))


def choose(dtype: torch.dtype, capability: tuple[int, int], *sizes: int):
    """The config for tokens of this type and these sizes."""
    if capability == BLACKWELL:
        return sm100.choose_w4a4(*sizes)
    return sm90.choose_fp4(*sizes, "bf16" if dtype is BF16 else "f16")


class W4a4Plan(Plan):
    """A call on Blackwell: a is quantised, to scratch memory, then multiplied."""

    def launch(self, found: Sequence[int]) -> None:
        """Launch with the operands at these addresses, and a's input_scale at the last one."""
        launch_w4a4(self.launcher, found, self.words)


def launch_w4a4(gemm: Launcher, addresses: Sequence[int], words: tuple[int, ...]) -> None:
    """Quantise a and launch the kernel. addresses: the operands' in the order of `expectations`, then input_scale's.

    words: what gemm.words gave for their sizes.
    """
    (a, *others, input_scale), (total_m, _, k, *_) = addresses, words
    device, room = gemm.torch_device, 1 << (total_m - 1).bit_length()
    arena = arena_of(device, gemm.device)
    with arena.lock:
        (records,) = arena.take(("records", room, k), lambda: [records_part(room, k)]).addresses
        grid = min(total_m, QUANTISING_CTAS * gemm.device.sms)
        quantise_program(device)(a, records, input_scale, 0, 0, total_m, k, grid, gemm.device.stream())
        gemm.launch((records, *others), (*words, input_scale))


def records_part(rows: int, k: int, name: str = "records") -> Part:
    """Scratch memory for so many rows of k columns in NVFP4."""
    return Part(name, U8, (rows, record_bytes(k)))


@functools.cache
def quantise_program(device: torch.device, gathered: bool = False) -> Program:
    """The kernel that quantises tokens to NVFP4, compiled for this GPU."""
    return Program(quantise_fp4.QuantiseFp4(gathered), quantise_fp4.WORDS, f"gathered={gathered}")
