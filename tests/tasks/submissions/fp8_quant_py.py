"""Triton. wrong: `/ 448.0` -> `/ 440.0`"""

import triton
import triton.language as tl


@triton.jit
def quantize(x, quantized, scales, GROUP: tl.constexpr):
    i = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    values = tl.load(x + i)
    scale = tl.maximum(tl.max(tl.abs(values)), 1e-10) / 448.0
    tl.store(quantized + i, tl.minimum(tl.maximum(values / scale, -448.0), 448.0))
    tl.store(scales + tl.program_id(0), scale)


def custom_kernel(data):
    x, quantized, scales = data
    quantize[(scales.numel(),)](x, quantized, scales, GROUP=x.numel() // scales.numel())
    return quantized, scales
