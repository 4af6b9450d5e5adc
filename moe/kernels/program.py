"""`Program`: a kernel compiled once, or loaded from the disk, and launched often; arguments are words of the host."""

import ctypes
import struct
import threading

import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.runtime import make_ptr

from moe.kernels import disk_cache


class Program:
    """A compiled kernel; calling it with its words launches it on the current GPU.

    host: its `__call__` is a @cute.jit function of a pointer to `words` 64-bit words. variant: tells it from all others
    of its class. RuntimeError if a launch fails.
    """

    def __init__(self, host, words: int, variant: str):
        self.lock = threading.Lock()  # held from writing the words to the end of the launch
        self.words, self.struct = (ctypes.c_int64 * words)(), struct.Struct(f"{words}q")
        pointer = make_ptr(Int64, ctypes.addressof(self.words), cute.AddressSpace.generic)
        executor = compiled(host, variant, pointer).to()
        arguments, _ = executor.generate_execution_args(pointer)
        array = executor._get_invoke_packed_args(arguments)
        self.keep = executor, arguments, array, pointer
        self.function, self.packed, self.result = executor.capi_func, ctypes.addressof(array), executor.cuda_result

    def __call__(self, *words: int) -> None:
        with self.lock:
            self.struct.pack_into(self.words, 0, *words)
            self.function(self.packed)
            result = self.result.value
        if result:
            raise RuntimeError(f"launch failed with CUDA error {result}")


def compiled(host, variant: str, pointer: cute.Pointer):
    """The host function, compiled for this pointer's type."""
    if not disk_cache.is_on():
        return cute.compile(host, pointer)
    name = disk_cache.key(host, variant)
    found = disk_cache.load(name)
    if found is None:
        found = cute.compile(host, pointer)
        disk_cache.store(name, found)
    return found


def float_bits(x: float) -> int:
    """Return a word whose lower half has the bits of x as f32."""
    return struct.unpack("I", struct.pack("f", x))[0]
