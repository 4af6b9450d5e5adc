"""The first schedules are chosen to find most: programs whose fault only some orders of events show."""

from types import SimpleNamespace

import numpy as np
import pytest
from order_dependent import PROGRAMS, found

import emulated_gpu
from emulated_gpu.machine.schedule import FunctionalClock, Schedule

FIRST, DRAWN = range(4), range(12, 24)


@pytest.fixture(scope="module")
def finds():
    """By schedule: the names of the programs in which it finds something."""
    return {s: {p.name for p in PROGRAMS if found(p, False, s)} for s in (*FIRST, *DRAWN)}


def test_the_first_four_find_all_and_four_drawn_ones_fewer(finds):
    assert set().union(*(finds[s] for s in FIRST)) == {p.name for p in PROGRAMS}
    for first in range(DRAWN.start, DRAWN.stop, 4):
        assert len(set().union(*(finds[s] for s in range(first, first + 4)))) <= 9


def test_each_of_the_first_finds_what_the_others_of_them_do_not_or_is_the_orderly_one(finds):
    for schedule in FIRST[1:]:
        assert finds[schedule] - set().union(*(finds[s] for s in FIRST if s != schedule)), schedule


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_right_state_is_silent(program):
    assert [found(program, True, schedule) for schedule in (*FIRST, 17)] == [""] * 5


def test_a_schedule_is_what_its_number_says():
    assert [sorted(Schedule(n).lazy_classes()) for n in (0, 1, 3, 4)] == [[], [], [], ["tma"]]
    assert Schedule(2).lazy_classes() == set(Schedule.CLASSES) and Schedule(10).lazy_classes() == {"st"}
    assert Schedule(30).lazy_classes() == Schedule(30).lazy_classes() != Schedule(31).lazy_classes()


@pytest.mark.parametrize(("hands_on", "seed", "count", "ticks"), [
    (False, 0, 5000, 4096), (True, 0, 5000, 256), (False, 1, 5000, 256), (False, 0, 3000, 256),
])  # fmt: skip
def test_turns_are_longer_where_nobody_polls(hands_on, seed, count, ticks):
    """Else 592 CTAs would each look 500 times at a barrier before the next warp has come to it."""
    clock = FunctionalClock(Schedule(seed), SimpleNamespace(count=count))
    clock.program(SimpleNamespace(hands_on=hands_on, predicated=None))
    assert clock.quantum == ticks


# The first warp of device 0 polls until device 1 has raised [flag], or this many nanoseconds have passed, and says how
# many did, and how often it looked; the two warps of device 1 meet four times before that.
POLL = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry poll(.param .u64 flag, .param .u64 waited, .param .u64 looks, .param .u64 most) {
  .reg .b64 %flag, %waited, %looks, %most, %begin, %now;
  .reg .b32 %seen, %looked;
  .reg .pred %p;
  ld.param.u64 %flag, [flag];
  ld.param.u64 %waited, [waited];
  ld.param.u64 %looks, [looks];
  ld.param.u64 %most, [most];
  mov.u64 %begin, %globaltimer;
WAIT:
  ld.acquire.sys.global.u32 %seen, [%flag];
  ld.global.u32 %looked, [%looks];
  add.u32 %looked, %looked, 1;
  st.global.u32 [%looks], %looked;
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %begin;
  setp.ge.u64 %p, %now, %most;
  @%p bra DONE;
  setp.ne.u32 %p, %seen, 1;
  @%p bra WAIT;
DONE:
  st.global.u64 [%waited], %now;
  ret;
}
.visible .entry work(.param .u64 flag) {
  .reg .b64 %flag;
  .reg .b32 %i;
  .reg .pred %p;
  ld.param.u64 %flag, [flag];
  mov.u32 %i, 0;
AGAIN:
  bar.sync 0;
  add.u32 %i, %i, 1;
  setp.lt.u32 %p, %i, 4;
  @%p bra AGAIN;
  mov.u32 %i, %tid.x;
  setp.eq.u32 %p, %i, 0;
  @%p st.release.sys.global.u32 [%flag], 1;
  ret;
}"""
ROUND = 40_000  # ticks in which two warps meet, however far behind one of them is
LOOKS = 1500  # of a poll: eight turns' at first, then a turn's for each pause, which is longer each time


@pytest.mark.parametrize("seed", range(12))
def test_who_polls_keeps_nobody_from_going_on(seed):
    """Each warp that can go on does so within a bound of time, whoever polls beside it, under every schedule; a poll
    looks seldom while nothing changes."""
    flag, waited, looks = np.zeros(1, np.uint32), np.zeros(1, np.uint64), np.zeros(1, np.uint32)
    with emulated_gpu.DEVICE.as_node(2), emulated_gpu.session(schedule=seed):
        emulated_gpu.launch(POLL, "poll", 1, 1, [flag, waited, looks, 1 << 20], device=0)
        emulated_gpu.launch(POLL, "work", 1, 64, [flag], device=1)
        emulated_gpu.synchronize()
    print(waited, looks)
    assert 0 < waited[0] < 4 * ROUND + 20_000  # and the launch's latency
    assert 0 < looks[0] < LOOKS
