"""`emulated_gpu.launch`: a kernel of a PTX text, on NumPy arrays and CPU tensors."""

from __future__ import annotations

import ctypes
import weakref
from functools import partial
from typing import ClassVar

import numpy as np

from .device import DEVICE, allocate
from .errors import Unsupported

CUDA_ALIGNMENT = 256  # what cudaMalloc promises


def _triple(x) -> tuple[int, int, int]:
    x, y, z = (*((x,) if isinstance(x, int) else x), 1, 1)[:3]
    return int(x), int(y), int(z)


def _extent(a) -> tuple[int, int]:
    """Return (address, bytes) of what a kernel gets to see of a NumPy array or a torch tensor."""
    return (a.ctypes.data, a.nbytes) if isinstance(a, np.ndarray) else (a.data_ptr(), a.untyped_storage().nbytes())


def _allocation(a) -> tuple[object, int, int, bool]:
    """Return (owner, address, bytes, whether it may be written) of the memory that an array or tensor is part of."""
    if not isinstance(a, np.ndarray):
        storage = a.untyped_storage()
        return storage, storage.data_ptr(), storage.nbytes(), True
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a, a.ctypes.data, a.nbytes, a.flags.writeable


class Staged:
    """Copies in device memory of arguments that lie where a GPU's memory could not, or where a launch cannot see them.

    NumPy and torch give memory that is aligned to 16 or 64 bytes, cudaMalloc to 256. All of an allocation is copied,
    so that views of it keep their distances, and lies at one address as long as its owner lives: what launches do to
    each other goes by addresses. One that somebody has aligned stays where it is.
    """

    kept: ClassVar[dict[int, tuple[weakref.ref, np.ndarray]]] = {}  # by address: the owner, the copy

    def __init__(self, args):
        self.copies: dict[int, tuple[np.ndarray, int, bool]] = {}  # address -> copy, bytes, whether it may be written
        later = DEVICE.session.recorded is not None or DEVICE.session.timed is not None  # it runs when we are gone
        for a in args:
            if isinstance(a, (int, float, np.integer, bytes, bytearray)):
                continue
            (address, size), (owner, start, whole, writable) = _extent(a), _allocation(a)
            misplaced = DEVICE.heap is not None or not later and address % CUDA_ALIGNMENT and start % CUDA_ALIGNMENT
            if misplaced and size and start not in self.copies and not DEVICE.memory.covers(address, size):
                copy = self.copy_of(owner, start, whole)
                self.copies[start] = copy, whole, writable
                ctypes.memmove(copy.ctypes.data, start, whole)

    @classmethod
    def copy_of(cls, owner, start: int, size: int) -> np.ndarray:
        """Return the memory for copies of an allocation."""
        found = cls.kept.get(start)
        if found is None or found[0]() is not owner:
            found = cls.kept[start] = weakref.ref(owner, partial(cls.forget, start)), allocate(size)
        return found[1]

    @classmethod
    def forget(cls, start: int, owner: weakref.ref) -> None:
        """An owner is gone."""
        if start in cls.kept and cls.kept[start][0] is owner:
            del cls.kept[start]

    def place(self, a) -> tuple[int, object]:
        """Return (address, owner) of the memory that the kernel gets for an array."""
        address, start = _extent(a)[0], _allocation(a)[1]
        if start not in self.copies:
            return address, a
        copy = self.copies[start][0]
        return copy.ctypes.data + address - start, copy

    def give_back(self) -> None:
        """Copy what the kernel has made of the copies to where they come from."""
        for start, (copy, size, writable) in self.copies.items():
            if writable:
                ctypes.memmove(start, copy.ctypes.data, size)


def launch(
    ptx: str, kernel: str, grid, block, args, *, cluster=None, shared: int = 0, pdl: bool = False,
    cooperative: bool = False, device: int | None = None,
) -> None:  # fmt: skip
    """Run a kernel of a PTX text, on the current device or that one.

    grid, block, cluster: ints or up to three of them. args: one for each parameter, in order: an int (of its
    size), a float (f32 or f64 by size), bytes (by value: structs, tensormaps), a NumPy array or a CPU torch tensor
    (passed as a pointer: the kernel works on its memory, or on a copy that has a GPU's alignment and is copied back).
    shared: dynamic bytes. pdl: a dependent launch; cooperative: one whose CTAs all run at once. Of several devices, the
    kernel runs when somebody waits for it (`synchronize`), always on the memory that it is passed, which is that of the
    first device that got it and which the others may access. Raises EmulatorError: Unsupported, Fault or Hang.
    """
    if device is not None:
        with DEVICE.on(device):
            return launch(
                ptx, kernel, grid, block, args, cluster=cluster, shared=shared, pdl=pdl, cooperative=cooperative
            )
    module = DEVICE.module(ptx)
    parameters = module.program(kernel).kernel.params
    if len(args) != len(parameters):
        raise Unsupported(f"{kernel} takes {len(parameters)} arguments, {len(args)} given")
    block_bytes = bytearray(module.program(kernel).kernel.param_bytes)
    held, alive = [], []
    staged = Staged(args if DEVICE.node is None else ())
    for n, (p, a) in enumerate(zip(parameters, args, strict=True)):
        if isinstance(a, float):
            a = np.array(a, f"f{p.size}").tobytes()
        elif isinstance(a, (int, np.integer)):
            a = (int(a) & ((1 << 8 * p.size) - 1)).to_bytes(p.size, "little")
        elif not isinstance(a, (bytes, bytearray)):
            address, owner = staged.place(a)
            size = _extent(a)[1]
            if not DEVICE.memory.covers(address, size) and DEVICE.node is not None:
                alive.append(a)
                DEVICE.lend(a, address, size, f"argument {n}")
            elif not DEVICE.memory.covers(address, size):
                held.append(DEVICE.memory.register(address, size, f"argument {n}", owner=owner))
            a = address.to_bytes(p.size, "little")
        if len(a) > p.size:
            raise Unsupported(f"argument {n} has {len(a)} bytes, parameter {p.name} {p.size}")
        block_bytes[p.offset : p.offset + len(a)] = a
    try:
        DEVICE.launch(
            module, kernel, _triple(grid), _triple(block), bytes(block_bytes),
            cluster=None if cluster is None else _triple(cluster), dynamic_shared=shared, pdl=pdl,
            cooperative=cooperative, held=alive,
        )  # fmt: skip
    finally:
        staged.give_back()
        if DEVICE.session.recorded is not None:
            DEVICE.session.recorded[-1].held = held  # until it has run
        elif DEVICE.session.timed:
            DEVICE.session.timed[-1].held += held  # somebody may ask how long it takes
        else:
            for region in held:
                DEVICE.forget(region)
        DEVICE.session.failure = None
