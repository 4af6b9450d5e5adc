"""How most kernels begin: on the host, which reads their words and launches on the CUDA stream that is the last; and on
the GPU.
"""

from collections.abc import Callable

import cutlass.cute as cute
from cutlass import Int32, Int64
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


def own_place() -> tuple[Int32, Int32, Int32, Int32]:
    """Return a thread's warp in its CTA, its lane, its CTA, and how many of these there are."""
    warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), cute.arch.lane_idx()
    block, _, _ = cute.arch.block_idx()
    grid, _, _ = cute.arch.grid_dim()
    return warp, lane, block, grid
