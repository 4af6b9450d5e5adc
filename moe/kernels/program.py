"""`Program`: a kernel that is compiled once and launched often, with arguments that are 64-bit words in host memory."""

import ctypes
import struct
import threading

import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.runtime import make_ptr


class Program:
    """A compiled kernel; calling it with its words launches it on the current GPU.

    host: a @cute.jit function of a pointer to `words` 64-bit words. RuntimeError if a launch fails.
    """

    def __init__(self, host, words: int):
        self.lock = threading.Lock()  # held from writing the words to the end of the launch
        self.words, self.struct = (ctypes.c_int64 * words)(), struct.Struct(f"{words}q")
        pointer = make_ptr(Int64, ctypes.addressof(self.words), cute.AddressSpace.generic)
        executor = cute.compile(host, pointer).to()
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


def float_bits(x: float) -> int:
    """Return a word whose lower half has the bits of x as f32."""
    return struct.unpack("I", struct.pack("f", x))[0]
