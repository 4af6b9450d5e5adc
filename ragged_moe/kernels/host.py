"""What most kernels' host functions do: read words of the host, and launch on the CUDA stream that is the last."""

from collections.abc import Callable

import cutlass.cute as cute
from cutlass import Int64
from cutlass._mlir.dialects import cuda as cuda_ir


def words_and_launch(host: cute.Pointer, count: int) -> tuple[list[Int64], Callable]:
    """Return a kernel's words but the last of this many, the stream, and what launches a kernel on that.

    launch(kernel, ctas, threads) is a dependent launch; `options` are those of a kernel's launch method.
    """
    words = cute.make_tensor(host, cute.make_layout(count))
    stream = cuda_ir.cast(cuda_ir.StreamType.get(), words[count - 1].ir_value())

    def launch(kernel, ctas: Int64, threads: int, **options) -> None:
        kernel.launch(grid=(ctas, 1, 1), block=(threads, 1, 1), stream=stream, use_pdl=True, **options)

    return [words[i] for i in range(count - 1)], launch
