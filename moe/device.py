"""The GPU that kernels are launched on: a real one, or the emulated one, whose memory is the CPU's."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Hashable

import torch
from cuda.bindings import runtime


class Device(ABC):
    """What product code asks of a GPU.

    sms: streaming multiprocessors. capability: compute capability. indexed: whether torch.Tensor.get_device() tells its
    tensors from all others.
    """

    sms: int
    capability: tuple[int, int]
    indexed: bool

    @abstractmethod
    def is_current(self) -> bool:
        """Whether it is torch's current device, on which launches go."""

    @abstractmethod
    def stream(self) -> int:
        """Handle of torch's current CUDA stream on it."""

    @abstractmethod
    def order(self) -> Hashable:
        """A name for the order that the next launch is in: the current stream, or the graph that is being captured.

        Launches of one order can share scratch memory. What is allocated while a graph is captured is that graph's, and
        is filled when it is replayed.
        """

    @abstractmethod
    def tensors(self, *made: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tensors that were just made for it, as its kernels may use them."""


class Gpu(Device):
    """A CUDA GPU."""

    indexed = True

    def __init__(self, device: torch.device):
        self.index = device.index or 0
        properties = torch.cuda.get_device_properties(device)
        self.sms, self.capability = properties.multi_processor_count, torch.cuda.get_device_capability(device)

    # What torch.cuda.current_device, current_stream and is_current_stream_capturing call, without their checks

    def is_current(self) -> bool:
        return torch._C._cuda_getDevice() == self.index

    def stream(self) -> int:
        return torch._C._cuda_getCurrentRawStream(self.index)

    def order(self) -> Hashable:
        stream = self.stream()
        if torch._C._cuda_isCurrentStreamCapturing():
            return "capture", runtime.cudaStreamGetCaptureInfo(stream)[2]
        return stream

    def tensors(self, *made: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return made


class EmulatedGpu(Device):
    """The emulated GPU that `emulator.install` has put in place: one, with one stream and no graphs."""

    indexed = False

    @property
    def chip(self):
        """The emulator's description of it."""
        from emulator import DEVICE

        return DEVICE.chip

    @property
    def sms(self) -> int:
        return self.chip.sms

    @property
    def capability(self) -> tuple[int, int]:
        return self.chip.capability

    def is_current(self) -> bool:
        return True

    def stream(self) -> int:
        return 0

    def order(self) -> Hashable:
        return 0

    def tensors(self, *made: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from emulator import device_tensors

        return device_tensors(made, "made by moe")


@functools.cache
def device_of(device: torch.device) -> Device:
    """The GPU that tensors on this torch device are on: CPU tensors are the emulated GPU's."""
    return Gpu(device) if device.type == "cuda" else EmulatedGpu()
