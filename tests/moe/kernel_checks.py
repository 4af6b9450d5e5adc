"""The kernel on the emulated GPU that MOE_MACHINE names: right for every shape, order of events and config.

All checks of the emulator are on. test_moe_kernel.py runs this, in a process for each machine: a process has one.
"""

import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import emulator
from tests import quick_dsl


@pytest.fixture(scope="module")
def moe():
    """moe.check, its kernels compiled into the emulator."""
    emulator.install(MACHINE)
    quick_dsl.install()
    from moe import check

    return check


MACHINE = os.environ["MOE_MACHINE"]
NAMES = ["even", "ragged", "one expert has all", "several token tiles", "cut into many parts"]
NAMES += ["the ring goes round", "nan"]


@pytest.mark.parametrize("config", ["FEW", "ALONE", "MANY"])  # the other one's are below
@pytest.mark.parametrize("name", NAMES)
def test_cases(moe, name, config):
    from moe import tuning

    assert moe.run(moe.CASES[name], getattr(tuning, config)) <= moe.BOUND


def test_whole_tiles_then_shares(moe):
    from moe.tuning import ALONE

    assert moe.run(moe.CASES["whole tiles, then shares"], ALONE) <= moe.BOUND


@pytest.mark.parametrize("schedule", range(1, 9))
def test_orders_of_events(moe, schedule):
    """One class of operation after the other is late, then all: clusters, cut tiles and bursts included.

    `python -m moe.check` has all cases of all configs in ten orders.
    """
    from moe.tuning import FEW, MANY, MORE

    case, config = (("ragged", MORE), ("cut into many parts", FEW), ("cut into many parts", MANY))[schedule % 3]
    assert moe.run(moe.CASES[case], config, schedule) <= moe.BOUND


def test_waits_for_the_previous_kernel(moe):
    """Nothing that the launch before may have written is touched before that has ended, but for hints."""
    from moe.tuning import MORE

    assert moe.run(moe.CASES["ragged"], MORE, written=True) <= moe.BOUND


def test_m_indptr_that_lies_stays_inside(moe):
    """Backwards and beyond the rows that there are: the emulator sees every access outside of the tensors."""
    from moe.tuning import MORE

    assert moe.run(moe.CASES["m_indptr not monotone"], MORE) <= moe.BOUND


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=40), st.sampled_from([128, 256, 384]), st.sampled_from([128, 384])
)
@example([0] * 39 + [1], 128, 128)
@example([129], 256, 128)
@example([1] * 33, 128, 128)  # more experts than lanes
def test_ragged_experts(moe, ms, n, k):
    from moe.tuning import FEW, MORE

    config = (FEW, MORE)[len(ms) % 2]
    assert moe.run(moe.Case(tuple(ms), n, k, seed=len(ms)), config) <= moe.BOUND


FAULTS = ["no scales", "the next expert's rows are stored", "no partial sums"]
FAULTS += ["results are read too early", "a stage is released too early"] * (MACHINE == "h200")


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(moe, monkeypatch, fault):
    """What the tests above are worth: each of these kernels fails."""
    from moe import api, kernel, sm90_tokens, sm100
    from moe.tuning import MORE

    part, fma, store = sm100, "fma", "store_global_bfloat"
    if MACHINE == "h200":
        part, fma, store = sm90_tokens, "fma_in_order", "store_global_words"
    real_fma, real_store, real_flag = getattr(part, fma), getattr(part, store), kernel.load_global_floats
    if fault == "no scales":
        monkeypatch.setattr(part, fma, lambda d, scale, acc: real_fma(d, d, acc))
    elif fault == "the next expert's rows are stored":
        monkeypatch.setattr(part, store, lambda at, x, c: real_store(at, x, kernel.Int32(1)))
    elif fault == "results are read too early":
        multiplied = part.wgmma_fp8
        monkeypatch.setattr(part, "wgmma_fp8", lambda *xs, into: multiplied(*xs, wait=False, into=into))
    elif fault == "a stage is released too early":
        gemm, at = part.GroupedGemmTokensOnM, []
        release, after, multiply = gemm.release, gemm.after, gemm.multiply
        monkeypatch.setattr(gemm, "release", lambda *_: None)

        def released(self, slot, phase):
            """Of a consumer this is called before it multiplies."""
            if at:
                release(self, at[0], slot, at[1])
            return after(self, slot, phase)

        def remembered(self, cta, count, slot, phase, acc, warp, lane):
            at[:] = cta, lane
            slot, phase = multiply(self, cta, count, slot, phase, acc, warp, lane)
            at.clear()
            return slot, phase

        monkeypatch.setattr(gemm, "after", released)
        monkeypatch.setattr(gemm, "multiply", remembered)
    else:
        monkeypatch.setattr(kernel, "load_global_floats", lambda at, c: real_flag(at, c & 0))
    api.launcher.cache_clear()
    try:
        cases = {"no partial sums": "cut into many parts", "a stage is released too early": "the ring goes round"}
        case = moe.CASES[cases.get(fault, "ragged")]
        try:
            assert moe.run(case, MORE) > moe.BOUND
        except emulator.EmulatorError:
            pass  # it wrote outside of out
    finally:
        api.launcher.cache_clear()
