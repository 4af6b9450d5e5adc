"""The exact results, and inputs for the tasks: c = fp16((a * sfa) @ (b * sfb).T), rounded once, for every group, and
c = fp16(silu(x) * y) with x = (a * sfa) @ (b1 * sfb1).T and y = (a * sfa) @ (b2 * sfb2).T.

Number formats: https://docs.nvidia.com/cuda/parallel-thread-execution/#alternate-floating-point-data-formats
Scale layout: https://docs.nvidia.com/cuda/cublas/index.html#d-block-scaling-factors-layout
"""

import contextlib
import functools
import math

import numpy as np
import torch

from task import DualTestSpec, Task, TestSpec, dual_input_t, group_input_t
from utils import get_device, make_match_reference

BLOCK = 16  # elements along K that share one scale
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # codes 0..7; codes 8..15 are their negatives
LARGEST_SCALE = 0x7E  # e4m3 code of 448; the format's sign bit is not used
NAN_SCALE = 0x7F


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def decode_fp4(packed: torch.Tensor) -> torch.Tensor:
    """[R, K/2] float4_e2m1fn_x2, low nibble first -> [R, K] float32."""
    pairs = torch.tensor(
        [[math.copysign(FP4_VALUES[code & 7], 7 - code) for code in (byte & 15, byte >> 4)] for byte in range(256)],
        device=packed.device,
    )
    codes = packed.view(torch.uint8).flatten().int()
    values = pairs.view(torch.float64).flatten().index_select(0, codes)  # both numbers of a byte in one 8-byte gather
    return values.view(torch.float32).view(packed.shape[0], 2 * packed.shape[1])


def _largest_and_quantum(scales: torch.Tensor) -> tuple[float, float]:
    """Largest scale, and a power of two that divides all of them. Raises ValueError for negative numbers and NaN."""
    used = torch.bincount(scales.view(torch.uint8).flatten().cpu(), minlength=256).nonzero().flatten().tolist()
    largest, quantum = 0.0, math.inf  # any power of two divides zero
    for code in used:
        if code > LARGEST_SCALE:
            raise ValueError(f"scale code 0x{code:02x} is not a non-negative finite e4m3 number")
        significand, exponent = (code & 7) + (8 if code >> 3 else 0), max(code >> 3, 1) - 10
        largest = max(largest, math.ldexp(significand, exponent))
        if significand:
            quantum = min(quantum, math.ldexp(significand & -significand, exponent))
    return largest, quantum


@contextlib.contextmanager
def _full_precision():
    """No TF32 or bfloat16 inside float32 matrix products, whatever the caller has allowed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _round_to_half(exact: torch.Tensor) -> torch.Tensor:
    """float64 -> float16 in one rounding (torch goes through float32 and would round twice)."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(exact.cpu().numpy().astype(np.float16)).to(exact.device)


def block_scaled_matmul(a: torch.Tensor, b: torch.Tensor, sfa: torch.Tensor, sfb: torch.Tensor) -> torch.Tensor:
    """[M, K/2], [N, K/2] FP4, [M, K/16], [N, K/16] e4m3 -> [M, N] float16, the exact sum rounded once."""
    sums = exact_sums(a, b, sfa, sfb)
    return sums.half() if sums.dtype == torch.float32 else _round_to_half(sums)


def exact_sums(a: torch.Tensor, b: torch.Tensor, sfa: torch.Tensor, sfb: torch.Tensor) -> torch.Tensor:
    """The same sums [M, N] in float32, where that is exact, or in float64; beyond 2^53 of their quanta rounded to it.

    Every product is an integer number of quanta (quarter of an FP4 product x quantum of the scales), at most 12 * 12 of
    them times the scales' ranges. So every partial sum, in any order, is an integer of at most K times that: exact in
    float32 up to 2^24, in float64 up to 2^53. Beyond that K is cut into pieces that are exact in float64 and added as
    64-bit integers. The task's own inputs (scales 1 and 2) need 144 * 4 * 7168 < 2^22.
    """
    (m, k), n = (a.shape[0], 2 * a.shape[1]), b.shape[0]
    (largest_a, quantum_a), (largest_b, quantum_b) = _largest_and_quantum(sfa), _largest_and_quantum(sfb)
    if not largest_a * largest_b:
        return torch.zeros(m, n, device=a.device)
    bound = 12 * 12 * (largest_a / quantum_a) * (largest_b / quantum_b)  # quanta per product
    dtype = torch.float32 if k * bound <= 2**24 else torch.float64

    def scaled(packed, scales):  # [R, K], exact: 2 + 4 significant bits
        blocks = decode_fp4(packed).view(packed.shape[0], k // BLOCK, BLOCK)
        return blocks.mul_(scales.to(packed.device).float()[:, :, None]).view(packed.shape[0], k).to(dtype)

    with _full_precision():
        a, b = scaled(a, sfa), scaled(b, sfb)
        if dtype is torch.float32:
            return a @ b.T
        step = int(2**53 // bound)
        if step >= k:
            return a @ b.T
        quantum = quantum_a * quantum_b / 4
        assert k * bound < 2**63
        total = torch.zeros(m, n, dtype=torch.int64, device=a.device)
        for start in range(0, k, step):
            total += ((a[:, start : start + step] @ b[:, start : start + step].T) / quantum).to(torch.int64)
        # Quanta are at least 2^-20: a total that float64 cannot hold, beyond 2^53, is far beyond float16 as well.
        return total.double() * quantum


def dual_sums(data: dual_input_t) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y of a dual GEMM, [M, N, L] float64. A scale that is NaN makes its row or column NaN."""
    a, b1, b2, sfa, sfb1, sfb2, *_ = data

    def sums(b, sfb, i):
        codes = [scales[:, :, i].contiguous().view(torch.uint8) for scales in (sfa, sfb)]
        nan = [rows.eq(NAN_SCALE) for rows in codes]
        numbers = [rows.masked_fill(is_nan, 0).view(torch.float8_e4m3fn) for rows, is_nan in zip(codes, nan)]
        total = exact_sums(a[:, :, i], b[:, :, i], *numbers).double()
        rows, columns = (is_nan.any(1).to(total.device) for is_nan in nan)
        return total.masked_fill(rows[:, None] | columns[None, :], math.nan)

    return tuple(torch.stack([sums(b, sfb, i) for i in range(a.shape[2])], -1) for b, sfb in ((b1, sfb1), (b2, sfb2)))


def silu_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """silu(x) * y = x / (1 + exp(-x)) * y of float64, rounded once to float16."""
    return _round_to_half(x * torch.sigmoid(x) * y)


def dual_ref_kernel(data: dual_input_t) -> torch.Tensor:
    """Writes the result into c [M, N, L], on any device, and returns it."""
    return data[-1].copy_(silu_product(*dual_sums(data)))


def ref_kernel(data: group_input_t) -> list[torch.Tensor]:
    """Writes the exact result into every group's c [M, N, L] (on any device) and returns the list of them."""
    abc_tensors, sfasfb_tensors, _, problem_sizes = data
    for (a, b, c), (sfa, sfb), (_, _, _, batches) in zip(abc_tensors, sfasfb_tensors, problem_sizes):
        for i in range(batches):
            c[:, :, i] = block_scaled_matmul(a[:, :, i], b[:, :, i], sfa[:, :, i], sfb[:, :, i])
    return [c for _, _, c in abc_tensors]


def reorder_scales(scales: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
    """[R, K/16, L] -> the tensor cores' layout [32, 4, ceil(R/128), 4, ceil(K/64), L], padding taken from `fill`.

    Row r, column j goes to [r % 32, r // 32 % 4, r // 128, j % 4, j // 4]; in memory the order of the dimensions is
    (L, rest_r, rest_k, 32, 4, 4), so 128 rows x 4 columns are 512 contiguous bytes. `fill`: [ceil(R/128)*128,
    ceil(K/64)*4, L], same dtype.
    """
    rows, columns, batches = scales.shape
    padded = fill.clone()
    padded.view(torch.uint8)[:rows, :columns] = scales.view(torch.uint8)
    # [rest_r, r4, r32, rest_k, k4, L]
    blocks = padded.view(torch.uint8).reshape(-1, 4, 32, padded.shape[1] // 4, 4, batches)
    memory = blocks.permute(5, 0, 3, 2, 1, 4).contiguous()
    return memory.permute(3, 4, 1, 5, 2, 0).view(torch.float8_e4m3fn)


def check_sizes(m, n, k, g: int) -> None:
    """Raises ValueError, naming the group and the dimension, for sizes that the tensors of the task cannot express."""
    if g < 1:
        raise ValueError(f"g = {g}: at least one group is needed")
    for name, sizes in (("m", m), ("n", n), ("k", k)):
        if not isinstance(sizes, (tuple, list)) or len(sizes) != g:
            raise ValueError(f"{name} = {sizes}: one size for each of the g = {g} groups is needed")
    for group, (rows, columns, depth) in enumerate(zip(m, n, k)):
        if rows < 0:
            raise ValueError(f"group {group}: M = {rows} must be at least 0 (0 is an empty group)")
        if columns < 1:
            raise ValueError(f"group {group}: N = {columns} must be at least 1")
        if depth < 1 or depth % BLOCK:
            raise ValueError(f"group {group}: K = {depth} must be a positive multiple of {BLOCK}, the scale block")


def check_dual_sizes(m: int, n: int, k: int, l: int) -> None:  # noqa: E741
    """Raises ValueError, naming the dimension, for sizes that the tensors of the task cannot express."""
    for name, size, multiple in (("M", m, 1), ("N", n, 1), ("K", k, BLOCK), ("L", l, 1)):
        if not isinstance(size, int) or size < 1 or size % multiple:
            raise ValueError(
                f"{name} = {size} must be a positive {f'multiple of {multiple}' * (multiple > 1) or 'integer'}"
            )


class _Draws:
    """Random tensors: drawn on the CPU whatever the device is, so that a seed gives the same inputs everywhere."""

    def __init__(self, seed: int, packed, scales, padding, device: torch.device | None):
        self.rng = np.random.default_rng(seed)
        self.packed, self.scales, self.padding = packed, scales, padding
        self.device = device or get_device()

    def tensor(
        self, draw, *shape
    ) -> torch.Tensor:  # through a flat one, for an empty array the strides of an empty tensor
        return torch.from_numpy(draw(self.rng, shape).ravel()).view(shape)

    def operand(self, rows: int, depth: int, batches: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """FP4 [rows, depth / 2, batches] on the device, its scales on the CPU, the reordered scales on the device."""
        packed = self.tensor(self.packed, batches, rows, depth // 2)
        scales = self.tensor(self.scales, batches, rows, depth // BLOCK)
        fill = self.tensor(self.padding, ceil_div(rows, 128) * 128, ceil_div(depth, 64) * 4, batches)
        scales = scales.permute(1, 2, 0).view(torch.float8_e4m3fn)
        reordered = reorder_scales(scales, fill.view(torch.float8_e4m3fn))
        packed = packed.permute(1, 2, 0).view(torch.float4_e2m1fn_x2)
        return packed.to(self.device), scales, reordered.to(self.device)

    def output(self, rows: int, columns: int, batches: int = 1) -> torch.Tensor:
        c = self.tensor(lambda rng, shape: rng.standard_normal(shape, dtype=np.float32), batches, rows, columns)
        return c.half().to(self.device).permute(1, 2, 0)


def _make_input(m, n, k, g: int, seed: int, draw_packed, draw_scales, draw_padding, device) -> group_input_t:
    check_sizes(m, n, k, g)
    draws = _Draws(seed, draw_packed, draw_scales, draw_padding, device)
    abc_tensors, sfasfb_tensors, sfasfb_reordered_tensors, problem_sizes = [], [], [], []
    for rows, columns, depth in zip(m, n, k):
        a, sfa, sfa_reordered = draws.operand(rows, depth)
        b, sfb, sfb_reordered = draws.operand(columns, depth)
        abc_tensors.append((a, b, draws.output(rows, columns)))
        sfasfb_tensors.append((sfa, sfb))
        sfasfb_reordered_tensors.append((sfa_reordered, sfb_reordered))
        problem_sizes.append((rows, columns, depth, 1))
    return abc_tensors, sfasfb_tensors, sfasfb_reordered_tensors, problem_sizes


def _draw_task_scales(rng: np.random.Generator, shape) -> np.ndarray:
    return rng.choice(np.array([0x38, 0x40], dtype=np.uint8), shape)  # 1.0 and 2.0


def _draw_task_packed(rng: np.random.Generator, shape) -> np.ndarray:
    return rng.integers(0, 256, shape, dtype=np.uint8) & 0b1011_1011  # magnitudes 0..3 = 0, 0.5, 1, 1.5


def generate_input(m, n, k, g: int, seed: int, device: torch.device | None = None) -> group_input_t:
    """Random inputs with the task's value ranges: FP4 in 0, +-0.5, +-1, +-1.5 and scales in 1, 2.

    Args: one size per group in m, n, k (M >= 0, K a multiple of 16); g groups; the same seed gives the same inputs on
    every device (default: the B200 if there is one, else the CPU).
    Returns (abc_tensors, sfasfb_tensors, sfasfb_reordered_tensors, problem_sizes), lists with one entry per group:
        a [M, K/2, 1], b [N, K/2, 1] float4_e2m1fn_x2, K contiguous; c [M, N, 1] float16, N contiguous, random
        sfa [M, K/16, 1], sfb [N, K/16, 1] float8_e4m3fn, always on the CPU
        sfa [32, 4, ceil(M/128), 4, ceil(K/64), 1] and sfb likewise: the same scales as the tensor cores read them
        (M, N, K, 1)
    Raises ValueError for sizes that these tensors cannot express.
    """
    return _make_input(m, n, k, g, seed, _draw_task_packed, _draw_task_scales, _draw_task_scales, device)


def generate_dual_input(m: int, n: int, k: int, l: int, seed: int, device: torch.device | None = None) -> dual_input_t:  # noqa: E741
    """Random inputs with the task's value ranges: FP4 in 0, +-0.5, +-1, +-1.5 and scales in [0, 1), rounded to e4m3.

    Args: sizes as `check_dual_sizes` wants them; the same seed gives the same inputs on every device.
    Returns
        a [M, K/2, L], b1, b2 [N, K/2, L] float4_e2m1fn_x2, K contiguous
        sfa [M, K/16, L], sfb1, sfb2 [N, K/16, L] float8_e4m3fn
        sfa [32, 4, ceil(M/128), 4, ceil(K/64), L] and sfb1, sfb2 likewise: the same as the tensor cores read them
        c [M, N, L] float16, N contiguous, random
    all on the device. Raises ValueError for sizes that these tensors cannot express.
    """
    check_dual_sizes(m, n, k, l)

    def draw_scales(rng, shape):
        return torch.from_numpy(rng.random(shape, dtype=np.float32)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    draws = _Draws(seed, _draw_task_packed, draw_scales, draw_scales, device)
    operands, scales, reordered = zip(*(draws.operand(rows, k, l) for rows in (m, n, n)))
    return *operands, *(x.to(draws.device) for x in scales), *reordered, draws.output(m, n, l)


def generate_full_range_input(
    m, n, k, g: int, seed: int, device: torch.device | None = None, padding: int = NAN_SCALE
) -> group_input_t:
    """Like `generate_input`, with all 16 FP4 codes and all 127 non-negative finite scales. padding: the code of scales
    that belong to no row or column.

    Each row of b has a single K block that is not zero, so that an element of c is one scaled sum of 16 products: 12
    bits times two scales of 4 bits, exact in float32 in any order. Its other blocks have scales of zero: tensor cores
    align products by the exponents of scales, also where the numbers are zero. Results beyond 65504 are infinite.
    """

    def draw_packed(rng, shape):
        return rng.integers(0, 256, shape, dtype=np.uint8)

    def draw_scales(rng, shape):
        return rng.integers(0, LARGEST_SCALE + 1, shape, dtype=np.uint8)

    def draw_padding(rng, shape):
        return np.full(shape, padding, dtype=np.uint8)

    data = _make_input(m, n, k, g, seed, draw_packed, draw_scales, draw_padding, device)
    rng = np.random.default_rng((seed, 1))
    for group, ((_, b, _), (_, sfb), (_, columns, depth, _)) in enumerate(zip(data[0], data[1], data[3])):
        keep = torch.from_numpy(rng.integers(0, depth // BLOCK, columns))
        others = torch.arange(depth // BLOCK)[None, :] != keep[:, None]
        blocks = b.view(torch.uint8)[:, :, 0].view(columns, depth // BLOCK, BLOCK // 2)
        blocks[others.to(b.device)] &= 0x88  # keep signs of zeros
        codes = torch.from_numpy((rng.permutation(columns) % (LARGEST_SCALE + 1)).astype(np.uint8))  # all, if enough
        sfb.view(torch.uint8)[:, :, 0] = codes[:, None].masked_fill(others, 0)
        fill = torch.full((ceil_div(columns, 128) * 128, ceil_div(depth, 64) * 4, 1), padding, dtype=torch.uint8)
        reordered = reorder_scales(sfb, fill.view(torch.float8_e4m3fn))
        data[2][group] = data[2][group][0], reordered.to(b.device)
    return data


check_implementation = make_match_reference(ref_kernel, rtol=1e-03, atol=1e-03)

# The grader's numbers of calls and timings: eval_better_bench_grouped_gemm.py and eval_better_bench.py in
# https://github.com/gpu-mode/reference-kernels/tree/main/problems/nvidia
GROUP_GEMM = Task(
    name="nvfp4_group_gemm",
    file="task.yml",
    spec=TestSpec,
    check_sizes=check_sizes,
    generate_input=generate_input,
    ref_kernel=ref_kernel,
    check_implementation=check_implementation,
    on_host=(1, 3),
    calls=15,
    repeats=(100, 50, 100),
    generate_full_range_input=functools.partial(generate_full_range_input, padding=0x38),  # 1.0, a scale as the task's
)
DUAL_GEMM = Task(
    name="nvfp4_dual_gemm",
    file="task_dual.yml",
    spec=DualTestSpec,
    check_sizes=check_dual_sizes,
    generate_input=generate_dual_input,
    ref_kernel=dual_ref_kernel,
    check_implementation=make_match_reference(dual_ref_kernel, rtol=1e-03, atol=1e-03),
    on_host=(),
    calls=50,
    repeats=(200, 1000, 1000),
)
TASKS = {task.name: task for task in (GROUP_GEMM, DUAL_GEMM)}


def task_of(args: dict) -> Task:
    """The task that a case is of: one with batches is a dual GEMM."""
    return DUAL_GEMM if "l" in args else GROUP_GEMM
