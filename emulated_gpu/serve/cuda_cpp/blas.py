"""What the stand-in for cuBLAS (blas.cpp) asks the emulated device to do: a product of matrices, or a sum of two.

Sums are made in float64 and rounded once to the type in which cuBLAS would make them: a reference to hold kernels
against. cuBLAS itself promises no order. Such a call has no modelled time.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import numpy as np

from ...device import DEVICE
from ...errors import Unsupported
from ...formats import convert
from ...formats.element_types import BF16, E4M3, E5M2, F16, F32, F64, S8, S32, ElementType
from ..driver import cuda_bindings, launches, timed

TYPES: dict[int, ElementType] = {0: F32, 1: F64, 2: F16, 3: S8, 10: S32, 14: BF16, 28: E4M3, 29: E5M2}  # cudaDataType
CONTAINERS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
INTEGERS, DOUBLES = (72, 73), (70, 71)  # cublasComputeType_t
RELU, BIAS, GELU, AUX = 2, 4, 32, 128  # bits of cublasLtEpilogue_t
A, B, C, D = range(4)
SUMS = {"cublasSgeam", "cublasDgeam"}  # alpha op(A) + beta op(B)

_said: set[str] = set()


class Request(ctypes.Structure):
    """As blas.cpp has it."""

    _fields_ = [
        ("name", ctypes.c_char_p), ("stream", ctypes.c_uint64),
        ("m", ctypes.c_int), ("n", ctypes.c_int), ("k", ctypes.c_int), ("batches", ctypes.c_int),
        ("ops", ctypes.c_int * 2), ("types", ctypes.c_int * 4), ("row_major", ctypes.c_int * 4),
        ("epilogue", ctypes.c_int), ("bias_type", ctypes.c_int), ("compute", ctypes.c_int),
        ("at", ctypes.c_uint64 * 4), ("lead", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4),
        ("alpha", ctypes.c_double), ("beta", ctypes.c_double), ("bias", ctypes.c_uint64), ("aux", ctypes.c_uint64),
        ("scales", ctypes.c_uint64 * 3), ("aux_lead", ctypes.c_int64),
    ]  # fmt: skip


def type_of(number: int) -> ElementType:
    if number not in TYPES:
        raise Unsupported(f"cudaDataType {number} in cuBLAS on the emulated device")
    return TYPES[number]


def codes(address: int, shape: tuple[int, int], lead: int, row_major: bool, kind: ElementType) -> np.ndarray:
    """Return a matrix in memory as the codes of its elements [rows, columns], which can be written."""
    width = kind.bits // 8
    along, across = (shape[1], shape[0]) if row_major else shape
    count = (across - 1) * lead + along if along and across else 0
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * (count * width)).from_address(address)).view(CONTAINERS[kind.bits])
    strides = (lead * width, width) if row_major else (width, lead * width)
    return np.lib.stride_tricks.as_strided(flat, shape, strides)


def encoded(values: np.ndarray, kind: ElementType) -> np.ndarray:
    """Return the codes of float64 or integer values, rounded to nearest even."""
    with np.errstate(over="ignore", invalid="ignore"):
        if kind is S32:
            return values.astype(np.int32).view(np.uint32)
        if kind in (F16, F32, F64):
            return values.astype(f"f{kind.bits // 8}").view(CONTAINERS[kind.bits])
        bits = values.astype(np.float32).view(np.uint32)
        if kind is BF16:
            return convert.float_to_float(bits, "f32", "bf16")
        if kind in (E4M3, E5M2):
            return convert.to_small(bits, kind.name).astype(np.uint8)
    raise Unsupported(f"cuBLAS with results of {kind.name} on the emulated device")


def gelu(x: np.ndarray) -> np.ndarray:
    """By tanh, as cuBLASLt documents its epilogue."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def product(at: int) -> None:
    """Do the request at an address, in the order of its stream."""
    r = Request.from_address(at)
    name = r.name.decode()
    if r.epilogue & ~(1 | RELU | BIAS | GELU | AUX):
        raise Unsupported(f"{name} with epilogue {r.epilogue} on the emulated device")
    if min(r.lead) < 0:
        raise Unsupported(f"{name} with a negative increment on the emulated device")
    if timed.on() and name not in _said:
        _said.add(name)
        print(f"emulated-gpu: {name} is done on the CPU: it has no modelled time, and adds none", file=sys.stderr)
    DEVICE.synchronize_all()
    with DEVICE.working(r.stream, name) as work:
        for batch in range(r.batches):
            multiply(r, name, batch, lambda address, size, writes: DEVICE.touched(work, address, size, writes))
    if DEVICE.region_at(r.at[D], 1) is None:  # the host's, which has it when the call returns
        cuda_bindings.synchronize_stream(r.stream)


def multiply(r: Request, name: str, batch: int, touched: Callable[[int, int, bool], None]) -> None:
    """Do the product of a batch, or the sum. Raises WrongCall for operands that go past their memory."""
    shapes = [(r.m, r.k), (r.k, r.n), (r.m, r.n), (r.m, r.n)] if name not in SUMS else [(r.m, r.n)] * 4
    kinds = [type_of(number) for number in r.types]

    def operand(i: int) -> np.ndarray:
        turned = i < C and r.ops[i]
        found = codes(
            r.at[i] + batch * r.stride[i] * kinds[i].bits // 8,
            shapes[i][::-1] if turned else shapes[i], r.lead[i], bool(r.row_major[i]), kinds[i],
        )  # fmt: skip
        size = found.size and int(np.dot(np.subtract(found.shape, 1), found.strides)) + found.itemsize
        if size:
            launches.check_memory(f"{name}: operand {'ABCD'[i]} at", found.ctypes.data, size, None)
            touched(found.ctypes.data, size, i == D)
        return found.T if turned else found

    if name in SUMS:  # an operand that is multiplied by 0 may be null
        parts = [by * kinds[i].decode(np.ascontiguousarray(operand(i))) for i, by in ((A, r.alpha), (B, r.beta)) if by]
        operand(D)[:] = encoded(np.broadcast_to(sum(parts), shapes[D]).astype(np.float64), kinds[D])
        return
    a, b = (kinds[i].decode(np.ascontiguousarray(operand(i))) for i in (A, B))
    if r.compute in INTEGERS:
        result = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32).astype(np.float64)
    else:
        result = a @ b
        for scale in r.scales[:2]:
            result *= ctypes.c_float.from_address(scale).value if scale else 1
    if r.compute not in (*INTEGERS, *DOUBLES):
        result = result.astype(np.float32).astype(np.float64)
    result *= r.alpha
    if r.beta:
        result += r.beta * kinds[C].decode(np.ascontiguousarray(operand(C)))
    if r.epilogue & BIAS:
        kind = type_of(r.bias_type)
        touched(r.bias, r.m * kind.bits // 8, False)
        result += kind.decode(np.ascontiguousarray(codes(r.bias, (r.m, 1), r.m, False, kind)))
    if r.epilogue & AUX:
        aux = codes(r.aux, (r.m, r.n), r.aux_lead, bool(r.row_major[D]), kinds[D])
        touched(r.aux, ((r.n - 1) * r.aux_lead + r.m) * aux.itemsize, True)
        aux[:] = encoded(result, kinds[D])
    if r.epilogue & GELU:
        result = gelu(result)
    elif r.epilogue & RELU:
        result = np.maximum(result, 0)
    if r.scales[2]:
        result *= ctypes.c_float.from_address(r.scales[2]).value
    operand(D)[:] = encoded(result, kinds[D])
