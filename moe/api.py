"""`grouped_gemm_fp8`: what its tensors must be, and one launch of the kernel that `moe.tuning` chooses."""

import functools

import torch
from cuda.bindings import runtime

from moe.kernel import BLOCK_K, EMPTY, GROUPS, WORDS, Config, GroupedGemm
from moe.launch import Program
from moe.schedule import MAX_EXPERTS, first_step
from moe.sm100 import GroupedGemmSm100

E4M3, F32, BF16, I32 = torch.float8_e4m3fn, torch.float32, torch.bfloat16, torch.int32
MAX_ROWS = 2**24  # tokens, N and K stay below: units of work are counted in 31 bits


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
    one rounding; the sum is rounded once to bf16. Blocks are added in order, in a tile that was cut those of each part.
    One kernel on torch's current stream. Writes and returns out, or a new tensor. ValueError if an operand is not so.
    """
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dim() == 2 and b.dim() == 3):
        raise ValueError("a must be a tensor [total_M, K] and b a tensor [E, N, K]")
    call = plan(a.shape, b.shape, a.get_device())
    if out is None:
        out = torch.empty(call.out_shape, dtype=BF16, device=a.device)
        if a.get_device() < 0:
            (out,) = emulated((out,))
    call((a, a_scale, b, b_scale, m_indptr, out))
    return out


def expectations(total_m: int, n: int, k: int, experts: int) -> tuple:
    """(name, dtype, shape, stride) of each operand; ValueError if the kernel does not do these sizes."""
    for name, operand, x, multiple, least, most in (
        ("total_M", "a", total_m, 1, 0, MAX_ROWS),
        ("N", "b", n, 128, 128, MAX_ROWS),
        ("K", "a", k, BLOCK_K, BLOCK_K, MAX_ROWS),
        ("E", "b", experts, 1, 1, MAX_EXPERTS),
    ):
        require(operand, name, x, multiple, least, most)
    if (-(-total_m // 16) + experts) * (n // 128) * (k // BLOCK_K) >= 2**31:
        raise ValueError(f"a: total_M = {total_m} with N = {n} and K = {k} is more than one launch can count")
    blocks = k // BLOCK_K
    return (
        ("a", E4M3, (total_m, k), (k, 1)),
        ("a_scale", F32, (blocks, total_m), (total_m, 1)),
        ("b", E4M3, (experts, n, k), (n * k, k, 1)),
        ("b_scale", F32, (experts, n // 128, blocks), (n // 128 * blocks, blocks, 1)),
        ("m_indptr", I32, (experts + 1,), (1,)),
        ("out", BF16, (total_m, n), (n, 1)),
    )


def require(operand: str, dimension: str, size: int, multiple: int, least: int, most: int) -> None:
    """ValueError unless a dimension has an allowed size."""
    if not least <= size <= most or size % multiple:
        rule = f"a multiple of {multiple} from {least} to {most}" if multiple > 1 else f"from {least} to {most}"
        raise ValueError(f"{operand}: dimension {dimension} is {size}, but must be {rule}")


def complain(tensors: tuple, expected: tuple) -> None:
    """ValueError that says which tensor is not as it must be. Strides of dimensions of one element do not matter."""
    device = tensors[0].device
    for tensor, (name, dtype, shape, stride) in zip(tensors, expected):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} is a {type(tensor).__name__}, but must be a tensor")
        if tensor.dtype is not dtype:
            raise ValueError(f"{name} has type {tensor.dtype}, but must have {dtype}")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, but must be on {device}, as {expected[0][0]} is")
        if tuple(tensor.shape) != shape:
            for i, (size, must) in enumerate(zip(tensor.shape, shape)):
                if len(tensor.shape) == len(shape) and size != must:
                    raise ValueError(f"{name}: dimension {i} is {size}, but must be {must}")
            raise ValueError(f"{name} has {tensor.dim()} dimensions, but must have the {len(shape)} of {shape}")
        for i, (is_, must) in enumerate(zip(tensor.stride(), stride)):
            if is_ != must and tensor.shape[i] > 1 and tensor.numel():
                raise ValueError(f"{name}: dimension {i} has stride {is_}, but must have {must}: it must be contiguous")


class Plan:
    """A call with operands of these sizes on this GPU (its index; -1: an emulated one)."""

    def __init__(self, total_m: int, n: int, k: int, experts: int, device: int):
        self.expected = expectations(total_m, n, k, experts)
        self.dtypes = tuple(dtype for _, dtype, _, _ in self.expected)
        self.shapes = tuple(torch.Size(self.expected[i][2]) for i in (1, 3, 4, 5))
        self.out_shape, self.sizes, self.device, self.total_m = (total_m, n), (total_m, n, k, experts), device, total_m
        self.launcher = self.words = None

    def __call__(self, tensors: tuple) -> None:
        """Launch; ValueError unless the tensors are as they must be."""
        a, a_scale, b, b_scale, m_indptr, out = tensors
        device = self.device
        try:  # the shapes of a and b led here
            right = (
                (a.dtype, a_scale.dtype, b.dtype, b_scale.dtype, m_indptr.dtype, out.dtype) == self.dtypes
                and (a_scale.shape, b_scale.shape, m_indptr.shape, out.shape) == self.shapes
                and a.get_device() == a_scale.get_device() == b.get_device() == b_scale.get_device() == device
                and m_indptr.get_device() == out.get_device() == device
                and a.is_contiguous() and a_scale.is_contiguous() and b.is_contiguous() and b_scale.is_contiguous()
                and m_indptr.is_contiguous() and out.is_contiguous()
                and device >= 0  # an emulated GPU's memory is the CPU's: several kinds of tensors have no index
            )  # fmt: skip
        except AttributeError:  # no tensor
            right = False
        if not right:
            complain(tensors, self.expected)
        if self.total_m:
            if self.launcher is None:
                of, (total_m, n, k, experts) = tensors[0].device, self.sizes
                made = launcher(of, back_end(of).tuning().choose(total_m, experts, n, k))
                self.words = made.words(made.grid, *self.sizes)
                self.launcher = made  # last, as other threads look at it
            self.launcher.launch(tensors, self.words)


@functools.lru_cache(maxsize=4096)
def plan(of_a: torch.Size, of_b: torch.Size, device: int) -> Plan:
    """The call for these shapes of a and b; ValueError if the kernel does not do their sizes."""
    return Plan(of_a[0], of_b[1], of_a[1], of_b[0], device)


class Launcher:
    """One compiled kernel on one GPU."""

    def __init__(self, device: torch.device, config: Config):
        self.program = Program(back_end(device).of(config), WORDS)
        self.config, self.device = config, device
        self.scratch, self.owned, self.index = {}, {}, (device.index or 0) if device.type == "cuda" else -1
        if self.index >= 0:
            sms = torch.cuda.get_device_properties(device).multi_processor_count
            # What torch.cuda.current_device, is_current_stream_capturing and current_stream call, without their checks
            self.current_device, self.capturing = torch._C._cuda_getDevice, torch._C._cuda_isCurrentStreamCapturing
            self.current = functools.partial(torch._C._cuda_getCurrentRawStream, self.index)
        else:
            sms, self.current = emulated_chip().sms, int
            self.current_device, self.capturing = lambda: self.index, bool
        self.grid = sms // config.launched * config.launched  # CTAs
        self.words = functools.lru_cache(maxsize=4096)(self.words)

    def words(self, most: int, total_m: int, n: int, k: int, experts: int) -> tuple[int, ...]:
        """What the kernel wants to know of a problem."""
        return total_m, n, k, experts, first_step(experts), self.config.grid(most, total_m, n, experts)

    def addresses(self, stream: int) -> tuple[int, int]:
        """Of the partial sums and their flags, which launches in one order share: of a stream, or captured together.

        What is allocated while a graph is captured is that graph's, and is filled when it is replayed.
        """
        if self.capturing():
            stream = captured(stream)
        if stream not in self.scratch:
            partials = torch.empty(self.grid * self.config.partial_bytes // 4, dtype=I32, device=self.device)
            if self.config.polled:
                partials.fill_(EMPTY)
            scratch = partials, torch.zeros(self.grid * GROUPS, dtype=I32, device=self.device)
            scratch = scratch if self.index >= 0 else emulated(scratch)
            self.scratch[stream], self.owned[stream] = (scratch[0].data_ptr(), scratch[1].data_ptr()), scratch
        return self.scratch[stream]

    def __call__(self, tensors: tuple, total_m: int, n: int, k: int, experts: int) -> None:
        """Launch. The tensors must be as `expectations` says."""
        self.launch(tensors, self.words(self.grid, total_m, n, k, experts))

    def launch(self, tensors: tuple, words: tuple[int, ...]) -> None:
        """The same with what `words` gave for their sizes."""
        if self.current_device() != self.index:
            raise ValueError(f"a is on {self.device}, but must be on torch's current device")
        stream = self.current()
        addresses = [tensor.data_ptr() for tensor in tensors]
        if (addresses[0] | addresses[1] | addresses[2] | addresses[5]) % 16:
            name = next(name for name, i in (("a", 0), ("a_scale", 1), ("b", 2), ("out", 5)) if addresses[i] % 16)
            raise ValueError(f"{name} starts at an address that is not a multiple of 16, but must")
        self.program(*addresses, *self.addresses(stream), *words, stream)


def captured(stream: int) -> tuple:
    """What names the graph that is being captured on a stream: its launches are in one order."""
    return "capture", runtime.cudaStreamGetCaptureInfo(stream)[2]


def emulated_chip():
    """The emulated GPU, whose memory is the CPU's."""
    from emulator import DEVICE

    return DEVICE.chip


@functools.cache
def back_end(device: torch.device) -> type[GroupedGemm]:
    """The kernel for this GPU. Raises ValueError if there is none."""
    on_gpu = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if on_gpu else emulated_chip().capability
    if capability not in ((9, 0), (10, 0)):
        raise ValueError(f"a is on a GPU of compute capability {capability}, but must be on one of (9, 0) or (10, 0)")
    return GroupedGemm if capability == (9, 0) else GroupedGemmSm100


def emulated(tensors: tuple) -> tuple:
    """Tensors in the memory of the emulated GPU."""
    from emulator import device_tensors

    return device_tensors(tensors, "made by grouped_gemm_fp8")


launcher = functools.lru_cache(maxsize=64)(Launcher)
