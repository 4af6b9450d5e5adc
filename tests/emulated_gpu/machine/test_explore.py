"""Orders of a launch tried on purpose: stopped warps find what no rule forbids, few delays are told, replays repeat."""

import contextlib
import json
import struct

import numpy as np
import pytest
from click.testing import CliRunner
from order_dependent import PROGRAMS, text

import emulated_gpu
from emulated_gpu.__main__ import cli
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.errors import HostOrderFault
from emulated_gpu.machine.explore import Outcome, shrink
from emulated_gpu.machine.schedule import Delay, Schedule, Watched
from emulated_gpu.serve import run
from tests import forked

EXPLORED = 8  # orders, beside schedule 0
SPIN = "{0}: ld.acquire.gpu.global.u32 {1}, [out{2}]; setp.lt.u32 p, {1}, {3}; @p bra {0};"
BODIES = {
    # the last head is lost between two looks: DeepEP's consumer
    "two looks": (
        """@!lead ret; setp.eq.u32 q, cta, 0; @!q bra TAKE; st.release.gpu.global.u32 [out], 1;
        st.release.gpu.global.u32 [out], 2; st.release.gpu.global.u32 [out+4], 1; bra END; TAKE: {} setp.eq.u32 p, y, 0;
        @p bra TAKE; st.global.u32 [out+8], x; END:""",
        "ld.acquire.gpu.global.u32 x, [out]; ld.acquire.gpu.global.u32 y, [out+4];",
        "ld.acquire.gpu.global.u32 y, [out+4]; ld.acquire.gpu.global.u32 x, [out];",
        2, "order-dependent",
    ),
    "an update by a load and a store": (
        "@!lead ret; {} st.global.u32 [out+8], 1;",
        "ld.acquire.gpu.global.u32 x, [out]; add.u32 x, x, 1; st.release.gpu.global.u32 [out], x;",
        "red.relaxed.gpu.global.add.u32 [out], 1;",
        2, "order-dependent",
    ),
    # FlashInfer's barrier of a grid: the leader resets the counter while another CTA looks for it to be full
    "a reset while one looks": (
        f"""@!lead ret; red.release.gpu.global.add.u32 [out], 1; {SPIN.format("S", "y", "", 3)}
        {{}} setp.eq.u32 q, cta, 0; @q st.release.gpu.global.u32 [out], 0; st.global.u32 [in], 1;""",
        "mul.wide.u32 at, cta, 4; add.u64 in, in, at;",
        "red.release.gpu.global.add.u32 [out+4], 1; " + SPIN.format("T", "y", "+4", 3)
        + "mul.wide.u32 at, cta, 4; add.u64 in, in, at;",
        3, "hang",
    ),
    # one counter for all rounds: who comes back first takes the next round's zero for this one's
    "a counter that comes round": (
        """@!lead ret; mov.b32 a, 0; R: {} add.u32 a, a, 1; setp.lt.u32 p, a, 3; @p bra R;""",
        """atom.add.acq_rel.gpu.global.u32 x, [out], 1; setp.eq.u32 q, x, 1; @q st.release.gpu.global.u32 [out], 0;
        @q bra N; W: ld.acquire.gpu.global.u32 y, [out]; setp.ne.u32 p, y, 0; @p bra W; N:""",
        """atom.add.acq_rel.gpu.global.u32 x, [out], 1; add.u32 b, a, 1; shl.b32 b, b, 1;
        W: ld.acquire.gpu.global.u32 y, [out]; setp.lt.u32 p, y, b; @p bra W;""",
        2, "hang",
    ),
    # two slots of 32: who has looked may take a ticket behind another one who has looked, too
    "a check and an act, each an atomic": (
        """@!lead ret; L: {} mul.wide.u32 at, x, 4; add.u64 at, at, in; st.global.u32 [at], cta; END:""",
        """atom.or.relaxed.gpu.global.b32 y, [out], 0; setp.ge.u32 p, y, 64; @p bra END;
        atom.add.relaxed.gpu.global.u32 x, [out], 32;""",
        """ld.relaxed.gpu.global.u32 y, [out]; setp.ge.u32 p, y, 64; @p bra END; add.u32 z, y, 32;
        atom.cas.relaxed.gpu.global.b32 x, [out], y, z; setp.ne.u32 q, x, y; @q bra L;""",
        3, "out-of-bounds",
    ),
}  # fmt: skip


def explored(body: str, grid: int, schedule=0, explore=EXPLORED) -> tuple[str, tuple[str, ...]]:
    """The kind of what exploring a launch finds, and what it says of the order; ("", ()) for nothing."""
    out, given = np.zeros(8, np.uint32), np.zeros(64, np.uint32)
    try:
        with emulated_gpu.session(schedule, explore=explore):
            emulated_gpu.launch(text(body), "kernel", grid=grid, block=32, args=[out, given])
    except emulated_gpu.EmulatorError as error:
        return error.kind, error.order
    return "", ()


@pytest.mark.parametrize("name", BODIES)
def test_stopped_warps_find_it_in_few_orders_and_a_replay_finds_it_again(name):
    body, buggy, right, grid, kind = BODIES[name]
    assert explored(body.format(right), grid) == ("", ())
    found, order = explored(body.format(buggy), grid)
    assert found == kind
    if order:  # else schedule 0 has it
        assert explored(body.format(buggy), grid, explore=0) == ("", ())
        replay = order[-1].removeprefix("again: run --replay ")
        assert len(Schedule.of_text(replay).late) <= 2
        assert [explored(body.format(buggy), grid, replay, 0)[0] for _ in range(2)] == [kind] * 2
        assert explored(body.format(right), grid, replay, 0)[0] == ""


def test_a_counter_that_is_set_back_is_found_unasked():
    body = """@!lead ret; mov.b32 a, 0; R: red.release.gpu.global.add.u32 [out], 1; add.u32 a, a, 4;
        W: ld.acquire.gpu.global.u32 y, [out]; setp.lt.u32 p, y, a; @p bra W; setp.lt.u32 p, a, 12; @p bra R;
        {}; @q st.release.gpu.global.u32 [out], 0;"""
    kind, order = explored(body.format("setp.eq.u32 q, cta, 0"), 4, explore=0)
    assert kind == "hang" and order[0] == "order: 1 delay causes it (1 runs of this launch)"
    right = "atom.add.acq_rel.gpu.global.u32 x, [out+4], 1; setp.eq.u32 q, x, 3"
    assert explored(body.format(right), 4, explore=0) == ("", ())


@pytest.mark.parametrize("waits", (False, True), ids=("at once", "one after the other"))
def test_what_two_launches_leave_is_compared_where_orders_are_explored(waits):
    """One looks once, by a volatile load, at what another stream's launch stores so: no rule is broken."""
    body = """setp.eq.u64 q, in, 0; @q st.volatile.global.u32 [out], 7; @q bra END;
        ld.volatile.global.u32 x, [out]; st.global.u32 [in], x; END:"""
    module, order = DEVICE.module(text(body)), DEVICE.order
    out, given = (allocate(64) for _ in range(2))
    wrong = contextlib.nullcontext() if waits else pytest.raises(HostOrderFault, match="another one in another order")
    with wrong, emulated_gpu.session(explore=1):
        streams = [order.create(0, handle, False, f"stream {handle}") for handle in (5, 6)]
        regions = [DEVICE.adopt(array, "x") for array in (out, given)]
        DEVICE.launch(module, "kernel", (1, 1, 1), (1, 1, 1), struct.pack("2Q", regions[0].start, 0), stream=5)
        if waits:
            order.follow(*streams[::-1])
        params = struct.pack("2Q", *(region.start for region in regions))
        DEVICE.launch(module, "kernel", (1, 1, 1), (1, 1, 1), params, stream=6)
    order.forget()


def test_two_that_poll_in_turn_for_ever_are_a_hang_under_a_schedule_in_which_one_runs_inside_the_other():
    body, buggy, _, grid, _ = BODIES["a counter that comes round"]
    assert explored(body.format(buggy), grid, 2, 0)[0] == "hang"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_right_programs_are_silent_in_every_order(program):
    out, given = np.zeros(4096, np.uint32), np.arange(1024, dtype=np.uint32)
    with emulated_gpu.session(explore=EXPLORED):
        options = {"grid": 1, "threads": 64} | program.launch
        threads = options.pop("threads")
        ptx = text(program.body.format(program.right))
        emulated_gpu.launch(ptx, "kernel", block=threads, args=[out, given], **options)


@pytest.mark.parametrize("schedule", (1, 2))
def test_a_failing_schedule_is_shrunk_to_the_delays_that_cause_it(schedule):
    body, buggy, _, grid, _ = BODIES["two looks"]
    kind, order = explored(body.format(buggy), grid, schedule, 40)
    print(order)
    assert kind == "order-dependent" and order
    late = Schedule.of_text(order[-1].removeprefix("again: run --replay ")).late
    assert 1 <= len(late) <= 3 and all(late.values())


def test_two_of_a_thousand_delays_are_found():
    late = {Delay(k // 32, k % 32, "looked", 0): 100.0 for k in range(1000)}
    needed = {Delay(3, 4, "looked", 0), Delay(30, 1, "looked", 0)}

    def tried(schedule: Schedule) -> Outcome:
        fails = needed <= set(schedule.late)
        return Outcome(emulated_gpu.EmulatorError("no") if fails else None, Watched())

    right = Watched(dict.fromkeys(late, 0.0))
    cause = shrink(tried, 1, Schedule(5), (Watched(late), right), 200)
    assert set(cause.schedule.late) == needed and cause.of == 1000


def test_an_order_is_text_and_back_and_what_is_none_is_refused():
    late = {Delay(2, 0, "stops", 7): 40000.0, Delay(0, 1, "tma", 0): 1 / 3}
    assert Schedule.of_text(str(Schedule(5, late, 3))) == Schedule(5, late, 3)
    assert Schedule.of_text("5") == Schedule(5) and str(Schedule(5)) == "5"
    for bad in ("x", "5/2", "5/2:1.2.sleeps.0=1", "0/1:1.2.stops=1"):
        with pytest.raises(ValueError, match="is no"):
            Schedule.of_text(bad)


SCRIPT = """
import numpy as np, emulated_gpu, sys
args = [np.zeros(8, np.uint32), np.zeros(64, np.uint32)]
emulated_gpu.launch(open(sys.argv[1]).read(), "kernel", grid=2, block=32, args=args)
"""


def test_the_command_replays_an_order(tmp_path):
    body, buggy, _, _, _ = BODIES["two looks"]
    (tmp_path / "k.ptx").write_text(text(body.format(buggy)))
    (tmp_path / "s.py").write_text(SCRIPT)
    refused = CliRunner().invoke(cli, ["run", "--replay", "0/1:nothing", str(tmp_path / "s.py")])
    assert refused.exit_code == 2 and "is no delay" in refused.output
    (tmp_path / "order").write_text(explored(body.format(buggy), 2)[1][-1].removeprefix("again: run --replay ") + "\n")
    replay = ["--json", tmp_path / "r.json", "--replay", tmp_path / "order"]
    again = forked.emulated_gpu("run", *replay, tmp_path / "s.py", tmp_path / "k.ptx")
    (finding,) = json.loads((tmp_path / "r.json").read_text())["runs"][0]["findings"]
    assert again.returncode == 1 and finding["kind"] == "order-dependent" and finding["kind"] in again.stderr


def test_the_option_reaches_the_session(monkeypatch):
    monkeypatch.setattr(run.DEVICE, "session", run.DEVICE.session)
    run.start(run.Options(explore=3))
    assert run.DEVICE.session.explores == 3
