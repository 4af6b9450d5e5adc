"""The reference against sums that are done by hand, in rational numbers, and what the check makes of faults."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from emulated_gpu.formats.element_types import E4M3, F32
from emulated_gpu.formats.wgmma_form import WgmmaForm
from emulated_gpu.units.wgmma_arithmetic import multiply
from ragged_moe.checks.grouped_gemm import BOUND, CASES, Case, clipped, error
from ragged_moe.reference.grouped_gemm import magnitudes, reference
from ragged_moe.reference.tensor_core import exact, of_hopper


def test_against_rational_numbers():
    """Scales are powers of two: nothing is rounded, and the reference is the sum itself."""
    case = Case((2, 0, 3), 256, 256)
    a, a_scale, b, b_scale, m_indptr = case.draw()
    a, b = [x.float().mul(2).round().div(2).to(torch.float8_e4m3fn) for x in (a, b)]
    a_scale, b_scale = [torch.exp2(x.round()) * x.sign() for x in (a_scale, b_scale)]
    out = reference(a, a_scale, b, b_scale, m_indptr)
    for row, expert in ((0, 0), (1, 0), (2, 2), (4, 2)):
        for column in (0, 127, 128, 255):
            exact = sum(
                Fraction(a[row, k].item()) * Fraction(b[expert, column, k].item())
                * Fraction(a_scale[k // 128, row].item()) * Fraction(b_scale[expert, column // 128, k // 128].item())
                for k in range(256)
            )  # fmt: skip
            assert Fraction(out[row, column].item()) == exact


def test_order_of_rounding():
    """The product of the scales is rounded first; then one rounding an addition."""
    case = Case((1,), 128, 128)
    a, a_scale, b, b_scale, m_indptr = case.draw()
    a_scale[:], b_scale[:] = 1 / 3, 1 / 3
    dot = sum(Fraction(x) * Fraction(y) for x, y in zip(a[0].float().tolist(), b[0, 0].float().tolist()))
    third = torch.tensor(1 / 3)
    scale = Fraction((third * third).item())
    assert reference(a, a_scale, b, b_scale, m_indptr)[0, 0].item() == torch.tensor(float(dot * scale)).float().item()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_reference_passes_its_own_check(case):
    operands = case.draw()
    out = reference(*operands[:4], clipped(operands[4], operands[0].shape[0]))
    assert error(out.bfloat16(), operands) <= 2**-9  # one rounding


@pytest.mark.parametrize(
    "fault",
    [
        lambda a, s, b, t, i: (a, s.flip(0), b, t, i),
        lambda a, s, b, t, i: (a, s, b, t.flip(1), i),
        lambda a, s, b, t, i: (a, s, b, t.abs(), i),
        lambda a, s, b, t, i: (a, s, b.flip(0), t, i),
        lambda a, s, b, t, i: (a[:, torch.arange(a.shape[1]) ^ 1], s, b, t, i),
        lambda a, s, b, t, i: (a.roll(1, 0), s, b, t, i),
    ],
    ids=["a_scale", "b_scale", "signs", "experts", "K order", "rows"],
)
def test_faults_are_seen(fault):
    operands = Case((20, 20), 256, 256).draw()
    assert error(reference(*fault(*(x.clone() for x in operands))).bfloat16(), operands) > 10 * BOUND


def test_a_nan_in_the_wrong_place_is_seen():
    operands = Case((20, 20), 256, 256).draw()
    out = reference(*operands).bfloat16()
    out[7, 9] = torch.nan
    assert error(out, operands) == float("inf")


def test_magnitudes_bound_the_result():
    operands = Case((4, 5), 128, 512).draw()
    assert (reference(*operands).abs() <= magnitudes(*operands)).all()


def test_hoppers_sums():
    """Four wgmma in the emulator, which has an H200's bits; of numbers that lie far apart, subnormals, and zeros."""
    form = WgmmaForm(8, E4M3, E4M3, F32)
    g = torch.Generator().manual_seed(0)
    a, b = [torch.randn(m, 128, generator=g) * torch.exp2(torch.randint(-9, 6, (m, 128), generator=g)) for m in (64, 8)]
    a[:, ::5], a[0], b[1, 32:] = 0, 0, 0
    a, b = [x.to(torch.float8_e4m3fn) for x in (a, b)]
    total = None
    for k in range(0, 128, 32):
        codes = [x[:, k : k + 32].contiguous().view(torch.uint8).numpy() for x in (a, b)]
        total = multiply(form, *codes, total)
    assert np.array_equal(of_hopper(a, b).numpy(), total) and not np.array_equal(exact(a, b).numpy(), total)
