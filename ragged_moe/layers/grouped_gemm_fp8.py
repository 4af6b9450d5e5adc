"""`grouped_gemm_fp8`: the operands' checks, and one launch of the kernel that ragged_moe.tuning.back_ends chooses."""

import functools
from collections.abc import Callable, Sequence

import torch
from torch.compiler import is_dynamo_compiling

from ragged_moe.kernels.config import BLOCK_K, CONSUMER_GROUPS, Config
from ragged_moe.kernels.program import Program
from ragged_moe.kernels.schedule import search_step
from ragged_moe.kernels.stream_k import EMPTY
from ragged_moe.layers.signatures import GEMM_CALL
from ragged_moe.runtime.device import device_of
from ragged_moe.runtime.dispatch import is_eager, keys_of, modes
from ragged_moe.runtime.gradients import learns, refusing
from ragged_moe.runtime.operands import addresses, complain, contiguous, require_apart
from ragged_moe.runtime.signature import Signature
from ragged_moe.runtime.sizes import BF16, E4M3, I32
from ragged_moe.runtime.workspace import Part, arena_of
from ragged_moe.tuning.back_ends import kernel, tuning


def grouped_gemm_fp8(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[r] = sum over blocks of 128 of K of (a[r] . b[e]) * (a_scale * b_scale), for the rows r of every expert e.

    a [total_M, K] and b [E, N, K] e4m3, a_scale [K/128, total_M] and b_scale [E, N/128, K/128] f32 of any sign,
    m_indptr [E+1] int32, out [total_M, N] bf16; all contiguous and on the current GPU, a, a_scale, b and out from a
    multiple of 16 bytes on. Rows m_indptr[e] to m_indptr[e+1] of a belong to expert e: any number, also 0. Rows of no
    expert are not written; what m_indptr says of rows that a does not have, or that an earlier expert has, is left
    out. N and K are multiples of 128, E at most 512.
    Each block's dot products are the tensor core's; a_scale * b_scale is rounded to f32, then multiplied and added in
    one rounding; the sum is rounded once to bf16. Blocks are added in order; of a tile whose K is shared (stream-K,
    split-K) each part's, then the parts'.
    One kernel on torch's current stream. Writes and returns out, or a new tensor. No gradients: backward says so,
    and out is refused. ValueError if an operand is not so, or not in a GPU's memory, as fake, meta and CPU tensors:
    then nothing is compiled, launched or written.
    """
    if is_dynamo_compiling() or modes() and not is_eager(keys_of(a, b)):
        if out is None:
            return torch.ops.ragged_moe.grouped_gemm_fp8(a, a_scale, b, b_scale, m_indptr)
        torch.ops.ragged_moe.grouped_gemm_fp8_out(out, a, a_scale, b, b_scale, m_indptr)
        return out
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dim() == 2 and b.dim() == 3):
        GEMM_CALL.letters({"a": a, "b": b})  # says which
    operands = a, a_scale, b, b_scale, m_indptr, out
    if learns(*operands):
        return refusing("ragged_moe.grouped_gemm_fp8", lambda: grouped_gemm_fp8(*operands), operands, out)
    call = plan(a.shape, b.shape, a.device)
    if out is None:
        out = call.make()
    call((a, a_scale, b, b_scale, m_indptr, out))
    return out


def require_sizes(signature: Signature, total_m: int, n: int, k: int, experts: int) -> dict[str, int]:
    """The sizes by letters; ValueError if the kernel does not do them."""
    letters = {"total_M": total_m, "N": n, "K": k, "E": experts}
    signature.require(**letters)
    if (-(-total_m // 16) + experts) * -(-n // 128) * -(-k // BLOCK_K) >= 2**31:
        raise ValueError(f"a: total_M = {total_m} with N = {n} and K = {k} is more than one launch can count")
    return letters


class Plan:
    """A call with operands of these sizes on this GPU."""

    def __init__(
        self, signature: Signature, sizes: tuple[int, int, int, int], of_a: torch.dtype, device: torch.device,
        choose: Callable[..., Config],
    ):  # fmt: skip
        """signature: operands in the order of the kernel's words, but for out. sizes: total_M, N, K, E. of_a: a's type.
        choose: the config for the GPU's compute capability and total_M, E, N, K.
        """
        letters = require_sizes(signature, *sizes)
        self.expected = *signature.expected(letters, a=of_a), contiguous("out", BF16, *sizes[:2])
        self.aligned = *(i for i, x in enumerate(signature.tensors) if x.aligned), len(signature.tensors)
        self.choose, self.sizes, self.multiple = choose, sizes, signature.multiple
        self.dtypes = tuple(x.dtype for x in self.expected)
        self.shapes = tuple(x.shape for x in self.expected[1:])
        self.total_m, self.device, self.index, self.gpu = sizes[0], device, device.index, device_of(device, "a")
        self.make = self.gpu.maker(sizes[:2], BF16, device)  # a new out
        self.indexed = self.gpu.indexed
        self.launcher = self.words = self.apart = None

    def __call__(self, tensors: tuple, *more: int) -> None:
        """Launch; ValueError unless the tensors are as they must be. more: addresses behind theirs."""
        if not self.gpu.is_current():
            raise ValueError(f"a is on {self.device}, but must be on torch's current device")
        a, a_scale, b, b_scale, m_indptr, out = tensors
        index = self.index
        try:  # the shape of a led here
            right = (
                (a.dtype, a_scale.dtype, b.dtype, b_scale.dtype, m_indptr.dtype, out.dtype) == self.dtypes
                and (a_scale.shape, b.shape, b_scale.shape, m_indptr.shape, out.shape) == self.shapes
                and a.get_device() == a_scale.get_device() == b.get_device() == b_scale.get_device() == index
                and m_indptr.get_device() == out.get_device() == index
                and a.is_contiguous() and a_scale.is_contiguous() and b.is_contiguous() and b_scale.is_contiguous()
                and m_indptr.is_contiguous() and out.is_contiguous() and not any(map(torch.Tensor.is_neg, tensors))
                and self.indexed
            )  # fmt: skip
        except AttributeError:  # no tensor
            right = False
        if not right:
            complain(tensors, self.expected, (a, "a"))
        if self.total_m:
            found = addresses(self.gpu, tensors, self.expected, self.aligned, self.multiple)
            if found != self.apart:  # where operands were last, they may be again
                require_apart("out", out, zip((x.name for x in self.expected), tensors[:-1]))
                self.apart = found
            if self.launcher is None:
                total_m, n, k, experts = self.sizes
                made = launcher(self.device, self.choose(self.gpu.capability, total_m, experts, n, k))
                self.words = made.words(made.grid, *self.sizes)
                self.launcher = made  # last, as other threads look at it
            self.launch((*found, *more) if more else found)

    def launch(self, found: Sequence[int]) -> None:
        """Launch with the operands at these addresses."""
        self.launcher.launch(found, self.words)


@functools.lru_cache(maxsize=4096)
def plan(of_a: torch.Size, of_b: torch.Size, device: torch.device) -> Plan:
    """The call for these shapes of a and b; ValueError if the kernel does not do their sizes."""
    sizes = of_a[0], of_b[1], of_a[1], of_b[0]
    return Plan(GEMM_CALL, sizes, E4M3, device, lambda gpu, *shape: tuning(gpu).choose_gemm(*shape))


class Launcher:
    """One compiled kernel on one GPU. grid: CTAs that fit the GPU."""

    def __init__(self, device: torch.device, config: Config):
        of_config = kernel(config)
        self.program = Program(of_config, of_config.words, repr(config))
        self.config, self.torch_device, self.device = config, device, device_of(device)
        self.grid = self.device.sms // config.launch_cluster * config.launch_cluster
        self.words = functools.lru_cache(maxsize=4096)(self.words)

    def words(self, most: int, total_m: int, n: int, k: int, experts: int, rows: int = 0) -> tuple[int, ...]:
        """Return what the kernel's words say of a problem, on a GPU that `most` CTAs fit.

        rows: how many of total_m there will be about, if not all; the grid is for them.
        """
        grid = self.config.grid(most, rows or total_m, n, min(experts, rows or experts))
        return total_m, n, k, experts, search_step(experts), grid

    def parts(self) -> tuple[Part, Part]:
        """The partial sums and their flags, in scratch memory."""
        return partials(self.config, self.grid), flags(self.grid)

    def __call__(self, tensors: tuple, total_m: int, n: int, k: int, experts: int) -> None:
        """Launch with tensors that are as the signature says."""
        self.launch([tensor.data_ptr() for tensor in tensors], self.words(self.grid, total_m, n, k, experts))

    def launch(self, addresses: Sequence[int], words: tuple[int, ...]) -> None:
        """Launch with the operands at these addresses, and what `words` gave for their sizes."""
        arena = arena_of(self.torch_device, self.device)
        with arena.lock:
            scratch = arena.take(self, self.parts).addresses
            self.program(*addresses, *scratch, *words, self.device.stream())


def partials(config: Config, ctas: int) -> Part:
    """Scratch memory for stream-K's partial sums of this many CTAs."""
    name, fill = ("polled partials", EMPTY) if config.polled_partials else ("partials", None)
    return Part(name, I32, (ctas * config.partial_bytes // 4,), fill, kept=True)


def flags(ctas: int) -> Part:
    """Scratch memory for the flags of partial sums that are not polled."""
    return Part("flags", I32, (ctas * (CONSUMER_GROUPS + 1),), 0, kept=True)


launcher = functools.lru_cache(maxsize=64)(Launcher)
