"""The GPU that kernels are launched on: a real one, or the emulated one, whose memory is the CPU's."""

import functools
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from cuda.bindings import runtime
from torch import _C

from ragged_moe.runtime.dispatch import is_eager, keys_of

try:
    from torch._C._dynamo.guards import _empty_strided_cuda as empty_strided
except ImportError:  # torch's own, which a version may be without
    empty_strided = None


class Stream(int):
    """Handle of a CUDA stream, which is told from other numbers by its type."""


class Device(ABC):
    """Answers what product code asks of a GPU.

    sms: streaming multiprocessors. capability: compute capability. indexed: whether torch.Tensor.get_device() tells its
    tensors from all others. unreachable: what is wrong with a tensor that its kernels cannot read. apart: whether parts
    of scratch memory are allocations of their own, for accesses beyond one of them to be seen.
    """

    sms: int
    capability: tuple[int, int]
    indexed: bool
    unreachable: str
    apart: bool
    has_graphs: bool

    @abstractmethod
    def is_current(self) -> bool:
        """Whether it is torch's current device, on which launches go."""

    @abstractmethod
    def stream(self) -> Stream:
        """Handle of torch's current CUDA stream on it."""

    @abstractmethod
    def order(self) -> tuple[int, int]:
        """The order that the next launch is in: the current stream, and the capture into a graph that it is in, or 0.

        Launches of one order run one after the other. What is allocated while a graph is captured is that graph's, and
        is filled when it is replayed.
        """

    def is_of_trees(self, stream: int) -> bool:
        """Whether inductor's CUDA graph trees run a function on this stream, behind which nothing stays allocated."""
        trees = getattr(sys.modules.get("torch._inductor.cudagraph_trees"), "local", None)  # of this thread
        container = getattr(trees, "tree_manager_containers", {}).get(getattr(self, "index", None))
        manager = getattr(container, "tree_manager", None)
        return manager is not None and manager.stream.cuda_stream == stream

    @abstractmethod
    def tensors(self, *made: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tensors that were just made for it, as its kernels may use them."""

    def maker(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Callable[[], torch.Tensor]:
        """Return what makes new contiguous tensors, on torch's current device."""
        return lambda: self.tensors(torch.empty(shape, dtype=dtype, device=device))[0]

    @abstractmethod
    def reaches(self, tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> bool:
        """Whether its kernels can read and write these contiguous tensors, which begin at these addresses."""


class Gpu(Device):
    """A CUDA GPU."""

    indexed = True
    unreachable = "has no memory on the GPU: it is a fake tensor, or one that torch traces"
    apart = False
    has_graphs = True

    def __init__(self, device: torch.device):
        self.index = device.index or 0
        properties = torch.cuda.get_device_properties(device)
        self.sms, self.capability = properties.multi_processor_count, torch.cuda.get_device_capability(device)

    # What torch.cuda.current_device, current_stream and is_current_stream_capturing call, without their checks

    def is_current(self) -> bool:
        return _C._cuda_getDevice() == self.index

    def stream(self) -> Stream:
        return Stream(_C._cuda_getCurrentRawStream(self.index))

    def order(self) -> tuple[int, int]:
        stream = _C._cuda_getCurrentRawStream(self.index)
        if _C._cuda_isCurrentStreamCapturing():
            return stream, int(runtime.cudaStreamGetCaptureInfo(stream)[2])
        return stream, 0

    def tensors(self, *made: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return made

    def maker(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Callable[[], torch.Tensor]:
        """As inductor's code makes them, without torch's dispatcher: in a third of the time of torch.empty."""
        if device.type != "cuda" or empty_strided is None:
            return super().maker(shape, dtype, device)
        stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        return functools.partial(empty_strided, tuple(shape), stride, dtype)

    def reaches(self, tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> bool:
        return 0 not in addresses or all(x or not t.numel() for t, x in zip(tensors, addresses))


class EmulatedGpu(Device):
    """The emulated GPU that `emulated_gpu.install` has put in place: one, with one stream and no graphs."""

    indexed = False
    unreachable = "is not in the emulated GPU's memory: emulated_gpu.device_tensors makes a copy that is"
    apart = True
    has_graphs = False

    @property
    def chip(self):
        """The emulator's description of it."""
        from emulated_gpu import DEVICE

        return DEVICE.chip

    @property
    def sms(self) -> int:
        return self.chip.sms

    @property
    def capability(self) -> tuple[int, int]:
        return self.chip.capability

    def is_current(self) -> bool:
        return True

    def stream(self) -> Stream:
        return Stream(0)

    def order(self) -> tuple[int, int]:
        return 0, 0

    def tensors(self, *made: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from emulated_gpu import device_tensors

        return device_tensors(made, "made by ragged_moe") if is_eager(keys_of(*made)) else made

    def reaches(self, tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> bool:
        from emulated_gpu import DEVICE

        return all(
            not t.numel() or DEVICE.memory.covers(x, t.numel() * t.element_size()) for t, x in zip(tensors, addresses)
        )


def emulated() -> bool:
    """Whether CuTe DSL launches on an emulated GPU in this process, whose tensors torch has on the CPU."""
    return getattr(getattr(sys.modules.get("emulated_gpu"), "DEVICE", None), "served", False)


gpu = functools.cache(Gpu)
EMULATED = EmulatedGpu()


def device_of(device: torch.device, name: str = "a tensor") -> Device:
    """The GPU that tensors on this torch device are on: CPU tensors are the emulated GPU's, if there is one.

    ValueError, in which `name` is the tensor's, if there is no such GPU.
    """
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"{name} is on {device}, but torch finds no CUDA GPU here")
        return gpu(device)
    if device.type == "cpu" and emulated():
        return EMULATED
    raise ValueError(f"{name} is on {device}, but must be on a CUDA GPU")


def current_device() -> torch.device:
    """The torch device that calls without tensors are for: torch's current GPU, else the emulated one.

    ValueError if there is neither.
    """
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if emulated():
        return torch.device("cpu")
    raise ValueError("torch finds no CUDA GPU here")
