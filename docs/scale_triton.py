"""Doubles a vector by a Triton kernel: on a GPU as it is, anywhere by `python -m emulated_gpu run
docs/scale_triton.py`."""

import torch
import triton
import triton.language as tl


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n) * 2, i < n)  # without the masks the last block writes past the end: try it


x = torch.arange(200, dtype=torch.int32, device="cuda")
y = torch.empty_like(x)
double[(4,)](x, y, 200, BLOCK=64)
assert torch.equal(y, 2 * x)
print("right, on", torch.cuda.get_device_name())
