"""Tensors of a task's data at places in memory that the judge and the submission's process share."""

import numpy as np
import torch

from emulator.arena import BASE, Arena, Heap
from evaluation.judge import inputs

OURS = 2**36  # bytes of that memory for inputs and results; what is not touched costs nothing
THEIRS = BASE + OURS  # where what the submission's process allocates begins
DTYPES = {str(dtype): dtype for dtype in (torch.float16, torch.float4_e2m1fn_x2, torch.float8_e4m3fn)}


def tensor_at(arena: Arena, spec: dict) -> torch.Tensor:
    """Makes the live CPU tensor that a spec describes: address, bytes, shape, stride, dtype (a key of DTYPES)."""
    array = arena.view(spec["address"], spec["bytes"])
    flat = torch.from_numpy(array) if spec["bytes"] else torch.empty(0, dtype=torch.uint8)
    return flat.view(DTYPES[spec["dtype"]]).as_strided(spec["shape"], spec["stride"])


def rebuilt(spec, build):
    """Builds the data that a spec describes, with build(spec of a tensor) for each of its tensors."""
    if isinstance(spec, dict):
        return tuple(rebuilt(item, build) for item in spec["tuple"]) if "tuple" in spec else build(spec)
    return [rebuilt(item, build) for item in spec] if isinstance(spec, list) else spec


class Placed:
    """Puts data like `like` into memory of its own: zeros until they are filled. `spec` tells another process where."""

    def __init__(self, like: tuple, on_host: tuple[int, ...], heap: Heap):
        self.heap, self.taken, self.device = heap, [], []
        items = [
            self._place(item, f"tensor[{i}]", device=i not in on_host) for i, item in enumerate(like)
        ]  # fmt: skip
        self.spec = {"tuple": items}
        self.data = rebuilt(self.spec, lambda spec: tensor_at(heap.arena, spec))

    def _place(self, item, name: str, device: bool):
        if isinstance(item, torch.Tensor):
            size = item.untyped_storage().nbytes()
            address = self.heap.take(size).ctypes.data
            self.taken.append((address, size))
            spec = {
                "address": address, "bytes": size, "shape": list(item.shape), "stride": list(item.stride()),
                "dtype": str(item.dtype), "name": name, "device": device,
            }  # fmt: skip
            if device:
                self.device.append(spec)
            return spec
        if isinstance(item, (list, tuple)):
            parts = [self._place(part, f"{name}[{i}]", device) for i, part in enumerate(item)]
            return {"tuple": parts} if isinstance(item, tuple) else parts
        return item

    def inputs(self, data=None) -> list[torch.Tensor]:
        """Lists the input tensors of the placed data, or of some like it, in a fixed order."""
        data = self.data if data is None else data
        return inputs.operands(data) + inputs.scales(data)

    def output_addresses(self) -> set[int]:
        return {c.data_ptr() for c in inputs.outputs(self.data) if c.numel()}

    def fill(self, data) -> None:
        """Writes the inputs of `data`, and NaN into c."""
        for tensor, source in zip(self.inputs(), self.inputs(data)):
            inputs.as_bytes(tensor).copy_(inputs.as_bytes(source))
        for c in inputs.outputs(self.data):
            c.fill_(float("nan"))

    def unchanged(self, data) -> bool:
        """Tells whether the inputs are still those of `data`."""
        pairs = zip(self.inputs(), self.inputs(data))
        return all(np.array_equal(inputs.as_bytes(t).numpy(), inputs.as_bytes(s).numpy()) for t, s in pairs)

    def release(self) -> None:
        for address, size in self.taken:
            self.heap.give(address, size)
        self.taken = []


def taken(*placed: Placed) -> inputs.Taken:
    """Collects the memory of the inputs of placed data."""
    found = inputs.Taken()
    for one in placed:
        outputs = one.output_addresses()
        for address, size in one.taken:
            if address not in outputs:
                found.add(address, size, "an input")
    return found


def described(returned, single: bool) -> dict:
    """Describes what a kernel returned: {"returned": a place for each tensor}, or {"wrong": what is wrong with it}.

    single: it should be one tensor, not a list.
    """
    if single and not isinstance(returned, torch.Tensor):
        return {"wrong": f"custom_kernel returned {type(returned).__name__}, not the tensor c"}
    returned = [returned] if single else returned
    if not isinstance(returned, (list, tuple)):
        return {"wrong": f"custom_kernel returned {type(returned).__name__}, not the list of the c tensors"}
    places = []
    for group, tensor in enumerate(returned):
        if not isinstance(tensor, torch.Tensor):
            return {"wrong": f"group {group}: custom_kernel returned {type(tensor).__name__}, not a tensor"}
        places.append(
            {
                "address": tensor.data_ptr(),
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
                "dtype": str(tensor.dtype),
                "device": str(tensor.device),
            }  # fmt: skip
        )
    return {"returned": places}
