"""A sample of the points measured on an H200 (silicon/timing) against the model: the bars of
silicon/timing/README.md.

python -m silicon.timing.validate     # all of them
"""

import dataclasses
import hashlib
import json
import math
import statistics
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import H200 as H200_CHIP
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.machine.engine import Engine
from emulated_gpu.model import fences
from emulated_gpu.model.clock import TimingClock
from emulated_gpu.model.issue import Cost
from emulated_gpu.model.lines import OPEN_BLOCKS, OPENED, WRITTEN
from emulated_gpu.model.profile import load
from emulated_gpu.model.sm import SharedPort, Sm
from emulated_gpu.model.sm_clock import SmClocks
from silicon.probes import boxes, gpc_clock, gpcs, link, pdl_chain, release, row_stores, tensor_clock
from silicon.timing import validate
from silicon.timing.points import POINTS
from tests.thorough import all_but

pytestmark = pytest.mark.usefixtures("launches_are_freed")
MEDIAN, WORST = 0.10, 0.25


H200 = load("h200")
FAMILIES = ("launches", "tensor maps", "single copies")


def chosen(family: str) -> list:
    """Five points that the profile was not fitted to and three that it was, by a hash of their names."""
    points = [p for p in POINTS if validate.family(p) == family and p.grid <= 132]  # larger grids take long
    points.sort(key=lambda p: validate.lot(p.name, "test "))
    out = validate.held_out()
    return [p for p in points if p.name in out][:5] + [p for p in points if p.name not in out][:3]


def test_the_table_of_the_page_is_of_the_recorded_points():
    """modelled_h200.jsonl has a family by one version of the model, the newest last; the page says which by which."""
    family = {point.name: validate.family(point) for point in POINTS}
    measured, held_out = validate.measured(), validate.held_out()
    rows, versions = [], {}
    for line in validate.TABLE.with_name("modelled_h200.jsonl").read_text().splitlines():
        known = json.loads(line)
        name = known["name"]
        rows.append((family[name], name, known["value"], measured[name], name in held_out))
        assert versions.setdefault(family[name], known["model"]) == known["model"]
    newest = known["model"]
    of_newest = [f for f in validate.FAMILIES if versions.get(f) == newest]
    text = Path(validate.__file__).with_name("README.md").read_text()
    assert f"<!-- h200 -->\n{validate.summary(rows)}\n<!-- /h200 -->" in text
    assert f"the newest values are of {', '.join(of_newest)};" in text.replace("\n", " ")


def test_the_held_out_half_is_what_it_was_when_the_profile_was_fitted():
    names = "\n".join(sorted(validate.held_out()))
    assert hashlib.sha256(names.encode()).hexdigest()[:16] == "22d52be46c5b6346"


@pytest.mark.parametrize("family", all_but(("launches",), FAMILIES))
def test_errors(family):
    measured, out = validate.measured(), validate.held_out()
    points = chosen(family)
    errors = {p.name: validate.model(p, H200) / measured[p.name] - 1 for p in points}
    said = "\n".join(f"{e:+.1%} {'held out' if name in out else 'fitted'} {name}" for name, e in errors.items())
    held = [abs(e) for name, e in errors.items() if name in out]
    assert len(held) == 5 and statistics.median(held) <= MEDIAN, said
    assert max(map(abs, errors.values())) <= WORST, said


@pytest.mark.parametrize("name", ["loads/bulk/case 0/wait/6x32K/no tiles", "loads/tensor/case 0/early/12x16K/no tiles"])
def test_dependent_launches(name):
    check(name, WORST)


def check(name: str, error: float) -> None:
    """A point of the table, by its name."""
    point = next(p for p in POINTS if p.name == name)
    assert validate.model(point, H200) == pytest.approx(validate.measured()[name], rel=error)


CHEAP = (
    "loads/bulk/case 2/plain/6x32K/66 CTAs",
    "loads/tensor/case 3/plain/12x16K/cold 1",
    "loads/tensor/case 2/plain/12x16K/warm 15",
    "stores/tensor/case 0/2 boxes of 32 rows/132 CTAs/warm 15",
    "stores/plain/case 0/16 B per lane/4 warps/132 CTAs/warm 15",
    "sharing/bulk/16 rounds/plain/1x16K/4 CTAs/cluster 4/multicast",
)


@pytest.mark.parametrize("name", all_but(CHEAP[1::2], CHEAP))
def test_loads_and_stores(name):
    check(name, MEDIAN)


MEETING = ((0, 1, 0), (575, 1, 0.25), (5000, 1, 1), (5000, 0, 0), (5000, 2, 0))


@pytest.fixture
def first():
    """The number of the first line of 3 MiB of data."""
    data = allocate(3 << 20)
    DEVICE.adopt(data, "data")
    yield data.ctypes.data // 128


@pytest.mark.parametrize(("backlog", "sm", "shared"), MEETING)
def test_lines_meet_where_they_wait_for_the_crossbar(memory, first, backlog, sm, shared):
    """SM 0 asks for 16 KiB that have to wait for `backlog` cycles, then `sm` does; SMs 0 and 1 are a cluster."""
    memory.read_port = float(backlog)
    memory.read(0.0, range(first, first + 128), 16384, sm=0, cluster=0)
    begin = memory.read_port
    memory.read(0.0, range(first, first + 128), 16384, sm=sm, cluster=sm // 2 * 2)
    expected = 16384 * ((1 - shared) / memory.read_rate + shared / memory.shared_rate)
    assert memory.read_port - begin == pytest.approx(expected)


def test_stored_lines_leave_in_proportion_to_their_share(memory, first):
    """1 MiB stored, then 2 MiB read: so much of it has left a half as of all its lines has been replaced."""
    stored, read = 1 << 20, 2 << 20
    memory.write(0.0, range(first, first + stored // 128), stored)
    before = list(memory.stored)
    for at in range(first + stored // 128, first + (stored + read) // 128, 128):
        memory.read(0.0, range(at, at + 128), 16384, half=0)
    for half, came in enumerate((read, read // 2)):  # the other half gets what is at home there
        left = memory.stored[half] / before[half]
        assert left == pytest.approx(math.exp(-came / memory.capacity), rel=1e-3)
    assert memory.numbers[WRITTEN] == pytest.approx(stored - sum(memory.stored))


def test_lines_that_are_there_wait_for_it_when_stored_and_are_written_back_once(memory, first):
    """Prefetched, then stored at once: acknowledged when they have come, not when those are that the L2 has; dirty."""
    lines, stored = range(first, first + 128), 16384
    memory.prefetch(0.0, lines, stored)
    ready = memory.region(first).ready
    come = ready[np.isfinite(ready)].max()
    done = memory.write(0.0, lines, stored)[1]
    assert done == come > stored / memory.write_rate + memory.hit_cycles
    memory.write(done, lines, stored)
    assert sum(memory.stored) == stored


def test_a_load_that_meets_prefetches_ends_with_the_last_of_them(memory, first):
    """64 prefetches of 16 KiB, then a load of the first one's lines, a tenth and all of their time later."""
    for at in range(first, first + 8192, 128):
        memory.prefetch(0.0, range(at, at + 128), 16384)
    until, chunk = memory.prefetched, range(first, first + 128)
    assert until > 64 * 16384 / H200.bytes_per_cycle(H200["hbm"]["read_tb_s"])
    port, busy = memory.read_port, 16384 / memory.read_rate
    early = memory.read(until / 10, chunk, 16384)[1]
    assert memory.read_port == pytest.approx(port + 0.1 * busy)
    late = memory.read(until + memory.read_port, chunk, 16384)[1]
    assert early == pytest.approx(until + 0.9 * busy + memory.hit_cycles)
    assert late < until + memory.read_port + busy + memory.hit_cycles + 1


def test_clusters_have_room_in_a_gpc_each():
    """As many as a Hopper's driver says, of groups of SMs that its clusters were seen in; one more is a second wave."""
    known = json.loads(gpcs.TABLE.read_text())
    assert sorted(map(len, known["groups"])) == sorted(H200_CHIP.gpcs) and sum(H200_CHIP.gpcs) == H200_CHIP.sms
    assert {str(size): H200_CHIP.active_clusters(size) for size in gpcs.SIZES} == known["at once"]
    times = known["us of clusters that stay 5 us"]
    for size in (4, 8):
        most = H200_CHIP.active_clusters(size)
        one, two = (gpcs.us_on_the_model(size, most + more, H200, us=1.0) for more in (0, 1))
        assert two - one > 1.0 and times[f"{size} x {most + 1}"] - times[f"{size} x {most}"] > 5.0
        assert H200_CHIP.sms // size > most, "SMs alone would not show it"
    few = dataclasses.replace(H200_CHIP, sms=20)
    assert [few.active_clusters(size) for size in (1, 4, 8)] == [20, 5, 2], "SMs that it does not have"


@pytest.mark.parametrize("name", [name for name in json.loads(link.TABLE.read_text()) if "cycles" in name])
def test_memory_of_another_gpu(name):
    """Loads, fences and messages of one SM; link.json is of H100s, whose own memory answers 6 % sooner."""
    recorded = json.loads(link.TABLE.read_text())[name]
    assert link.measure(link.Model(H200), name)[name] == pytest.approx(recorded, rel=0.12)


@pytest.mark.thorough
def test_launches_of_a_pdl_chain():
    """Cycles from a CTA's end to the next one's start, and to its wait: clusters of two that store nothing."""
    to_start, to_pass = pdl_chain.readings(pdl_chain.on_the_model(2, 0, launches=4))
    start, passed = pdl_chain.MEASURED[2, 0]
    assert to_start == pytest.approx(start, rel=MEDIAN)
    assert to_start + to_pass == pytest.approx(start + passed, rel=MEDIAN)


@pytest.mark.parametrize("release", ["", ".release.cluster"])
def test_hand_over_to_another_cta(release):
    """By mbarrier.arrive: a release to the cluster waits for what the warp has done."""
    name = f"latency/mbarrier/hand-over in a cluster{release}"
    check(name, MEDIAN)


def test_what_follows_prefetches_waits_until_the_l2_has_taken_them():
    """512 bytes behind 4 x 32 KiB of prefetches, as fast as the TMA unit lets them out or the L2 takes them."""
    none, ahead = (next(p for p in POINTS if p.name == f"prefetch/512 B behind {n}x32K/1 CTAs") for n in (0, 4))
    slow = H200.with_({"l2.prefetch_tb_s": 0.05})
    for profile, rate in ((H200, H200["tma"]["bytes_per_cycle"]), (slow, slow.bytes_per_cycle(0.05))):
        cycles = validate.model(ahead, profile) - validate.model(none, profile)
        assert cycles == pytest.approx(4 * 32768 / rate, rel=MEDIAN)


PREFETCHED = """.version 8.8
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 from) {{
  .reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
  .shared .align 1024 .b8 bytes[4104];
  ld.param.u64 %rd1, [from];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, bytes;
  setp.eq.u32 %p0, %r1, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%r2+4096], 1;
  fence.proxy.async.shared::cta;
  mul.wide.u32 %rd2, %r1, 128;
  add.u64 %rd2, %rd2, %rd1;
  setp.lt.u32 %p1, %r1, {lanes};
  @%p1 prefetch.global.L2 [%rd2];
  mov.u64 %rd3, %clock64;
  add.u64 %rd3, %rd3, 4000;
SPIN:
  mov.u64 %rd4, %clock64;
  setp.lt.u64 %p2, %rd4, %rd3;
  @%p2 bra SPIN;
  @!%p0 ret;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2+4096], 4096;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 4096, [%r2+4096];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2+4096], 0;
  @%p2 ret;
  bra WAIT;
}}
"""


def test_lanes_prefetch_their_lines():
    """4 KiB from DRAM, and from L2 if 32 lanes have prefetched a line each: no miss, but one if a lane has not."""
    source, cycles = allocate(4096), {}
    DEVICE.adopt(source, "source")
    for lanes in (0, 31, 32):
        with emulated_gpu.timing(H200) as timed:
            emulated_gpu.launch(PREFETCHED.format(lanes=lanes), "kernel", 1, 32, [source])
        cycles[lanes] = timed.ends_us[0] * 1000 * H200["sm"]["clock_ghz"]
    miss = H200["hbm"]["latency_cycles"]
    assert cycles[0] - cycles[32] == pytest.approx(miss, rel=0.2), cycles
    assert cycles[0] > cycles[31] > cycles[32] + miss / 2, cycles


def test_a_tensor_copy_from_dram_is_overtaken_as_a_bulk_copy_is():
    """It takes as much longer as silicon says: 34 cycles of some 1700."""
    names = [f"latency/{kind} load/DRAM/16384 B/132 CTAs" for kind in ("tensor", "bulk")]
    modelled = [validate.model(next(p for p in POINTS if p.name == name), H200) for name in names]
    measured = [validate.measured()[name] for name in names]
    assert modelled[0] - modelled[1] == pytest.approx(measured[0] - measured[1], abs=10)


@pytest.mark.parametrize("what", ["of each lane", "uniform"])
def test_a_division_takes_as_long_as_measured(what):
    check(f"mechanisms/div.u32/{what}", 0.02)


def test_the_model_is_deterministic():
    point = next(p for p in POINTS if p.name == "latency/bulk load/DRAM/16384 B/132 CTAs")
    assert validate.model(point, H200) == validate.model(point, H200)


MECHANISMS = (
    "mechanisms/bursts/fill/3x16K/cold/copy 0",
    "mechanisms/bursts/fill/12x16K/cold/copy 0",
    "mechanisms/bursts/fill/12x16K/cold/copy 11",
    "mechanisms/bursts/fill/12x16K/warm/copy 0",
    "mechanisms/shared st, 8 lanes a bank/1 warps",
    "mechanisms/shared st, 32 lanes a bank/1 warps",
    "mechanisms/ld.param/every 64 B/first",
)


@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms(name):
    check(name, WORST)


@pytest.mark.thorough
def test_a_map_edited_behind_loads_waits_for_them():
    """Fence and first load together: how the wait is shared between the two, the model does not know."""
    for loads, grid in ((4, 132), (8, 132), (4, 1)):
        names = [f"mechanisms/maps/edit behind {loads} loads/{step}/{grid} CTAs" for step in ("acquired", "first load")]
        modelled = sum(validate.model(p, H200) for p in POINTS if p.name in names)
        assert modelled == pytest.approx(sum(validate.measured()[name] for name in names), rel=WORST)


@pytest.mark.thorough
def test_lines_that_lie_alone_take_the_memory_longer():
    """Boxes along a GEMM's K on an H100, which has five stacks of memory for six; without rows to open, 5 % less."""
    pattern = boxes.Pattern(128, 128, 3584, 12)
    h100 = {"hbm.read_tb_s": 3.2, "hbm.row_ns": H200["hbm"]["row_ns"] * 6 / 5}
    h100["hbm.open_blocks"] = H200["hbm"]["open_blocks"] * 5 / 6
    measured = json.loads(boxes.TABLE.read_text())["cycles"][pattern.name]
    assert boxes.on_the_model(pattern, H200.with_(h100)) == pytest.approx(measured, rel=0.03)


def test_a_row_is_opened_by_each_piece_and_stays_open_for_a_while(memory):
    data = allocate(4 << 20)
    DEVICE.adopt(data, "data")
    region = memory.region(data.ctypes.data // 128 + 1)
    apart, together = np.arange(0, 128 * 32, 32), np.arange(8192, 8192 + 128)
    memory.flushed[:] = 0.0

    def rows(lines: np.ndarray) -> float:
        memory.prefetch(0.0, region.first + lines, 16384)
        return (memory.each - memory.line_cycles) * 128 / memory.row_cycles

    assert rows(apart) == pytest.approx(128)
    assert rows(together) == pytest.approx(128 / 32)
    blocks = memory.numbers[OPEN_BLOCKS]
    assert rows(apart + 1) == pytest.approx(0, abs=128 * 5 / blocks)
    memory.numbers[OPENED] += 10 * blocks
    assert rows(apart + 2) == pytest.approx(128, rel=0.001)


def test_the_tensor_core_reads_its_operands_first():
    """What is left of shared memory's port beside it, as silicon/probes/operands.py has it: bytes a cycle of stores."""
    for operands, left in ((107, 25), (80, 49)):
        port = SharedPort()
        for start in range(0, 6400, 64):
            port.read_operands(0.0, start, start + 64, operands / 128)
        passed = 0
        while port.access(0.0, 4) < 6000:
            passed += 4
        assert passed * 128 / 6000 == pytest.approx(left, rel=WORST)


def test_the_clock_sinks_while_the_tensor_core_works(monkeypatch):
    """Wgmmas on one SM: as many cycles as measured, of a clock that is as low as measured. Both are of several rounds,
    whose samples begin at different times: where one falls moves a slice by 1 %."""
    work, rounds = tensor_clock.Load("f16", 128, sms=1, us=20), []
    measured = json.loads(tensor_clock.TABLE.read_text())["points"][dataclasses.replace(work, us=60).name]
    for rest in range(tensor_clock.REST, tensor_clock.REST + 80, 20):
        monkeypatch.setattr(tensor_clock, "REST", rest)
        rounds.append(tensor_clock.on_the_model(work, H200))
    assert statistics.mean(r["cycles"] for r in rounds) == pytest.approx(measured["cycles"], rel=0.01)
    for slices, error in ((slice(0, 1), 0.01), (slice(1, 2), 0.02), (slice(2, 9), 0.005)):
        low = [statistics.mean(x for r in of for x in r["meanwhile"][slices]) for of in (rounds, [measured])]
        assert low[0] == pytest.approx(low[1], rel=error)
    assert rounds[0]["before"] == pytest.approx(measured["before"], rel=0.005)


def test_the_clock_sinks_further_where_all_tensor_cores_work():
    """From 2 us on, against the mean of what types and shapes have done on noise; of a quarter of the SMs, too."""
    points = json.loads(tensor_clock.TABLE.read_text())["points"]
    for sms in (132, 33):
        clocks, each = SmClocks(H200, 132), 128.0
        for now in range(0, 20000, 128):
            for sm in range(sms):
                clocks.works(sm, now, now, each)
        of = [x["meanwhile"][1:6] for name, x in points.items() if f"noise, {sms} SMs, 60 us" in name]
        of = statistics.mean(x for each in of if each for x in each)
        assert 1.98 / clocks.slower(0, now) == pytest.approx(of, rel=0.01)


def test_the_clock_is_back_after_the_last_wgmma_as_soon_as_measured():
    """By the ticks that it loses until 4 us later, in the mean of runs on one SM and on all."""
    works = json.loads(gpc_clock.TABLE.read_text())["works"]
    edges, lost = gpc_clock.FROM_LAST, []
    for name in ("1 workers", "8 workers", "short 64 groups zeros", "short 64 groups"):
        ghz = zip(edges, edges[1:], works[name]["from the last"])
        lost.append(sum((works[name]["before"] - x) * (high - low) for low, high, x in ghz))
    clocks = SmClocks(H200, 132)
    end = sum(clocks.works(0, at, at, 64.0) and 64.0 for at in range(0, 7000, 64))
    ticks = [clocks.ticks(0, time) for time in (end, end + H200.cycles(4000))]
    assert H200.cycles(4000) - (ticks[1] - ticks[0]) == pytest.approx(statistics.mean(lost), rel=0.15)


@pytest.mark.parametrize("warps", [8, 12, 16, 24, 32])
def test_one_line_answers_one_request_after_the_other(memory, warps):
    """That each of `warps` warps of all SMs has sent; before they wait, all have the latency of one on its own."""
    measured = validate.measured()
    alone = measured["mechanisms/ld.relaxed.gpu/the same word/1 warps/132 CTAs"]
    waits = [memory.in_turn(0.0, 7, sm % 2) for _ in range(warps) for sm in range(132)]
    of = measured[f"mechanisms/ld.relaxed.gpu/the same word/{warps} warps/132 CTAs"]
    assert max(alone, max(waits)) == pytest.approx(of, rel=0.06)
    assert memory.in_turn(0.0, 8, 0) == 0


def test_only_loads_past_the_l1_wait_for_each_other():
    """A chain of four loads of one word by each of 12 warps, from an L2 that answers a request in 100 cycles.

    The first warp's first load finds nobody there, its second one some of the others, the last two all of them.
    """
    slow = H200.with_({"l2.one_line_requests": 0.01})
    turn = 12 * 100 - H200["issue"]["global_load"][1]
    for what, least, most in (("ld.relaxed.gpu", 2 * turn, 3 * turn), ("ld", 0, 0)):
        point = next(p for p in POINTS if p.name == f"mechanisms/{what}/the same word, cold/12 warps/132 CTAs")
        point = dataclasses.replace(point, grid=1, options=point.options | {"steps": 4})
        found = [validate.model(point, profile) for profile in (H200, slow)]
        assert least <= found[1] - found[0] <= most


def test_what_a_warp_does_takes_longer_while_its_clock_is_low():
    """A block, an access of shared memory and waking up, of an SM that has just multiplied, and of one that has not."""
    clock = TimingClock(H200, DEVICE.memory, Engine())
    clock.clocks.works(1, 0.0, 0.0, 64.0)
    slower = clock.clocks.slower(1, 10.0)
    assert slower == pytest.approx(1.98 / H200["tensor_clock"]["onset_ghz"], rel=0.01)
    for what in ("block", "shared", "wake"):
        took = []
        for sm in (0, 1):
            group = Mock(t=10.0, begun=10.0, pc=0)
            group.cta.sm = group.warp.cta.sm = sm
            group.warp.index, group.program.start, group.program.end = 0, [0], [0]
            if what == "block":
                took.append(clock.executed(group, Cost(100.0, 80.0)) - 10)
            elif what == "shared":
                clock.shared_access(group, np.arange(32, dtype=np.uint64) * 128, 4)  # of one bank
                took.append(group.t - 10)
            else:
                took.append(clock.wake(group.warp, 10.0))
        assert took[1] == pytest.approx(took[0] * slower)


FENCES = (
    "st.release.gpu",
    "fence.acq_rel.gpu",
    "two fences.acq_rel.gpu",
    "st.release.gpu behind 16 stores of its warp",
    "st.release.gpu behind 4 stores of each of 4 other warps",
    "atom.acq_rel.gpu behind 4 stores of its warp",
    "st.release.gpu behind 8 copies, cold",
    "mbarrier.arrive.release.cluster behind 8 copies, 2 CTAs, cold",
    "barrier.cluster.release behind 4 stores of its warp, 2 CTAs",
    "hand-over to CTA 1, st.release.gpu, ld.acquire.gpu, 2 rows, nanosleep 64, another release",
)


@pytest.mark.parametrize("name", FENCES)
def test_releases_wait_for_what_the_sm_has_under_way(name):
    point = next(p for p in release.points() if p.name == name)
    measured = json.loads(release.TABLE.read_text())["points"][name]
    assert measured["digest"] == release.digest(point)
    assert release.on_the_model(point, H200)[0] == pytest.approx(measured["cycles"][0], rel=MEDIAN)


def test_a_release_in_the_cta_and_bulk_stores_do_not_wait():
    """Behind 8 copies a release in the CTA goes on at once, and none waits for what the TMA unit stores."""
    in_cta, stored = release.Operation("st.release.cta", loads=8, cold=True), Sm()
    assert release.on_the_model(in_cta, H200)[1] < 50
    idle = fences.passed("store", 1000.0, stored, H200["sync"], {})
    stored.egress = 5000.0  # what the TMA unit stores leaves until then
    assert fences.passed("store", 1000.0, stored, H200["sync"], {}) == idle
    stored.drained = 5000.0
    assert fences.passed("store", 1000.0, stored, H200["sync"], {}) > 5000


@pytest.mark.parametrize("name", [f"{width}, 1 CTAs" for width in ("4 B, 4 rows", "4 B, 8 rows", "16 B, 16 rows")])
def test_rows_in_whole_sectors_are_stored_by_their_bytes(name):
    """Rows of 16 bytes, half a sector, take a wavefront each; of 32 bytes a line of 128 is as fast as in one piece."""
    measured = json.loads(row_stores.TABLE.read_text())["cycles"][name]
    assert row_stores.on_the_model(row_stores.POINTS[name], H200) == pytest.approx(measured, rel=0.15)
