"""The dual GEMM of submission.py: c = silu(a @ b1.T) * (a @ b2.T), what it accepts, and how exact it is.

The tensor core rounds its sums, unlike those of the group GEMM's inputs. So there are two kinds of inputs: those
whose sums are exact in float32, where only silu, the products and the last rounding are left, have to come out within 1
ulp of float16, and the task's own within the task's tolerance.
"""

import itertools
import math

import numpy as np
import pytest
import torch

import emulated_gpu
from evaluation.judge.verdict import ulps
from reference import DUAL_GEMM, NAN_SCALE, dual_sums, generate_dual_input, reorder_scales, silu_product
from tests.submission.fake_executor import FakeExecutor
from tests.submission.test_results import without_hints
from tests.thorough import all_but_every

ONE = 0x38  # e4m3
NAMES = "a b1 b2 sfa sfb1 sfb2 sfa_permuted sfb1_permuted sfb2_permuted c".split()
READ = [0, 1, 2, 6, 7, 8, 9]  # what the kernel looks at


@pytest.fixture
def config(submission, monkeypatch):
    """config(**entries) makes them entries of the Config of every problem."""

    def choose(**entries):
        chosen = submission.Config(**{**vars(submission.DUAL_DEFAULT), **entries})
        monkeypatch.setattr(submission, "DUAL_DEFAULT", chosen)
        submission.dual_plan.cache_clear()

    yield choose
    submission.dual_plan.cache_clear()


# -- inputs -----------------------------------------------------------------------------------------------------------


def with_scales(data, draw):
    """The data with other scale factors: `draw(rows, blocks, batches)` gives e4m3 codes; padding is NaN."""
    data = list(data)
    for plain, permuted in ((3, 6), (4, 7), (5, 8)):
        rows, blocks, batches = data[plain].shape
        codes = torch.from_numpy(draw(rows, blocks, batches).astype(np.uint8)).view(torch.float8_e4m3fn)
        fill = torch.full((-(-rows // 128) * 128, -(-blocks // 4) * 4, batches), NAN_SCALE, dtype=torch.uint8)
        data[plain], data[permuted] = codes, reorder_scales(codes, fill.view(torch.float8_e4m3fn))
    return tuple(data)


def exact_input(m, n, k, batches=1, seed=0, scales=(ONE, ONE + 8)):
    """Scales of 1 and 2 as a rule: every sum is a multiple of 1/4 below 2^22 of them, exact in float32 in any order."""
    rng = np.random.default_rng(seed)
    data = generate_dual_input(m, n, k, batches, seed, device=torch.device("cpu"))
    return with_scales(data, lambda *shape: rng.choice(np.array(scales, np.uint8), shape))


def on_device(data, order=None):
    """The data in the emulated device's memory, c full of NaN; `order`: names, in the order of their addresses."""
    tensors = [emulated_gpu.device_tensors(t) for t in data]
    for first, second in zip(order or (), (order or ())[1:]):
        i, j = NAMES.index(first), NAMES.index(second)
        spare = []
        while tensors[i].data_ptr() > tensors[j].data_ptr():
            spare.append(tensors[j])  # keeps its place
            tensors[j] = emulated_gpu.device_tensors(data[j])
            if len(spare) > 4:  # new memory comes from below
                spare.append(tensors[i])
                tensors[i] = emulated_gpu.device_tensors(data[i])
    tensors[-1].view(torch.int16)[:] = 0x7FFF
    emulated_gpu.protect(tensors[:-1])
    return tuple(tensors)


def run(submission, data, schedule=0, order=None):
    """c of one call, in which nothing was found; the inputs come from a launch that it has to wait for."""
    tensors = on_device(data, order)
    with emulated_gpu.session(schedule=schedule, strict=True) as session:
        emulated_gpu.written(tensors)
        out = submission.custom_kernel(tensors)
    assert session.report() == []
    assert out is tensors[-1]
    assert session.launches == 1
    return out


def check_exact(submission, data, schedule=0, order=None):
    want = silu_product(*dual_sums(data))
    got = run(submission, data, schedule, order)
    assert torch.equal(got.isnan(), want.isnan())
    assert ulps(got, want) <= 1
    return got


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", all_but_every(6, range(20)))
def test_no_schedule_matters(submission, config, schedule):
    """Several tiles per pair, both accumulators, the second row block only in part."""
    config(sms=4, tokens=128, stages=2)
    check_exact(submission, exact_input(140, 160, 320, seed=schedule), schedule)


@pytest.mark.parametrize("size", [(1, 32, 64), (300, 64, 64), (33, 416, 128), (129, 96, 576, 2)], ids=str)
def test_sizes(submission, size):
    check_exact(submission, exact_input(*size))


def test_task_inputs_are_within_the_tolerance(submission):
    data = generate_dual_input(96, 160, 1024, 2, 1, device=torch.device("cpu"))
    got = run(submission, data)
    good, message = DUAL_GEMM.check_implementation(data, got.clone())
    assert good, message


@pytest.mark.parametrize("weights", ["b1 b2", "b2 b1"])
@pytest.mark.parametrize("scales", ["sfb1_permuted sfb2_permuted", "sfb2_permuted sfb1_permuted"])
def test_any_order_of_addresses(submission, weights, scales):
    data = exact_input(40, 160, 128, seed=3)
    check_exact(submission, data, order=weights.split())
    check_exact(submission, data, order=scales.split())


def test_every_row_of_b_has_its_own_scale(submission):
    """Each scale times one FP4 product in each column, so that a scale of another row or matrix would be seen."""
    data = list(exact_input(32, 256, 64))
    rng = np.random.default_rng(5)
    data = list(with_scales(data, lambda *shape: rng.integers(0x20, 0x58, shape)))  # 2^-3 to 2^4
    for b in data[1:3]:
        b.view(torch.uint8)[:] = 0
        b.view(torch.uint8)[torch.arange(256), torch.arange(256) % 32] = 0x02  # 1.0 at one place of K
    check_exact(submission, tuple(data))


@pytest.mark.parametrize(
    "scales",
    [
        (0,),  # zeros
        (0, 0x7E),  # 448: sums up to 1e7 on both sides of zero, products that overflow
        (1, 2),  # subnormal scales: tiny sums
        (ONE + 24,),  # 8: gates of about 1000, where exp overflows
        (ONE, NAN_SCALE),
    ],
    ids=str,
)
def test_values_at_the_limits(submission, scales):
    got = check_exact(submission, exact_input(64, 64, 64, seed=7, scales=scales))
    assert bool(got.isnan().any()) == (NAN_SCALE in scales)


def test_nan_reaches_its_row_and_column_only(submission):
    data = exact_input(40, 64, 128, seed=2)
    data[3].view(torch.uint8)[7, 3] = data[4].view(torch.uint8)[50, 0] = NAN_SCALE
    data[5].view(torch.uint8)[20, 7] = NAN_SCALE
    again = iter(data[3:6])
    data = with_scales(data, lambda *shape: next(again).view(torch.uint8).numpy())
    got = check_exact(submission, data)[:, :, 0]
    expected = torch.zeros(40, 64, dtype=torch.bool)
    expected[7] = expected[:, 50] = expected[:, 20] = True
    assert torch.equal(got.isnan(), expected)


OTHERS = [
    {"gran": 32, "sms": 6},
    {"tokens": 96},
    {"sharers": 2, "tokens": 64, "sms": 8},
    {"store_boxes": 1, "tokens": 128},
    {"token_sharers": 2, "tokens": 192, "wide_token_box": 48, "sms": 8},
]


@pytest.mark.parametrize("entries", all_but_every(4, OTHERS), ids=str)
def test_other_configs(submission, config, entries):
    config(**{"epilogue_warps": 4, "store_boxes": 2, **entries})
    check_exact(submission, exact_input(260, 224, 320, seed=1), schedule=2)


@pytest.mark.thorough
def test_benchmark_configs(submission, config):
    for chosen in dict.fromkeys(map(without_hints, itertools.chain(*submission.DUAL_CONFIG_MAP.values()))):
        config(**{**vars(chosen), "sms": 3 * chosen.cluster})
        check_exact(submission, exact_input(chosen.tokens + 40, 288, 320, seed=4))


def test_group_gemm_is_still_the_other(submission):
    from reference import check_implementation, generate_input

    data = generate_input((40,), (48,), (128,), 1, 1, device=torch.device("cpu"))
    abc, _, reordered, sizes = tensors = emulated_gpu.device_tensors(data)
    with emulated_gpu.session(strict=True):
        out = submission.custom_kernel((abc, data[1], reordered, sizes))
    assert check_implementation(data, out) == (True, "")
    assert tensors[0][0][2] is out[0]


# -- silu -------------------------------------------------------------------------------------------------------------


def silu_kernel(submission) -> str:
    """A kernel of the instructions of silu_times: out[i] = silu(gate[i]) * up[i]."""
    steps = [*zip(submission.SIGMOID, ("%r0", *["%r2"] * 3)), (submission.TIMES, "%r2"), (submission.TIMES, "%r2")]
    body = " ".join(text.replace("$0", "%r2").replace("$1", x) for text, x in steps)
    body = body.replace("$2", "%r0", 1).replace("$2", "%r1", 1)
    return f"""
.version 8.8
.target sm_100a
.address_size 64
.visible .entry silu(.param .u64 gate, .param .u64 up, .param .u64 out)
{{
    .reg .b32 %r<8>; .reg .b64 %rd<8>;
    ld.param.u64 %rd0, [gate]; ld.param.u64 %rd1, [up]; ld.param.u64 %rd2, [out];
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r3, %r3, 1024, %r4; mul.wide.u32 %rd3, %r3, 4;
    add.u64 %rd0, %rd0, %rd3; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
    ld.global.b32 %r0, [%rd0]; ld.global.b32 %r1, [%rd1];
    {body}
    st.global.b32 [%rd2], %r2;
    ret;
}}"""


def gates_and_ups(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    gates = np.concatenate([rng.uniform(-110, 30, count // 2), rng.normal(0, 2, count // 4)])
    gates = np.concatenate(
        [gates, 2.0 ** rng.uniform(-40, 36, count - len(gates)) * rng.choice([-1, 1], count - len(gates))]
    )
    gates[:8] = 0.0, -0.0, -87.3, -88.5, -103.9, -3e9, 3e9, -1e-38
    # ups that bring the product into float16's range, for as long as sums can be as large
    ups = 10.0 ** rng.uniform(-6, 4, count) / np.maximum(np.abs(gates / (1 + np.exp(np.minimum(-gates, 80)))), 1e-6)
    return gates.astype(np.float32), (np.minimum(ups, 5e10) * rng.choice([-1, 1], count)).astype(np.float32)


def exact_halves(gates, ups) -> torch.Tensor:
    return silu_product(torch.from_numpy(gates).double(), torch.from_numpy(ups).double())


def to_half(values: np.ndarray) -> torch.Tensor:
    with np.errstate(over="ignore"):
        return torch.from_numpy(values.astype(np.float16))


def test_silu_is_within_an_ulp(submission):
    """The instructions as they are, on the emulator, whose ex2.approx and rcp.approx are correctly rounded."""
    gates, ups = gates_and_ups(1 << 14)
    out = np.zeros_like(gates)
    emulated_gpu.launch(silu_kernel(submission), "silu", len(gates) // 1024, 1024, [gates, ups, out])
    want = exact_halves(gates, ups)
    assert want.isfinite().float().mean() > 0.9 and (want != 0).float().mean() > 0.5
    assert ulps(to_half(out), want) <= 1
    special = np.array([np.nan, 1, -np.inf, np.inf, 0, 0, 100, -200] * 128, np.float32)
    factor = np.array([1, np.nan, 1, 1, 1, np.nan, np.inf, 5e10] * 128, np.float32)
    result = np.zeros_like(special)
    emulated_gpu.launch(silu_kernel(submission), "silu", 1, 1024, [special, factor, result])
    np.testing.assert_array_equal(result[:8], np.float32([np.nan, np.nan, np.nan, np.inf, 0, np.nan, np.inf, 0]))


@pytest.mark.parametrize("ex2, rcp", [*itertools.product((-1, 1), (-1, 1))])
def test_silu_is_within_an_ulp_whatever_the_hardware_rounds(ex2, rcp):
    """ex2.approx.ftz may be 2 ulp off and rcp.approx.ftz 1 (PTX ISA 9.7.3.21, 9.7.3.13): always to one side here."""
    gates, ups = gates_and_ups(1 << 18)
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.float32(-1.44269504) * gates
        x = (np.exp2(x.astype(np.float64)) * (1 + ex2 * 2.0**-22)).astype(np.float32)
        x[x < 2.0**-126] = 0
        x = (1 / (x + np.float32(1)).astype(np.float64) * (1 + rcp * 2.0**-23)).astype(np.float32)
        x[x < 2.0**-126] = 0
        out = x * gates * ups
    assert ulps(to_half(out), exact_halves(gates, ups)) <= 1


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def executors(submission, monkeypatch):
    """FakeExecutors instead of compiled kernels."""
    made = []

    def compiled(kernel, groups, config):
        made.append(FakeExecutor(kernel(groups, config)))
        return made[-1]

    monkeypatch.setattr(submission, "compiled", compiled)
    submission.dual_plan.cache_clear()
    yield made
    submission.dual_plan.cache_clear()


@pytest.fixture
def data():
    return generate_dual_input(40, 64, 128, 2, 1, device=torch.device("cpu"))


def change(t, how):
    if how == "type":
        return t.view(torch.int16 if t.dtype == torch.float16 else torch.uint8)
    if how == "shape":
        return t[:-1]
    if how == "strides":
        bits = torch.int16 if t.element_size() == 2 else torch.uint8
        return torch.empty_strided(t.shape, [2 * s for s in t.stride()], dtype=bits).view(t.dtype)
    return t.to("meta")


@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
@pytest.mark.parametrize("how", ["type", "shape", "strides", "device"])
@pytest.mark.parametrize("i", READ, ids=[NAMES[i] for i in READ])
def test_refuses_tensors(submission, executors, data, i, how, first):
    if not first:
        submission.custom_kernel(data)
    before = sum(len(made.launched) for made in executors)
    wrong = [*data[:i], change(data[i], how), *data[i + 1 :]]
    with pytest.raises(ValueError, match=" has .*, but must have | is .*, but must be a multiple of "):
        submission.custom_kernel(wrong)
    assert sum(len(made.launched) for made in executors) == before


@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
@pytest.mark.parametrize(
    "make, message",
    [
        (lambda d: d[:9], "expected the group GEMM's 4 lists or the dual GEMM's tensors .*'c'.*, got 9 items"),
        (lambda d: (*d, d[0]), "got 11 items"),
        (lambda d: None, "got NoneType"),
        (lambda d: (), "got 0 items"),
        (lambda d: dict(zip(NAMES, d)), "got dict"),
        (lambda d: (*d[:9], None), "must be the tensors a, b1, b2, .*, c"),
        (lambda d: (*d[:7], [d[7]], *d[8:]), "must be the tensors a, b1, b2"),
        (lambda d: (d[0][:, :, 0], *d[1:]), r"a is \[M, K/2, L\]"),
        (lambda d: (*d[:9], d[9][:, :, 0]), r"c is \[M, N, L\]"),
        (lambda d: (*d[:9], d[9][:, :, :1]), r"a has shape \(40, 64, 2\), but must have \(40, 64, 1\)"),
        (lambda d: generate_dual_input(8, 48, 128, 1, 1), "N is 48, but must be a multiple of 32 from 32 to"),
        (lambda d: generate_dual_input(8, 64, 96, 1, 1), "K is 96, but must be a multiple of 64 from 64 to"),
        (lambda d: (*d[:9], d[9][:0]), "M is 0, but must be a multiple of 1 from 1 to"),
        (lambda d: (*d[:9], torch.zeros(2 * 40 * 64 + 1).half()[1:].view(2, 40, 64).permute(1, 2, 0)), "16 bytes"),
    ],
)
def test_refuses_malformed_data(submission, executors, data, make, message, first):
    if not first:
        submission.custom_kernel(data)
    with pytest.raises(ValueError, match=message):
        submission.custom_kernel(make(data))
    assert sum(len(made.launched) for made in executors) == (not first)


def test_many_batches_take_several_launches(submission, executors):
    submission.custom_kernel(generate_dual_input(1, 32, 64, 17, 1, device=torch.device("cpu")))
    assert [len(made.launched) for made in executors] == [1, 1]


def test_refuses_weights_too_far_apart(submission, executors, data, monkeypatch):
    addresses = [16 * i for i in range(1, 8)]
    addresses[2] = addresses[1] + 2**40

    monkeypatch.setattr(submission.Plan, "addresses", lambda self, tensors: addresses)
    with pytest.raises(ValueError, match=f"b1 and b2 lie {2**40} bytes apart, but must be less than {2**40}"):
        submission.custom_kernel(data)
    addresses[2] -= 16
    submission.custom_kernel(data)
    assert len(executors[0].launched) == 1


def test_words_of_launches(submission, executors, monkeypatch):
    """Each batch is a group: addresses of its operands, the lower of b1 and b2 first, then which one is the gate."""
    looked_at, check = [], submission.Plan.check
    monkeypatch.setattr(submission.Plan, "check", lambda *args: looked_at.append(args) or check(*args))
    calls = [generate_dual_input(40, 64, 128, 2, seed, device=torch.device("cpu")) for seed in range(15)]
    calls += [(a, b2, b1, sfa, sfb2, sfb1, *permuted) for a, b1, b2, sfa, sfb1, sfb2, *permuted in calls]
    for data in calls:
        assert submission.custom_kernel(data) is data[9]
    (executor,) = executors
    for data, words in zip(calls, executor.launched, strict=True):
        a, b1, b2, c, sfa, sfb1, sfb2 = (data[i].data_ptr() for i in (0, 1, 2, 9, 6, 7, 8))
        for batch in (0, 1):
            row = words[8 * batch : 8 * batch + 8]
            b = (b1 + 64 * 64 * batch, sfb1 + 1024 * batch), (b2 + 64 * 64 * batch, sfb2 + 1024 * batch)
            gate = int(b2 < b1)
            (low, low_scales), (high, high_scales) = b[gate], b[1 - gate]
            of_batch = a + 40 * 64 * batch, low, c + 2 * 40 * 64 * batch, sfa + 1024 * batch, low_scales, high
            assert tuple(row) == (*of_batch, high_scales, gate)
        assert words[16] == 40 | 64 << 32 and math.gcd(*words[:7], 16) == 16
    assert {words[7] for words in executor.launched} == {0, 1} and len(looked_at) == 1
