"""Triton. wrong: `tl.load(x + i, mask=i < size)` -> `tl.load(x + i, mask=i < size) * 2`"""

import triton
import triton.language as tl


@triton.jit
def copy(x, y, size, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < size), mask=i < size)


def custom_kernel(data):
    x, y = data
    copy[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
    return y
