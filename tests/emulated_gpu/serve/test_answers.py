"""A profile answers in time with what it has, and says what mending would bring."""

import math
import signal
import time

import pytest

import emulated_gpu
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.errors import Fault
from emulated_gpu.model import gains, report, undone
from emulated_gpu.model.profile import load
from emulated_gpu.model.run import TimedRun
from emulated_gpu.model.tally import tallied
from emulated_gpu.model.timeline import Timeline
from emulated_gpu.model.trace import Trace
from emulated_gpu.page import hot
from emulated_gpu.page.verdicts import verdicts, with_gains
from emulated_gpu.serve.host import timed_run
from emulated_gpu.serve.mended import Mended
from emulated_gpu.serve.run import Loud

# A loop whose turns are a word of memory, which each launch makes larger
PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 turns)
{
  .reg .pred p; .reg .b32 i, n, x, tid; .reg .b64 a; .shared .b32 words[12288];
  ld.param.u64 a, [turns]; ld.global.u32 n, [a]; mov.u32 i, 0; mov.u32 tid, %tid.x;
  shl.b32 tid, tid, 7; mov.u32 x, words; add.u32 tid, tid, x;
L: ld.shared.u32 x, [tid]; add.u32 i, i, 1; setp.lt.u32 p, i, n; @p bra L;
  mov.u32 x, %ctaid.x; mov.u32 i, %nctaid.x; sub.u32 i, i, 1; setp.eq.u32 p, x, i; add.u32 n, n, 20;
  @p st.global.u32 [a], n; ret;
}
"""


class Timed:
    """A run of the kernel, with a trace."""

    def __init__(self, launches: int, grid: int):
        self.turns = allocate(4)
        DEVICE.adopt(self.turns, "turns")
        self.turns.view("u4")[:] = 20 if grid < 100 else 5
        with emulated_gpu.session() as here:
            here.recorded = []
            for _ in range(launches):
                emulated_gpu.launch(PTX, "kernel", grid, 32, [self.turns])
        self.trace = Trace()
        self.run = TimedRun(load("b200"), DEVICE.memory, here.recorded, self.trace)
        self.counted = [tallied(one.launch) for one in self.run.launches]

    def cut_at(self, us: float) -> None:
        self.run.engine.at(self.run.profile.cycles(us * 1e3), self.run.cut)
        self.run.run()

    def report(self, folder) -> dict:
        return report.report(self.run, self.trace, self.counted, folder)


def test_a_part_of_the_ctas_stands_for_all(tmp_path):
    whole, cut = Timed(1, 1_800), Timed(1, 1_800)
    whole.run.run()
    cut.cut_at(0.6 * whole.run.ends_us()[0])
    everything, part = whole.report(tmp_path), cut.report(tmp_path)
    assert 0.3 < cut.run.cut_off[0] < 0.8
    assert part["launches"][0]["us"] == pytest.approx(everything["launches"][0]["us"], rel=0.15)
    assert part["kernels"][0]["us_corrected"] == part["launches"][0]["us_corrected"]
    assert part["partial"].endswith("of 1800 CTAs of kernel are done: its times, bytes and products are extrapolated "
                                    "from them")  # fmt: skip
    assert any(part["partial"] in line for line in report.lines(part)) and not everything["partial"]


def test_launches_that_are_done_stand_for_the_others(tmp_path):
    timed = Timed(3, 4)
    timed.run.launches[1].before_start = lambda: timed.run.engine.at(timed.run.engine.now + 1, timed.run.cut)
    timed.run.run()
    found = timed.report(tmp_path)
    assert found["partial"] == "1 of 3 launches are done; the others are taken to be like these"
    assert [one["launch"] for one in found["launches"]] == [0]


def test_of_what_has_not_ended_no_more_is_said_than_is_known(tmp_path):
    timed = Timed(1, 4)
    timed.cut_at(1.0)
    found = timed.report(tmp_path)
    assert "has not got to the end of one of its 4 CTAs" in found["partial"]
    assert found["launches"][0]["us"] == pytest.approx(1.0) and found["launches"][0]["us_interval"] is None
    assert "it takes 1.00 us at least" in "\n".join(report.lines(found))


@pytest.mark.parametrize("how", ["Ctrl-C", "deadline"])
def test_a_run_ends_at_once_when_it_is_asked_to(how, monkeypatch, capsys):
    monkeypatch.setattr(timed_run, "FIRST_BEAT_S", 0.2)
    timed = Timed(3, 4)
    handler = signal.getsignal(signal.SIGINT)
    until = [math.inf]

    def ask() -> None:
        if how == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        else:
            time.sleep(max(0.0, until[0] + 0.1 - time.monotonic()))

    timed.run.launches[1].before_start = ask
    if how == "deadline":
        until = [time.monotonic() + 0.6]
    with Mended(0, until[0]).around(timed.run):
        timed.run.run()
    assert timed.run.was_cut and len(timed.run.ends_us()) == 1
    assert signal.getsignal(signal.SIGINT) is handler
    if how == "deadline":
        assert "emulated-gpu: 0 s: 1 of 3 launches done (the last one takes " in capsys.readouterr().err


def test_the_first_answer_comes_with_the_first_launch_of_a_long_run(monkeypatch, capsys):
    """It has time, floors and a verdict of that launch, and is told once; of a short run nothing is."""
    timed = Timed(3, 4)
    with Mended().around(timed.run):
        timed.run.run()
    assert not capsys.readouterr().err
    monkeypatch.setattr(timed_run, "FIRST_BEAT_S", 0.0)
    timed, told = Timed(3, 4), []
    timed.run.launches[2].before_start = lambda: told.append(capsys.readouterr().err)
    with Mended().around(timed.run):
        timed.run.run()
    (line,) = [line for line in told[0].splitlines() if "first answer" in line]
    us = report.of_launch(timed.run.launches[0])["us_corrected"]
    assert line.startswith(f"emulated-gpu: first answer: launch 0 (kernel) takes {us:.2f} us; ")  # and has no bracket
    assert "; floors: HBM 0.00 us, tensor cores 0.00 us; 4 of 148 SMs have work in launch 0 (kernel)" in line
    assert line.endswith("; 1 of 3 launches done") and "first answer" not in capsys.readouterr().err


def test_gains_are_of_the_memory_that_the_launches_began_with(tmp_path):
    """Each launch has 20 turns more than the one before, so that a run behind another one takes longer."""
    timed = Timed(2, 4)
    with Mended(2) as mended:
        with mended.around(timed.run):
            timed.run.run()
        found = timed.report(tmp_path)
        timeline = Timeline(timed.run, timed.trace)
        *_, known = mended.gains(timeline, found)
    by_way = {one.what: one for one in known}
    conflicts = by_way[undone.CONFLICTS,]
    assert int(timed.turns.view("u4")[0]) == 60  # a row of 32 words in 32 turns of a bank: 31 fewer in each access
    saved = timed.run.profile.us((20 + 40) * 31 * timed.run.profile["sm"]["wavefront_cycles"])
    assert conflicts.share * timed.run.ends_us()[1] == pytest.approx(saved, rel=0.1)
    assert conflicts.between is None and conflicts.tells  # of a kernel without tensor work no bracket is known
    running = gains.asked(timeline, found).running  # the launches begin and end as before, whatever SMs are busy
    assert by_way[undone.IDLE,].share == pytest.approx((1 - 4 / 148) * running, rel=0.01)
    together = next(one for one in known if len(one.what) == 2)
    assert together.share > max(by_way[way,].share for way in together.what)
    lines = hot.lines(hot.instructions(timeline), timed.trace)
    shown = with_gains(timeline, found, lines, known)
    assert [one["share"] for one in shown if "share" in one and one["text"] != "both together"] == sorted(
        (one["share"] for one in shown if "share" in one and one["text"] != "both together"), reverse=True
    )
    assert "32-way bank conflicts" in next(one["text"] for one in shown if one.get("undo") == undone.CONFLICTS)
    assert all("gain" not in one for one in verdicts(timeline, found, lines))
    assert f"with {undone.WAYS[undone.CONFLICTS]} at most" in "\n".join(report.verdict_lines(shown))


def test_rounds_of_launches():
    assert gains.enough_of(["a", "b", "a", "b", "a", "b"]) == (4, 2)
    assert gains.enough_of(["a"] * 8) == (2, 2)
    assert gains.enough_of(["a", "b", "c"]) == (3, 1)
    assert gains.covered([(0, 2), (1, 3), (5, 6)]) == 4


def test_the_best_two_are_no_parts_of_each_other():
    def of(way):
        return gains.Gain((way,), 0.1, 1.0, 10.0, None, None)

    assert gains.best_of([of(undone.LAUNCHES), of(undone.DEPENDENT), of(undone.LOADS)]) == ("launches", "loads")


def test_one_rule_is_told_once_and_whose_compiler_wrote_what_it_is_about(monkeypatch, capsys):
    monkeypatch.setitem(DEVICE.compilers, "matmul", "Triton")
    session = Loud()
    twice = ("matmul", 7, "arrives-twice"), ("matmul", 9, "arrives-twice")
    for kernel, line, rule in (*twice, ("own", 8, "lanes-apart"), ("matmul", 5, "selected-away")):
        where = f"kernel {kernel}, CTA (0, 0, 0), warp 0, PTX line {line} (k.py:{line})"
        session.note(Fault("barrier", f"what is wrong at PTX line {line}", where, rule))
    first, at, again, own, _, selected, _ = capsys.readouterr().err.splitlines()
    said = "emulated-gpu: note, not promised by the PTX ISA: "
    written = " (Triton's compiler has written this, not the script)"
    assert first == f"{said}barrier: what is wrong at PTX line 7{written}" and "k.py:7" in at
    assert again == f"{said}arrives-twice again, at kernel matmul, CTA (0, 0, 0), warp 0, PTX line 9 (k.py:9)"
    assert own == f"{said}barrier: what is wrong at PTX line 8" and written not in selected
    assert [note.message.endswith(written) for note in session.notes] == [True, True, False, False]
