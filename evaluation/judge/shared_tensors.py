"""Tensors of a task's data at places in memory that the judge and the submission's process share."""

import dataclasses
import math
from collections.abc import Callable

import torch

from emulated_gpu.arena import BASE, PAGE, Arena, Heap
from evaluation.judge.inputs import Taken
from evaluation.judge.verdict import Refused
from evaluation.tasks import data as any_data

OURS = 2**36  # bytes of that memory for inputs and results; what is not touched costs nothing
THEIRS = BASE + OURS  # where what the submission's process allocates begins


def torchs(arena: Arena, heap: int) -> int:
    """Finds where torch's memory begins in that of a submission's process, which begins at `heap`."""
    return heap + (arena.end - heap) // 2 // PAGE * PAGE


@dataclasses.dataclass(frozen=True)
class Role:
    """Says what a tensor is for: its name in reports; whether it lies on the device; whether a call gets contents in
    it, and whether kernels may write there. An output gets a poison."""

    name: str
    on_device: bool
    given: bool
    written: bool


@dataclasses.dataclass
class Storage:
    """Holds a tensor's memory: where it lies, its role, on which GPU, and a live view if a call gets no contents in
    it."""

    address: int
    size: int
    role: Role
    index: int = 0
    output: torch.Tensor | None = None


class Placed:
    """Puts data into memory that the submission's process shares; tensors that share a storage do so there, too. It is
    zeros until it is filled. `spec` tells that process where; `device` has the storages on the GPU. `number`: which the
    data has in that process, once it has been told.

    role: of a tensor, which is the first of its storage, given with the number of that.
    """

    def __init__(self, data, heap: Heap, role: Callable[[torch.Tensor, int], Role]):
        self.heap, self.role, self.number = heap, role, None
        self.storages: dict[int, Storage] = {}  # key of the original's -> where its copy is
        tensors: list[dict] = []

        def place(tensor: torch.Tensor) -> int:
            tensors.append(self._place(tensor))
            return len(tensors) - 1

        pickled = any_data.as_text(any_data.packed(data, place))
        self.device = [one for one in self.storages.values() if one.role.on_device]
        registered = [[one.address, one.size, one.role.name, one.index] for one in self.device]
        self.spec = {"pickle": pickled, "tensors": tensors, "storages": registered}
        self.taken = [(one.address, one.size) for one in self.storages.values()]

    def _place(self, tensor: torch.Tensor) -> dict:
        key, storage = _storage(tensor)
        if key not in self.storages:
            role = self.role(tensor, len(self.storages))
            address, index = self.heap.take(storage.nbytes()).ctypes.data, max(0, tensor.get_device())
            self.storages[key] = Storage(address, storage.nbytes(), role, index)
        known = self.storages[key]
        spec = {
            "address": known.address, "bytes": known.size, "shape": list(tensor.shape), "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(), "dtype": str(tensor.dtype), "device": known.role.on_device,
            "index": known.index,
        }  # fmt: skip
        if not known.role.given:
            known.output = any_data.tensor_at(self.heap.arena.view, spec)
        return spec

    def _pairs(self, data):
        """Yields each storage with the bytes of the one in its place in data like that which was placed."""
        found = dict(map(_storage, any_data.tensors(data)))
        if [storage.nbytes() for storage in found.values()] != [size for _, size in self.taken]:
            raise Refused("generate_input gives tensors of other sizes for another seed")
        for one, storage in zip(self.storages.values(), found.values(), strict=True):
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
            yield one, whole.set_(storage).cpu().numpy() if one.size else None

    def fill(self, data, poison: float = math.nan) -> None:
        """Writes the contents of data like that which was placed, and the poison into outputs."""
        for one, content in self._pairs(data):
            if one.output is not None:
                one.output.fill_(poison)
            elif one.size:
                self.heap.arena.view(one.address, one.size)[:] = content

    def unchanged(self, make: Callable[[], object]) -> bool:
        """Tells whether what kernels may not write is still that of the data that `make` makes."""
        guarded = any(not one.role.written for one in self.storages.values())
        return all(
            (self.heap.arena.view(one.address, one.size) == content).all()
            for one, content in (self._pairs(make()) if guarded else ())
            if one.size and not one.role.written
        )

    def outputs(self) -> list[torch.Tensor]:
        """Makes live views of the outputs."""
        return [one.output for one in self.storages.values() if one.output is not None]

    def release(self) -> None:
        for address, size in self.taken:
            self.heap.give(address, size)
        self.taken = []


def unplaced(spec: dict, tensor: Callable[[dict], torch.Tensor]) -> Callable[[], object]:
    """Gives what makes the data of Placed.spec in the submission's process, with the same tensors each time, of which
    tensor(spec) makes each; all else is new."""
    tensors, pickled = [tensor(item) for item in spec["tensors"]], any_data.as_bytes(spec["pickle"])
    return lambda: any_data.unpacked(pickled, tensors.__getitem__)


def _storage(tensor: torch.Tensor) -> tuple[int, torch.UntypedStorage]:
    """Return a tensor's storage and its key: empty ones have no address that tells them apart."""
    storage = tensor.untyped_storage()
    return storage.data_ptr() if storage.nbytes() else -id(tensor), storage


def taken(*placed: Placed) -> Taken:
    """Collects the memory that kernels may not write."""
    found = Taken()
    for one in placed:
        for storage in one.storages.values():
            if not storage.role.written:
                found.add(storage.address, storage.size, "an input")
    return found
