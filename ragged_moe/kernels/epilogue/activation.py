"""What GEMM1's epilogues make of up and gate: SwiGLU and its variants, in f32."""

import cutlass.cute as cute
from cutlass import Float32

from ragged_moe.kernels.config import Activation
from ragged_moe.kernels.ptx import select_float

LOG2_E = 1.4426950408889634


def product(activation: Activation, first: Float32, second: Float32) -> Float32:
    """silu(gate) * up, or a variant of it, of results of the weights' first rows and of their second ones."""
    return products(activation, [first], [second])[0]


def each_product(x: list[Float32], y: list[Float32]) -> list[Float32]:
    """x * y of each pair."""
    return [a * b for a, b in zip(x, y)]


def products(
    activation: Activation, first: list[Float32], second: list[Float32], multiply=each_product
) -> list[Float32]:
    """`product` of each pair, step by step: none waits for another. multiply: how values of two lists are."""
    gate, up = (first, second) if activation.gate_first else (second, first)
    if activation.limit is not None:  # NaN stays NaN
        most = Float32(activation.limit)
        gate = [select_float(g > most, most, g) for g in gate]
        up = [select_float(u > most, most, select_float(u < -most, -most, u)) for u in up]
    if activation.shift:
        up = [u + Float32(activation.shift) for u in up]
    x = multiply(gate, [Float32(-LOG2_E * activation.alpha)] * len(gate))
    x = [cute.math.exp2(e, fastmath=True) for e in x]
    x = [Float32(1.0) + e for e in x]
    x = [cute.arch.rcp_approx(e) for e in x]
    return multiply(up, multiply(gate, x))
