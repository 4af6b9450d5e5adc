"""Triton. wrong: `mask=i < n` -> `mask=i < n - 1`"""

import triton
import triton.language as tl


@triton.jit
def histogram(x, bins, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i, i < n, other=0)
    tl.atomic_add(bins + values.to(tl.int32), tl.full((BLOCK,), 1, tl.int64), mask=i < n)


def custom_kernel(data):
    x, bins = data
    bins.zero_()
    histogram[(triton.cdiv(x.numel(), 1024),)](x, bins, x.numel(), BLOCK=1024)
    return bins
