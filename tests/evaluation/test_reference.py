"""The reference against Python's own arithmetic, and the generated inputs against the task's description."""

import functools
import math
import multiprocessing
import re
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import reference
import task

E4M3_ONE = 0x38


@functools.cache
def fp4(code: int) -> Fraction:
    """e2m1: sign, two exponent bits (bias 1), one mantissa bit."""
    exponent, mantissa = code >> 1 & 3, code & 1
    magnitude = Fraction(mantissa, 2) if exponent == 0 else (1 + Fraction(mantissa, 2)) * 2 ** (exponent - 1)
    return -magnitude if code >> 3 else magnitude


@functools.cache
def e4m3(code: int) -> Fraction:
    """Non-negative e4m3: four exponent bits (bias 7), three mantissa bits."""
    exponent, mantissa = code >> 3, code & 7
    if exponent == 0:
        return Fraction(mantissa, 8) / 2**6
    return (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)


def half(value: Fraction) -> float:
    """Rounded once to float16. Python's floats hold the values used here exactly, or they are far out of range."""
    try:
        return struct.unpack("e", struct.pack("e", float(value)))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def product(a, b, sfa, sfb) -> np.ndarray:
    """Exact result for codes [M, K], [N, K] and scale codes [M, K/16], [N, K/16]."""
    result = np.empty((len(a), len(b)))
    for m, n in np.ndindex(result.shape):
        terms = (fp4(a[m][k]) * fp4(b[n][k]) * e4m3(sfa[m][k // 16]) * e4m3(sfb[n][k // 16]) for k in range(len(a[m])))
        result[m, n] = half(sum(terms))
    return result


def pack(codes) -> torch.Tensor:
    codes = np.asarray(codes, dtype=np.uint8)
    return torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4).view(torch.float4_e2m1fn_x2)


def scales(codes) -> torch.Tensor:
    return torch.from_numpy(np.asarray(codes, dtype=np.uint8)).view(torch.float8_e4m3fn)


def check(a, b, sfa, sfb):
    got = reference.block_scaled_matmul(pack(a), pack(b), scales(sfa), scales(sfb))
    assert got.dtype == torch.float16
    np.testing.assert_array_equal(got.double().numpy(), product(a, b, sfa, sfb))


def test_the_low_nibble_comes_first():
    assert reference.decode_fp4(pack([[1, 2, 15, 0]])).tolist() == [[0.5, 1.0, -6.0, 0.0]]
    packed = torch.tensor([[0x21, 0x0F]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert reference.decode_fp4(packed).tolist() == [[0.5, 1.0, -6.0, 0.0]]


def test_every_code_times_every_scale():
    """Row m has scale code m and all 16 FP4 codes, column n picks the n-th of them."""
    a = [list(range(16))] * 127
    b = [[2 if k == n else 0 for k in range(16)] for n in range(16)]  # code 2 is 1.0
    check(a, b, [[code] for code in range(127)], [[E4M3_ONE]] * 16)
    check(b, a, [[E4M3_ONE]] * 16, [[code] for code in range(127)])


@pytest.mark.parametrize("m, n, k", [(3, 5, 48), (1, 1, 16), (2, 3, 2048)])
def test_random_codes_and_scales(m, n, k):
    """Dense and over the whole range; K = 2048 is more than float64 can add exactly."""
    rng = np.random.default_rng(k)
    a, b = rng.integers(0, 16, (m, k)).tolist(), rng.integers(0, 16, (n, k)).tolist()
    check(a, b, rng.integers(0, 127, (m, k // 16)).tolist(), rng.integers(0, 127, (n, k // 16)).tolist())


def test_large_terms_cancel_exactly():
    """2^-20, then up to 3e10 and back down: float64 would lose it on the way."""
    half_k = 2**12
    assert 2.0**-20 + 36 * 448.0**2 * half_k == 36 * 448.0**2 * half_k
    a = [[1] + [0] * 15 + [7] * half_k + [15] * half_k]
    b = [[1] + [0] * 15 + [7] * half_k + [7] * half_k]
    scale = [[1] + [0x7E] * (2 * half_k // 16)]
    assert product(a, b, scale, scale)[0, 0] == 2.0**-20
    check(a, b, scale, scale)


def test_one_rounding():
    """2048 + 1 + 2^-20 is above the midpoint of 2048 and 2050, and float32 cannot tell."""
    a = [[4] + [0] * 15 + [2] + [0] * 15 + [1] + [0] * 15]  # 2, 1, 0.5
    b = [[6] + [0] * 15 + [2] + [0] * 15 + [1] + [0] * 15]  # 4, 1, 0.5
    sfa, sfb = [[0x78, E4M3_ONE, 1]], [[E4M3_ONE, E4M3_ONE, 1]]  # 256, 1, 2^-9
    assert product(a, b, sfa, sfb)[0, 0] == 2050
    check(a, b, sfa, sfb)


@pytest.mark.parametrize("code", [0x7F, 0x80, 0xFF])
def test_refuses_scales_that_are_no_scales(code):
    with pytest.raises(ValueError, match=f"0x{code:02x}"):
        reference.block_scaled_matmul(pack([[0] * 16]), pack([[0] * 16]), scales([[code]]), scales([[0]]))


def test_reordered_scales_follow_the_documented_places():
    rows, columns = 200, 6
    codes = np.random.default_rng(0).integers(0, 127, (rows, columns, 1)).astype(np.uint8)
    fill = np.full((256, 8, 1), 0x7F, dtype=np.uint8)
    got = reference.reorder_scales(scales(codes), scales(fill)).view(torch.uint8)
    assert got.shape == (32, 4, 2, 4, 2, 1)
    assert got.stride() == (16, 4, 1024, 1, 512, 2048)
    for r, j in np.ndindex(256, 8):
        expected = codes[r, j, 0] if r < rows and j < columns else 0x7F
        assert got[r % 32, r // 32 % 4, r // 128, j % 4, j // 4, 0] == expected


@pytest.mark.parametrize("generate", [reference.generate_input, reference.generate_full_range_input])
def test_inputs_have_the_shapes_of_the_task(generate):
    sizes = [(96, 128, 256), (0, 48, 64), (200, 16, 512)]
    m, n, k = zip(*sizes)
    abc, unordered, reordered, problem_sizes = generate(m, n, k, 3, 7)
    assert problem_sizes == [(*size, 1) for size in sizes]
    for (a, b, c), sf, sf_reordered, (m, n, k) in zip(abc, unordered, reordered, sizes):
        for tensor, rows in ((a, m), (b, n)):
            assert (tensor.dtype, tensor.shape) == (torch.float4_e2m1fn_x2, (rows, k // 2, 1))
            assert tensor.stride()[:2] == (k // 2, 1)
        assert (c.dtype, c.shape, c.stride()[:2]) == (torch.float16, (m, n, 1), (n, 1))
        for plain, blocked, rows in zip(sf, sf_reordered, (m, n)):
            assert (plain.dtype, plain.shape) == (torch.float8_e4m3fn, (rows, k // 16, 1))
            assert (blocked.dtype, blocked.shape) == (torch.float8_e4m3fn, (32, 4, -(-rows // 128), 4, k // 64, 1))
            r, j = np.mgrid[:rows, : k // 16]
            picked = blocked.view(torch.uint8)[r % 32, r // 32 % 4, r // 128, j % 4, j // 4]
            assert torch.equal(picked, plain.view(torch.uint8))
    assert len(reference.ref_kernel((abc, unordered, reordered, problem_sizes))) == 3


def tensors(data):
    return [t.view(torch.uint8) if t.element_size() == 1 else t for part in data[:3] for group in part for t in group]


def test_inputs_depend_on_the_seed_and_on_nothing_else():
    arguments = ((40, 56), (64, 32), (128, 64), 2)
    one, same, other = (tensors(reference.generate_input(*arguments, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, same))
    assert not any(torch.equal(a, b) for a, b in zip(one, other))


def test_value_ranges():
    (((a, _, _),), ((sfa, _),), ((blocked, _),), _) = reference.generate_input((256,), (16,), (512,), 1, 3)
    assert sorted(set(reference.decode_fp4(a[:, :, 0]).flatten().tolist())) == [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5]
    assert set(sfa.float().flatten().tolist()) == set(blocked.float().flatten().tolist()) == {1.0, 2.0}
    (((a, b, _),), ((sfa, sfb),), _, _) = reference.generate_full_range_input((256,), (256,), (512,), 1, 3)
    for packed in (a, b):
        assert {int(x) & 15 for x in packed.view(torch.uint8).unique()} == set(range(16))
    for scale in (sfa, sfb):
        assert set(scale.view(torch.uint8).unique().tolist()) == set(range(127))


def test_full_range_inputs_are_exact_in_float32_in_any_order():
    ((a, b, c),), ((sfa, sfb),), _, _ = data = reference.generate_full_range_input((64,), (64,), (512,), 1, 5)
    reference.ref_kernel(data)
    wide = [
        reference.decode_fp4(x[:, :, 0]) * s[:, :, 0].float().repeat_interleave(16, 1) for x, s in ((a, sfa), (b, sfb))
    ]
    order = torch.randperm(512, generator=torch.Generator().manual_seed(1))
    assert torch.equal((wide[0][:, order] @ wide[1][:, order].T).half(), c[:, :, 0])
    assert c.isfinite().count_nonzero() > c.numel() // 2


@pytest.mark.parametrize(
    "m, n, k, g, message",
    [
        ((1, -1), (16, 16), (64, 64), 2, "group 1: M = -1 must be at least 0"),
        ((1, 1), (16, 0), (64, 64), 2, "group 1: N = 0 must be at least 1"),
        ((1, 1), (16, 16), (72, 64), 2, "group 0: K = 72 must be a positive multiple of 16"),
        ((1, 1), (16, 16), (64, 0), 2, "group 1: K = 0"),
        ((1,), (16, 16), (64, 64), 2, "m = .* one size for each of the g = 2 groups"),
        (7, (16,), (64,), 1, "m = 7: one size for each"),
        ((), (), (), 0, "g = 0: at least one group"),
    ],
)
def test_sizes_that_cannot_be_expressed(m, n, k, g, message):
    with pytest.raises(ValueError, match=message):
        reference.generate_input(m, n, k, g, 1)


def scaled(factor):
    return lambda c, d: [c * factor, d]


def with_element(value):
    def change(c, d):
        c[3, 4] = value
        return [c, d]

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (scaled(1), ""),
        (lambda c, d: [c + 5e-4, d], ""),
        (scaled(1 + 2**-8), "reference: 0 .*mismatched elements"),
        (with_element(math.nan), r"Number of mismatched elements: 1', 'ERROR AT \(3, 4, 0\): nan"),
        (with_element(math.inf), r"ERROR AT \(3, 4, 0\): inf"),
        (lambda c, d: [c, d + 0.1], r"reference: 1 \['Number of mismatched elements: 128'"),
        (lambda c, d: [c], "output length mismatch: got 1, expected 2"),
        (lambda c, d: [], "output length mismatch: got 0, expected 2"),
        (lambda c, d: [c[:, 1:], d], "SIZE MISMATCH"),
    ],
)
def test_check_implementation(change, message):
    data = reference.generate_input((40, 8), (32, 16), (64, 64), 2, 1)
    outputs = change(*(c.clone() for c in reference.ref_kernel(data)))
    good, text = reference.check_implementation(data, outputs)
    assert good == (message == "")
    assert re.search(message, text), text


def test_cases_of_the_task():
    yaml = (Path(reference.__file__).parent / "task.yml").read_text()
    tests, benchmarks = task.read_task_yaml(yaml, "tests"), task.read_task_yaml(yaml, "benchmarks")
    assert (len(tests), len(benchmarks)) == (10, 4)
    assert tests[0].args == {"m": (96, 128), "n": (128, 256), "k": (256, 512), "g": 2, "seed": 1111}
    assert benchmarks[3].args == {"m": (128, 384), "n": (4096, 4096), "k": (1536, 1536), "g": 2, "seed": 1111}
    for case in tests + benchmarks:
        reference.check_sizes(*(case.args[key] for key in "mnkg"))
        assert task.parse_case(case.spec).args == case.args


@pytest.mark.parametrize(
    "line, args",
    [
        ("m: [96, 128]; seed: 1111", {"m": (96, 128), "seed": 1111}),
        ("m: (96,128,) ; k: []", {"m": (96, 128), "k": ()}),
        ("name: abc; g: -3; h: +4", {"name": "abc", "g": -3, "h": 4}),
    ],
)
def test_case_lines(line, args):
    assert task.parse_case(line) == task.TestCase(line, args)


@pytest.mark.parametrize("line", ["", "m", "m: [1", "m: [a]", "m: 1;", "m: 1.5", "1: 1", "m: 1; ; k: 2"])
def test_invalid_case_lines(line):
    with pytest.raises(ValueError, match="invalid test case"):
        task.parse_case(line)


def test_combined_seeds_differ():
    seeds = {task.combine_seeds(a, b) for a in range(40) for b in range(40)}
    assert len(seeds) == 1600
    assert task.combine_seeds(1111, 10**9) > 10**17


LARGEST = f"m: [80,176,128,72,64,248,96,160]; n: {[4096] * 8}; k: {[7168] * 8}; g: 8; seed: 1111"


def most_memory_of_the_largest(pipe):
    """Sends the most memory, in KiB, that this process has used: after the inputs and after the reference."""

    def most():  # not getrusage's, which a process inherits from the one that started it
        return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])

    data = reference.generate_input(**task.parse_case(LARGEST).args)
    inputs = most()
    reference.ref_kernel(data)
    pipe.send((inputs, most()))


@pytest.mark.thorough
def test_the_largest_benchmark_fits_in_memory():
    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=most_memory_of_the_largest, args=(sending,))
    process.start()
    sending.close()
    inputs, most = receiving.recv()
    process.join()
    assert 100 * 2**10 < inputs <= most < 1.5 * 2**20
