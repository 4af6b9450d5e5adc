"""The kernel on the emulated GPU that MOE_MACHINE names: right for every shape, order of events and config.

All checks of the emulator are on. test_moe_kernel.py runs this, in a process for each machine: a process has one.
"""

import dataclasses
import os

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import emulated_gpu
import emulated_gpu.device
from tests import quick_dsl
from tests.ragged_moe import examples
from tests.ragged_moe.emulated import compiled_anew
from tests.thorough import all_but, all_but_every, unless


@pytest.fixture(scope="module")
def ragged_moe():
    """ragged_moe.checks.grouped_gemm, its kernels compiled into the emulator."""
    emulated_gpu.install(MACHINE)
    quick_dsl.install()
    from ragged_moe.checks import grouped_gemm

    return grouped_gemm


MACHINE = os.environ["MOE_MACHINE"]


def tuned():
    """The module with this machine's configs."""
    from ragged_moe.tuning import sm90, sm100

    return sm100 if MACHINE == "b200" else sm90


# This machine's config of each kind
SWAP_AB, TILE, WIDE = "M16_SWAP_AB", "M128_N128", "M128_N224"
SPLIT_K = "M128_N128_SPLIT_K" if MACHINE == "b200" else "M128_N64_SPLIT_K"
SHARED = "M128_N256" if MACHINE == "b200" else "M128_N128_C2"  # for more tiles than SMs
CLUSTER = "M256_N256_2CTA" if MACHINE == "b200" else "M128_N256_C2"
TAIL = "M256_N256_2CTA" if MACHINE == "b200" else "M128_N256_C2_TAIL"


def few(ragged_moe):
    """A case with few tiles, which takes a second less than "ragged"."""
    return ragged_moe.Case((5, 0, 33), 256, 256)


def launcher(config):
    """ragged_moe.layers.grouped_gemm_fp8.launcher of the emulated GPU."""
    from ragged_moe.layers.grouped_gemm_fp8 import launcher

    return launcher(torch.device("cpu"), config)


def partial_sums(config) -> torch.Tensor:
    """Those that the last launch under this config has left."""
    from ragged_moe.runtime.workspace import arena_of

    made = launcher(config)
    return arena_of(made.torch_device, made.device).take(made, made.parts).tensors[0]


def kernels_anew():
    """Compile again what is launched in this block."""
    from ragged_moe.layers.grouped_gemm_fp8 import launcher

    return compiled_anew(launcher)


# `make test` has these, and those of test_orders_of_events.
KEPT = [("ragged", SWAP_AB), ("several token tiles", TAIL), ("nan, cut into many parts", SWAP_AB)]
# `python -m ragged_moe check gemm --emulated h200 --all` has every case under every config. Here those that differ in
# what a CTA gets have all three kernels, and each of the other ones one.
CASES = [(name, config) for name in ("ragged", "cut into many parts") for config in (SWAP_AB, TILE, CLUSTER)]
CASES += [("even", TILE), ("one expert has all", CLUSTER), ("several token tiles", SWAP_AB), ("nan", TILE)]
CASES += [("several token tiles", CLUSTER), ("nan", CLUSTER), ("the ring goes round", CLUSTER)]
CASES += [("nan, cut into many parts", SWAP_AB)]
CASES += [(name, TAIL) for name in ("several token tiles", "tails of pairs", "nan")] * (MACHINE == "h200")
CASES += [("half of the columns, cut", SWAP_AB)]
CASES += [(name, "M128_N256_C2_BURST2") for name in ("ragged", "the ring goes round")] * (MACHINE == "h200")
CASES += [(name, WIDE) for name in ("ragged", "several token tiles", "cut into many parts")] * (MACHINE == "b200")
CASES += [("several token tiles", "M128_N64_SPLIT_K")] * (MACHINE == "b200")


@pytest.mark.parametrize("name, config", all_but(KEPT, CASES))
def test_cases(ragged_moe, name, config):
    assert ragged_moe.error_of(ragged_moe.CASES[name], getattr(tuned(), config)) <= ragged_moe.BOUND


@pytest.mark.parametrize("name", all_but_every(2, ["several token tiles", "ragged", "a single row"]))
def test_split_k(ragged_moe, name):
    """Sums go from one CTA of a cluster to the other, for several tiles in turn; of a single block of K they do not."""
    assert ragged_moe.error_of(ragged_moe.CASES[name], getattr(tuned(), SPLIT_K), 3) <= ragged_moe.BOUND


@unless(MACHINE == "h200")
def test_whole_tiles_and_shares(ragged_moe):
    """Either order: the machines differ in it."""
    name, config = ("shares, then whole tiles", CLUSTER) if MACHINE == "b200" else ("whole tiles, then shares", TILE)
    assert ragged_moe.error_of(ragged_moe.CASES[name], getattr(tuned(), config)) <= ragged_moe.BOUND


@pytest.mark.thorough
@pytest.mark.skipif(MACHINE != "h200", reason="a B200 shares these equally")
def test_one_token_tile_an_expert_in_whole_tiles(ragged_moe):
    """Eight tiles of six clusters: equal shares would cut some of them, whose sums go through scratch memory."""
    case, config = ragged_moe.Case((20,) * 8, 256, 640), getattr(tuned(), SHARED)
    assert ragged_moe.error_of(case, config) <= ragged_moe.BOUND
    partials = partial_sums(config)
    partials.fill_(0x55)
    assert ragged_moe.error_of(case, config) <= ragged_moe.BOUND and (partials == 0x55).all()


@unless(MACHINE == "h200")  # as others below: the schedule is the same on a B200
def test_partial_sums_are_left_empty(ragged_moe):
    """Those of a launch must not be taken for the next one's."""
    from ragged_moe.kernels.stream_k import EMPTY

    case, config = ragged_moe.CASES["cut into many parts"], tuned().M16_SWAP_AB
    assert ragged_moe.error_of(case, config) <= ragged_moe.BOUND
    partials = partial_sums(config)
    assert (partials == EMPTY).all()


@pytest.mark.skipif(MACHINE != "b200", reason="the pages' examples are run on one machine each")
def test_example_of_the_page(ragged_moe, monkeypatch):
    names = examples.run("README.md", MACHINE, monkeypatch)
    out, expected = names["out"].cpu(), names["expected"]
    assert out.dtype == torch.bfloat16 and (out - expected).norm() <= 2**-9 * expected.norm()


@pytest.mark.parametrize("schedule", all_but((2, 7), range(1, 9)))
def test_orders_of_events(ragged_moe, schedule):
    """One class of operation after the other is late, then all: clusters, cut tiles and bursts included.

    `python -m ragged_moe check gemm --all --schedules 10` has all cases of all configs in ten orders.
    """
    few, more, many = (getattr(tuned(), name) for name in (SWAP_AB, SHARED, TAIL))
    of_many = "ragged" if schedule == 2 else "cut into many parts"  # of clusters, arrivals late
    case, config = (("ragged", more), ("cut into many parts", few), (of_many, many))[schedule % 3]
    assert ragged_moe.error_of(ragged_moe.CASES[case], config, schedule) <= ragged_moe.BOUND


def test_waits_for_the_previous_kernel(ragged_moe):
    """Nothing that the launch before may have written is touched before that has ended, but for hints."""
    assert ragged_moe.error_of(few(ragged_moe), getattr(tuned(), SHARED), written=True) <= ragged_moe.BOUND


@pytest.mark.parametrize("name", all_but([SWAP_AB] * (MACHINE == "h200"), [SWAP_AB, SHARED, SPLIT_K]))
def test_m_indptr_that_changes(ragged_moe, monkeypatch, name):
    """The launch before writes m_indptr: what the schedule was first made from, and loads were begun for, is wrong."""
    from ragged_moe.kernels import schedule as scheduler

    real, looks = scheduler.load_relaxed, []

    def half_at_first(address):
        looks.append(address)
        return real(address) >> 1 if len(looks) == 1 else real(address)

    monkeypatch.setattr(scheduler, "load_relaxed", half_at_first)
    with kernels_anew():
        schedule = 3 if name in (SWAP_AB, SPLIT_K) else 0
        assert ragged_moe.error_of(few(ragged_moe), getattr(tuned(), name), schedule) <= ragged_moe.BOUND
    assert len(looks) == 4  # for the schedule, twice to see whether it is right, for the schedule


@unless(MACHINE == "h200")
def test_m_indptr_that_lies_stays_inside(ragged_moe):
    """Backwards and beyond the rows that there are: the emulator sees every access outside of the tensors."""
    assert ragged_moe.error_of(ragged_moe.CASES["m_indptr not monotone"], getattr(tuned(), SHARED)) <= ragged_moe.BOUND


@pytest.mark.parametrize("name", ["a", "a_scale", "b", "out"])
def test_operands_are_aligned(ragged_moe, name):
    from ragged_moe import grouped_gemm_fp8

    operands = dict(zip(("a", "a_scale", "b", "b_scale", "m_indptr"), ragged_moe.CASES["even"].draw()))
    operands["out"] = torch.empty(len(operands["a"]), operands["b"].shape[1], dtype=torch.bfloat16)
    given = operands[name]
    operands[name] = torch.empty(given.numel() + 1, dtype=given.dtype)[1:].view(given.shape)
    with pytest.raises(ValueError, match=f"^{name} starts at an address that is not a multiple of 16, but must$"):
        grouped_gemm_fp8(**operands)


@unless(MACHINE == "h200")
def test_no_room_for_all_ctas(ragged_moe, monkeypatch):
    """Other kernels have all SMs but one cluster's: whoever waits, waits for CTAs that have started."""
    config, device = getattr(tuned(), SHARED), emulated_gpu.device.DEVICE
    monkeypatch.setattr(device, "chip", dataclasses.replace(device.chip, sms=config.launch_cluster))
    assert ragged_moe.error_of(ragged_moe.CASES["cut into many parts"], config) <= ragged_moe.BOUND


@unless(MACHINE == "h200")
@settings(max_examples=1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=8), st.sampled_from([128, 256, 384]), st.sampled_from([128, 384])
)
@example([0] * 39 + [1], 128, 128)
@example([129], 256, 128)
@example([1] * 33, 128, 128)  # more experts than lanes
@example([0, 1, 65], 128, 384)  # of 66 rows: scales begin at 1, 3 and 1 of 4 words
def test_ragged_experts(ragged_moe, ms, n, k):
    config = getattr(tuned(), (SWAP_AB, SHARED)[len(ms) % 2])
    assert ragged_moe.error_of(ragged_moe.Case(tuple(ms), n, k, seed=len(ms)), config) <= ragged_moe.BOUND


FAULTS = ["no scales", "the next expert's rows are stored", "no partial sums"]
FAULTS += ["results are read too early", "a CTA ends too early", "sums are given before the last ones were taken"]
FAULTS += ["a stage is released too early"] * (MACHINE == "h200")


@pytest.mark.parametrize("fault", all_but(["no scales"] * (MACHINE == "h200"), FAULTS))
def test_planted_faults_are_seen(ragged_moe, monkeypatch, fault):
    """What the tests above are worth: each of these kernels fails."""
    from cutlass import Int32

    from ragged_moe.kernels import loads, split_k, stream_k
    from ragged_moe.kernels.epilogue import bf16
    from ragged_moe.kernels.pipeline import PipelineState
    from ragged_moe.kernels.sm90 import tokens_m_from_17_tokens as sm90
    from ragged_moe.kernels.sm100 import tensor_memory, two_cta_from_129_tokens
    from ragged_moe.kernels.sm100 import tokens_m_from_17_tokens as sm100

    def replace(where, name, value):
        monkeypatch.setattr(where, name, value)

    if fault == "no scales" and MACHINE == "b200":
        pair = sm100.fma_pair
        replace(sm100, "fma_pair", lambda x, y, scales, u, v: pair(x, y, sm100.twice(x), u, v))
    elif fault == "no scales":
        fma = sm90.fma_in_order
        replace(sm90, "fma_in_order", lambda d, scale, acc: fma(d, d, acc))
    elif fault == "the next expert's rows are stored":
        store = bf16.store_global_words
        replace(bf16, "store_global_words", lambda at, x, condition: store(at, x, Int32(1)))
    elif fault == "results are read too early" and MACHINE == "b200":
        replace(two_cta_from_129_tokens, "tmem_load_wait", lambda: None)
    elif fault == "results are read too early":
        replace(sm90, "wgmma_wait", lambda pending: None)
    elif fault == "sums are given before the last ones were taken":
        replace(split_k.SplitK, "drain", lambda *_: None)
    elif fault == "a CTA ends too early" and MACHINE == "b200":
        replace(tensor_memory.TensorMemory, "drain", lambda *_: None)
    elif fault == "a CTA ends too early":
        replace(loads.Producer, "drain", lambda *_: None)
    elif fault == "a stage is released too early":
        release, advance, multiply, at = sm90.release, PipelineState.advance, sm90.TokensM.multiply, []

        def released(state, stages=None):
            """Called of a consumer before it multiplies."""
            if at:
                config, cta, lane = at
                release(config, cta, state.index, lane)
            return advance(state, stages)

        def remembered(self, warp, *arguments):
            at[:] = self.config, warp.cta, warp.lane
            state = multiply(self, warp, *arguments)
            at.clear()
            return state

        replace(sm90, "release", lambda *_: None)
        replace(PipelineState, "advance", released)
        replace(sm90.TokensM, "multiply", remembered)
    else:
        load = stream_k.load_relaxed_words_if
        replace(stream_k, "load_relaxed_words_if", lambda at, condition: load(at, condition & 0))
    with kernels_anew():
        cases = {"no partial sums": "cut into many parts", "a stage is released too early": "the ring goes round"}
        cases["sums are given before the last ones were taken"] = "several token tiles"
        case = ragged_moe.CASES[cases[fault]] if fault in cases else few(ragged_moe)
        config, order = getattr(tuned(), SPLIT_K if "sums are given" in fault else SHARED), 0
        if MACHINE == "b200" and "early" in fault:
            config = getattr(tuned(), CLUSTER)
        if fault == "a CTA ends too early" and MACHINE == "b200":
            order = 9  # arrivals at other CTAs' barriers land only when nothing else can move
        try:
            assert ragged_moe.error_of(case, config, order) > ragged_moe.BOUND
        except emulated_gpu.EmulatorError:
            pass  # it wrote outside of out


@pytest.mark.skipif(MACHINE != "b200", reason="what is modelled is a B200")
def test_modelled_time(ragged_moe):
    """A row on the timing model: a dependent launch, under the config of the table, that takes more than its floor."""
    from evaluation.commands import moe_tasks

    args = {"m": (9,), "n": 128, "k": 256}
    found = moe_tasks.serve(moe_tasks.Request("fp8_grouped_gemm", args, calls=1, extrapolate=False))
    assert moe_tasks.floors(args)["bytes"] < 3 < found["us"] < 20
    assert bool(found["unlike"]) == (found["us_interval"] is None)
    assert found["pdl"] and found["config"] == str(tuned().M16_SWAP_AB)


def test_config_that_is_wrong_is_not_ranked(ragged_moe, monkeypatch):
    from evaluation.commands import moe_tasks
    from evaluation.judge import configs

    monkeypatch.setattr(ragged_moe, "error_of", lambda case, config: 2 * ragged_moe.BOUND)
    with pytest.raises(configs.Unusable, match="wrong results on 'ragged'"):
        moe_tasks.check_config(tuned().M16_SWAP_AB)
