"""Doubles a vector by a CuTe DSL kernel: on a GPU as it is, anywhere by `python -m emulated_gpu run docs/scale.py`."""

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def double(x: cute.Tensor, y: cute.Tensor):
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    i = block * 64 + thread
    y[i] = x[i] * 2


@cute.jit
def run(x: cute.Tensor, y: cute.Tensor, blocks: cutlass.Constexpr):
    double(x, y).launch(grid=[blocks, 1, 1], block=[64, 1, 1])


x = torch.arange(256, dtype=torch.int32, device="cuda")
y = torch.empty_like(x)
run(from_dlpack(x), from_dlpack(y), 4)  # 5 blocks would write past the end: try it on the emulated GPU
assert torch.equal(y, 2 * x)
print("right, on", torch.cuda.get_device_name())
