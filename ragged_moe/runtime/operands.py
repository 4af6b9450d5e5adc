"""What a call's tensors must be, and the sentence that says which one is not so."""

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from ragged_moe.runtime.device import Device

MAX_ROWS = 2**24  # tokens, N and K stay below: iterations of the tile scheduler are counted in 31 bits


class Operand(NamedTuple):
    """Says what a tensor must be."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


def contiguous(name: str, dtype: torch.dtype, *shape: int) -> Operand:
    """A contiguous tensor of this shape."""
    return Operand(name, dtype, torch.Size(shape), tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))))


def said(x: object) -> str:
    """What a sentence says of an argument: its value, or what it is if that could be long, or on a GPU."""
    return repr(x) if x is None or isinstance(x, (bool, int, float, str)) else f"a {type(x).__name__}"


def is_int(x: object) -> bool:
    """Whether it is an integer, not a bool."""
    return isinstance(x, numbers.Integral) and not isinstance(x, bool)


def require_int(name: str, x: object, least: int, most: int | None = None, most_is: str = "") -> None:
    """ValueError unless an argument is an int, no bool, from `least` on, up to `most`, which is called `most_is`."""
    if not is_int(x) or x < least or most is not None and x > most:
        rule = f"that is at least {least}" if most is None else f"from {least} to {most_is}{most}"
        raise ValueError(f"{name} is {said(x)}, but must be an int {rule}")


def require(operand: str, dimension: str, size: int, multiple: int, least: int, most: int) -> None:
    """ValueError unless a dimension has an allowed size."""
    if not is_int(size) or not least <= size <= most or size % multiple:
        rule = f"a multiple of {multiple} from {least} to {most}" if multiple > 1 else f"from {least} to {most}"
        raise ValueError(f"{operand}: dimension {dimension} is {said(size)}, but must be {rule}")


def require_together(name: str, tensor: torch.Tensor, first: tuple[torch.Tensor, str]) -> None:
    """ValueError unless a tensor is where the first is, which is given with its name."""
    if tensor.device != first[0].device:
        raise ValueError(f"{name} is on {tensor.device}, but must be on {first[0].device}, as {first[1]} is")


def complain(tensors: Iterable, expected: Iterable[Operand], first: tuple[torch.Tensor, str]) -> None:
    """ValueError that says which tensor is not as it must be; none if all are.

    first: the tensor whose device all must be on, and its name. Strides of dimensions of one element do not matter.
    """
    for tensor, (name, dtype, shape, stride) in zip(tensors, expected):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} is {said(tensor)}, but must be a tensor")
        if tensor.layout is not torch.strided or tensor.is_neg():  # else its memory would be read as its numbers
            what = "negated when it is read" if tensor.layout is torch.strided else tensor.layout
            raise ValueError(f"{name} is {what}, but must have its numbers in its memory: resolve_neg() or to_dense()")
        if tensor.dtype is not dtype:
            raise ValueError(f"{name} has type {tensor.dtype}, but must have {dtype}")
        require_together(name, tensor, first)
        if tensor.shape != shape:
            for i, (size, must) in enumerate(zip(tensor.shape, shape)):
                if len(tensor.shape) == len(shape) and size != must:
                    raise ValueError(f"{name}: dimension {i} is {size}, but must be {must}")
            dims = tuple(shape)
            raise ValueError(f"{name} has {tensor.dim()} dimensions, but must have the {len(shape)} of {dims}")
        for i, (is_, must) in enumerate(zip(tensor.stride(), stride)):
            if is_ != must and tensor.shape[i] > 1 and tensor.numel():
                raise ValueError(f"{name}: dimension {i} has stride {is_}, but must have {must}: it must be contiguous")


def misaligned(name: str, multiple: int = 16) -> ValueError:
    """The complaint about a tensor that does not start at a multiple of this many bytes."""
    return ValueError(f"{name} starts at an address that is not a multiple of {multiple}, but must")


def address(tensor: torch.Tensor) -> int:
    """Where a tensor begins; 0 if it has no memory, as those of torch's tracers."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def addresses(
    gpu: Device, tensors: Sequence[torch.Tensor], expected: Sequence[Operand], aligned: Iterable[int],
    multiple: int = 16,
) -> list[int]:  # fmt: skip
    """Where each tensor begins; ValueError for one that the GPU's kernels cannot reach.

    expected: what the tensors are, already checked. aligned: which must begin at a multiple of this many bytes.
    """
    try:
        found = [tensor.data_ptr() for tensor in tensors]
    except RuntimeError:
        found = [address(tensor) for tensor in tensors]
    for i in aligned:
        if found[i] % multiple:
            raise misaligned(expected[i].name, multiple)
    if not gpu.reaches(tensors, found):
        for tensor, at, (name, *_) in zip(tensors, found, expected):
            if not gpu.reaches((tensor,), (at,)):
                raise ValueError(f"{name} {gpu.unreachable}")
    return found


def of_any_strides(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: Sequence[int], hidden: torch.Tensor, gpu: Device
) -> None:
    """ValueError unless a tensor has this type and shape, and is on the GPU, where hidden is; its strides are free."""
    found = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else tensor
    if found != tuple(shape):
        raise ValueError(f"{name} is {found}, but must have shape {tuple(shape)}")
    expected = (Operand(name, dtype, tensor.shape, tensor.stride()),)
    complain((tensor,), expected, (hidden, "hidden"))
    if tensor.numel():  # its memory, from the first to the last
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        addresses(gpu, (tensor.as_strided((last + 1,), (1,)),), expected, ())


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Where the memory of a tensor begins, and its bytes up to the last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), (last + 1) * tensor.element_size() if tensor.numel() else 0


def require_apart(name: str, written: torch.Tensor, others: Iterable[tuple[str, torch.Tensor | None]]) -> None:
    """ValueError if what a call writes shares memory with one of these operands, of which it may still read."""
    begin, nbytes = extent(written)
    for other, tensor in others:
        at, size = (0, 0) if tensor is None else extent(tensor)
        if -size < at - begin < nbytes and size:
            raise ValueError(f"{name} shares memory with {other}, but must not")
