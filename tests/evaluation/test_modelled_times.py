"""Modelled times: extrapolation, labels, JSON. The submission here gets its results on the host and launches a
kernel that only loads, `rounds` times 16 KB by each of 64 CTAs."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import emulated_gpu
from emulated_gpu.arena import BASE
from emulated_gpu.device import allocate
from emulated_gpu.model.profile import load
from emulated_gpu.model.steady import Steady
from emulated_gpu.page.write import fill, views
from evaluation.commands import model_process
from evaluation.commands.cli import cli
from evaluation.commands.profile import Request
from evaluation.judge import modelled, same_calls
from evaluation.judge.emulated import Queued
from evaluation.judge.timed_calls import drawn, other_launch
from task import parse_case
from tests.thorough import all_but

CASE = {"m": [40, 24], "n": [48, 32], "k": [128, 64], "g": 2, "seed": 1111}
SPEC = "m: [40, 24]; n: [48, 32]; k: [128, 64]; g: 2; seed: 1111"
FEW_ROWS = SPEC.replace("[40, 24]", "[5, 3]")  # for what launches a kernel, which is called 15 times and more
CHUNK, CTAS = 16384, 64
KERNEL = """
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 128 .b8 smem[];
.visible .entry loads(.param .u64 from, .param .u32 rounds)
{
    .reg .pred p; .reg .b32 %r<12>; .reg .b64 %rd<8>;
    mov.u32 %r0, smem;
    ld.param.u64 %rd0, [from]; ld.param.u32 %r1, [rounds];
    mov.u32 %r3, %ctaid.x;
    mul.lo.u32 %r4, %r3, %r1;
    mul.wide.u32 %rd1, %r4, 16384;
    add.u64 %rd0, %rd0, %rd1;
    mbarrier.init.shared::cta.b64 [%r0], 1;
    fence.mbarrier_init.release.cluster;
    mov.u32 %r5, 0;
    add.u32 %r6, %r0, 128;
LOOP:
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 16384;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd0], 16384, [%r0];
    and.b32 %r7, %r5, 1;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 p, [%r0], %r7;
    @!p bra WAIT;
    add.u64 %rd0, %rd0, 16384;
    add.u32 %r5, %r5, 1;
    setp.lt.u32 p, %r5, %r1;
    @p bra LOOP;
    ret;
}
"""
SUBMISSION = f'''
from dataclasses import dataclass

import numpy as np

import emulated_gpu
from reference import ref_kernel

KERNEL = """{KERNEL}"""


@dataclass(frozen=True)
class Config:
    rounds: int = 4
    plain: bool = True

    def __post_init__(self):
        assert self.rounds <= 8, "at most 8 rounds"


CONFIG_MAP = {{((40, 24), 48, 128): Config(rounds=4)}}
buffers = []


def custom_kernel(data):
    out = ref_kernel(data)
    rounds = CONFIG_MAP[(40, 24), 48, 128].rounds
    buffers.append(np.zeros({CTAS} * rounds * {CHUNK}, np.uint8))
    emulated_gpu.launch(KERNEL, "loads", {CTAS}, 1, [buffers[-1], rounds], shared={CHUNK + 128})
    return out
'''


@pytest.fixture
def submission(tmp_path) -> Path:
    path = tmp_path / "submission.py"
    path.write_text(SUBMISSION)
    return path


def simulate(calls: int, l2_bytes: int, steady: bool) -> tuple[Steady, list[float]]:
    """(rule, ends in cycles) of calls of the kernel above, with or without asking the rule."""
    machine = load("b200").with_({"l2.bytes": l2_bytes})
    rule = Steady(list(range(1, calls + 1)))
    inputs = [allocate(CTAS * 4 * CHUNK) for _ in range(calls)]
    with emulated_gpu.timing(machine, enough=rule if steady else None) as timed:
        for data in inputs:
            emulated_gpu.launch(KERNEL, "loads", CTAS, 1, [data, 4], shared=CHUNK + 128)
    return rule, [launch.end for launch in timed.run.launches]


@pytest.mark.parametrize("dirty_calls", all_but([6.5], [0.5, 6.5, 40]))
def test_extrapolation_is_what_all_calls_take(dirty_calls):
    l2_bytes = int(dirty_calls * CTAS * 4 * CHUNK)
    rule, _ = simulate(15, l2_bytes, steady=True)
    _, ends = simulate(15, l2_bytes, steady=False)
    assert len(rule.ends) <= 10  # or nothing was left out
    assert rule.total() == pytest.approx(ends[-1], rel=0.01)
    assert rule.ends[:3] == ends[:3]


def synthetic(lengths, dirty):
    """A rule that was told of calls of these lengths, with this many dirty bytes left at their ends."""
    rule, now = Steady(list(range(1, 16))), 0.0
    memory = SimpleNamespace(dirty=0.0)
    memory.skip_flush = lambda: setattr(memory, "dirty", 0.0)
    run = SimpleNamespace(launches=[], clock=SimpleNamespace(memory=memory))
    for length, left in zip(lengths, dirty):
        now += length
        run.launches.append(SimpleNamespace(end=now, interval=(now - length, now)))
        memory.dirty = left
        if rule(run):
            break
    return rule


def test_dirty_calls_are_counted_out():
    """100 dirty bytes, 10 a call: ten calls of 7 and five of 5, of which eight are simulated."""
    rule = synthetic([9, 7, 7, 6, 5, 5, 5], [90, 80, 70, 0, 0, 0, 0])
    assert rule.skipped == 7
    assert len(rule.ends) == 6
    # three dirty calls, seven skipped ones, a mixed one, and four clean ones, of which two were simulated
    assert rule.total() == 9 + 2 * 7 + 7 * 7 + 6 + 2 * 5 + 2 * 5


def test_what_does_not_repeat_is_not_extrapolated():
    lengths = [5 + i for i in range(15)]
    rule = synthetic(lengths, [0] * 15)
    assert len(rule.ends) == 15
    assert rule.total() == sum(lengths)


def test_calls_that_wander_are_not_taken_for_their_first_ones():
    """The submission's case 0, us, profile b200: its first three intervals lie within 2 %, and 2.4 % below the rest."""
    lengths = [27.12, 23.64, 23.39, 23.84, 24.87, 24.44, 24.27, 24.39, 24.28, 24.24] + 5 * [24.3]
    rule = synthetic(lengths, [0] * 15)
    assert len(rule.ends) == 7
    assert rule.total() == pytest.approx(sum(lengths), rel=0.003)


def test_four_noisy_intervals_agree():
    rule = synthetic([9, 7.0, 7.15, 6.9, 7.0, 7.0], [0] * 6)
    assert len(rule.ends) == 5  # with the end of the fifth call there are four intervals
    assert rule.interval["clean"] == pytest.approx(7.0125)


def invoke(*arguments):
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.slow
def test_benchmark_models_times(submission, tmp_path):
    """Of what gets its results by its launches; of others there are cheats."""
    file = tmp_path / "out.json"
    submission.write_text((Path(__file__).parents[1] / "naive_kernel.py").read_text())
    code, output = invoke("benchmark", "--submission", submission, "--spec", FEW_ROWS, "--json", file)
    assert code == 0, output
    assert "modelled (profile b200; validation error" in output and "see emulated_gpu/VALIDATION.md)" in output
    assert "1 case passed" in output
    result = json.loads(file.read_text())
    (case,) = result["cases"]
    assert (result["kind"], result["profile"], case["status"]) == ("modelled", "b200", "pass")
    assert result["label"].startswith("modelled (profile b200;")
    assert case["us"] == case["modelled"]["us"] == pytest.approx(result["geomean_us"])
    assert case["us_interval"] is None and result["geomean_us_interval"] is None
    assert case["us_corrected"] == case["modelled"]["us_corrected"] == case["us"]
    assert result["geomean_us_corrected"] == pytest.approx(case["us_corrected"])
    assert f"geometric mean: {case['us_corrected']:.2f} us (modelled; " in output
    assert case["modelled"]["unlike"].startswith("no bracket: ") and case["modelled"]["unlike"] in output
    assert set(case["modelled"]) == {
        "us", "us_corrected", "us_interval", "unlike", "made_of", "pdl", "calls", "simulated", "ends_us", "interval_us",
        "launches", "profile", "validation", "compared", "floor_us",
    }  # fmt: skip
    assert case["modelled"]["calls"] == 15 > case["modelled"]["simulated"] >= 3
    assert case["modelled"]["compared"] == 1  # its results come from no tensor core
    assert len(case["modelled"]["ends_us"]) == case["modelled"]["simulated"]
    assert np.isfinite(case["us"]) and case["us"] > 0


def test_outputs_that_calls_allocate_are_kept(submission, tmp_path):
    """As the grader keeps them: no call gets the memory of another's, which would still lie in L2."""
    counts = tmp_path / "counts"
    fresh = f"""
import weakref
of_kernel, made = custom_kernel, []
def custom_kernel(data):
    open({str(counts)!r}, "a").write(f"{{sum(out() is not None for out in made)}} ")
    outputs = [c.clone() for c in of_kernel(data)]
    made.append(weakref.ref(outputs[0]))
    return outputs
"""
    submission.write_text(submission.read_text() + fresh)
    reply = model_process.ask(Request(str(submission), parse_case(SPEC).args, calls=4), 100)
    assert "error" not in reply, reply
    assert counts.read_text().split() == ["0", "1", "2", "3"]


def test_a_kernel_that_does_nothing_takes_its_launches(submission):
    """It cleans no dirty line of L2, by which the rule of extrapolation divides."""
    text = submission.read_text().replace(KERNEL, ".version 8.8\n.target sm_100a\n.visible .entry nothing() { ret; }")
    before, _, after = text.partition('emulated_gpu.launch(KERNEL, "loads"')
    submission.write_text(f'{before}emulated_gpu.launch(KERNEL, "nothing", 1, 1, [])\n    return out\n')
    reply = model_process.ask(Request(str(submission), parse_case(SPEC).args), 100)
    assert "error" not in reply and 0 < reply["us"] < 10, reply


def test_profile_needs_no_config_and_is_held_against_an_earlier_page(submission, tmp_path):
    submission.write_text(SUBMISSION.replace("Config", "Choice").replace("CONFIG_MAP", "CHOICES"))
    file = tmp_path / "out.json"
    arguments = ["--submission", submission, "--spec", SPEC, "--json", file]
    earlier, page = tmp_path / "earlier.html", tmp_path / "page.html"
    for options, sentence in (([], "--baseline is for --html"), (["--html", page], "--baseline: cannot read")):
        code, output = invoke("profile", *arguments, "--baseline", earlier, *options)
        assert code == 2 and sentence in output, output
    one = {"title": "loads", "us": 1.0, "us_corrected": 2.0, "launches": [0]}
    fill(earlier, [{"title": "earlier", "kernels": [one], "lines": []}])
    code, output = invoke("profile", *arguments, "--out", tmp_path / "out", "--html", page, "--baseline", earlier)
    assert code == 0, output
    (view,) = views(page)
    assert view["baseline"] == {"title": "earlier", "us": 1.0, "us_corrected": 2.0, "lines": {}}
    assert "share of the steady interval" in output and "Times are modelled (profile b200;" in output
    assert {path.name for path in (tmp_path / "out" / "case0").iterdir()} == {"timeline.json.gz", "overview.png"}
    (case,) = json.loads(file.read_text())["cases"]
    assert case["breakdown"]["interval_us"] == pytest.approx(case["ends_us"][2] - case["ends_us"][1])


def test_one_sentence_for_bad_input():
    code, output = invoke("profile", "--submission", "none.py")
    assert code == 2
    assert "there is no submission none.py" in output, output


def test_geometric_mean_needs_every_case():
    assert modelled.geomean_us([{"us": 4.0}, {"us": 9.0}]) == pytest.approx(6.0)
    assert modelled.geomean_us([{"us": 4.0}, {"error": "hang"}]) is None
    assert modelled.geomean_us([]) is None


def queued(kernel: str, blocks: int = 1, params: bytes = b"", read=()) -> Queued:
    return Queued("", kernel, (blocks, 1, 1), (32, 1, 1), params, {}, [], {"pdl": False}, read=set(read))


def test_calls_differ_by_what_their_kernels_read():
    """Of two calls with tensors of 256 bytes each at other addresses; their parameters are an address and a number."""

    def kinds(addresses: tuple, numbers: tuple, read: list) -> list[int]:
        params = [np.array(pair, np.uint64).tobytes() for pair in zip(addresses, numbers)]
        queues = [[queued("k", params=params[0], read=read)], [queued("k", params=params[1])]]
        given = [same_calls.Given(None, q, [(at, 256)], []) for q, at in zip(queues, (4096, 8192))]
        return same_calls.numbered(given, queues)

    assert kinds((4100, 8196), (1, 1), [(0, 8), (8, 8)]) == [0, 0]
    assert kinds((4100, 8196), (1, 2), [(0, 8), (8, 8)]) == [0, 1]
    assert kinds((4100, 8196), (1, 2), [(0, 8)]) == [0, 0]  # the number is not read
    assert kinds((4100, 8200), (1, 1), [(0, 8)]) == [0, 1]  # elsewhere in its tensor
    assert kinds((4100, 4100), (1, 1), [(0, 8)]) == [0, 1]  # the tensor of the call before
    assert kinds((4096, 8192), (64, 64), [(0, 8), (8, 8)]) == kinds((64, 64), (4096, 8192), [(0, 8), (8, 8)]) == [0, 0]
    assert kinds((64, 8192), (1, 1), [(0, 8)]) == [0, 1]


def test_sizes_that_a_host_packs_are_no_addresses():
    """Of the first 60 GiB: a size in the upper half of a word names none of them, or all calls would have to run."""
    words = np.arange(0, 2**16, 16, dtype=np.uint64) << np.uint64(32)
    assert not ((words + np.uint64(2**32 - 1) >= BASE) & (words < BASE + 60 * 2**30)).any()


def test_every_second_drawn_call_was_timed():
    rng = np.random.default_rng(1)
    calls = [drawn(rng, 3, 15) for _ in range(2000)]
    assert set(calls) == set(range(15)) and 900 < sum(call < 3 for call in calls) < 1100
    assert {drawn(rng, 15, 14) for _ in range(500)} == set(range(14)) and {drawn(rng, 1, 1)} == {0}


def test_reason_names_the_launch_that_is_another():
    first = [queued("init"), queued("first_guess")]
    assert other_launch(first, [queued("init"), queued("first_guess")]) == ""
    assert other_launch(first, first[:1]) == "it has 1 launches, not 2"
    told = other_launch(first, [queued("init"), queued("tuned")])
    assert told == "its launch 1 is tuned, not first_guess; a kernel made or chosen later has no time"
    assert "its launch 0 is init, another geometry" in other_launch(first, [queued("init", 2), first[1]])
