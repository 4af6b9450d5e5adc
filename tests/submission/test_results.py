"""What holds for every call of the submission: drawn groups, values, configs and mistakes, on the emulated B200.

Results are compared bit by bit with the exact ones. That is fair because in both kinds of drawn inputs the tensor core,
as emulated_gpu/units/mma.py models it, loses no bit of any sum, in whatever order:
  * the task's own values, magnitudes of at most 1.5 and scales of 1 and 2, are 144 * 4 * K quanta: below 2^24 up to
    K = 29127;
  * with every FP4 code and every finite scale, an element of c is one sum of 16 products that share two scales, which
    takes 20 bits. All other blocks of b are zeros under scales of zero: a large scale over zeros would still set the
    exponent to which the tensor core aligns its terms, 35 bits above what it drops.
"""

import contextlib
import dataclasses
import itertools
import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import emulated_gpu
from evaluation.judge.inputs import as_bytes
from reference import BLOCK, generate_full_range_input, generate_input, ref_kernel, reorder_scales
from tests.thorough import all_but, all_but_every

# The same examples in every run, so that a change that breaks the kernel fails where it was made; the first failing
# example is reported as it is, since each step of making it smaller would be a run of the emulator.
settings.register_profile(
    "emulated",
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
emulated = settings.get_profile("emulated")
SOURCE = (Path(__file__).parents[2] / "submission.py").read_text()


@dataclasses.dataclass
class Problem:
    """Inputs in emulated memory, with NaN in c, and the exact results."""

    data: tuple
    expected: list

    def changed(self) -> bool:
        return not all(torch.equal(as_bytes(t), copy) for t, copy in self.copies)

    def __post_init__(self):
        inputs = [t for group in self.data[0] for t in group[:2]] + [t for group in self.data[2] for t in group]
        self.copies = [(t, as_bytes(t).clone()) for t in inputs]
        for _, _, c in self.data[0]:
            c.fill_(float("nan"))


def padding(rows, k):
    """NaN for the scales of rows that are not there: nothing may come of them."""
    return torch.full((-(-rows // 128) * 128, k // BLOCK, 1), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)


def problem(groups, full_range=False, seed=0) -> Problem:
    """Of (m, n, k) for each group."""
    generate = generate_full_range_input if full_range else generate_input
    data = generate(*zip(*groups), len(groups), seed, device=torch.device("cpu"))
    expected = [c.clone() for c in ref_kernel(data)]
    return Problem(emulated_gpu.device_tensors(data), expected)


def check(submission, problem: Problem, schedule=0) -> int:
    """Call the kernel; returns the number of launches."""
    with emulated_gpu.session(schedule=schedule, strict=True) as session:
        outputs = submission.custom_kernel(problem.data)
    assert not session.report()
    assert all(out is c for out, (_, _, c) in zip(outputs, problem.data[0], strict=True))
    for g, (c, want) in enumerate(zip(outputs, problem.expected, strict=True)):
        assert torch.equal(c, want), f"group {g}: {int((c != want).sum())} of {c.numel()} elements differ"
    assert not problem.changed()
    return session.launches


# -- groups -----------------------------------------------------------------------------------------------------------

group = st.tuples(
    st.one_of(st.integers(0, 40), st.integers(0, 300)),
    st.one_of(st.integers(1, 4), st.integers(1, 24)).map(lambda x: 16 * x),
    st.one_of(st.integers(1, 4), st.integers(1, 12)).map(lambda x: 64 * x),
)


drawn = given(groups=st.lists(group, min_size=1, max_size=4), full_range=st.booleans(), schedule=st.integers(0, 12))


@settings(emulated, max_examples=4)
@drawn
@example(groups=[(0, 16, 64)], full_range=False, schedule=0)
@example(groups=[(1, 16, 64), (0, 4096, 7168), (255, 272, 576), (257, 112, 64)], full_range=True, schedule=2)
@example(groups=[(513, 144, 128)], full_range=True, schedule=1)
def test_results_are_exact(submission, groups, full_range, schedule):
    launches = check(submission, problem(groups, full_range, seed=schedule), schedule)
    assert launches == any(m for m, _, _ in groups)


@pytest.mark.thorough
@settings(emulated, max_examples=40)
@drawn
def test_more_results_are_exact(submission, groups, full_range, schedule):
    check(submission, problem(groups, full_range, seed=schedule), schedule)


@pytest.mark.thorough
def test_sixty_four_mixed_groups(submission):
    groups = [(5 * g % 37, 16 * (1 + g % 3), 64 * (1 + g % 5)) for g in range(64)]
    assert check(submission, problem(groups, full_range=True)) == 4  # at most 16 groups that are not empty in each


def test_every_code_times_every_scale(submission):
    """Row i of a holds one FP4 code under scale i / 16; row j of b holds 1 and 0 where the rows' products differ."""
    data = generate_input((16 * 127,), (16,), (64,), 1, 0, device=torch.device("cpu"))
    (a, b, _), (sfa, sfb) = data[0][0], data[1][0]
    rows = torch.arange(16 * 127)
    a.view(torch.uint8)[:] = (rows % 16 * 0x11).to(torch.uint8)[:, None, None]
    b.view(torch.uint8)[:] = 0
    b.view(torch.uint8)[torch.arange(16), torch.arange(16) * 2] = 0x02  # 1.0 at one place of K, another for each row
    sfa.view(torch.uint8)[:] = (rows // 16).to(torch.uint8)[:, None, None]
    sfb.view(torch.uint8)[:] = 0x38  # 1.0
    data[2][0] = tuple(reorder_scales(s, padding(len(s), 64)) for s in (sfa, sfb))
    expected = [out.clone() for out in ref_kernel(data)]
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = torch.cat([values, -values])[rows % 16] * sfa[:, 0, 0].float()
    assert torch.equal(expected[0][:, :, 0], codes.half()[:, None].expand(-1, 16))  # not only the reference says so
    check(submission, Problem(emulated_gpu.device_tensors(data), expected))


# -- one kernel for all problems --------------------------------------------------------------------------------------


def test_other_sizes_do_not_compile(submission):
    check(submission, problem([(40, 128, 128), (72, 64, 64)]))
    before = submission.compiled.cache_info().misses
    for groups in (
        [(41, 128, 128), (300, 64, 64)],
        [(7, 48, 192), (8, 16, 64)],
        [(0, 16, 64), (64, 32, 64), (1, 16, 128)],
    ):
        check(submission, problem(groups))
    assert submission.compiled.cache_info().misses == before


def test_each_call_writes_the_tensors_it_is_given(submission):
    """Same sizes, other tensors and other values: nothing of an earlier call is left."""
    groups = [(33, 48, 64), (20, 64, 128)]
    first, second = problem(groups, seed=1), problem(groups, seed=2)
    assert not torch.equal(first.expected[0], second.expected[0])
    check(submission, first)
    check(submission, second)
    for (_, _, c), want in zip(first.data[0], first.expected):
        assert torch.equal(c, want)
    check(submission, first)


@pytest.mark.parametrize("groups", all_but((1, 3), [1, 2, 3, 4, 8, 16]))
def test_one_launch_for_up_to_sixteen_groups(submission, groups):
    assert check(submission, problem([(g + 1, 16, 64) for g in range(groups)])) == 1


# -- configs ----------------------------------------------------------------------------------------------------------

OTHERS = (  # each value of each hyperparameter in at least one
    {"gran": 128, "tokens": 128, "token_box": 128, "sms": 4},
    {"gran": 32, "epilogue_warps": 8, "tokens": 160, "sms": 2},
    {"gran": 128, "token_box": 64, "pdl": False, "sms": 4},
    {"gran": 64, "store_boxes": 2, "stages": 2, "store_policy": "evict_first", "sms": 2},
    {"gran": 128, "epilogue_warps": 8, "store_boxes": 2, "sms": 2},
    {"gran": 32, "token_box": 16, "prefetch": 0, "sms": 6},
    {"gran": 32, "tokens": 192, "weight_policy": "evict_last"},
    {"gran": 64, "tokens": 96, "token_cost": 50, "token_box": 32, "waves": 2, "sms": 4},
    {"sharers": 2, "tokens": 64, "store_boxes": 2, "epilogue_warps": 8, "sms": 4},
    {"sharers": 2, "tokens": 256, "stages": 3, "waves": 6, "sms": 8},
    {"token_sharers": 2, "tokens": 192, "wide_token_box": 48, "waves": 2, "sms": 8},
)
VARIED = [(40, 272, 320), (300, 384, 64)]  # m, n, k


def without_hints(config):
    """A Config like it as far as results go: L2 policies and how many stages are prefetched are hints to the caches."""
    policies = {name: "evict_first" for name in ("weight_policy", "token_policy", "store_policy")}
    return dataclasses.replace(config, **policies, prefetch=min(config.prefetch, 1))


@pytest.mark.parametrize("one_cluster, schedule", all_but([(True, 2)], [(False, 0), (True, 2)]))
def test_mapped_configs_are_exact(submission, monkeypatch, one_cluster, schedule):
    mapped = [configs[:1] if one_cluster else configs for configs in submission.CONFIG_MAP.values()]
    for config in dict.fromkeys(map(without_hints, (*itertools.chain(*mapped), submission.DEFAULT))):
        sms = config.cluster if one_cluster else config.sms
        monkeypatch.setattr(submission, "DEFAULT", dataclasses.replace(config, sms=sms))
        submission.plan.cache_clear()
        check(submission, problem(VARIED, full_range=True), schedule)
    submission.plan.cache_clear()


def test_times_do_not_tell_which_clusters_compute(submission):
    """Times are the same bits whether all, some or no clusters do; what some store is exact, and the rest is noted."""
    took = []
    for computes in (None, lambda first: first[0] % 4 < 2, lambda first: False):
        p = problem(((200, 256, 512), (64, 512, 512)))
        with emulated_gpu.timing("b200", compute=True) as timed:
            submission.custom_kernel(p.data)
            one = emulated_gpu.DEVICE.session.recorded[0]
            one.options = dataclasses.replace(one.options, computes_mma=computes)
            regions = [emulated_gpu.DEVICE.memory.find(c.data_ptr(), c.nbytes, False) for _, _, c in p.data[0]]
        took.append(timed.ends_us)
        for (_, _, c), expected, region in zip(p.data[0], p.expected, regions):
            left_out = torch.zeros(c.shape, dtype=torch.bool)
            if region.not_computed is not None:
                at = c.data_ptr() - region.start
                bits = torch.from_numpy(region.not_computed[at : at + c.nbytes].copy()).view(torch.int16)
                left_out = bits.as_strided(c.shape, c.stride()) != 0
            assert left_out.any() == (computes is not None) and left_out.all() == (len(took) == 3)
            assert torch.equal(c[~left_out], expected[~left_out]) and c[left_out].isnan().all()
    assert took[0] == took[1] == took[2]


SEVERAL = """
CONFIG_MAP[(40, 24), 64, 128] = candidates(DEFAULT, [{"gran": 64}])


def measured(*_):
    raise SystemExit("timed")  # `tune` would bear an Exception
"""


def test_nothing_is_timed_on_an_emulated_gpu(tmp_path, judged):
    """Where tensors say that they are on `cuda`, whose capability is (10, 0)."""
    path = tmp_path / "submission.py"
    path.write_text(SOURCE + SEVERAL)
    (verdict,) = judged(path, ((40, 24), (64, 64), (128, 128)))
    assert (verdict.status, verdict.reason) == ("pass", "")


@pytest.mark.parametrize("hyperparameters", all_but_every(8, OTHERS), ids=lambda x: "-".join(map(str, x.values())))
def test_other_configs_are_exact(submission, monkeypatch, hyperparameters):
    monkeypatch.setattr(submission, "DEFAULT", submission.Config(**hyperparameters))
    submission.plan.cache_clear()
    for schedule in (0, 8):
        check(submission, problem(VARIED, full_range=True, seed=schedule), schedule)
    submission.plan.cache_clear()


# -- weights that the launch before writes ----------------------------------------------------------------------------


def weights_from_c(data):
    """A problem with [256, 128] weights in the memory of `data`'s first c, with its other tensors of its own."""
    memory = data[0][0][2].squeeze(-1).view(torch.uint8)  # [128, 64] fp16
    other = emulated_gpu.device_tensors(generate_input((32,), (256,), (128,), 1, 3, device=torch.device("cpu")))
    (a, b, c), scales = other[0][0], other[2]
    weights = memory.view(256, 64).unsqueeze(-1).view(b.dtype)
    return [(a, weights, c)], other[1], scales, other[3]


@pytest.fixture
def compiled_anew(submission):
    submission.plan.cache_clear()
    submission.compiled.cache_clear()
    yield
    submission.plan.cache_clear()
    submission.compiled.cache_clear()


@pytest.mark.parametrize("waits", [True, False])
def test_a_kernel_waits_for_the_launch_that_writes_its_weights(submission, monkeypatch, compiled_anew, waits):
    if not waits:
        monkeypatch.setattr(submission, "wait_for_previous_kernel", lambda condition: None)
    first = problem([(128, 64, 128)])
    with emulated_gpu.session():  # each call's weights are inputs that no launch writes
        submission.custom_kernel(first.data)
        submission.custom_kernel(problem([(64, 64, 128)]).data)
    found = pytest.raises(emulated_gpu.Fault, match="missing-dependency-wait: read of")
    with contextlib.nullcontext() if waits else found, emulated_gpu.session():
        submission.custom_kernel(first.data)
        submission.custom_kernel(weights_from_c(first.data))


# -- refusals ---------------------------------------------------------------------------------------------------------

OPERANDS = ("a", "b", "c", "reordered sfa", "reordered sfb")


def other_type(t):
    return t.view(torch.int16 if t.dtype == torch.float16 else torch.uint8)


def other_shape(t):
    return t[:-1] if t.dim() == 3 else t[:, :, :, :, :0]


def other_strides(t):
    bits = torch.int16 if t.element_size() == 2 else torch.uint8
    return torch.empty_strided(t.shape, [2 * s for s in t.stride()], dtype=bits).view(t.dtype)


def other_device(t):
    return t.to("meta")


wrong_size = st.one_of(
    st.tuples(st.just("M"), st.one_of(st.integers(-(2**31), -1), st.integers(2**24, 2**40))),
    st.tuples(st.just("N"), st.integers(-64, 4096).filter(lambda n: n < 16 or n % 16)),
    st.tuples(st.just("K"), st.integers(-256, 8192).filter(lambda k: k < 64 or k % 64)),
    st.tuples(st.just("L"), st.integers(-1, 5).filter(lambda batches: batches != 1)),
)
wrong_tensor = st.tuples(
    st.sampled_from(OPERANDS),
    st.sampled_from(
        [("type", other_type), ("shape", other_shape), ("strides", other_strides), ("device", other_device)]
    ),
)
inconsistent = st.tuples(st.sampled_from("MNK"), st.sampled_from([64, 128, 192]))  # right, but not the tensors' sizes


def refused(submission, data, pattern):
    """ValueError with this text, nothing launched, nothing compiled, nothing written."""
    written = [as_bytes(c) for _, _, c in data[0] if c.device.type == "cpu"]
    before = [c.clone() for c in written]
    compiled = submission.compiled.cache_info().misses
    with emulated_gpu.session() as session, pytest.raises(ValueError) as caught:
        submission.custom_kernel(data)
    assert re.search(pattern, str(caught.value)), str(caught.value)
    assert session.launches == 0
    assert submission.compiled.cache_info().misses == compiled
    assert all(map(torch.equal, written, before))


@pytest.fixture(scope="module")
def three_groups(submission):
    """A good problem, called once: its kernel is compiled and its tensors are known."""
    good = problem([(32, 32, 256)] * 3)
    check(submission, good)
    return good


def resized(sizes, g, wrong):
    """The sizes, but one of group g."""
    sizes, (name, value) = [list(size) for size in sizes], wrong
    sizes[g]["MNKL".index(name)] = value
    return [tuple(size) for size in sizes]


@settings(emulated, max_examples=60)
@given(g=st.integers(0, 2), wrong=wrong_size)
def test_wrong_sizes_are_refused(submission, three_groups, g, wrong):
    abc, scales, reordered, sizes = three_groups.data
    name, value = wrong
    rule = f"group {g}: {name} is {value}, but must be a multiple of [0-9]+ from [0-9]+ to [0-9]+$"
    refused(submission, (abc, scales, reordered, resized(sizes, g, wrong)), rule)


@settings(emulated, max_examples=40)
@given(g=st.integers(0, 2), wrong=wrong_tensor)
def test_wrong_tensors_are_refused(submission, three_groups, g, wrong):
    abc, scales, reordered, sizes = three_groups.data
    operand, (what, change) = wrong
    abc, reordered = [list(group) for group in abc], [list(group) for group in reordered]
    place, i = (abc[g], OPERANDS.index(operand)) if operand in "abc" else (reordered[g], OPERANDS.index(operand) - 3)
    place[i] = change(place[i])
    refused(submission, (abc, scales, reordered, sizes), f"group {g}: {operand} has {what} .*, but must have ")


@settings(emulated, max_examples=9)
@given(g=st.integers(0, 2), wrong=inconsistent)
def test_sizes_that_are_not_the_tensors_are_refused(submission, three_groups, g, wrong):
    abc, scales, reordered, sizes = three_groups.data
    refused(submission, (abc, scales, reordered, resized(sizes, g, wrong)), f"group {g}: [abc] has shape ")
