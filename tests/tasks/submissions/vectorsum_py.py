"""Triton. wrong: `i < n, other=0.0` -> `i < n - 1, other=0.0`"""

import triton
import triton.language as tl


@triton.jit
def partial(x, sums, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(x + i, i < n, other=0.0)))


def custom_kernel(data):
    x, output = data
    n = x.numel()
    while n > 1:
        count = triton.cdiv(n, 1024)
        sums = output if count == 1 else x.new_empty(count)
        partial[(count,)](x, sums, n, BLOCK=1024)
        x, n = sums, count
    return output
