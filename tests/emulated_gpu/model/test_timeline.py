"""Timelines: a kernel with one load, one store and a known wait gives the spans, bars and shares that it must."""

import dataclasses
import gzip
import json
import signal

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import B200
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.model import report
from emulated_gpu.model.timeline import Timeline, write_timeline
from emulated_gpu.model.trace import Trace
from emulated_gpu.page import write as page
from emulated_gpu.serve import profile as profiling
from emulated_gpu.serve.driver import timed
from emulated_gpu.sessions import Session

BYTES = 4096
# Warp 0 loads BYTES into shared memory, warp 1 waits for them and stores them back with one bulk copy.
KERNEL = """
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 128 .b8 smem[];
.visible .entry copy(.param .u64 from, .param .u64 to)
{
    .reg .pred p, q; .reg .b32 %r<8>; .reg .b64 %rd<8>;
    mov.u32 %r0, smem;
    add.u32 %r1, %r0, 128;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mul.wide.u32 %rd4, %r3, 4096;
    ld.param.u64 %rd0, [from]; ld.param.u64 %rd1, [to];
    add.u64 %rd0, %rd0, %rd4; add.u64 %rd1, %rd1, %rd4;
    setp.ne.u32 p, %r2, 0;
    @p bra READY;
    mbarrier.init.shared::cta.b64 [%r0], 1;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
    setp.eq.u32 p, %r2, 0;
    @!p bra SECOND;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 4096;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 4096, [%r0];
SECOND:
    setp.ne.u32 p, %r2, 32;
    @p bra DONE;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 q, [%r0], 0;
    @!q bra WAIT;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 4096;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:
    ret;
}
"""
CTAS, LAUNCHES = 3, 4


@pytest.fixture(scope="module")
def counted_too():
    """(run, trace, what each launch moved) of LAUNCHES launches of CTAS CTAs."""
    source, target = (allocate(CTAS * BYTES) for _ in range(2))
    trace = Trace()
    with emulated_gpu.timing("b200", trace) as timed:
        for _ in range(LAUNCHES):
            emulated_gpu.launch(KERNEL, "copy", CTAS, 64, [source, target], shared=128 + BYTES)
    return timed.run, trace, timed.counted


@pytest.fixture(scope="module")
def traced(counted_too):
    return counted_too[:2]


def test_spans(traced):
    run, trace = traced
    for kind, warp in (("load", 0), ("store", 1)):
        spans = [span for span in trace.spans if span.kind == kind]
        assert sorted((span.launch, span.cta) for span in spans) == sorted(np.ndindex(LAUNCHES, CTAS))
        assert {(span.warp, span.nbytes) for span in spans} == {(warp, BYTES)}
    (load,) = [span for span in trace.spans if (span.kind, span.launch, span.cta) == ("load", 1, 2)]
    (wait,) = [span for span in trace.spans if (span.kind, span.launch, span.cta, span.what) == ("wait", 1, 2, "loads")]
    assert wait.warp == 1
    assert 0 <= wait.end - load.end <= run.profile["sync"]["wake_cycles"] + 1
    assert all(span.start <= span.end for span in trace.spans)


def test_roles_and_reasons(traced):
    timeline = Timeline(*traced)
    program = timeline.launches[0].launch.program
    assert [timeline.role(program, warp) for warp in (0, 1)] == ["TMA loads", "stores"]
    assert timeline.reason(program, "loads") == "loads"
    assert timeline.reason(program, "warp 0+1") == "arrivals of TMA loads and stores"
    assert timeline.reason(program, "the completion") == "the launch before"
    run, trace = traced
    alike = {(program, warp): {"tmem"} for warp in range(timeline.warps[program])}  # Triton's, and where one has more
    several = "loads, MMA, epilogue"
    for own, roles in (({"tmem"}, ["all", "all"]), ({"load", "mma", "tmem"}, [several, "epilogue"])):
        of = Timeline(run, dataclasses.replace(trace, duties=alike | {(program, 0): own}))
        assert [of.role(program, warp) for warp in (0, 1)] == roles


def test_breakdown(traced):
    run, trace = traced
    timeline = Timeline(run, trace)
    breakdown = timeline.breakdown()
    ends = run.ends_us()
    assert breakdown["interval_us"] == pytest.approx(ends[2] - ends[1])
    shares = breakdown["shares"]
    assert sum(shares.values()) == pytest.approx(1, abs=0.005)  # tiny shares are left out
    # Three of 148 SMs ever work: at other times, and everywhere else, there is nothing or somebody else's work.
    idle = shares["between launches"] + shares["SM idle, other SMs run"]
    assert 1 - CTAS / len(run.placement.sms) <= idle < 1
    assert shares["waiting for loads"] > 0
    moved = breakdown["hbm_tb_s"]["read"] * 1e12 * breakdown["interval_us"] / 1e6
    assert moved in (0, pytest.approx(CTAS * BYTES))  # L2 may hold it all after the first launch
    assert breakdown["waits_us"]["stores for loads"] > 0


def test_a_wait_knows_what_ended_it(traced):
    """The page draws an arrow from there: the copies of warp 0 end what warp 1 waits for."""
    run, trace = traced
    shown = page.spans(Timeline(run, trace))
    texts, rows = shown["texts"], shown["sms"][trace.spans[0].sm]
    (row, *_) = [row for row in rows if texts[row[3]] == "waits for loads"]
    lines = KERNEL.splitlines()
    wait, copy = (1 + next(n for n, line in enumerate(lines) if op in line) for op in ("try_wait", "bulk.shared"))
    assert [texts[at] for at in (row[0], *row[4:7])] == ["warp 1: stores", f"PTX:{wait}", "TMA loads", f"PTX:{copy}"]
    assert row[7] == trace.spans[0].sm and row[1] < row[2]
    assert {(span.by.label, span.by.warp) for span in trace.spans if span.by} == {("bulk copy", 0)}


def test_a_warp_waits_no_longer_than_it_lives():
    """Three CTAs share each SM here: what one of their warps waits is not what all of them do."""
    source, target = (allocate(444 * BYTES) for _ in range(2))
    trace = Trace()
    with emulated_gpu.timing("b200", trace) as timed:
        for _ in range(3):
            emulated_gpu.launch(KERNEL, "copy", 444, 64, [source, target], shared=128 + BYTES)
    breakdown = Timeline(timed.run, trace).breakdown()
    lives = [timed.run.profile.us(span.end - span.start) for span in trace.spans if span.kind == "warp"]
    assert 0 < sum(us for name, us in breakdown["waits_us"].items() if name.startswith("stores")) <= max(lives)


def test_rates_add_up(traced):
    """What the counters show is what the memory moved, and every load lands."""
    run, trace = traced
    timeline = Timeline(run, trace)
    edges = timeline.edges(0.0, timeline.launches[-1].end, 50.0)
    rates, seconds = timeline.rates(edges), np.diff(edges) / (run.profile.clock_ghz * 1e9)
    assert (rates["HBM read"] * seconds).sum() * 1e12 == pytest.approx(run.clock.memory.read_bytes)
    assert run.clock.memory.read_bytes >= CTAS * BYTES
    assert rates["in flight"][-1] == pytest.approx(0, abs=1e-12)
    assert rates["in flight"].max() == pytest.approx(CTAS * BYTES / 1e6)


def test_files(traced, tmp_path):
    run, trace = traced
    timeline = Timeline(run, trace)
    breakdown = timeline.breakdown()
    assert write_timeline(timeline, tmp_path) == []
    assert any("steady interval" in fact for fact in breakdown["facts"])
    assert (tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")
    with gzip.open(tmp_path / "timeline.json.gz", "rt") as file:
        document = json.load(file)
    assert document["otherData"] == {"what": "modelled, not measured", "profile": "b200"}
    events = document["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[0, 0] == "warp 0: TMA loads" and names[0, 1] == "warp 1: stores"
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"launches", "memory", "SM 0"} <= set(processes.values())
    bars = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in bars)
    loads = [e for e in bars if e["name"] == f"load {BYTES} B"]
    assert len(loads) == LAUNCHES * CTAS
    launches = [e for e in bars if e["name"].startswith("launch ") and processes[e["pid"]] == "launches"]
    launches = sorted((e["ts"], e["ts"] + e["dur"]) for e in launches)
    assert [end for _, end in launches] == pytest.approx(run.ends_us())
    for (_, end), (start, _) in zip(launches, launches[1:]):
        assert start > end  # no PDL: a gap
    assert {e["name"] for e in events if e["ph"] == "C"} >= {"HBM read [TB/s]", "L2 to SMs [TB/s]", "in flight [MB]"}
    # Copies that share a track do not overlap.
    tracks = {}
    for e in bars:
        if names.get((e["pid"], e["tid"]), "").startswith("copies"):
            tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for spans in tracks.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-9 for a, b in zip(spans, spans[1:]))


def test_what_a_kernel_uses(counted_too, tmp_path):
    run, trace, counted = counted_too
    found = report.report(run, trace, counted, tmp_path)
    (kernel,) = found["kernels"]
    assert kernel["moved_bytes"] == {
        "TMA loads": CTAS * BYTES, "TMA stores": CTAS * BYTES, "thread loads": 0, "thread stores": 0,
        "atomics": 0, "shared memory of other CTAs": 0,
    }  # fmt: skip
    assert (kernel["grid"], kernel["threads"], kernel["shared_bytes"]) == ([CTAS, 1, 1], 64, 128 + BYTES)
    assert kernel["registers"] is None and kernel["flops"] == 0 == kernel["floors_us"]["tensor cores"]
    read, written = (sum(row[i] for row in run.clock.memory.log) for i in (1, 2))
    assert kernel["hbm_bytes"] == pytest.approx((read + written) / LAUNCHES)
    assert kernel["floors_us"]["HBM"] == pytest.approx(kernel["hbm_bytes"] / run.profile["hbm"]["read_tb_s"] / 1e6)
    assert kernel["floors_us"]["HBM"] < kernel["us"]
    given = sum(row[3] for row in run.clock.memory.log)
    assert 0 < kernel["l2_hits"] == pytest.approx(1 - read / given)
    ends = run.ends_us()
    assert [one["us"] for one in found["launches"]] == pytest.approx(np.diff([0.0, *ends]))
    assert kernel["us"] == pytest.approx(ends[-1] / LAUNCHES)
    text = "\n".join(report.lines(found))
    assert "registers per thread: unknown" in text and "CTAs per SM: 32, limited by CTAs" in text


@pytest.mark.parametrize(
    "threads, shared, registers, columns, ctas, limit",
    [
        (224, 224_256, 51, 512, 1, "shared memory"),
        (256, 0, 128, 0, 2, "registers"),  # 8 warps of 32 * 128 registers: half of 65536
        (256, 0, 129, 0, 1, "registers"),
        (128, 16_000, 32, 256, 2, "tensor memory"),
        (1000, 0, None, 0, 2, "threads"),
    ],
)
def test_room_on_an_sm(threads, shared, registers, columns, ctas, limit):
    found = report.resident(B200, threads, shared, registers, columns)
    assert found == {"ctas_per_sm": ctas, "limited_by": limit}


def test_equal_calls_are_found():
    assert [timed.period(tuple(key)) for key in ("", "a", "aaaa", "abab", "aba", "abcabc")] == [0, 1, 1, 2, 3, 3]


def test_timing_what_has_run_leaves_memory_alone(monkeypatch):
    source, target = (allocate(CTAS * BYTES) for _ in range(2))
    source[:] = 7
    session = Session(timed=[], kept=[])
    monkeypatch.setattr(DEVICE, "session", session)
    for array in (source, target):
        DEVICE.adopt(array, "array")
    for _ in range(LAUNCHES):
        emulated_gpu.launch(KERNEL, "copy", CTAS, 64, [source, target], shared=128 + BYTES)
    assert (target == 7).all() and len(session.timed) == LAUNCHES == timed.now()
    source[:] = 5
    one, all_of_them = timed.elapsed(0, 1), timed.elapsed(0, LAUNCHES)
    assert (target == 7).all()
    assert 0.003 < one < all_of_them < LAUNCHES * one
    assert timed.elapsed(1, 2) == one  # alike
    with pytest.raises(RuntimeError, match="not recorded"):
        timed.elapsed(None, 2)


def test_a_run_without_a_trace_is_the_same(traced):
    source, target = (allocate(CTAS * BYTES) for _ in range(2))
    with emulated_gpu.timing("b200") as timed:
        for _ in range(LAUNCHES):
            emulated_gpu.launch(KERNEL, "copy", CTAS, 64, [source, target], shared=128 + BYTES)
    assert timed.ends_us == traced[0].ends_us()


def test_an_interrupted_profile_reports_the_launches_that_are_done(monkeypatch, tmp_path):
    source, target = (allocate(CTAS * BYTES) for _ in range(2))

    def script(*_, session):
        DEVICE.session = session
        for _ in range(3):
            emulated_gpu.launch(KERNEL, "copy", CTAS, 64, [source, target], shared=128 + BYTES)
        return 0

    class Interrupted(profiling.TimedRun):
        def run(self):
            self.enough = lambda run: len(run.ends_us()) == 2 and signal.raise_signal(signal.SIGINT)
            return super().run()

    monkeypatch.setattr(DEVICE, "session", DEVICE.session)
    monkeypatch.setattr(profiling.running, "run_script", script)
    monkeypatch.setattr(profiling, "TimedRun", Interrupted)
    shown = []
    found = profiling.profile(__file__, [], profiling.Wanted("b200", tmp_path, 8), shown.append)
    assert [one["launch"] for one in found["launches"]] == [0, 1]
    assert found["partial"] == "2 of 3 launches are done; the others are taken to be like these"
    assert len(shown) == 1 and found["gains"] == []
