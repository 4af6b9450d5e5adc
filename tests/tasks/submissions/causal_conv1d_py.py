"""Triton. wrong: `tap - (WIDTH - 1)` -> `tap - WIDTH`"""

import torch
import triton
import triton.language as tl


@triton.jit
def convolve(x, weight, bias, out, channels, S, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row, channel = tl.program_id(0), tl.program_id(0) % channels
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32) + tl.load(bias + channel)
    for tap in tl.static_range(WIDTH):
        source = at + tap - (WIDTH - 1)
        values = tl.load(x + row * S + source, mask=(source >= 0) & (at < S), other=0.0)
        sums += values * tl.load(weight + channel * WIDTH + tap)
    tl.store(out + row * S + at, sums, mask=at < S)


def custom_kernel(data):
    x, weight, bias = data
    batch, channels, length = x.shape
    out = torch.empty_like(x)
    grid = batch * channels, triton.cdiv(length, 64)
    convolve[grid](x, weight, bias, out, channels, length, weight.shape[1], BLOCK=64)
    return out
