"""A naive submission in the form of the task's template: CuTe DSL, tables of pointers and sizes made by torch.

https://github.com/gpu-mode/reference-kernels/blob/main/problems/nvidia/nvfp4_group_gemm/submission.py is its model. A
thread computes an element: in integers of a scale block twice the FP4 numbers and 2^9 times the scales, in float32
their sum. Tests add to this text what a cheat would.
"""

import functools

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_ptr

THREADS = 64


def half_units(code):
    """FP4 code -> twice its value, an integer."""
    exponent = code >> 1 & 3
    normal = (exponent | exponent >> 1) & 1
    magnitude = ((code & 1) + 2 * normal) << (exponent - normal)
    return magnitude - (code >> 3) * magnitude * 2


@cute.kernel
def kernel(table: cute.Tensor, sizes: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, row, group = cute.arch.block_idx()
    column = block * THREADS + thread
    m, n, k = sizes[group, 0], sizes[group, 1], sizes[group, 2]
    if row < m and column < n:
        a, b, c, sfa, sfb = [
            cute.make_tensor(cute.make_ptr(kind, table[group, i], cute.AddressSpace.gmem), cute.make_layout(2**30))
            for i, kind in enumerate((cutlass.Uint8, cutlass.Uint8, cutlass.Float16, cutlass.Uint8, cutlass.Uint8))
        ]
        tiles = (k // 16 + 3) // 4
        total = cutlass.Float32(0.0)
        for block_k in range(k // 16):
            part = cutlass.Int32(0)
            for byte in range(8):
                x = cutlass.Int32(a[row * (k // 2) + block_k * 8 + byte])
                y = cutlass.Int32(b[column * (k // 2) + block_k * 8 + byte])
                part += half_units(x & 15) * half_units(y & 15) + half_units(x >> 4 & 15) * half_units(y >> 4 & 15)
            scaled = cutlass.Float32(part)
            for i in cutlass.range_constexpr(2):
                line = (row, column)[i]
                place = ((line // 128) * tiles + block_k // 4) * 512 + line % 32 * 16 + line // 32 % 4 * 4 + block_k % 4
                code = cutlass.Int32((sfa, sfb)[i][place])
                exponent = code >> 3
                normal = (exponent | exponent >> 1 | exponent >> 2 | exponent >> 3) & 1
                scaled *= cutlass.Float32(((code & 7) + 8 * normal) << (exponent - normal))
            total += scaled
        c[row * n + column] = cutlass.Float16(total * 2.0**-20)


@cute.jit
def launch(table: cute.Pointer, sizes: cute.Pointer, groups: cutlass.Int32, m: cutlass.Int32, n: cutlass.Int32):
    tables = cute.make_tensor(table, cute.make_layout((groups, 5), stride=(5, 1)))
    shapes = cute.make_tensor(sizes, cute.make_layout((groups, 3), stride=(3, 1)))
    kernel(tables, shapes).launch(grid=[(n + THREADS - 1) // THREADS, m, groups], block=[THREADS, 1, 1])


@functools.cache
def compiled():
    pointers = [make_ptr(kind, 64, cute.AddressSpace.gmem, assumed_align=8) for kind in (cutlass.Int64, cutlass.Int32)]
    return cute.compile(launch, *pointers, 1, 1, 1)


def custom_kernel(data):
    abc, _, scales, problems = data
    addresses = [[t.data_ptr() for t in (*tensors, *pair)] for tensors, pair in zip(abc, scales)]
    table = torch.tensor(addresses, dtype=torch.int64, device="cuda")
    sizes = torch.tensor([problem[:3] for problem in problems], dtype=torch.int32, device="cuda")
    pointers = [
        make_ptr(kind, t.data_ptr(), cute.AddressSpace.gmem, assumed_align=8)
        for kind, t in ((cutlass.Int64, table), (cutlass.Int32, sizes))
    ]
    largest = [max(problem[i] for problem in problems) for i in (0, 1)]
    compiled()(*pointers, len(problems), *largest)
    return [c for _, _, c in abc]
