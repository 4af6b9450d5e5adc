"""Machine code of tcgen05.mma of packed FP4 against the Python of units/mma.py: the same bits, the same faults."""

import numpy as np
import pytest

from emulated_gpu.errors import Fault
from emulated_gpu.formats.instruction_descriptor import MmaForm
from emulated_gpu.jit.rules import Rule
from emulated_gpu.native import fp4_mma
from emulated_gpu.state.tensor_memory import TensorMemory
from emulated_gpu.units import mma

D, SFA, SFB = 32, 288, 296  # columns
A, B = 1024, 1 << 15  # in shared memory
TASK, SUBNORMAL, NAN = [0x38, 0x40], [1, 2, 0x77], [0x38, 0x7F]  # scale factors, UE4M3


def descriptor(start: int) -> int:
    """A K-major operand with a swizzle of 128 bytes."""
    return start >> 4 | 1 << 16 | 64 << 32 | 1 << 46 | 2 << 61


def make_ctas(group: int, scales: list[int], seed: int) -> list:
    """Shared and tensor memory of the CTAs of a group, which has written an accumulator and scale factors."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(group):
        tmem = TensorMemory()
        tmem.alloc(512)
        factors = rng.choice(np.array(scales, np.uint8), (32, 4 * 20)).view(np.uint32)
        tmem.cells[:, SFA : SFA + 20] = np.tile(factors, (4, 1))
        tmem.cells.view(np.float32)[:, D : D + 256] = rng.integers(-64, 65, (128, 256)) / 4
        tmem.written[:] = True
        smem = rng.integers(0, 256, 1 << 16).astype(np.uint8)
        smem[A : A + 1024], smem[B : B + 1024] = 0x88, 0x22  # eight rows of -0 and of 1: the sum of -0 is +0
        tmem.cells[:8, D : D + 8] = 0x80000000
        found.append((smem, tmem))
    return found


def descriptor_of(group: int, n: int, negate: bool):
    form = MmaForm("mxf4nvf4", group, 4)
    return form, form.decode(group << 27 | n // 8 << 17 | negate << 13 | 1 << 10 | 1 << 7)


@pytest.fixture
def both(monkeypatch):
    """Executes an MMA both ways on equal memory; returns how many of its own machine code did, and both results: cells
    and what is written of each CTA, or the fault."""
    monkeypatch.setattr(fp4_mma.fp4_mma, "left", 0)

    def run(group, n, accumulate=True, scales=TASK, spoil=lambda tmem: None, negate=False, seed=0):
        form, d = descriptor_of(group, n, negate)
        operands = mma.Operands(D, descriptor(A), descriptor(B), accumulate, SFA, SFB)
        done, found, native = [], [], mma._has_multiplied
        for way in (lambda *a: done.append(native(*a)) or done[-1], lambda *a: False):
            monkeypatch.setattr(mma, "_has_multiplied", way)
            ctas = make_ctas(group, scales, seed)
            spoil(ctas[-1][1])
            try:
                mma.execute(form, d, operands, ctas)
                found.append([(tmem.cells.tobytes(), tmem.written.tobytes()) for _, tmem in ctas])
            except Fault as fault:
                found.append(str(fault))
        monkeypatch.setattr(mma, "_has_multiplied", native)
        return sum(done), *found

    return run


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(("n", "accumulate", "negate"), [(16, True, False), (96, False, True), (256, True, True)])
def test_machine_code_gives_the_same_bits(both, group, n, accumulate, negate):
    done, native, python = both(group, n, accumulate, negate=negate)
    assert done == 1
    assert native == python


def test_rules_as_python_give_the_same_bits(both, monkeypatch):
    monkeypatch.setattr(Rule, "compiled", property(lambda rule: rule.function))
    rules = fp4_mma.Fp4Mma()
    monkeypatch.setattr(fp4_mma, "fp4_mma", lambda: rules)
    done, native, python = both(1, 16)
    assert done == 1
    assert native == python


@pytest.mark.parametrize("scales", [SUBNORMAL, NAN])
def test_what_may_be_truncated_or_is_nan_stays_python(both, scales):
    done, native, python = both(1, 64, scales=scales)
    assert done == 0
    assert native == python


def cell(column: int, value: float):
    def spoil(tmem):
        tmem.cells.view(np.float32)[77, column] = value

    return spoil


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**23, 2.0**-9])
def test_an_accumulator_that_is_not_exact_stays_python(both, value):
    done, native, python = both(1, 64, spoil=cell(D + 63, value))
    assert done == 0
    assert native == python


def unwritten(lane: int, column: int):
    def spoil(tmem):
        tmem.written[lane, column] = False

    return spoil


def freed(tmem):
    tmem.usable[SFB + 1] = False


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (cell(SFB, 1.0), "partitions differ"),
        (unwritten(5, D + 3), "accumulator reads lane 5, column 35, which nothing has written"),
        (unwritten(127, SFA + 3), "scale factors reads lane 127, column 291"),
        (freed, "are not all allocated"),
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_faults_are_those_of_the_python(both, group, spoil, says):
    done, native, python = both(group, 64, spoil=spoil)
    assert done == 0
    assert native == python
    assert says in native
