"""Triton. wrong: `before + sum` -> `sum`"""

import triton
import triton.language as tl


@triton.jit
def scan(x, y, n, BLOCK: tl.constexpr):
    before = 0.0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        values = tl.load(x + i, i < n, other=0.0)
        sum = tl.cumsum(values)
        tl.store(y + i, before + sum, i < n)
        before += tl.sum(values)


def custom_kernel(data):
    x, y = data
    scan[(1,)](x, y, x.numel(), BLOCK=256)
    return y
