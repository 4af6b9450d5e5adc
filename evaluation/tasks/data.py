"""What a task's inputs and a submission's results may be: anything with tensors in it, whose memory lies elsewhere.

Inputs go from the judge to the submission's process as a pickle without the tensors, of which each is described by
where it is. What comes back is believed no further than JSON: tuples, lists and dicts of tensors and plain values.
"""

import base64
import functools
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch

DEPTH = 16  # of what a submission returns


class _Pickler(pickle.Pickler):
    def __init__(self, file, place: Callable):
        super().__init__(file)
        self.place = place

    def persistent_id(self, item):
        return self.place(item) if isinstance(item, torch.Tensor) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, build: Callable):
        super().__init__(file)
        self.build = build

    def persistent_load(self, pid):
        return self.build(pid)


def packed(data, place: Callable[[torch.Tensor], object]) -> bytes:
    """Pickles data with place(tensor) in place of each tensor. Raises ValueError for what cannot be."""
    file = io.BytesIO()
    try:
        _Pickler(file, place).dump(data)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(f"generate_input returned what cannot be sent to another process: {error}") from None
    return file.getvalue()


def unpacked(data: bytes, build: Callable):
    """Makes the data again, with build(what `place` gave) for each tensor. The bytes must be the judge's own."""
    return _Unpickler(io.BytesIO(data), build).load()


def tensors(data) -> list[torch.Tensor]:
    """Lists the tensors in data, each once, in the order in which they are found."""
    found: dict[int, torch.Tensor] = {}
    packed(data, lambda tensor: found.setdefault(id(tensor), tensor) is None)
    return [*found.values()]


def copied(data):
    """Copies data with its tensors, as the grader does for each call."""
    copies = []

    def place(tensor) -> int:
        copies.append(tensor.clone())
        return len(copies) - 1

    return unpacked(packed(data, place), copies.__getitem__)


def form(data) -> bytes:
    """Gives all of data but what is in its tensors: what another call may differ in without getting tensors of its
    own."""
    storages: dict[int, int] = {}

    def place(tensor: torch.Tensor) -> tuple:
        storage = tensor.untyped_storage()
        number = storages.setdefault(storage.data_ptr() if storage.nbytes() else -id(tensor), len(storages))
        where = number, storage.nbytes(), tensor.storage_offset(), str(tensor.device), str(tensor.dtype)
        return *where, tuple(tensor.shape), tensor.stride()

    return packed(data, place)


def same(data, other) -> bool:
    """Tells whether two data have the same bits in all of their tensors, and the same values beside them."""
    found: tuple[list, list] = [], []

    def place(tensor, into: list) -> int:
        into.append(tensor)
        return len(into)

    plain = [packed(of, functools.partial(place, into=into)) for of, into in zip((data, other), found)]
    return plain[0] == plain[1] and all(map(_same_bits, *found))


def _same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if (tensor.shape, tensor.dtype) != (other.shape, other.dtype):
        return False
    bits = [t.contiguous().view(-1).view(torch.uint8) if t.numel() else t for t in (tensor, other)]
    return bool(torch.equal(*bits))


def as_text(data: bytes) -> str:
    return base64.b85encode(data).decode()


def as_bytes(text: str) -> bytes:
    return base64.b85decode(text)


def tensor_at(view: Callable, spec: dict) -> torch.Tensor:
    """Makes the live tensor that a spec describes: address and bytes of its storage, offset (in elements), shape,
    stride, dtype. view(address, bytes): uint8 array. Raises ValueError."""
    dtype = getattr(torch, str(spec["dtype"]).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{spec['dtype']} is no dtype")
    shape, stride = ([int(n) for n in spec[name]] for name in ("shape", "stride"))
    if min([*shape, *stride], default=0) < 0 or len(shape) != len(stride):
        raise ValueError("a negative size")
    size = int(spec["bytes"])
    flat = torch.from_numpy(view(int(spec["address"]), size)) if size else torch.empty(0, dtype=torch.uint8)
    try:
        return flat.view(dtype).as_strided(shape, stride, int(spec["offset"]))
    except RuntimeError as error:
        raise ValueError(f"no tensor: {error}") from None


class NoResult(ValueError):
    """Raised for what no result may have in it; the message says what a submission returned."""


def described(value, depth: int = 0) -> dict:
    """Describes a submission's result as JSON: {"tensor": spec}, {"tuple": [..]}, {"list": [..]}, {"dict": [[name,
    value], ..]}, {"value": plain}, or {"other": what it is}."""
    if depth > DEPTH:
        return {"other": f"what is nested more than {DEPTH} times"}
    if isinstance(value, torch.Tensor):
        # From the first element on: the storage of a result may be larger than the memory that is the submission's
        with torch._C.DisableTorchFunctionSubclass():  # to describe a result must not be what computes it
            spec = {
                "address": value.data_ptr(), "shape": list(value.shape), "stride": list(value.stride()), "offset": 0,
                "dtype": str(value.dtype), "device": str(value.device),
            }  # fmt: skip
            spec["bytes"] = extent(spec["shape"], spec["stride"], value.element_size())
        return {"tensor": spec}
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [described(item, depth + 1) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": [[key, described(item, depth + 1)] for key, item in value.items()]}
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    return {"other": type(value).__name__}


def kind_of(spec: dict) -> tuple[str, str, Any]:
    """Reads a description: what it is of, the name of that type, and the rest. Raises ValueError or AttributeError."""
    ((kind, content),) = spec.items()
    names = {"tensor": "Tensor", "value": type(content).__name__, "other": str(content)[:100]}
    return kind, names.get(kind, kind), content


def rebuilt(spec, build: Callable, depth: int = 0):
    """Makes the result that `described` has described, with build(spec) for each tensor. Raises NoResult, or another
    ValueError, KeyError or TypeError for what it cannot have."""
    if depth > DEPTH + 1:  # where `described` has said so
        raise ValueError("nested too deep")
    kind, name, content = kind_of(spec)
    if kind == "tensor":
        return build(content)
    if kind in ("tuple", "list"):
        items = [rebuilt(item, build, depth + 1) for item in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {str(name): rebuilt(item, build, depth + 1) for name, item in content}
    if kind == "value" and (content is None or type(content) in (bool, int, float, str)):
        return content
    if kind == "other":
        raise NoResult(f"custom_kernel returned {name}: neither a tensor nor a tuple, list or dict of them")
    raise ValueError(f"{kind} is nothing that a result is made of")


def extent(shape, stride, itemsize: int) -> int:
    """Counts the bytes from the first element of a tensor to the end of its last."""
    return itemsize * (sum((n - 1) * step for n, step in zip(shape, stride)) + 1) if 0 not in tuple(shape) else 0
