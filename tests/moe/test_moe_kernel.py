"""The sm_90a kernel on an emulated H200: right for every shape, order of events and config, with all checks on."""

import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import emulator
from tests import quick_dsl


@pytest.fixture(scope="module")
def moe():
    """moe.check, its kernels compiled for sm_90a into the emulator."""
    if emulator.DEVICE.chip.arch != "sm_90a":
        emulator.install("h200")
    quick_dsl.install()
    from cutlass.cutlass_dsl import CuTeDSL

    dsl = CuTeDSL._get_dsl().envar  # another test module may have imported the DSL, which then has read these settings
    dsl.keep_ptx, dsl.dump_dir = True, os.environ["CUTE_DSL_DUMP_DIR"]
    from moe import api, check

    api.launcher.cache_clear()
    return check


NAMES = ["even", "ragged", "one expert has all", "several token tiles", "cut into many parts", "nan"]


@pytest.mark.parametrize("config", range(5))
@pytest.mark.parametrize("name", NAMES)
def test_cases(moe, name, config):
    from moe.tuning import CONFIGS

    assert moe.run(moe.CASES[name], CONFIGS[config]) <= moe.BOUND


@pytest.mark.parametrize("schedule", range(1, 9))
def test_orders_of_events(moe, schedule):
    """One class of operation after the other is late, then all: clusters, turns, cut tiles and bursts included."""
    from moe.tuning import FEW, MORE

    assert moe.run(moe.CASES["ragged"], MORE, schedule) <= moe.BOUND
    assert moe.run(moe.CASES["cut into many parts"], FEW, schedule) <= moe.BOUND


def test_waits_for_the_previous_kernel(moe):
    """Nothing that the launch before may have written is touched before that has ended, but for hints."""
    from moe.tuning import MORE

    assert moe.run(moe.CASES["ragged"], MORE, written=True) <= moe.BOUND


def test_m_indptr_that_lies_stays_inside(moe):
    """Backwards and beyond the rows that there are: the emulator sees every access outside of the tensors."""
    from moe.tuning import SOME

    assert moe.run(moe.CASES["m_indptr not monotone"], SOME) <= moe.BOUND


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=40), st.sampled_from([128, 256, 384]), st.sampled_from([128, 384])
)
@example([0] * 39 + [1], 128, 128)
@example([129], 256, 128)
@example([1] * 33, 128, 128)  # more experts than lanes
def test_ragged_experts(moe, ms, n, k):
    from moe.tuning import MORE, SOME

    for config in (SOME, MORE):
        assert moe.run(moe.Case(tuple(ms), n, k, seed=len(ms)), config) <= moe.BOUND


@pytest.mark.parametrize(
    "fault", ["scales of the wrong parity", "the next expert's rows are stored", "no partial sums"]
)
def test_planted_faults_are_seen(moe, monkeypatch, fault):
    """What the tests above are worth: each of these kernels fails."""
    from moe import api, kernel
    from moe.tuning import SOME

    real_fma, real_store, real_flag = kernel.fma, kernel.store_global_words, kernel.load_global_floats
    if fault == "scales of the wrong parity":
        monkeypatch.setattr(kernel, "fma", lambda d, scale, acc: real_fma(d, d, acc))
    elif fault == "the next expert's rows are stored":
        monkeypatch.setattr(kernel, "store_global_words", lambda at, x, c: real_store(at, x, kernel.Int32(1)))
    else:
        monkeypatch.setattr(kernel, "load_global_floats", lambda at, c: real_flag(at, c & 0))
    assert real_store and real_fma
    api.launcher.cache_clear()
    try:
        case = moe.CASES["cut into many parts" if fault == "no partial sums" else "ragged"]
        try:
            assert moe.run(case, SOME) > moe.BOUND
        except emulator.EmulatorError:
            pass  # it wrote outside of out
    finally:
        api.launcher.cache_clear()
