"""The first schedules are chosen to find most: programs whose fault only some orders of events show."""

import pytest
from order_dependent import PROGRAMS, found

from emulator.machine.schedule import Schedule

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
