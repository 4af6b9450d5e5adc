"""How the submission chooses among the Configs of a shape, by a clock that the tests give. No kernel is compiled."""

import dataclasses
import random
import weakref
from types import SimpleNamespace

import pytest
import torch

import submission
from submission import Config, fastest
from tests.submission.fake_executor import FakeExecutor
from tests.submission.test_host import problem

FIRST, OTHERS = Config(gran=32), (Config(gran=64), Config(gran=128), Config(gran=32, prefetch=0))
SHAPE = (40, 24), 64, 128  # (M of each group), N, K
ROUNDS = submission.ROUNDS


def noisy(us: float, spread: float = 0.0, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [us + draw.uniform(-spread, spread) for _ in range(ROUNDS)]


@pytest.mark.parametrize(
    "times, chosen",
    [
        ([noisy(5.0)], 0),
        ([noisy(5.0), noisy(4.0), noisy(3.0), noisy(4.0)], 2),
        ([noisy(3.0), noisy(4.0), noisy(5.0)], 0),
        ([noisy(5.0)] * 4, 0),  # a tie
        ([noisy(5.0), noisy(4.0), noisy(4.0)], 1),  # a tie of others: the better guess
        ([noisy(5.0, 0.5, 1), noisy(4.95, 0.5, 2)], 0),  # less than is sure
        ([noisy(5.0, 0.5, 1), noisy(4.0, 0.5, 2)], 1),
        ([noisy(5.0), [1.0] * (ROUNDS // 2 - 1) + [6.0] * (ROUNDS // 2 + 1)], 0),  # faster in a minority of rounds
        ([[5.0 + i for i in range(ROUNDS)], [4.9 + i for i in range(ROUNDS)]], 1),  # rounds that slow down alike
        ([noisy(5.0), [float("nan")] * ROUNDS], 0),  # no timer
        ([[float("nan")] * ROUNDS, noisy(5.0)], 0),
    ],
)
def test_the_first_unless_another_is_faster_by_more_than_the_spread(times, chosen):
    assert fastest(times) == chosen


def test_equals_are_seldom_preferred_and_what_is_faster_is_found():
    """In rounds whose standard deviation is 2 %, a gain of 2 % is found in nine of ten trials, and of 0 % in few."""
    draw, found = random.Random(3), {0.0: 0, 0.02: 0}
    for gain in found:
        for _ in range(400):
            found[gain] += fastest([[draw.gauss(1 - gain * i, 0.02) for _ in range(ROUNDS)] for i in (0, 1)])
    assert found[0.02] >= 0.9 * 400 and found[0.0] <= 0.05 * 400, found


@pytest.fixture
def tuned(monkeypatch):
    """A shape with four Configs on a machine that says it is a B200; `clock` is microseconds by Config."""
    made = SimpleNamespace(executors={}, clock={FIRST: 5.0}, timed=[], sets=[], scratch=None, order=[])

    def compiled(kernel, groups, config):
        return made.executors.setdefault(config, FakeExecutor(kernel(groups, config)))

    def timed(plan, sets, scratch):
        (config,) = [c for c, e in made.executors.items() if e.capi_func == plan.launches[0][0].function]
        made.order.append(config)
        made.sets, made.scratch = [weakref.ref(t) for tensors in sets for t in tensors], weakref.ref(scratch)
        for tensors in sets:
            plan(tensors)
        us = made.clock.get(config, 9.0)
        if isinstance(us, str):
            raise RuntimeError(us)
        return us

    configs = tuple(dataclasses.replace(c, token_cost=100, tokens=256) for c in (FIRST, *OTHERS))
    monkeypatch.setattr(submission, "compiled", compiled)
    monkeypatch.setattr(submission.Plan, "timed", timed)
    monkeypatch.setattr(submission, "on_b200", lambda tensor: True)
    monkeypatch.setitem(submission.CONFIG_MAP, SHAPE, configs)
    monkeypatch.delenv("GROUP_GEMM_TUNING", raising=False)
    submission.plan.cache_clear()
    yield made
    submission.plan.cache_clear()


def call(made, data=None) -> Config:
    """The Config whose kernel a call launches last, with the caller's tensors."""
    data = data or problem(*((m, *SHAPE[1:]) for m in SHAPE[0]))
    before = {config: len(e.launched) for config, e in made.executors.items()}
    out = submission.custom_kernel(data)
    assert all(x is c for x, (_, _, c) in zip(out, data[0], strict=True))
    mine = [t.data_ptr() for g in range(2) for t in (*data[0][g], *data[2][g])]
    found = [c for c, e in made.executors.items() if e.launched[before.get(c, 0) :] and e.launched[-1][:10] == mine]
    assert len(found) == 1  # and the copies that were timed are others
    return found[0]


def test_the_fastest_is_kept(tuned):
    tuned.clock[OTHERS[1]] = 4.0
    assert [call(tuned) for _ in range(3)] == [OTHERS[1]] * 3
    assert len(tuned.order) == 4 * (1 + ROUNDS)  # in the first call
    rounds = [tuple(tuned.order[i : i + 4]) for i in range(0, len(tuned.order), 4)]
    assert all(set(of_round) == {FIRST, *OTHERS} for of_round in rounds) and len(set(rounds)) > 5


def test_the_first_guess_is_kept_where_nothing_is_faster(tuned):
    assert call(tuned) == FIRST and len(tuned.order) == 4 * (1 + ROUNDS)


def test_each_call_that_is_timed_has_tensors_of_its_own(tuned):
    data = problem(*((m, *SHAPE[1:]) for m in SHAPE[0]))
    given = {t.data_ptr() for part in (data[0], data[2]) for group in part for t in group}
    before = [c.clone() for _, _, c in data[0]]
    seen = []
    tuned_timed = submission.Plan.timed

    def timed(plan, sets, scratch):
        seen.append({t.data_ptr() for tensors in sets for t in tensors})
        assert len(seen[-1]) == submission.CALLS * 10 and scratch.nbytes == submission.FLUSH
        return tuned_timed(plan, sets, scratch)

    submission.Plan.timed = timed  # the fixture's monkeypatch puts it back
    call(tuned, data)
    assert seen and not any(addresses & given for addresses in seen)
    assert all(torch.equal(c, x) for (_, _, c), x in zip(data[0], before))


def test_a_failure_leaves_the_first_guess(tuned, capsys):
    tuned.clock |= {OTHERS[0]: 1.0, OTHERS[2]: "launch failed"}
    assert [call(tuned), call(tuned)] == [FIRST, FIRST]
    assert tuned.scratch() is None and capsys.readouterr().err == ""


def test_a_config_that_does_not_compile_leaves_the_first_guess(tuned, monkeypatch):
    compiled = submission.compiled

    def failing(kernel, groups, config):
        if config == OTHERS[1]:
            raise RuntimeError("ptxas")
        return compiled(kernel, groups, config)

    monkeypatch.setattr(submission, "compiled", failing)
    tuned.clock[OTHERS[0]] = 1.0
    assert call(tuned) == FIRST and not tuned.order


def test_scratch_is_freed(tuned):
    tuned.clock[OTHERS[0]] = 1.0
    call(tuned)
    assert tuned.scratch() is None and len(tuned.sets) == 15 * 10 and all(ref() is None for ref in tuned.sets)


def test_no_more_memory_than_allowed(tuned, monkeypatch):
    monkeypatch.setattr(submission, "BYTES", submission.FLUSH + 10_000)
    tuned.clock[OTHERS[0]] = 1.0
    assert call(tuned) == FIRST and not tuned.order


def test_memory_and_configs_of_the_benchmarks():
    """At most 3 GB of scratch: 15 copies of what a case has, and what is flushed with. At most 6 Configs."""
    for (ms, n, k), configs in submission.CONFIG_MAP.items():
        copies = sum((m + n) * k // 2 + 2 * m * n + (-(-m // 128) + -(-n // 128)) * 8 * k for m in ms)
        assert submission.CALLS * copies + submission.FLUSH <= submission.BYTES <= 3e9
        assert 1 < len(set(configs)) == len(configs) <= 6
    for configs in submission.DUAL_CONFIG_MAP.values():
        assert 1 < len(set(configs)) == len(configs) <= 6


def test_a_slow_host_compiles_fewer(tuned, monkeypatch):
    now = [0.0]
    compiled = submission.compiled

    def slow(kernel, groups, config):
        now[0] += 8.0  # seconds
        return compiled(kernel, groups, config)

    monkeypatch.setattr(submission, "compiled", slow)
    monkeypatch.setattr(submission.time, "perf_counter", lambda: now[0])
    tuned.clock[OTHERS[0]] = 1.0
    assert call(tuned) == OTHERS[0]
    assert now[0] == 16.0 <= submission.SECONDS and set(tuned.order) == {FIRST, OTHERS[0]}


@pytest.mark.parametrize("mode, chosen", [("off", FIRST), ("show", OTHERS[0]), ("", OTHERS[0])])
def test_the_environment_turns_it_off_or_shows_it(tuned, monkeypatch, capsys, mode, chosen):
    monkeypatch.setenv("GROUP_GEMM_TUNING", mode)
    tuned.clock[OTHERS[0]] = 1.0
    assert call(tuned) == chosen
    said = capsys.readouterr().err
    assert (f"of 4 configs number 1 (333.33, 66.67, 600.00, 600.00 us): {OTHERS[0]}" in said) == (mode == "show")
    assert mode == "show" or said == ""


def test_a_reason_is_shown(tuned, monkeypatch, capsys):
    monkeypatch.setenv("GROUP_GEMM_TUNING", "show")
    tuned.clock[OTHERS[0]] = "no timer"
    call(tuned)
    assert "the first config, since the others could not be timed: RuntimeError: no timer" in capsys.readouterr().err


def test_one_config_is_not_timed(tuned, monkeypatch):
    monkeypatch.setitem(submission.CONFIG_MAP, SHAPE, (OTHERS[2],))
    assert call(tuned) == OTHERS[2] and not tuned.order


def test_wrong_tensors_are_refused_before_and_tuned_later(tuned):
    data = problem(*((m, *SHAPE[1:]) for m in SHAPE[0]))
    wrong = [(a, b, c[:-1]) for a, b, c in data[0]]
    with pytest.raises(ValueError, match="c has shape"):
        submission.custom_kernel((wrong, *data[1:]))
    assert not tuned.order
    tuned.clock[OTHERS[0]] = 1.0
    assert call(tuned, data) == OTHERS[0]


@pytest.mark.parametrize("tensor", [torch.zeros(1), torch.zeros(1, device="meta")], ids=["cpu", "meta"])
def test_memory_elsewhere_is_no_b200s(monkeypatch, tensor):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (10, 0))
    assert not submission.on_b200(tensor)


def test_another_gpu_is_none(monkeypatch):
    gpu, name = SimpleNamespace(is_cuda=True), ["NVIDIA B200"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name[0])
    for capability in ((10, 0), (9, 0), (10, 3), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, capability=capability: capability)
        assert submission.on_b200(gpu) == (capability == (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (10, 0))
    assert not submission.on_b200(torch.zeros(1))
    name[0] += " (emulated)"
    assert not submission.on_b200(gpu)


def test_the_dual_gemm_is_tuned(tuned, monkeypatch):
    shape, others = (40, 64, 128), (Config(epilogue_warps=8), Config(epilogue_warps=4))
    monkeypatch.setitem(submission.DUAL_CONFIG_MAP, shape, others)
    submission.dual_plan.cache_clear()
    tuned.clock = {others[0]: 5.0, others[1]: 4.0}
    m, n, k = shape

    def timed(plan, sets, scratch):
        ((launch, _),) = plan.launches
        (config,) = [c for c, e in tuned.executors.items() if e.capi_func == launch.function]
        return tuned.clock[config]

    monkeypatch.setattr(submission.Plan, "timed", timed)
    ((a, b1, c),), _, ((sfa, sfb1),), _ = problem(shape)
    out = submission.custom_kernel((a, b1, b1.clone(), None, None, None, sfa, sfb1, sfb1.clone(), c))
    assert out is c and submission.dual_plan(m, n, k, 1).launches[0][0].function == (
        tuned.executors[others[1]].capi_func
    )
    submission.dual_plan.cache_clear()
